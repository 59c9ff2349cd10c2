"""What this program asks of the one that drives it, over the lines of stdin and stdout: a `control_request` goes out, its
`control_response` comes back, by `request_id`.

Who no longer waits for an answer says so (`control_cancel_request`). When standard input has ended no answer can come: what
waits, and whoever asks later, is told so at once.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from typing import Any

Fields = Mapping[str, Any]
GONE = "the program that could answer has closed standard input"


class Unanswered(Exception):
    """The program failed to answer, or can no longer."""


class Channel:
    """Belongs to one event loop."""

    def __init__(self, write: Callable[[Fields], None]) -> None:
        self._write = write
        self._asked: dict[str, asyncio.Future[Fields]] = {}  # request id → what will be answered
        self._closed = False

    @property
    def is_closed(self) -> bool:
        return self._closed

    async def ask(self, subtype: str, **fields: Any) -> Fields:
        """The program's answer. Raises `Unanswered`."""
        if self._closed:
            raise Unanswered(GONE)
        id = str(uuid.uuid4())
        self._asked[id] = asyncio.get_running_loop().create_future()
        self._write({"type": "control_request", "request_id": id, "request": {"subtype": subtype, **fields}})
        try:
            return await self._asked[id]
        except asyncio.CancelledError:
            self._write({"type": "control_cancel_request", "request_id": id})
            raise
        finally:
            del self._asked[id]

    def settle(self, response: Fields) -> None:
        """A `control_response` came; one that nobody waits for is passed over."""
        asked = self._asked.get(response["request_id"])
        if asked is None or asked.done():
            return
        if response.get("subtype") == "success":
            asked.set_result(response.get("response") or {})
        else:
            asked.set_exception(Unanswered(str(response.get("error") or "it gave no reason")))

    def close(self) -> None:
        """No more answers come."""
        self._closed = True
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(Unanswered(GONE))
