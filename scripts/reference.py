"""Writes `docs/reference/` out of the program's own tables: `python -m scripts.reference`. A test holds it to be current.

What code can say of itself is taken from there and stated nowhere else; only the meanings of the fields of JSON objects are
words of this file, and a field without one stops it.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from msgspec import structs

from coordinator.cli.failures import MEANINGS
from coordinator.cli.lazy import Entry, load
from coordinator.cli.table import COMMANDS
from coordinator.views.values import approval_json, session_json, task_detail_json, task_json
from worker_agent import config, tool_facts
from worker_agent.hooks.config import EVENTS
from worker_agent.tools import shell_git_harmless, shell_harmless

PLACE = Path(__file__).resolve().parent.parent / "docs" / "reference"
BASE = {"db", "debug", "help"}  # flags that every command has

FIELDS = {
    "id": "its id; any unique beginning of it is understood",
    "agent_id": "the agent that works on it",
    "session_id": "the session it belongs to",
    "parent_id": "what it came from: the agent that asked for a task, the session that a fork copied",
    "type": "`local_agent` or `local_bash`",
    "status": "a task: `pending running completed failed killed`, `interrupted` where its owner is gone; a session: how it stands",
    "description": "what the coordinator called it",
    "name": "a name to send messages to",
    "agent": "the agent definition, or what the agent is called",
    "model": "the model asked",
    "created_at": "when it was asked for",
    "started_at": "when it began",
    "ended_at": "when it ended",
    "updated_at": "when something last happened",
    "asked_at": "when the call began to wait",
    "duration_ms": "milliseconds from its start to its end, or to now",
    "tool_uses": "tool calls so far",
    "input_tokens": "tokens sent, those from the cache included",
    "output_tokens": "tokens received",
    "total_tokens": "both",
    "cost_usd": "US dollars; null where the model has no known price",
    "last_activity": "the last tool call, in words",
    "idle_ms": "milliseconds since something was heard of it, while it runs",
    "attempt": "how often it was started",
    "end_reason": "why it ended, in a word",
    "error": "what went wrong, a sentence",
    "needs_approval": "the id of its oldest call that waits for a person",
    "prompt": "what it was told to do",
    "result": "its last answer",
    "worktree": "the worktree it works in, if it has one",
    "branch": "that worktree's branch",
    "activities": "the last tool calls, in words",
    "output_file": "where all that it said is kept",
    "title": "the goal in a few words",
    "goal": "the goal as it was given",
    "cwd": "the directory it works in",
    "task_id": "the task whose call it is; null for the coordinator's own",
    "tool": "the tool",
    "input": "the whole input of the call",
    "shown": "the call as a person is shown it: a command, a diff, an address",
    "reason": "why it is not allowed by itself",
    "suggested_rule": "a rule that would allow this call and its like",
}


def pages() -> dict[str, str]:
    """The text of each page by its file's name."""
    return {
        "commands.md": _commands(),
        "settings.md": _settings(),
        "json.md": _json(),
        "exit-codes.md": _exit_codes(),
        "hooks.md": _hooks(),
        "permissions.md": _permissions(),
    }


def _page(title: str, *parts: str) -> str:
    note = "<!-- Written by `python -m scripts.reference`; change what it reads instead. -->"
    return "\n\n".join([f"# {title}", note, *(part.rstrip() for part in parts if part)]) + "\n"


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]] | list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines)


def _leaves(entries: Mapping[str, Entry], prefix: str = "") -> Iterator[tuple[str, Entry]]:
    for name, entry in entries.items():
        if entry.members:
            yield from _leaves(entry.members, f"{prefix}{name} ")
        elif not entry.short_for:
            yield prefix + name, entry


def _commands() -> str:
    every = "Every command also takes `--db PATH|URL` (another database), `--debug` (show tracebacks) and `--help`."
    return _page("Commands", every, *(_command(name, load(name, entry)) for name, entry in _leaves(COMMANDS)))


def _command(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=f"coordinator {name}")
    pieces = " ".join(command.collect_usage_pieces(context))
    parts = [f"## coordinator {name}", f"`coordinator {name} {pieces}`", (command.help or "").strip()]
    options = [option for option in command.params if isinstance(option, click.Option)]
    if rows := [_option(option, context) for option in options if option.name not in BASE and not option.hidden]:
        parts.append(_table(("flag", "meaning"), rows))
    return "\n\n".join(part for part in parts if part)


def _option(option: click.Option, context: click.Context) -> tuple[str, str]:
    record = option.get_help_record(context)
    assert record is not None
    return f"`{record[0]}`", " ".join(record[1].split())


