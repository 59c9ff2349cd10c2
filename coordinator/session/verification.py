"""`--verify CMD`: the work counts as done when this command succeeds, run by us and not by a model.

A failure goes back to the coordinator with the output, until it has failed `ATTEMPTS` times; then the run ends as not verified.
"""

from __future__ import annotations

from pathlib import Path

from coordinator.runs.processes import Processes
from worker_agent.process import run_shell
from worker_agent.tools.base import ToolContext

ATTEMPTS = 3  # failures of the command
TIMEOUT = 1800.0  # seconds
LAST_LINES = 10  # of its output, that a person is shown


class Verifier:
    """`failure` says how the last run failed: command, code, last lines. None if it succeeded, or nothing was run."""

    def __init__(self, command: str | None, cwd: str, context: ToolContext, processes: Processes) -> None:
        self._command = command
        self._cwd = Path(cwd)
        self._context = context
        self._processes = processes
        self._runs = self._failures = 0
        self.failure: str | None = None

    @property
    def may_try_again(self) -> bool:
        return self._failures < ATTEMPTS

    def begin_anew(self) -> None:
        """Another piece of work is to be verified."""
        self._failures, self.failure = 0, None

    async def complaint(self) -> str | None:
        """Run the command: None if it succeeded (or there is none), else what the coordinator is to be told."""
        if self._command is None:
            return None
        self._runs += 1
        outcome = await run_shell(
            self._command,
            cwd=self._cwd,
            env=self._context.environment,
            output_file=self._context.spill_dir / f"verify-{self._runs}.log",
            timeout=TIMEOUT,
            redact=self._context.redact,
            on_start=self._processes.began,
        )
        self.failure = None
        if outcome.exit_code == 0 and not outcome.timed_out:
            return None
        self._failures += 1
        how = "ran out of time" if outcome.timed_out else f"ended with exit code {outcome.exit_code}"
        self.failure = _failure(f"the verification command `{self._command}` {how}", outcome.output)
        return (
            f"The work is not done yet: the verification command `{self._command}` {how}. Find out why, have it mended "
            f"and end your turn; the command is then run again. Its output:\n\n{outcome.output}"
        )


def _failure(what: str, output: str) -> str:
    """`what` in the first line, then the last lines of the output."""
    lines = [line.rstrip() for line in output.splitlines() if line.strip()][-LAST_LINES:]
    return "\n".join((f"{what}; its last output:" if lines else f"{what} and said nothing", *lines))
