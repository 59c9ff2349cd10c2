"""A stream and its tools write into one buffer: what is shown, in which order, how much may wait, and how it is left."""

import asyncio
from contextlib import aclosing
from itertools import groupby

import pytest

from tests.support.agent import Probe, drive, engine
from tests.support.fake_api import FakeAPI, Gate, drop, message, text, tool_use
from worker_agent import events as e
from worker_agent.causes import Cause
from worker_agent.loop.params import EventBuffer

TOLD = (e.TextDelta, e.ToolStarted, e.ToolFinished, e.Tombstone, e.ModelCalled)


def told(run):
    """The kinds of event in order, the pieces of one text as one."""
    return [name for name, _ in groupby(type(event).__name__ for event in run.events if isinstance(event, TOLD))]


def test_a_call_is_shown_between_the_words_before_and_behind_it_while_the_model_is_silent(tmp_path):
    gate = Gate()

    def watch(event, subject):
        if isinstance(event, e.ToolFinished):
            gate.open()  # the model says no more until the end of the call was seen

    answer = message(text("before"), tool_use("Probe", {"n": 1}), text(gate, "behind"))
    with FakeAPI([answer, text("Done.")]) as api:
        run = drive(api, tmp=tmp_path, tools=[Probe()], watch=watch)
    assert told(run) == ["TextDelta", "ToolStarted", "ToolFinished", "TextDelta", "ModelCalled", "TextDelta", "ModelCalled"]
    assert run.result.text == "Done."


def test_what_came_before_a_stream_broke_is_shown_before_it_is_taken_back(tmp_path):
    with FakeAPI([drop(after=message(text("half"), tool_use("Probe", {"n": 1}))), text("Whole.")]) as api:
        run = drive(api, tmp=tmp_path, tools=[Probe()])
    names = told(run)
    assert names.index("TextDelta") < names.index("ModelCalled") < names.index("Tombstone")
    assert (names.count("Tombstone"), run.result.text, run.result.turns) == (1, "Whole.", 1)


def test_a_slow_observer_slows_the_stream_and_loses_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(EventBuffer, "ROOM", 10)
    waiting = []
    put = EventBuffer.put
    monkeypatch.setattr(EventBuffer, "put", lambda self, event: (put(self, event), waiting.append(len(self._events)))[0])
    words = [f"{n} " for n in range(500)]

    async def main(api):
        subject = engine(api, tmp_path)
        said = []
        async for event in subject.submit_message("count"):
            if isinstance(event, e.TextDelta):
                said.append(event.text)
                await asyncio.sleep(0)  # every event takes a round of the event loop, in which the stream could read on
        await subject.agent.client.close()
        return said

    with FakeAPI([text(*words)]) as api:
        said = asyncio.run(main(api))
    assert "".join(said) == "".join(words)
    assert max(waiting) <= 10


def test_an_interrupt_ends_a_stream_that_waits_for_its_observer(tmp_path, monkeypatch):
    monkeypatch.setattr(EventBuffer, "ROOM", 10)

    def watch(event, subject):
        if isinstance(event, e.TextDelta):
            subject.interrupt(Cause.PERSON)

    with FakeAPI([text(*(f"{n} " for n in range(500)))]) as api:
        run = drive(api, tmp=tmp_path, watch=watch)
    assert run.result.reason == "aborted_streaming"
    assert [kept.kind for kept in run.journal.messages] == ["prompt", "answer", "meta"]


@pytest.mark.parametrize("how", ["closed", "cancelled", "failed"])
def test_an_observer_that_goes_leaves_nothing_running_and_every_call_booked(tmp_path, how):
    gate, booked = Gate(), []
    probe = Probe(then=lambda n: asyncio.sleep(300))

    async def main(api):
        subject = engine(api, tmp_path, tools=[probe], book=booked.append)
        started = asyncio.Event()

        async def observe():
            async with aclosing(subject.submit_message("go")) as events:
                async for event in events:
                    if isinstance(event, e.ToolStarted):
                        started.set()
                        if how == "closed":
                            return
                        if how == "failed":
                            raise ValueError("the observer")

        before = asyncio.all_tasks()
        observing = asyncio.create_task(observe())
        await started.wait()
        if how == "cancelled":
            observing.cancel()
        await asyncio.wait((observing,))
        left = asyncio.all_tasks() - before - {observing}
        assert not left, f"left running: {left}"
        assert len(booked) == 1, "before the generator is closed"
        await subject.agent.client.close()

    with FakeAPI([message(text("words"), tool_use("Probe", {"n": 1}), text(gate, "never"))]) as api:
        asyncio.run(main(api))
        api.requests[0].wait_ended()
        gate.open()
    assert probe.calls == [1]
