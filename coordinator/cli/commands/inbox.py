"""`coordinator inbox|approve|deny`: calls that wait for a person, answered from any terminal.

An answer is stored; the process whose call it is sees it and goes on. The first answer counts: who comes second is told
which that was, and exits with 1. Without a living owner the answer waits for `coordinator resume`, and it is said.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from coordinator.cli import render
from coordinator.cli.completing import complete_approvals, complete_sessions
from coordinator.cli.context import Context, common_options, pass_cli
from coordinator.cli.failures import Failure
from coordinator.cli.lookup import find_session
from coordinator.other_processes import answering
from coordinator.other_processes.answering import user
from coordinator.views.exit_codes import ExitCode
from coordinator.views.shown import Owners, Shown, shown_approvals
from tasks import approvals, registry
from tasks.connection import Connection
from tasks.records import ApprovalRecord
from tasks.watch import Watcher

LOOK = 1.0  # seconds until a look without a change: an owner dies without a commit


@click.command("inbox", help="List the calls that wait for a person, oldest first; approve and deny answer them.")
@click.option("-f", "--follow", "-w", "--watch", is_flag=True, help="Go on; each new one as it comes.")
@click.option("--session", metavar="ID", shell_complete=complete_sessions, help="Only this session's.")
@click.option("--json", "as_json", is_flag=True, help="A list of objects; with -f one object a line.")
@common_options
@pass_cli
def inbox(cli: Context, follow: bool, session: str | None, as_json: bool) -> None:
    within = find_session(cli, session).id if session else None
    rows = _read(cli, within)
    if not follow:
        if as_json:
            cli.console.json(rows)
        elif rows:
            _show(cli, rows)
        else:
            cli.console.note("nothing waits for you")
        return
    with Watcher(cli.database) as watcher:
        told: set[str] = set()
        while not cli.console.closed:
            rows = _read(cli, within)
            new = [row for row in rows if row["id"] not in told]
            told = {row["id"] for row in rows}
            if as_json:
                for row in new:
                    cli.console.json_line(row)
            elif new:
                _show(cli, new)
            cli.console.flush()
            watcher.changed(LOOK)


def _read(cli: Context, session_id: str | None) -> list[Shown]:
    return cli.database.read(lambda conn: shown_approvals(conn, approvals.waiting(conn, session_id=session_id)))


def _show(cli: Context, rows: Sequence[Shown]) -> None:
    for row in rows:
        for line in render.approval(row, cli.now()):
            cli.console.styled(line)


@click.command("approve", help="Let waiting calls run: by their ids, or those of a task or session; each once.")
@click.argument("ids", nargs=-1, metavar="ID...", shell_complete=complete_approvals)
@click.option("--always", is_flag=True, help="And from now on, in this session, what the suggested rule covers.")
@click.option("--match", "rule", metavar="RULE", help="And from now on what RULE covers; without ids: all that it covers now.")
@common_options
@pass_cli
def approve(cli: Context, ids: Sequence[str], always: bool, rule: str | None) -> int:
    if always and rule:
        raise Failure("--always takes the suggested rule, --match another one: say one of them", ExitCode.USAGE)
    if not ids and not rule:
        raise Failure(
            "approve needs the ids of waiting calls (`coordinator inbox` lists them), or --match RULE", ExitCode.USAGE
        )
    answers = cli.database.write(lambda conn: answering.approve(conn, ids, by=user(), always=always, rule=rule))
    return _tell(cli, answers, "approved")


@click.command("deny", help="Refuse waiting calls; the worker is told, and goes on without.")
@click.argument("ids", nargs=-1, required=True, metavar="ID...", shell_complete=complete_approvals)
@click.option("-m", "--message", "why", metavar="WHY", help="What the worker is told.")
@common_options
@pass_cli
def deny(cli: Context, ids: Sequence[str], why: str | None) -> int:
    return _tell(cli, cli.database.write(lambda conn: answering.deny(conn, ids, by=user(), why=why)), "denied")


def _tell(cli: Context, answers: Sequence[tuple[ApprovalRecord, bool]], done: str) -> int:
    for record, first in answers:
        if first:
            cli.console.line(f"{record.id} {done}")
        else:
            cli.console.error(answering.too_late(record))
    _say_if_nobody_drives(cli, [record for record, first in answers if first])
    return ExitCode.DONE if all(first for _, first in answers) else ExitCode.FAILED


def _say_if_nobody_drives(cli: Context, answered: Sequence[ApprovalRecord]) -> None:
    def undriven(conn: Connection) -> set[str]:
        owners = Owners(conn, cli.now())
        tasks = {one.task_id: registry.get(conn, one.task_id) for one in answered if one.task_id}
        return {
            one.session_id
            for one in answered
            if (owners.reaches_nobody(tasks[one.task_id]) if one.task_id else owners.gone(one.session_id))
        }

    for id in sorted(cli.database.read(undriven)):
        cli.console.note(f"nobody drives session {id} now; `coordinator resume {id}` goes on with it")
