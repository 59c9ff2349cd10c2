"""`coordinator tasks logs`: what agents said and did, as stored; with `-f` until they end.

A session's id shows its coordinator, a shell command's what it writes. Several agents are interleaved by time, each line under its id. Following looks at the
store when something was committed, reads only what is new, and ends with the task's own exit code.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
from msgspec import Struct

from coordinator.cli import render
from coordinator.cli.completing import complete_tasks
from coordinator.cli.context import Context, common_options, pass_cli
from coordinator.cli.outcomes import ENDED, task_code, worst
from coordinator.views.exit_codes import ExitCode
from coordinator.views.messages import message_json, parts
from coordinator.views.shown import Owners
from coordinator.views.values import iso, task_json
from tasks import registry, sessions, transcripts
from tasks.connection import Connection
from tasks.errors import NotFound
from tasks.ids import TaskType
from tasks.records import MessageRecord, TaskRecord
from tasks.states import TaskStatus
from tasks.watch import Watcher

LOOK = 1.0  # seconds until a look without a change: owners die without a commit
OUTPUT_LOOK = 0.1  # seconds: the output of a command grows without a commit
KINDS = ("text", "tool", "thinking", "error")
FAMILIES = {
    "tool": "tool",
    "result": "tool",
    "thinking": "thinking",
    "error": "error",
    "output": "tool",
}  # every other part is text


class Source(Struct):
    """One conversation; `task_id` None shows all of it, else only that run's part. Of a shell command `output` is the
    file that it writes: it has no conversation. `begun` is the part of a line whose end was not written yet."""

    agent_id: str
    task_id: str | None
    label: str
    next_seq: int = 0
    output: Path | None = None
    offset: int = 0
    begun: bytes = b""

    def saw(self, row: MessageRecord) -> None:
        """What is stored up to this row was shown."""
        self.next_seq = max(self.next_seq, row.seq + 1)

    def new_lines(self, last: bool) -> list[str]:
        """The lines of the output since the last call; with `last` also one without an end."""
        if self.output is None:
            return []
        try:
            with self.output.open("rb") as file:
                file.seek(self.offset)
                data = file.read()
        except OSError:
            return []  # not begun, or removed
        self.offset += len(data)
        *lines, self.begun = (self.begun + data).split(b"\n")
        if last and self.begun:
            lines.append(self.begun)
            self.begun = b""
        return [line.decode(errors="replace") for line in lines]


@click.command("logs", help="Print what tasks, or a session's coordinator, said and did.")
@click.argument("ids", nargs=-1, required=True, metavar="ID...", shell_complete=complete_tasks)
@click.option("-f", "--follow", is_flag=True, help="Go on until all have ended; exits with the worst of their codes.")
@click.option("--tail", type=click.IntRange(min=0), help="Begin with the last N messages.")
@click.option("--timestamps", is_flag=True, help="A time before each message.")
@click.option("--kind", "kinds", type=click.Choice(KINDS), multiple=True, help="Only such parts; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="One object a message, one a line.")
@common_options
@pass_cli
def logs(
    cli: Context, ids: Sequence[str], follow: bool, tail: int | None, timestamps: bool, kinds: Sequence[str], as_json: bool
) -> int:
    sources = cli.database.read(lambda conn: [_source(conn, ref) for ref in ids])
    show = _Printer(cli, timestamps, frozenset(kinds), as_json, labels=len(sources) > 1)
    show(_new(cli, sources), tail)
    show.output(sources, tail, last=not follow)
    if not follow:
        _show_ends(cli, sources, show)
        return ExitCode.DONE
    with Watcher(cli.database) as watcher:
        while not cli.console.closed:
            states = cli.database.read(lambda conn: _states(conn, sources, cli.now()))
            over = all(status in (*ENDED, "interrupted") for status, _ in states)
            show(_new(cli, sources), None)
            show.output(sources, None, last=over)
            if over:
                _show_ends(cli, sources, show)
                return worst(code for _, code in states)
            watcher.changed(LOOK if all(source.output is None for source in sources) else OUTPUT_LOOK)
    return ExitCode.DONE


def _show_ends(cli: Context, sources: Sequence[Source], show: _Printer) -> None:
    """Why tasks failed or were killed, after all they said."""
    labels = [source.label for source in sources if source.task_id]
    for task in cli.database.read(lambda conn: [registry.get(conn, label) for label in labels]):
        if task.status in (TaskStatus.FAILED, TaskStatus.KILLED):
            show.end(task)


def _source(conn: Connection, ref: str) -> Source:
    """A task, else a session. Raises `NotFound`, `Ambiguous`."""
    try:
        task = registry.resolve(conn, ref)
    except NotFound as unknown:
        try:
            session = sessions.resolve(conn, ref)
        except NotFound:
            raise unknown from None
        return Source(session.id, None, session.id)
    is_shell = task.type is TaskType.LOCAL_BASH and task.output_file is not None
    return Source(task.agent_id, task.id, task.id, output=Path(task.output_file or "") if is_shell else None)


def _states(conn: Connection, sources: Sequence[Source], now: float) -> list[tuple[str, ExitCode]]:
    owners = Owners(conn, now)
    return [_state(conn, owners, source, now) for source in sources]


def _state(conn: Connection, owners: Owners, source: Source, now: float) -> tuple[str, ExitCode]:
    session = sessions.find(conn, source.agent_id)
    if session is not None:
        over = session.status == "ended" or sessions.owner_gone(session, now)
        return ("completed" if over else "running"), ExitCode.DONE
    task: TaskRecord = registry.get(conn, source.label)
    values = task_json(task, owners.status(task), now)
    return values["status"], task_code(values, task.error_class)


def _new(cli: Context, sources: Sequence[Source]) -> list[tuple[Source, MessageRecord]]:
    """What was stored since the last look, in order of time."""

    def read(conn: Connection) -> list[tuple[Source, MessageRecord]]:
        rows = [(source, row) for source in sources for row in transcripts.load(conn, source.agent_id, source.next_seq)]
        return sorted(rows, key=lambda pair: pair[1].at)

    rows = cli.database.read(read)
    for source, row in rows:
        source.saw(row)
    return [(source, row) for source, row in rows if source.task_id in (None, row.task_id)]


class _Printer:
    def __init__(self, cli: Context, timestamps: bool, kinds: frozenset[str], as_json: bool, *, labels: bool) -> None:
        self._console = cli.console
        self._timestamps = timestamps
        self._kinds = kinds
        self._json = as_json
        self._labels = labels

    def __call__(self, rows: Sequence[tuple[Source, MessageRecord]], tail: int | None) -> None:
        for source, row in rows[len(rows) - tail :] if tail is not None and tail < len(rows) else rows:
            if self._json:
                self._console.json_line(message_json(row))
                continue
            for kind, line in parts(row):
                self._part(kind, line, row.at, source.label)

    def output(self, sources: Sequence[Source], tail: int | None, *, last: bool) -> None:
        """What shell commands wrote since the last look; `tail` counts lines here."""
        for source in sources:
            lines = source.new_lines(last)
            for line in lines if tail is None else lines[len(lines) - tail :] if tail < len(lines) else lines:
                if self._json:
                    self._console.json_line({"task_id": source.task_id, "kind": "output", "text": line})
                else:
                    self._part("output", line, None, source.label)

    def end(self, task: TaskRecord) -> None:
        """How a task ended that did not complete; no message, so not among the objects of `--json`."""
        if not self._json:
            why = task.error or task.end_reason
            self._part("error", f"{task.status}{f': {why}' if why else ''}", task.ended_at, task.id)

    def _part(self, kind: str, text: str, at: float | None, label: str) -> None:
        if self._kinds and FAMILIES.get(kind, "text") not in self._kinds:
            return
        head = " ".join([*([iso(at) or ""] if self._timestamps else []), *([f"[{label}]"] if self._labels else [])])
        for piece in render.log_lines(kind, text, head):
            self._console.styled(piece)
