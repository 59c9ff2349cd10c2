"""The page's server: routes over `reading.py`, `feed.py` and what a person may do from another process; Starlette and uvicorn.

Rules:

1. Every request passes the guard (`guard.py`) before anything looks at it, and every answer bears its headers.
2. The answer to what cannot be done is an object with `error`, one line for a person, and the status that fits; never a
   traceback.
3. What waits for the database, git or processes runs in threads: the loop only carries bytes.

Imported by `commands/serve.py` when it runs: nobody else pays for a web framework.
"""

from __future__ import annotations

import asyncio
import logging
import mimetypes
import socket
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib.resources import files as resources
from typing import Any, TypeVar

import orjson
import uvicorn
from msgspec import Struct, field
from msgspec.structs import asdict
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.cli.failures import Bug, translate
from coordinator.other_processes import answering, sending
from coordinator.other_processes.kill import kill_session, kill_task
from coordinator.paths import Paths
from coordinator.runs.changes import patch_of
from coordinator.views import comparison, costs, reading
from coordinator.views.exit_codes import ExitCode
from coordinator.views.forecast import forecast
from coordinator.views.shown import listed_tasks, session_detail, shown_sessions
from coordinator.views.timeline import Lane, lanes
from coordinator.web import feed, guard
from coordinator.web.opening import Once
from tasks import registry, sessions
from tasks.connection import Connection
from tasks.db import Database
from tasks.records import SessionRecord, TaskRecord
from worker_agent.config import secret_values
from worker_agent.redaction import Redactor

BODY = 256 * 1024  # bytes that a change may send
FEEDS = 64  # pages at once
DIFF = 2_000_000  # characters of a diff
KNOWN_SESSIONS = 8  # whose ended lanes are kept
LEAVING = 2  # seconds for answers that are under way, when the server leaves
STATUS = {ExitCode.USAGE: 400, ExitCode.NOT_FOUND: 404, ExitCode.NOT_AUTHENTICATED: 401}
T = TypeVar("T")

log = logging.getLogger(__name__)


class Answer(Exception):
    """An answer that is no success: the status, and why in one line."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


def bind(port: int) -> socket.socket:
    """A socket on loopback; 0 takes a free port. Raises `OSError`, `OverflowError`."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((guard.HOST, port))
    except BaseException:
        made.close()
        raise
    return made


class Page(Struct):
    """Everything that the routes need. `lanes` keeps the ended lanes of the sessions that were looked at last."""

    database: Database
    paths: Paths
    news: feed.News
    acting: ThreadPoolExecutor
    once: Once
    lanes: OrderedDict[str, dict[str, Lane]] = field(default_factory=OrderedDict)
    feeds: int = 0

    def now(self) -> float:
        return self.database.clock()

    async def read(self, fn: Callable[[Connection], T]) -> T:
        return await asyncio.to_thread(self.database.read, fn)

    async def act(self, fn: Callable[[], T]) -> T:
        """In threads of its own: ending processes takes seconds, and nobody who reads waits for it."""
        return await asyncio.get_running_loop().run_in_executor(self.acting, fn)

    @contextmanager
    def open_feed(self) -> Iterator[None]:
        """One more for the length of the block."""
        self.feeds += 1
        try:
            yield
        finally:
            self.feeds -= 1

    def ended_lanes(self, session_id: str) -> dict[str, Lane]:
        found = self.lanes.setdefault(session_id, {})
        self.lanes.move_to_end(session_id)
        while len(self.lanes) > KNOWN_SESSIONS:
            self.lanes.popitem(last=False)
        return found


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _sessions(page: Page, request: Request) -> Any:
    limit = _number(request, "limit", None)
    found = await page.read(lambda conn: sessions.list_sessions(conn, limit=limit))
    return await asyncio.to_thread(shown_sessions, page.database, found, page.now())


async def _session(page: Page, request: Request) -> Any:
    record = await page.read(partial(sessions.resolve, ref=request.path_params["id"]))
    return await asyncio.to_thread(session_detail, page.database, record, page.now())


async def _timeline(page: Page, request: Request) -> Any:
    def read(conn: Connection) -> list[Lane]:
        record = sessions.resolve(conn, request.path_params["id"])
        return lanes(conn, record, page.now(), page.ended_lanes(record.id))

    return [lane.to_json() for lane in await page.read(read)]


