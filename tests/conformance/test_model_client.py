"""What every `ModelClient` promises the loop, for each of them: the Messages API, and the built-in surveyor."""

import asyncio

import pytest

from coordinator.offline.client import MODEL, OfflineClient
from tests.support.fake_api import FakeAPI, message, text, thinking
from worker_agent.api.anthropic_client import AnthropicClient
from worker_agent.api.client import BlockClosed, Finished, ModelInfo, ModelRequest, Started, TextPiece
from worker_agent.config import Settings
from worker_agent.errors import ModelError
from worker_agent.messages import Usage, user


@pytest.fixture(params=["messages api", "offline"])
def client_and_model(request):
    """(a function that makes the client inside a loop, the model's name)"""
    if request.param == "offline":
        yield OfflineClient, MODEL
        return
    answers = [message(thinking("hm"), text("Hello "), text("there.")) for _ in range(3)]
    with FakeAPI(answers) as api:
        yield lambda: AnthropicClient(settings=Settings(), base_url=api.base_url, api_key="test"), "claude-sonnet-5"


def request_for(model, **fields):
    values = {"model": model, "max_tokens": 1_000, "system": ("You help.",), "tools": (), "messages": (user("Hello"),)}
    return ModelRequest(**values | {"conversation": "c"} | fields)


def run(make, work):
    async def main():
        client = make()
        try:
            return await work(client)
        finally:
            await client.close()

    return asyncio.run(main())


async def events_of(client, request):
    return [event async for event in client.stream(request)]


def test_a_stream_begins_with_started_and_ends_with_finished(client_and_model):
    make, model = client_and_model
    events = run(make, lambda client: events_of(client, request_for(model)))
    assert isinstance(events[0], Started) and isinstance(events[-1], Finished)
    assert [type(event) for event in events].count(Started) == 1
    assert events[-1].usage.output > 0 and events[-1].stop_reason == "end_turn"


def test_every_text_is_shown_in_pieces_and_then_closed_whole(client_and_model):
    make, model = client_and_model
    events = run(make, lambda client: events_of(client, request_for(model)))
    shown = {}
    for event in events:
        if isinstance(event, TextPiece):
            shown[event.index] = shown.get(event.index, "") + event.text
    closed = {e.index: e.block["text"] for e in events if isinstance(e, BlockClosed) and e.block["type"] == "text"}
    assert shown == closed != {}


def test_leaving_a_stream_early_leaves_nothing_behind(client_and_model):
    make, model = client_and_model

    async def leave(client):
        stream = client.stream(request_for(model))
        await anext(stream)
        await stream.aclose()
        await asyncio.sleep(0)  # what was cancelled ends with the next turn of the event loop
        return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    assert run(make, leave) == []


def test_a_model_has_a_window_and_a_price_or_none(client_and_model):
    make, model = client_and_model

    async def ask(client):
        return (
            await client.model_info(model),
            client.cost(model, Usage(input=10, output=10)),
            client.cost("nobody", Usage(input=1)),
        )

    info, cost, unknown = run(make, ask)
    assert isinstance(info, ModelInfo) and info.window > 0 and info.max_output > 0
    assert cost is not None and cost >= 0
    assert unknown is None or model == MODEL


def test_counting_is_a_number_or_none(client_and_model):
    make, model = client_and_model
    count = run(make, lambda client: client.count_tokens(request_for(model)))
    assert count is None or count > 0


def test_no_exception_but_its_own_crosses_the_port():
    async def ask(client):
        with pytest.raises(ModelError):
            await events_of(client, request_for("claude-sonnet-5"))

    run(lambda: AnthropicClient(settings=Settings(), base_url="http://127.0.0.1:9", api_key="x"), ask)
