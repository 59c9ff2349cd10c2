"""Running a session from the command line: the view, the person, the signals, the exit code.

SIGINT once ends the coordinator's turn, workers go on; twice stops the workers; a third time leaves at once. SIGTERM and
SIGHUP save the state and end what runs; in the background SIGHUP is not heard.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from importlib import metadata
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct, field

from coordinator import heap
from coordinator.cli.approval import TerminalApprover
from coordinator.cli.background import look_back
from coordinator.cli.console import Console
from coordinator.cli.early import CODES
from coordinator.cli.person import Person
from coordinator.cli.run_views import Started, View
from coordinator.cli.spending import Spending
from coordinator.cli.tree import Spent
from coordinator.observed import Observed
from coordinator.options import RunOptions
from coordinator.program import Program
from coordinator.session.interruption import Interruption
from coordinator.views.exit_codes import ExitCode
from worker_agent.api import transports
from worker_agent.concealment import conceal
from worker_agent.tools.base import Approver

if TYPE_CHECKING:
    from coordinator.session.handle import SessionHandle
    from coordinator.session.session import RunOutcome

Outcome = TypeVar("Outcome")

TICK = 0.25  # seconds
AT_ONCE = 3  # interrupts before there is a session
AGAIN = "(again: stops them; a third time: leaves at once)"
SAID = {
    Interruption.TURN: f"interrupted: the coordinator's turn is over, workers go on {AGAIN}",
    Interruption.NO_TURN: f"interrupted: no turn of the coordinator runs, workers go on {AGAIN}",
    Interruption.NOTHING: "interrupted: nothing runs; /quit leaves (so does Ctrl+C twice more)",
    Interruption.WORKERS: "interrupted again: stopping the workers (once more: leaves at once)",
}


class Drive(Struct, kw_only=True):
    """One run. `person` is who can be asked and, in a chat, who types; None where there is nobody."""

    console: Console
    options: RunOptions
    view: View
    person: Person | None = None
    on_ready: Callable[[SessionHandle], None] | None = None
    detached: bool = False
    approver: Approver | None = None  # who is asked in place of the person at the terminal
    beside: AbstractAsyncContextManager[object] = field(default_factory=nullcontext)  # around everything, in its event loop
    program: Callable[[], Program] = Program  # asked when `prepare` has returned
    prepare: Callable[[RunOptions], Awaitable[RunOptions]] | None = None  # what is to be known before there is a session
    session_id: str = ""  # once there is one
    _spending: Spending | None = None

    def run(self) -> int:
        """The run's exit code."""
        conceal()  # before the first agent, and before a thread is there
        heap.keep_small()
        if not self.options.offline:
            transports.begin_to_load()  # first of all: it may take longer than everything else together
        return asyncio.run(self._run_beside())

    async def _run_beside(self) -> int:
        async with self.beside:
            return await self._run()

    async def _run(self) -> int:
        from coordinator.app import run_session

        signals = Signals(self.console, detached=self.detached)
        signals.install()
        ticking = asyncio.create_task(self._tick())

        def ready(handle: SessionHandle) -> None:
            signals.reach(handle)
            self.session_id = handle.session_id
            limits = self.options.max_budget_usd, self.options.token_budget
            self._spending = Spending(lambda: Spent(*handle.spent(), *limits))
            self.view.started(started(handle, self.options, self._spending))
            if self.on_ready:
                self.on_ready(handle)

        async def work() -> RunOutcome:
            if self.prepare is not None:
                self.options = await self.prepare(self.options)
            return await run_session(self.options, self._on, on_ready=ready, approver=self._approver(), program=self.program())

        finished = False
        try:
            outcome = await signals.guard(work())
            finished = True
            if self._spending is not None:
                await self._spending.settle()
            self.view.finish(outcome.result)
            self._say_if_over(outcome.result)
            if outcome.is_over and self.options.memory_extract and not self.options.offline:
                look_back(self.options, outcome.session_id)
            return int(outcome.exit_code)
        finally:
            if not finished:
                self.view.finish(None)
            ticking.cancel()
            if self.person:
                self.person.close()

    def _on(self, observed: Observed) -> None:
        if self._spending is not None:
            self._spending.on(observed)
        self.view.on(observed)

    def _say_if_over(self, result: Mapping[str, Any]) -> None:
        """A session that was taken up without a prompt, and in which nothing waited."""
        options = self.options
        if (options.resume or options.continue_last) and not (options.prompt or options.interactive):
            if not result["num_turns"] and not result["is_error"]:
                id = result["session_id"]
                self.console.note(f'session {id} has ended; a prompt goes on with it: coordinator resume {id} "…"')

    def _approver(self) -> Approver | None:
        if self.approver is not None:
            return self.approver
        return TerminalApprover(self.console, self.person, self.view) if self.person and sys.stdin.isatty() else None

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            self.console.notice_hangup()
            self.view.tick()


