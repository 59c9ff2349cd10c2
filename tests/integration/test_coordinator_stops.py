"""Ending tasks and sessions: from the model, from a person, from another process, by signals and by the clock."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.other_processes.kill import kill_task
from coordinator.session.interruption import Interruption
from coordinator.views.exit_codes import ExitCode
from tasks import leases, outbox, registry, sessions
from tasks.db import Database
from tasks.errors import Owned
from tasks.records import DeliveryStatus, TaskRecord
from tasks.registry import TaskFilter
from tasks.states import TaskStatus
from tests.integration.harness import Bench
from tests.integration.scripts import by_turn, coordinator, fleet, notified, spawn
from tests.support.fake_api import FakeAPI, Gate, http_error, message, text, tool_use
from worker_agent.events import Notice, Result
from worker_agent.process_tree import find_tree


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def store(bench: Bench) -> Iterator[Database]:
    bench.home.mkdir(parents=True, exist_ok=True)
    db = bench.database()
    yield db
    db.close()


def tasks_of(db: Database) -> list[TaskRecord]:
    return db.read(lambda conn: registry.list_tasks(conn, TaskFilter(ended_sessions=True)))


async def until(condition, timeout: float = 10.0) -> None:
    """Until something outside of this loop has happened."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.005)


def of_boss(api: FakeAPI) -> list:
    return [request for request in api.requests if "Agent" in request.tool_names]


def start(bench: Bench, api: FakeAPI, *resume: str) -> subprocess.Popen[str]:
    root = Path(__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.integration.crash_runner", str(bench.tmp), api.base_url, *resume],
        cwd=root,
        stdout=subprocess.PIPE,
        text=True,
    )


SHELL = "for i in 1 2 3; do timeout 60 sleep 50; done"


def stopping(prompt: str = "one", gate: Gate | None = None):
    """Spawns, stops by name, concludes."""

    def boss(request):
        if request.turns == 0:
            return message("starting", spawn(prompt, name="scout"))
        if request.turns == 1:
            if gate:
                gate.wait_reached()
            return message("stop it", tool_use("TaskStop", {"task_id": "scout"}))
        return message("done")

    return boss


def test_a_stop_by_the_model_is_answered_with_the_partial_text_and_not_announced_again(bench: Bench, store: Database) -> None:
    gate = Gate()

    async def boss(request):
        if request.turns == 0:
            return message("starting", spawn("one", name="scout"))
        if request.turns == 1:
            await gate.until_reached()
            return message("stop it", tool_use("TaskStop", {"task_id": "scout"}))
        return message("done")

    worker = by_turn(message("I found a.py", tool_use("Glob", {"pattern": "*"})), message(text("and then ", gate, "b.py")))
    with FakeAPI(fleet(boss, worker)) as api:
        outcome = bench.run(api)
    answer = json.loads(list(of_boss(api)[-1].tool_results.values())[-1])
    assert (answer["status"], answer["task_type"]) == ("killed", "local_agent")
    assert "I found a.py" in answer["partial_result"]
    assert [t["status"] for t in outcome.result["tasks"]] == ["killed"] and outcome.exit_code is ExitCode.DONE
    assert store.read(lambda conn: outbox.deliveries(conn)) == []


def test_stopping_what_has_ended_or_never_was_is_answered_in_words(bench: Bench) -> None:
    def boss(request):
        if request.turns == 0:
            return message("starting", spawn("one", name="scout"))
        if request.turns == 1:
            return message("waiting")
        if request.turns == 2:
            return message(tool_use("TaskStop", {"task_id": "scout"}), tool_use("TaskStop", {"task_id": "nobody"}))
        return message("done")

    with FakeAPI(fleet(boss)) as api:
        bench.run(api)
    ended, unknown = list(of_boss(api)[-1].tool_results.values())[-2:]
    assert json.loads(ended)["message"].endswith("had ended already: completed.")
    assert "<tool_use_error>" in unknown and "nobody" in unknown


