"""The executor: who starts when, what leaves in which order, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.unit.tools.kit import Held, Policy, context_in, settle, use
from worker_agent.causes import Cause
from worker_agent.config import ToolSettings
from worker_agent.errors import ToolError
from worker_agent.events import ToolFinished, ToolProgress, ToolStarted
from worker_agent.tools import executor as executor_module
from worker_agent.tools.base import Input, Passthrough, PostToolUse, PreToolUse, Tool, ToolContext, ToolOutcome, ToolResult
from worker_agent.tools.executor import MOVES, CallState, IllegalMove, StreamingToolExecutor, admits
from worker_agent.tools.registry import ToolRegistry


class Bench:
    """An executor with the tools Safe, Alone, Writes and what it told."""

    def __init__(self, directory: Path, *extra: Tool, limit: int = 10, **options: Any) -> None:
        self.safe = Held(name="Safe")
        self.alone = Held(name="Alone", safe=False)
        self.writes = Held(name="Writes", safe=False, read_only=False)
        self.registry = ToolRegistry([self.safe, self.alone, self.writes, *extra])
        self.context: ToolContext = context_in(directory)
        self.events: list[Any] = []
        self.intents: list[str] = []
        self.stored: list[str] = []
        options = {"record_intent": self._intend, "on_event": self.events.append, "on_outcome": self._store} | options
        self.executor = StreamingToolExecutor(self.registry, self.context, max_concurrency=limit, **options)

    async def _intend(self, id: str) -> None:
        self.intents.append(id)

    async def _store(self, outcome: ToolOutcome) -> None:
        self.stored.append(outcome.tool_use_id)

    def add(self, name: str, n: int) -> None:
        self.executor.add_tool(use(f"{name.lower()}{n}", name, n=n))

    @property
    def running(self) -> list[int]:
        return sorted(self.safe.running + self.alone.running + self.writes.running)

    def kinds(self, kind: type) -> list[str]:
        return [e.tool_use_id for e in self.events if isinstance(e, kind)]


def play(scenario: Awaitable[None]) -> None:
    """Run, and prove that no task is left pending."""

    async def watched() -> None:
        await scenario
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(watched(), debug=True)


def texts(outcomes: list[ToolOutcome]) -> list[str]:
    return [o.block["content"] for o in outcomes]


def test_the_table_of_moves_is_complete_and_only_ends_are_final() -> None:
    assert MOVES.keys() == set(CallState)
    assert {state for state, moves in MOVES.items() if not moves} == {CallState.YIELDED, CallState.DISCARDED}


def test_a_move_that_is_not_in_the_table_raises() -> None:
    call = executor_module._Call(use("a"), None, None)
    with pytest.raises(IllegalMove, match="queued → yielded"):
        call.move(CallState.YIELDED)


@pytest.mark.parametrize(
    ("candidate", "running", "limit", "may"),
    [
        (True, [], 1, True), (False, [], 1, True), (True, [True], 2, True), (True, [True], 1, False),
        (True, [False], 9, False), (False, [True], 9, False), (True, [True, False], 9, False),
        (True, [True] * 9, 10, True),
        (True, [True] * 10, 10, False),
    ],
)  # fmt: skip
def test_admission(candidate: bool, running: list[bool], limit: int, may: bool) -> None:
    assert admits(candidate, running, limit) is may


def test_safe_calls_run_side_by_side_and_leave_in_the_order_asked(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path)
        for n in range(3):
            bench.add("Safe", n)
        await settle()
        assert bench.running == [0, 1, 2]
        results = asyncio.create_task(bench.executor.results())
        for n in (2, 0, 1):
            bench.safe.release(n)
            await settle()
        assert texts(await results) == ["result 0", "result 1", "result 2"]
        assert bench.safe.ended == [2, 0, 1] and bench.stored == ["safe2", "safe0", "safe1"]
        assert set(bench.executor.states.values()) == {CallState.YIELDED}

    play(scenario())


def test_an_unsafe_call_waits_for_all_before_it_and_holds_back_all_after_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path)
        for name, n in (("Safe", 0), ("Safe", 1), ("Alone", 2), ("Safe", 3)):
            bench.add(name, n)
        await settle()
        assert bench.running == [0, 1]
        bench.safe.release(0)
        await settle()
        assert bench.running == [1]
        bench.safe.release(1)
        await settle()
        assert bench.running == [2]
        bench.alone.release(2)
        await settle()
        assert bench.running == [3]
        bench.safe.release(3)
        assert len(await bench.executor.results()) == 4

    play(scenario())


def test_no_more_than_the_limit_run_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path, limit=3)
        for n in range(7):
            bench.add("Safe", n)
        await settle()
        assert bench.running == [0, 1, 2]
        bench.safe.release(1)
        await settle()
        assert bench.running == [0, 2, 3]
        for n in range(7):
            bench.safe.release(n)
        assert len(await bench.executor.results()) == 7

    play(scenario())


def test_a_call_starts_while_others_are_still_to_come(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path)
        bench.add("Safe", 0)
        await settle()
        assert bench.running == [0] and bench.kinds(ToolStarted) == ["safe0"]
        bench.safe.release(0)
        await settle()
        bench.add("Safe", 1)
        bench.safe.release(1)
        assert [o.tool_use_id async for o in bench.executor.outcomes()] == ["safe0", "safe1"]

    play(scenario())


def test_outcomes_leave_one_by_one_as_soon_as_those_before_them_are_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path)
        for n in range(3):
            bench.add("Safe", n)
        left: list[str] = []

        async def read() -> None:
            async for outcome in bench.executor.outcomes():
                left.append(outcome.tool_use_id)

        reading = asyncio.create_task(read())
        for n, seen in ((1, []), (0, ["safe0", "safe1"]), (2, ["safe0", "safe1", "safe2"])):
            bench.safe.release(n)
            await settle()
            assert left == seen
        await reading

    play(scenario())


def test_a_failing_call_cancels_nobody(tmp_path: Path) -> None:
    class Fails(Held):
        async def call(self, input: Input, context: ToolContext) -> ToolResult:
            raise ToolError("broken") if input["n"] else RuntimeError("bug")

    async def scenario() -> None:
        bench = Bench(tmp_path, Fails(name="Fails"))
        bench.add("Safe", 0)
        bench.add("Fails", 0)
        bench.add("Fails", 1)
        bench.add("Safe", 1)
        await settle()
        assert bench.running == [0, 1]
        bench.safe.release(0)
        bench.safe.release(1)
        outcomes = await bench.executor.results()
        assert [o.is_error for o in outcomes] == [False, True, True, False]

    play(scenario())


def test_a_question_about_safety_that_raises_counts_as_unsafe(tmp_path: Path) -> None:
    class Odd(Held):
        def is_concurrency_safe(self, input: Input) -> bool:
            raise RuntimeError

    async def scenario() -> None:
        odd = Odd(name="Odd", held=False)
        bench = Bench(tmp_path, odd)
        bench.add("Safe", 0)
        bench.add("Odd", 1)
        await settle()
        assert bench.running == [0] and odd.ended == []
        bench.safe.release(0)
        assert not any(o.is_error for o in await bench.executor.results())

    play(scenario())


def test_unknown_and_unreadable_calls_get_their_answer_beside_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path)
        bench.add("Safe", 0)
        bench.executor.add_tool(use("x", "Nowhere"))
        bench.executor.add_tool(use("y", "Writes", n=1), "the JSON was cut")
        await settle()
        assert bench.stored == ["x", "y"] and bench.intents == [] and not bench.executor.side_effects_started
        bench.safe.release(0)
        outcomes = await bench.executor.results()
        assert [(o.tool_use_id, o.is_error) for o in outcomes] == [("safe0", False), ("x", True), ("y", True)]

    play(scenario())


def test_the_intent_is_on_disk_before_a_call_with_side_effects_begins_and_only_then(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = asyncio.Event()

        async def intend(id: str) -> None:
            assert bench.writes.running == []
            await disk.wait()

        bench = Bench(tmp_path, record_intent=intend)
        bench.add("Safe", 0)
        bench.safe.release(0)
        await settle()
        assert bench.safe.ended == [0] and bench.writes.running == [] and not bench.executor.side_effects_started
        bench.add("Writes", 1)
        await settle()
        assert bench.writes.running == [] and bench.executor.side_effects_started
        disk.set()
        await settle()
        assert bench.writes.running == [1]
        bench.writes.release(1)
        await bench.executor.results()

    play(scenario())


def test_a_denied_call_records_no_intent(tmp_path: Path) -> None:
    from worker_agent.tools.base import Deny

    async def scenario() -> None:
        bench = Bench(tmp_path)
        bench.context.permissions = Policy(Deny("no"))
        bench.add("Writes", 0)
        assert (await bench.executor.results())[0].is_error
        assert bench.intents == [] and not bench.executor.side_effects_started and bench.writes.ended == []

    play(scenario())


def test_storing_an_outcome_holds_back_no_other_call(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = asyncio.Event()

        async def store(outcome: ToolOutcome) -> None:
            await disk.wait()

        bench = Bench(tmp_path, on_outcome=store)
        bench.add("Alone", 0)
        bench.add("Alone", 1)
        bench.alone.release(0)
        await settle()
        assert bench.running == [1]
        bench.alone.release(1)
        results = asyncio.create_task(bench.executor.results())
        await settle()
        assert not results.done()
        disk.set()
        assert len(await results) == 2

    play(scenario())


@pytest.mark.parametrize("where", ["record_intent", "on_outcome", "on_event"])
def test_what_fails_outside_of_a_call_ends_the_turn_and_hangs_nobody(tmp_path: Path, where: str) -> None:
    class Fenced(Exception):
        pass

    async def fails(_: Any) -> None:
        raise Fenced

    def fails_now(_: Any) -> None:
        raise Fenced

    async def scenario() -> None:
        options: dict[str, Any] = {where: fails_now if where == "on_event" else fails}
        bench = Bench(tmp_path, **options)
        bench.writes.release(0)
        bench.add("Writes", 0)
        bench.add("Writes", 1)
        with pytest.raises(Fenced):
            await bench.executor.results()
        await bench.executor.discard()
        assert bench.writes.running == [] and 1 not in bench.stored

    play(scenario())


def test_progress_arrives_at_any_time_but_not_after_the_end(tmp_path: Path) -> None:
    class Talks(Held):
        said: ClassVar[list[Callable[[str], None]]] = []

        async def call(self, input: Input, context: ToolContext) -> ToolResult:
            self.said.append(context.progress)
            context.progress(f"half of {input['n']}")
            return await super().call(input, context)

    async def scenario() -> None:
        talks = Talks(name="Talks")
        bench = Bench(tmp_path, talks)
        bench.add("Talks", 0)
        bench.add("Talks", 1)
        await settle()
        talks.release(1)
        await settle()
        for say in talks.said:
            say("late")
        assert [(e.tool_use_id, e.text) for e in bench.events if isinstance(e, ToolProgress)] == [
            ("talks0", "half of 0"), ("talks1", "half of 1"), ("talks0", "late")
        ]  # fmt: skip
        talks.release(0)
        await bench.executor.results()

    play(scenario())


def test_what_observers_see_of_a_call(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path)
        bench.add("Safe", 7)
        bench.safe.release(7)
        await bench.executor.results()
        started, finished = bench.events
        assert started == ToolStarted("safe7", "Safe", {"n": 7}, "Safe 7")
        assert (finished.tool_use_id, finished.name, finished.is_error) == ("safe7", "Safe", False)

    play(scenario())


# ── interrupts ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_interrupt_cancels_and_awaits_what_runs_and_answers_for_every_call(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path)
        bench.add("Safe", 0)
        bench.add("Safe", 1)
        bench.add("Writes", 2)
        bench.add("Safe", 3)
        bench.safe.release(0)
        await settle()
        outcomes = await bench.executor.interrupt(Cause.PERSON.in_words)
        assert [o.tool_use_id for o in outcomes] == ["safe0", "safe1", "writes2", "safe3"]
        assert [o.synthetic for o in outcomes] == [False, True, True, True]
        assert texts(outcomes)[0] == "result 0" and all("interrupted by the user" in t for t in texts(outcomes)[1:])
        assert "It had no effect" in texts(outcomes)[2] and "It had no effect" in texts(outcomes)[3]
        assert bench.running == [] and bench.safe.ended == [0, 1]
        assert bench.kinds(ToolFinished) == ["safe0", "safe1"]
        assert bench.executor.states.keys() == {"safe0", "safe1", "writes2", "safe3"}

    play(scenario())


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (Cause.PERSON.in_words, "interrupted by the user while it ran"),
        (Cause.KILLED.in_words, "interrupted by a kill of the task while it ran"),
        (Cause.TIMEOUT.in_words, "interrupted by the time limit while it ran"),
        ("stopped: a flood", "a flood"),
    ],
)
def test_effects_of_an_interrupted_call_that_had_begun_are_unknown(tmp_path: Path, reason: str, words: str) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path)
        bench.add("Writes", 0)
        await settle()
        (outcome,) = await bench.executor.interrupt(reason)
        text = outcome.block["content"]
        assert outcome.is_error and words in text and "effects are unknown" in text

    play(scenario())


def test_what_comes_after_an_interrupt_does_not_start_and_is_answered(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path)
        await bench.executor.interrupt(Cause.PERSON.in_words)
        bench.add("Writes", 0)
        await settle()
        (outcome,) = await bench.executor.results()
        assert outcome.synthetic and bench.writes.ended == [] and bench.events == []

    play(scenario())


def test_a_tool_that_ignores_cancellation_is_abandoned_within_the_bound(tmp_path: Path) -> None:
    let_go = asyncio.Event()

    class Deaf(Held):
        async def call(self, input: Input, context: ToolContext) -> ToolResult:
            while not let_go.is_set():
                try:
                    await let_go.wait()
                except asyncio.CancelledError:
                    continue
            return ToolResult("too late")

    async def scenario() -> None:
        bench = Bench(tmp_path, Deaf(name="Deaf", read_only=False), patience=0.05)
        bench.add("Deaf", 0)
        bench.add("Safe", 1)
        await settle()
        begun = time.monotonic()
        outcomes = await bench.executor.interrupt(Cause.KILLED.in_words)
        assert time.monotonic() - begun < 1
        assert "effects are unknown" in texts(outcomes)[0] and len(outcomes) == 2
        before = list(bench.events)
        let_go.set()
        await settle()
        assert bench.events == before and bench.stored == []
        assert await bench.executor.results() == outcomes

    play(scenario())


def test_an_outcome_that_is_being_stored_when_the_interrupt_comes_is_kept_and_stored(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk, stored = asyncio.Event(), []

        async def store(outcome: ToolOutcome) -> None:
            await disk.wait()
            stored.append(outcome.tool_use_id)

        bench = Bench(tmp_path, on_outcome=store)
        bench.add("Safe", 0)
        bench.safe.release(0)
        await settle()
        interrupting = asyncio.create_task(bench.executor.interrupt(Cause.PERSON.in_words))
        await settle()
        disk.set()
        (outcome,) = await interrupting
        assert outcome.block["content"] == "result 0" and stored == ["safe0"]

    play(scenario())


def test_results_that_wait_are_woken_by_an_interrupt(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path)
        bench.add("Safe", 0)
        results = asyncio.create_task(bench.executor.results())
        await settle()
        outcomes = await bench.executor.interrupt(Cause.PERSON.in_words)
        assert await results == outcomes

    play(scenario())


def test_who_stops_waiting_for_results_stops_no_call(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path)
        bench.add("Safe", 0)
        waiting = asyncio.create_task(bench.executor.results())
        await settle()
        waiting.cancel()
        await asyncio.wait({waiting})
        assert bench.running == [0]
        bench.safe.release(0)
        assert texts(await bench.executor.results()) == ["result 0"]

    play(scenario())


def test_a_call_cancelled_from_inside_is_a_failure_of_that_call_only(tmp_path: Path) -> None:
    class Cancels(Held):
        async def call(self, input: Input, context: ToolContext) -> ToolResult:
            raise asyncio.CancelledError

    async def scenario() -> None:
        bench = Bench(tmp_path, Cancels(name="Cancels"))
        bench.add("Cancels", 0)
        bench.add("Safe", 1)
        bench.safe.release(1)
        outcomes = await bench.executor.results()
        assert [o.is_error for o in outcomes] == [True, False] and "cancelled from inside" in texts(outcomes)[0]

    play(scenario())


def test_discarding_cancels_awaits_and_gives_nothing_more(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path)
        bench.add("Safe", 0)
        bench.add("Safe", 1)
        bench.add("Alone", 2)
        bench.safe.release(0)
        await settle()
        before = list(bench.events)
        await bench.executor.discard()
        assert bench.running == [] and bench.events == before
        assert await bench.executor.results() == [] and await bench.executor.interrupt(Cause.PERSON.in_words) == []
        assert set(bench.executor.states.values()) == {CallState.DISCARDED}

    play(scenario())


# ── an input that changes on its way ───────────────────────────────────────────────────────────────────────────────


class ByNumber(Held):
    """Safe and read-only for small numbers."""

    def is_concurrency_safe(self, input: Input) -> bool:
        return input["n"] < 100

    def is_read_only(self, input: Input) -> bool:
        return input["n"] < 100


class Raises:
    """A hook that adds 100 to the input of some calls."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers

    async def pre_tool_use(self, tool_name: str, input: Input, tool_use_id: str) -> PreToolUse:
        return PreToolUse(updated_input={"n": input["n"] + 100} if input["n"] in self.numbers else None)

    async def permission_request(self, *_: Any) -> Passthrough:
        return Passthrough()

    async def post_tool_use(self, *_: Any) -> PostToolUse:
        return PostToolUse()


