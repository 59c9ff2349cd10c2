"""`Coordinator`: a session in this process, for a program in Python.

1. The session lives as long as the `async with` block. Whatever is left of it when the block is left ends there, proven: no
   process, no task that runs. What was stored stays, and `resume` goes on with it.
2. One prompt at a time: a second waits for the first one's result. Whoever is cancelled while a prompt is worked on takes that prompt along:
   its turn ends and its workers are stopped before the cancellation goes on. The session stays for the next one.
3. Nothing of the process is changed: no signal handler, no output, no environment. Several sessions run side by side.
4. Everything belongs to the event loop in which the session was entered.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from coordinator.interface.consent import Consent, OnPermission
from coordinator.interface.errors import Closed, ConfigurationError, translated
from coordinator.interface.events import Event, event_of
from coordinator.interface.functions import FunctionTool, compiled
from coordinator.interface.results import Result, Task, result_of, task_of
from worker_agent.structs import replace

if TYPE_CHECKING:
    from coordinator.observed import Observed
    from coordinator.options import RunOptions
    from coordinator.program import Program
    from coordinator.session.handle import SessionHandle
    from coordinator.session.session import RunOutcome

ToolLike = FunctionTool[..., Any] | Callable[..., Any]


class Coordinator:
    """A session: an agent that plans and hands work to workers, or with `workers=False` one that has all tools itself.

    `tools` are functions for whoever does the work (`functions.py`); `on_permission` is asked about calls that need consent, without it they
    are denied. `output` is a type, or a JSON schema, that each result must fit. `trusted` None: what repositories bring counts where
    the person trusts them, as for the command. `on_event` is called for everything that happens, also between prompts.

    Everything else means what the flag of `coordinator run` of its name means. Credentials and the address of the API come
    from the environment."""

    def __init__(
        self,
        *,
        cwd: str | Path | None = None,
        tools: Iterable[ToolLike] = (),
        workers: bool = True,
        model: str | None = None,
        worker_model: str | None = None,
        fallback_model: str | None = None,
        effort: str | None = None,
        system_prompt: str | None = None,
        append_system_prompt: str | None = None,
        permission_mode: str | None = None,
        allowed_tools: Sequence[str] = (),
        disallowed_tools: Sequence[str] = (),
        on_permission: OnPermission | None = None,
        add_dirs: Sequence[str | Path] = (),
        agents: Mapping[str, Mapping[str, Any]] | None = None,
        mcp_servers: Mapping[str, Mapping[str, Any]] | None = None,
        settings: str | None = None,
        setting_sources: Iterable[str] | None = None,
        trusted: bool | None = None,
        sandbox: str = "auto",
        output: Any = None,
        verify: str | None = None,
        max_turns: int | None = None,
        max_budget_usd: float | None = None,
        token_budget: int | None = None,
        max_workers: int = 8,
        timeout: float | None = None,
        resume: str | None = None,
        fork_session: bool = False,
        session_id: str | None = None,
        home: str | Path | None = None,
        db: str | None = None,
        offline: bool = False,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        self._tools = tuple(tools)
        self._approver = Consent(on_permission)
        self._output = output
        self._given: dict[str, Any] = {
            "use_coordinator": workers,
            "model": model,
            "worker_model": worker_model,
            "fallback_model": fallback_model,
            "effort": effort,
            "system_prompt": system_prompt,
            "append_system_prompt": append_system_prompt,
            "permission_mode": permission_mode,
            "allowed_tools": tuple(allowed_tools),
            "disallowed_tools": tuple(disallowed_tools),
            "add_dirs": tuple(Path(one).absolute() for one in add_dirs),
            "agents": dict(agents or {}),
            "mcp_config": (json.dumps({"mcpServers": mcp_servers}),) if mcp_servers else (),
            "settings": settings,
            "sources": None if setting_sources is None else frozenset(setting_sources),
            "sandbox": sandbox,
            "verify": verify,
            "max_turns": max_turns,
            "max_budget_usd": max_budget_usd,
            "token_budget": token_budget,
            "max_workers": max_workers,
            "timeout": timeout,
            "resume": resume,
            "fork_session": fork_session,
            "session_id": session_id,
            "db": db,
            "offline": offline,
        }
        self._cwd, self._home, self._trusted = cwd, home, trusted
        self._listeners: list[Callable[[Event], None]] = [] if on_event is None else [on_event]
        self._handle: SessionHandle | None = None
        self._running: asyncio.Task[RunOutcome] | None = None
        self._one_prompt = asyncio.Lock()
        self._answered: asyncio.Future[Result] | None = None  # of the prompt that is worked on
        self._first_turn = 0  # the number of the turn that the prompt begins: what ends before answers something else
        self._is_left = False

    # ── from the beginning to the end ──────────────────────────────────────────────────────────────────────────────

    async def __aenter__(self) -> Self:
        """Raises `ConfigurationError`, `NotAuthenticated`, `NotFound`, `InUse`, `StoreError`."""
        if self._running is not None:
            raise Closed("a Coordinator is entered once; make another one")
        with translated():
            options, program = await asyncio.to_thread(self._prepared)
            from coordinator.app import run_session

            ready: asyncio.Future[SessionHandle] = asyncio.get_running_loop().create_future()
            work = run_session(options, self._observe, on_ready=ready.set_result, approver=self._approver, program=program)
            self._running = asyncio.create_task(work, name="coordinator session")
            try:
                await _first_of(ready, self._running)
            except asyncio.CancelledError:
                self._running.cancel()
                await _to_its_end(self._running)
                raise
            self._handle = ready.result() if ready.done() else None
            if self._handle is None:
                await self._running
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._running is not None
        self._is_left = True
        leaving = asyncio.create_task(self._leave(), name="leaving a coordinator session")
        await _to_its_end(leaving)
        failed = leaving.exception()
        if kind is None:
            with translated():
                if failed is not None:
                    raise failed
                self._running.result()

    async def _leave(self) -> None:
        """Whatever happens, the session's own task has ended when this has."""
        assert self._handle is not None and self._running is not None
        try:
            if self._handle.is_settled and not self._handle.is_in_turn:
                self._handle.close()
            else:
                await self._handle.abandon()
        finally:
            if not self._running.done() and not self._handle.is_settled:
                self._handle.terminate()
            await asyncio.wait({self._running})

    def _prepared(self) -> tuple[RunOptions, Program]:
        """Reads the disk. Raises `ConfigError`."""
        from coordinator.interface.preparing import options_of, schema_of
        from coordinator.program import Program

        options = options_of(self._given, cwd=self._cwd, home=self._home, trusted=self._trusted)
        if self._output is not None:
            options = replace(options, json_schema=schema_of(self._output))
        return options, Program(tools=compiled(self._tools), is_around=True)

    # ── prompts ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self, prompt: str) -> Result:
        """Work on `prompt` until nothing is left to do, workers included. What fails is a result that is not `ok`; a session that
        ends meanwhile (its time limit, another process that takes it over) gives the result of its end. `/name args` begins
        a skill. Raises `Closed`, `ConfigurationError`."""
        async with self._one_prompt:
            handle = self._living()
            self._answered = answered = asyncio.get_running_loop().create_future()
            self._first_turn = handle.commands_begun + 1
            try:
                return await self._work_on(prompt, handle, answered)
            except asyncio.CancelledError:
                await _to_its_end(asyncio.create_task(self._drop(handle)))
                raise
            finally:
                self._answered = None

    async def stream(self, prompt: str) -> AsyncGenerator[Event, None]:
        """The same, as it happens: events, the `Result` last. Who stops before it takes the prompt along, as a cancellation does:
        at once with `contextlib.aclosing`, else when the generator is collected."""
        events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._listeners.append(events.put_nowait)
        work = asyncio.create_task(self.run(prompt), name="prompt")
        work.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                yield event
            yield work.result()
        finally:
            self._listeners.remove(events.put_nowait)
            if not work.done():
                work.cancel()
                await _to_its_end(work)

    async def _work_on(self, prompt: str, handle: SessionHandle, answered: asyncio.Future[Result]) -> Result:
        assert self._running is not None
        giving = asyncio.ensure_future(self._give(prompt, handle))
        try:
            await _first_of(giving, self._running)
            if giving.done() and (refusal := giving.result()) is not None:
                return self._refused(refusal, handle)
        finally:
            if not giving.done():
                giving.cancel()
                await _to_its_end(giving)
        await _first_of(answered, self._running)
        if answered.done():
            return self._shaped(answered.result())
        with translated():
            outcome = self._running.result()
        return result_of(outcome.result, ())

    async def _give(self, prompt: str, handle: SessionHandle) -> str | None:
        """Hand it on to the session. Why a hook refuses it, if one does."""
        with translated():
            if not prompt.strip():
                raise ConfigurationError("the prompt is empty")
            if handle.is_command(prompt):
                return await handle.send(prompt)
            return await handle.prompt(await asyncio.to_thread(handle.expand, prompt))

    def _refused(self, reason: str, handle: SessionHandle) -> Result:
        from worker_agent.events import Result as TurnResult
        from worker_agent.messages import Usage

        turn = TurnResult(
            text="", reason="hook_stopped", is_error=True, turns=0, duration=0.0, duration_api=0.0, usage=Usage(), cost_usd=0.0,
            error=reason,
        )  # fmt: skip
        return result_of(handle.result_of_turn(turn), self._records(handle))

    def _shaped(self, result: Result) -> Result:
        """With what fits the output's type as a value of it."""
        if result.structured is None or isinstance(self._output, Mapping) or self._output is None:
            return result
        from pydantic import TypeAdapter

        return dataclasses.replace(result, structured=TypeAdapter(self._output).validate_python(result.structured))

    async def _drop(self, handle: SessionHandle) -> None:
        with translated():
            await handle.drop()

    def _observe(self, observed: Observed) -> None:
        from worker_agent.events import Result as TurnResult

        if (event := event_of(observed)) is not None:
            for listener in tuple(self._listeners):
                self._tell(listener, event)
        turn, handle, answered = observed.event, self._handle, self._answered
        if isinstance(turn, TurnResult) and observed.task_id is None and handle is not None and answered is not None:
            is_about_it = handle.commands_begun >= self._first_turn and not answered.done() and not handle.is_ending
            if is_about_it and (turn.is_error or handle.is_settled):
                answered.set_result(result_of(handle.result_of_turn(turn), self._records(handle)))

    def _tell(self, listener: Callable[[Event], None], event: Event) -> None:
        """A listener that fails is the program's matter: the session goes on, the event loop's handler is told."""
        try:
            listener(event)
        except Exception as error:
            asyncio.get_running_loop().call_exception_handler({"message": "on_event failed", "exception": error})

    # ── beside them ────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def session_id(self) -> str:
        """By which `resume` goes on with the session."""
        return self._entered().session_id

    async def interrupt(self) -> bool:
        """End the turn that runs, which gives its prompt a result that is not `ok`; workers go on. False where none runs."""
        return self._living().stop_turn()

    def tasks(self) -> tuple[Task, ...]:
        """The tasks of the session, in the order they were created in. Raises `StoreError`."""
        handle = self._living()
        with translated():
            return tuple(map(task_of, self._records(handle)))

    async def send(self, task: str, message: str) -> None:
        """A message to a worker, by its id or name: read at its next step; one that has ended goes on with it. Raises `NotFound`,
        `ConfigurationError` for what reads no messages."""
        from coordinator.session.coordinator import Sent

        handle = self._living()
        with translated():
            outcome = await handle.send_to(task, message)
        if outcome.sent is Sent.KILLED:
            raise ConfigurationError(f"{outcome.task.id} was killed, and a killed worker stays killed")

    async def kill(self, task: str) -> Task:
        """End a worker or a shell command, by its id or name: it is stored, and its processes are gone, when this returns. Raises
        `NotFound`."""
        handle = self._living()
        with translated():
            return task_of((await handle.stop_task(task)).task)

    async def set_permission_mode(self, mode: str) -> None:
        """From the next call on. Raises `ConfigurationError`."""
        handle = self._living()
        try:
            handle.set_permission_mode(mode)
        except ValueError as error:
            raise ConfigurationError(str(error)) from None

    async def set_model(self, model: str | None) -> None:
        """From the next turn on; None is the model that the session began with."""
        self._living().set_model(model)

    @staticmethod
    def _records(handle: SessionHandle) -> list[Any]:
        from tasks import registry
        from tasks.registry import TaskFilter

        found = handle.read(lambda conn: registry.list_tasks(conn, TaskFilter(session_id=handle.session_id)))
        return sorted(found, key=lambda task: task.created_at)

    def _entered(self) -> SessionHandle:
        if self._handle is None:
            raise Closed("there is no session yet: async with Coordinator(...) as one: …")
        return self._handle

    def _living(self) -> SessionHandle:
        handle = self._entered()
        if self._is_left or self._running is None or self._running.done():
            raise Closed(f"session {handle.session_id} is over; Coordinator(resume=…) goes on with it")
        return handle


async def run(prompt: str, **options: Any) -> Result:
    """`Coordinator(**options)` for one prompt."""
    async with Coordinator(**options) as one:
        return await one.run(prompt)


async def ask(prompt: str, **options: Any) -> str:
    """The answer to one prompt. Raises `RunFailed` where there is none."""
    return (await run(prompt, **options)).raise_for_error().text


async def stream(prompt: str, **options: Any) -> AsyncGenerator[Event, None]:
    """What happens while one prompt is worked on, the `Result` last."""
    async with Coordinator(**options) as one, aclosing(one.stream(prompt)) as events:
        async for event in events:
            yield event


async def _first_of(*works: asyncio.Future[Any]) -> None:
    """Until one of them has ended."""
    await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)


async def _to_its_end(work: asyncio.Future[Any]) -> None:
    """Until `work` has ended, however often whoever waits is cancelled; then the cancellation goes on."""
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
