"""`from coordinator import Coordinator`: sessions inside a program in Python, against the fake API, through the real SDK."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import json
import os
import subprocess
import sys
from collections.abc import Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any

import pydantic
import pytest

import coordinator
from coordinator import (
    Allow,
    Answer,
    Closed,
    ConfigurationError,
    Coordinator,
    CoordinatorError,
    Deny,
    Event,
    InUse,
    NotAuthenticated,
    NotFound,
    PermissionRequest,
    Result,
    RunFailed,
    TaskChanged,
    TextDelta,
    ToolCall,
    ToolFinished,
    ToolStarted,
    ask,
    run,
    stream,
    tool,
)
from tasks import registry
from tasks.db import Database
from tasks.registry import TaskFilter
from tests.integration.scripts import by_turn, fleet, notified, spawn
from tests.integration.scripts import coordinator as boss_of
from tests.support.fake_api import FakeAPI, Gate, http_error, message, text, tool_use
from worker_agent.process_tree import find_tree
from worker_agent.session.engine import QueryEngine

ROOT = Path(__file__).parents[2]
SLEEP = "sleep 300 & echo begun; wait"


@dataclasses.dataclass
class Bench:
    tmp: Path
    monkeypatch: pytest.MonkeyPatch

    @property
    def work(self) -> Path:
        (path := self.tmp / "work").mkdir(exist_ok=True)
        return path

    def session(self, api: FakeAPI, **options: Any) -> Coordinator:
        return Coordinator(**self.options(api, **options))

    def options(self, api: FakeAPI, **options: Any) -> dict[str, Any]:
        self.monkeypatch.setenv("ANTHROPIC_BASE_URL", api.base_url)
        return {"cwd": self.work, "home": self.tmp / "home", "permission_mode": "bypassPermissions", **options}

    def statuses(self) -> list[str]:
        db = Database.open(self.tmp / "home" / "coordinator.db")
        try:
            return [str(t.status) for t in db.read(lambda conn: registry.list_tasks(conn, TaskFilter(ended_sessions=True)))]
        finally:
            db.close()

    def running(self) -> list[str]:
        """What is left in the process table of the tasks here."""
        db = Database.open(self.tmp / "home" / "coordinator.db")
        try:
            tasks = db.read(lambda conn: registry.list_tasks(conn, TaskFilter(ended_sessions=True)))
        finally:
            db.close()
        ids = {id for task in tasks for id in (task.id, task.session_id)}
        return [str(one) for id in ids for one in find_tree(None, marker=id)]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test-0123456789abcdef")
    monkeypatch.setenv("COORDINATOR_LOOP_TOOL_USE_SUMMARIES", "0")
    monkeypatch.setenv("HOME", str(tmp_path))
    return Bench(tmp_path, monkeypatch)


def go(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


class Unit(enum.Enum):
    CELSIUS = "C"
    KELVIN = "K"


class Place(pydantic.BaseModel):
    city: str
    unit: Unit = Unit.CELSIUS


calls: list[Any] = []


@tool(read_only=True)
async def measure(place: Place, call: ToolCall, days: Annotated[int, "how many days ahead"] = 1) -> dict[str, Any]:
    """The temperature of a place."""
    calls.append((place, days, call.task_id))
    return {"at": place.city, "degrees": 21.5}


def broken(what: str) -> str:
    """Fails."""
    raise LookupError(f"no {what} here")


def test_a_typed_function_is_a_tool_and_what_happens_comes_as_typed_events(bench: Bench) -> None:
    calls.clear()
    script = [
        message(tool_use("measure", {"place": {"city": "Oslo", "unit": "K"}})),
        message(tool_use("measure", {"place": {"city": "Oslo", "unit": "inches"}})),
        message(tool_use("broken", {"what": "luck"})),
        message(text("It is ", "warm.")),
    ]

    async def work(api: FakeAPI) -> list[Event]:
        async with bench.session(api, tools=[measure, broken], workers=False) as session:
            return [event async for event in session.stream("how warm?")]

    with FakeAPI(script) as api:
        events = go(work(api))
        results = [list(request.tool_results.values())[-1] for request in api.requests[1:]]
        described = {one["name"]: one for one in api.requests[0].body["tools"]}["measure"]
    assert calls == [(Place(city="Oslo", unit=Unit.KELVIN), 1, None)]
    assert json.loads(results[0]) == {"at": "Oslo", "degrees": 21.5}
    assert "inches" in results[1] and "<tool_use_error>" in results[1]
    assert "LookupError: no luck here" in results[2] and "Traceback" not in results[2]
    assert described["description"] == "The temperature of a place." and described["input_schema"]["required"] == ["place"]
    days = described["input_schema"]["properties"]["days"]
    assert (days["description"], days["default"]) == ("how many days ahead", 1) and "call" not in str(described["input_schema"])
    started = [event for event in events if isinstance(event, ToolStarted)]
    assert started[0].tool == "measure" and started[0].input["place"]["city"] == "Oslo"
    assert [event.is_error for event in events if isinstance(event, ToolFinished)][:1] == [False]
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "It is warm."
    assert [event.text for event in events if isinstance(event, Answer)] == ["It is warm."]
    result = events[-1]
    assert isinstance(result, Result) and result.ok and result.text == "It is warm." and result.turns == 4
    assert result.usage.output_tokens > 0 and result.cost_usd
    assert asyncio.run(measure(Place(city="Rome"), ToolCall("", "", None, print))) == {"at": "Rome", "degrees": 21.5}


def test_workers_have_the_tools_and_are_seen_written_to_and_killed(bench: Bench) -> None:
    calls.clear()
    gate = Gate()

    def boss(request: Any) -> Any:
        if request.turns == 0:
            return message(spawn("one", name="scout"), spawn("two", name="idler"))
        return message("all is done" if len(set(notified(request))) == 2 else "waiting")

    workers = {
        "one": by_turn(message(tool_use("measure", {"place": {"city": "Bern"}})), message(text("one is done"))),
        "two": message(text("on ", gate, "and on")),
    }

    async def work(api: FakeAPI) -> tuple[Result, list[Event]]:
        seen: list[Event] = []
        async with bench.session(api, tools=[measure], on_event=seen.append) as session:
            asked = asyncio.create_task(session.run("go"))
            await gate.until_reached()
            assert {task.name for task in session.tasks()} == {"scout", "idler"}
            await session.send("idler", "hurry")
            killed = await session.kill("idler")
            assert (killed.status, killed.is_live) == ("killed", False)
            with pytest.raises(ConfigurationError, match="killed"):
                await session.send("idler", "again")
            for ask_in_vain in (session.kill("nobody"), session.send("nobody", "hello")):
                with pytest.raises(NotFound, match="nobody"):
                    await ask_in_vain
            return await asked, seen

    with FakeAPI(fleet(boss, workers)) as api:
        result, seen = go(work(api))
        gate.open()
    assert result.ok and result.text == "all is done"
    assert {task.name: (task.status, task.result) for task in result.tasks}["scout"] == ("completed", "one is done")
    changed = [event for event in seen if isinstance(event, TaskChanged) and event.task.name == "scout"]
    assert changed[0].task.status == "pending" and changed[-1].task.status == "completed"
    scout = changed[0].task_id
    assert calls == [(Place(city="Bern"), 1, scout)]
    assert any(isinstance(event, ToolStarted) and event.task_id == scout for event in seen)


def shell_worker() -> Any:
    return fleet(boss_of("one"), by_turn(message(tool_use("Bash", {"command": SLEEP})), message(text("never"))))


@pytest.mark.parametrize("how", ["time out", "stop reading", "leave by an error"])
def test_whoever_is_cancelled_takes_the_prompt_along_and_the_session_goes_on(bench: Bench, how: str) -> None:
    begun = asyncio.Event()

    def look(event: Event) -> None:
        if isinstance(event, ToolStarted) and event.tool == "Bash":
            begun.set()

    async def work(api: FakeAPI) -> None:
        async with bench.session(api, on_event=look) as session:
            if how == "time out":
                asked = asyncio.create_task(session.run("go"))
                await begun.wait()
                asked.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asked
            elif how == "stop reading":
                async with aclosing(session.stream("go")) as events:
                    async for event in events:
                        if isinstance(event, ToolStarted) and event.tool == "Bash":
                            break
            else:
                asked = asyncio.create_task(session.run("go"))
                await begun.wait()
                raise ZeroDivisionError
            assert bench.running() == []
            assert [task.status for task in session.tasks()] == ["killed"]
            assert (await session.run("again")).text == "all is done"

    def script(request: Any) -> Any:
        return message("all is done") if "again" in request.user_text else shell_worker_script(request)

    shell_worker_script = shell_worker()
    with FakeAPI(script, allow_violations=True) as api:
        if how == "leave by an error":
            with pytest.raises(ZeroDivisionError):
                go(work(api))
        else:
            go(work(api))
    assert bench.running() == [] and bench.statuses() == ["killed"]


def test_the_programs_event_loop_goes_on_while_a_worker_that_has_reported_is_still_closed(bench: Bench) -> None:
    """Its servers are ended, say. Then a prompt is cancelled: nothing is left to be stopped, and yet not all of it is gone."""
    closing, gate = asyncio.Event(), asyncio.Event()
    close = QueryEngine.close

    async def slow(engine: QueryEngine) -> None:
        if engine.agent.tool_context.task_id is not None:
            closing.set()
            await gate.wait()
        await close(engine)

    bench.monkeypatch.setattr(QueryEngine, "close", slow)

    async def work(api: FakeAPI) -> None:
        async with bench.session(api) as session:
            asked = asyncio.create_task(session.run("go"))
            await closing.wait()
            asyncio.get_running_loop().call_later(0.3, gate.set)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            assert gate.is_set() and [task.status for task in session.tasks()] == ["completed"]

    with FakeAPI(fleet(boss_of("one"), "a report"), allow_violations=True) as api:
        go(work(api))


def test_a_cancellation_while_it_is_entered_or_left_leaves_nothing(bench: Bench) -> None:
    async def work(api: FakeAPI) -> None:
        for beats in (1, 5, 30):
            entering = asyncio.create_task(bench.session(api).__aenter__())
            for _ in range(beats):
                await asyncio.sleep(0)
            entering.cancel()
            with pytest.raises(asyncio.CancelledError):
                await entering
        assert [one for one in asyncio.all_tasks() if one is not asyncio.current_task()] == []

    with FakeAPI(message(text("never"))) as api:
        go(work(api))


def test_two_sessions_run_side_by_side_and_one_is_driven_once(bench: Bench) -> None:
    async def work(api: FakeAPI) -> None:
        async with bench.session(api, workers=False) as one, bench.session(api, workers=False) as other:
            results = await asyncio.gather(one.run("first"), other.run("second"), one.run("third"))
            assert [result.text for result in results] == ["heard first", "heard second", "heard third"]
            assert results[0].session_id == results[2].session_id == one.session_id != other.session_id
            with pytest.raises(InUse, match=one.session_id):
                await bench.session(api, resume=one.session_id).__aenter__()
        async with bench.session(api, workers=False, resume=one.session_id) as again:
            assert (await again.run("fourth")).turns == 1 and again.session_id == one.session_id
            assert api.requests[-1].turns == 2
        with pytest.raises(Closed, match=one.session_id):
            await again.run("fifth")

    def script(request: Any) -> Any:
        return message(text(f"heard {request.user_text.split()[-1]}"))

    with FakeAPI(script) as api:
        go(work(api))


def test_a_program_is_asked_for_consent(bench: Bench) -> None:
    asked: list[PermissionRequest] = []

    async def may(request: PermissionRequest) -> bool | Allow | Deny:
        asked.append(request)
        answers = {"touch a": Allow({"command": "touch b"}), "touch c": Deny("LEAVE-IT"), "touch d": True}
        return answers[request.input["command"]]

    names = ("a", "c", "d", "unknown")
    script = [*(message(tool_use("Bash", {"command": f"touch {name}"})) for name in names), message(text("done"))]
    with FakeAPI(script) as api:
        options = bench.options(api, workers=False, permission_mode="default", on_permission=may)
        result = go(run("go", **options))
        told = list(api.requests[-1].tool_results.values())
    assert {path.name for path in bench.work.iterdir()} == {"b", "d"}
    assert [request.activity for request in asked][:1] == ["Bash touch a"] and asked[0].tool == "Bash" and asked[0].reason
    assert "LEAVE-IT" in told[1] and "KeyError" in told[3]
    assert [denial.input["command"] for denial in result.denials] == ["touch c", "touch unknown"]
    with FakeAPI([message(tool_use("Bash", {"command": "touch e"})), message(text("done"))]) as api:
        result = go(run("go", **bench.options(api, workers=False, permission_mode="default")))
    assert "on_permission" in result.denials[0].reason and not (bench.work / "e").exists()


class Report(pydantic.BaseModel):
    city: str
    rain: bool


def test_each_result_fits_the_type_that_was_asked_for(bench: Bench) -> None:
    async def work(api: FakeAPI) -> list[Any]:
        async with bench.session(api, workers=False, output=Report) as session:
            return [(await session.run(prompt)).structured for prompt in ("one", "two")]

    script = [
        message(text("It rains in Oslo.")), message(text('{"city": "Oslo"}')), message(text('{"city": "Oslo", "rain": true}')),
        message(text("Rome is dry.")), message(text('{"city": "Rome", "rain": false}')),
    ]  # fmt: skip
    with FakeAPI(script) as api:
        assert go(work(api)) == [Report(city="Oslo", rain=True), Report(city="Rome", rain=False)]


def test_each_prompt_is_verified(bench: Bench) -> None:
    async def work(api: FakeAPI) -> list[Result]:
        async with bench.session(api, workers=False, verify="test -e one && test -e two") as session:
            return [await session.run("make both"), await session.run("go on")]

    made = [message(tool_use("Bash", {"command": f"touch {name}"})) for name in ("one", "two")]
    with FakeAPI([made[0], message(text("made")), made[1], message(text("mended")), message(text("still there"))]) as api:
        results = go(work(api))
    assert [(result.ok, result.text) for result in results] == [(True, "mended"), (True, "still there")]


def test_what_fails_is_a_result_or_raised_in_one_line(bench: Bench) -> None:
    with FakeAPI(http_error(401), allow_violations=True) as api:
        result = go(run("go", **bench.options(api)))
        assert not result.ok and "credentials" in result.errors[0] and len(result.errors) == 1
        with pytest.raises(RunFailed, match="ANTHROPIC_API_KEY") as failed:
            go(ask("go", **bench.options(api)))
    assert "\n" not in str(failed.value) and not failed.value.result.ok
    with FakeAPI(message(text("fine"))) as api:
        assert go(ask("go", **bench.options(api))) == "fine"


def without_docstring(a: int) -> int:
    return a


def without_type(a) -> int:  # type: ignore[no-untyped-def]  # that is what is tested
    """Adds."""
    return 0


def with_stars(*a: int) -> int:
    """Adds."""
    return sum(a)


def with_no_schema(a: asyncio.Event) -> None:
    """Waits."""


@tool(name="Bash")
def like_ours(a: int) -> None:
    """Adds."""


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"permission_mode": "sometimes"}, ConfigurationError, "sometimes"),
        ({"cwd": "/nowhere/at/all"}, ConfigurationError, "/nowhere"),
        ({"max_turns": 0}, ConfigurationError, "max_turns"),
        ({"max_budget_usd": -1}, ConfigurationError, "max_budget_usd"),
        ({"setting_sources": ["enterprise"]}, ConfigurationError, "enterprise"),
        ({"session_id": "a b"}, ConfigurationError, "session_id"),
        ({"fork_session": True}, ConfigurationError, "fork_session"),
        ({"disallowed_tools": ["Bsh"]}, ConfigurationError, "Bsh"),
        ({"agents": {"a": {"description": "x"}}}, ConfigurationError, "prompt"),
        ({"output": {"type": "sometimes"}}, ConfigurationError, "output"),
        ({"output": asyncio.Event}, ConfigurationError, "output"),
        ({"resume": "nothing"}, NotFound, "nothing"),
        ({"tools": [without_docstring]}, ConfigurationError, "docstring"),
        ({"tools": [without_type]}, ConfigurationError, "'a'"),
        ({"tools": [with_stars]}, ConfigurationError, "by name"),
        ({"tools": [with_no_schema]}, ConfigurationError, "with_no_schema"),
        ({"tools": [like_ours]}, ConfigurationError, "Bash"),
        ({"tools": [measure, measure]}, ConfigurationError, "measure"),
        ({"tools": [lambda a: a]}, ConfigurationError, "lambda"),
    ],
)
def test_what_cannot_be_used_is_refused_before_there_is_a_session(
    bench: Bench, options: dict[str, Any], error: type[CoordinatorError], words: str
) -> None:
    with FakeAPI([]) as api, pytest.raises(error) as refused:
        go(run("go", **bench.options(api, **options)))
    assert words in str(refused.value) and "\n" not in str(refused.value)


def test_a_session_needs_credentials_a_prompt_and_to_be_entered(bench: Bench) -> None:
    with FakeAPI([]) as api:
        session = bench.session(api)
        with pytest.raises(Closed):
            go(session.run("go"))
        with pytest.raises(ConfigurationError, match="empty"):
            go(run("  ", **bench.options(api)))
        with pytest.raises(ConfigurationError, match="nonsense"):
            go(run("/nonsense", **bench.options(api)))
        bench.monkeypatch.delenv("ANTHROPIC_API_KEY")
        with pytest.raises(NotAuthenticated, match="ANTHROPIC_API_KEY"):
            go(run("go", **bench.options(api)))


def test_a_time_limit_ends_the_session_with_a_result(bench: Bench) -> None:
    gate = Gate()

    async def work(api: FakeAPI) -> Result:
        async with bench.session(api, timeout=0.5) as session:
            result = await session.run("go")
            with pytest.raises(Closed):
                await session.run("again")
            return result

    with FakeAPI(message(text("on ", gate, "and on"))) as api:
        result = go(work(api))
        gate.open()
    assert not result.ok and result.reason == "timeout"


def test_an_interrupt_ends_the_turn_and_the_session_goes_on(bench: Bench) -> None:
    gate = Gate()

    async def work(api: FakeAPI) -> list[Result]:
        async with bench.session(api, workers=False) as session:
            asked = asyncio.create_task(session.run("go"))
            await gate.until_reached()
            assert await session.interrupt()
            first = await asked
            gate.open()
            assert not await session.interrupt()
            return [first, await session.run("again")]

    with FakeAPI([message(text("on ", gate, "and on")), message(text("fine"))]) as api:
        first, second = go(work(api))
    assert not first.ok and first.reason == "aborted_streaming" and second.ok and second.text == "fine"


def test_a_program_keeps_its_own_children_and_a_listener_that_fails_harms_nobody(bench: Bench) -> None:
    told: list[dict[str, Any]] = []

    def fails(event: Event) -> None:
        raise ValueError("on purpose")

    mine = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])

    async def work(api: FakeAPI) -> Result:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context))
        return await run("go", **bench.options(api, workers=False, on_event=fails))

    script = [message(tool_use("Bash", {"command": "sleep 1.2; true"})), message(tool_use("Bash", {"command": "true"})),
              message(text("done"))]  # fmt: skip
    with FakeAPI(script) as api:
        assert go(work(api)).ok
    assert mine.wait() == 7
    assert {str(context["exception"]) for context in told} == {"on purpose"}


def test_the_one_liner_streams_too(bench: Bench) -> None:
    async def work(api: FakeAPI) -> list[Event]:
        return [event async for event in stream("go", **bench.options(api))]

    with FakeAPI(message(text("fine"))) as api:
        assert [type(event) for event in go(work(api))][-2:] == [Answer, Result]


# ── a program of its own ─────────────────────────────────────────────────────────────────────────────────────────────


def program(bench: Bench, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=bench.work,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COORDINATOR_HOME": str(bench.tmp / "home"), **environment},
    )  # fmt: skip


def test_the_example_runs_and_is_the_one_of_the_pages(bench: Bench) -> None:
    example = ROOT / "examples" / "weather.py"
    code = example.read_text(encoding="utf-8").partition('"""\n\n')[2]
    assert code in (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    script = [message(tool_use("forecast", {"city": "Oslo", "days": 2})), message(text("Take one."))]
    with FakeAPI(script) as api:
        running = program(bench, str(example), "An umbrella in Oslo?", ANTHROPIC_BASE_URL=api.base_url)
        out, err = running.communicate()
        assert "day 2" in json.dumps(api.requests[-1].body)
    assert running.returncode == 0, err
    assert out.startswith("Take one.\ndone for $0.") and err == ""


INTERRUPTED = """
import asyncio, sys
from coordinator import Coordinator, ToolStarted

def look(event):
    if isinstance(event, ToolStarted) and event.tool == "Bash":
        print("begun", flush=True)

async def main():
    async with Coordinator(permission_mode="bypassPermissions", on_event=look) as session:
        await session.run("go")

try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_after_ctrl_c_nothing_runs_and_no_row_says_so(bench: Bench) -> None:
    with FakeAPI(shell_worker(), allow_violations=True) as api:
        running = program(bench, "-c", INTERRUPTED, ANTHROPIC_BASE_URL=api.base_url)
        assert running.stdout is not None and running.stdout.readline() == "begun\n"
        running.send_signal(2)
        out, err = running.communicate()
    assert (out, err, running.returncode) == ("interrupted\n", "", 0)
    assert bench.statuses() == ["killed"] and bench.running() == []


def test_the_import_alone_brings_nothing_and_every_name_is_there_and_on_the_page() -> None:
    code = "import sys; before = set(sys.modules); import coordinator; print(*(set(sys.modules) - before))"
    brought = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout.split()
    assert {name.split(".")[0].lstrip("_") for name in brought} <= {
        "coordinator",
        "typing",
        "collections",
        "importlib",
        "warnings",
    }
    assert [name for name in brought if name.startswith("coordinator.")] == []
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    for name in coordinator.__all__:
        assert getattr(coordinator, name).__module__.startswith("coordinator.interface") or name == "Event"
        assert f"`{name}" in page, name
    assert set(coordinator.__all__) <= set(dir(coordinator))
    with pytest.raises(AttributeError):
        coordinator.nothing  # noqa: B018
    assert all((ROOT / package / "py.typed").exists() for package in ("coordinator", "worker_agent", "tasks"))
