"""What a person asked of another process's work and cannot be done: one line that says why, and the exit code it has."""

from __future__ import annotations

from coordinator.views.exit_codes import ExitCode


class Refusal(Exception):
    """Nothing was changed. The message is one line for a person."""

    def __init__(self, message: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.code = code