def test_a_killed_pending_task_never_starts_and_its_messages_go_back(bench: Bench, store: Database) -> None:
    """K5."""
    gate = Gate()

    def boss(request):
        if request.turns == 0:
            return message("starting", spawn("first"), spawn("second", name="late"))
        if request.turns == 1:
            return message(tool_use("SendMessage", {"to": "late", "message": "hello"}))
        if request.turns == 2:
            return message(tool_use("TaskStop", {"task_id": "late"}))
        if request.turns == 3:
            return message(tool_use("SendMessage", {"to": "late", "message": "again"}))
        gate.open()
        return message("done" if notified(request) else "waiting")

    with FakeAPI(fleet(boss, {"first": text("re", gate, "port"), "second": "never"})) as api:
        outcome = bench.run(api, max_workers=1)
    assert [t["status"] for t in outcome.result["tasks"]] == ["completed", "killed"]
    assert outcome.result["tasks"][1]["started_at"] is None
    answers = list(of_boss(api)[-1].tool_results.values())
    assert "Not delivered to it: 1 message." in answers[3] and "was killed" in answers[4]
    (back,) = store.read(lambda conn: outbox.deliveries(conn, status=DeliveryStatus.UNDELIVERED))
    assert back.body == "hello"


def test_a_kill_from_another_process_ends_loop_and_processes_and_is_announced(bench: Bench, store: Database) -> None:
    """K1: nothing is left of the tree, no second round starts, one notice, the partial text in it."""
    worker = by_turn(message("sleeping now", tool_use("Bash", {"command": SHELL})), "report")
    with FakeAPI(fleet(coordinator("one"), worker)) as api:

        async def scenario():
            run = asyncio.create_task(bench.session(api))
            await until(lambda: tasks_of(store) and len(find_tree(None, None, tasks_of(store)[0].id)) >= 2)
            task = tasks_of(store)[0]
            report = await asyncio.to_thread(kill_task, store, task.id, by="user", grace=1.0)
            return report, await run

        report, outcome = asyncio.run(scenario())
    assert report.changed and report.ended and report.survivors == () and report.status is TaskStatus.KILLED
    assert find_tree(None, None, report.task_id) == []
    assert outcome.exit_code is ExitCode.DONE
    assert notified(of_boss(api)[-1]) == [report.task_id]
    assert "sleeping now" in of_boss(api)[-1].last_user_text


def test_a_streaming_worker_is_ended_in_the_middle_of_its_answer(bench: Bench, store: Database) -> None:
    """By itself the answer would never end."""
    gate = Gate()
    with FakeAPI(fleet(coordinator("one"), text("half a ", gate, "sentence"))) as api:

        async def scenario():
            run = asyncio.create_task(bench.session(api))
            await gate.until_reached()
            worker = next(r for r in api.requests if "Agent" not in r.tool_names)
            report = await asyncio.to_thread(kill_task, store, tasks_of(store)[0].id)
            await asyncio.to_thread(worker.wait_ended)
            return report, await run

        report, _ = asyncio.run(scenario())
    assert report.ended
    (task,) = tasks_of(store)
    assert task.status is TaskStatus.KILLED and "half a" in (task.result or "")


def test_killing_what_has_ended_changes_nothing(bench: Bench, store: Database) -> None:
    with FakeAPI(fleet(coordinator("one"))) as api:
        bench.run(api)
    (task,) = tasks_of(store)
    report = kill_task(store, task.id)
    assert (report.changed, report.ended, report.status) == (False, True, TaskStatus.COMPLETED)
    assert tasks_of(store) == [task]


def test_a_time_limit_while_workers_run_names_them_and_keeps_them_resumable(bench: Bench) -> None:
    """R4 with a bound: non-zero, with both ids; resumed, both results arrive."""
    gate = Gate()
    script = fleet(coordinator("one", "two"), text("re", gate, "port"))
    with FakeAPI(script) as api:
        outcome = bench.run(api, timeout=2.0)
        ids = [task["id"] for task in outcome.result["tasks"]]
        assert outcome.exit_code is ExitCode.LIVE_WORKERS and len(ids) == 2
        assert {task["status"] for task in outcome.result["tasks"]} == {"interrupted"}
        assert all(id in outcome.result["errors"][-1] for id in ids)
        gate.open()
        resumed = bench.run(api, None, resume=outcome.session_id)
    assert resumed.exit_code is ExitCode.DONE and resumed.result["result"] == "all is done"
    assert [(t["id"], t["status"], t["attempt"]) for t in resumed.result["tasks"]] == [(id, "completed", 2) for id in ids]