def test_calls_that_hooks_make_unsafe_still_run_alone_in_their_order(tmp_path: Path) -> None:
    async def scenario() -> None:
        tool = ByNumber(name="ByNumber")
        bench = Bench(tmp_path, tool)
        bench.context.hooks = Raises(1, 2)
        for n in range(5):
            bench.add("ByNumber", n)
        await settle()
        assert tool.running == [0, 3, 4] and bench.intents == []
        for n in (0, 3, 4):
            tool.release(n)
        await settle()
        assert tool.running == [101] and bench.intents == ["bynumber1"]
        bench.add("ByNumber", 5)
        await settle()
        assert tool.running == [101]
        tool.release(101)
        await settle()
        assert tool.running == [102]
        tool.release(102)
        await settle()
        assert tool.running == [5]
        tool.release(5)
        assert [o.is_error for o in await bench.executor.results()] == [False] * 6

    play(scenario())


def test_a_call_that_waits_to_run_alone_can_be_interrupted(tmp_path: Path) -> None:
    async def scenario() -> None:
        tool = ByNumber(name="ByNumber")
        bench = Bench(tmp_path, tool)
        bench.context.hooks = Raises(1)
        bench.add("ByNumber", 0)
        bench.add("ByNumber", 1)
        await settle()
        outcomes = await bench.executor.interrupt(Cause.PERSON.in_words)
        assert [o.synthetic for o in outcomes] == [True, True] and "no effect" in texts(outcomes)[1]

    play(scenario())


