"""`coordinator tasks tree|timeline`, `coordinator sessions compare`: how a session went, drawn in the terminal."""

from __future__ import annotations

import click

from coordinator.cli import render
from coordinator.cli.completing import complete_sessions
from coordinator.cli.context import Context, common_options, pass_cli
from coordinator.cli.failures import Failure
from coordinator.cli.lookup import find_session
from coordinator.views import comparison
from coordinator.views.exit_codes import ExitCode
from coordinator.views.shown import Shown, shown_tasks
from coordinator.views.timeline import in_tree, lanes
from tasks import registry, sessions
from tasks.connection import Connection
from tasks.records import SessionRecord
from tasks.registry import TaskFilter


def _session(cli: Context, ref: str | None) -> SessionRecord:
    """The one that is named, else the newest."""
    if ref is not None:
        return find_session(cli, ref)
    newest = cli.database.read(lambda conn: sessions.list_sessions(conn, limit=1))
    if not newest:
        raise Failure("there is no session yet", ExitCode.NOT_FOUND)
    return newest[0]


@click.command("tree", help="Show a session's tasks below those that asked for them; the newest session's without an id.")
@click.argument("session_id", metavar="[ID]", required=False, shell_complete=complete_sessions)
@click.option("--json", "as_json", is_flag=True, help="A list of objects, each with its depth.")
@common_options
@pass_cli
def tree(cli: Context, session_id: str | None, as_json: bool) -> None:
    session = _session(cli, session_id)

    def read(conn: Connection) -> list[tuple[Shown, int]]:
        found = registry.list_tasks(conn, TaskFilter(session_id=session.id, ended_sessions=True, texts=False))
        placed = in_tree(found, session.id)
        shown = shown_tasks(conn, [task for task, _ in placed], cli.now())
        return [(values, depth) for values, (_, depth) in zip(shown, placed, strict=True)]

    rows = cli.database.read(read)
    if as_json:
        cli.console.json([values | {"depth": depth} for values, depth in rows])
        return
    for line in render.tree_lines(session.id, session.title or session.goal, rows, cli.console.width):
        cli.console.styled(line)


@click.command("timeline", help="Draw who did what when: a lane for each agent; the newest session's without an id.")
@click.argument("session_id", metavar="[ID]", required=False, shell_complete=complete_sessions)
@click.option("--json", "as_json", is_flag=True, help="A list of lanes with their segments, times in seconds.")
@common_options
@pass_cli
def timeline(cli: Context, session_id: str | None, as_json: bool) -> None:
    session = _session(cli, session_id)
    found = [lane.to_json() for lane in cli.database.read(lambda conn: lanes(conn, session, cli.now()))]
    if as_json:
        cli.console.json(found)
        return
    for line in render.timeline_lines(found, cli.console.width or 100):
        cli.console.styled(line)


@click.command("compare", help="Put two sessions side by side: tasks, cost, time, results. A fork and its origin, say.")
@click.argument("one", metavar="A", shell_complete=complete_sessions)
@click.argument("other", metavar="B", shell_complete=complete_sessions)
@click.option("--json", "as_json", is_flag=True, help="One object.")
@common_options
@pass_cli
def compare(cli: Context, one: str, other: str, as_json: bool) -> None:
    value = comparison.compare(cli.database, find_session(cli, one), find_session(cli, other), cli.now())
    if as_json:
        cli.console.json(value)
        return
    cli.console.grid(render.comparison_grid(value["sessions"], comparison.FIELDS))
    if value["tasks"]:
        cli.console.line()
        cli.console.grid(render.pairs_grid(value["tasks"]))
    if value["result_diff"]:
        cli.console.line()
        for line in render.diff_lines(value["result_diff"]):
            cli.console.styled(line)
