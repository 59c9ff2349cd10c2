"""The fake Messages API: a real HTTP server on 127.0.0.1, in a thread and event loop of its own.

The way of a request: headers → JSON → fields → model → shape, pairing and limits → thinking bindings → prefix
watch → planned failures → script → answer. What the real API would refuse gets its error; what a correct client can
never cause is a violation besides, and leaving the context manager with violations fails the test.

Everything but reading the records happens on the server's own thread, so scripts need no locks.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import orjson

from tests.support.fake_api import http, validation
from tests.support.fake_api.answer import Accepted, Answerer, Conversation, Shared
from tests.support.fake_api.cache import PromptCache
from tests.support.fake_api.errors import Refusal, error_body, html_body
from tests.support.fake_api.models import MODELS, Model
from tests.support.fake_api.parse import Parsed, parse
from tests.support.fake_api.prompt import Head, Prompt, assemble, conversation_key, facts_of, head_of
from tests.support.fake_api.request import Request
from tests.support.fake_api.scripts import as_script
from tests.support.fake_api.signatures import Binding, Signatures
from tests.support.fake_api.watch import End, PrefixBreak, Watch
from tests.support.fake_api.wire import Reply, as_reply, http_error

MAX_BODY = 32 * 1024 * 1024
_MAX_HEADS = 256


@dataclass(slots=True)
class _Planned:
    """A failure planned by the test: for the next `left` requests that `where` accepts."""

    left: int
    reply: Reply
    where: Callable[[Request], bool]


@dataclass(slots=True)
class _Bucket:
    """A rate limit of `size` requests in each window of `seconds`."""

    size: int
    seconds: float
    opened: float = float("-inf")
    used: int = 0

    def take(self, now: float) -> float | None:
        """None when the request may pass, else the seconds until the window ends."""
        if now - self.opened >= self.seconds:
            self.opened, self.used = now, 0
        self.used += 1
        return None if self.used <= self.size else self.opened + self.seconds - now

    def remaining(self) -> int:
        return max(0, self.size - self.used)


class FakeAPI:
    """The server. `with FakeAPI(script) as api:` gives `api.base_url`; see the package docstring for scripts.

    `requests` are the calls of `POST /v1/messages` in order of arrival, `calls` those of every route. `violations` are
    sentences; `prefix_breaks` what the prefix watch found. `allow_violations` is True, or parts of the texts that may
    occur. `models` adds or replaces models, `windows` only their windows. `watch` names the kinds of prefix break that
    are violations. `compaction_marker` is a text whose new appearance in a request excuses a changed prefix. A `plain`
    server is a compatible one, which refuses by name whatever only the vendor has. A `cloud` takes what Foundry and Vertex are
    sent: a key of their own header, the model in the path.
    """

    def __init__(
        self,
        script: Any = None,
        *,
        port: int = 0,
        expected_key: str | None = None,
        allow_violations: bool | Collection[str] = False,
        allow_prefix_change: bool = False,
        models: Mapping[str, Model] | None = None,
        windows: Mapping[str, int] | None = None,
        without: Collection[str] = (),
        watch: Collection[str] = ("blocks", "bytes"),
        compaction_marker: str | None = None,
        enforce_binding: bool = True,
        plain: bool = False,
        cloud: bool = False,
        html_413: bool = False,
        max_body: int = MAX_BODY,
        keep_bodies: bool = True,
    ) -> None:
        self.script = as_script(script)
        self.requests: list[Request] = []
        self.calls: list[Request] = []
        self.violations: list[str] = []
        self.prefix_breaks: list[PrefixBreak] = []
        self.allow_violations = allow_violations
        self.models: dict[str, Model] = {**MODELS, **(models or {})}
        for name, window in (windows or {}).items():
            self.models[name] = replace(self.models[name], window=window)
        self._port = port
        self._expected_key = expected_key
        self._without = frozenset(without)
        self._watched = frozenset(watch)
        self._marker = orjson.dumps(compaction_marker)[1:-1] if compaction_marker else None
        self._enforce_binding = enforce_binding
        self._plain = plain
        self._cloud = cloud
        self._html_413 = html_413
        self._max_body = max_body
        self._keep_bodies = keep_bodies
        self._allowed: list[_Planned] = []
        if allow_prefix_change:
            self.allow_prefix_change()
        self._planned: list[_Planned] = []
        self._bucket: _Bucket | None = None
        self._clock_offset = 0.0
        self._cache = PromptCache(self._now)
        self._signatures = Signatures()
        self._watch = Watch()
        self._conversations: dict[str, Conversation] = {}
        self._heads: dict[bytes, Head] = {}
        self._ids = 0
        self._id_prefix = os.urandom(3).hex()
        self._answers = Answerer(Shared(self._cache, self._signatures, self._new_id, self._headers, self._ended, self._spawn))
        self._news = threading.Condition()
        self._connections: set[http.Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._running = False
        self._ready = threading.Event()
        self._failed: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self.base_url = ""

    # ------------------------------------------------------------ life

    def start(self) -> FakeAPI:
        self._thread = threading.Thread(target=self._run, name="fake-messages-api", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._failed is not None:
            raise self._failed
        return self

    def stop(self) -> None:
        """End every connection and the thread. Does not judge."""
        if self._loop is not None and self._thread is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def verify(self) -> None:
        """AssertionError listing the violations that are not allowed."""
        allowed = self.allow_violations
        if allowed is True:
            return
        parts = tuple(allowed or ())
        bad = [v for v in self.violations if not any(part in v for part in parts)]
        if bad:
            raise AssertionError("the fake Messages API saw violations:\n" + "\n".join(f"- {v}" for v in bad))

    def __enter__(self) -> FakeAPI:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self.stop()
        if kind is None:
            self.verify()
        elif error is not None and self.violations:
            error.add_note("violations seen by the fake Messages API: " + "; ".join(self.violations))

    async def __aenter__(self) -> FakeAPI:
        return self.start()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self.__exit__(kind, error, trace)

    def _run(self) -> None:
        loop = self._loop = asyncio.new_event_loop()
        try:
            server = loop.run_until_complete(loop.create_server(self._connect, "127.0.0.1", self._port, backlog=2048))
        except OSError as error:
            self._failed = error
            loop.close()
            self._ready.set()
            return
        self.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        try:
            loop.run_forever()
        finally:
            loop.run_until_complete(self._close(server))
            loop.close()

    async def _close(self, server: asyncio.Server) -> None:
        server.close()
        tasks = [*self._tasks]
        for connection in list(self._connections):
            connection.abort()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # lets the transports close
        await asyncio.sleep(0)

    def _connect(self) -> http.Connection:
        return http.Connection(self._serve, self._connections, self._max_body)

    # ------------------------------------------------------------ what a test may ask for

    def allow_prefix_change(self, where: Callable[[Request], bool] | None = None, times: int | None = None) -> None:
        """From now on requests that `where` accepts may change their prefix, at most `times` times."""
        self._allowed.append(_Planned(-1 if times is None else times, Reply(), where or (lambda _: True)))

    def fail_next(self, count: int, reply: Any, where: Callable[[Request], bool] | None = None) -> None:
        """Answer the next `count` requests that `where` accepts with `reply`, before the script is asked."""
        self._planned.append(_Planned(count, as_reply(reply), where or (lambda _: True)))

    def rate_limit(
        self, count: int, retry_after: float | str | None = 1, *, error_code: str | None = None,
        where: Callable[[Request], bool] | None = None, headers: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """429 for the next `count` requests, with `retry-after` (seconds or HTTP date) unless None."""
        fields = {**({} if retry_after is None else {"retry-after": str(retry_after)}), **(headers or {})}
        reply = http_error(429, "rate_limit_error", "This request would exceed your rate limit.", fields, error_code)
        self.fail_next(count, reply, where)

    def overload(self, count: int, where: Callable[[Request], bool] | None = None) -> None:
        """529 for the next `count` requests."""
        self.fail_next(count, http_error(529, "overloaded_error", "Overloaded"), where)

    def limit_rate(self, requests: int, seconds: float) -> None:
        """A real limit: 429 with the true `retry-after` beyond `requests` in each window of `seconds`."""
        self._bucket = _Bucket(requests, seconds)

    def advance(self, seconds: float) -> None:
        """Move the clock of the prompt cache on, so that entries expire."""
        self._clock_offset += seconds

    def wait_for_requests(self, count: int, timeout: float = 10.0) -> list[Request]:
        """Block until `count` message requests have come; AssertionError after `timeout` seconds."""
        with self._news:
            if not self._news.wait_for(lambda: len(self.requests) >= count, timeout):
                raise AssertionError(f"{len(self.requests)} of {count} requests came in {timeout} s")
            return list(self.requests)

    async def until_requests(self, count: int, timeout: float = 10.0) -> list[Request]:
        """`wait_for_requests` for a test that runs an event loop of its own."""
        return await asyncio.to_thread(self.wait_for_requests, count, timeout)

    def conversation(self, name: str) -> list[Request]:
        """The requests of one conversation (its `x-conversation` header, or the key made up for it)."""
        return [r for r in self.requests if r.conversation == name]

    # ------------------------------------------------------------ routes

    def _serve(self, call: http.Call) -> None:
        target = urlsplit(call.target)
        request = Request(len(self.calls), call.method, target.path, call.headers, call.raw, call.time)
        self.calls.append(request)
        call.abandoned = lambda: self._left(request)
        try:
            self._route(call, request, parse_qs(target.query))
        except Refusal as refusal:
            self._refuse(call, request, refusal)
        except Exception:  # a fault of the fake itself must fail the test, not hang it
            self.violations.append(f"request {request.number}: the fake itself failed:\n{traceback.format_exc()}")
            call.hang_up()

    def _route(self, call: http.Call, request: Request, query: dict[str, list[str]]) -> None:
        path, posted = request.path, call.method == "POST"
        if self._cloud and posted:
            path = _as_the_vendor_has_it(call, request)
        if posted and path.endswith("/v1/messages"):
            self._message_call(call, request)
        elif posted and path.endswith("/v1/messages/count_tokens") and "count_tokens" not in self._without:
            self._count(call, request)
        elif not posted and "/v1/models" in path and "models" not in self._without:
            request.betas = validation.check_headers(request.headers, self._expected_key)
            name = path.partition("/v1/models")[2].strip("/")
            self._send(call, request, self._models(name, query, request), "models")
        elif not posted and path == "/__fake__/stats":
            self._send(call, request, self.stats(), "stats")
        else:
            raise Refusal(f"{call.method} {path}: Not Found", status=404, violation=False)

    def stats(self) -> dict[str, Any]:
        """What a run from outside wants to know: counts and complaints."""
        return {
            "requests": len(self.requests),
            "aborted": sum(r.aborted for r in self.requests),
            "conversations": len(self._conversations),
            "violations": self.violations,
            "prefix_breaks": [str(b) for b in self.prefix_breaks],
        }

    def _models(self, name: str, query: dict[str, list[str]], request: Request) -> dict[str, Any]:
        beta = bool(request.betas)
        if name:
            return self._model(name).info(beta=beta)
        infos = [m.info(beta=beta) for m in self.models.values()]
        wanted = query.get("lifecycle")
        infos = [i for i in infos if not wanted or i["lifecycle"] in wanted]
        ids = [i["id"] for i in infos]
        limit = int(query.get("limit", ["20"])[0])
        if not 1 <= limit <= 1000:
            raise Refusal("limit: Input should be between 1 and 1000")
        first, last = 0, len(infos)
        if "after_id" in query:
            first = ids.index(query["after_id"][0]) + 1
        if "before_id" in query:
            last = ids.index(query["before_id"][0])
            first = max(first, last - limit)
        page = infos[first : min(last, first + limit)]
        more = last > first + limit
        ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
        return {"data": page, "has_more": more, **ends}

    def _model(self, name: str) -> Model:
        model = self.models.get(name)
        if model is None or model.lifecycle == "retired":
            raise Refusal(f"model: {name}", status=404, violation=False)
        return model

    def _count(self, call: http.Call, request: Request) -> None:
        parsed = self._parse(call, request)
        model, prompt, _ = self._check(request, parsed, Conversation(), counting=True)
        self._bound(request, model, prompt)
        self._send(call, request, {"input_tokens": prompt.total}, "count_tokens")

    # ------------------------------------------------------------ a message request

    def _message_call(self, call: http.Call, request: Request) -> None:
        with self._news:
            self.requests.append(request)
            self._news.notify_all()
        accepted = self._accept(call, request)
        planned = self._planned_reply(request)
        if planned is not None:
            self._answers.answer(accepted, planned)
        elif request.body["max_tokens"] == 0:
            self._answers.answer(accepted, Reply(kind="warm", stop_reason="max_tokens", usage={"output_tokens": 0}))
        else:
            self._ask_script(accepted)

    def _parse(self, call: http.Call, request: Request) -> Parsed:
        if call.too_large:
            raise Refusal("Request exceeds the maximum size", status=413, violation=False, html=self._html_413)
        request.betas = validation.check_headers(request.headers, self._expected_key)
        parsed = parse(call.raw)
        request.body = parsed.body
        return parsed

    def _check(
        self, request: Request, parsed: Parsed, conversation: Conversation | None, *, counting: bool = False
    ) -> tuple[Model, Prompt, Conversation]:
        body, version = parsed.body, request.headers["anthropic-version"]
        if self._plain:
            validation.check_plain(body, request.betas)
        validation.check_fields(body, request.betas, version, counting=counting)
        request.model = body["model"]
        model = self._model(request.model)
        head = self._head(body, request.betas)
        conversation = conversation or self._conversation(request, head)
        facts = facts_of(body["messages"], parsed.message_bytes, conversation.prompt)
        checked = validation.Call(body, facts, model, request.betas, counting, conversation.pause_content)
        validation.check(checked)
        prompt = assemble(head, facts, parsed.message_bytes, conversation.prompt)
        validation.check_window(prompt.total, model.window)
        return model, prompt, conversation

    def _accept(self, call: http.Call, request: Request) -> Accepted:
        parsed = self._parse(call, request)
        model, prompt, conversation = self._check(request, parsed, None)
        binding = self._bound(request, model, prompt)
        conversation.prompt = prompt
        accounting = self._cache.account(model, prompt, request.body.get("cache_control"))
        request.usage = accounting.usage()
        end = self._watch_prefix(request, prompt, parsed.messages_raw)
        if not self._keep_bodies:
            request.raw = b""
        return Accepted(request, call, model, prompt, binding, accounting, conversation, end)

    def _head(self, body: dict[str, Any], betas: frozenset[str]) -> Head:
        """Tools and system, looked at once for as long as they stay the same."""
        key = orjson.dumps([body.get("tools"), body.get("system"), sorted(betas)])
        head = self._heads.get(key)
        if head is None:
            validation.check_tools(body.get("tools") or [], betas)
            if len(self._heads) >= _MAX_HEADS:
                self._heads.clear()
            head = self._heads[key] = head_of(body)
        return head

    def _conversation(self, request: Request, head: Head) -> Conversation:
        key = request.headers.get("x-conversation")
        if key is None:
            key = conversation_key(head, request.messages)
        request.conversation = key
        conversation = self._conversations.setdefault(key, Conversation())
        request.nth = conversation.requests
        conversation.requests += 1
        return conversation

    def _bound(self, request: Request, model: Model, prompt: Prompt) -> Binding:
        binding = self._signatures.binding(prompt)
        config = (request.body.get("thinking") or {}).get("block_binding") or {}
        drop = config.get("prefix_mismatch_behavior") == "drop_block" or not self._enforce_binding
        request.dropped = self._signatures.check(prompt, model, binding, drop=drop)
        return binding

    def _watch_prefix(self, request: Request, prompt: Prompt, raw: bytes) -> End:
        breaks, new, old = self._watch.see(request.conversation, prompt, raw, request.number)
        if not breaks or old is None or self._compacted(old, new) or self._use(self._allowed, request) is not None:
            return new
        self.prefix_breaks += breaks
        self.violations += [str(b) for b in breaks if b.kind in self._watched]
        return new

    def _compacted(self, old: End, new: End) -> bool:
        """Whether a compaction lies between: its block, or the test's marker, is new."""
        before, after = ({f.digests[f.compaction] for f in end.prompt.facts if f.compaction is not None} for end in (old, new))
        if after - before:
            return True
        return self._marker is not None and new.raw.count(self._marker) > old.raw.count(self._marker)

    # ------------------------------------------------------------ choosing the answer

    def _use(self, planned: list[_Planned], request: Request) -> Reply | None:
        for one in planned:
            if one.left != 0 and one.where(request):
                one.left -= 1
                return one.reply
        return None

    def _planned_reply(self, request: Request) -> Reply | None:
        if self._bucket is not None:
            wait = self._bucket.take(time.monotonic())
            if wait is not None:
                return http_error(429, headers={"retry-after": f"{max(wait, 0.001):.3f}"})
        return self._use(self._planned, request)

    def _ask_script(self, accepted: Accepted) -> None:
        try:
            answer = self.script(accepted.request)
            if not inspect.isawaitable(answer):
                answer = as_reply(answer)
        except Exception:  # a script is test code: its failure is reported, not the server's
            self._script_failed(accepted)
            return
        if isinstance(answer, Reply):
            self._answers.answer(accepted, answer)
        else:
            self._spawn(accepted.call, self._await_script(accepted, answer))

    async def _await_script(self, accepted: Accepted, answer: Any) -> None:
        try:
            reply = as_reply(await answer)
        except Exception:  # as above
            self._script_failed(accepted)
            return
        await self._answers.perform(accepted, reply)

    def _script_failed(self, accepted: Accepted) -> None:
        self.violations.append(f"request {accepted.request.number}: the script failed:\n{traceback.format_exc()}")
        reply = http_error(500, message="the script failed", headers={"x-should-retry": "false"})
        self._answers.answer(accepted, reply)

    def _spawn(self, call: http.Call, work: Any) -> None:
        assert self._loop is not None
        call.task = self._loop.create_task(work)
        self._tasks.add(call.task)
        call.task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.violations.append("the fake itself failed:\n" + "".join(traceback.format_exception(error)))

    def _ended(self, request: Request) -> None:
        request.ended = time.monotonic()
        if not self._keep_bodies:
            request.body = {}
        request.end.set()

    def _left(self, request: Request) -> None:
        request.aborted = True
        self._ended(request)

    def _refuse(self, call: http.Call, request: Request, refusal: Refusal) -> None:
        request.status = refusal.status
        request.kind = f"http_{refusal.status}"
        if refusal.violation:
            self.violations.append(
                f"request {request.number} ({request.method} {request.path}, conversation "
                f"{request.conversation or '?'}): {refusal.message}"
            )
        headers = self._headers(None)
        self._ended(request)
        if refusal.html:
            call.respond(refusal.status, headers, html_body(refusal.status, refusal.message), "text/html")
            return
        body = error_body(refusal.kind, refusal.message, headers["request-id"], details=refusal.all_details())
        call.respond(refusal.status, headers, body, "application/json")

    def _send(self, call: http.Call, request: Request, value: Any, kind: str) -> None:
        request.status, request.kind = 200, kind
        self._ended(request)
        call.respond(200, self._headers(None), orjson.dumps(value), "application/json")

    def _headers(self, reply: Reply | None) -> dict[str, str]:
        limit, left = (self._bucket.size, self._bucket.remaining()) if self._bucket else (4000, 3999)
        headers = {
            "request-id": self._new_id("req"),
            "anthropic-ratelimit-requests-limit": str(limit),
            "anthropic-ratelimit-requests-remaining": str(left),
            "anthropic-ratelimit-requests-reset": "2030-01-01T00:00:00Z",
            "anthropic-ratelimit-tokens-limit": "4000000",
            "anthropic-ratelimit-tokens-remaining": "3999000",
            "anthropic-ratelimit-tokens-reset": "2030-01-01T00:00:00Z",
        }
        return headers | dict(reply.headers) if reply is not None else headers

    def _new_id(self, prefix: str) -> str:
        self._ids += 1
        return f"{prefix}_{self._id_prefix}{self._ids:06d}"

    def _now(self) -> float:
        return time.monotonic() + self._clock_offset


def _as_the_vendor_has_it(call: http.Call, request: Request) -> str:
    """The path of a request to a cloud, as the vendor's own API has it; its key, model and version are put where they are
    there."""
    if "x-api-key" in request.headers:
        request.headers["authorization"] = f"Bearer {request.headers['x-api-key']}"
    before, _, action = request.path.rpartition(":")
    if action != "streamRawPredict":
        return request.path
    body = orjson.loads(call.raw)
    if "model" in body or body.get("stream") is not True:
        raise Refusal("model: Extra inputs are not permitted")
    request.headers["anthropic-version"] = body.pop("anthropic_version")
    call.raw = request.raw = orjson.dumps({"model": before.rpartition("/")[2], **body})
    return "/v1/messages"