def _settings() -> str:
    # `chat` has some of its own; of what both have, `run` says it
    options = {option.name: option for name in ("chat", "run") for option in load(name, COMMANDS[name]).params}
    flags = [(f"`{option.envvar}`", f"`{option.name}`", f"`{max(option.opts, key=len)}`", option.help or "")
             for option in options.values() if isinstance(option, click.Option) and option.envvar and not option.hidden
             and option.name not in BASE]  # fmt: skip
    return _page(
        "Settings",
        "A flag counts before a variable, a variable before the project's `.coordinator/settings.toml` (once the directory is "
        "trusted), that before the user's `config.toml`. `coordinator config list` shows what holds and where it comes from.",
        "## Of a run",
        _table(("variable", "key in a file", "flag", "meaning"), flags),
        "## Of the machinery",
        "Variables only. Most people never need one.",
        *(_group(name, kind) for name, kind in (
            ("retry", config.RetrySettings), ("loop", config.LoopSettings), ("tools", config.ToolSettings),
            ("context", config.ContextSettings), ("mcp", config.McpSettings))),
    )  # fmt: skip


def _group(name: str, kind: type[Any]) -> str:
    source = inspect.getsource(kind)
    doc = "" if (kind.__doc__ or "").startswith(kind.__name__) else " ".join((kind.__doc__ or "").split())
    rows = []
    for field in structs.fields(kind):
        found = re.search(rf"^    {field.name}: [^#\n]*(?:# (.*))?$", source, re.MULTILINE)
        rows.append((f"`COORDINATOR_{name.upper()}_{field.name.upper()}`", f"`{field.default}`", (found and found[1]) or ""))
    return "\n\n".join(part for part in (f"### {name}", doc, _table(("variable", "default", "meaning"), rows)) if part)


def _json() -> str:
    objects = [
        ("A task", "`tasks list --json`, `GET /api/tasks`", task_json),
        ("A task in full", "`tasks show ID --json`. The fields above, and these", task_detail_json),
        ("A session", "`sessions list --json`, `GET /api/sessions`", session_json),
        ("A waiting call", "`inbox --json`, `GET /api/inbox`", approval_json),
    ]
    seen: set[str] = set()
    parts = [
        "Times are ISO 8601 in UTC, or null. A field may be added; none changes its meaning or goes within a major version."
    ]
    for title, where, make in objects:
        names = [name for name in _keys(make) if not (title == "A task in full" and name in seen)]
        seen |= set(names) if title == "A task" else set()
        parts += [f"## {title}", f"{where}.", _table(("field", "meaning"), [(f"`{name}`", FIELDS[name]) for name in names])]
    return _page("JSON objects", *parts)


def _keys(make: Any) -> list[str]:
    """The keys of the object that `make` returns, in their order, as its source states them."""
    return re.findall(r'^        "(\w+)":', inspect.getsource(make), re.MULTILINE)


def _exit_codes() -> str:
    return _page("Exit codes", _table(("code", "meaning"), [(f"`{int(code)}`", meaning) for code, meaning in MEANINGS.items()]))


def _hooks() -> str:
    rows = [(f"`{event}`", f"{seconds:g}") for event, seconds in sorted(EVENTS.items())]
    return _page(
        "Hooks",
        "Hooks stand under `hooks` in settings files, in Claude Code's form: event, matcher, handlers. They run once their "
        "directory is trusted. Standard input carries the event as JSON; what a handler answers is read from its exit code "
        "(2 refuses, with what it wrote to standard error) or from JSON on standard output.",
        _table(("event", "seconds a handler may take, unless it says otherwise"), rows),
    )


def _permissions() -> str:
    facts = {id(found): found for name in dir(tool_facts) if isinstance(found := getattr(tool_facts, name), tool_facts.Facts)}
    tools = [(f"`{fact.name}`", ", ".join(f"`{alias}`" for alias in fact.aliases), str(fact.specifier), "yes" if fact.consent else "no")
             for fact in sorted(facts.values(), key=lambda fact: fact.name)]  # fmt: skip
    return _page(
        "Permissions",
        "A rule is a tool's name, alone or with a specifier: `Bash(npm run test:*)`, `Read(./secrets/**)`, `WebFetch(domain:docs.python.org)`, "
        "`Agent(reviewer)`, `mcp__github__*`. A deny rule wins over an ask rule, an ask rule over an allow rule. "
        "`coordinator permissions test 'Bash(git push)'` says which rule decides, and whether the command would be confined.",
        "## Tools",
        _table(("tool", "also called", "the specifier is", "asks without a rule"), tools),
        "## Commands that are read and run unasked",
        "With options of their own list, spelled in full, and operands inside the working directory: "
        + ", ".join(f"`{name}`" for name in sorted(shell_harmless.COMMANDS)) + ".",
        "Of git, where they only look: " + ", ".join(f"`{name}`" for name in sorted(shell_git_harmless.VERBS)) + ".",
        "Everything else asks, or runs confined where the mode says so.",
    )  # fmt: skip


def stale() -> list[str]:
    """The files whose text is not what the program says now."""
    return [name for name, text in pages().items() if not (file := PLACE / name).is_file() or file.read_text("utf-8") != text]


def main() -> None:
    if sys.argv[1:] == ["--check"]:
        if old := stale():
            sys.exit(f"docs/reference is not current ({', '.join(old)}): run `python -m scripts.reference`")
        return
    PLACE.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (PLACE / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
