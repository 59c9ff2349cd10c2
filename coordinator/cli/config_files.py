"""Settings files: defaults for the flags of `run`, in TOML, keyed by the flag's name (`max_workers = 4`).

1. The project's files (`.coordinator/settings.toml`, then `settings.local.toml`) win over the user's `config.toml`; a flag or
   its variable wins over both.
2. Of what comes with a repository nobody trusts only rules that deny count; one line a file names the rest.
3. An unknown key is said once and passed over; a file that cannot be read is an error that names it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.cli.failures import Failure
from coordinator.exit_codes import ExitCode
from worker_agent import disk

PROJECT_FILES = (Path(".coordinator/settings.toml"), Path(".coordinator/settings.local.toml"))
MAX_BYTES = 1_000_000  # of one file
FENCES = frozenset({"disallowed_tools"})
LISTS = frozenset({"allowed_tools", "disallowed_tools", "add_dirs"})  # they add up over all files


@dataclass(frozen=True, slots=True)
class Defaults:
    """`values` and `origins` by parameter name; `notes` are for the person."""

    values: Mapping[str, Any]
    origins: Mapping[str, Path]
    notes: tuple[str, ...] = ()


def read(user_file: Path, project: Path, known: frozenset[str], trusted: Callable[[], bool]) -> Defaults:
    """All settings files that hold in `project`. Raises `Failure` for one that cannot be read."""
    values: dict[str, Any] = {}
    origins: dict[str, Path] = {}
    notes: list[str] = []
    for path in (user_file, *(project / name for name in PROJECT_FILES)):
        left_out: list[str] = []
        try:
            found = _load(path, None if path == user_file or trusted() else project)
        except disk.Outside:
            notes.append(f"{path} is left out: it is a link out of the project")
            continue
        for key, value in found.items():
            name = key.replace("-", "_")
            if name not in known:
                notes.append(f"{path}: unknown setting {key!r}")
            elif path != user_file and name not in FENCES and not trusted():
                left_out.append(key)
            elif name in LISTS:
                values[name], origins[name] = [*values.get(name, ()), *_listed(path, key, value)], path
            else:
                values[name], origins[name] = value, path
        if left_out:
            verb = "does" if len(left_out) == 1 else "do"
            notes.append(f"{path}: {', '.join(left_out)} {verb} not count until `coordinator trust`")
    return Defaults(values, origins, tuple(notes))


def _listed(path: Path, key: str, value: Any) -> list[str]:
    """A list of strings; one string stands for itself, never for its letters. Raises `Failure`."""
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise Failure(f"{path}: {key} must be a list of strings", ExitCode.USAGE)
    return items


def _load(path: Path, inside: Path | None) -> dict[str, Any]:
    """Raises `Failure`, and `disk.Outside` for a link out of the directory `inside`."""
    try:
        return tomllib.loads(disk.read_regular(path, limit=MAX_BYTES, inside=inside).decode("utf-8-sig"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except disk.Outside:
        raise
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        why = f"it {error.strerror}" if isinstance(error, OSError) else error
        raise Failure(f"{path} cannot be read: {why}", ExitCode.USAGE) from None
