"""Failures of a command: one line for a person, an exit code, nothing else.

`Failure` is what commands raise. Exceptions of the packages below become one in `translate`, by their class, never by
their text.
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.views.exit_codes import ExitCode

MEANINGS: dict[ExitCode, str] = {
    ExitCode.DONE: "done",
    ExitCode.FAILED: "failed",
    ExitCode.USAGE: "usage, ambiguous id, bad configuration",
    ExitCode.NOT_FOUND: "no such session or task",
    ExitCode.NOT_AUTHENTICATED: "not authenticated",
    ExitCode.BUDGET: "budget used up",
    ExitCode.LIMIT: "turn or time limit",
    ExitCode.NEEDS_PERSON: "needs a person and there is none",
    ExitCode.UNVERIFIED: "verification failed",
    ExitCode.LIVE_WORKERS: "ended with live workers",
    ExitCode.WAIT_TIMEOUT: "`wait --timeout` ran out",
    ExitCode.INTERRUPTED: "interrupted",
    ExitCode.TERMINATED: "terminated",
}


class Failure(Exception):
    """A command cannot do what was asked. The message is one line for a person; `more` follows it, one a line."""

    def __init__(self, message: str, code: ExitCode = ExitCode.FAILED, more: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.more = tuple(more)


class Bug(Failure):
    """What nobody foresaw."""


def translate(error: BaseException) -> Failure:
    """Any exception as the failure it is. What nobody foresaw is a bug, and is called one."""
    if isinstance(error, Failure):
        return error
    if isinstance(error, OSError):
        return Failure(_os_error(error))
    return _from_packages(error) or Bug(f"unexpected {type(error).__name__}: {_first_line(error)} (a bug: --debug shows where)")


def _from_packages(error: BaseException) -> Failure | None:
    """The error trees below. They are imported here only: a command that succeeds does not need them all."""
    from coordinator.other_processes.refusal import Refusal
    from tasks.errors import Ambiguous, StoreError
    from worker_agent.errors import AgentError, ConfigError, ErrorKind, ModelError

    match error:
        case Refusal():
            return Failure(_first_line(error), error.code)
        case Ambiguous():
            return Failure("that id fits more than one:", ExitCode.USAGE, error.candidates)
        case StoreError():
            return Failure(_first_line(error), ExitCode(error.exit_code))
        case ConfigError():
            return Failure(_first_line(error), ExitCode.USAGE)
        case ModelError(kind=ErrorKind.AUTHENTICATION):
            return Failure(_first_line(error), ExitCode.NOT_AUTHENTICATED)
        case AgentError():
            return Failure(_first_line(error))
    return None


def _os_error(error: OSError) -> str:
    what = error.strerror or str(error) or type(error).__name__
    return f"{error.filename}: {what}" if error.filename else what


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
