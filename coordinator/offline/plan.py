"""What a plan is: the calls of one answer after the other, and how several plans run side by side.

A plan is a generator: it yields the calls of one answer, is sent their results in the same order (None for one that
failed or is not there), and returns its report. It keeps nothing between model calls: the conversation is its memory,
and the plan is run from its beginning over the results that the conversation holds. So a survey goes on after a crash
where it stopped, and equal conversations give equal answers.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, TypeVar

from msgspec import Struct


class Call(Struct, frozen=True):
    name: str
    input: Mapping[str, Any]


T = TypeVar("T")
Results = list[str | None]
Steps = Generator[list[Call], Results, T]  # a part of a plan, which returns what it found
Plan = Steps[str]


def glob(pattern: str, **more: Any) -> Call:
    return Call("Glob", {"pattern": pattern, **more})


def read(path: str, **more: int) -> Call:
    return Call("Read", {"file_path": path, **more})


def grep(pattern: str, *, mode: str = "content", limit: int = 30, **more: Any) -> Call:
    return Call("Grep", {"pattern": pattern, "output_mode": mode, "head_limit": limit, **more})


def together(plans: Mapping[str, Plan]) -> Steps[dict[str, str]]:
    """Run several plans side by side: the calls of one round go out in one answer. Returns their reports."""
    reports: dict[str, str] = {}
    waiting: dict[str, list[Call]] = {}
    for name, plan in plans.items():
        _advance(name, plan, None, waiting, reports)
    while waiting:
        results = yield [call for calls in waiting.values() for call in calls]
        for name, calls in list(waiting.items()):
            mine, results = results[: len(calls)], results[len(calls) :]
            _advance(name, plans[name], mine, waiting, reports)
    return {name: reports[name] for name in plans}


def _advance(name: str, plan: Plan, results: Results | None, waiting: dict[str, list[Call]], reports: dict[str, str]) -> None:
    try:
        waiting[name] = next(plan) if results is None else plan.send(results)
    except StopIteration as end:
        reports[name] = end.value
        waiting.pop(name, None)