def started(handle: SessionHandle, options: RunOptions, spending: Spending | None = None) -> Started:
    return Started(
        session_id=handle.session_id,
        cwd=str(handle.cwd),
        model=handle.current_model,
        tools=handle.tools,
        permission_mode=str(handle.policy.mode),
        version=metadata.version("coordinator"),
        offline=options.offline,
        mcp_servers=tuple(handle.mcp_status()),
        agents=tuple(name for name, _ in handle.agent_types()),
        skills=tuple(name for name, _ in handle.commands()),
        plugins=handle.plugins,
        spent=spending.look if spending is not None else lambda: None,
    )


class Signals:
    """What signals do. Before there is a session, they end the program."""

    def __init__(self, console: Console, *, detached: bool) -> None:
        self._console = console
        self._detached = detached
        self._running: asyncio.Future[Any] | None = None
        self._early: ExitCode | None = None
        self._early_interrupts = 0
        self._handle: SessionHandle | None = None

    def install(self) -> None:
        """Plain handlers, which stay when the event loop goes: a second signal finds the process leaving, and must not
        end it as one that nobody handles."""
        loop = asyncio.get_running_loop()
        _on(signal.SIGINT, loop, self._interrupt)
        _on(signal.SIGTERM, loop, self._terminate)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # else it was begun by nohup
            _on(signal.SIGHUP, loop, (lambda: None) if self._detached else self._terminate)
        if not self._detached:  # the signal may come later than the first write fails, or not at all
            self._console.when_hung_up(lambda: loop.call_soon(self._terminate))

    def reach(self, handle: SessionHandle) -> None:
        """From now on a signal is for this session."""
        self._handle = handle

    async def guard(self, work: Awaitable[Outcome]) -> Outcome:
        """Await `work`; a signal before the session is there ends it."""
        self._running = running = asyncio.ensure_future(work)
        try:
            return await running
        except asyncio.CancelledError:
            if self._early is None:
                raise
            raise SystemExit(int(self._early)) from None

    def _interrupt(self) -> None:
        if self._handle is None:
            self._early_interrupts += 1
            if self._early_interrupts >= AT_ONCE:
                self._leave_at_once()
            self._end_early(ExitCode.INTERRUPTED)
            return
        done = self._handle.interrupt()
        if done is Interruption.AT_ONCE:
            self._leave_at_once()
        self._console.note(SAID[done])

    def _terminate(self) -> None:
        if self._handle is None:
            self._end_early(ExitCode.TERMINATED)
        else:
            self._handle.terminate()

    def _end_early(self, code: ExitCode) -> None:
        self._early = code
        if self._running is not None:
            self._running.cancel()

    def _leave_at_once(self) -> None:
        """The store is consistent at every moment; what ran is for `resume` to find. Its processes get no grace."""
        from worker_agent.process_tree import kill_below

        kill_below()
        self._console.give_back()
        with suppress(OSError):
            self._console.flush()
        os._exit(ExitCode.INTERRUPTED)


def _on(number: signal.Signals, loop: asyncio.AbstractEventLoop, react: Callable[[], None]) -> None:
    """Have `react` called in `loop`; once that is closed, the signal ends the process with its code."""

    def handle(*_: object) -> None:
        try:
            loop.call_soon_threadsafe(react)
        except RuntimeError:
            os._exit(CODES[number])

    signal.signal(number, handle)
