"""How a session that is gone on with runs: as it was asked to, behind what fenced it.

Rules of this file:

1. A flag that is said now holds. Where it widens what the session was held by, one line says so.
2. A variable or a settings file only tightens: neither was meant for this session in particular. The files are those of
   the session's directory, wherever the command was called.
3. Denials add up whatever says them, and so do directories and settings that a flag names. Of a file that `--settings` named
   the fences are kept as they were, too: a person who changes it meanwhile loosens nothing. Limits are those of each run:
   `max_turns` and `timeout` begin anew, the budgets do not.
4. What of inline settings was not stored, because it may be secret, is named; without its fences nothing goes on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from coordinator.cli import directory
from coordinator.cli.context import Context
from coordinator.cli.failures import Failure
from coordinator.options import CHECKS, LIMITS, STRICTEST_FIRST, rank, stricter
from coordinator.session.choosing import is_moved
from coordinator.views.exit_codes import ExitCode
from tasks.records import SessionRecord
from worker_agent.structs import replace

LISTS = frozenset({"allowed_tools", "disallowed_tools", "add_dirs", "mcp_config", "plugin_dirs"})
KEPT = (
    "permission_mode", "plan_only", "allowed_tools", "disallowed_tools", "add_dirs", "settings", "sandbox", "verify",
    "max_budget_usd", "token_budget", "system_prompt", "append_system_prompt", "model", "max_workers", "backend", "workspace", "remote", "turn_target",
    "use_coordinator", "offline", "wait_approvals", "approval_timeout", "max_turns", "timeout", "json_schema", "worker_model", "fallback_model",
    "mcp_config", "strict_mcp_config", "plugin_dirs",
)  # fmt: skip
# What is said for one run: how its input and output look, who answers, which session it is, where it runs.
NOT_KEPT = (
    "print_only", "output_format", "include_partial_messages", "cwd", "continue_last", "resume", "fork_session", "session_id",
    "background", "input_format", "permission_prompt_tool", "memory_extract",
    "include_hook_events", "effort", "agents", "tools", "sources",
    "system_prompt_file", "append_system_prompt_file",
)  # fmt: skip


def earlier(cli: Context, flags: Mapping[str, Any]) -> SessionRecord | None:
    """The session to go on with or to copy, as it goes on on this machine; None for a new one. Raises `NotFound`,
    `Ambiguous`."""
    from tasks import sessions

    if (ref := flags.get("resume")) is not None:
        found = cli.database.read(lambda conn: sessions.resolve(conn, ref))
        return replace(found, cwd=os.path.abspath(flags["cwd"])) if is_moved(found) else found
    if not flags.get("continue_last"):
        return None
    here = os.path.abspath(flags["cwd"])
    return next((s for s in cli.database.read(sessions.list_sessions) if s.cwd == here), None)


def as_before(ctx: click.Context, cli: Context, session: SessionRecord, flags: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `RunOptions` that the session and what is said now make together. Raises `Failure`."""
    before = {**session.options, "model": session.model}
    found = directory.defaults(cli, Path(session.cwd), ctx.command).values
    values: dict[str, Any] = {}
    for name in KEPT:
        source = ctx.get_parameter_source(name)
        if before.get(name) is None and name != "permission_mode":
            if source is ParameterSource.DEFAULT_MAP or (source is ParameterSource.DEFAULT and name in found):
                # What the settings of the caller's directory say is not for this session.
                values[name] = _cast(ctx, name, found.get(name)) or (() if name in LISTS else None)
            continue
        old = value(name, before.get(name))
        if source is ParameterSource.COMMANDLINE:
            values[name] = _added(name, old, flags[name])
            _tell(cli, name, "plan" if name == "permission_mode" and before.get("plan_only") else old, flags[name])
        else:
            new = flags[name] if source is ParameterSource.ENVIRONMENT else _cast(ctx, name, found.get(name))
            values[name] = _tighter(name, old, new)
            if source is ParameterSource.ENVIRONMENT and name in ("permission_mode", "sandbox") and values[name] != new:
                cli.console.note(f"{name.replace('_', ' ')} {new!r} of a variable does not hold: only a flag widens a session")
    if ctx.get_parameter_source("permission_mode") is ParameterSource.COMMANDLINE and not flags.get("plan_only"):
        values["plan_only"] = False
    return values | _settings(ctx, cli, before, flags, Path(session.cwd))


def _settings(
    ctx: click.Context, cli: Context, before: Mapping[str, Any], flags: Mapping[str, Any], cwd: Path
) -> dict[str, Any]:
    """The session's own `--settings`, and behind those that are said now what it had before. Raises `Failure`."""
    from worker_agent.tools.settings_files import left_out, to_keep

    stored = [text for text in (before.get("settings"), *(before.get("earlier_settings") or ())) if text]
    if ctx.get_parameter_source("settings") is ParameterSource.COMMANDLINE:
        return {"earlier_settings": tuple(text for text in stored if text != to_keep(flags["settings"]))}
    missing = {name for text in stored for name in left_out(text, cwd)}
    if missing - {"env"}:
        raise Failure(
            f"the {' and '.join(sorted(missing))} of the session's --settings may be secret and were not stored; "
            "give --settings again", ExitCode.USAGE,
        )  # fmt: skip
    if missing:
        cli.console.note("the environment of the session's --settings was not stored; give --settings again to have it")
    return {"earlier_settings": tuple(stored[1:] if before.get("settings") else stored)}


def value(name: str, stored: Any) -> Any:
    """A stored value as the flag would give it."""
    if name in ("add_dirs", "plugin_dirs"):
        return tuple(map(Path, stored))
    return tuple(stored) if name in LISTS else stored


def _cast(ctx: click.Context, name: str, value: Any) -> Any:
    """A value of a settings file as the flag would give it. Raises `click.BadParameter`."""
    option = next((option for option in ctx.command.params if option.name == name), None)
    return None if value is None or option is None else option.process_value(ctx, value)


def _added(name: str, old: Any, new: Any) -> Any:
    if name == "mcp_config":  # what is said now comes first; JSON was not stored, only its names
        return (*new, *(text for text in old if not text.startswith("{") and text not in new))
    return tuple(dict.fromkeys((*old, *new))) if name in ("disallowed_tools", "add_dirs", "plugin_dirs") else new


def _tighter(name: str, old: Any, new: Any) -> Any:
    """What holds of a session's value and one that no flag said."""
    if new is None:
        return old
    if name == "disallowed_tools":
        return _added(name, old, new)
    if name == "plan_only":
        return old or new
    return stricter(name, old, new)


def _tell(cli: Context, name: str, old: Any, new: Any) -> None:
    """One line for a flag that takes a fence down."""
    wider = name in STRICTEST_FIRST and rank(name, new) > rank(name, old)
    if wider or (name in LIMITS and new > old) or (name in CHECKS and new != old):
        flag = f"--{name.replace('_', '-')}"
        was = "another schema" if name == "json_schema" else old or "default"
        cli.console.note(f"{flag}: {new} holds for this run; the session was held by {was}")
