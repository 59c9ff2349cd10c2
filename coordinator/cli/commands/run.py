"""`coordinator run`, `coordinator resume`: flags become `RunOptions`, the rest is `drive.py`."""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import click
from click.core import ParameterSource

from coordinator.cli import continuing, run_flags
from coordinator.cli.background import Ready, start_in_background
from coordinator.cli.completing import complete_sessions
from coordinator.cli.context import Context
from coordinator.cli.credentials import credentials_problem
from coordinator.cli.directory import ConfiguredCommand, trust_of
from coordinator.cli.drive import Drive
from coordinator.cli.failures import Failure
from coordinator.cli.live import choose
from coordinator.cli.person import Person
from coordinator.options import EVERY, SESSION_ID, RunOptions
from coordinator.views.exit_codes import ExitCode
from worker_agent.structs import replace

PATIENCE = 1.0  # seconds for the first of what is piped in


def read_prompt(prompt: str | None, cli: Context, *, needed: bool = True) -> str | None:
    """The goal: as given, from stdin for `-`, from a pipe where nothing is given. Where none is `needed`, a pipe in which
    nothing comes is not waited for."""
    if sys.stdin is None:  # it was closed before the program began
        return prompt if prompt and prompt != "-" and prompt.strip() else None
    piped = prompt is None and not sys.stdin.isatty()
    if piped and not _is_ready(sys.stdin):
        if not needed:
            cli.console.note("nothing comes on standard input: going on without it (- waits for it)")
            return None
        cli.console.note("reading the goal from standard input …")
    text = sys.stdin.read() if prompt == "-" or piped else prompt
    return text if text and text.strip() else None


def _is_ready(stream: TextIO) -> bool:
    """Whether reading would answer soon, with text or with the end."""
    try:
        return bool(select.select([stream], [], [], PATIENCE)[0])
    except (OSError, ValueError):
        return True  # no descriptor to ask: reading says what is wrong


def options_of(ctx: click.Context, cli: Context, prompt: str | None, flags: Mapping[str, Any]) -> RunOptions:
    """The flags as values. A session that is taken up again runs as it did before, where no flag says otherwise."""
    if flags["max_budget_usd"] is not None and flags["offline"]:
        cli.console.note("--max-budget-usd has nothing to bound: the offline model costs nothing")
    known = set(RunOptions.__struct_fields__)
    values = {name: value for name, value in flags.items() if name in known}
    if ctx.get_parameter_source("permission_mode") is ParameterSource.DEFAULT:
        values["permission_mode"] = None  # "default" that somebody wrote is stricter than a settings file
    session = continuing.earlier(cli, flags)
    if values["backend"] == "cluster" and ctx.get_parameter_source("max_workers") is ParameterSource.DEFAULT:
        values["max_workers"] = EVERY  # over nodes their slots are the bound, where nobody names one
    if session is not None:
        values |= continuing.as_before(ctx, cli, session, flags)
    if values["offline"]:
        values["model"] = values["worker_model"] = offline_model()
    schema = values["json_schema"]
    values |= _of_the_sdk(flags, values)
    added = tuple(path.absolute() for path in values["add_dirs"])
    return RunOptions(
        **{"trust": trust_of(cli, Path(session.cwd) if session else flags["cwd"], *added)}
        | values
        | {
            "prompt": prompt,
            "config": cli.settings,
            "db": cli.database_url,
            "cwd": Path(os.path.abspath(flags["cwd"])),  # without `..`, but with the links the person named
            "add_dirs": added,
            "json_schema": read_schema(schema) if isinstance(schema, str) and schema else schema or None,
        }
    )


