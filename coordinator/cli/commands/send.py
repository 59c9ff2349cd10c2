"""`coordinator tasks send|retry`: the same path as the coordinator's SendMessage, from any terminal.

The message, or the new task, is stored; the session's owner sees it and goes on. Without a living owner it waits for
`coordinator resume`, and the answer says so.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from coordinator.cli.completing import complete_tasks
from coordinator.cli.context import Context, common_options, pass_cli
from coordinator.cli.failures import Failure
from coordinator.cli.lookup import find_tasks
from coordinator.other_processes import sending
from coordinator.views.shown import Owners
from tasks import sessions
from tasks.records import SessionStatus, TaskRecord
from tasks.states import TaskStatus
from worker_agent.config import secret_values
from worker_agent.redaction import Redactor

AGAIN = "The run before this one ended too early ({why}). Go on from where it stopped and finish the work you were given."


@click.command("send", help="Send a message to a worker, or to a session's coordinator; says what became of it.")
@click.argument("to", metavar="ID", shell_complete=complete_tasks)
@click.argument("message", nargs=-1, required=True)
@common_options
@pass_cli
def send(cli: Context, to: str, message: Sequence[str]) -> None:
    text = sys.stdin.read() if message == ("-",) else " ".join(message)
    known = Redactor(secret_values())  # as in every other text: what is stored holds no secret
    sent = cli.database.write(lambda conn: sending.send(conn, to, known(text), paths=cli.paths, now=cli.now()))
    cli.console.line(sent.words)
    _say_if_waiting(cli, sent.undriven)


@click.command("retry", help="Run the worker of failed or killed tasks again, on the same conversation. Prints the new ids.")
@click.argument("ids", nargs=-1, required=True, metavar="ID...", shell_complete=complete_tasks)
@common_options
@pass_cli
def retry(cli: Context, ids: Sequence[str]) -> None:
    tasks = find_tasks(cli, ids)
    for task in tasks:
        _check_may_retry(cli, task)
    for task in tasks:
        _retry(cli, task)


def _check_may_retry(cli: Context, task: TaskRecord) -> None:
    if task.is_live:
        raise Failure(f"{task.id} is {task.status}; only a failed or killed task can be tried again")
    if task.status is TaskStatus.COMPLETED:
        raise Failure(f"{task.id} is completed, there is nothing to try again (`coordinator send {task.id} …` goes on with it)")
    if not task.reports:
        raise Failure(f"{task.id} is a shell command; only a worker can be tried again")
    session = cli.database.read(lambda conn: sessions.get(conn, task.session_id))
    if session.status is SessionStatus.ENDED:
        again = f'coordinator resume {session.id} "try {task.id} again"'
        raise Failure(f"the session of {task.id} has ended, so nothing would run it; to go on with the session: {again}")


def _retry(cli: Context, task: TaskRecord) -> None:
    prompt = AGAIN.format(why=task.error or task.end_reason or task.status)
    cli.console.line(cli.database.write(lambda conn: sending.go_on(conn, task, prompt, cli.paths)).id)
    undriven = cli.database.read(lambda conn: Owners(conn, cli.now()).gone(task.session_id))
    _say_if_waiting(cli, task.session_id if undriven else None)


def _say_if_waiting(cli: Context, session_id: str | None) -> None:
    if session_id:
        cli.console.note(f"nobody drives the session now; `coordinator resume {session_id}` goes on with it")
