"""What the documentation shows is what the program does: each `console` block is run, the reference is the code's own, and
no link leads nowhere.

A page's blocks run in their order in one shell, in a small repository of their own, against the fake API. A block below a
`not run:` remark needs what a test has not, and says what.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import reference
from tests.architecture.source import ROOT
from tests.cli.program import Program
from tests.cli.test_run_api import until, with_api
from tests.support.fake_api import FakeAPI

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"(<!-- not run: [^>]+ -->\n)?```console\n(.*?)```", re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\((?!https?:)([^)#]+)[^)]*\)")


def commands(page: Path) -> list[str]:
    """The lines behind `$ ` of the blocks that can be run, comments cut."""
    blocks = [body for remark, body in BLOCK.findall(page.read_text(encoding="utf-8")) if not remark]
    return [line[2:] for body in blocks for line in body.splitlines() if line.startswith("$ ")]


SHOWN = [page for page in PAGES if commands(page)]


@pytest.mark.slow
@pytest.mark.parametrize("page", SHOWN, ids=[str(page.relative_to(ROOT)) for page in SHOWN])
def test_every_command_that_is_shown_works(program: Program, page: Path) -> None:
    (program.cwd / "src").mkdir()
    (program.cwd / "src/fetch.py").write_text("RETRIES = 3\n\n\ndef fetch(url):\n    for _ in range(RETRIES):\n        pass\n")
    for arguments in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "begun"]):
        subprocess.run(["git", *arguments], cwd=program.cwd, check=True)
    bin = program.home / "bin"
    bin.mkdir(parents=True)
    (bin / "coordinator").symlink_to(Path(sys.executable).parent / "coordinator")
    with FakeAPI("Done, and this is the whole answer.") as api:
        environment = program.environment(**with_api(program, api))
        environment["PATH"] = f"{bin}:{environment['PATH']}"
        lines = [line.replace("sk-ant-…", environment["ANTHROPIC_API_KEY"]) for line in commands(page)]
        script = "\n".join(f'{line}\ncode=$?; [ $code = 0 ] || {{ echo "code $code"; exit 1; }}' for line in lines)
        done = subprocess.run(
            ["bash", "-c", script], cwd=program.cwd, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=120,
        )  # fmt: skip
        until(lambda: not [row for row in program("sessions", "list", "--json").json if row["state"] == "working"])
    assert done.returncode == 0, (done.stdout[-500:], done.stderr[-2_000:])


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_no_command_is_shown_in_a_block_that_nobody_runs(page: Path) -> None:
    for language, body in re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
        assert language, f"a block without a language: {body[:80]}"
        if language not in ("console", "python"):
            assert not re.search(r"^\s*(\$ |coordinator |make |git |uv |pipx? )", body, re.MULTILINE), body[:80]


def test_the_reference_is_what_the_code_says() -> None:
    assert reference.stale() == [], "run `python -m scripts.reference`"


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_lead_to_files_that_are_there(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
