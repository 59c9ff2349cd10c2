"""From values to what a terminal shows: pure functions, no input or output.

A `Line` is a tuple of `Piece`s (text and style); a `Grid` is rows under titles, laid out by `lay_out` for a width, or for
none (a pipe: nothing is cut). Values are the documented JSON objects of `coordinator/views.py`, so that the screen and
`--json` never differ. Every text that a model or a tool wrote passes `literal` or `one_line`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from msgspec import Struct

from coordinator.views.terminal_text import columns, cut, literal, one_line
from coordinator.views.values import state
from worker_agent.words import counted

Json = Mapping[str, Any]

SIGNS = {
    "pending": ("◌", "dim"),
    "running": ("●", "cyan"),
    "waiting": ("▲", "bold yellow"),
    "completed": ("✔", "green"),
    "failed": ("✘", "red"),
    "killed": ("■", "yellow"),
    "interrupted": ("?", "magenta"),
}


class Piece(NamedTuple):
    text: str
    style: str = ""


Line = tuple[Piece, ...]


class Column(NamedTuple):
    """`keep` is the rank by which columns go when the terminal is narrow: 0 never goes, the highest goes first. A
    `flexible` column is cut before any goes, down to `least` columns of the terminal."""

    title: str
    keep: int = 0
    right: bool = False
    flexible: bool = False
    least: int = 12


class Grid(Struct, frozen=True):
    columns: Sequence[Column]
    rows: Sequence[Sequence[Piece]]


def lay_out(grid: Grid, width: int | None) -> list[Line]:
    """The grid as lines, titles first; at most `width` columns wide, as far as the columns that must stay allow."""
    wanted = [
        max([columns(column.title), *(columns(row[i].text) for row in grid.rows)]) for i, column in enumerate(grid.columns)
    ]
    shown = [i for i, _ in enumerate(grid.columns) if wanted[i]]
    while width is not None and _least(grid, wanted, shown) > width:
        loose = max(shown, key=lambda i: grid.columns[i].keep)
        if not grid.columns[loose].keep:
            break
        shown.remove(loose)
    widths = _widths(grid, wanted, shown, width)
    titles = [Piece(column.title, "bold") for column in grid.columns]
    return [_row(grid, widths, row) for row in (titles, *grid.rows)]


def _least(grid: Grid, wanted: Sequence[int], shown: Sequence[int]) -> int:
    small = (min(wanted[i], grid.columns[i].least) if grid.columns[i].flexible else wanted[i] for i in shown)
    return sum(small) + 2 * (len(shown) - 1)


def _widths(grid: Grid, wanted: Sequence[int], shown: Sequence[int], width: int | None) -> dict[int, int]:
    widths = {i: wanted[i] for i in shown}
    over = 0 if width is None else sum(widths.values()) + 2 * (len(shown) - 1) - width
    for i in (i for i in reversed(shown) if grid.columns[i].flexible):
        give = min(max(over, 0), widths[i] - min(widths[i], grid.columns[i].least))
        widths[i] -= give
        over -= give
    return widths


def _row(grid: Grid, widths: Mapping[int, int], row: Sequence[Piece]) -> Line:
    pieces: list[Piece] = []
    last = max(widths)
    for i, width in widths.items():
        text = cut(row[i].text, width)
        pad = " " * (width - columns(text))
        pieces.append(Piece(pad + text if grid.columns[i].right else text + (pad if i != last else ""), row[i].style))
        if i != last:
            pieces.append(Piece("  "))
    return tuple(pieces)


def span(milliseconds: int | None) -> str:
    """A duration for a table: `0:42`, `1:02:03`, `3d 4h`."""
    if milliseconds is None:
        return ""
    seconds = milliseconds // 1000
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86_400
    if days:
        return f"{days}d {hours % 24}h"
    return f"{hours}:{minutes % 60:02}:{seconds % 60:02}" if hours else f"{minutes}:{seconds % 60:02}"


def count(number: int | None) -> str:
    """A number of tokens: `950`, `31k`, `1.2M`."""
    if number is None:
        return ""
    if number < 1_000:
        return str(number)
    return f"{number / 1000:.0f}k" if number < 999_500 else f"{number / 1_000_000:.1f}M"


def money(usd: float | None) -> str:
    """USD, or `?` where a price is unknown: never as 0."""
    return "?" if usd is None else f"${usd:.2f}" if usd >= 0.005 or usd == 0 else f"${usd:.4f}"


def cost_of(task: Json) -> str:
    """What a task has cost; nothing is said before its first call."""
    uncounted = task["type"] == "local_agent" and (task["status"] == "completed" or task["tool_uses"])
    return money(task["cost_usd"]) if task["total_tokens"] or task["cost_usd"] is not None or uncounted else ""


def when(iso: str | None) -> str:
    """A moment in the person's own time zone, to the minute."""
    return datetime.fromisoformat(iso).astimezone().strftime("%Y-%m-%d %H:%M") if iso else ""


