"""What machines that work on one session, or with one account, share: money, limits, small files.

1. A process spends of its *share* without asking: a row says how much is set apart for it. What is free is the limit less what
   the ledger knows as spent less all shares of living processes. A dead node's share is free again; what its calls under way
   cost nobody knows.
2. What a server said of an account holds for all processes that use it, by the database's clock.
3. Requests and tokens of a minute are given out in slices.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from tasks import ledger, nodes
from tasks.connection import Connection
from tasks.nodes import NodeStatus

OWNER = ""  # the holder that the session's own process is
MINUTE = 60.0


class Share(Struct, frozen=True):
    """`usd`, `tokens`: what the process may spend from here on. `spent_*` is what the whole session has; `others_busy`: another
    process may give some of its share back."""

    usd: float
    tokens: int
    spent_usd: float
    spent_tokens: int
    others_busy: bool


def take(
    conn: Connection,
    session_id: str,
    holder: str,
    *,
    wanted_usd: float,
    wanted_tokens: int,
    limit_usd: float | None,
    limit_tokens: int | None,
    busy: bool,
) -> Share:
    """Have the share of `holder` be what it wants from now on, or as much as there is; a limit of None is none."""
    total = ledger.total(conn, session_id=session_id)
    others = [row for row in _shares(conn, session_id) if row[0] != holder]
    free_usd = (limit_usd or 0.0) - total.known_cost_usd - sum(row[1] for row in others)
    free_tokens = (limit_tokens or 0) - total.output_tokens - sum(row[2] for row in others)
    usd = wanted_usd if limit_usd is None else max(0.0, min(wanted_usd, free_usd))
    tokens = wanted_tokens if limit_tokens is None else max(0, min(wanted_tokens, free_tokens))
    set_share(conn, session_id, holder, usd, tokens, busy=busy)
    return Share(usd, tokens, total.known_cost_usd, total.output_tokens, any(bool(row[3]) for row in others))


def set_share(conn: Connection, session_id: str, holder: str, usd: float, tokens: int, *, busy: bool) -> None:
    """The holder keeps so much of its share; nothing, and not busy, is no row."""
    of = {"of": session_id, "by": holder}
    if not (usd or tokens or busy):
        conn.execute("DELETE FROM budget_shares WHERE session_id = :of AND holder = :by", **of)
    elif not conn.set("budget_shares", {"usd": usd, "tokens": tokens, "busy": busy}, "session_id = :of AND holder = :by", **of):
        row = {"session_id": session_id, "holder": holder, "usd": usd, "tokens": tokens, "busy": busy}
        conn.insert("budget_shares", row)


def _shares(conn: Connection, session_id: str) -> list[tuple[str, float, int, bool]]:
    """Of the session's own process and of living nodes; those of others are forgotten."""
    rows = conn.rows("SELECT holder, usd, tokens, busy FROM budget_shares WHERE session_id = :of", of=session_id)
    living = {node.holder for node in nodes.list_nodes(conn) if node.status is not NodeStatus.DEAD} | {OWNER}
    for holder in {row[0] for row in rows} - living:
        conn.execute("DELETE FROM budget_shares WHERE session_id = :of AND holder = :by", of=session_id, by=holder)
    return [(row[0], float(row[1]), int(row[2]), bool(row[3])) for row in rows if row[0] in living]


# ── an account ───────────────────────────────────────────────────────────────────────────────────────────────────────


def block(conn: Connection, account: str, seconds: float) -> None:
    """Nobody sends for so long; a block that ends later stays."""
    until = conn.server_time() + seconds
    _account(conn, account)
    conn.execute(
        "UPDATE account_limits SET blocked_until = :until WHERE account = :of AND blocked_until < :until",
        until=until,
        of=account,
    )


def blocked_for(conn: Connection, account: str) -> float:
    """Seconds until anybody may send."""
    until = conn.value("SELECT blocked_until FROM account_limits WHERE account = :of", of=account)
    return 0.0 if until is None else max(0.0, float(until) - conn.server_time())


class Slice(Struct, frozen=True):
    """`requests` and `tokens` may be used within `seconds`, the rest of the minute."""

    requests: int
    tokens: int
    seconds: float


def lease(
    conn: Connection, account: str, *, requests: int, tokens: int, of_requests: int | None, of_tokens: int | None
) -> Slice:
    """A slice of this minute, at most as wanted and what is left of its `of_…`; None is no limit."""
    now = conn.server_time()
    minute = int(now // MINUTE)
    _account(conn, account)
    row = conn.row("SELECT minute, requests, tokens FROM account_limits WHERE account = :of", of=account)
    assert row is not None
    used_requests, used_tokens = (int(row[1]), int(row[2])) if int(row[0]) == minute else (0, 0)
    given = requests if of_requests is None else max(0, min(requests, of_requests - used_requests))
    given_tokens = tokens if of_tokens is None else max(0, min(tokens, of_tokens - used_tokens))
    used = {"minute": minute, "requests": used_requests + given, "tokens": used_tokens + given_tokens}
    conn.set("account_limits", used, "account = :of", of=account)
    return Slice(given, given_tokens, (minute + 1) * MINUTE - now)


def _account(conn: Connection, account: str) -> None:
    """Writers are one at a time: nobody else makes the row meanwhile."""
    if conn.value("SELECT account FROM account_limits WHERE account = :of", of=account) is None:
        row = {"account": account, "blocked_until": 0.0, "minute": 0, "requests": 0, "tokens": 0}
        conn.insert("account_limits", row)


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class SharedFile(Struct, frozen=True):
    """`content` is base64, None for a file that was removed."""

    path: str
    version: int
    digest: str
    content: str | None


def put_files(conn: Connection, session_id: str, files: Sequence[tuple[str, str, str | None]]) -> int:
    """Share files: path, digest, content (None: removed). The version that they have."""
    version = 1 + int(conn.value("SELECT coalesce(max(version), 0) FROM shared_files WHERE session_id = :of", of=session_id))
    for path, digest, content in files:
        new = {"version": version, "digest": digest, "content": content}
        if not conn.set("shared_files", new, "session_id = :of AND path = :at", of=session_id, at=path):
            conn.insert("shared_files", new | {"session_id": session_id, "path": path})
    return version


def files_since(conn: Connection, session_id: str, version: int, *, area: str = "") -> list[SharedFile]:
    """Those that were shared after `version`, in that order; of one `area` those whose path begins with it."""
    begins = f"{area}/" if area else ""
    rows = conn.rows(
        "SELECT path, version, digest, content FROM shared_files WHERE session_id = :of AND version > :after "
        "AND substr(path, 1, :length) = :begins ORDER BY version",
        of=session_id,
        after=version,
        length=len(begins),
        begins=begins,
    )
    return [SharedFile(*row) for row in rows]
