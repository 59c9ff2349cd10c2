"""The live tree of a run as lines: pure, from values to what fits a terminal.

1. Who waits for a person stands first, then what runs, what is queued, what ended. What does not fit is counted by state.
2. What a worker does now is cut last: of the numbers turns go first, then tokens, cost, and age, until it has the room it
   wants or `LEAST` columns of it.
3. What models and tools wrote passes `one_line`. No line is wider than the terminal, no frame higher than it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from coordinator.cli.render import SIGNS, Line, Piece, cost_of, count, fit, money, now_words, span
from coordinator.views.terminal_text import columns, cut, one_line
from coordinator.views.values import ORDER, state

Json = Mapping[str, Any]

WORDS = {
    "waiting": "waiting for you",
    "running": "working",
    "pending": "queued",
    "interrupted": "lost",
    "failed": "failed",
    "killed": "stopped",
    "completed": "done",
}
AWAY = ("TURNS", "TOKENS", "COST", "AGE")  # the numbers, as they go when the terminal is narrow
LEAST = 24  # columns of what a worker does now, before any number is shown
NAME = 16  # columns of a name at most, on a terminal of `WIDE` columns; else ten
WIDE = 60
TITLED = 16  # lines of a terminal that has room for titles
HEADED = 12  # lines of a terminal that has room for what the run is
SILENT = 60_000  # milliseconds without a sign of life that are said
BAR = 10  # cells of the budget's bar
SAID = 2000  # characters of a text of which one line is shown


class Row(NamedTuple):
    """One task: its documented object, what it does now in words, and how many answers its model gave (None: not known)."""

    task: Json
    now: str
    turns: int | None = None


class Spent(NamedTuple):
    """What a session has used and may use: USD (None: a price is unknown, or no limit) and output tokens."""

    usd: float | None
    tokens: int
    of_usd: float | None = None
    of_tokens: int | None = None

    @property
    def share(self) -> float | None:
        """The larger share of the limits that is used; None without a limit."""
        shares = [self.usd / self.of_usd] if self.of_usd and self.usd is not None else []
        shares += [self.tokens / self.of_tokens] if self.of_tokens else []
        return max(shares, default=None)


class Scene(Struct, frozen=True, kw_only=True):
    """All that one frame shows. `counts` are of all tasks by state, `rows` as many of them as may fit, in order; `told` are
    lines below the tree, `said` the last words of the coordinator."""

    head: str
    counts: Mapping[str, int]
    rows: Sequence[Row]
    spent: Spent | None = None
    told: Sequence[str] = ()
    said: str = ""


def in_scene(tasks: Sequence[Json], room: int) -> tuple[dict[str, int], list[Row]]:
    """The counts and rows of tasks that are only known as objects."""
    ordered = sorted(tasks, key=lambda task: ORDER.get(state(task), 9))
    return dict(Counter(state(task) for task in tasks)), [Row(task, words_of(task)) for task in ordered[:room]]


def words_of(task: Json, doing: str = "") -> str:
    """What a task does now, what it waits for, or how it ended, on one line; `doing` is known better than what is stored."""
    return one_line(_words_of(task, doing)[:SAID])


def _words_of(task: Json, doing: str) -> str:
    what = task["description"] or ""
    match state(task):
        case "waiting":
            return doing or now_words(task)
        case "running":
            words = doing or task["last_activity"] or what
            idle = task["idle_ms"] or 0
            return f"silent for {span(idle)}: {words}" if idle >= SILENT else words
        case "pending":
            return what
        case "interrupted":
            return f"nobody drives it: {task['last_activity'] or what}"
        case _:
            why = now_words(task)
            return f"{what}: {why}" if why else what


def scene_lines(scene: Scene, width: int, height: int) -> list[Line]:
    """A frame of at most `height - 1` lines: the cursor stands below it."""
    top: list[Line] = [(Piece(scene.head, "bold"),)] if height >= HEADED else []
    if scene.counts or scene.spent:
        top.append(summary(scene.counts, scene.spent, width))
    below: list[Line] = [(Piece(one_line(each[:SAID]), "dim"),) for each in scene.told[-(3 if height >= TITLED else 1) :]]
    if scene.said.strip():
        below.append((Piece(one_line(scene.said[-SAID:]), "italic"),))
    room = max(1, height - 1 - len(top) - len(below))
    titled = height >= TITLED and width >= WIDE and len(scene.rows) > 0
    return [fit(line, width) for line in (*top, *_tree(scene, width, room - titled, titled=titled), *below)][
        : max(1, height - 1)
    ]


def _tree(scene: Scene, width: int, room: int, *, titled: bool) -> list[Line]:
    total = sum(scene.counts.values())
    shown = scene.rows[: room if total <= room else max(1, room - 1)]
    layout = _Layout.of(shown, width)
    lines = [layout.titles()] if titled else []
    for i, row in enumerate(shown):
        branch = "└─ " if i == total - 1 else "├─ "
        lines.append((Piece(branch, "dim"), *layout.line(row)))
    left = Counter(scene.counts) - Counter(state(row.task) for row in shown)
    if left:
        kinds = ", ".join(f"{left[kind]:,} {WORDS[kind]}" for kind in ORDER if left[kind])
        lines.append((Piece(f"└─ … {sum(left.values()):,} more: {kinds}", "dim"),))
    return lines


def summary(counts: Mapping[str, int], spent: Spent | None, width: int) -> Line:
    """How many tasks are in which state, and what the session has used; what is not there is not said."""
    pieces: list[Piece] = []
    for kind in ORDER:
        if counts.get(kind):
            sign, style = SIGNS[kind]
            pieces += [Piece(f"{sign} {counts[kind]:,} {WORDS[kind]}", style), Piece("  ")]
    used = sum(columns(piece.text) for piece in pieces)
    for words in _spent(spent):
        if used + sum(columns(piece.text) for piece in words) <= width:
            return (*pieces, *words)
    return tuple(pieces[:-1])


def _spent(spent: Spent | None) -> list[list[Piece]]:
    """What is used of the budget, in the forms it may be said, the longest first."""
    if spent is None:
        return []
    by_tokens = spent.of_usd is None and spent.of_tokens is not None
    used = f"{count(spent.tokens)} tokens" if by_tokens else money(spent.usd)
    if (share := spent.share) is None:
        return [[Piece(used, "bold")]]
    limit = count(spent.of_tokens) if by_tokens else money(spent.of_usd)
    style = "red" if share >= 0.9 else "yellow" if share >= 0.7 else "green"
    full = min(BAR, round(share * BAR))
    words = [Piece(f"{used} of {limit} ", "bold")]
    return [
        [*words, Piece("█" * full, style), Piece("░" * (BAR - full), "dim"), Piece(f" {share:.0%}")],
        [*words, Piece(f"{share:.0%}", style)],
        [Piece(used, "bold")],
    ]


class _Layout(Struct, frozen=True):
    """How wide what is, for one frame. `numbers` are those that are shown, with their widths."""

    name: int
    now: int
    numbers: Mapping[str, int]

    @classmethod
    def of(cls, rows: Sequence[Row], width: int) -> _Layout:
        name = min(max((columns(_name(row.task)) for row in rows), default=0), NAME if width >= WIDE else 10)
        wanted = max((columns(row.now) for row in rows), default=0)
        cells = [_numbers(row) for row in rows]
        numbers = {
            title: max(len(title), *(len(one[title]) for one in cells))
            for title in ("AGE", "TURNS", "TOKENS", "COST")
            if any(one[title] for one in cells)
        }
        left = width - 5 - name - 1  # the branch and the sign stand before
        for title in AWAY:
            if left - _taken(numbers) >= min(wanted, LEAST):
                break
            numbers.pop(title, None)
        return cls(name, max(1, left - _taken(numbers)), numbers)

    def titles(self) -> Line:
        head = f"{'':5}{'NAME':<{self.name}} {'NOW':<{self.now}}"
        return (Piece(head + "".join(f"  {title:>{width}}" for title, width in self.numbers.items()), "dim"),)

    def line(self, row: Row) -> Line:
        kind = state(row.task)
        sign, style = SIGNS.get(kind, ("·", ""))
        cells = _numbers(row)
        quiet = "dim" if kind in ("completed", "pending", "killed") else ""
        return (
            Piece(f"{sign} ", style),
            Piece(_padded(_name(row.task), self.name) + " ", "bold" if kind == "waiting" else quiet),
            Piece(_padded(row.now, self.now), "yellow" if kind == "waiting" else "red" if kind == "failed" else quiet),
            Piece("".join(f"  {cells[title]:>{width}}" for title, width in self.numbers.items()), "dim"),
        )


def _taken(numbers: Mapping[str, int]) -> int:
    return sum(width + 2 for width in numbers.values())


def _padded(text: str, width: int) -> str:
    text = cut(text, width)
    return text + " " * (width - columns(text))


def _name(task: Json) -> str:
    """What to call a task when writing to it or ending it: its name, else its id."""
    return one_line(str(task["name"] or task["id"])[:SAID])


def _numbers(row: Row) -> dict[str, str]:
    task = row.task
    turns = row.turns if row.turns is not None else task["tool_uses"] if task["type"] != "local_agent" else None
    return {
        "AGE": span(task["duration_ms"]),
        "TURNS": str(turns) if turns else "",
        "TOKENS": count(task["total_tokens"]) if task["total_tokens"] else "",
        "COST": cost_of(task),
    }
