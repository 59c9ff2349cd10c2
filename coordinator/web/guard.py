"""Who may ask the page's server for something. Pure, but for one look at what the system knows of a connection.

1. It listens on loopback only, and only a request that names it so is answered (`Host`): another site's name that was made to
   point here is not ours.
2. A request that another site's page makes is refused: by `Origin`, and by `Sec-Fetch-Site` where a browser sends no origin.
3. A change needs the token. Reading needs it, too, unless the system tells that the other end of the connection is a process of
   the same user, who can read the database anyway.
4. A token that is wrong is refused even where none was needed: whoever sends one means to be known.
5. What exchanges a code for the token (`opening.py`) needs none; the code is looked at there.
"""

from __future__ import annotations

import hmac
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from msgspec import Struct

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")
CONNECTIONS = Path("/proc/net/tcp")
UNCHANGING = ("GET", "HEAD")
EXCHANGE = "/api/token"
# Nothing but our own files; no inline code, no frames around it, and no HTML made of text even by a mistake of ours.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


class Refused(Struct, frozen=True):
    """The status, and why in one line."""

    status: int
    why: str


class Asked(Struct, frozen=True, kw_only=True):
    """What of a request decides whether it is answered; header names are small. `peer` is the other end's port."""

    method: str
    path: str
    headers: Mapping[str, str]
    peer: int


class Guard(Struct, frozen=True):
    """Of a server on `port` of loopback whose `token` lets things be changed."""

    port: int
    token: str

    def refuses(self, asked: Asked) -> Refused | None:
        """Why the request is not answered; None if it may be."""
        if asked.headers.get("host") not in self.hosts:
            return Refused(403, "this server is asked for by its own name only")
        if not self._is_of_this_page(asked.headers):
            return Refused(403, "another site's page may ask for nothing here")
        if not asked.path.startswith("/api/") or asked.path == EXCHANGE:
            return None
        shown = _token(asked.headers)
        if shown is not None:
            return None if hmac.compare_digest(shown.encode(), self.token.encode()) else Refused(401, "that is not the token")
        if asked.method not in UNCHANGING:
            return Refused(401, "a change needs the token that `coordinator serve` printed (Authorization: Bearer …)")
        if not is_own_process(asked.peer, self.port):
            return Refused(401, "reading needs the token that `coordinator serve` printed (Authorization: Bearer …)")
        return None

    @property
    def hosts(self) -> frozenset[str]:
        return frozenset(f"{name}:{self.port}" for name in NAMES)

    def _is_of_this_page(self, headers: Mapping[str, str]) -> bool:
        """A navigation comes from nowhere ("none"); what is no browser sends neither header."""
        origin = headers.get("origin")
        if origin is not None and origin not in {f"http://{host}" for host in self.hosts}:
            return False
        if headers.get("sec-fetch-mode") == "navigate":
            return True  # a link somewhere may lead here: it shows the page, and reads nothing of it
        return headers.get("sec-fetch-site", "none") in ("none", "same-origin")


def _token(headers: Mapping[str, str]) -> str | None:
    """The token that a request shows, right or wrong."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def is_own_process(peer: int, port: int) -> bool:
    """Whether the connection from loopback's `peer` to its `port` was made by this process's own user. False where the system
    does not tell."""
    try:
        rows = CONNECTIONS.read_text("ascii").splitlines()[1:]
    except OSError:
        return False
    ends = (_end(peer), _end(port))
    users = (fields[7] for fields in map(partial(str.split, maxsplit=10), rows) if tuple(fields[1:3]) == ends)
    return next(users, None) == str(os.geteuid())


def _end(port: int) -> str:
    """Loopback's address and a port as the system's table has them: the address in the machine's own order of bytes."""
    address = int.from_bytes(bytes(map(int, HOST.split("."))), sys.byteorder)
    return f"{address:08X}:{port:04X}"
