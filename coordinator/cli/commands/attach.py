"""`coordinator attach`: watching a session that another process drives. A viewer, no supervisor: leaving ends nothing."""

from __future__ import annotations

import time

import click

from coordinator.cli import early, render, tree
from coordinator.cli.completing import complete_sessions
from coordinator.cli.context import Context, common_options, pass_cli
from coordinator.cli.lookup import find_session, shown_sessions
from coordinator.views.exit_codes import ExitCode
from coordinator.views.shown import Shown, shown_tasks
from tasks import registry, sessions
from tasks.connection import Connection
from tasks.registry import TaskFilter
from tasks.watch import Watcher

LOOK = 0.5  # seconds: ages move on without a commit
FRAME = 0.125  # seconds between two frames at least


@click.command("attach", help="Watch a session's tasks from another terminal until it ends. Ctrl+C leaves; nothing is ended.")
@click.argument("session_id", metavar="ID", shell_complete=complete_sessions)
@common_options
@pass_cli
def attach(cli: Context, session_id: str) -> int:
    session = find_session(cli, session_id)
    early.raise_interrupts()
    try:
        return _live(cli, session.id) if cli.console.has_colour else _plain(cli, session.id)
    except KeyboardInterrupt:
        return ExitCode.DONE


def _look(cli: Context, session_id: str) -> tuple[Shown, list[Shown]]:
    (session,) = shown_sessions(cli, [cli.database.read(lambda conn: sessions.get(conn, session_id))])

    def read(conn: Connection) -> list[Shown]:
        return shown_tasks(conn, registry.list_tasks(conn, TaskFilter(session_id=session_id, texts=False)), cli.now())

    return session, cli.database.read(read)


def _head(session: Shown) -> str:
    return f"session {session['id']}  {session['state']}  model {session['model'] or '?'}  {render.money(session['cost_usd'])}"


def _live(cli: Context, session_id: str) -> int:
    with Watcher(cli.database) as watcher, cli.console.region() as region:
        while True:
            session, tasks = _look(cli, session_id)
            columns, lines = cli.console.size
            counts, rows = tree.in_scene(tasks, lines)
            scene = tree.Scene(head=_head(session), counts=counts, rows=rows, said=session["goal"])
            region.draw(tree.scene_lines(scene, columns, lines))
            if not session["driven"]:
                break
            time.sleep(FRAME)
            watcher.changed(LOOK)
    cli.console.line(_head(session))
    for task in tasks:
        cli.console.styled(render.fit(render.task_line(task), columns))
    return ExitCode.DONE


def _plain(cli: Context, session_id: str) -> int:
    """A line for each change of a task."""
    told: dict[str, str] = {}
    with Watcher(cli.database) as watcher:
        while not cli.console.closed:
            session, tasks = _look(cli, session_id)
            for task in tasks:
                if told.get(task["id"]) != task["status"]:
                    told[task["id"]] = task["status"]
                    cli.console.styled(render.task_line(task))
            if not session["driven"]:
                cli.console.note(_head(session))
                return ExitCode.DONE
            watcher.changed(LOOK)
    return ExitCode.DONE