@pytest.mark.parametrize(("status", "code"), [(401, ExitCode.NOT_AUTHENTICATED), (400, ExitCode.FAILED)])
def test_a_coordinator_that_fails_lets_its_workers_end_and_their_reports_wait(
    bench: Bench, store: Database, status: int, code: ExitCode
) -> None:
    gate, broken = Gate(), [True]
    later = coordinator("one", "two")

    async def boss(request):
        if request.turns == 1 and broken[0]:
            await gate.until_reached(2)
            return http_error(status)
        return later(request)

    def observe(observed) -> None:
        if isinstance(observed.event, Notice) and observed.event.kind == "coordinator_failed":
            gate.open()

    bench.on_event = observe
    with FakeAPI(fleet(boss, text("re", gate, "port")), allow_violations=True) as api:
        outcome = bench.run(api)
        assert outcome.exit_code is code and outcome.result["is_error"]
        assert [task["status"] for task in outcome.result["tasks"]] == ["completed"] * 2
        deliveries = store.read(lambda conn: outbox.waiting(conn, outcome.session_id))
        assert len(deliveries) == 2
        broken[0] = False
        resumed = bench.run(api, None, resume=outcome.session_id)
        assert (resumed.exit_code, resumed.result["result"]) == (ExitCode.DONE, "all is done")
        assert len(notified(of_boss(api)[-1])) == 2


def test_a_time_limit_still_ends_the_workers_of_a_coordinator_that_failed(bench: Bench) -> None:
    gate = Gate()

    async def boss(request):
        if request.turns == 1:
            await gate.until_reached()
            return http_error(401)
        return coordinator("one")(request)

    with FakeAPI(fleet(boss, text("re", gate, "port")), allow_violations=True) as api:
        outcome = bench.run(api, timeout=3.0)
        gate.open()
    assert outcome.exit_code is ExitCode.LIVE_WORKERS
    assert [task["status"] for task in outcome.result["tasks"]] == ["interrupted"]
    assert "credentials" in outcome.result["errors"][1]


def test_a_time_limit_in_the_middle_of_the_coordinators_turn_ends_with_code_6(bench: Bench) -> None:
    with FakeAPI(text("never ", Gate(), "ends")) as api:
        outcome = bench.run(api, timeout=1.5)
    assert (outcome.exit_code, outcome.result["terminal_reason"]) == (ExitCode.LIMIT, "timeout")


def test_the_first_interrupt_ends_the_turn_and_workers_go_on_the_second_stops_them(bench: Bench, store: Database) -> None:
    """U1."""
    gate = Gate()
    boss_gate = Gate()

    def boss(request):
        return message("starting", spawn("one")) if request.turns == 0 else message(text("thinking", boss_gate))

    with FakeAPI(fleet(boss, text("re", gate, "port"))) as api:

        async def scenario():
            run = asyncio.create_task(bench.session(api))
            await gate.until_reached()
            await boss_gate.until_reached()
            bench.handle.interrupt()
            await until(lambda: of_boss(api)[-1].aborted)
            assert [t.status for t in bench.handle.live_tasks()] == [TaskStatus.RUNNING] and not run.done()
            bench.handle.interrupt()
            return await run

        outcome = asyncio.run(scenario())
    assert outcome.exit_code is ExitCode.INTERRUPTED
    assert [t["status"] for t in outcome.result["tasks"]] == ["killed"]


def test_a_second_process_is_refused_with_the_owners_pid(bench: Bench) -> None:
    """R3, first half."""
    gate = Gate()
    with FakeAPI(text("a", gate, "b")) as api:
        owner = start(bench, api)
        try:
            session_id = owner.stdout.readline().strip()
            gate.wait_reached()
            with pytest.raises(Owned, match=str(owner.pid)):
                bench.run(api, None, resume=session_id)
        finally:
            gate.open()
            owner.wait(20)
            owner.stdout.close()


