"""The executor under random tools, ends, interrupts and discards: whatever happens, its promises hold."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.unit.tools.kit import context_in
from worker_agent.causes import Cause
from worker_agent.config import ToolSettings
from worker_agent.errors import ToolError, TurnOver
from worker_agent.events import ToolFinished, ToolProgress, ToolStarted
from worker_agent.tool_facts import Facts
from worker_agent.tools.base import Input, Passthrough, PostToolUse, PreToolUse, Tool, ToolContext, ToolOutcome, ToolResult
from worker_agent.tools.executor import MOVES, CallState, StreamingToolExecutor
from worker_agent.tools.registry import ToolRegistry

HOW = ("at once", "held", "slow to end", "deaf")
ENDS = ("result", "error", "bug", "turn over", "cancelled", "big")


class Wild(Tool):
    """A call does what its input says, and the machine sees who runs beside whom."""

    facts = Facts(name="Wild")
    description = "Does anything."
    input_schema: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {
            "n": {"type": "integer"},
            "safe": {"type": "boolean"},
            "read_only": {"type": "boolean"},
            "how": {"enum": list(HOW)},
            "end": {"enum": list(ENDS)},
        },
        "required": ["n", "safe", "read_only", "how", "end"],
        "additionalProperties": False,
    }

    def __init__(self) -> None:
        self.gates: dict[int, asyncio.Event] = {}
        self.running: dict[int, bool] = {}
        self.deaf: set[int] = set()
        self.order: list[int] = []
        self.most = 0
        self.overlap = False

    def is_read_only(self, input: Input) -> bool:
        return input["read_only"]

    def is_concurrency_safe(self, input: Input) -> bool:
        if input["n"] % 11 == 10:
            raise RuntimeError("cannot say")
        return input["safe"]

    async def call(self, input: Input, context: ToolContext) -> ToolResult:
        n = input["n"]
        safe = input["safe"] and n % 11 != 10
        self.order.append(n)
        self.overlap |= bool(self.running) and not (safe and all(self.running.values()))
        self.running[n] = safe
        self.most = max(self.most, len(self.running))
        try:
            context.progress(f"{n} begins")
            await self._live(n, input["how"])
            return self._end(n, input["end"])
        finally:
            self.running.pop(n, None)

    async def _live(self, n: int, how: str) -> None:
        gate = self.gates.setdefault(n, asyncio.Event())
        if how == "at once":
            return
        try:
            await gate.wait()
        except asyncio.CancelledError:
            if how == "slow to end":
                for _ in range(5):
                    await asyncio.sleep(0)
            if how == "deaf":
                self.deaf.add(n)
                del self.running[n]  # abandoned: its place is free
                await gate.wait()
            raise

    def _end(self, n: int, end: str) -> ToolResult:
        match end:
            case "error":
                raise ToolError("no")
            case "bug":
                raise ZeroDivisionError
            case "turn over":
                raise TurnOver("enough")
            case "cancelled":
                raise asyncio.CancelledError
        return ToolResult("x" * (60_000 if end == "big" else n + 1))


class HookSays:
    """Hooks that make some safe calls unsafe on their way."""

    async def pre_tool_use(self, tool_name: str, input: Input, tool_use_id: str) -> PreToolUse:
        changed = input["safe"] and input["n"] % 5 == 4
        return PreToolUse(updated_input={**input, "safe": False, "read_only": False} if changed else None)

    async def permission_request(self, *_: Any) -> Passthrough:
        return Passthrough()

    async def post_tool_use(self, *_: Any) -> PostToolUse:
        return PostToolUse()


class ExecutorMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.directory = tempfile.TemporaryDirectory()
        self.tool = Wild()
        self.asked: list[str] = []
        self.last_states: dict[str, CallState] = {}
        self.events: list[Any] = []
        self.intents: list[str] = []
        self.stored: list[str] = []
        self.disk = asyncio.Event()
        self.over: str | None = None

    @initialize(limit=st.integers(1, 4), slow_disk=st.booleans())
    def begin(self, limit: int, slow_disk: bool) -> None:
        context = context_in(Path(self.directory.name), settings=ToolSettings(kill_grace=0.0), hooks=HookSays())
        self.limit = limit
        if not slow_disk:
            self.disk.set()
        self.executor = StreamingToolExecutor(
            ToolRegistry([self.tool]),
            context,
            max_concurrency=limit,
            record_intent=self._intend,
            on_event=self.events.append,
            on_outcome=self._store,
            patience=0.02,
        )

    async def _intend(self, id: str) -> None:
        assert int(id) not in self.tool.running
        self.intents.append(id)
        await asyncio.sleep(0)

    async def _store(self, outcome: ToolOutcome) -> None:
        await self.disk.wait()
        self.stored.append(outcome.tool_use_id)

    def turn(self, rounds: int = 3) -> None:
        async def rest() -> None:
            for _ in range(rounds):
                await asyncio.sleep(0)

        self.loop.run_until_complete(rest())

    # ── what may happen ────────────────────────────────────────────────────────────────────────────────────────────

    @rule(safe=st.booleans(), read_only=st.booleans(), how=st.sampled_from(HOW), end=st.sampled_from(ENDS))
    def add(self, safe: bool, read_only: bool, how: str, end: str) -> None:
        n = len(self.asked)
        self.asked.append(str(n))
        input = {"n": n, "safe": safe, "read_only": read_only, "how": how, "end": end}
        block = {"type": "tool_use", "id": str(n), "name": "Wild", "input": input}
        self._in_loop(lambda: self.executor.add_tool(block))

    @rule(what=st.sampled_from(["unknown", "cut", "misfit"]))
    def add_broken(self, what: str) -> None:
        id = str(len(self.asked))
        self.asked.append(id)
        name = "Nowhere" if what == "unknown" else "Wild"
        block = {"type": "tool_use", "id": id, "name": name, "input": {}}
        self._in_loop(lambda: self.executor.add_tool(block, "cut" if what == "cut" else None))

    @precondition(lambda self: self.tool.gates)
    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        self.tool.gates[data.draw(st.sampled_from(sorted(self.tool.gates)))].set()

    @rule(rounds=st.integers(1, 12))
    def time_passes(self, rounds: int) -> None:
        self.turn(rounds)

    @rule()
    def disk_answers(self) -> None:
        self.disk.set()

    @precondition(lambda self: self.over is None)
    @rule()
    def stop_waiting(self) -> None:
        async def wait_a_little() -> None:
            waiting = asyncio.ensure_future(self.executor.results())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait({waiting})

        self.loop.run_until_complete(wait_a_little())

    @precondition(lambda self: self.over is None)
    @rule(reason=st.sampled_from([*(cause.in_words for cause in Cause), "stopped: rain"]))
    def interrupt(self, reason: str) -> None:
        self.over = "interrupted"
        self.disk.set()
        self._check_all(self.loop.run_until_complete(self.executor.interrupt(reason)))

    @precondition(lambda self: self.over is None)
    @rule()
    def discard(self) -> None:
        self.over = "discarded"

        async def discarding() -> None:
            before = len(self.events)
            await self.executor.discard()
            assert len(self.events) == before

        self.loop.run_until_complete(discarding())
        assert self.loop.run_until_complete(self.executor.results()) == []

    def _in_loop(self, act: Any) -> None:
        async def acting() -> None:
            act()

        self.loop.run_until_complete(acting())

    # ── what always holds ──────────────────────────────────────────────────────────────────────────────────────────

    @invariant()
    def no_exclusive_one_beside_another_and_never_too_many(self) -> None:
        assert not self.tool.overlap
        assert self.tool.most <= max(getattr(self, "limit", 1), 1)

    @invariant()
    def states_move_as_the_table_says(self) -> None:
        if not hasattr(self, "executor"):
            return
        states = self.executor.states
        for id, before in self.last_states.items():
            assert states[id] is before or states[id] in _reachable(before)
        self.last_states = states

    @invariant()
    def a_call_with_side_effects_never_runs_before_its_intent(self) -> None:
        for n, safe in self.tool.running.items():
            if not safe and str(n) in self.intents:
                assert self.executor.side_effects_started

    def _check_all(self, outcomes: list[ToolOutcome]) -> None:
        assert [o.tool_use_id for o in outcomes] == self.asked
        assert all(o.block["tool_use_id"] == o.tool_use_id and o.block["type"] == "tool_result" for o in outcomes)
        assert all(o.is_error == bool(o.block.get("is_error")) for o in outcomes)

    def teardown(self) -> None:
        try:
            if hasattr(self, "executor"):
                self._come_to_the_end()
        finally:
            self.loop.close()
            self.directory.cleanup()

    def _come_to_the_end(self) -> None:
        """Whatever happened: let everything go, and look."""
        self.disk.set()
        if self.over is None:
            ended = self.loop.create_task(self.executor.results())
            for _ in range(200):
                for gate in self.tool.gates.values():
                    gate.set()
                self.turn()
                if ended.done():
                    break
            self._check_all(ended.result())
            assert sorted(self.stored, key=int) == self.asked
            assert len(set(self.stored)) == len(self.stored)
        elif self.over == "interrupted":
            self._check_all(self.loop.run_until_complete(self.executor.results()))
        for gate in self.tool.gates.values():
            gate.set()
        self.turn(30)
        assert asyncio.all_tasks(self.loop) == set()
        assert self.tool.running == {}
        self._check_events()

    def _check_events(self) -> None:
        started = [e.tool_use_id for e in self.events if isinstance(e, ToolStarted)]
        finished = [e.tool_use_id for e in self.events if isinstance(e, ToolFinished)]
        assert started == sorted(set(started), key=int)
        assert len(finished) == len(set(finished)) and set(finished) <= set(started)
        if self.over != "discarded":
            assert set(finished) == set(started)
        open_calls: set[str] = set()
        for event in self.events:
            match event:
                case ToolStarted():
                    open_calls.add(event.tool_use_id)
                case ToolProgress():
                    assert event.tool_use_id in open_calls
                case ToolFinished():
                    open_calls.remove(event.tool_use_id)


def _reachable(state: CallState) -> set[CallState]:
    found: set[CallState] = set()
    todo = [state]
    while todo:
        for move in MOVES[todo.pop()] - found:
            found.add(move)
            todo.append(move)
    return found


class TestExecutorMachine(ExecutorMachine.TestCase):  # type: ignore[name-defined, misc]
    settings = settings(max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
