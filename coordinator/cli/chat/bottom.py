"""What stands around the line one types on, as lines for a size of the terminal: pure functions of one value.

Above the line: what the coordinator is writing, what waits to be read, the oldest question. Below it: workers, and one line of
how things stand. Everything together leaves room for the line itself, on ten rows too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from coordinator.cli.render import SIGNS, Line, Piece, cost_of, count, money, now_words, span
from coordinator.views.terminal_text import columns, cut, literal, one_line
from coordinator.views.values import in_order, state

SMALL = 15  # rows; below them everything is kept to one line
NAME = 12  # columns of a worker's name
NARROW = 60  # columns; below them a worker's tokens and cost are left out


class Question(Struct, frozen=True, kw_only=True):
    """The call that waits longest. `rule` is the one that `a` would give; `number` of `total` are those that wait."""

    id: str
    who: str
    tool: str
    shown: str
    rule: str | None
    total: int


class Bottom(Struct, frozen=True, kw_only=True):
    """`said` is the coordinator's line that is not whole yet; `tasks` are objects as in `tasks list --json`, with `asks`, the call
    that waits for the person, in words; `doing` and
    `since` (seconds) tell of the coordinator's turn, None where none runs; `facts` stand behind that, the most important
    first."""

    said: str = ""
    queued: tuple[str, ...] = ()
    question: Question | None = None
    tasks: Sequence[Mapping[str, Any]] = ()
    doing: str | None = None
    is_leaving: bool = False
    since: float = 0.0
    cost: float | None = 0.0
    facts: tuple[str, ...] = ()


def above(bottom: Bottom, width: int, height: int) -> list[Line]:
    rows = 1 if height < SMALL else 3
    lines: list[Line] = [(Piece(row),) for row in wrapped(literal(bottom.said), width)[-rows:]] if bottom.said else []
    lines += [(Piece(cut(f"⋯ queued: {one_line(text)}", width), "dim"),) for text in bottom.queued[:rows]]
    if len(bottom.queued) > rows:
        lines[-1] = (Piece(cut(f"⋯ {len(bottom.queued) - rows + 1} more queued", width), "dim"),)
    return lines + (_question(bottom.question, width) if bottom.question else [])


def _question(question: Question, width: int) -> list[Line]:
    more = f" (1 of {question.total})" if question.total > 1 else ""
    head = f"▲ {question.who} asks{more}: {question.tool} {one_line(question.shown)}"
    always = f" · a always: {one_line(question.rule)}" if question.rule else ""
    keys = f"  y allow once · n deny{always} · anything else is a message"
    return [(Piece(cut(head, width), "bold yellow"),), (Piece(cut(keys, width), "yellow"),)]


def below(bottom: Bottom, width: int, height: int) -> list[Line]:
    live = [task for task in in_order(bottom.tasks) if state(task) in ("waiting", "running", "pending")]
    room = 1 if height < SMALL else max(2, height // 5)
    shown = live if len(live) <= room else live[: room - 1]
    lines = [_worker(task, width) for task in shown]
    if len(shown) < len(live):
        lines.append((Piece(cut(f"  {_counted(live[len(shown) :])}  /tasks", width), "dim"),))
    return [*lines, _status(bottom, live, width)]


def _worker(task: Mapping[str, Any], width: int) -> Line:
    sign, style = SIGNS[state(task)]
    name = cut(one_line(task["name"] or task["agent"] or task["id"]), NAME)
    numbers = [span(task["duration_ms"]), *([count(task["total_tokens"]), cost_of(task)] if width >= NARROW else [])]
    right = "  ".join(f"{number:>{size}}" for number, size in zip(numbers, (5, 5, 7), strict=False))
    now = one_line(task.get("asks") or now_words(task) or task["description"] or "")
    room = max(0, width - NAME - 4 - columns(right) - 1)
    middle = cut(now, room)
    pad = " " * (room - columns(middle))
    return (
        Piece(f"{sign} ", style),
        Piece(name + " " * (NAME - columns(name)) + " "),
        Piece(f"{middle}{pad} {right}", "dim"),
    )


def _counted(tasks: Sequence[Mapping[str, Any]]) -> str:
    """How many there are of each state: `3 running, 1 pending`."""
    states = [state(task) for task in tasks]
    return ", ".join(f"{states.count(one)} {one}" for one in dict.fromkeys(states))


def _status(bottom: Bottom, live: Sequence[Mapping[str, Any]], width: int) -> Line:
    if bottom.is_leaving:
        first = Piece("○ leaving when all has ended", "green")
    elif bottom.doing is None:
        first = Piece("○ your turn", "green")
    else:
        first = Piece(f"● {one_line(bottom.doing)} {span(round(bottom.since * 1000))}", "cyan")
    hint = "Esc stops" if bottom.doing is not None else "/help"
    facts = [*([_counted(live)] if live else []), hint, money(bottom.cost), *bottom.facts]
    text = cut(first.text, width)
    for fact in facts:
        more = f"  {one_line(fact)}"
        if columns(text) + columns(more) <= width:
            text += more
    return (Piece(text[: len(first.text)], first.style), Piece(text[len(first.text) :], "dim"))


def wrapped(text: str, width: int) -> list[str]:
    """`text`, one line of it, in rows of at most `width` columns."""
    rows, row, used = [], "", 0
    for char in text:
        size = columns(char)
        if used + size > width and row:
            rows.append(row)
            row, used = "", 0
        row, used = row + char, used + size
    return [*rows, row] if row else rows
