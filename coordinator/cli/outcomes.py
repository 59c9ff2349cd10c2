"""The exit code of a task or a session, for `tasks wait` and `tasks logs -f`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from coordinator.views.ends import exit_code
from coordinator.views.exit_codes import ExitCode

ENDED = frozenset({"completed", "failed", "killed"})


def task_code(task: Mapping[str, Any], error_class: str | None) -> ExitCode:
    """`task` is a documented object; a task that is not done is no success."""
    if task["status"] == "completed":
        return ExitCode.DONE
    if task["status"] in ("pending", "running"):
        return ExitCode.LIVE_WORKERS
    return exit_code(task["end_reason"] or "", is_error=True, error_kind=error_class)


def worst(codes: Iterable[ExitCode]) -> ExitCode:
    return max(codes, default=ExitCode.DONE)


def session_code(session: Mapping[str, Any]) -> ExitCode:
    """Of a documented session object; one that nobody drives and that has not ended is no success."""
    if session["status"] != "ended":
        return ExitCode.LIVE_WORKERS if session["driven"] else ExitCode.FAILED
    reason = session["end_reason"] or ""
    return exit_code(reason, is_error=reason != "completed")
