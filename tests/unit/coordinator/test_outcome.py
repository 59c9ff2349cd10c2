"""How a loop's result becomes the fields of a task: completed only for a real answer without error."""

import pytest

from coordinator.runs.outcome import MAX_DENIED, SALVAGED, broken, denied_calls, ended, partial_text
from tasks.notifications import FIELD_CAP
from tasks.records import Ended
from tasks.states import TaskStatus
from worker_agent.events import PermissionDenial, Result
from worker_agent.loop.reasons import TerminalReason
from worker_agent.messages import Usage
from worker_agent.structs import replace

GOOD = Result(
    text="report",
    reason="completed",
    is_error=False,
    turns=1,
    duration=1.0,
    duration_api=1.0,
    usage=Usage(),
    cost_usd=0.0,
)


def test_a_real_answer_is_completed() -> None:
    assert ended(GOOD) == Ended(status=TaskStatus.COMPLETED, result="report", end_reason="completed")


@pytest.mark.parametrize(
    "reason", [r.value for r in TerminalReason if r is not TerminalReason.COMPLETED] + ["budget", "schema"]
)
def test_every_other_reason_is_failed_with_a_class(reason: str) -> None:
    end = ended(replace(GOOD, reason=reason, is_error=True, error="because"))
    assert (end.status, end.end_reason, end.error_class, end.result) == (TaskStatus.FAILED, reason, reason, "report")
    assert end.retryable in (True, False)


def test_a_loop_that_completed_with_an_api_error_is_failed_with_its_kind() -> None:
    end = ended(replace(GOOD, is_error=True, error="overloaded", error_kind="overloaded", retryable=True))
    assert (end.status, end.end_reason, end.error_class, end.retryable) == (
        TaskStatus.FAILED,
        "error",
        "overloaded",
        True,
    )


def test_an_empty_answer_is_salvaged_from_the_last_text_and_says_so() -> None:
    end = ended(replace(GOOD, text="earlier", is_error=True, salvaged=True))
    assert (end.status, end.result, end.retryable) == (TaskStatus.FAILED, SALVAGED + "earlier", True)


def test_blank_text_is_no_answer() -> None:
    assert ended(replace(GOOD, text=" \n")).status is TaskStatus.FAILED


def test_an_unforeseen_exception_names_its_class() -> None:
    end = broken(KeyError("x"), "so far")
    assert (end.error_class, end.error, end.result) == ("KeyError", "KeyError: 'x'", "so far")


def test_partial_text_is_what_was_said_and_what_is_being_said() -> None:
    assert partial_text(["one", "two"], " thr ") == "one\n\ntwo\n\nthr"
    assert partial_text([], "") == ""


def test_denied_calls_are_told_once_each_in_order_within_bounds() -> None:
    push = PermissionDenial("Bash", "1", {"command": "git push\norigin"}, "this needs a person's approval")
    write = PermissionDenial("Write", "2", {"file_path": "/etc/x", "content": "y"}, "outside")
    assert denied_calls([push, write, push]) == (
        "Bash(git push origin): this needs a person's approval (2 times)",
        "Write(/etc/x): outside",
    )
    assert ended(replace(GOOD, denials=(write,))).denied == ("Write(/etc/x): outside",)
    many = denied_calls([PermissionDenial("Bash", str(n), {"command": f"{n} " + "x" * 500}, "y" * 500) for n in range(20)])
    assert len(many) == MAX_DENIED + 1 and many[-1] == "… and 12 more" and len("\n".join(many)) <= FIELD_CAP
