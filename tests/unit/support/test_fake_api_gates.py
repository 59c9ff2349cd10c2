"""Gates hold a stream where the test wants it; clients that leave are noticed; many streams run side by side."""

from __future__ import annotations

import asyncio
import threading
import time

import anthropic
import pytest

from tests.support.fake_api import FakeAPI, Gate, delay, drop, hold, message, stall, text, tool_use
from tests.unit.support.helpers import body, client, stream, user, with_client


def test_a_gate_between_pieces_of_a_text_holds_the_rest_back() -> None:
    gate = Gate()

    async def work(sdk: anthropic.AsyncAnthropic) -> list[str]:
        seen = []
        async with sdk.messages.stream(**body()) as running:
            async for event in running:
                if event.type == "text":
                    seen.append(event.text)
                    if event.text == "before":
                        await gate.until_reached()
                        assert seen == ["before"]
                        gate.open()
        return seen

    with FakeAPI(text("before", gate, "after", pieces=1)) as api:
        assert with_client(api, work) == ["before", "after"]


def test_a_gate_between_blocks_lets_the_closed_block_arrive() -> None:
    gate = Gate()

    async def work(sdk: anthropic.AsyncAnthropic) -> list[str]:
        async with sdk.messages.stream(**body()) as running:
            closed = []
            async for event in running:
                if event.type == "content_block_stop":
                    closed.append(event.content_block.name)
                    gate.open()
            return closed

    with FakeAPI(message(tool_use("first", {"a": 1}), gate, tool_use("second"))) as api:
        assert with_client(api, work) == ["first", "second"]
    assert gate.arrivals == 1


def test_a_gate_inside_tool_json_splits_it() -> None:
    gate = Gate()

    async def work(sdk: anthropic.AsyncAnthropic) -> object:
        async with sdk.messages.stream(**body()) as running:
            async for event in running:
                if event.type == "input_json" and event.partial_json:
                    gate.open()
            return (await running.get_final_message()).content[0].input

    with FakeAPI(tool_use("Write", {"path": "/tmp/x", "content": "abc"}, within=gate)) as api:
        assert with_client(api, work) == {"path": "/tmp/x", "content": "abc"}


def test_held_back_before_the_first_byte_several_requests_wait_at_one_gate() -> None:
    gate = Gate("start")

    async def main(api: FakeAPI) -> list[str]:
        async with client(api) as sdk:
            calls = [asyncio.create_task(sdk.messages.create(**body([user(str(n))]))) for n in range(5)]
            await gate.until_reached(5)
            assert not any(c.done() for c in calls)
            gate.open()
            return [(await c).content[0].text for c in calls]

    with FakeAPI(hold(gate, "ok")) as api:
        assert asyncio.run(main(api)) == ["ok"] * 5


def test_a_gate_that_is_open_stops_nobody() -> None:
    gate = Gate()
    gate.open()
    with FakeAPI(message(gate, "ok")) as api:
        assert stream(api).content[0].text == "ok"
    assert gate.reached.is_set() and gate.opened


def test_a_gate_nobody_reaches_says_so() -> None:
    with pytest.raises(AssertionError, match="door: 0 of 1"):
        Gate("door").wait_reached(timeout=0.01)


def test_a_gate_may_be_opened_from_any_thread_and_a_failure_may_follow_it() -> None:
    gate = Gate()
    opener = threading.Thread(target=lambda: (gate.reached.wait(5), gate.open()))
    opener.start()
    with FakeAPI(drop(after=text("half", gate, "more"))) as api, pytest.raises(Exception, match="peer closed"):
        stream(api)
    opener.join()


def test_a_delay_takes_real_time() -> None:
    with FakeAPI(message("a", delay(0.05), "b")) as api:
        began = time.monotonic()
        stream(api)
        assert time.monotonic() - began >= 0.05


@pytest.mark.parametrize("reply", ["gate", "stall", "pings"])
def test_a_client_that_leaves_is_noticed(reply: str) -> None:
    gate = Gate()
    replies = {
        "gate": message("half", gate, "more"),
        "stall": stall(after="half"),
        "pings": stall(after="half", pings=True, every=0.01),
    }

    async def work(sdk: anthropic.AsyncAnthropic) -> None:
        async with sdk.messages.stream(**body()) as running:
            async for event in running:
                if event.type == "text":
                    return

    with FakeAPI(replies[reply]) as api:
        with_client(api, work)
        api.requests[0].wait_ended()
        assert api.requests[0].aborted


def test_cancelling_before_the_first_byte_is_noticed() -> None:
    gate = Gate()

    async def work(sdk: anthropic.AsyncAnthropic) -> None:
        call = asyncio.create_task(sdk.messages.create(**body()))
        await gate.until_reached()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    with FakeAPI(hold(gate, "never")) as api:
        with_client(api, work)
        api.requests[0].wait_ended()
        assert api.requests[0].aborted


def test_a_finished_answer_is_not_aborted_and_leaving_the_server_aborts_nobody() -> None:
    gate = Gate()
    with FakeAPI(["ok", hold(gate, "never")]) as api:
        stream(api)
        caller = threading.Thread(target=lambda: pytest.raises(anthropic.APIConnectionError, stream, api, [user("x")]))
        caller.start()
        gate.wait_reached()
    caller.join()
    assert [r.aborted for r in api.requests] == [False, False]


def test_requests_can_be_waited_for() -> None:
    gate = Gate()
    with FakeAPI(hold(gate, "ok")) as api:
        callers = [threading.Thread(target=stream, args=(api, [user(str(n))])) for n in range(2)]
        for caller in callers:
            caller.start()
        assert {r.last_user_text for r in api.wait_for_requests(2)} == {"0", "1"}
        gate.open()
        for caller in callers:
            caller.join()
        with pytest.raises(AssertionError, match="2 of 3 requests"):
            api.wait_for_requests(3, timeout=0.01)


def test_two_hundred_streams_run_side_by_side() -> None:
    gate = Gate()

    async def main(api: FakeAPI) -> set[str]:
        async def one(sdk: anthropic.AsyncAnthropic, n: int) -> str:
            async with await sdk.messages.create(**body([user(str(n))]), stream=True) as running:
                return "".join([e.delta.text async for e in running if e.type == "content_block_delta"])

        async with client(api, timeout=30) as sdk:
            tasks = [asyncio.create_task(one(sdk, n)) for n in range(200)]
            await gate.until_reached(200, timeout=30)
            gate.open()
            return set(await asyncio.gather(*tasks))

    with FakeAPI(message("all ", gate, "here")) as api:
        assert asyncio.run(main(api)) == {"all here"}
