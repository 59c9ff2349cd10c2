"""Settings files: defaults for the flags of `run`, in TOML, keyed by the flag's name (`max_workers = 4`, `memory.extract`).

1. The project's files (`.coordinator/settings.toml`, then `settings.local.toml`) win over the user's `config.toml`; a flag or
   its variable wins over both.
2. Of what comes with a repository nobody trusts, and of a file that is not as it was trusted, only rules that deny count;
   one line a file names the rest.
3. What another command has as a flag is passed over, an unknown key is said once; one by which a fence was meant (`disallowedTools`), or a file that cannot be
   read, is an error that names it.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from coordinator.cli.failures import Failure
from coordinator.views.exit_codes import ExitCode
from worker_agent import disk
from worker_agent.words import meant

if TYPE_CHECKING:
    from worker_agent.tools.trust import Brought, Trust

PROJECT_FILES = (Path(".coordinator/settings.toml"), Path(".coordinator/settings.local.toml"))
MAX_BYTES = 1_000_000  # of one file
FENCES = frozenset({"disallowed_tools"})
HOLDING = (
    "disallowed_tools", "permission_mode", "plan_only", "sandbox", "max_turns", "max_budget_usd", "token_budget", "timeout",
    "verify", "json_schema", "max_workers",
)  # fmt: skip
LISTS = frozenset({"allowed_tools", "disallowed_tools", "add_dirs", "mcp_config", "plugin_dirs"})  # they add up over all files


class Defaults(Struct, frozen=True):
    """`values` and `origins` by parameter name; `notes` are for the person."""

    values: Mapping[str, Any]
    origins: Mapping[str, Path]
    notes: tuple[str, ...] = ()


def read(
    user_file: Path,
    project: Path,
    known: frozenset[str],
    trust: Callable[[], Trust],
    elsewhere: Callable[[], frozenset[str]] = frozenset,
) -> Defaults:
    """All settings files that hold in `project`, of the flags `known`; `elsewhere` names those of other commands. `trust` says
    what the person said of it, and is asked only where there is such a file. Raises `Failure` for one that cannot be read."""
    values: dict[str, Any] = {}
    origins: dict[str, Path] = {}
    notes: list[str] = []
    for path in (user_file, *(project / name for name in PROJECT_FILES)):
        left_out: list[str] = []
        try:
            own = path == user_file or not os.path.lexists(path)
            written = _load(path, None if own or trust().trusted else project)
        except disk.Outside:
            notes.append(f"{path} is left out: it is a link out of the project")
            continue
        changed = not own and trust().trusted and not trust().counts(brought(path, written))
        counts = own or (trust().trusted and not changed)
        for key, value in _flat(written, known).items():
            name = key.replace("-", "_")
            if name not in known and name in elsewhere():
                continue
            if name not in known:
                if (fence := meant(name, (*HOLDING, *known))) in HOLDING:
                    raise Failure(f"{path}: there is no setting {key!r}; write {fence}", ExitCode.USAGE)
                notes.append(f"{path}: unknown setting {key!r}")
            elif name not in FENCES and not counts:
                left_out.append(key)
            elif name in LISTS:
                values[name], origins[name] = [*values.get(name, ()), *_listed(path, key, value)], path
            else:
                values[name], origins[name] = value, path
        if left_out:
            verb = "does" if len(left_out) == 1 else "do"
            what = " is not as it was trusted" if changed else ""
            notes.append(f"{path}{what}: {', '.join(left_out)} {verb} not count until `coordinator trust`")
    return Defaults(values, origins, tuple(notes))


def brought(path: Path, found: Mapping[str, Any]) -> Brought:
    """What a project's file grants, beside its fences; whichever command it is for, the same."""
    from worker_agent.tools.trust import Brought

    names = {key.replace("-", "_"): value for key, value in found.items()}
    rights = {name: value for name, value in names.items() if name not in FENCES}
    return Brought(path, rights, bool(rights), tuple(f"{name} = {value!r}" for name, value in rights.items()))


def look(project: Path) -> Iterator[Brought]:
    """What each of the project's files grants, for a person who is about to trust it."""
    from worker_agent.tools.trust import Brought

    for path in (project / name for name in PROJECT_FILES):
        try:
            if os.path.lexists(path):
                yield brought(path, _load(path, None))
        except Failure as failure:
            yield Brought(path, problem=str(failure))


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


def _flat(found: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    """`memory.extract` and `memory_extract` are one key. A table in place of a flag's value stays one, to be refused."""
    flat: dict[str, Any] = {}
    for key, value in found.items():
        is_group = isinstance(value, dict) and key.replace("-", "_") not in known
        flat |= {f"{key}_{name}": part for name, part in value.items()} if is_group else {key: value}
    return flat