def seconds_of(iso: str) -> float:
    """An ISO 8601 moment as seconds since the epoch."""
    return datetime.fromisoformat(iso).timestamp()


def status(value: str) -> Piece:
    sign, style = SIGNS.get(value, ("·", ""))
    return Piece(f"{sign} {value}", style)


TASK_COLUMNS = (
    Column("ID"),
    Column("STATUS"),
    Column("NAME", keep=7, flexible=True, least=6),
    Column("DESCRIPTION", flexible=True, keep=1),
    Column("AGENT", keep=9),
    Column("MODEL", keep=8),
    Column("AGE", keep=3, right=True),
    Column("IDLE", keep=5, right=True),
    Column("TOOLS", keep=6, right=True),
    Column("TOKENS", keep=5, right=True),
    Column("COST", keep=4, right=True),
    Column("SESSION", keep=10),
    Column("NOW", keep=2, flexible=True),
)


def task_grid(tasks: Sequence[Json]) -> Grid:
    return Grid(TASK_COLUMNS, [_task_row(task) for task in tasks])


def _task_row(task: Json) -> list[Piece]:
    return [
        Piece(task["id"], "bold"),
        status(state(task)),
        Piece(one_line(task["name"] or "")),
        Piece(one_line(task["description"] or "")),
        Piece(one_line(task["agent"] or "")),
        Piece(one_line(task["model"] or "")),
        Piece(span(task["duration_ms"])),
        Piece(span(task["idle_ms"])),
        Piece(str(task["tool_uses"])),
        Piece(count(task["total_tokens"])),
        Piece(cost_of(task)),
        Piece(task["session_id"]),
        Piece(one_line(now_words(task)), "dim"),
    ]


def now_words(task: Json) -> str:
    """What a task does now, what it waits for, or why it ended."""
    if state(task) == "waiting":
        return f"needs approval: {task.get('needs_approval')}"
    if task["status"] in ("pending", "running", "interrupted"):
        return task["last_activity"] or ""
    return task["error"] or (task["end_reason"] if task["status"] != "completed" else "") or ""


def task_detail(task: Json) -> list[Line]:
    """Everything `tasks show` knows, field by field, then the long texts."""
    long = ("prompt", "result", "activities")
    lines = fields((key, value) for key, value in task.items() if key not in long)
    for key in long:
        value = task.get(key)
        text = "\n".join(f"- {item}" for item in value) if isinstance(value, list) else value
        if text:
            lines += [(), (Piece(f"{key}:", "bold"),), *literal_lines(text)]
    return lines


def fields(pairs: Iterable[tuple[str, Any]]) -> list[Line]:
    """Names and values, one pair a line; what is None or empty is left out."""
    known = [(name, value) for name, value in pairs if value not in (None, "", [], {})]
    widest = max((len(name) for name, _ in known), default=0)
    return [(Piece(f"{name}:".ljust(widest + 2), "bold"), Piece(one_line(str(value)))) for name, value in known]


def literal_lines(text: str) -> list[Line]:
    return [(Piece(line),) for line in literal(text).split("\n")]


LOG_SIGNS = {
    "text": ("", ""),
    "prompt": ("▶ ", "bold"),
    "tool": ("→ ", "cyan"),
    "result": ("← ", "dim"),
    "error": ("✘ ", "red"),
    "thinking": ("… ", "italic dim"),
    "output": ("", ""),
}
RESULT_LINES = 12  # of a tool's result; the rest is counted


