"""The live tree of a run: what a frame shows on terminals of several sizes, and how it is drawn in place."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.cli import tree
from coordinator.cli.console import Console
from coordinator.cli.doing import Doing
from coordinator.cli.live import LiveView
from coordinator.cli.run_views import Started
from coordinator.cli.tree import Row, Scene, Spent, scene_lines
from coordinator.observed import CallWaits, Observed, TaskChanged
from coordinator.views.terminal_text import columns
from coordinator.views.values import task_json
from tasks.ids import TaskType
from tasks.records import ApprovalRecord, ApprovalStatus, TaskRecord
from tasks.states import TaskStatus
from tests.cli.test_render import task, text
from worker_agent.events import InputDelta, RequestStarted, TextDelta, ThinkingDelta, ToolStarted
from worker_agent.structs import replace

SIZES = [(80, 24), (40, 10), (20, 5), (200, 60)]


def scene(rows: list[dict[str, Any]], **more: Any) -> Scene:
    counts, shown = tree.in_scene(rows, 1000)
    return Scene(**{"head": "session s  model m", "counts": counts, "rows": shown} | more)


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("number", [0, 1, 20, 1000])
def test_a_frame_fits_its_terminal_and_counts_what_it_leaves_out(width: int, height: int, number: int) -> None:
    rows = [task(id=f"a{n:08}", name=f"worker-{n}", status="running" if n % 2 else "completed") for n in range(number)]
    lines = text(scene_lines(scene(rows, said="so\nit is", told=["one", "two"]), width, height))
    assert len(lines) < height
    assert all(columns(line) <= width for line in lines)
    shown = sum("worker-" in line for line in lines)
    left = re.search(r"… ([\d,]+) more", "\n".join(lines))
    assert shown + (int(left[1].replace(",", "")) if left else 0) == number
    first = next((line for line in lines if "worker-" in line), "")
    assert number < 2 or "●" in first, "what runs stands before what has ended"


@pytest.mark.parametrize(("width", "kept"), [(100, {"AGE", "TURNS", "TOKENS", "COST"}), (60, {"AGE"}), (40, set())])
def test_numbers_go_before_what_a_worker_does_now_is_cut(width: int, kept: set[str]) -> None:
    rows = [Row(task(name="imports"), "Bash git bisect run scripts/start_time.sh --all", 12)]
    lines = text(scene_lines(Scene(head="", counts={"running": 1}, rows=rows), width, 24))
    row = next(line for line in lines if "imports" in line)
    shown = {
        title for title, value in (("AGE", "0:42"), ("TURNS", " 12"), ("TOKENS", "31k"), ("COST", "$0.08")) if value in row
    }
    assert shown >= kept and (kept or not shown)
    assert "Bash git bisect run scr" in row


def test_who_waits_for_a_person_stands_first_and_is_told_apart_without_colour() -> None:
    rows = [task(id=f"a{n}", name=f"n{n}") for n in range(30)] + [task(id="w", name="asker", needs_approval="p1234")]
    lines = text(scene_lines(scene(rows), 40, 10))
    assert "▲ 1 waiting for you" in lines[0]
    assert "▲ asker" in lines[1] and "needs approval" in lines[1]


def test_the_budget_is_a_bar_where_there_is_room_and_a_share_where_there_is_not() -> None:
    spent = Spent(1.0, 5_000, 4.0)
    assert "$1.00 of $4.00 ██░░░░░░░░ 25%" in text([tree.summary({"running": 3}, spent, 80)])[0]
    assert text([tree.summary({"running": 3}, spent, 40)])[0] == "● 3 working  $1.00 of $4.00 25%"
    assert "5k tokens of 10k" in text([tree.summary({}, Spent(None, 5_000, None, 10_000), 80)])[0]


@given(st.text(max_size=80), st.text(max_size=80), st.integers(10, 120), st.integers(3, 40))
def test_whatever_a_worker_writes_a_frame_holds_its_lines(name: str, now: str, width: int, height: int) -> None:
    lines = text(scene_lines(scene([task(name=name, last_activity=now)] * 3, said=now, told=[name]), width, height))
    assert len(lines) < height
    assert not any(set(line) & {"\n", "\x1b", "\r"} or columns(line) > width for line in lines)


def test_what_an_agent_does_is_told_in_words_while_the_model_writes() -> None:
    doing, seen = Doing(), []
    for event in (RequestStarted("m"), ThinkingDelta("hm"), TextDelta("First. Then I "), TextDelta("look."), InputDelta(900),
                  ToolStarted("t", "Grep", {}, 'Grep "import" src'), RequestStarted("m", attempt=2)):  # fmt: skip
        doing.on(event)
        seen.append(doing.words)
    assert seen == ["asks the model", "thinks", "writes: Then I", "writes: Then I look.", "writes a call", 'Grep "import" src',
                    "asks the model, try 2"]  # fmt: skip


class Screen(io.StringIO):
    """A terminal that keeps what is on it: enough of one for what a region writes."""

    encoding = "utf-8"

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[str] = [""]
        self.at = 0
        self.written = 0

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.written += len(text)
        for control, plain in re.findall(r"(\x1b\[[0-9;?]*[A-Za-z]|\r|\n)|([^\x1b\r\n]+)", text):
            self._take(control, plain)
        return len(text)

    def _take(self, control: str, plain: str) -> None:
        if plain:
            self.rows[self.at] += plain
        elif control == "\n" or control.endswith("B"):
            self.at += 1
            self.rows += [""] * (self.at + 1 - len(self.rows))
        elif control.endswith("A"):
            self.at -= int(control[2:-1])
            assert self.at >= 0
        elif control == "\x1b[2K":
            self.rows[self.at] = ""
        elif control == "\x1b[J":
            self.rows = [*self.rows[: self.at], ""]


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    for name, value in (("TERM", "xterm"), ("COLUMNS", "80"), ("LINES", "24")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Screen()


def live(screen: Screen, monkeypatch: pytest.MonkeyPatch, **started: Any) -> LiveView:
    monkeypatch.setattr("coordinator.cli.live.FRAME", 0.0)
    view = LiveView(Console(screen, screen))
    view.started(Started(session_id="s1", cwd="/", model="m", **started))
    return view


def task_record(**changes: Any) -> TaskRecord:
    """A record as a new task has it."""
    unknown = dict.fromkeys(TaskRecord.__struct_fields__)
    known = {"agent_id": "a", "session_id": "s1", "type": TaskType.LOCAL_AGENT, "description": "look", "created_at": 1.0, "activities": (),
             "tool_uses": 0, "input_tokens": 0, "output_tokens": 0, "attempt": 1}  # fmt: skip
    return TaskRecord(**unknown | known | changes)


def changed(record: TaskRecord) -> Observed:
    return Observed("s1", record.id, TaskChanged(record))


def test_transitions_stay_above_the_tree_and_nothing_grows_with_output(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    view = live(screen, monkeypatch, spent=lambda: Spent(0.5, 10, 2.0))
    begun = task_record(id="a1", name="imports", status=TaskStatus.RUNNING, started_at=1.0)
    view.on(changed(begun))
    for n in range(50):
        view.on(Observed("s1", "a1", TextDelta(f"[bold]step {n}[/bold]\x1b[2J\n")))
    call = ApprovalRecord(
        id="p1", session_id="s1", agent_id="a1", task_id="a1", fence=1, tool_use_id="t", tool="Bash", input={}, digest="d", shown="rm -r x\x1b[2J",
        reason="asks", suggested_rule=None, asked_at=1.0, status=ApprovalStatus.WAITING, answered_at=None, answered_by=None, note=None,
        rule=None,
    )  # fmt: skip
    view.on(Observed("s1", "a1", CallWaits(call, False)))
    assert "▲ 1 waiting for you  $0.50 of $2.00" in "\n".join(screen.rows)
    assert any("▲ imports" in row and "p1: Bash rm -r x" in row for row in screen.rows)
    view.on(Observed("s1", "a1", CallWaits(call, True)))
    view.on(Observed("s1", "a1", TextDelta("[bold]last[/bold]")))
    assert any("● imports" in row and "writes: [bold]last[/bold]" in row for row in screen.rows)
    view.on(changed(replace(begun, status=TaskStatus.COMPLETED, ended_at=3.0)))
    view.finish({"result": "# Done\n\nlong " + "word " * 40 + "\n\n| a | b |\n|-|-|\n| `x` | y |\n"})
    shown = [row for row in screen.rows if row]
    assert [row.split("  ")[0] for row in shown[:3]] == ["● a1 running", "▲ a1 needs approval: Bash rm -r x", "✔ a1 completed"]
    assert shown[3].startswith("✔ 1 done")
    assert shown[4:] == ["Done", "long " + "word " * 39 + "word", "a  b", "x  y"]


def test_a_frame_that_did_not_change_writes_nothing_and_one_row_only_itself(screen: Screen) -> None:
    with Console(screen, screen).region() as region:
        rows = [task(id=f"a{n}", name=f"n{n}") for n in range(15)]
        region.draw(scene_lines(scene(rows), 80, 24))
        all_of_it, screen.written = screen.written, 0
        region.draw(scene_lines(scene(rows), 80, 24))
        assert screen.written == 0
        rows[3] = task(id="a3", name="n3", last_activity="Read other.py")
        region.draw(scene_lines(scene(rows), 80, 24))
        assert screen.written < all_of_it / 4
        assert sum("n3" in row and "Read other.py" in row for row in screen.rows) == 1


def test_after_a_terminal_got_narrower_the_wrapped_rest_of_the_old_frame_is_gone(
    screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Console(screen, screen).region() as region:
        region.draw(scene_lines(scene([task(name="imports", last_activity="Read " + "x" * 90)]), 80, 24))
        drawn = screen.rows[:-1]
        screen.rows = [row[i : i + 40] for row in drawn for i in range(0, max(1, len(row)), 40)] + [""]  # as terminals do
        screen.at = len(screen.rows) - 1
        monkeypatch.setenv("COLUMNS", "40")
        region.draw(scene_lines(scene([task(name="imports")]), 40, 24))
        assert sum("imports" in row for row in screen.rows) == 1
        assert max(map(len, screen.rows)) <= 40


def test_a_thousand_workers_are_a_frame_of_a_few(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    view = live(screen, monkeypatch)
    monkeypatch.setattr("coordinator.cli.live.FRAME", 3600.0)
    for n in range(1000):
        view.on(changed(task_record(id=f"a{n:08}", status=TaskStatus.PENDING)))
    made: list[str] = []
    monkeypatch.setattr(
        "coordinator.cli.live.task_json", lambda record, *rest: made.append(record.id) or task_json(record, *rest)
    )
    monkeypatch.setattr("coordinator.cli.live.FRAME", 0.0)
    view.tick()
    assert "◌ 1,000 queued" in "\n".join(screen.rows)
    assert len(made) <= 24, "a frame costs what it shows"
