"""How one run of a worker ended: a `Result` of its loop as the fields of its task. Pure.

1. `completed` only for a loop that ended by itself, without error, with a real answer. All else is `failed`, with an
   error class and whether trying again may help.
2. What a failed or killed worker had written is its partial result, never an answer of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from coordinator.runs.held_directory import gone
from tasks.records import Ended
from tasks.states import TaskStatus
from worker_agent.causes import Cause
from worker_agent.errors import ErrorKind
from worker_agent.events import PermissionDenial, Result
from worker_agent.loop.reasons import TerminalReason
from worker_agent.structs import replace

SALVAGED = "[The last answer was empty. This is the last text before it.]\n\n"
MAX_DENIED = 8  # lines; with the widths below they fit in one field of a notification
CALL_WIDTH, REASON_WIDTH = 80, 140  # characters
# Reasons after which the same task may well succeed when it is tried again.
WORTH_RETRYING = frozenset(
    {TerminalReason.MAX_TURNS, Cause.BUDGET, TerminalReason.ABORTED_STREAMING, TerminalReason.ABORTED_TOOLS}
)


def ended(result: Result) -> Ended:
    denied = denied_calls(result.denials)
    if result.reason == TerminalReason.COMPLETED and not result.is_error and result.text.strip():
        return Ended(status=TaskStatus.COMPLETED, result=result.text, end_reason=result.reason, denied=denied)
    empty = result.salvaged and result.error_kind in (None, ErrorKind.EMPTY_ANSWER)
    return Ended(
        status=TaskStatus.FAILED,
        result=(SALVAGED if empty and result.text else "") + result.text,
        end_reason=_reason(result),
        error=result.error or "the worker ended without an answer",
        error_class=result.error_kind or _error_class(result),
        retryable=result.retryable or result.reason in WORTH_RETRYING or empty,
        denied=denied,
    )


def denied_calls(denials: Sequence[PermissionDenial]) -> tuple[str, ...]:
    """What the coordinator is told of refused calls: each once, in order, a line with the call and the reason."""
    counts = Counter(f"{_one_line(_call(denial), CALL_WIDTH)}: {_one_line(denial.reason, REASON_WIDTH)}" for denial in denials)
    lines = [line if count == 1 else f"{line} ({count} times)" for line, count in counts.items()]
    left_out = len(lines) - MAX_DENIED
    return (*lines[:MAX_DENIED], *((f"… and {left_out} more",) if left_out > 0 else ()))


def _call(denial: PermissionDenial) -> str:
    """The call as a rule would name it: by the first text of its input, which says most."""
    said = next((value for value in denial.tool_input.values() if isinstance(value, str)), "")
    return f"{denial.tool_name}({_one_line(said, CALL_WIDTH - len(denial.tool_name) - 2)})"


def _one_line(text: str, width: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: max(width - 1, 0)]}…"


def without_directory(end: Ended, path: Path) -> Ended:
    """An answer of a worker whose working directory went meanwhile: what it made there is gone, whatever it says."""
    return replace(
        end,
        status=TaskStatus.FAILED,
        end_reason="error",
        error=gone(path, "worker"),
        error_class="DirectoryGone",
        retryable=False,
    )


def broken(error: Exception, partial: str) -> Ended:
    """A run that raised what nobody foresaw."""
    return Ended(
        status=TaskStatus.FAILED,
        result=partial,
        end_reason="error",
        error=f"{type(error).__name__}: {error}",
        error_class=type(error).__name__,
        retryable=False,
    )


def partial_text(texts: Sequence[str], streaming: str) -> str:
    """What was said until now, the newest last."""
    return "\n\n".join(part for part in (*texts, streaming.strip()) if part)


def _reason(result: Result) -> str:
    """A loop can complete with an API error that nothing mended: that is no completion."""
    return "error" if result.reason == TerminalReason.COMPLETED else result.reason


def _error_class(result: Result) -> str:
    return ErrorKind.EMPTY_ANSWER.value if result.reason == TerminalReason.COMPLETED else result.reason
