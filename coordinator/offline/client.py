"""The offline model: a deterministic surveyor behind the `ModelClient` port. No network, and no language model.

1. It decides from the request alone. Agent without Grep among the tools: it is the coordinator. A survey question: it
   is a research or verification worker. Anything else with Grep and Read: it surveys by itself.
2. The conversation is its only memory: what to do next follows from what the messages since the goal hold. Equal
   requests give equal answers, ids included.
3. It states only what a tool printed, cites it as `file:line`, and has every citation read again before it reports.
4. It says that it is no language model. It follows no instructions, so nothing it reads can give it any.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, Sequence

from msgspec import Struct

from coordinator.offline.conversation import PLAIN, is_prompt
from coordinator.offline.lead import as_coordinator
from coordinator.offline.plan import Call
from coordinator.offline.worker import as_worker
from worker_agent.api.client import BlockClosed, Finished, ModelEvent, ModelInfo, ModelRequest, Started, TextPiece
from worker_agent.config import Clock, SystemClock
from worker_agent.errors import ErrorKind, ModelError
from worker_agent.messages import Block, Usage, text_block

MODEL = "offline-surveyor"
CHARS_PER_TOKEN = 4
PIECE = 120  # characters of one piece of text


class OfflineClient:
    """`pause` is how long an answer rests between two pieces of text, in seconds."""

    def __init__(self, clock: Clock | None = None, *, pause: float = 0.0) -> None:
        self._clock = clock or SystemClock()
        self._pause = pause

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        answer = answer_to(request)
        prompt = Usage(input=_prompt_tokens(request))
        yield Started(f"msg_{answer.seed[:24]}", MODEL, prompt)
        for piece in (answer.text[i : i + PIECE] for i in range(0, len(answer.text), PIECE)):
            await (self._clock.sleep(self._pause) if self._pause else asyncio.sleep(0))
            yield TextPiece(0, piece)
        blocks = answer.blocks()
        for index, block in enumerate(blocks):
            yield BlockClosed(index, block)
        written = sum(len(json.dumps(block)) for block in blocks) // CHARS_PER_TOKEN
        yield Finished("tool_use" if answer.calls else "end_turn", prompt + Usage(output=max(1, written)))

    async def count_tokens(self, request: ModelRequest) -> int | None:
        return _prompt_tokens(request)

    async def model_info(self, model: str) -> ModelInfo:
        return ModelInfo(id=model, window=200_000, max_output=64_000, cache_control=False)

    def cost(self, model: str, usage: Usage) -> float | None:
        return 0.0

    async def refresh_credentials(self) -> bool:
        return False

    def forget(self, conversation: str) -> None:
        return None

    async def close(self) -> None:
        return None


class Answer(Struct, frozen=True):
    """What the model says and asks for. `seed` names the request it answers (hexadecimal)."""

    text: str
    calls: Sequence[Call]
    seed: str

    def blocks(self) -> list[Block]:
        uses = [
            {
                "type": "tool_use",
                "id": f"toolu_{self.seed[:20]}{index:02d}",
                "name": call.name,
                "input": dict(call.input),
            }
            for index, call in enumerate(self.calls)
        ]
        return [text_block(self.text), *uses]


def answer_to(request: ModelRequest) -> Answer:
    """The answer to a request. Raises `ModelError` for what only a language model can do: summaries."""
    helper = "/" in request.conversation or not (request.tools or request.conversation)
    if helper or not any(is_prompt(message) for message in request.messages):
        raise ModelError(ErrorKind.INVALID_REQUEST, "the offline model writes no summaries")
    tools = {tool.name for tool in request.tools}
    if "Agent" in tools and "Grep" not in tools:
        text, calls = as_coordinator(request)
    elif {"Glob", "Grep", "Read"} <= tools:
        text, calls = as_worker(request.messages)
    else:
        text, calls = f"{PLAIN} For that I need the tools Glob, Grep and Read, which I was not given.", []
    if calls and not request.tools_allowed:
        text, calls = (
            "The survey ends here, before it was done: no further call is allowed. Nothing can be reported.",
            [],
        )
    return Answer(text, calls, _seed(request))


def _seed(request: ModelRequest) -> str:
    digest = hashlib.sha256(request.model.encode())
    for message in request.messages:
        digest.update(message.role.encode() + message.wire)
    return digest.hexdigest()


def _prompt_tokens(request: ModelRequest) -> int:
    tools = sum(len(t.name) + len(t.description) + len(json.dumps(t.input_schema)) for t in request.tools)
    size = tools + sum(map(len, request.system)) + sum(len(message.wire) for message in request.messages)
    return max(1, size // CHARS_PER_TOKEN)