def log_lines(kind: str, text: str, head: str) -> list[Line]:
    """One part of a message in a log; `head` (time, id) stands before every line of it."""
    sign, style = LOG_SIGNS.get(kind, ("· ", "yellow"))
    lines = literal(text).strip("\n").split("\n")
    if kind in ("result", "error") and len(lines) > RESULT_LINES:
        lines = [*lines[:RESULT_LINES], f"… {counted(len(lines) - RESULT_LINES, 'more line')}"]
    before = Piece(f"{head} " if head else "", "dim")
    indent = " " * len(sign)
    return [(before, Piece((indent if i else sign) + line, style)) for i, line in enumerate(lines)]


def tree_lines(session_id: str, goal: str, rows: Sequence[tuple[Json, int]], width: int | None) -> list[Line]:
    """A session's tasks, each below the one that asked for it."""
    lines: list[Line] = [(Piece(session_id, "bold"), Piece(f"  {one_line(goal)}"))]
    for i, (task, depth) in enumerate(rows):
        after = [later for _, later in rows[i + 1 :]]
        nearer = next((later for later in after if later <= depth), 0)
        lines.append((Piece("   " * (depth - 1) + ("├─ " if nearer == depth else "└─ "), "dim"), *task_line(task)))
    return lines if width is None else [fit(line, width) for line in lines]


LANE_SIGNS = {
    "model": ("█", "cyan"),
    "tool": ("▒", "green"),
    "waiting": ("▲", "bold yellow"),
    "queued": ("·", "dim"),
    "idle": (" ", ""),
}
LANE_NAME = 24  # columns


def timeline_lines(lanes: Sequence[Json], width: int) -> list[Line]:
    """A lane a line over one axis of time, and what the signs mean. In each cell stands what filled most of it."""
    start, end = min(lane["start"] for lane in lanes), max(lane["end"] for lane in lanes)
    cells = max(10, width - LANE_NAME - 2)
    step = max(end - start, 0.001) / cells
    lines: list[Line] = [(Piece(" " * (LANE_NAME + 2)), *_axis(end - start, cells))]
    for lane in lanes:
        sign, style = SIGNS.get(lane["status"], ("·", "dim"))
        name = cut("  " * lane["depth"] + f"{lane['id']} {one_line(lane['name'])}", LANE_NAME - 2)
        bar = (_cell(lane["segments"], start + i * step, start + (i + 1) * step) for i in range(cells))
        lines.append(
            (Piece(f"{sign} ", style), Piece(name + " " * (LANE_NAME - columns(name))), *(Piece(*cell) for cell in bar))
        )
    shown = "  ".join(f"{sign} {kind}" for kind, (sign, _) in LANE_SIGNS.items() if kind != "idle")
    return [*lines, (Piece(" " * (LANE_NAME + 2) + shown, "dim"),)]


def _axis(seconds: float, cells: int) -> Line:
    end = span(round(seconds * 1000))
    return (Piece("0:00" + " " * max(1, cells - 4 - len(end)) + end, "dim"),)


def _cell(segments: Sequence[Json], start: float, end: float) -> tuple[str, str]:
    filled: dict[str, float] = {}
    for segment in segments:
        share = min(segment["end"], end) - max(segment["start"], start)
        if share > 0:
            filled[segment["kind"]] = filled.get(segment["kind"], 0.0) + share
    return LANE_SIGNS[max(filled, key=lambda kind: filled[kind])] if filled else (" ", "")


def comparison_grid(sessions: Sequence[Json], names: Sequence[str]) -> Grid:
    """Two sessions, a field a row."""
    titles = [Column(""), *(Column(session["id"], flexible=True, least=20) for session in sessions)]
    return Grid(titles, [[Piece(name), *(Piece(_compared(name, session[name])) for session in sessions)] for name in names])


def _compared(name: str, value: Any) -> str:
    if name == "cost_usd":
        return money(value)
    if name == "duration_ms":
        return span(value)
    return one_line(str("" if value is None else value))


def pairs_grid(pairs: Sequence[Json]) -> Grid:
    """The tasks of two sessions, those that are the same work in one row."""
    titles = [Column("TASK", flexible=True, least=20), *(Column(side, flexible=True, least=24) for side in ("A", "B"))]
    return Grid(titles, [[Piece(_work(pair)), _side(pair["a"]), _side(pair["b"])] for pair in pairs])


def _work(pair: Json) -> str:
    task = pair["a"] or pair["b"]
    return one_line(task["name"] or task["description"] or task["id"])