def test_a_fenced_owner_stops_at_once_and_writes_nothing(bench: Bench, store: Database) -> None:
    """R3, second half: another process took the session over while this one was frozen."""
    gate = Gate()
    with FakeAPI(text("a", gate, "b")) as api:

        async def scenario():
            run = asyncio.create_task(bench.session(api))
            await gate.until_reached()
            id = bench.handle.session_id
            later = time.time() + 60
            other = leases.Owner(1, 0.0, "elsewhere")
            await asyncio.to_thread(store.write, lambda conn: leases.acquire(conn, id, other, later))
            return await run

        outcome = asyncio.run(scenario())
    assert outcome.exit_code is ExitCode.FAILED and outcome.result["terminal_reason"] == "lost"
    session = store.read(lambda conn: sessions.get(conn, outcome.session_id))
    assert session.owner.host == "elsewhere" and session.status == "open"


def test_a_terminated_run_leaves_no_shell_and_goes_on_when_resumed(bench: Bench, store: Database) -> None:
    """R5, SIGTERM: exit 143, interrupted and never completed; then attempt 2, the call not run again by itself."""
    worker = by_turn(tool_use("Bash", {"command": "echo x >> ran; sleep 300"}), "went on")
    with FakeAPI(fleet(coordinator("one"), worker)) as api:
        process = start(bench, api)
        session_id = process.stdout.readline().strip()
        asyncio.run(until(lambda: (bench.work / "ran").exists(), 20))
        (task,) = tasks_of(store)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0 and process.stdout.read().strip() == "143"
        process.stdout.close()
        assert find_tree(None, None, task.id) == []
        (task,) = tasks_of(store)
        assert registry.shown_status(task, session_owner_gone=True) == "interrupted"
        outcome = bench.run(api, None, resume=session_id)
    assert outcome.exit_code is ExitCode.DONE
    assert [(t["status"], t["attempt"]) for t in outcome.result["tasks"]] == [("completed", 2)]
    assert (bench.work / "ran").read_text() == "x\n"
    (answer,) = [r for r in api.requests if "Agent" not in r.tool_names][-1].tool_results.values()
    assert "nterrupted" in answer


def test_a_killed_program_resumes_without_running_a_tool_twice(bench: Bench, store: Database) -> None:
    """SIGKILL in a tool: the shell is ended at the next start, its call is told as interrupted, nothing is lost."""
    worker = by_turn(message("I begin", tool_use("Bash", {"command": "echo x >> ran; sleep 300"})), "went on")
    with FakeAPI(fleet(coordinator("one"), worker)) as api:
        process = start(bench, api)
        session_id = process.stdout.readline().strip()
        asyncio.run(until(lambda: (bench.work / "ran").exists(), 20))
        process.kill()
        process.wait(20)
        process.stdout.close()
        (task,) = tasks_of(store)
        assert task.status is TaskStatus.RUNNING and find_tree(None, None, task.id)
        outcome = bench.run(api, None, resume=session_id)
    assert find_tree(None, None, task.id) == []
    assert (bench.work / "ran").read_text() == "x\n"
    assert outcome.result["result"] == "all is done"
    assert [(t["status"], t["attempt"]) for t in outcome.result["tasks"]] == [("completed", 2)]


def test_a_task_of_a_dead_owner_is_ended_by_whoever_kills_it(bench: Bench, store: Database) -> None:
    """The caller does the work: `trap '' TERM` needs the KILL, `setsid` the marker."""
    command = "trap '' TERM; echo x > ran; setsid sleep 300 & sleep 300"
    with FakeAPI(fleet(coordinator("one"), by_turn(tool_use("Bash", {"command": command}), "never"))) as api:
        process = start(bench, api)
        process.stdout.readline()
        asyncio.run(until(lambda: (bench.work / "ran").exists(), 20))
        process.kill()
        process.wait(20)
        process.stdout.close()
    (task,) = tasks_of(store)
    report = kill_task(store, task.id, grace=0.5)
    assert report.changed and report.ended and find_tree(None, None, task.id) == []


