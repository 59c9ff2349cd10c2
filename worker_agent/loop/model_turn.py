"""One model call with all its tries: the only owner of the schedule.

Rules:

1. A try that fails before a call with side effects has started is thrown away whole: what was shown gets a tombstone,
   the executor is discarded, and the same request is sent again. Nothing of it reaches the history.
2. Once a call with side effects has started, the closed blocks *are* the assistant's message, whatever happens to the
   stream: their calls get their results and the turn goes on from there. Nothing runs twice, nothing is lost.
3. A block is on disk before its side effects begin (`_record_intent`), a result with side effects as soon as it is
   there (`_record_outcome`).
4. A `tool_use` reaches the executor the moment it closes; one that never closed never does. One whose JSON cannot be
   read waits for what follows: if the answer ends there at the output cap, the cap cut it, and it is no block of the
   answer at all; else the model is told what is wrong with it.
5. Overloads are counted over turns; the third in a row on the main model hands the turn to the fallback.
6. An answer with neither text nor calls is asked for once more, then it is a failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, assert_never

from msgspec import Struct, field

from worker_agent import events as e
from worker_agent import messages as m
from worker_agent.api.call import Call
from worker_agent.api.client import (
    BlockClosed,
    Finished,
    InputPiece,
    ModelEvent,
    ModelInfo,
    ModelRequest,
    Started,
    TextPiece,
    ThinkingPiece,
)
from worker_agent.api.fallback import OverloadCounter, strip_thinking
from worker_agent.api.retry import RetrySchedule
from worker_agent.context.view import with_user_context, without_media
from worker_agent.errors import ErrorKind, ModelError
from worker_agent.loop import transitions
from worker_agent.loop.decide import Answer
from worker_agent.loop.params import EventBuffer, QueryParams
from worker_agent.loop.ports import Prepared, Step
from worker_agent.loop.state import State
from worker_agent.messages import Block, Message, Usage, new_message_id
from worker_agent.structs import replace
from worker_agent.tools.base import Interrupted, ToolOutcome
from worker_agent.tools.executor import StreamingToolExecutor

FALLBACK_HOLDS = 600.0  # seconds
ASKS_AGAIN = frozenset({"end_turn", "stop_sequence", "tool_use"})


class Overloads(Struct):
    """What lasts over the turns and prompts of one agent: overload answers in a row on the main model, which fallback
    took over and until when (`clock.monotonic()`), and the messages of other models without their thinking, made once
    so that they stay the same objects."""

    counter: OverloadCounter
    fallback: str | None = None
    until: float = 0.0
    _stripped: dict[str, tuple[Message, ...]] = field(default_factory=dict)

    def model(self, main: str, now: float) -> str:
        """The one to begin a prompt with: a fallback that took over holds for a while, then the main model is tried."""
        if self.fallback is not None and now >= self.until:
            self.fallback = None
        return self.fallback or main

    def saw(self, error: ModelError | None) -> None:
        """How a try ended."""
        self.counter = self.counter.saw(error)

    def took_over(self, model: str, now: float) -> None:
        self.counter = replace(self.counter, count=0)
        self.fallback, self.until = model, now + FALLBACK_HOLDS

    def without_foreign_thinking(self, view: tuple[Message, ...], model: str) -> tuple[Message, ...]:
        if all(message.model in (None, model) for message in view):
            return view
        return tuple(kept for message in view for kept in self._for(message, model))

    def _for(self, message: Message, model: str) -> tuple[Message, ...]:
        if message.role != "assistant" or message.model in (None, model):
            return (message,)
        if message.id not in self._stripped:
            self._stripped[message.id] = strip_thinking((message,))
        return self._stripped[message.id]


class Try(Struct):
    """What one try brought so far."""

    executor: StreamingToolExecutor
    message_id: str = field(default_factory=new_message_id)
    call: Call | None = None  # None until its budget is held
    closed: list[Block] = field(default_factory=list)
    calls: int = 0
    open_text: dict[int, list[str]] = field(default_factory=dict)  # pieces: joined once, else it takes quadratic time
    unreadable: tuple[Block, str] | None = None  # the last block, if it is a call whose JSON cannot be read, and why
    shown: bool = False
    last_call: bool = False

    def begin(self, call: Call) -> None:
        """The budget of `call` is held."""
        self.call = call
        self.last_call = call.reservation.last_call

    def add_text(self, piece: TextPiece) -> None:
        self.open_text.setdefault(piece.index, []).append(piece.text)
        self.shown = True

    def add_thought(self) -> None:
        self.shown = True

    def add_call(self, block: Block, invalid: str | None, typed: Block | None) -> None:
        self.closed.append(block)
        self.calls += 1
        self.executor.add_tool(block, invalid, typed)

    def let_wait(self, block: Block, invalid: str) -> None:
        """A call that cannot be read: perhaps the answer was cut in it."""
        self.unreadable = (block, invalid)

    def add_unreadable(self) -> None:
        """The unreadable call was not the end: it is a call like any other, answered by what is wrong with it."""
        waiting, self.unreadable = self.unreadable, None
        if waiting is not None:
            self.add_call(*waiting, None)

    @property
    def usage(self) -> Usage:
        return self.call.usage if self.call else Usage()

    @property
    def finished(self) -> Finished:
        assert self.call is not None and self.call.finished is not None, "asked of a stream that ended well only"
        return self.call.finished


class ModelTurn:
    """Iterate `stream()` for what observers may see; then `answer` says what the turn brought, and `executor` holds
    its calls."""

    def __init__(self, params: QueryParams, state: State, prepared: Prepared, info: ModelInfo, overloads: Overloads) -> None:
        self.params = params
        self.state = state
        self.prepared = prepared
        self.info = info
        self.model = state.model
        self.overloads = overloads
        self.buffer = EventBuffer()
        self.results_id = new_message_id()
        self.answer = Answer(message=None, model=self.model)
        self.stored = False
        self.told: tuple[Message, ...] = ()  # what the agent was told for this call, stored before it
        self._schedule = RetrySchedule(params.agent.settings.retry, params.agent.rng)
        self._cap = self._first_cap()
        self._attempt = 0
        self._has_refreshed_credentials = False
        self._has_asked_again = False
        self._has_gone_plain = False
        self._lowered_cap_count = 0
        self._refused_media: set[str] = set()  # paths that were named
        self._try = self._new_try()

    @property
    def executor(self) -> StreamingToolExecutor:
        return self._try.executor

    @property
    def message_id(self) -> str:
        return self._try.message_id

    def note_stored(self) -> None:
        """The answer is on disk."""
        self.stored = True

    # ── the tries ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def stream(self) -> AsyncGenerator[e.Event, None]:
        while True:
            self._attempt += 1
            self._try = self._new_try()
            yield e.RequestStarted(self.model, self._attempt)
            error: ModelError | None = None
            try:
                async with aclosing(self._one_try()) as events:
                    async for event in events:
                        yield event
                error = self._is_empty()
            except Interrupted as interrupted:
                self.answer = self._partial_answer(aborted=str(interrupted))
            except ModelError as raised:
                error = raised
            yield self._called(error)
            if self.answer.aborted is not None:
                return
            self.overloads.saw(error)
            if error is None:
                self.answer = self._whole_answer()
                return
            if self._try.executor.side_effects_started:
                self.answer = replace(self._partial_answer(), error=error, side_effects=True)
                yield e.Notice(e.NoticeKind.STREAM_BROKEN, f"the answer broke off after a tool had started: {error.message}")
                return
            async for event in self._throw_away(error):
                yield event
            next_step = await self._mend(error)
            for event in next_step.events:
                yield event
            if next_step.delay is None:
                self.answer = Answer(message=None, model=self.model, error=error)
                return
            try:
                async with self.params.abort.guard():
                    await self.params.agent.clock.sleep(next_step.delay)
            except Interrupted as interrupted:
                self.answer = Answer(message=None, model=self.model, aborted=str(interrupted))
                return

    async def _one_try(self) -> AsyncGenerator[e.Event, None]:
        async with self.params.caller().call(self._request(), self.prepared.tokens) as call:
            self._try.begin(call)
            if call.reservation.last_call:
                await self._tell(call, transitions.last_report())
                call.forbid_tools()
            elif notice := call.reservation.notice:
                yield e.Notice(e.NoticeKind.BUDGET, notice)
                await self._tell(call, transitions.budget_notice(notice))
            async with aclosing(self._stream(call)) as events:
                async for shown in events:
                    yield shown

    async def _stream(self, call: Call) -> AsyncGenerator[e.Event, None]:
        """What the model says and what its tools do meanwhile, each as it happens: the model may be silent for long while
        a tool has something to say. Both write into one buffer, the model from a task of its own, which has ended when
        this has, however it is left."""
        listening = asyncio.create_task(self._listen(call))
        listening.add_done_callback(self.buffer.wake)
        try:
            while not listening.done():
                await self.buffer.wait()
                for shown in self.buffer.drain():
                    yield shown
            for shown in self.buffer.drain():
                yield shown
            listening.result()
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _listen(self, call: Call) -> None:
        async with aclosing(call.events()) as heard:
            async for event in heard:
                for shown in self._take(event, call.request):
                    self.buffer.put(shown)
                if self.buffer.is_full:
                    async with self.params.abort.guard():
                        await self.buffer.room()

    async def _tell(self, call: Call, message: Message) -> None:
        """What the agent must know for this call stands at its end, and in the history before it; said once a turn."""
        if message.content not in [told.content for told in self.told]:
            await self.params.agent.journal.append((message,))
            self.told = (*self.told, message)
            call.say(message)

    def _take(self, event: ModelEvent, request: ModelRequest) -> list[e.Event]:
        current = self._try
        match event:
            case Started():
                return [e.AnswerBegan(event.response_id, event.model or self.model, event.usage)]
            case TextPiece():
                current.add_text(event)
                return [e.TextDelta(event.text, event.index)]
            case ThinkingPiece():
                current.add_thought()
                return [e.ThinkingDelta(event.text, event.index)]
            case InputPiece():
                return [e.InputDelta(event.length)]
            case BlockClosed():
                current.open_text.pop(event.index, None)
                current.add_unreadable()
                self._close(event, request)
                return [e.BlockDone(event.index, event.block)]
            case Finished():
                if event.stop_reason != "max_tokens":
                    current.add_unreadable()
                return [e.AnswerDone(event.stop_reason, event.usage)]
            case _:
                assert_never(event)

    def _close(self, event: BlockClosed, request: ModelRequest) -> None:
        current, block = self._try, event.block
        if block["type"] == "text" and not block.get("text"):
            return  # the API refuses empty text on replay
        if block["type"] != "tool_use":
            current.closed.append(block)
        elif request.tools_allowed:
            self._call_or_wait(event)

    def _call_or_wait(self, event: BlockClosed) -> None:
        if event.invalid is not None:
            self._try.let_wait(event.block, event.invalid)
        else:
            self._try.add_call(event.block, None, event.typed)

    # ── what a failed try leads to ─────────────────────────────────────────────────────────────────────────────────

    async def _throw_away(self, error: ModelError) -> AsyncIterator[e.Event]:
        await self._try.executor.discard()
        for event in self.buffer.drain():
            yield event
        if self._try.shown:
            yield e.Tombstone(self._try.message_id, error.kind.value)

    async def _mend(self, error: ModelError) -> _Mend:
        """What to do after `error`, with every way guarded by a counter or a flag of this turn."""
        if error.kind is ErrorKind.EMPTY_ANSWER and not self._has_asked_again:
            self._has_asked_again = True
            return _Mend(0.0, (e.Notice(e.NoticeKind.EMPTY_ANSWER, "the answer was empty; asking once more"),))
        if error.kind is ErrorKind.UNSUPPORTED and not self._has_gone_plain:
            self._has_gone_plain = True
            self.info = await self.params.agent.client.model_info(self.model)
            return _Mend(0.0, (e.Notice(e.NoticeKind.PLAIN_ENDPOINT, error.news),) if error.news else ())
        if error.kind is ErrorKind.AUTHENTICATION and not self._has_refreshed_credentials:
            self._has_refreshed_credentials = True
            return _Mend(0.0) if await self.params.agent.client.refresh_credentials() else _Mend(None)
        if error.kind is ErrorKind.MAX_TOKENS_TOO_LARGE:
            return self._lower_cap(error)
        if error.kind is ErrorKind.MEDIA_TOO_LARGE and self._names_media(error):
            return await self._leave_out(error)
        if self.overloads.counter.tripped and self.params.agent.fallback_model not in (None, self.model):
            return await self._fall_back()
        self.params.agent.limiter.observe(error)
        delay = self._schedule.delay(error, self._attempt, deadline_left=self._deadline_left())
        if delay is None:
            return _Mend(None)
        return _Mend(delay, (self._retry_notice(error, delay),))

    def _names_media(self, error: ModelError) -> bool:
        """Whether the error names something new, and there is something it can mean: else only a summary helps."""
        has_media = any(without_media(message) is not message for message in self.prepared.view)
        return has_media and bool(set(error.paths) - self._refused_media)

    async def _leave_out(self, error: ModelError) -> _Mend:
        """The blocks that the error named are taken out, here and in every later call: a row says which (see
        `api/normalize.py`). A path that was named before is no reason to try again."""
        self._refused_media |= set(error.paths)
        row = m.notice(error.message, kind="api_error", media=list(error.paths))
        await self.params.agent.journal.append((row,))
        self.told = (*self.told, row)
        text = f"{error.message}; what it names is left out"
        return _Mend(0.0, (e.Notice(e.NoticeKind.MEDIA_REFUSED, text, {"paths": list(error.paths)}),))

    def _lower_cap(self, error: ModelError) -> _Mend:
        fits = error.limit if error.limit is not None else self._cap // 2
        if not 0 < fits < self._cap or self._lowered_cap_count >= 2:
            return _Mend(None)
        self._lowered_cap_count += 1
        if error.actual == self._cap:  # the model's own maximum, not what this prompt leaves of the window
            self.params.agent.limiter.output_caps[self.model] = fits
        text = f"the output cap of {self._cap:,} tokens does not fit; trying {fits:,}"
        self._cap = fits
        return _Mend(0.0, (e.Notice(e.NoticeKind.OUTPUT_CAP, text),))

    async def _fall_back(self) -> _Mend:
        before, self.model = self.model, self.params.agent.fallback_model or self.model
        self.info = await self.params.agent.client.model_info(self.model)
        self._cap, self._attempt = self._first_cap(), 0
        self.overloads.took_over(self.model, self.params.agent.clock.monotonic())
        text = f"{before} is overloaded; {self.model} takes over"
        return _Mend(
            0.0, (e.Notice(e.NoticeKind.MODEL_FALLBACK, text, {"from": before, "to": self.model, "reason": "overloaded"}),)
        )

    def _retry_notice(self, error: ModelError, delay: float) -> e.Notice:
        data = {
            "attempt": self._attempt,
            "max_retries": self.params.agent.settings.retry.max_tries,
            "retry_delay_ms": round(delay * 1000),
            "error_status": error.status,
            "error": error.kind.value,
        }
        return e.Notice(e.NoticeKind.API_RETRY, f"{error.message}; trying again in {delay:.1f} s", data)

    def _deadline_left(self) -> float | None:
        deadline = self.params.agent.deadline
        return None if deadline is None else max(0.0, deadline - self.params.agent.clock.monotonic())

    # ── values ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _new_try(self) -> Try:
        executor = StreamingToolExecutor(
            self.params.agent.registry,
            self.state.tool_context,
            max_concurrency=self.params.agent.settings.tools.max_concurrency,
            record_intent=self._record_intent,
            on_event=self.buffer.put,
            on_outcome=self._record_outcome,
            holds=not self.params.agent.settings.tools.streaming,
        )
        return Try(executor=executor)

    def _first_cap(self) -> int:
        settings = self.params.agent.settings.loop
        cap = self.state.max_output_tokens_override or settings.max_output_tokens or settings.default_output_tokens
        return min(cap, self.info.max_output, self.params.agent.limiter.output_caps.get(self.model, cap))

    def _request(self) -> ModelRequest:
        view = self.overloads.without_foreign_thinking(self.prepared.view, self.model)
        view = with_user_context((*view, *self.told), self.params.agent.user_context)
        return ModelRequest(
            model=self.model,
            max_tokens=self._cap,
            system=self.params.agent.system,
            tools=self.params.agent.registry.specs(),
            messages=view,
            conversation=self.params.agent.id,
            tools_allowed=not self.state.report_only,
            effort=self.params.agent.effort,
            output_schema=self.params.output_schema,
            context_management=self.prepared.context_management,
            betas=self.prepared.betas,
        )

    def _called(self, error: ModelError | None) -> e.ModelCalled:
        if self._try.call is None:
            return e.ModelCalled(None, self.model, Usage(), 0.0, error.kind.value if error else None)
        return self._try.call.called(error)

    def _is_empty(self) -> ModelError | None:
        current = self._try
        reason = current.finished.stop_reason
        has_text = any(b["type"] == "text" and b["text"].strip() for b in current.closed)
        if reason in ASKS_AGAIN and not current.calls and (not has_text or (reason == "tool_use" and not current.last_call)):
            what = "named no call" if reason == "tool_use" else "had no text and no calls"
            return ModelError(ErrorKind.EMPTY_ANSWER, f"the model's answer {what}")
        if reason == "model_context_window_exceeded":
            return ModelError(ErrorKind.PROMPT_TOO_LONG, "the context window filled while the model answered")
        if reason == "refusal":
            return _refusal(current.finished)
        return None

    def _whole_answer(self) -> Answer:
        current = self._try
        current.executor.release()
        cut = current.unreadable[0] if current.unreadable else current.finished.open_block
        cut_calls = (cut["name"],) if cut is not None and cut.get("type") == "tool_use" else ()
        return self._answer(current.closed, stop_reason=current.finished.stop_reason, cut_calls=cut_calls)

    def _partial_answer(self, aborted: str | None = None) -> Answer:
        """Closed blocks, and on an interrupt the text that was still open."""
        self._try.add_unreadable()
        blocks = list(self._try.closed)
        if aborted is not None:
            blocks += [m.text_block(text) for _, pieces in sorted(self._try.open_text.items()) if (text := "".join(pieces))]
        return self._answer(blocks, aborted=aborted)

    def _answer(self, blocks: list[Block], **fields: Any) -> Answer:
        current = self._try
        message: Message | None = None
        if any(b["type"] not in ("thinking", "redacted_thinking") for b in blocks):
            message = m.assistant(
                blocks,
                id=current.message_id,
                usage=current.usage,
                stop_reason=fields.get("stop_reason"),
                model=self.model,
                response_id=current.call.response_id if current.call else None,
                at=self.params.agent.clock.now(),
            )
        return Answer(
            message=message,
            model=self.model,
            calls=current.calls,
            side_effects=current.executor.side_effects_started,
            usage=current.usage,
            last_call=current.last_call,
            **fields,
        )

    # ── what is on disk before and after side effects ──────────────────────────────────────────────────────────────

    async def _record_intent(self, tool_use_id: str) -> None:
        if not self.stored:
            current = self._try
            step = Step(kind="answer", message_id=current.message_id, blocks=tuple(current.closed), model=self.model)
            await self.params.agent.journal.step(step)

    async def _record_outcome(self, outcome: ToolOutcome) -> None:
        if not outcome.read_only and not outcome.synthetic:
            await self.params.agent.journal.step(Step(kind="result", message_id=self.results_id, blocks=(outcome.block,)))


class _Mend(Struct, frozen=True):
    """Try again after `delay` seconds (None: give up), telling the observer `events` first."""

    delay: float | None
    events: tuple[e.Event, ...] = ()


def _refusal(finished: Finished) -> ModelError:
    details = finished.stop_details or {}
    why = details.get("explanation") or details.get("category")
    return ModelError(ErrorKind.REFUSAL, f"the model declined to answer{f': {why}' if why else ''}")