def _of_the_sdk(flags: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """What flags mean that programs for Claude Code pass; only `run` has them."""
    changed: dict[str, Any] = {}
    if (tools := flags.get("tools")) is not None and tools != ("default",):
        from worker_agent.tool_facts import OF_WORKERS, others_than

        own = OF_WORKERS if values["use_coordinator"] else ()  # a coordinator without them could do nothing
        removed = [name for name in others_than(tools) if name not in own]
        changed["disallowed_tools"] = tuple(dict.fromkeys((*values["disallowed_tools"], *removed)))
    for name in ("system_prompt", "append_system_prompt"):
        if (text := flags.get(f"{name}_file")) is not None:
            changed[name] = text
    if (sources := flags.get("sources")) is not None and "project" not in sources:
        from worker_agent.tools.trust import NOTHING

        changed["trust"] = NOTHING
    return changed


def offline_model() -> str:
    """The name under which the built-in surveyor appears everywhere."""
    from coordinator.offline.client import MODEL

    return MODEL


def read_schema(text: str) -> Mapping[str, Any]:
    """A JSON schema from a file or as it stands."""
    from worker_agent import disk

    try:
        value = json.loads(text if disk.is_inline(text) else Path(text).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Failure(f"--json-schema: {error}", ExitCode.USAGE) from None
    if not isinstance(value, dict):
        raise Failure("--json-schema: a schema is a JSON object", ExitCode.USAGE)
    from worker_agent.session.schema import fault

    if (problem := fault(value)) is not None:
        raise Failure(f"--json-schema: this is no valid JSON schema: {problem}", ExitCode.USAGE)
    return value


def with_skill(cli: Context, options: RunOptions, flags: Mapping[str, Any]) -> RunOptions:
    """The same where the prompt is `/name args`: with the skill's text as the prompt. Raises `Failure` for a name that is
    none."""
    if not (options.prompt or "").lstrip().startswith("/"):
        return options
    from coordinator.agents import slash
    from worker_agent.errors import ConfigError

    try:
        options, expanded = slash.with_skill(options, continuing.earlier(cli, flags))
    except ConfigError as error:
        raise Failure(str(error), ExitCode.USAGE) from None
    if expanded is not None and expanded.passed_over:
        cli.console.note(f"{expanded.skill.file}: no rules, passed over: {', '.join(expanded.passed_over)}")
    return options


def with_attachments(cli: Context, options: RunOptions, typed: str | None, *, beside: bool) -> RunOptions:
    """The same with the files that a person's `typed` prompt names, and, where it stands `beside` a pipe, what comes there."""
    if not typed or not options.prompt:
        return options
    from coordinator.cli import attached

    found = [attached.files(typed, options.cwd)] if "@" in typed else []
    found += [attached.piped()] if beside else []
    for note in (note for one in found for note in one.notes):
        cli.console.note(note)
    prompt = "\n\n".join(filter(None, (options.prompt, *(one.text for one in found))))
    return replace(options, prompt=prompt, attachments=tuple(block for one in found for block in one.blocks))


def check(options: RunOptions) -> None:
    """What can be said before anything is begun."""
    if options.session_id is not None and not SESSION_ID.fullmatch(options.session_id):
        raise Failure("--session-id: 4 to 64 letters, digits, - and _, a letter or digit first", ExitCode.USAGE)
    if not options.offline and (problem := credentials_problem()):
        raise Failure(problem, ExitCode.NOT_AUTHENTICATED)


def driven(cli: Context, options: RunOptions, flags: Mapping[str, Any]) -> int:
    """Run it for a program that says on standard input what is to be done; see `control.py`."""
    from coordinator.cli.control import Control

    check(options)
    control = Control(
        cli.console, partial_messages=flags["include_partial_messages"], answers=flags["permission_prompt_tool"] is not None,
        hook_events=flags["include_hook_events"],
    )  # fmt: skip
    drive = Drive(
        console=cli.console, options=replace(options, interactive=True), view=control, person=control.person,
        approver=control, on_ready=control.ready, prepare=control.prepare, program=lambda: control.program,
    )  # fmt: skip
    try:
        code = drive.run()
        cli.note_result()
        return ExitCode.DONE if code == ExitCode.NEEDS_PERSON else code  # the program was told of each call
    finally:
        cli.note_session(drive.session_id)


def execute(cli: Context, options: RunOptions, flags: Mapping[str, Any], on_ready: Ready | None = None) -> int:
    """Run it; `on_ready` is given by a run in the background, which nobody can be asked about."""
    check(options)
    view = choose(
        cli.console, flags["output_format"], print_only=flags["print_only"] or on_ready is not None,
        partial_messages=flags["include_partial_messages"], hook_events=flags["include_hook_events"],
    )  # fmt: skip
    live = flags["output_format"] == "text" and not flags["print_only"] and on_ready is None
    options = replace(options, watched=live and cli.console.is_terminal)
    asks = live and sys.stdin.isatty()
    drive = Drive(
        console=cli.console, options=options, view=view, person=Person() if asks else None, detached=on_ready is not None,
        on_ready=(lambda handle: on_ready(handle.session_id)) if on_ready else None,
    )  # fmt: skip
    try:
        code = drive.run()
        cli.note_result()
        return code
    finally:
        cli.note_session(drive.session_id)


@click.pass_context
def _run(ctx: click.Context, /, prompt: str | None, background: bool, **flags: Any) -> int:
    cli = ctx.find_object(Context)
    assert cli is not None
    if flags["input_format"] == "stream-json":
        if flags["output_format"] != "stream-json" or background or prompt is not None:
            raise Failure(
                "--input-format stream-json goes with --output-format stream-json, without --bg and without a prompt: "
                "prompts are lines of standard input", ExitCode.USAGE,
            )  # fmt: skip
        if ctx.get_parameter_source("use_coordinator") is ParameterSource.DEFAULT:
            flags["use_coordinator"] = False  # a program for Claude Code talks to an agent that has the tools it names
        return driven(cli, options_of(ctx, cli, None, flags), flags)
    goal = read_prompt(prompt, cli, needed=flags["resume"] is None and not flags["continue_last"])
    if goal is None and flags["resume"] is None and not flags["continue_last"]:
        raise Failure('run needs a goal: `coordinator run "…"`, or - to read it from stdin', ExitCode.USAGE)
    options = with_skill(cli, options_of(ctx, cli, goal, flags), flags)
    options = with_attachments(cli, options, goal, beside=prompt not in (None, "-"))
    if not background:
        return execute(cli, options, flags)
    check(options)
    return start_in_background(cli, lambda ready: execute(cli, options, flags, ready))


run = click.command("run", cls=ConfiguredCommand, help="Work on one goal until it is done. The answer goes to stdout.")(
    run_flags.apply(
        [
            click.argument("prompt", required=False, metavar="[PROMPT|-]"),
            *run_flags.OUTPUT,
            *run_flags.WORK,
            *run_flags.CONTINUING,
            *run_flags.HEADLESS,
            *run_flags.DRIVEN,
        ],
        _run,
    )
)


@click.pass_context
def _resume(ctx: click.Context, /, session_id: str, prompt: str | None, **flags: Any) -> int:
    cli = ctx.find_object(Context)
    assert cli is not None
    flags["resume"] = session_id
    typed = read_prompt(prompt, cli) if prompt else None
    options = with_skill(cli, options_of(ctx, cli, typed, flags), flags)
    return execute(cli, with_attachments(cli, options, typed, beside=prompt not in (None, "-")), flags)


resume = click.command(
    "resume",
    cls=ConfiguredCommand,
    help="Take a session over whose owner is gone, or go on with one that has ended. Its flags hold again.",
)(
    run_flags.apply(
        [
            click.argument("session_id", metavar="ID", shell_complete=complete_sessions),
            click.argument("prompt", required=False, metavar="[PROMPT|-]"),
            *run_flags.OUTPUT,
            *run_flags.WORK,
        ],
        _resume,
    )
)