# ── without streaming ──────────────────────────────────────────────────────────────────────────────────────────────


def test_an_executor_that_holds_starts_nothing_and_then_runs_safe_ones_together_and_others_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        most: list[int] = []

        class Counts(Held):
            async def call(self, input: Input, context: ToolContext) -> ToolResult:
                self.running.append(input["n"])
                await settle()
                most.append(len(self.running))
                self.running.remove(input["n"])
                return ToolResult(str(input["n"]))

            def is_concurrency_safe(self, input: Input) -> bool:
                return input["n"] != 2

        executor = StreamingToolExecutor(ToolRegistry([Counts(name="Counts")]), context_in(tmp_path), holds=True)
        for n in range(5):
            executor.add_tool(use(f"c{n}", "Counts", n=n), "cut" if n == 4 else None)
        await settle()
        assert most == [] and set(executor.states.values()) == {CallState.QUEUED}
        executor.release()
        outcomes = await executor.results()
        assert texts(outcomes)[:4] == ["0", "1", "2", "3"] and outcomes[4].is_error
        assert sorted(most) == [1, 1, 1, 2]

    play(scenario())


def test_what_is_held_is_answered_as_never_begun_by_an_interrupt(tmp_path: Path) -> None:
    async def scenario() -> None:
        held = Held()
        executor = StreamingToolExecutor(ToolRegistry([held]), context_in(tmp_path), holds=True)
        executor.add_tool(use("a"))
        (outcome,) = await executor.interrupt("interrupted by the user")
        assert "before it ran" in texts([outcome])[0] and outcome.synthetic and held.running == []

    play(scenario())


# ── cost ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_call_costs_little_beyond_its_tool_and_one_task(tmp_path: Path) -> None:
    """Least of several rounds of processor time, so that a busy machine does not fail it."""
    made: list[Any] = []

    def counted(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        made.append(coro)
        return asyncio.Task(coro, loop=loop, **options)

    async def scenario() -> float:
        tools = ToolRegistry([Held(held=False)])
        context = context_in(tmp_path, settings=ToolSettings())
        costs = []
        for _ in range(30):
            executor = StreamingToolExecutor(tools, context)
            begun = time.process_time()
            for n in range(100):
                executor.add_tool(use(f"t{n}", n=n))
            await executor.results()
            costs.append((time.process_time() - begun) / 100)
        asyncio.get_running_loop().set_task_factory(counted)
        executor = StreamingToolExecutor(tools, context)
        executor.add_tool(use("one"))
        await executor.results()
        asyncio.get_running_loop().set_task_factory(None)
        return min(costs)

    assert asyncio.run(scenario()) < 100e-6  # seconds; about 25e-6 on an idle machine
    assert len(made) == 1
