"""`coordinator sessions list|show|fork|rm`, and `coordinator prune`."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import click

from coordinator.cli import render
from coordinator.cli.completing import complete_sessions
from coordinator.cli.context import Context, common_options, pass_cli
from coordinator.cli.failures import Failure
from coordinator.cli.lookup import find_session, shown_sessions
from coordinator.views.exit_codes import ExitCode
from coordinator.views.shown import session_detail
from coordinator.views.terminal_text import one_line
from coordinator.views.values import in_order
from tasks import registry, sessions
from tasks.records import SessionRecord, SessionStatus
from tasks.registry import TaskFilter
from worker_agent.words import counted

DAY = 86_400.0
MAX_LINE = 4_000  # characters of what stays behind and how it is removed
LONG = ("goal", "result", "tasks")


class Days(click.ParamType[float]):
    """`7`, `7d`, `12h`, `30m`, `2w`: days."""

    name = "days"
    _units: ClassVar[dict[str, float]] = {"": 1.0, "w": 7.0, "d": 1.0, "h": 1 / 24, "m": 1 / 1440, "s": 1 / 86_400}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([wdhms]?)", str(value).strip())
        if found is None:
            self.fail(f"{value!r} is no time: 7 or 7d (days), 12h, 2w", param, ctx)
        return float(found[1]) * self._units[found[2]]


@click.command("list", help="List sessions, newest first.")
@click.option("-n", "--limit", type=click.IntRange(min=1), help="At most so many.")
@click.option("--open", "only_open", is_flag=True, help="Only those that have not ended.")
@click.option("-q", "--quiet", is_flag=True, help="Only ids, one a line.")
@click.option("--json", "as_json", is_flag=True, help="A list of objects.")
@common_options
@pass_cli
def list_sessions(cli: Context, limit: int | None, only_open: bool, quiet: bool, as_json: bool) -> None:
    status = SessionStatus.OPEN if only_open else None
    found = cli.database.read(lambda conn: sessions.list_sessions(conn, status=status, limit=limit))
    if quiet:
        cli.console.text("".join(f"{session.id}\n" for session in found))
        return
    rows = shown_sessions(cli, found)
    if as_json:
        cli.console.json(rows)
    elif rows:
        cli.console.grid(render.session_grid(rows))
    else:
        cli.console.note("no sessions")


@click.command("show", help="Show one session with its tasks.")
@click.argument("session_id", metavar="ID", shell_complete=complete_sessions)
@click.option("--json", "as_json", is_flag=True, help="One object; its tasks as in `tasks list --json`.")
@common_options
@pass_cli
def show(cli: Context, session_id: str, as_json: bool) -> None:
    session = find_session(cli, session_id)
    if as_json:
        cli.console.json(detail(cli, session))
    else:
        show_session(cli, session)


def detail(cli: Context, session: SessionRecord) -> dict[str, Any]:
    return session_detail(cli.database, session, cli.now())


def show_session(cli: Context, session: SessionRecord) -> None:
    values = detail(cli, session)
    for line in render.fields((key, value) for key, value in values.items() if key not in LONG):
        cli.console.styled(line)
    for name in ("goal", "result"):
        if name == "goal" or values[name]:
            for line in [(), (render.Piece(f"{name}:", "bold"),), *render.literal_lines(values[name] or "")]:
                cli.console.styled(line)
    if tasks := values["tasks"]:
        cli.console.line()
        cli.console.grid(render.task_grid(in_order(tasks)))


@click.command(
    "fork", help="Copy the coordinator's conversation into a new session; prints its id. Tasks stay with the origin."
)
@click.argument("session_id", metavar="ID", shell_complete=complete_sessions)
@common_options
@pass_cli
def fork(cli: Context, session_id: str) -> None:
    origin = find_session(cli, session_id)
    cli.console.line(cli.database.write(lambda conn: sessions.fork(conn, origin.id)).id)


@click.command("rm", help="Remove sessions that nobody drives, with their tasks, transcripts and files.")
@click.argument("ids", nargs=-1, required=True, metavar="ID...", shell_complete=complete_sessions)
@click.option("--yes", is_flag=True, help="Do not ask.")
@common_options
@pass_cli
def rm(cli: Context, ids: Sequence[str], yes: bool) -> None:
    found = [find_session(cli, ref) for ref in ids]
    _consent(cli, f"remove {', '.join(session.id for session in found)}?", yes)
    for session in found:
        kept = left_behind(cli, session)
        remove(cli, session)
        cli.console.line(session.id)
        _name(cli, kept)


def left_behind(cli: Context, session: SessionRecord) -> list[str]:
    """What of a session's work stands outside of our own files and is not removed with it: for each worktree and branch
    that is still there one line, with the command that removes it."""
    wanted = TaskFilter(session_id=session.id, texts=False)
    tasks = cli.database.read(lambda conn: registry.list_tasks(conn, wanted))
    lines: list[str] = []
    branches: dict[str, frozenset[str]] = {}
    for task in tasks:
        if not task.worktree or not task.branch or not task.cwd:
            continue
        if task.cwd not in branches:
            branches[task.cwd] = _branches(task.cwd)
        git = f"git -C {shlex.quote(task.cwd)}"
        kept, commands = [], []
        if Path(task.worktree).exists():
            kept.append(f"the worktree {task.worktree}")
            commands.append(f"{git} worktree remove --force {shlex.quote(task.worktree)}")
        if task.branch in branches[task.cwd]:
            kept.append(f"the branch {task.branch}")
            commands.append(f"{git} branch -D {shlex.quote(task.branch)}")
        if kept:
            lines.append(one_line(f"{' and '.join(kept)} of {task.id} stay; to remove: {' && '.join(commands)}", MAX_LINE))
    return lines


def _branches(cwd: str) -> frozenset[str]:
    """The names of the branches that workers made in the repository around `cwd`."""
    from worker_agent.git import git_now

    listed = git_now(Path(cwd), "for-each-ref", "--format=%(refname:short)", "refs/heads/coordinator/")
    return frozenset(listed.text.splitlines())


def _name(cli: Context, kept: Sequence[str]) -> None:
    for line in kept:
        cli.console.note(line)


def remove(cli: Context, session: SessionRecord) -> None:
    """The rows first: files without rows are only clutter. Raises `Owned` while a process drives it."""
    cli.database.write(lambda conn: sessions.remove(conn, session.id))
    paths = cli.paths
    own = (paths.spill(session.id), paths.scratch(session.id), paths.transcripts(session.id), paths.workspace(session.id))
    for directory in own:
        shutil.rmtree(directory, ignore_errors=True)


@click.command(
    "prune", help="Remove sessions that ended long ago, with their files. Worktrees with work in them stay, and are named."
)
@click.option("--older-than", "days", type=Days(), default="30", show_default=True, help="Since the end: days, or 12h, 7d, 2w.")
@click.option("--dry-run", is_flag=True, help="Only print what would go.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@common_options
@pass_cli
def prune(cli: Context, days: float, dry_run: bool, yes: bool) -> None:
    before = cli.now() - days * DAY
    ended = cli.database.read(lambda conn: sessions.list_sessions(conn, status=SessionStatus.ENDED))
    old = [session for session in ended if (session.ended_at or session.updated_at) <= before]
    if not old:
        cli.console.note("nothing to remove")
        return
    if not dry_run:
        _consent(cli, f"remove {counted(len(old), 'session')}?", yes)
    for session in old:
        kept = left_behind(cli, session)
        if not dry_run:
            remove(cli, session)
        cli.console.line(session.id)
        _name(cli, kept)


def _consent(cli: Context, question: str, yes: bool) -> None:
    """Removing needs a yes: by flag, or from a person."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Failure(f"{question} Say --yes, since there is nobody to ask", ExitCode.USAGE)
    if not click.confirm(question, err=True):
        raise Failure("nothing was removed")