async def _money(page: Page, request: Request) -> Any:
    return await page.read(lambda conn: reading.money(conn, sessions.resolve(conn, request.path_params["id"])))


async def _forecast(page: Page, request: Request) -> Any:
    def read(conn: Connection) -> Any:
        now = page.now()
        return forecast(reading.session_tasks(conn, sessions.resolve(conn, request.path_params["id"]).id, now), now)

    left = await page.read(read)
    return left and left.to_json()


async def _log(page: Page, request: Request) -> Any:
    before, after = (_place(request, name) for name in ("before", "after"))
    limit, task = _number(request, "limit", reading.PAGE), request.query_params.get("task")

    def read(conn: Connection) -> Any:
        session_id = sessions.resolve(conn, request.path_params["id"]).id
        return reading.log(conn, session_id, task_id=task, before=before, after=after, limit=limit or 1)

    return await page.read(read)


async def _stored_events(page: Page, request: Request) -> Any:
    after, limit = _number(request, "after", 0) or 0, _number(request, "limit", reading.MOST) or 1

    def read(conn: Connection) -> Any:
        return reading.event_rows(conn, sessions.resolve(conn, request.path_params["id"]).id, after, limit)

    return await page.read(read)


async def _message(page: Page, request: Request) -> Any:
    return await page.read(partial(reading.whole, agent_id=request.path_params["id"], seq=request.path_params["seq"]))


async def _tasks(page: Page, request: Request) -> Any:
    asked = request.query_params
    limit, named = _number(request, "limit", None), asked.get("session")

    def read(conn: Connection) -> Any:
        session_id = sessions.resolve(conn, named).id if named else None
        everything, statuses = asked.get("all") in ("1", "true"), asked.getlist("status")
        return listed_tasks(conn, page.now(), session_id=session_id, everything=everything, statuses=statuses, limit=limit)

    return await page.read(read)


async def _task(page: Page, request: Request) -> Any:
    ref = request.path_params["id"]
    return await page.read(lambda conn: reading.task(conn, registry.resolve(conn, ref).id, page.now()))


async def _usage(page: Page, request: Request) -> Any:
    ref = request.path_params["id"]
    return await page.read(lambda conn: reading.usage(conn, registry.resolve(conn, ref).id))


async def _files(page: Page, request: Request) -> Any:
    ref = request.path_params["id"]
    return await page.read(lambda conn: reading.files(conn, registry.resolve(conn, ref)))


async def _output(page: Page, request: Request) -> Any:
    record = await page.read(partial(registry.resolve, ref=request.path_params["id"]))
    return await asyncio.to_thread(reading.output, record)


async def _diff(page: Page, request: Request) -> Any:
    def find(conn: Connection) -> tuple[TaskRecord, SessionRecord]:
        task = registry.resolve(conn, request.path_params["id"])
        return task, sessions.get(conn, task.session_id)

    task, session = await page.read(find)

    def read() -> Any:
        changes, missing = patch_of(task, session, page.paths)
        text = changes.decode("utf-8", "replace")
        return {"diff": text[:DIFF], "length": len(text), "missing": list(missing)}

    return await page.act(read)


async def _inbox(page: Page, request: Request) -> Any:
    return await page.read(reading.inbox)


async def _cost(page: Page, request: Request) -> Any:
    by, named = request.query_params.get("by", "session"), request.query_params.get("session")
    if by not in costs.KEYS:
        raise Answer(400, f"by is one of {', '.join(costs.KEYS)}")
    session_id = (await page.read(partial(sessions.resolve, ref=named))).id if named else None
    return await asyncio.to_thread(costs.sums, page.database, by, session_id)


async def _compare(page: Page, request: Request) -> Any:
    refs = [request.query_params.get(name, "") for name in ("a", "b")]
    one, other = await page.read(lambda conn: [sessions.resolve(conn, ref) for ref in refs])
    return await asyncio.to_thread(comparison.compare, page.database, one, other, page.now())


async def _feed(page: Page, request: Request) -> Response:
    if page.feeds >= FEEDS:
        raise Answer(503, f"{FEEDS} pages are open already")
    asked, ref = request.query_params, request.headers.get("last-event-id") or request.query_params.get("after")
    if ref is not None and not ref.isdecimal():
        raise Answer(400, "Last-Event-ID is the id of an event")

    def read(conn: Connection) -> feed.Scope:
        if named := asked.get("task"):
            task = registry.resolve(conn, named)
            return feed.Scope(task.session_id, task.id)
        return feed.Scope(sessions.resolve(conn, asked["session"]).id if asked.get("session") else None)

    scope = await page.read(read)
    told = feed.Feed(page.database, page.news, scope, None if ref is None else int(ref))

    async def stream() -> Any:
        with page.open_feed():
            async for text in told:
                yield text

    return StreamingResponse(stream(), media_type="text/event-stream")