@pytest.mark.parametrize("stored", [False, True], ids=["before", "after"])
def test_a_notification_is_delivered_exactly_once_through_a_crash(bench: Bench, store: Database, stored: bool) -> None:
    """N2: SIGKILL (a) after the task's end, before the notice is in the transcript; (b) just after."""
    waiting, final = Gate("waiting"), Gate("final")

    def boss(request):
        if request.turns == 0:
            return message("starting", spawn("one"))
        if not notified(request):
            return message(text("wai", waiting, "ting"))
        return message(text("do", final, "ne"))

    with FakeAPI(fleet(boss)) as api:
        process = start(bench, api)
        session_id = process.stdout.readline().strip()
        asyncio.run(until(lambda: tasks_of(store) and tasks_of(store)[0].is_terminal, 20))
        if stored:
            waiting.open()
            final.wait_reached()
        else:
            waiting.wait_reached()
        process.kill()
        process.wait(20)
        process.stdout.close()
        waiting.open()
        final.open()
        outcome = bench.run(api, None, resume=session_id)
        again = bench.run(api, "and now?", resume=session_id)
    assert outcome.result["result"] == "done" and again.exit_code is ExitCode.DONE
    assert notified(of_boss(api)[-1]) == [tasks_of(store)[0].id]


def test_a_repaired_coordinator_knows_its_live_tasks_and_pairs_every_call(bench: Bench, store: Database) -> None:
    """R1: four calls, one result on record: the request pairs them all. What the record of tasks knows is told, of the
    rest that the effect is unknown."""
    from coordinator.agents.journal import to_record
    from tasks import transcripts
    from worker_agent.messages import assistant, tool_result_block, user

    message = ("SendMessage", {"to": "a1", "message": "go on"})
    spawn = ("Agent", {"description": "d", "prompt": "p"})
    asked = (message, spawn, message, spawn)
    calls = [{"type": "tool_use", "id": f"toolu_{i}", "name": n, "input": given} for i, (n, given) in enumerate(asked)]
    done = tool_result_block("toolu_1", "fine")

    def prepare(conn) -> str:
        from tasks.records import StepRecord

        session = sessions.create(conn, goal="g", cwd=str(bench.work), model="claude-sonnet-5-5", options={})
        rows = [to_record(user("do it"), None), to_record(assistant(calls), None)]
        transcripts.append(conn, session.id, rows, session_id=session.id, fence=0)
        step = StepRecord(kind="result", message_id="r", content=json.dumps([done]), part="toolu_1", at=1.0)
        transcripts.step(conn, session.id, step, session_id=session.id, fence=0)
        return session.id

    id = store.write(prepare)
    with FakeAPI("done") as api:
        outcome = bench.run(api, None, resume=id)
    results = api.requests[0].tool_results
    assert outcome.exit_code is ExitCode.DONE and list(results) == ["toolu_0", "toolu_1", "toolu_2", "toolu_3"]
    assert results["toolu_1"] == "fine" and all("nknown" in results[c] for c in ("toolu_0", "toolu_2"))
    assert "does not exist" in results["toolu_3"]


def test_a_wish_to_wrap_up_brings_a_last_report(bench: Bench, store: Database) -> None:
    gate = Gate()

    def worker(request):
        if "stopped in" in request.last_user_text:
            return message("my last report")
        return message(text("look", gate, "ing"), tool_use("Glob", {"pattern": "*"}))

    with FakeAPI(fleet(coordinator("one"), worker)) as api:

        async def scenario():
            run = asyncio.create_task(bench.session(api))
            await gate.until_reached()
            id = tasks_of(store)[0].id
            await asyncio.to_thread(store.write, lambda conn: registry.request_stop(conn, id, by="user", wrap_up=30.0))
            await until(lambda: store.read(lambda conn: outbox.waiting(conn, id)))
            gate.open()
            return await run

        outcome = asyncio.run(scenario())
    assert outcome.exit_code is ExitCode.DONE
    assert tasks_of(store)[0].result == "my last report"


