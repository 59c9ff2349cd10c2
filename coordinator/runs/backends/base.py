"""`Backend`: where tasks run, and `Run`: one run of a task, whatever it is. The truth is in the task store; a backend
carries only task ids.

What a backend is told is stored already: `spawn` finds the task's row, `nudge` its message, `stop` its end. So each
call may come twice, late or never without harm to the record. `tests/conformance/test_backend.py` holds what every one
of them promises.
"""

from __future__ import annotations

from typing import Protocol

from worker_agent.causes import Cause


class Run(Protocol):
    """One run of a task. `run` records its end itself and raises nothing but cancellation; `is_recorded` says that it
    has."""

    is_recorded: bool

    async def run(self) -> None: ...

    def stop(self, cause: Cause) -> None:
        """Ask it to end now."""
        ...

    def leave(self) -> None:
        """Ask it to stop where that costs least, soon."""
        ...

    def nudge(self) -> None: ...

    async def clean_up(self) -> tuple[str, ...]:
        """After the end: prove that nothing it began still runs; what does, in words."""
        ...


class Backend(Protocol):
    async def spawn(self, task_id: str) -> None:
        """Run the task as soon as there is room. Doing so twice runs it once."""
        ...

    def nudge(self, task_id: str) -> None:
        """A message for the task's agent is stored. A task that does not run here is not told."""
        ...

    async def stop(self, task_id: str, cause: Cause) -> tuple[str, ...]:
        """The task's end is stored, or its runner goes away (`cause`): end what runs, return when it is proven, within
        a bound. Answers what could not be ended, in words; nothing at all if nothing is left."""
        ...

    def leave(self) -> None:
        """Ask every run to stop at the end of its turn: this process goes away, and others go on with the tasks."""
        ...

    def is_unwinding(self, task_id: str) -> bool:
        """Whether a run of the task is here that has not stored yet what it had to say."""
        ...

    def running(self) -> tuple[str, ...]:
        """Tasks this backend runs or will run, oldest first."""
        ...

    async def close(self, cause: Cause) -> None:
        """End every run; nothing is started any more."""
        ...
