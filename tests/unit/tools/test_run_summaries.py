from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from worker_agent.api.call import Caller
from worker_agent.api.client import BlockClosed, Finished, ModelEvent, ModelRequest, Started, TextPiece
from worker_agent.api.limiter import Limiter
from worker_agent.config import SystemClock
from worker_agent.errors import ErrorKind, ModelError
from worker_agent.loop.ports import Nothing
from worker_agent.messages import Usage, text_block, tool_result_block
from worker_agent.tools.base import ToolOutcome
from worker_agent.tools.summaries import summarise


class Client:
    """A model client that says fixed pieces, then ends or fails."""

    def __init__(self, pieces: Sequence[str], error: ModelError | None = None) -> None:
        self.pieces, self.error = pieces, error
        self.requests: list[ModelRequest] = []

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self.requests.append(request)
        yield Started("m", request.model, Usage())
        for piece in self.pieces:
            yield TextPiece(0, piece)
        if self.error:
            raise self.error
        yield BlockClosed(0, text_block("".join(self.pieces)))
        yield Finished("end_turn", Usage())


def outcome(id: str = "t1", content: Any = "3 files") -> ToolOutcome:
    return ToolOutcome(id, "Grep", tool_result_block(id, content), False, 0.1, True)


def ask(client: Client, outcomes: Sequence[ToolOutcome], calls: Sequence[Any] = ()) -> str | None:
    clock = SystemClock()
    caller = Caller(client=client, limiter=Limiter(clock), budget=Nothing(), clock=clock)  # type: ignore[arg-type]
    return asyncio.run(summarise(caller, "small", outcomes, calls))


def test_a_summary_is_one_line_of_the_small_models_answer() -> None:
    client = Client(["Searched src", " for TODO.\nAnd more"])
    assert ask(client, [outcome()], [{"id": "t1", "input": {"pattern": "TODO"}}]) == "Searched src for TODO"
    (request,) = client.requests
    assert (request.model, request.tools, request.max_tokens, request.effort) == ("small", (), 1_024, "low")
    assert request.messages[0].text == 'Grep {"pattern":"TODO"} (done)\n3 files'


@pytest.mark.parametrize(
    ("said", "shown"), [("", None), (" \n ", None), ('"Read a.py"', "Read a.py"), ("a\x1b[31mb", "a [31mb")]
)
def test_what_is_no_label_is_not_shown_and_controls_never_pass(said: str, shown: str | None) -> None:
    assert ask(Client([said]), [outcome()]) == shown


def test_a_long_answer_is_cut() -> None:
    assert ask(Client(["x" * 500]), [outcome()]) == "x" * 59 + "…"


def test_a_failure_is_silent_and_nothing_to_tell_asks_nobody() -> None:
    error = ModelError(ErrorKind.OVERLOADED, "overloaded")
    assert ask(Client(["Half an"], error), [outcome()]) is None
    client = Client(["x"])
    assert ask(client, []) is None and client.requests == []


def test_the_question_is_bounded_whatever_the_tools_brought() -> None:
    client = Client(["Did much"])
    many = [outcome(str(n), [{"type": "text", "text": "y" * 10_000}, {"type": "image"}]) for n in range(100)]
    assert ask(client, many) == "Did much"
    asked = client.requests[0].messages[0].text
    assert len(asked) < 10_000 and "and 80 more calls" in asked
