"""One recorded call, with the questions scripts and tests ask of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.fake_api.signatures import Dropped


@dataclass(eq=False)
class Request:
    """`time` and `ended` are monotonic seconds; `kind` and `status` say what was answered ("" and 0 while nothing was).

    `usage` is what the answer reported of the prompt; `content` what a finished or broken answer was made of.
    `aborted` says that the client left before the end of the answer.
    """

    number: int
    method: str
    path: str
    headers: Mapping[str, str]
    raw: bytes = field(repr=False)
    time: float
    body: dict[str, Any] = field(default_factory=dict, repr=False)
    model: str = ""
    conversation: str = ""
    nth: int = 0  # of its conversation, from 0
    betas: frozenset[str] = frozenset()
    kind: str = ""
    status: int = 0
    usage: Mapping[str, Any] = field(default_factory=dict)
    content: list[dict[str, Any]] = field(default_factory=list, repr=False)
    dropped: list[Dropped] = field(default_factory=list)
    aborted: bool = False
    ended: float | None = None
    end: threading.Event = field(default_factory=threading.Event, repr=False)

    @property
    def messages(self) -> list[dict[str, Any]]:
        return self.body.get("messages", [])

    @property
    def system_text(self) -> str:
        system = self.body.get("system") or ""
        return system if isinstance(system, str) else "\n".join(b["text"] for b in system)

    @property
    def tool_names(self) -> list[str]:
        return [t.get("name", "") for t in self.body.get("tools") or ()]

    @property
    def turns(self) -> int:
        """How many assistant messages the conversation has."""
        return sum(m["role"] == "assistant" for m in self.messages)

    @property
    def last_user_text(self) -> str:
        """The text blocks of the last user message, results of tools not included."""
        for message in reversed(self.messages):
            if message["role"] == "user":
                return "\n".join(_texts(message["content"]))
        return ""

    @property
    def user_text(self) -> str:
        """The text blocks of all user messages."""
        return "\n".join(t for m in self.messages if m["role"] == "user" for t in _texts(m["content"]))

    @property
    def tool_results(self) -> dict[str, str]:
        """tool_use_id → text of its result, for every result in the conversation."""
        found = {}
        for message in self.messages:
            for block in message["content"] if isinstance(message["content"], list) else ():
                if block["type"] == "tool_result":
                    content = block.get("content") or ""
                    found[block["tool_use_id"]] = content if isinstance(content, str) else "".join(_texts(content))
        return found

    def wait_ended(self, timeout: float = 10.0) -> None:
        """Block until the answer is complete or the client has left; AssertionError after `timeout` seconds."""
        assert self.end.wait(timeout), f"request {self.number} has not ended after {timeout} s"


def _texts(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
        return
    for block in content:
        if block["type"] == "text":
            yield block["text"]