# ── what a person does ───────────────────────────────────────────────────────────────────────────────────────────────


async def _answer(page: Page, request: Request, *, approve: bool) -> Any:
    said, ids = await _body(request), [request.path_params["id"]]
    by = answering.user()

    def decide(conn: Connection) -> list[answering.Answered]:
        if approve:
            rule = _text(said, "rule")
            return answering.approve(conn, ids, by=by, always=said.get("always") is True and not rule, rule=rule)
        return answering.deny(conn, ids, by=by, why=_text(said, "why"))

    answers = await page.act(partial(page.database.write, decide))
    late = [answering.too_late(record) for record, first in answers if not first]
    if late:
        raise Answer(409, "; ".join(late))
    return [{"id": record.id, "status": record.status, "by": record.answered_by, "rule": record.rule} for record, _ in answers]


async def _send(page: Page, request: Request, kind: str) -> Any:
    text, ref = _text(await _body(request), "message") or "", request.path_params["id"]
    known = Redactor(secret_values())  # as in every other text: what is stored holds no secret

    def write(conn: Connection) -> sending.Sent:
        to = registry.resolve(conn, ref).id if kind == "tasks" else sessions.resolve(conn, ref).id
        return sending.send(conn, to, known(text), paths=page.paths, now=page.now())

    return asdict(await page.act(partial(page.database.write, write)))


async def _kill(page: Page, request: Request, kind: str) -> Any:
    await _body(request)
    ref = request.path_params["id"]
    if kind == "tasks":
        task = await page.read(partial(registry.resolve, ref=ref))
        return asdict(await page.act(partial(kill_task, page.database, task.id)))
    session = await page.read(partial(sessions.resolve, ref=ref))
    report = await page.act(partial(kill_session, page.database, session.id))
    return asdict(report) | {"ended": not report.survivors}


async def _exchange(page: Page, request: Request) -> Any:
    token = page.once.take(_text(await _body(request), "code") or "")
    if token is None:
        raise Answer(401, "this address was used before, or is too old: open the one that `coordinator serve` printed")
    return {"token": token}


# ── requests and answers ─────────────────────────────────────────────────────────────────────────────────────────────


def _number(request: Request, name: str, default: int | None) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not text.isdecimal() or len(text) > 18:
        raise Answer(400, f"{name} is a number")
    return int(text)


def _place(request: Request, name: str) -> reading.Place | None:
    text = request.query_params.get(name)
    try:
        return None if text is None else reading.Place.parse(text)
    except ValueError:
        raise Answer(400, f"{name} is a place in the log: AT:AGENT:SEQ") from None


def _text(said: dict[str, Any], name: str) -> str | None:
    value = said.get(name)
    if value is not None and not isinstance(value, str):
        raise Answer(400, f"{name} is a text")
    return value or None