def _side(task: Json | None) -> Piece:
    if task is None:
        return Piece("–", "dim")
    sign, style = SIGNS.get(task["status"], ("·", ""))
    words = [
        f"{sign} {task['status']}",
        span(task["duration_ms"]),
        counted(task["tool_uses"], "tool"),
        count(task["total_tokens"]),
        cost_of(task),
    ]
    return Piece("  ".join(word for word in words if word), style)


def diff_lines(lines: Iterable[str]) -> list[Line]:
    return [(Piece(literal(line), _diff_style(line)),) for line in lines]


SESSION_COLUMNS = (
    Column("ID"),
    Column("STATE"),
    Column("UPDATED", keep=3),
    Column("TASKS", keep=4, right=True),
    Column("COST", keep=2, right=True),
    Column("MODEL", keep=6),
    Column("GOAL", flexible=True),
    Column("DIRECTORY", keep=5, flexible=True),
)
SESSION_STYLES = {"working": "cyan", "waiting for you": "yellow", "failed": "red", "stuck": "magenta"}


def session_grid(sessions: Sequence[Json]) -> Grid:
    return Grid(SESSION_COLUMNS, [_session_row(session) for session in sessions])


def _session_row(session: Json) -> list[Piece]:
    state = session["state"]
    return [
        Piece(session["id"], "bold"),
        Piece(state, SESSION_STYLES.get(state, "")),
        Piece(when(session["updated_at"])),
        Piece(str(session["tasks"])),
        Piece(money(session["cost_usd"])),
        Piece(one_line(session["model"] or "")),
        Piece(one_line(session["title"] or session["goal"] or "", 200)),
        Piece(one_line(session["cwd"] or "")),
    ]


COST_COLUMNS = ("calls", "input_tokens", "cache_write_tokens", "cache_read_tokens", "output_tokens")


def cost_grid(by: str, rows: Sequence[Json]) -> Grid:
    """Sums under their key, and one line of totals when there are several."""
    total: dict[str, Any] = {name: sum(row[name] or 0 for row in rows) for name in COST_COLUMNS}
    known = all(row["cost_usd"] is not None for row in rows)
    total |= {by: "total", "cost_usd": sum(row["cost_usd"] for row in rows) if known else None}
    titles = [Column(by.upper()), *(Column(name.removesuffix("_tokens").replace("_", " ").upper(), right=True, keep=rank)
              for rank, name in enumerate(COST_COLUMNS, start=1)), Column("COST", right=True)]  # fmt: skip
    shown = [*rows, total] if len(rows) > 1 else rows
    return Grid(titles, [[Piece(one_line(str(row[by]))), *(Piece(count(row[n])) for n in COST_COLUMNS), Piece(money(row["cost_usd"]))]
                         for row in shown])  # fmt: skip


AGENT_COLUMNS = (
    Column("NAME"),
    Column("MODEL", keep=4),
    Column("TOOLS", keep=3, flexible=True),
    Column("DESCRIPTION", flexible=True, least=20),
    Column("SOURCE", keep=5, flexible=True),
)


def agent_grid(agents: Sequence[Json]) -> Grid:
    return Grid(AGENT_COLUMNS, [_agent_row(agent) for agent in agents])


def _agent_row(agent: Json) -> list[Piece]:
    tools = "all" if agent["tools"] is None else ", ".join(agent["tools"])
    cells = (agent["name"], agent["model"] or "inherit", tools, agent["description"], agent["source"] or "built in")
    return [Piece(one_line(cell)) for cell in cells]


SERVER_COLUMNS = (
    Column("NAME"),
    Column("STATUS"),
    Column("SCOPE", keep=4),
    Column("TYPE", keep=5),
    Column("RUNS OR REACHES", flexible=True, least=20),
)


def server_grid(servers: Sequence[Json]) -> Grid:
    return Grid(SERVER_COLUMNS, [_server_row(server) for server in servers])


def _server_row(server: Json) -> list[Piece]:
    return [Piece(one_line(server[key])) for key in ("name", "status", "scope", "type", "target")]


SKILL_COLUMNS = (
    Column("NAME"),
    Column("FROM", keep=4),
    Column("DESCRIPTION", flexible=True, least=20),
    Column("SOURCE", keep=4, flexible=True),
)


