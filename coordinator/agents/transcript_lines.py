"""The transcript that hooks are told of (`transcript_path`): JSON lines in the shape that scripts for Claude Code read.

One line for each block of an answer, under the answer's own id; one line for any other message. What a person typed is
plain text, everything else a list of blocks. Thinking is left out. Written only where there are hooks to read it, and never
read back by this program: a full disk costs the file, not the agent.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from coordinator.views.messages import answer
from worker_agent.messages import WIRE_KINDS, Message
from worker_agent.redaction import in_json

Line = dict[str, Any]
_HIDDEN = frozenset({"thinking", "redacted_thinking"})
_IDS = uuid.uuid5(uuid.NAMESPACE_URL, "coordinator:transcript")


class TranscriptLines:
    """Appends messages of one agent. `worker` says that it is none a person talks to; `redact` takes known secrets out."""

    def __init__(
        self, path: Path, *, session_id: str, cwd: Path, worker: bool, redact: Callable[[str], str] = lambda text: text
    ) -> None:
        self.path = path
        self._redact = redact
        self._last: str | None = None
        self._common = {"isSidechain": worker, "userType": "external", "cwd": str(cwd), "sessionId": session_id}

    def begin(self, history: Sequence[Message]) -> None:
        """Make the file, with what was said before, unless an earlier run of the agent has written it."""
        if not self.path.exists():
            self.add(history)

    def add(self, messages: Sequence[Message]) -> None:
        data = b"".join(map(self._bytes, (line for message in messages for line in _lines(message))))
        try:
            with open(self.path, "ab") as file:
                file.write(data)
        except OSError:
            return

    def _bytes(self, line: Line) -> bytes:
        id = str(uuid.uuid5(_IDS, line.pop("id")))
        whole = {"parentUuid": self._last, **self._common, **in_json(line, self._redact), "uuid": id}
        self._last = id
        return orjson.dumps(whole) + b"\n"


def _lines(message: Message) -> Iterator[Line]:
    """`id` names the line; it becomes its `uuid`."""
    if message.kind not in WIRE_KINDS:
        return
    common = {"timestamp": datetime.fromtimestamp(message.at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")}
    blocks = [dict(block) for block in message.content if block.get("type") not in _HIDDEN]
    if message.role == "assistant":
        for number, block in enumerate(blocks):
            yield {"type": "assistant", "message": answer(message, [block]), "id": f"{message.id}/{number}", **common}
        return
    typed = message.kind == "prompt" and all(block.get("type") == "text" for block in blocks)
    content = "\n\n".join(block["text"] for block in blocks) if typed else blocks
    said = {"isMeta": True} if message.meta and message.kind != "tool_results" else {}
    yield {"type": "user", "message": {"role": "user", "content": content}, "id": message.id, **said, **common}
