"""What an agent does now, in words, from the events of it that an observer sees."""

from __future__ import annotations

import re

from msgspec import Struct

from worker_agent.events import (
    Event,
    InputDelta,
    MessageAdded,
    RequestStarted,
    TextDelta,
    ThinkingDelta,
    Tombstone,
    ToolFinished,
    ToolStarted,
)

TAIL = 400  # characters of what is being written
_SENTENCE = re.compile(r"\n|(?<=[.:!?]) ")


class Doing(Struct):
    """`turns` counts the answers; `said` is the end of the text that is being written."""

    turns: int = 0
    said: str = ""
    _words: str = ""

    def on(self, event: Event) -> None:
        match event:
            case RequestStarted(attempt=attempt):
                self._words, self.said = ("asks the model" if attempt == 1 else f"asks the model, try {attempt}"), ""
            case ThinkingDelta():
                self._words = "thinks"
            case TextDelta(text):
                self._words, self.said = "writes", (self.said + text)[-TAIL:]
            case InputDelta():
                self._words = "writes a call"
            case ToolStarted(activity=activity):
                self._words = activity
            case ToolFinished(name=name, is_error=True):
                self._words = f"{name} failed"
            case MessageAdded(message) if message.kind == "answer":
                self.turns, self.said = self.turns + 1, ""
            case Tombstone():
                self.said = ""

    @property
    def words(self) -> str:
        """Empty before the first event that tells."""
        line = self.last_line
        return f"{self._words}: {line}" if self._words == "writes" and line else self._words

    @property
    def last_line(self) -> str:
        """The last sentence of it: its beginning stands still while it grows."""
        return _SENTENCE.split(self.said.rstrip())[-1]