def test_a_message_from_a_shell_reaches_a_running_worker_and_an_idle_coordinator(bench: Bench, store: Database) -> None:
    gate = Gate()
    worker = by_turn(message(text("look", gate, "ing"), tool_use("Glob", {"pattern": "*"})), "report")
    with FakeAPI(fleet(coordinator("one"), worker)) as api:

        async def scenario():
            run = asyncio.create_task(bench.session(api))
            await gate.until_reached()
            task = tasks_of(store)[0]
            for agent in (task.agent_id, task.session_id):
                await asyncio.to_thread(
                    store.write,
                    lambda conn, agent=agent: outbox.send(
                        conn, session_id=task.session_id, agent_id=agent, body=f"hello {agent}", sender="user"
                    ),
                )
            await until(lambda: any(f"hello {task.session_id}" in r.user_text for r in of_boss(api)))
            gate.open()
            return task, await run

        task, outcome = asyncio.run(scenario())
    assert outcome.exit_code is ExitCode.DONE
    assert any(f"hello {task.agent_id}" in r.user_text for r in api.requests if "Agent" not in r.tool_names)


def test_shutting_down_with_pending_tasks_starts_none_and_loses_none(bench: Bench) -> None:
    """L4."""
    gate = Gate()
    with FakeAPI(fleet(coordinator(*(f"w{i}" for i in range(6))), text("re", gate, "port"))) as api:

        async def scenario():
            run = asyncio.create_task(bench.session(api, max_workers=1))
            await gate.until_reached()
            await until(lambda: len([t for t in bench.changes() if t.status is TaskStatus.PENDING]) == 6)
            bench.handle.terminate()
            return await run

        outcome = asyncio.run(scenario())
        workers = len([r for r in api.requests if "Agent" not in r.tool_names])
        assert outcome.exit_code is ExitCode.TERMINATED and workers == 1
        gate.open()
        resumed = bench.run(api, None, resume=outcome.session_id)
    assert [t["status"] for t in resumed.result["tasks"]] == ["completed"] * 6


def test_an_interactive_session_stays_for_what_a_person_types(bench: Bench) -> None:
    with FakeAPI(by_turn("first", "second")) as api:

        async def scenario():
            run = asyncio.create_task(bench.session(api, interactive=True))
            await until(lambda: any(type(o.event).__name__ == "Result" for o in bench.seen))
            await bench.handle.send("and?")
            await until(lambda: sum(type(o.event).__name__ == "Result" for o in bench.seen) == 2)
            bench.handle.close()
            return await run

        outcome = asyncio.run(scenario())
    assert outcome.exit_code is ExitCode.DONE and outcome.result["result"] == "second"


def results_of(bench: Bench) -> int:
    """How many turns have ended."""
    return sum(isinstance(observed.event, Result) for observed in bench.seen)


def test_an_interrupt_at_rest_ends_nothing_and_the_next_prompt_is_answered(bench: Bench) -> None:
    """Seen: the next answer was cut off at its beginning; and after a second interrupt in another turn all workers stopped."""
    gate = Gate()
    with FakeAPI([message(text("fir", gate, "st")), "second"]) as api:

        async def scenario():
            run = asyncio.create_task(bench.session(api, interactive=True))
            await gate.until_reached()
            said = [bench.handle.interrupt()]
            await until(lambda: results_of(bench) == 1)
            bench.handle.forget_interrupts()
            said += [bench.handle.interrupt(), bench.handle.interrupt(), bench.handle.interrupt()]
            await bench.handle.send("and?")
            await until(lambda: results_of(bench) == 2)
            bench.handle.close()
            return said, await run

        said, outcome = asyncio.run(scenario())
    assert said == [Interruption.TURN, Interruption.NOTHING, Interruption.WORKERS, Interruption.AT_ONCE]
    assert outcome.exit_code is ExitCode.DONE and outcome.result["result"] == "second"
