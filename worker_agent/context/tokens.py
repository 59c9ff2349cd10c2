"""How many tokens a conversation has: the usage of the last response, plus an estimate for what came after it.

Estimates: `chars_per_token` characters a token for text (a property of the model's family), half of that for JSON, and
2,000 for an image. A message's characters are counted once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from weakref import WeakKeyDictionary

from msgspec import Struct

from worker_agent.config import ContextSettings
from worker_agent.context.values import Window
from worker_agent.messages import Block, Message, canonical

IMAGE_TOKENS = 2_000


_counted: WeakKeyDictionary[Message, tuple[int, int, int]] = WeakKeyDictionary()


def _sizes(message: Message) -> tuple[int, int, int]:
    """(characters of text, characters of JSON, images) of a message."""
    if (known := _counted.get(message)) is None:
        known = _counted[message] = _sum(_block_sizes(block) for block in message.content)
    return known


def _sum(sizes: Iterable[tuple[int, int, int]]) -> tuple[int, int, int]:
    text = json = images = 0
    for t, j, i in sizes:
        text, json, images = text + t, json + j, images + i
    return text, json, images


def _block_sizes(block: Block) -> tuple[int, int, int]:
    match block.get("type"):
        case "text":
            return len(block["text"]), 0, 0
        case "thinking":
            return len(block.get("thinking", "")), 0, 0
        case "image" | "document":
            return 0, 0, 1
        case "tool_result":
            content = block.get("content", "")
            if isinstance(content, str):
                return len(content), 0, 0
            return _sum(_block_sizes(b) for b in content)
        case _:
            return 0, len(canonical(block)), 0


def estimate(messages: Iterable[Message], chars_per_token: float) -> int:
    """Tokens of `messages` by their characters alone."""
    text = json = images = count = 0
    for message in messages:
        t, j, i = _sizes(message)
        text, json, images, count = text + t, json + j, images + i, count + 1
    return int(text / chars_per_token + json / (chars_per_token / 2)) + images * IMAGE_TOKENS + 4 * count


class Count(Struct, frozen=True):
    """Tokens of a view: `known` from the usage of the answer `answer` (its id), and `estimated` by characters."""

    known: int
    estimated: int
    answer: str = ""

    @property
    def total(self) -> int:
        return self.known + self.estimated


def prompt_tokens(view: Sequence[Message], window: Window, *, stale: str = "", fixed: int = 0) -> Count:
    """Tokens of the next request: the last answer's usage plus an estimate of what came after it. An answer from before
    a compaction (`stale` is the last of them) says nothing any more; then all is estimated, and `fixed` characters of
    system prompt and tools are counted too."""
    for index in range(len(view) - 1, -1, -1):
        message = view[index]
        if message.role == "assistant" and message.usage is not None and message.usage.prompt:
            if message.id == stale or message.kind == "summary":
                break
            return Count(message.usage.total, estimate(view[index + 1 :], window.chars_per_token), message.id)
    return Count(0, estimate(view, window.chars_per_token) + int(fixed / window.chars_per_token))


def effective_window(window: Window, settings: ContextSettings) -> int:
    """The model's window less what is kept for a summary's output."""
    size = settings.window or window.window
    return size - min(settings.summary_reserve, window.max_output, size // 5)