def skill_grid(skills: Sequence[Json]) -> Grid:
    return Grid(SKILL_COLUMNS, [_skill_row(skill) for skill in skills])


def _skill_row(skill: Json) -> list[Piece]:
    cells = (skill["name"], skill["origin"], skill["description"], skill["source"])
    return [Piece(one_line(cell)) for cell in cells]


PLUGIN_COLUMNS = (
    Column("NAME"),
    Column("VERSION", keep=5),
    Column("BRINGS", flexible=True, least=20),
    Column("SOURCE", keep=4, flexible=True),
)


def plugin_grid(plugins: Sequence[Json]) -> Grid:
    return Grid(PLUGIN_COLUMNS, [_plugin_row(plugin) for plugin in plugins])


def _plugin_row(plugin: Json) -> list[Piece]:
    kinds = (("skills", "skill"), ("agents", "agent"), ("hooks", "hook event"), ("mcp_servers", "MCP server"))
    brings = ", ".join(counted(len(plugin[key]), noun) for key, noun in kinds if plugin[key])
    return [Piece(one_line(cell)) for cell in (plugin["name"], plugin["version"], brings or "nothing", plugin["source"])]


SHOWN_LINES = 40  # of a call that waits; the rest is counted


def approval(row: Json, now: float) -> list[Line]:
    """One waiting call: who asks for what since when, the call in full, and how it is answered."""
    who = f"{row['agent']} ({row['task_id']})" if row["task_id"] else row["agent"]
    age = span(round(max(0.0, now - seconds_of(row["asked_at"])) * 1000))
    head: Line = (
        Piece(f"▲ {row['id']}", "bold yellow"),
        Piece(f"  {one_line(who)}  {row['tool']}  "),
        Piece(f"waits {age}", "dim"),
    )
    text = literal(row["shown"]).split("\n")
    more = [f"… {counted(len(text) - SHOWN_LINES, 'more line')}; --json has all"] if len(text) > SHOWN_LINES else []
    lines: list[Line] = [head, *((Piece(f"    {line}", _diff_style(line)),) for line in (*text[:SHOWN_LINES], *more))]
    lines.append((Piece(f"  {one_line(row['reason'])}", "dim"),))
    if row["suggested_rule"]:
        lines.append((Piece(f"  --always would allow: {one_line(row['suggested_rule'])}", "dim"),))
    return lines


def _diff_style(line: str) -> str:
    return {"+": "green", "-": "red"}.get(line[:1], "")


FINDING_STYLES = {"ok": ("✔", "green"), "note": ("·", "yellow"), "problem": ("✘", "red")}


def finding_line(name: str, state: str, text: str) -> Line:
    """One line of `doctor`."""
    sign, style = FINDING_STYLES[state]
    return (Piece(f"{sign} ", style), Piece(f"{name:<12}"), Piece(f"{state:<8}", style), Piece(one_line(text)))


def table(rows: Sequence[Json]) -> Grid:
    """Rows of one shape under their own keys, numbers to the right, nothing cut."""
    names = list(rows[0]) if rows else []
    right = {name for name in names if all(isinstance(row[name], (int, float)) for row in rows)}
    body = [[Piece("" if row[name] is None else one_line(str(row[name]))) for name in names] for row in rows]
    return Grid([Column(name, right=name in right, flexible=name not in right) for name in names], body)


def task_line(task: Json) -> Line:
    """One task in a tree."""
    sign, style = SIGNS.get(state(task), ("·", ""))
    name = one_line(task["name"] or task["agent"] or "")
    numbers = f"{span(task['duration_ms']):>7} {task['tool_uses']:>4} {'tool ' if task['tool_uses'] == 1 else 'tools'} {count(task['total_tokens']):>5} {cost_of(task):>7}"
    return (
        Piece(f"{sign} {task['id']} ", style),
        Piece(f"{cut(name, 10):<10} {cut(one_line(task['description'] or ''), 30):<30} "),
        Piece(numbers, "dim"),
        Piece(f"  {one_line(now_words(task))}"),
    )


def fit(line: Line, width: int) -> Line:
    """`line` cut to `width` columns."""
    fitted, left = [], width
    for piece in line:
        text = cut(piece.text, left)
        left -= columns(text)
        fitted.append(Piece(text, piece.style))
        if left <= 0:
            break
    return tuple(fitted)