async def _body(request: Request) -> dict[str, Any]:
    """The object that a change sends. Only JSON, which no form of another site can send unasked."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Answer(415, "a change sends JSON (Content-Type: application/json)")
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > BODY:
            raise Answer(413, f"more than {BODY:,} bytes")
    try:
        said = orjson.loads(bytes(data) or b"{}")
    except orjson.JSONDecodeError:
        raise Answer(400, "that is no JSON") from None
    if not isinstance(said, dict):
        raise Answer(400, "a change sends an object")
    return said


def _json(value: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")


def _answering(page: Page, fn: Callable[[Page, Request], Awaitable[Any]]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            value = await fn(page, request)
        except Answer as answer:
            return _json({"error": str(answer)}, answer.status)
        except ClientDisconnect:
            return Response(status_code=400)
        except Exception as error:  # whatever it is, one line and no traceback, as on the command line
            return _failed(error)
        return value if isinstance(value, Response) else _json(value)

    return endpoint


def _failed(error: Exception) -> Response:
    failure = translate(error)
    if isinstance(failure, Bug):
        log.error("a bug in the page's server", exc_info=error)
        return _json({"error": failure.message}, 500)
    return _json({"error": " ".join([failure.message, *failure.more])}, STATUS.get(failure.code, 409))


def _static() -> dict[str, Response]:
    """Our own files, by their paths."""
    kinds = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
    found = {}
    for file in resources("coordinator.web").joinpath("static").iterdir():
        suffix = f".{file.name.rpartition('.')[2]}"
        if suffix in kinds or mimetypes.guess_type(file.name)[0]:
            path = "/" if file.name == "index.html" else f"/static/{file.name}"
            found[path] = Response(file.read_bytes(), media_type=kinds.get(suffix))
    return found


def _routes(page: Page) -> list[Route]:
    reads: dict[str, Callable[[Page, Request], Awaitable[Any]]] = {
        "/api/sessions": _sessions,
        "/api/sessions/{id}": _session,
        "/api/sessions/{id}/timeline": _timeline,
        "/api/sessions/{id}/money": _money,
        "/api/sessions/{id}/forecast": _forecast,
        "/api/sessions/{id}/log": _log,
        "/api/sessions/{id}/events": _stored_events,
        "/api/agents/{id}/messages/{seq:int}": _message,
        "/api/tasks": _tasks,
        "/api/tasks/{id}": _task,
        "/api/tasks/{id}/usage": _usage,
        "/api/tasks/{id}/files": _files,
        "/api/tasks/{id}/output": _output,
        "/api/tasks/{id}/diff": _diff,
        "/api/inbox": _inbox,
        "/api/cost": _cost,
        "/api/compare": _compare,
        "/api/events": _feed,
    }
    changes: dict[str, Callable[[Page, Request], Awaitable[Any]]] = {
        "/api/approvals/{id}/approve": partial(_answer, approve=True),
        "/api/approvals/{id}/deny": partial(_answer, approve=False),
        "/api/tasks/{id}/send": partial(_send, kind="tasks"),
        "/api/sessions/{id}/send": partial(_send, kind="sessions"),
        "/api/tasks/{id}/kill": partial(_kill, kind="tasks"),
        "/api/sessions/{id}/kill": partial(_kill, kind="sessions"),
        guard.EXCHANGE: _exchange,
    }
    return [
        *(Route(path, _answering(page, fn), methods=["GET"]) for path, fn in reads.items()),
        *(Route(path, _answering(page, fn), methods=["POST"]) for path, fn in changes.items()),
        *(Route(path, partial(_file, response), methods=["GET"]) for path, response in _static().items()),
    ]


async def _file(response: Response, request: Request) -> Response:
    return response


class Guarded:
    """The guard before an application, and its headers on every answer."""

    def __init__(self, app: ASGIApp, guarding: guard.Guard) -> None:
        self._app = app
        self._guard = guarding

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        asked = guard.Asked(
            method=scope["method"],
            path=scope["path"],
            headers=dict(Headers(scope=scope)),
            peer=(scope.get("client") or ("", 0))[1],
        )

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(guard.HEADERS)
            await send(message)

        refused = await asyncio.to_thread(self._guard.refuses, asked)
        app = self._app if refused is None else _json({"error": refused.why}, refused.status)
        await app(scope, receive, with_headers)


class _Server(uvicorn.Server):
    """Says when it listens, and ends the feeds when it leaves."""

    def __init__(self, config: uvicorn.Config, listens: Callable[[], object], leaves: Callable[[], object]) -> None:
        super().__init__(config)
        self._listens = listens
        self._leaves = leaves

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._listens()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._leaves()
        await super().shutdown(sockets)


async def serve(
    database: Database, paths: Paths, listening: socket.socket, token: str, once: Once, listens: Callable[[], object]
) -> None:
    """Serve until a signal; `listens` is called once requests are taken. Ends with the signal's own effect."""
    news = feed.News(database)
    with ThreadPoolExecutor(4, "acting") as acting:
        page = Page(database, paths, news, acting, once)
        guarding = guard.Guard(listening.getsockname()[1], token)
        config = uvicorn.Config(
            Guarded(Starlette(routes=_routes(page)), guarding), log_config=None, access_log=False, lifespan="off", ws="none",
            http="h11", loop="asyncio", server_header=False, timeout_graceful_shutdown=LEAVING, backlog=128,
        )  # fmt: skip
        await _Server(config, listens, news.close).serve(sockets=[listening])
