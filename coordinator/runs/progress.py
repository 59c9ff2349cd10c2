"""What a run has done so far, summed from its events; told to observers and to the store without flooding either.

Input tokens are the latest prompt's (the API counts the whole prompt each time), output tokens are summed, each
response counted once; of an answer that is still written they are guessed from its length, until the API has counted it. The cost is None as soon as one price is unknown: unknown is never shown as 0.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from msgspec import Struct, field

from tasks.records import TaskRecord
from worker_agent.events import (
    Event,
    InputDelta,
    MessageAdded,
    ModelCalled,
    RequestStarted,
    TextDelta,
    ThinkingDelta,
    ToolStarted,
)
from worker_agent.messages import Usage
from worker_agent.structs import replace

ACTIVITIES = 5
LONGEST_ACTIVITY = 200  # characters
INTERVAL = 0.25  # seconds between two tellings at least; a screen is drawn as often
LIFE = 2.0  # seconds between two signs of life at least, while a model writes
CHARACTERS = 4  # of an answer for a token, until the API has counted them

Price = Callable[[str, Usage], float | None]


class Progress(Struct):
    """`activities` are the last tools, in words; `texts` what the model said in this run, for a partial result."""

    price: Price
    tool_uses: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: float | None = 0.0
    model: str | None = None
    activities: deque[str] = field(default_factory=lambda: deque(maxlen=ACTIVITIES))
    texts: list[str] = field(default_factory=list)
    written: int = 0  # characters of the answer that is being written

    def observe(self, event: Event) -> bool:
        """Count the event; whether anything to be told changed. That a model writes is no such thing (`shows_life`)."""
        match event:
            case TextDelta(text) | ThinkingDelta(text):
                self.written += len(text)
                return False
            case InputDelta(length):
                self.written += length
                return False
            case ToolStarted():
                self.tool_uses += 1
                self.activities.append(event.activity[:LONGEST_ACTIVITY])
            case ModelCalled():
                self._count(event)
            case MessageAdded(message=message) if message.kind == "answer" and message.text.strip():
                self.texts.append(message.text.strip())
            case _:
                return False
        return True

    def settle(self) -> None:
        """Nothing is written any more: no figure is a guess."""
        self.written = 0

    def on(self, task: TaskRecord, now: float) -> TaskRecord:
        """`task` with this progress, as of `now`."""
        return replace(
            task,
            tool_uses=self.tool_uses,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens + self.written // CHARACTERS,
            cache_read_tokens=self.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens,
            cost_usd=self.cost_usd,
            model=self.model or task.model,
            activities=tuple(self.activities),
            last_activity_at=now,
        )

    def _count(self, call: ModelCalled) -> None:
        self.settle()
        if call.response_id is None:
            return
        usage = call.usage
        self.model = call.model
        self.input_tokens = usage.prompt or self.input_tokens
        self.output_tokens += usage.output
        self.cache_read_tokens += usage.cache_read
        self.cache_write_tokens += usage.cache_write_5m + usage.cache_write_1h
        cost = self.price(call.model, usage)
        self.cost_usd = None if cost is None or self.cost_usd is None else self.cost_usd + cost


def shows_life(event: Event) -> bool:
    """Whether a model is at work: a worker that only waits for an answer is no worker that hangs."""
    return isinstance(event, RequestStarted | TextDelta | ThinkingDelta | InputDelta)


class Coalesced:
    """Calls `tell` soon after `touch`, at most once an interval. Belongs to one event loop."""

    def __init__(self, tell: Callable[[], None], interval: float = INTERVAL) -> None:
        self._tell = tell
        self._interval = interval
        self._timer: asyncio.TimerHandle | None = None
        self._earliest = 0.0

    def touch(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(loop.time(), self._earliest), self._fire)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        self._earliest = asyncio.get_running_loop().time() + self._interval
        self._tell()
