"""One session while it runs: the coordinator's turns, the waiting between them, and every way it can end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from coordinator.agents.inbox import FROM_USER
from coordinator.observed import Observed
from coordinator.options import RunOptions
from coordinator.other_processes import lease
from coordinator.other_processes.foreign import ForeignChanges, Reactions
from coordinator.runs.held_directory import HeldDirectory
from coordinator.session import permission_updates, results
from coordinator.session.interruption import Interruption
from coordinator.session.parts import Parts
from coordinator.session.suggestions import Suggestions
from coordinator.session.verification import Verifier
from coordinator.session.wrapping_up import BY_USER, WrappingUp
from coordinator.views import failure
from coordinator.views.exit_codes import ExitCode
from tasks import outbox, sessions
from tasks.errors import DatabaseError, Fenced
from tasks.records import SessionRecord, SessionStatus, TaskRecord
from worker_agent.causes import Cause
from worker_agent.context.injected import news
from worker_agent.context.rebuild import was_made_by_hand
from worker_agent.errors import ConfigError
from worker_agent.events import Notice, NoticeKind, Result
from worker_agent.hooks import Verdict
from worker_agent.messages import Block, Message, text_block, user
from worker_agent.session.commands import parse_command
from worker_agent.session.engine import Limits
from worker_agent.structs import replace

NEVER = float("-inf")
IN_A_ROW = 2.0  # seconds: an interrupt so soon after another is the next one of a row, whatever has begun between them
TOGETHER = 0.05  # seconds: workers that end at about the same time are told of in one turn, not in one each


def _refusal(verdict: Verdict) -> str:
    return f"a hook refuses the prompt: {verdict.stop or '; '.join(verdict.blocking)}"


class RunOutcome(Struct, frozen=True):
    """`result` is the documented result object. `is_over`: nothing of the session is left for `resume` to go on with."""

    exit_code: ExitCode
    result: Mapping[str, Any]
    session_id: str
    is_over: bool = False


class Session:
    """Built by `app.py`. `run` once."""

    def __init__(self, options: RunOptions, record: SessionRecord, parts: Parts) -> None:
        self.options, self.record, self.parts = options, record, parts
        self._sending = asyncio.Lock()
        self._ending: Cause | None = None
        self._interrupts = 0  # in a row
        self._interrupted_at = self._turn_began_at = NEVER  # on the monotonic clock
        self._in_turn = False
        self._commands: deque[str | Message] = deque()  # slash commands that a person typed, prompts of a program
        self.commands_begun = 0  # how many of them a turn was begun for
        self._greeting_left: tuple[str, ...] = ()  # what hooks said at the start, until there is a prompt to go with
        self._has_begun = asyncio.Event()
        self._ended_in_turn = False
        self._stays = options.interactive
        self._turns = 0
        self._side_work: set[asyncio.Task[Any]] = set()
        self._over_budget_before: tuple[str, ...] = ()
        self._started = parts.store.clock.monotonic()
        self._end_is_stored = False
        self._is_verified = self._is_shaped = False  # since the last turn
        self._is_checked = False  # the turn answers a program's prompt, which is checked before it counts as answered
        self._is_dropped = False  # what was asked for is not wanted any more: no turn begins before the next prompt
        self._cut_short = asyncio.Event()
        self._rests = asyncio.Event()  # `run` waits for something to happen, or is over
        self._held: HeldDirectory | None = None
        self._suggestions = Suggestions(
            parts.engine, lambda event: parts.observer(Observed(parts.store.session_id, None, event))
        )
        self._verifier = Verifier(options.verify, record.cwd, parts.engine.agent.tool_context, parts.processes)
        self._foreign = ForeignChanges(parts.store, parts.wakes.elsewhere, self._reactions())
        loop = asyncio.get_running_loop()
        parts.wakes.failed.listen(lambda: loop.call_soon_threadsafe(self.end, Cause.STORE))
        parts.wakes.remark.listen(self._wake)

    def _reactions(self) -> Reactions:
        """What is done about other processes' doings."""
        return Reactions(
            running=lambda: set(self.parts.backend.running()),
            unwind=self.parts.coordinator.unwind,
            adopt=self._adopt,
            wrap_up=WrappingUp(self.parts, self._put, self._spawn).begin,
            nudge=self.parts.nudge,
            lost=lambda: self.end(Cause.LOST),
        )

    # ── from outside ───────────────────────────────────────────────────────────────────────────────────────────────

    def interrupt(self) -> Interruption:
        """At rest there is no turn to end, and the next one must not find itself interrupted."""
        now = self.parts.store.clock.monotonic()
        if self._stays and self._turn_began_at > self._interrupted_at and now - self._interrupted_at > IN_A_ROW:
            self._interrupts = 0
        self._interrupts += 1
        self._interrupted_at = now
        self._cut_short.set()
        done = self._interruption()
        if self._has_turn_to_end:
            self.parts.engine.interrupt(Cause.PERSON)
        if self._interrupts > 1:
            self._spawn(self._stop_workers())
        self.parts.wakes.ready.set()
        return done

    def _interruption(self) -> Interruption:
        if self._interrupts > 2:
            return Interruption.AT_ONCE
        if self._interrupts == 2:
            return Interruption.WORKERS
        if self._has_turn_to_end:
            return Interruption.TURN
        return Interruption.NO_TURN if self._something_runs() else Interruption.NOTHING

    @property
    def _has_turn_to_end(self) -> bool:
        """Whether one runs, or the first one is about to."""
        is_before_first = self._turn_began_at == NEVER and self.options.prompt is not None
        return self._in_turn or is_before_first or not self._stays

    def stop_turn(self) -> bool:
        if self._in_turn:
            self.parts.engine.interrupt(Cause.PERSON)
        return self._in_turn

    def forget_interrupts(self) -> None:
        self._interrupts = 0

    def end(self, ending: Cause) -> None:
        if ending is Cause.LOST and self._end_is_stored:
            return
        if ending is Cause.LOST:
            self.parts.store.lose()
        self.parts.questions.keep()
        if self._ending is None:
            self._ending = ending
            self._cut_short.set()
            self._ended_in_turn = self._in_turn
            self.parts.engine.interrupt(ending)
            self.parts.wakes.ready.set()

    def leave(self) -> None:
        self._stays = False
        self.parts.wakes.ready.set()

    @property
    def is_in_turn(self) -> bool:
        return self._in_turn

    @property
    def is_ending(self) -> bool:
        return self._ending is not None

    @property
    def is_settled(self) -> bool:
        return not (self._commands or self.parts.inbox.waiting() or self._something_runs() or self._owes_checks)

    @property
    def _owes_checks(self) -> bool:
        """Whether an answer to a program's prompt is still to be verified, or to be given as its schema wants it."""
        unchecked = not self._is_verified if self.options.verify else False
        unshaped = not self._is_shaped if self.options.json_schema is not None else False
        return self._is_checked and not self._is_dropped and (unchecked or unshaped)

    async def drop(self) -> None:
        """What was asked for is not wanted any more: the turn ends, what runs is stopped, its processes are gone when this
        returns. What is left of it to be told waits for the next prompt. Not for a session that ends when nothing is left."""
        self._is_dropped = True
        self._commands.clear()
        while self._ending is None:
            self._cut_short.set()
            self.stop_turn()
            self.parts.wakes.ready.set()
            await self._stop_workers(announced=False)
            # What has stored its end may still be about to close: waited for, not looked at again and again.
            await asyncio.gather(*(self.parts.backend.stop(id, Cause.PERSON) for id in self.parts.backend.running()))
            await self._rests.wait()
            if not self._something_runs():
                return

    def result_of_turn(self, result: Result) -> dict[str, Any]:
        closing = replace(self._closing(result, live=()), turns=self._turns + result.turns)
        return results.result_object(self.parts.store, self.parts.redact, self.parts.denials, closing)

    def set_permission_mode(self, mode: str) -> None:
        permission_updates.set_mode(self.parts, mode)

    async def send(self, text: str) -> str | None:
        if parse_command(text) is not None:
            self._commands.append(text)
            self.parts.wakes.ready.set()
            return None
        text = self.parts.redact(text)
        async with self._sending:  # what was typed first is read first, however long its hooks take
            verdict = await self.parts.hooks.user_prompt_submit(text)
            if verdict.blocked:
                self._notice(NoticeKind.HOOK, _refusal(verdict))
                return _refusal(verdict)
            said = (text, *self._take_greeting(), *verdict.context)
            await self._put(self.parts.store.session_id, "\n\n".join(said), FROM_USER)
        self._interrupts = 0
        self.parts.nudge()
        return None

    async def prompt(self, text: str, blocks: Sequence[Block] = ()) -> str | None:
        """A turn of its own for what a program says, `blocks` (images, documents) included. Why a hook refuses it, if one
        does."""
        await self._has_begun.wait()
        text = self.parts.redact(text)
        async with self._sending:
            verdict = await self.parts.hooks.user_prompt_submit(text)
            if verdict.blocked:
                return _refusal(verdict)
            self._commands.append(self._message(text, (*self._take_greeting(), *verdict.context), blocks))
        self._interrupts = 0
        self._is_dropped = False
        self._cut_short.clear()
        self.parts.wakes.ready.set()
        return None

    def _take_greeting(self) -> tuple[str, ...]:
        greeting, self._greeting_left = self._greeting_left, ()
        return greeting

    def update_permissions(self, updates: Sequence[Mapping[str, Any]]) -> None:
        """Raises `ConfigError`; then nothing was changed."""
        permission_updates.apply(self.parts, updates)

    async def _put(self, agent_id: str, text: str, sender: str) -> None:
        store = self.parts.store
        await store.write(
            lambda conn: outbox.send(conn, session_id=store.session_id, agent_id=agent_id, body=text, sender=sender)
        )

    def _wake(self, agent_id: str | None, text: str) -> None:
        """A hook in the background has something to say to an agent."""

        async def wake() -> None:
            if agent_id is None or agent_id in {task.agent_id for task in self.parts.coordinator.live()}:
                await self._put(agent_id or self.parts.store.session_id, text, "system")
                self.parts.nudge()

        self._spawn(wake())

    # ── the run ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> RunOutcome:
        watching = [
            asyncio.create_task(lease.keep(self.parts.store, lambda: self.end(Cause.LOST)), name="lease"),
            asyncio.create_task(self._foreign.watch(), name="foreign changes"),
        ]
        if self.options.timeout:
            watching.append(asyncio.create_task(self._time_limit(), name="time limit"))
        try:
            if not self.options.use_coordinator:  # who works in it itself
                self._held = HeldDirectory(Path(self.record.cwd))
            result = await self._work()
            return await self._close(result)
        except Fenced:
            self.end(Cause.LOST)
            return await self._close(None)
        except (DatabaseError, OSError) as error:
            return await self._close_after(error)
        finally:
            for task in (*watching, *self._side_work):
                task.cancel()
            await asyncio.gather(*watching, *self._side_work, return_exceptions=True)
            if self._held is not None:
                self._held.close()
            await self.parts.backend.close(Cause.TERMINATED)
            await lease.release(self.parts.store)  # nothing to do where the session was ended or lost
            self._rests.set()

    async def _close_after(self, error: DatabaseError | OSError) -> RunOutcome:
        """Nothing more can be stored: what runs is unwound, `resume` goes on from what is stored."""
        if isinstance(error, DatabaseError):
            self.parts.store.fail(error)
        else:
            self.parts.store.fail_if_full(error)
        if self.parts.store.failure is None:
            raise error
        self.end(Cause.STORE)
        return await self._close(None)

    async def _work(self) -> Result | None:
        """The coordinator's turns until there is nothing more to do; the last result. Each step that takes time is
        followed by another look: what came meanwhile is read before the session may end."""
        prompt = await self._begin()
        self._has_begun.set()
        result = await self._turn(prompt) if prompt is not None or self._has_open_turn() else None
        while True:
            while self._goes_on(result) and await self._more_to_do(result):
                result = await self._next_turn()
            if not self._finished(result):
                break
            if result is not None and not self._is_verified:
                result = await self._verify(result)
            elif result is not None and not self._is_shaped and self.options.json_schema is not None:
                result = await self._structured(self.options.json_schema)
            elif not self._stays and await self._may_end(result):
                return result
        await self._let_workers_end(result)
        return result

    async def compact(self, instructions: str) -> Result:
        """In place of `run`: summarise the stored conversation, and leave everything else as it stands."""
        keeping = asyncio.create_task(lease.keep(self.parts.store, lambda: self.end(Cause.LOST)), name="lease")
        try:
            await self.parts.engine.agent.journal.append(self.parts.history.added)
            return await self._submit(f"/compact {instructions}".rstrip())
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await self.parts.let_engine_go()
            await self.parts.hooks.close()
            if self.record.status is SessionStatus.ENDED:
                reason = self.record.end_reason
                await self.parts.store.write(
                    lambda conn: sessions.end(conn, self.record.id, self.parts.store.fence, reason=reason)
                )
            else:
                await lease.release(self.parts.store)

    async def _begin(self) -> Message | str | None:
        """Take up what an earlier owner left: repaired messages, running tasks. The prompt to begin with, if any."""
        for line in self.parts.problems:
            self._notice(NoticeKind.CONFIG, line)
        if self.parts.history.messages:
            self._over_budget_before = results.over_budget(self.parts.store)
        await self.parts.engine.agent.journal.append(self.parts.history.added)
        greeting = await self._greeting()
        for task in self.parts.coordinator.live():
            await self._adopt(task)
        if self.parts.history.added and (live := await self.parts.engines.recollection.live_tasks()):
            await self.parts.engine.append(*live)
        prompt = self.options.prompt
        if prompt and parse_command(prompt) is not None:
            return prompt
        asked = "\n\n".join(dict.fromkeys(filter(None, (self._unbegun_goal(), prompt))))
        if asked:
            return await self._from_person(asked, greeting)
        self._greeting_left = greeting
        return None

    def _unbegun_goal(self) -> str | None:
        """What the session was made for, if its owner died before the first message of it was stored."""
        return None if self.parts.history.messages else self.record.goal

    async def _greeting(self) -> tuple[str, ...]:
        """What `SessionStart` hooks want the model to know; the environment they give goes to the tools."""
        taken_up = "fork" if self.options.fork_session else "resume"
        verdict = await self.parts.hooks.session_start(taken_up if self.parts.history.messages else "startup")
        self.parts.engines.add_environment(verdict.environment)
        self.parts.engine.agent.tool_context.add_environment(verdict.environment)
        return verdict.context

    async def _from_person(self, prompt: str, more: tuple[str, ...] = ()) -> Message:
        """A prompt with what hooks add. Raises `ConfigError` if a `UserPromptSubmit` hook erases it."""
        verdict = await self.parts.hooks.user_prompt_submit(prompt)
        if verdict.blocked:
            await self.parts.hooks.session_end("other")
            raise ConfigError(_refusal(verdict))
        return self._message(prompt, (*more, *verdict.context), self.options.attachments)

    def _message(self, prompt: str, more: Sequence[str], blocks: Sequence[Block]) -> Message:
        """A prompt with what stands behind it: what hooks add, and what is new since the conversation began."""
        now, surroundings = self.parts.store.clock.now(), self.parts.history.surroundings
        changed = news(surroundings["system"], Path(self.record.cwd), now) if surroundings else None
        text = "\n\n".join(filter(None, (prompt, *more, changed)))
        return user([text_block(text), *blocks] if blocks else text, at=now)

    def _notice(self, kind: NoticeKind, text: str) -> None:
        self.parts.observer(Observed(self.parts.store.session_id, None, Notice(kind, self.parts.redact(text))))

    def _has_open_turn(self) -> bool:
        """Whether the stored conversation waits for an answer of the model."""
        last = self.parts.engine.messages[-1] if self.parts.engine.messages else None
        if last is None or was_made_by_hand(self.parts.engine.messages):
            return False
        return not (last.kind == "answer" and not last.tool_uses)

    async def _next_turn(self) -> Result:
        command = self._commands.popleft() if self._commands else None
        if command is not None:
            self.commands_begun += 1
            self._is_checked = isinstance(command, Message)
            self._verifier.begin_anew()
        return await self._turn(command)

    async def _turn(self, prompt: Message | str | None) -> Result:
        """One run of the coordinator's loop."""
        self._is_verified = self._is_shaped = False
        limit = self.options.max_turns
        left = None if limit is None else max(0, limit - self.parts.engine.tool_turns)
        return await self._submit(prompt, Limits(max_turns=left, token_budget=self.options.turn_target))

    async def _submit(self, prompt: Message | str | None, limits: Limits = Limits()) -> Result:
        result: Result | None = None
        self._suggestions.drop()
        self._in_turn, self._turn_began_at = True, self.parts.store.clock.monotonic()
        try:
            async for event in self.parts.engine.submit_message(prompt, limits):
                result = event if isinstance(event, Result) else None
                self.parts.observer(Observed(self.parts.store.session_id, None, event))
        finally:
            self._in_turn = False
        assert result is not None
        self._turns += result.turns
        return result

    def _goes_on(self, result: Result | None) -> bool:
        """Whether more turns may follow this result."""
        if self._ending is not None:
            return False
        return self._stays or self._interrupts > 0 or result is None or not result.is_error

    async def _more_to_do(self, result: Result | None) -> bool:
        """Wait until something is ready for the coordinator (True), or nothing can come any more (False) before `result`
        has been checked."""
        changed = self.parts.wakes.ready
        while self._ending is None:
            changed.clear()
            self.parts.inbox.nudge()
            may_speak = (not self._interrupts or self._stays) and not self._is_dropped
            if self._commands or (may_speak and self.parts.inbox.waiting() and not self._should_hear_more()):
                if self.parts.backend.running():
                    await self.parts.store.clock.sleep(TOGETHER)
                    if self._is_dropped:
                        continue
                return self._ending is None
            if not self._something_runs():
                if not self._stays or (result is not None and not result.is_error and self._owes_checks):
                    return False
                if self.options.chat_suggest:
                    self._suggestions.person_is_asked()
            self._rests.set()
            await changed.wait()
            self._rests.clear()
        return False

    def _should_hear_more(self) -> bool:
        """The budget leaves the coordinator little more than its report: that is made when all workers have ended."""
        return not self._stays and not self.parts.budget.has_room and self._workers_run()

    def _something_runs(self) -> bool:
        return bool(self.parts.backend.running() or self.parts.coordinator.live())

    async def _let_workers_end(self, result: Result | None) -> None:
        """A coordinator that failed takes nobody along: its workers go on to their own ends, and what they report
        waits in the store for a resumed session."""
        if self._ending is None and result is not None and self._workers_run():
            why = failure.in_words(result, self.parts.store.session_id) or ""
            self._notice(NoticeKind.COORDINATOR_FAILED, f"{why}; its workers go on to their ends".lstrip("; "))
        while self._ending is None and self._workers_run():
            self.parts.wakes.ready.clear()
            if self._workers_run():
                await self.parts.wakes.ready.wait()

    def _workers_run(self) -> bool:
        return any(task.reports for task in self.parts.coordinator.live()) or self._reporting()

    def _reporting(self) -> bool:
        """Whether a run is still here whose end is stored already, and that may have more to say."""
        live = {task.id for task in self.parts.coordinator.live()}
        return any(task_id not in live for task_id in self.parts.backend.running())

    def _finished(self, result: Result | None) -> bool:
        return self._ending is None and not self._interrupts and (result is None or not result.is_error)

    async def _structured(self, schema: Mapping[str, Any]) -> Result:
        """The answer once more, as JSON that fits the schema: asked for when the work is done, because the answers
        before it, while workers ran, are no results."""
        self._is_shaped = True
        text = "Give the result of the whole work now, as one JSON value that fits the required schema, and nothing else."
        asked = user(text, kind="meta", meta=True, data={"reason": "result_schema"})
        return await self._submit(asked, Limits(result_schema=schema))

    async def _verify(self, result: Result) -> Result:
        """Run the command that must succeed; what it complains of goes back to the coordinator, within a bound."""
        self._is_verified = True
        complaint = await self._unless_cut_short(self._verifier.complaint()) if self._verifier.may_try_again else None
        if complaint is None or not self._verifier.may_try_again:
            if self._is_checked and self.options.verify:  # it counts from now on
                self.parts.observer(Observed(self.parts.store.session_id, None, result))
            return result
        return await self._turn(user(complaint, kind="meta", meta=True, data={"reason": "verify"}))

    async def _unless_cut_short(self, work: Coroutine[Any, Any, str | None]) -> str | None:
        """What `work` answers; None if the session is ended or interrupted before it does."""
        task, cut = asyncio.create_task(work), asyncio.create_task(self._cut_short.wait())
        try:
            await asyncio.wait({task, cut}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            task.cancel()
            cut.cancel()
            await asyncio.gather(task, cut, return_exceptions=True)

    async def _may_end(self, result: Result | None) -> bool:
        """End the session if nothing waits and nothing lives: one transaction decides and stores it, so that nothing
        can come in between. Not while a person stays."""
        await self.parts.processes.end_own()
        closing = self._closing(result, live=())
        store, is_idle = self.parts.store, False
        self._end_is_stored = True  # from here on a lease that is gone was given back, not lost
        try:
            is_idle = await store.write(
                lambda conn: sessions.end_if_idle(conn, store.session_id, store.fence, reason=closing.reason)
            )
        finally:
            self._end_is_stored = is_idle
        return is_idle

    # ── reactions ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _adopt(self, task: TaskRecord) -> None:
        """Run a task that this process does not run yet: of an earlier owner, or created by another process."""
        await self.parts.backend.spawn(task.id)

    async def _stop_workers(self, *, announced: bool = True) -> None:
        """`announced`: the coordinator is told of each."""
        stop = self.parts.coordinator.stop
        await asyncio.gather(*(stop(task.id, by=BY_USER, announced=announced) for task in self.parts.coordinator.live()))

    async def _time_limit(self) -> None:
        await self.parts.time_limit.run_out()
        self.end(Cause.TIMEOUT)

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._side_work.add(task)
        task.add_done_callback(self._side_work.discard)

    # ── the end ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _close(self, result: Result | None) -> RunOutcome:
        """Unwind what runs, store how it ended, and say so."""
        live = self._still_live()
        await self.parts.backend.close(Cause.TERMINATED)
        if not self._end_is_stored:  # else they were ended before, and another process may drive the session already
            await self.parts.processes.end_own()
        await self._suggestions.close()
        await self.parts.let_engine_go()
        await self.parts.hooks.session_end(str(self._ending or "other"))
        await self.parts.hooks.close()
        closing = self._closing(result, live)
        code, value = await results.conclude(self.parts.store, self.parts.redact, self.parts.denials, closing)
        is_over = closing.ends_session and self.parts.store.failure is None
        return RunOutcome(code, value, self.parts.store.session_id, is_over)

    def _closing(self, result: Result | None, live: tuple[str, ...]) -> results.Closing:
        over_budget = (id for id in results.over_budget(self.parts.store) if id not in self._over_budget_before)
        return results.Closing(
            session_id=self.parts.store.session_id,
            result=result,
            ending=self._ended_early(),
            live=live,
            over_budget=tuple(over_budget),
            unverified=self._verifier.failure,
            lost_directory=self.record.cwd if self._held is not None and self._held.is_gone else None,
            duration=self.parts.store.clock.monotonic() - self._started,
            turns=self._turns,
            in_turn=self._ended_in_turn,
            is_stored=self._end_is_stored,
        )

    def _still_live(self) -> tuple[str, ...]:
        if self._ending is Cause.LOST or self._end_is_stored:
            return ()
        try:
            return tuple(task.id for task in self.parts.coordinator.live())
        except DatabaseError:
            return ()  # the store says itself that it cannot be read

    def _ended_early(self) -> Cause | None:
        if self._end_is_stored:
            return None
        if self._ending is None and self._interrupts and not self.options.interactive:
            return Cause.PERSON
        return self._ending
