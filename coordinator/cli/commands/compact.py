"""`coordinator sessions compact`: `/compact` from outside, for a session that nobody drives.

The transcript keeps everything; what is sent from then on begins with the summary.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from coordinator.cli import early
from coordinator.cli.commands.run import check
from coordinator.cli.completing import complete_sessions
from coordinator.cli.context import Context, common_options, pass_cli
from coordinator.cli.directory import trust_of
from coordinator.cli.failures import Failure
from coordinator.cli.lookup import find_session
from coordinator.options import RunOptions
from tasks.records import SessionRecord
from worker_agent.events import Result
from worker_agent.structs import replace


@click.command("compact", help="Summarise the coordinator's conversation of a session that nobody drives.")
@click.argument("session_id", metavar="ID", shell_complete=complete_sessions)
@click.option("--instructions", default="", metavar="TEXT", help="What the summary must keep, in words.")
@click.option("--model", metavar="MODEL", help="The model to summarise with; the session's own if left out.")
@common_options
@pass_cli
def compact(cli: Context, session_id: str, instructions: str, model: str | None) -> None:
    session = find_session(cli, session_id)
    options = as_it_ran(cli, session)
    options = replace(options, model=model or session.model)
    check(options)
    cli.close_database()
    early.raise_interrupts()
    result = asyncio.run(_compact(options, instructions))
    if result.is_error:
        raise Failure(result.text)
    cli.console.note(result.text)


def as_it_ran(cli: Context, session: SessionRecord) -> RunOptions:
    """How the session was asked to run: the same tools and rules make the same prefix, which the cache holds."""
    known: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in session.options.items()
    }
    for name in ("add_dirs", "plugin_dirs"):
        known[name] = tuple(map(Path, known.get(name, ())))
    cwd = Path(session.cwd)
    return RunOptions(
        **known,
        resume=session.id,
        cwd=cwd,
        config=cli.settings,
        db=cli.database_url,
        trust=trust_of(cli, cwd, *known["add_dirs"]),
    )


async def _compact(options: RunOptions, instructions: str) -> Result:
    from coordinator.app import compact_session

    return await compact_session(options, instructions, lambda observed: None)
