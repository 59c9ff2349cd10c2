"""`Transport`: how the bytes of one call reach the endpoint and how its answer comes back; two ways behind one port.

1. `direct.py` speaks to the endpoint itself. It serves what nearly everybody has: a key or a token, and a plain address.
2. `sdk_transport.py` goes through the vendor's SDK: profiles, fetched tokens, addresses in other forms. Importing it takes
   ten times as long as everything else of a start together, so that nobody who does not need it pays for it.
3. The SDK is the judge: `tests/conformance/test_transport.py` demands the same bytes, headers and errors of both.
4. A transport makes one try. Nothing but `ModelError` leaves.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from worker_agent.config import Clock

MAX_CONNECTIONS = 100_000  # no cap of ours: the limiter decides how many calls run
IDLE_SECONDS = 30.0  # how long an idle connection is kept; an agent's tools mostly take less
LARGE_BODY = 512 * 1024  # bytes; more is sent in slices, so that the event loop is not held up

Body = Sequence[bytes | memoryview]
"""What is sent, as parts one after the other. They are the bytes that the conversation holds: no turn makes a copy of them all."""


class Endpoint(Struct, frozen=True, kw_only=True):
    """Whom to ask, as our caller names it. What is None is taken from the environment, as the SDK takes it."""

    clock: Clock
    connect_timeout: float  # seconds
    base_url: str | None = None
    api_key: str | None = None
    user_agent: str | None = None


class Answer(Protocol):
    """An HTTP answer whose head has come. `headers` are found in upper and lower case."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body as it arrives, decompressed where it was compressed. Raises `ModelError` where it breaks off."""
        ...

    async def close(self) -> None:
        """Gives the connection back, or closes it if the body was not read to its end."""
        ...


class Transport(Protocol):
    async def send(self, method: str, path: str, headers: Mapping[str, str], body: Body | None) -> Answer:
        """One request; `path` is relative to the address, `headers` come on top of those of every call.
        Raises `ModelError` where no answer came."""
        ...

    async def refresh(self) -> bool:
        """Read the credentials anew after a 401; whether there is something new to try."""
        ...

    async def close(self) -> None: ...
