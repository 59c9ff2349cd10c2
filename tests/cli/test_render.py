from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.cli import render
from coordinator.views.terminal_text import columns
from coordinator.views.values import in_order


def task(**changes: Any) -> dict[str, Any]:
    values = {
        "id": "a1b2c3d4e", "agent_id": "a1b2c3d4e", "session_id": "s12345678", "parent_id": None, "type": "local_agent",
        "status": "running", "description": "find the slow import", "name": "finder", "agent": "worker", "model": "claude-x",
        "created_at": "2026-01-01T00:00:00.000Z", "started_at": "2026-01-01T00:00:01.000Z", "ended_at": None,
        "duration_ms": 42_000, "tool_uses": 7, "input_tokens": 30_000, "output_tokens": 1_000, "total_tokens": 31_000,
        "cost_usd": 0.08, "last_activity": 'Grep "import" src', "idle_ms": 1_000, "attempt": 1, "end_reason": None, "error": None,
        "needs_approval": None,
    }  # fmt: skip
    return values | changes


def text(lines: list[render.Line]) -> list[str]:
    return ["".join(piece.text for piece in line) for line in lines]


def test_a_pipe_gets_whole_lines() -> None:
    long = "word " * 60
    lines = text(render.lay_out(render.task_grid([task(description=long, last_activity=long)]), None))
    assert len(lines) == 2
    assert lines[1].count("word") == 120


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 300])
def test_a_terminal_gets_lines_that_fit_with_the_whole_id(width: int) -> None:
    rows = [task(), task(id="azzzzzzzz", status="interrupted", description="x" * 200, name=None)]
    lines = text(render.lay_out(render.task_grid(rows), width))
    assert all(columns(line) <= max(width, 37) for line in lines)
    assert "a1b2c3d4e" in lines[1] and "azzzzzzzz" in lines[2]


@given(st.lists(st.tuples(st.text(max_size=30), st.sampled_from(sorted(render.SIGNS))), max_size=5), st.integers(10, 200))
def test_any_description_makes_one_line_a_task(tasks: list[tuple[str, str]], width: int) -> None:
    rows = [task(description=description, status=status) for description, status in tasks]
    lines = text(render.lay_out(render.task_grid(rows), width))
    assert len(lines) == len(rows) + 1
    assert not any("\n" in line or "\x1b" in line for line in lines)


def test_what_runs_stands_first_and_what_is_newer_before_what_is_older() -> None:
    rows = [
        task(id="done", status="completed"),
        task(id="old", created_at="2025-01-01T00:00:00.000Z"),
        task(id="new"),
        task(id="waits", status="pending"),
    ]
    assert [row["id"] for row in in_order(rows)] == ["new", "old", "waits", "done"]


@pytest.mark.parametrize(
    ("milliseconds", "words"), [(None, ""), (0, "0:00"), (42_999, "0:42"), (3_723_000, "1:02:03"), (273_600_000, "3d 4h")]
)
def test_durations(milliseconds: int | None, words: str) -> None:
    assert render.span(milliseconds) == words


@pytest.mark.parametrize(("usd", "words"), [(None, "?"), (0.0, "$0.00"), (0.0004, "$0.0004"), (1.239, "$1.24")])
def test_an_unknown_price_is_never_shown_as_nothing(usd: float | None, words: str) -> None:
    assert render.money(usd) == words


@pytest.mark.parametrize(("tokens", "words"), [(950, "950"), (31_400, "31k"), (999_600, "1.0M"), (1_240_000, "1.2M")])
def test_tokens(tokens: int, words: str) -> None:
    assert render.count(tokens) == words


def test_a_tasks_detail_shows_every_field_it_has_and_texts_literally() -> None:
    shown = text(render.task_detail(task(prompt="do [bold]this[/bold]\x1b[2J", result=None, activities=["Read a"])))
    assert "do [bold]this[/bold]" in shown
    assert any(line.startswith("cost_usd:") for line in shown)
    assert not any(line.startswith("result") for line in shown)
