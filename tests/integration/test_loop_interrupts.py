"""Interrupts at every point of a turn: the reason is right, the history can be sent, nothing is left running."""

import asyncio

import psutil
import pytest

from tests.support.agent import Probe, collect, drive, engine
from tests.support.fake_api import FakeAPI, Gate, hold, http_error, message, stall, text, tool_use
from worker_agent import events as e
from worker_agent.causes import Cause
from worker_agent.config import RetrySettings, Settings
from worker_agent.tools.builtin.bash import Bash

SLOW_RETRY = Settings(model="claude-sonnet-5", retry=RetrySettings(first_delay=30.0, max_delay=60.0))


def paired(messages):
    for index, msg in enumerate(messages):
        if calls := [block["id"] for block in msg.tool_uses]:
            after = next((x for x in messages[index + 1 :] if x.role == "user"), None)
            if after is None or [b["tool_use_id"] for b in after.tool_results] != calls:
                return False
    return True


def test_while_a_retry_is_waited_for(tmp_path):
    def watch(event, subject):
        if isinstance(event, e.Notice) and event.kind == "api_retry":
            asyncio.get_running_loop().call_soon(subject.interrupt, Cause.PERSON)

    with FakeAPI([http_error(500, "api_error", "oops")]) as api:
        run = drive(api, tmp=tmp_path, settings=SLOW_RETRY, watch=watch)
    assert run.result.reason == "aborted_streaming" and run.result.duration < 10


def test_before_the_first_byte_of_an_answer(tmp_path):
    gate = Gate()

    async def main(api):
        subject = engine(api, tmp_path)
        running = asyncio.create_task(collect(subject, "hi"))
        await asyncio.to_thread(gate.wait_reached)
        subject.interrupt(Cause.PERSON)
        run = await running
        await subject.agent.client.close()
        return run

    with FakeAPI([hold(gate, text("too late"))]) as api:
        run = asyncio.run(main(api))
        api.requests[0].wait_ended()
        gate.open()
    assert run.result.reason == "aborted_streaming"
    assert [msg.kind for msg in run.journal.messages] == ["prompt", "meta"]


def test_between_the_results_and_the_next_call(tmp_path):
    def watch(event, subject):
        if isinstance(event, e.MessageAdded) and event.message.kind == "tool_results":
            subject.interrupt(Cause.PERSON)

    with FakeAPI([tool_use("Probe", {"n": 1})]) as api:
        run = drive(api, tmp=tmp_path, tools=[Probe()], watch=watch)
    assert run.result.reason == "aborted_streaming" and len(api.requests) == 1
    assert paired(run.journal.messages)


@pytest.mark.parametrize("streaming", [True, False], ids=["while streaming", "while tools run"])
def test_a_shell_command_is_gone_with_all_its_processes(tmp_path, streaming):
    gate = Gate()
    mark = tmp_path / "pids"
    command = f"(sleep 300 & echo $! >> {mark}; setsid sleep 300 & echo $! >> {mark}; echo $$ >> {mark}; wait)"
    parts = [tool_use("Bash", {"command": command, "description": "wait"})] + ([text("and", gate, " on")] if streaming else [])

    async def main(api):
        subject = engine(api, tmp_path, tools=[Bash()])
        running = asyncio.create_task(collect(subject, "hi"))
        while not mark.exists() or len(mark.read_text().split()) < 3:
            await asyncio.sleep(0.01)
        subject.interrupt(Cause.PERSON)
        run = await running
        await subject.agent.client.close()
        return run

    with FakeAPI([message(*parts)]) as api:
        run = asyncio.run(main(api))
        gate.open()
    assert run.result.reason == ("aborted_streaming" if streaming else "aborted_tools")
    assert paired(run.journal.messages)
    assert "effects are unknown" in str([b["content"] for msg in run.journal.messages for b in msg.tool_results])
    pids = [int(pid) for pid in mark.read_text().split()]
    assert [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"] == []


def test_the_conversation_goes_on_after_an_interrupt(tmp_path):
    gate = Gate()

    async def main(api):
        subject = engine(api, tmp_path, tools=[Probe()])
        stop = lambda event: subject.interrupt(Cause.PERSON) if isinstance(event, e.TextDelta) else None  # noqa: E731
        first = await collect(subject, "first", stop)
        second = await collect(subject, "second")
        await subject.agent.client.close()
        return first, second

    with FakeAPI([message(text("Once", gate, " upon"), tool_use("Probe", {"n": 1})), text("Here again.")]) as api:
        first, second = asyncio.run(main(api))
        gate.open()
    assert (first.result.reason, second.result.text) == ("aborted_streaming", "Here again.")
    assert [msg["role"] for msg in api.requests[1].messages] == ["user", "assistant", "user"]


def test_a_caller_that_is_cancelled_leaves_nothing_running(tmp_path):
    ended = []

    async def hang(n):
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(n)

    async def main(api):
        subject = engine(api, tmp_path, tools=[Probe(then=hang)])
        began = asyncio.Event()
        running = asyncio.create_task(collect(subject, "hi", lambda ev: began.set() if isinstance(ev, e.ToolStarted) else None))
        await began.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await subject.agent.client.close()
        return [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]

    with FakeAPI([tool_use("Probe", {"n": 1})]) as api:
        left = asyncio.run(main(api))
    assert (left, ended) == ([], [1])


# ── summaries in the background ────────────────────────────────────────────────────────────────────────────────────


def with_summaries(api, tmp_path, **fields):
    async def main():
        subject = engine(api, tmp_path, tools=[Probe()], summaries=True, **fields)
        run = await collect(subject, "hi")
        await subject.agent.client.close()
        assert len(asyncio.all_tasks()) == 1
        return run

    return asyncio.run(main())


def test_a_small_model_sums_up_the_tools_while_the_next_answer_is_made(tmp_path):
    with FakeAPI(lambda r: text("Probed number 1") if "haiku" in r.model else _next(r)) as api:
        run = with_summaries(api, tmp_path)
    assert [n.text for n in run.notices("tool_use_summary")] == ["Probed number 1"]
    assert run.result.text == "Done."


def _next(request):
    return text("Done.") if request.turns else tool_use("Probe", {"n": 1})


def test_a_summary_that_fails_is_nobodys_business(tmp_path):
    with FakeAPI(lambda r: http_error(500, "api_error", "no") if "haiku" in r.model else _next(r)) as api:
        run = with_summaries(api, tmp_path)
    assert run.notices("tool_use_summary") == [] and run.result.text == "Done."


def test_a_summary_that_does_not_come_holds_up_nobody(tmp_path):
    with FakeAPI(lambda r: stall() if "haiku" in r.model else _next(r)) as api:
        run = with_summaries(api, tmp_path)
    assert run.result.text == "Done." and run.result.duration < 4


def test_an_agent_below_the_top_makes_no_summaries(tmp_path):
    with FakeAPI(_next) as api:
        with_summaries(api, tmp_path, top=False)
    assert {r.model for r in api.requests} == {"claude-sonnet-5"}
