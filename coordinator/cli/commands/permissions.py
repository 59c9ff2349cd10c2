"""`coordinator permissions test`: which rule of which file decides a call, without making it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from coordinator.cli import render
from coordinator.cli.context import Context, common_options, pass_cli
from coordinator.cli.directory import is_trusted
from coordinator.cli.failures import Failure
from coordinator.cli.run_flags import DIRECTORY, MODES, Names, flag
from coordinator.exit_codes import ExitCode

CALL = re.compile(r"(?P<tool>[A-Za-z_][\w*-]*)(?:\((?P<input>.*)\))?", re.DOTALL)
# The input field that a call written as `Tool(text)` is about.
MAIN_FIELDS = {
    "Bash": "command",
    "WebFetch": "url",
    "Grep": "path",
    "Glob": "path",
    "NotebookEdit": "notebook_path",
    "Agent": "subagent_type",
}


@click.command(
    "test",
    help='Say what happens to a call such as "Bash(git push)" or "Edit(src/x.py)": allow, ask or deny, and by which rule.',
)
@click.argument("call")
@click.option("--permission-mode", "mode", type=click.Choice(MODES), help="As in this mode.")
@flag(
    "--allowed-tools",
    "--allowedTools",
    "allowed_tools",
    type=Names(),
    default=(),
    metavar="RULES",
    help="With these rules, too.",
)
@flag(
    "--disallowed-tools",
    "--disallowedTools",
    "disallowed_tools",
    type=Names(),
    default=(),
    metavar="RULES",
    help="With these denials, too.",
)
@flag("--settings", metavar="PATH|JSON", help="With this settings file, or its JSON, above the others.")
@flag("--add-dir", "add_dirs", type=DIRECTORY, multiple=True, help="With this directory, too; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="One object.")
@common_options
@pass_cli
def test(
    cli: Context, call: str, mode: str | None, allowed_tools: tuple[str, ...], disallowed_tools: tuple[str, ...],
    settings: str | None, add_dirs: tuple[Path, ...], as_json: bool,
) -> None:  # fmt: skip
    from worker_agent.tools import settings_files

    tool, given = read_call(call)
    here, home = Path.cwd(), Path.home()
    loaded = settings_files.load(here, home=home, trusted=is_trusted(cli, here), settings=settings)
    for line in (*loaded.problems, *loaded.held_back):
        cli.console.note(line)
    policy = loaded.policy(
        cwd=here, home=home, mode=mode, allowed=allowed_tools, disallowed=disallowed_tools,
        roots=[directory.absolute() for directory in add_dirs],
    )  # fmt: skip
    verdict = policy.explain(tool, given)
    values = {
        "decision": verdict.behavior,
        "rule": str(verdict.rule.text) if verdict.rule else None,
        "source": verdict.source,
        "why": verdict.why,
    }
    if as_json:
        cli.console.json(values)
    else:
        for pieces in render.fields(values.items()):
            cli.console.styled(pieces)


def read_call(call: str) -> tuple[str, dict[str, Any]]:
    """`Tool(text)` as a tool's name and input. Raises `Failure`."""
    found = CALL.fullmatch(call.strip())
    if not found:
        raise Failure(f'{call!r} is no call: write it as "Bash(git push)"', ExitCode.USAGE)
    tool, text = found["tool"], found["input"]
    return tool, {} if text is None else {MAIN_FIELDS.get(tool, "file_path"): text}
