"""Which exit code and which `subtype` an end has: one enum that owns them.

What a loop says of itself, what ended it from outside, and what only a session knows meet here; every other reason of an
error is a failure like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from coordinator.views.exit_codes import ExitCode
from worker_agent.causes import Cause
from worker_agent.errors import ErrorKind
from worker_agent.loop.reasons import PromptReason, TerminalReason

ANY_ERROR = "error_during_execution"


class End(StrEnum):
    """Its value is what is stored and shown as the reason. `code` None: the kind of the error decides. `subtype` holds where it
    is an error."""

    COMPLETED = TerminalReason.COMPLETED, None, ANY_ERROR
    BUDGET = Cause.BUDGET, ExitCode.BUDGET, "error_max_budget_usd"
    MAX_TURNS = TerminalReason.MAX_TURNS, ExitCode.LIMIT, "error_max_turns"
    TIMEOUT = Cause.TIMEOUT, ExitCode.LIMIT, ANY_ERROR
    LIVE_WORKERS = "live_workers", ExitCode.LIVE_WORKERS, ANY_ERROR  # the time limit came while only workers ran
    INTERRUPTED = Cause.PERSON, ExitCode.INTERRUPTED, ANY_ERROR
    ABORTED_STREAMING = TerminalReason.ABORTED_STREAMING, ExitCode.INTERRUPTED, ANY_ERROR
    ABORTED_TOOLS = TerminalReason.ABORTED_TOOLS, ExitCode.INTERRUPTED, ANY_ERROR
    TERMINATED = Cause.TERMINATED, ExitCode.TERMINATED, ANY_ERROR
    KILLED = Cause.KILLED, ExitCode.FAILED, ANY_ERROR
    STORE = Cause.STORE, None, ANY_ERROR
    DIRECTORY_GONE = "directory_gone", None, ANY_ERROR  # of a single agent, while it worked
    UNVERIFIED = "unverified", ExitCode.UNVERIFIED, ANY_ERROR
    SCHEMA = PromptReason.SCHEMA, ExitCode.UNVERIFIED, "error_max_structured_output_retries"

    code: ExitCode | None
    subtype: str

    def __new__(cls, value: str, code: ExitCode | None, subtype: str) -> End:
        member = str.__new__(cls, value)
        member._value_ = str(value)
        member.code, member.subtype = code, subtype
        return member


ENDS: Mapping[str, End] = {str(end): end for end in End}
BY_ERROR_KIND: Mapping[str, ExitCode] = {
    ErrorKind.AUTHENTICATION: ExitCode.NOT_AUTHENTICATED,
    ErrorKind.BUDGET: ExitCode.BUDGET,
}


def exit_code(reason: str, *, is_error: bool, error_kind: str | None = None) -> ExitCode:
    """The code for a session, or a task, that ended with this reason."""
    end = ENDS.get(reason)
    if end is not None and end.code is not None:
        return end.code
    if error_kind is not None and error_kind in BY_ERROR_KIND:
        return BY_ERROR_KIND[error_kind]
    return ExitCode.FAILED if is_error else ExitCode.DONE


def subtype(reason: str, *, is_error: bool) -> str:
    """The `subtype` of the result object."""
    if not is_error:
        return "success"
    return ENDS[reason].subtype if reason in ENDS else ANY_ERROR
