"""Writes what pytest makes of each file with `assert`s, once, before the processes that run tests each make it themselves.

That takes as long as hundreds of tests, in each of them, wherever nothing is kept yet (a clean clone) or may be written
(`PYTHONDONTWRITEBYTECODE`). pytest reads what is kept in either case, and only while it belongs to the source as it stands; it has no
public way to make it, so this is its own, private one. Where that is gone or nothing can be written, tests run all the same, later.

Usage: python -m tests.support.rewritten
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def rewritten_files() -> Iterator[Path]:
    """Tests and their `conftest.py`, and every module of a distribution that brings a plugin."""
    yield from sorted({*TESTS.rglob("test_*.py"), *TESTS.rglob("conftest.py")})
    for distribution in metadata.distributions():
        if any(point.group == "pytest11" for point in distribution.entry_points):
            yield from (Path(str(file.locate())) for file in distribution.files or () if file.suffix == ".py")


def keep(path: Path) -> None:
    """Makes and writes what is not kept yet."""
    from _pytest.assertion import rewrite

    kept = rewrite.get_cache_dir(path) / (path.stem + rewrite.PYC_TAIL)
    if rewrite._read_pyc(path, kept) is None:
        source_hash, code = rewrite._rewrite_test(path, None)  # type: ignore[arg-type]  # it asks a configuration for one hook only
        rewrite.try_makedirs(kept.parent)
        rewrite._write_pyc(_Silent(), code, source_hash, kept)  # type: ignore[arg-type]  # of its state it uses `trace` only


class _Silent:
    def trace(self, text: str) -> None:
        """Nobody reads what could not be written."""


def main() -> None:
    try:
        with ProcessPoolExecutor() as processes:
            for _ in processes.map(keep, rewritten_files(), chunksize=8):
                pass
    except Exception as error:
        print(f"tests are rewritten by each process of its own: {type(error).__name__}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
