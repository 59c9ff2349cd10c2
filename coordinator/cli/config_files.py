"""Settings files: defaults for the flags of `run`, in TOML, keyed by the flag's name (`max_workers = 4`).

1. The project's files (`.coordinator/settings.toml`, then `settings.local.toml`) win over the user's `config.toml`; a flag or
   its variable wins over both.
2. What comes with a repository cannot widen rights, run commands or move data: such keys of a project's file count only in
   a trusted directory.
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

PROJECT_FILES = (Path(".coordinator/settings.toml"), Path(".coordinator/settings.local.toml"))
HARMLESS = frozenset(
    {
        "append_system_prompt", "disallowed_tools", "fallback_model", "max_budget_usd", "max_turns", "max_workers", "model",
        "output_format", "timeout", "token_budget", "worker_model",
    }
)  # fmt: skip


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
        for key, value in _load(path).items():
            name = key.replace("-", "_")
            if name not in known:
                notes.append(f"{path}: unknown setting {key!r}")
            elif path != user_file and name not in HARMLESS and not trusted():
                notes.append(f"{path}: {key} does not count until `coordinator trust`")
            else:
                values[name], origins[name] = value, path
    return Defaults(values, origins, tuple(notes))


def _load(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise Failure(f"{path} cannot be read: {error}", ExitCode.USAGE) from None
