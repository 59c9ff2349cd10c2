"""The flags of `run`, shared with `chat` and `resume`: names people know, a `COORDINATOR_…` variable for each.

Precedence is click's: flag, variable, then the context's `default_map`, which `config_files` fills. A flag stands here only
when the program does what it says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from coordinator.cli import unbegun
from coordinator.cli.completing import complete_sessions
from coordinator.cli.context import Context, common_options
from worker_agent.tools.trust import SOURCES

AnyCallable = TypeVar("AnyCallable", bound=Callable[..., Any])
MODES = ("default", "acceptEdits", "plan", "dontAsk", "bypassPermissions")
EFFORTS = ("low", "medium", "high", "xhigh", "max")
FORMATS = ("text", "json", "stream-json")
# Workers' shells carry COORDINATOR_SESSION_ID; a run begun there must not take their session's id for its own.
VARIABLES = {"session_id": "COORDINATOR_NEW_SESSION_ID", "use_coordinator": "COORDINATOR_MODE"}

# What bounds, checks or fences a run by one value.
FENCES = frozenset(
    {"json_schema", "max_budget_usd", "max_turns", "sandbox", "settings", "timeout", "token_budget", "verify"}
)  # fmt: skip

DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)


class Duration(click.ParamType[float]):
    """`90`, `90s`, `10m`, `1h30m`: seconds."""

    name = "duration"
    _parts = re.compile(r"(?:(?P<h>\d+(?:\.\d+)?)h)?(?:(?P<m>\d+(?:\.\d+)?)m)?(?:(?P<s>\d+(?:\.\d+)?)s?)?")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, (int, float)):
            seconds = float(value)
        elif (found := self._parts.fullmatch(value.strip())) and any(found.groups()):
            seconds = sum(float(found[unit] or 0) * size for unit, size in (("h", 3600), ("m", 60), ("s", 1)))
        else:
            self.fail(f"{value!r} is no duration: 90, 90s, 10m or 1h30m", param, ctx)
        if not 0 < seconds < 10**9:
            self.fail(f"{value!r} must be more than nothing", param, ctx)
        return seconds


class Tokens(click.ParamType[int]):
    """`5000`, `500k`, `1.5m`."""

    name = "tokens"
    _form = re.compile(r"\+?(\d+(?:\.\d+)?)([km]?)", re.IGNORECASE)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = self._form.fullmatch(str(value).strip())
        if found is None or not (tokens := round(float(found[1]) * {"": 1, "k": 1_000, "m": 1_000_000}[found[2].lower()])):
            self.fail(f"{value!r} is no number of tokens: 5000, 500k or 2m", param, ctx)
        return tokens


class Names(click.ParamType[tuple[str, ...]]):
    """Rules or tool names separated by commas or spaces; those inside parentheses do not separate."""

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if not isinstance(value, str):
            return tuple(value)
        from worker_agent.tools.rules import split_rules

        return tuple(split_rules(value))

    def split_envvar_value(self, rv: str) -> list[str]:
        return [rv]  # blanks inside parentheses separate nothing


def together(ctx: click.Context, param: click.Parameter, value: Any) -> tuple[str, ...]:
    """The lists of all occurrences as one: a fence that is named first must not vanish behind the second."""
    return tuple(name for given in value or () for name in given)


class Once(click.Option):
    """A single value. Said twice with different values, one that fences (`FENCES`) is refused, for which of the two holds
    is not ours to guess; of any other the last holds, and one line says so."""

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        single = not self.multiple and not self.is_flag and not self.count
        self.multiple = self.multiple or single  # so that the parser keeps every occurrence
        try:
            super().add_to_parser(parser, ctx)
        finally:
            self.multiple = self.multiple and not single

    def consume_value(self, ctx: click.Context, opts: Any) -> Any:
        given = opts.get(self.name)
        if not self.multiple and isinstance(given, list):
            if len(set(given)) > 1:
                self._told_apart(ctx, given)
            opts = {**opts, self.name: given[-1]}
        return super().consume_value(ctx, opts)

    def _told_apart(self, ctx: click.Context, given: list[str]) -> None:
        name = next(name for name in self.opts if name.startswith("--"))
        if self.name in FENCES:
            raise click.UsageError(f"{name} is given twice with different values; say it once", ctx)
        if (cli := ctx.find_object(Context)) is not None:
            cli.console.note(f"{name} is given twice: {given[-1]!r} holds, and not {given[-2]!r}")


def _read_agents(ctx: click.Context, param: click.Parameter, text: str | None) -> Any:
    """Kinds of worker by name; what is in each is read with all others."""
    if not text:
        return {}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"{param.opts[0]} is no JSON: {error}", ctx) from None
    if not isinstance(value, dict):
        raise click.UsageError(f"{param.opts[0]} is no JSON object", ctx)
    return value


def flag(*names: str, **settings: Any) -> Callable[[AnyCallable], AnyCallable]:
    """An option with its variable, named as the first long name."""
    long = next(name for name in names if name.startswith("--")).split("/")[0].removeprefix("--")
    parameter = next((name for name in names if not name.startswith("-")), long.replace("-", "_"))
    variable = VARIABLES.get(parameter, f"COORDINATOR_{long.replace('-', '_').upper()}")
    return click.option(*names, cls=Once, envvar=variable, show_envvar=False, **settings)


def apply(options: list[Callable[[Any], Any]], command: AnyCallable) -> AnyCallable:
    for option in reversed(options):
        command = option(command)
    return common_options(command)


def _learn_format(ctx: click.Context, _param: click.Parameter, value: str) -> str:
    """Known before any other flag can be refused."""
    if (cli := ctx.find_object(Context)) is not None:
        cli.note_format(value)
        unbegun.foresee(cli, [])
    return value


OUTPUT = [
    flag("-p", "--print", "print_only", is_flag=True, help="Only the answer on stdout, no live view, nobody is asked."),
    flag(
        "--output-format",
        type=click.Choice(FORMATS),
        default="text",
        show_default=True,
        help="What stdout carries.",
        is_eager=True,
        callback=_learn_format,
    ),
    flag("--include-partial-messages", is_flag=True, help="With stream-json: text as it is written, too."),
    flag("--include-hook-events", is_flag=True, help="With stream-json: when a hook begins and how it ends."),
]
WORK = [
    flag("--model", metavar="MODEL", help="Model of the coordinator; sonnet, opus, haiku, fable or a full id."),
    flag("--worker-model", metavar="MODEL", help="Model of workers; the coordinator's if not set."),
    flag("--fallback-model", metavar="MODEL", help="Model to go on with when the first is overloaded."),
    flag("--permission-mode", type=click.Choice(MODES), default="default", show_default=True, help="What needs consent."),
    flag("--allowed-tools", "--allowedTools", "allowed_tools", type=Names(), multiple=True, callback=together, metavar="RULES",
         help='Rules that allow: "Bash(git *),Edit"; repeatable.'),
    flag("--disallowed-tools", "--disallowedTools", "disallowed_tools", type=Names(), multiple=True, callback=together,
         metavar="RULES", help="Rules that deny; repeatable."),
    flag("--add-dir", "add_dirs", type=DIRECTORY, multiple=True, help="Another directory that may be read; repeatable."),
    flag("--settings", metavar="PATH|JSON", help="A settings file, or its JSON, above the others."),
    flag("--plugin-dir", "plugin_dirs", type=DIRECTORY, multiple=True, help="A plugin in this directory; repeatable."),
    flag("--mcp-config", multiple=True, metavar="PATH|JSON", help="MCP servers from this file, or its JSON; repeatable."),
    flag("--strict-mcp-config", is_flag=True, help="No other MCP servers than those of --mcp-config."),
    flag("--sandbox", type=click.Choice(("auto", "required", "off")), default="auto", show_default=True,
         help="Let the operating system hold shell commands: where it can, only if it can, never."),
    flag("--system-prompt", metavar="TEXT", help="In place of the coordinator's system prompt."),
    flag("--append-system-prompt", metavar="TEXT", help="After the coordinator's system prompt."),
    flag("--effort", type=click.Choice(EFFORTS), help="How much thought the coordinator's model gives its answers."),
    flag("--agents", metavar="JSON", callback=_read_agents, help='Kinds of worker: {"name": {"description": …, "prompt": …}}.'),
    flag("--max-turns", type=click.IntRange(min=1), help="Turns of the coordinator."),
    flag("--max-budget-usd", type=click.FloatRange(min=0, min_open=True), help="Money for the whole tree of agents."),
    flag("--token-budget", type=click.IntRange(min=1), help="Output tokens for the whole tree of agents; prompts do not count."),
    flag("--turn-target", type=Tokens(), metavar="TOKENS",
         help="Output tokens to spend on each prompt, 500k or 2m, as +500k in its text: what is wanted, no limit."),
    flag("--max-workers", type=click.IntRange(min=1), default=8, show_default=True, help="Workers that run at once."),
    flag("--backend", type=click.Choice(["local", "cluster"]), default="local", show_default=True,
         help="Where workers run: in this process, or on nodes (`coordinator node`)."),
    flag("--workspace", type=click.Choice(["git", "shared"]),
         help="How nodes have the project: by git (the default in a repository), or in a folder that all machines share."),
    flag("--remote", metavar="URL|PATH", help="With --workspace git: the repository all machines reach; one is made without."),
    flag("--wait-approvals/--no-wait-approvals", "wait_approvals", default=False,
         help="With nobody at a terminal: let calls wait for `coordinator approve`, instead of denying them."),
    flag("--approval-timeout", type=Duration(), metavar="TIME", help="Deny a call that waited so long for a person."),
    flag("--timeout", type=Duration(), metavar="TIME", help="End the run after this time: 90s, 10m, 1h30m."),
    flag("--json-schema", metavar="PATH|JSON", help="JSON schema that the answer must fit."),
    flag("--verify", metavar="CMD", help="Command that must succeed before the work counts as done."),
    flag("--coordinator/--no-coordinator", "use_coordinator", default=True, help="One agent with all tools instead of a coordinator."),
    flag("--memory-extract/--no-memory-extract", "memory_extract", default=False,
         help="After the end, note in .coordinator/memory what is worth remembering (in the background)."),
    flag("--offline", is_flag=True, help="The built-in deterministic surveyor: no network, no language model."),
    flag("--cwd", type=DIRECTORY, default=Path("."), help="Work in this directory."),
]  # fmt: skip
CONTINUING = [
    flag("-c", "--continue", "continue_last", is_flag=True, help="Go on with the newest session of this directory."),
    flag("-r", "--resume", metavar="ID", shell_complete=complete_sessions, help="Go on with this session."),
    flag("--fork-session", is_flag=True, help="With --continue or --resume: go on in a copy."),
    flag("--session-id", metavar="ID", help="Id of the new session."),
]
CHAT = [
    flag("--chat-suggest/--no-chat-suggest", "chat_suggest", default=False, help="Suggest the next prompt, in grey."),
]
HEADLESS = [
    flag("--bg", "background", is_flag=True, help="Print the session's id and go on in the background."),
    flag("--plan-only", is_flag=True, help="Plan only: nothing is changed, whatever the rules allow."),
]


def settings() -> frozenset[str]:
    """What the flags of all commands that start sessions are called as settings."""
    made = [option(lambda: None) for option in (*OUTPUT, *WORK, *CONTINUING, *CHAT, *HEADLESS)]
    return frozenset(str(param.name) for command in made for param in getattr(command, "__click_params__", ()))


def _read_text(ctx: click.Context, param: click.Parameter, path: str | None) -> str | None:
    """The text of the file that a flag names."""
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{param.opts[0]} {path}: it cannot be read ({error})", ctx) from None


def _read_sources(ctx: click.Context, param: click.Parameter, text: str | None) -> frozenset[str] | None:
    if text is None:
        return None
    names = frozenset(filter(None, (name.strip() for name in text.split(","))))
    if unknown := sorted(names - SOURCES):
        known = ", ".join(sorted(SOURCES))
        raise click.UsageError(f"{param.opts[0]}: there is no source {', '.join(unknown)}; there are {known}", ctx)
    return names


def _read_thinking(ctx: click.Context, param: click.Parameter, tokens: int | None) -> None:
    if tokens == 0:
        raise click.UsageError(f"{param.opts[0]} 0 is not supported: {THINKING}", ctx)


def _refuse(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value not in (None, False):
        why = REFUSED[max(param.opts, key=len)]
        raise click.UsageError(f"{max(param.opts, key=len)} is not supported: {why}", ctx)


# Flags that programs for Claude Code pass and that ask for what we cannot do: each is refused by its name, with the reason.
REFUSED = {
    "--task-budget": "use --token-budget, which holds for the whole tree of agents",
    "--betas": "the API's betas are chosen by coordinator",
    "--session-mirror": "conversations are in coordinator's own store",
    "--resume-session-at": "a session is taken up where it ended",
    "--resume-drops-turn": "a session is taken up where it ended",
}
WITHOUT_VALUE = ("--session-mirror",)
THINKING = "a model thinks as much as it finds right; --effort says how hard it tries"


def _only(accepted: tuple[str, ...], why: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def check(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
        if value is not None and value not in accepted:
            raise click.UsageError(f"{param.opts[0]} {value!r} is not supported: {why}", ctx)

    return check


DRIVEN = [
    flag("--input-format", type=click.Choice(["text", "stream-json"]), default="text", show_default=True,
         help="What stdin carries: a goal, or messages and control requests, one JSON object a line."),
    flag("--permission-prompt-tool", type=click.Choice(["stdio"]),
         help="With --input-format stream-json: ask the program on stdin and stdout for consent."),
    flag("--verbose", is_flag=True, expose_value=False, hidden=True),
    flag("--tools", type=Names(), metavar="NAMES",
                 help='The built-in tools there are: "Read,Grep"; "" for none, default for all.'),
    flag("--setting-sources", "sources", metavar="NAMES", callback=_read_sources,
                 help="Whose files count: of user, project, local those named; all without it."),
    flag("--system-prompt-file", metavar="PATH", callback=_read_text, help="--system-prompt from a file."),
    flag("--append-system-prompt-file", metavar="PATH", callback=_read_text, help="--append-system-prompt from a file."),
    click.option("--thinking", hidden=True, expose_value=False, callback=_only(("adaptive",), THINKING)),
    click.option("--thinking-display", hidden=True, expose_value=False, callback=_only(("summarized",), THINKING)),
    click.option("--max-thinking-tokens", type=int, hidden=True, expose_value=False, callback=_read_thinking),
    *(click.option(name, hidden=True, expose_value=False, callback=_refuse, is_flag=name in WITHOUT_VALUE) for name in REFUSED),
]  # fmt: skip
