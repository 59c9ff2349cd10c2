"""Which exit code and which `subtype` an end has: one table."""

from __future__ import annotations

from collections.abc import Mapping

from coordinator.views.exit_codes import ExitCode
from worker_agent.causes import Cause
from worker_agent.errors import ErrorKind
from worker_agent.loop.reasons import TerminalReason

# Reasons of a `Result` that say by themselves what the code is; every other reason with an error is FAILED.
BY_REASON: Mapping[str, ExitCode] = {
    Cause.BUDGET: ExitCode.BUDGET,
    TerminalReason.MAX_TURNS: ExitCode.LIMIT,
    Cause.TIMEOUT: ExitCode.LIMIT,
    "live_workers": ExitCode.LIVE_WORKERS,
    Cause.PERSON: ExitCode.INTERRUPTED,
    TerminalReason.ABORTED_STREAMING: ExitCode.INTERRUPTED,
    TerminalReason.ABORTED_TOOLS: ExitCode.INTERRUPTED,
    Cause.TERMINATED: ExitCode.TERMINATED,
    Cause.KILLED: ExitCode.FAILED,
    "unverified": ExitCode.UNVERIFIED,
    "schema": ExitCode.UNVERIFIED,
}
BY_ERROR_KIND: Mapping[str, ExitCode] = {
    ErrorKind.AUTHENTICATION: ExitCode.NOT_AUTHENTICATED,
    ErrorKind.BUDGET: ExitCode.BUDGET,
}
SUBTYPES = {
    "max_turns": "error_max_turns",
    "budget": "error_max_budget_usd",
    "schema": "error_max_structured_output_retries",
}


def exit_code(reason: str, *, is_error: bool, error_kind: str | None = None) -> ExitCode:
    """The code for a session, or a task, that ended with this reason."""
    if reason in BY_REASON:
        return BY_REASON[reason]
    if error_kind is not None and error_kind in BY_ERROR_KIND:
        return BY_ERROR_KIND[error_kind]
    return ExitCode.FAILED if is_error else ExitCode.DONE


def subtype(reason: str, *, is_error: bool) -> str:
    """The `subtype` of the result object."""
    return SUBTYPES.get(reason, "error_during_execution") if is_error else "success"
