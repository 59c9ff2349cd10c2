"""`coordinator sessions remember`: what is worth remembering of a session that has ended, as notes for later ones.

`memory.extract` has it done in the background after every session's end.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from coordinator.cli import early
from coordinator.cli.commands.compact import as_it_ran
from coordinator.cli.commands.run import check
from coordinator.cli.completing import complete_sessions
from coordinator.cli.context import Context, common_options, pass_cli
from coordinator.cli.failures import Failure
from coordinator.cli.lookup import find_session
from coordinator.options import RunOptions
from worker_agent.errors import ModelError

if TYPE_CHECKING:
    from coordinator.session.remembering import Remembered


@click.command("remember", help="Write notes of an ended session into its project's .coordinator/memory; prints the files.")
@click.argument("session_id", metavar="ID", shell_complete=complete_sessions)
@common_options
@pass_cli
def remember(cli: Context, session_id: str) -> None:
    options = as_it_ran(cli, find_session(cli, session_id))
    check(options)
    cli.close_database()
    early.raise_interrupts()
    try:
        remembered = asyncio.run(_remember(options))
    except ModelError as error:
        raise Failure(f"no notes: {error}") from None
    except TimeoutError:
        raise Failure("no notes: it took too long") from None
    except OSError as error:
        raise Failure(f"no notes: {error.filename} {error.strerror}") from None
    for path in remembered.written:
        cli.console.line(str(path))
    if not remembered.written:
        cli.console.note(remembered.why)


async def _remember(options: RunOptions) -> Remembered:
    from coordinator.app import remember_session

    return await remember_session(options)
