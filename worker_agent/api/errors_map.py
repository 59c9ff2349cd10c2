"""Everything that can go wrong with a model call → one `ModelError`.

Rules of this file:

1. The vendor's own words are read in this order: `error.details.error_code`, `error.type`, HTTP status; but a status that
   says one thing only (401, 429) beats a type that says anything (`_GENERAL`), as foreign servers send it. Text is the
   last resort and is read only where there is no code for it: a prompt that is too long, an output cap that does not
   fit, media. Compatible servers phrase these in their own way, so the patterns are lenient.
2. An error event inside a stream (status 200) and an HTTP error of the same type are the same error.
3. What the transport raises before the answer began is CONNECTION (or TIMEOUT), afterwards STREAM_BROKEN.
4. Messages are sentences for a person: no HTML, no Python reprs, cut to a few hundred characters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import orjson
from msgspec import Struct

from worker_agent.errors import ErrorKind, ModelError

MESSAGE_LIMIT = 600  # characters of a message that are kept
READ_LIMIT = 20_000  # characters of an answer that are looked at

_BY_CODE = {
    "enforced_spend_limit_reached": ErrorKind.SPEND_LIMIT,
    "contract_spend_limit_reached": ErrorKind.SPEND_LIMIT,
    "ramp_limit_exceeded": ErrorKind.RATE_LIMIT,
    "image_dimensions_too_large": ErrorKind.MEDIA_TOO_LARGE,
    "request_body_too_large_after_decoding": ErrorKind.REQUEST_TOO_LARGE,
    "compaction_unavailable": ErrorKind.OVERLOADED,
    "thread_not_found": ErrorKind.INVALID_REQUEST,
}
_BY_TYPE = {
    "overloaded_error": ErrorKind.OVERLOADED,
    "rate_limit_error": ErrorKind.RATE_LIMIT,
    "timeout_error": ErrorKind.TIMEOUT,
    "api_error": ErrorKind.SERVER,
    "conflict_error": ErrorKind.CONFLICT,
    "authentication_error": ErrorKind.AUTHENTICATION,
    "permission_error": ErrorKind.PERMISSION,
    "billing_error": ErrorKind.BILLING,
    "not_found_error": ErrorKind.NOT_FOUND,
    "request_too_large": ErrorKind.REQUEST_TOO_LARGE,
    "exceed_context_size_error": ErrorKind.PROMPT_TOO_LONG,
    "invalid_request_error": ErrorKind.INVALID_REQUEST,
}
_BY_STATUS = {
    400: ErrorKind.INVALID_REQUEST,
    401: ErrorKind.AUTHENTICATION,
    402: ErrorKind.BILLING,
    403: ErrorKind.PERMISSION,
    404: ErrorKind.NOT_FOUND,
    408: ErrorKind.TIMEOUT,
    409: ErrorKind.CONFLICT,
    413: ErrorKind.REQUEST_TOO_LARGE,
    422: ErrorKind.INVALID_REQUEST,
    429: ErrorKind.RATE_LIMIT,
    499: ErrorKind.CONNECTION,
    504: ErrorKind.TIMEOUT,
    529: ErrorKind.OVERLOADED,
}
# Types that foreign servers send with every status, and statuses that say no more than such a type does.
_GENERAL = frozenset({ErrorKind.INVALID_REQUEST, ErrorKind.SERVER})
_INEXACT = frozenset({400, 422})
# Kinds whose text may say something more exact.
_VAGUE = frozenset({ErrorKind.INVALID_REQUEST, ErrorKind.REQUEST_TOO_LARGE, ErrorKind.SERVER, ErrorKind.UNFORESEEN})

_NUMBER = r"(\d[\d,_]*)"
# A cap over the model's own: `max_tokens: 200000 > 128000, which is the maximum allowed …`.
_CAP = re.compile(rf"max_tokens\W{{0,3}}\s*{_NUMBER}\s*>\s*{_NUMBER}", re.I)
# Prompt and cap together over the window: `… exceed context limit: 190000 + 32000 > 200000`.
_SUM = re.compile(rf"{_NUMBER}\s*\+\s*{_NUMBER}\s*>\s*{_NUMBER}")
# The same from a compatible server: `maximum context length is 4096 tokens … (4000 in the messages, 1000 in the
# completion)`.
_SPLIT = re.compile(
    rf"maximum context length is {_NUMBER}.*?{_NUMBER} (?:tokens )?(?:in|from) the (?:messages|input|prompt)"
    rf".*?{_NUMBER} (?:tokens )?(?:in|for) the (?:completion|output)",
    re.I | re.S,
)
# And another: `'max_tokens' … is too large: 5000. … context length is 4096 tokens and your request has 300 input …`.
_TOO_LARGE = re.compile(
    rf"max_(?:completion_)?tokens\W{{1,3}} is too large: {_NUMBER}.*?context length is {_NUMBER}.*?has {_NUMBER} input",
    re.I | re.S,
)
_LONG = re.compile(
    r"prompt is too long|context.?length|context.?size|context.?window|context.?limit|maximum context|"
    r"input is too long|too many (?:input |prompt )?tokens|"
    r"exceeds? the (?:model'?s )?(?:maximum )?(?:context|input)",
    re.I,
)
_OVER = re.compile(rf"{_NUMBER}\s*(?:tokens\s*)?>\s*{_NUMBER}", re.I)
_BYTES_OVER = re.compile(rf"{_NUMBER}\s*bytes\s*>\s*{_NUMBER}", re.I)
_PIXELS = re.compile(rf"{_NUMBER} pixels", re.I)
_LIMIT_IS = re.compile(
    rf"(?:context (?:length|size|window|limit)(?: is| of|:)?|maximum(?: of)?) *\(?{_NUMBER}|"
    rf"{_NUMBER} (?:tokens? )?maximum",
    re.I,
)
_ACTUAL_IS = re.compile(rf"(?:requested|request \(|has|resulted in|contains|got|received) *\(?{_NUMBER}", re.I)
_MEDIA = re.compile(
    r"(?:image|pdf|document|media).{0,80}(?:exceed|too large|too many|could not|cannot|maximum|not valid|invalid|"
    r"password|unsupported|dimension|corrupt|process)|"
    r"(?:could not process|unable to (?:process|decode|read)|unsupported) (?:the )?(?:image|pdf|document)",
    re.I | re.S,
)
_SPEND = re.compile(r"spend(?:ing)?[ _-]?limit|usage limits?\b|monthly limit", re.I)
_CREDIT = re.compile(r"credit balance", re.I)
_PATH = re.compile(r"messages[.\[](\d+)\]?\.content[.\[](\d+)\]?(?:\.content[.\[](\d+)\]?)?")
_TAGS = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.I | re.S)
_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.I | re.S)
_HTML = re.compile(r"<(?:!doctype|html|head|body)\b", re.I)
_PLAIN_NUMBER = re.compile(r"\d+(?:\.\d+)?")


class Facts(Struct, frozen=True):
    """What an error answer says of itself, however it came."""

    message: str
    type: str | None = None
    code: str | None = None
    details: Mapping[str, Any] | None = None
    status: int | None = None

    @property
    def in_stream(self) -> bool:
        return self.status is None or self.status < 400


def from_response(status: int, headers: Mapping[str, str], body: bytes, now: float) -> ModelError:
    """The error behind an HTTP answer that is not a stream. `now` is seconds since the epoch, for dates in headers."""
    facts = _facts(_decode(body), status)
    kind = classify(facts)
    if kind is ErrorKind.RATE_LIMIT and status >= 400 and _SPEND.search(facts.message) and not _waits(headers):
        kind = ErrorKind.SPEND_LIMIT
    return _error(kind, facts, headers, now)


def from_event(data: Any, headers: Mapping[str, str], now: float) -> ModelError:
    """The error behind an `error` event of a stream; `data` is its JSON, or its text when it is none."""
    facts = _facts(data, 200)
    kind = classify(facts)
    return _error(ErrorKind.SERVER if kind is ErrorKind.UNFORESEEN else kind, facts, headers, now, event=data)


def not_a_stream(headers: Mapping[str, str], body: bytes, now: float) -> ModelError:
    """The error behind a 200 answer that is no event stream: an error object at its word, the rest as nonsense."""
    data = _decode(body)
    if isinstance(data, Mapping) and (data.get("type") == "error" or "error" in data):
        return from_event(data, headers, now)
    said = f": {_sentence(data)}" if body.strip() else " (it was empty)"
    message = f"The endpoint answered 200 with something that is no event stream{said}"
    return ModelError(ErrorKind.NONSENSE, message, status=200, request_id=headers.get("request-id"))


def classify(facts: Facts) -> ErrorKind:
    """Code, then type, then status; text only where these are vague."""
    if facts.code in _BY_CODE:
        return _BY_CODE[facts.code]
    if facts.code and "spend_limit" in facts.code:
        return ErrorKind.SPEND_LIMIT
    kind = _plain_kind(facts)
    return _kind_by_text(facts.message, kind) if kind in _VAGUE else kind


def _plain_kind(facts: Facts) -> ErrorKind:
    by_type = _BY_TYPE.get(facts.type or "")
    if facts.in_stream:
        return by_type or ErrorKind.UNFORESEEN
    status = facts.status or 0
    if by_type in _GENERAL and status in _BY_STATUS and status not in _INEXACT:
        return _BY_STATUS[status]
    if by_type is not None and not (by_type is ErrorKind.SERVER and status < 500):
        return by_type
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return ErrorKind.SERVER if status >= 500 else ErrorKind.INVALID_REQUEST


def _kind_by_text(text: str, kind: ErrorKind) -> ErrorKind:
    if kind is ErrorKind.INVALID_REQUEST and _CREDIT.search(text):
        return ErrorKind.BILLING
    if kind is ErrorKind.INVALID_REQUEST and _SPEND.search(text):
        return ErrorKind.SPEND_LIMIT
    if (fit := _fitting_cap(text)) is not None:
        return ErrorKind.MAX_TOKENS_TOO_LARGE if fit[0] > 0 else ErrorKind.PROMPT_TOO_LONG
    if _LONG.search(text):
        return ErrorKind.PROMPT_TOO_LONG
    if kind is not ErrorKind.SERVER and _MEDIA.search(text):
        return ErrorKind.MEDIA_TOO_LARGE
    return kind


def _fitting_cap(text: str) -> tuple[int, int | None] | None:
    """(the output cap that would fit, the one asked for if it is over the model's own), where the text says so: None as
    the second where it is only more than this prompt leaves of the window. Not positive: nothing would fit."""
    if found := _CAP.search(text):
        return _int(found[2]), _int(found[1])
    if found := _SUM.search(text):
        return _int(found[3]) - _int(found[1]), None
    if found := _SPLIT.search(text):
        return _int(found[1]) - _int(found[2]), None
    if found := _TOO_LARGE.search(text):
        return _int(found[2]) - _int(found[3]), None
    return None


def _numbers(kind: ErrorKind, facts: Facts) -> tuple[int | None, int | None]:
    """(limit, actual) that the answer names."""
    text, details = facts.message, facts.details or {}
    if kind is ErrorKind.MAX_TOKENS_TOO_LARGE:
        fit = _fitting_cap(text)
        return fit if fit else (None, None)
    if kind is ErrorKind.PROMPT_TOO_LONG:
        return _window_numbers(text, details)
    if kind is ErrorKind.MEDIA_TOO_LARGE:
        pixels = details.get("max_side_length_pixels")
        over = _OVER.search(text) or _BYTES_OVER.search(text)
        if isinstance(pixels, int):
            return pixels, None
        return (_int(over[2]), _int(over[1])) if over else (_first(_PIXELS.search(text)), None)
    return None, None


def _window_numbers(text: str, details: Mapping[str, Any]) -> tuple[int | None, int | None]:
    if found := _SUM.search(text):
        return _int(found[3]), _int(found[1])
    if found := _OVER.search(text):
        return _int(found[2]), _int(found[1])
    limit, actual = details.get("n_ctx"), details.get("n_prompt_tokens")
    limit = limit if isinstance(limit, int) else _first(_LIMIT_IS.search(text))
    actual = actual if isinstance(actual, int) else _first(_ACTUAL_IS.search(text))
    return limit, actual


def _first(found: re.Match[str] | None) -> int | None:
    return next((_int(g) for g in found.groups() if g), None) if found else None


def _int(text: str) -> int:
    return int(text.replace(",", "").replace("_", ""))


def _paths(facts: Facts) -> tuple[str, ...]:
    """Content blocks the answer names, each as `messages.N.content.M` or `messages.N.content.M.content.K`."""
    named = (facts.details or {}).get("paths")
    texts = [facts.message]
    for path in named if isinstance(named, list) else ():
        texts.append(path if isinstance(path, str) else ".".join(map(str, path)) if isinstance(path, list) else "")
    found = (match for text in texts for match in _PATH.finditer(text))
    return tuple(dict.fromkeys(_path(match) for match in found))


def _path(match: re.Match[str]) -> str:
    outer = f"messages.{match[1]}.content.{match[2]}"
    return outer if match[3] is None else f"{outer}.content.{match[3]}"


def _error(kind: ErrorKind, facts: Facts, headers: Mapping[str, str], now: float, event: Any = None) -> ModelError:
    limit, actual = _numbers(kind, facts)
    request_id = headers.get("request-id")
    if request_id is None and isinstance(event, Mapping) and isinstance(event.get("request_id"), str):
        request_id = event["request_id"]
    return ModelError(
        kind,
        facts.message[:MESSAGE_LIMIT],
        status=facts.status,
        retry_after=None if kind is ErrorKind.SPEND_LIMIT else retry_after(headers, now),
        request_id=request_id,
        limit=limit,
        actual=actual,
        paths=_paths(facts),
        server_should_retry=None if facts.status == 200 else _should_retry(headers),
    )


def _should_retry(headers: Mapping[str, str]) -> bool | None:
    return {"true": True, "false": False}.get(headers.get("x-should-retry", "").strip().lower())


def _waits(headers: Mapping[str, str]) -> bool:
    return "retry-after" in headers or "retry-after-ms" in headers


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds the server asks to wait: `retry-after-ms`, else `retry-after` as seconds or an HTTP date; None when it
    asks for nothing that can be read. A date in the past is 0."""
    for name, scale in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        raw = headers.get(name, "").strip()
        if _PLAIN_NUMBER.fullmatch(raw):
            return float(raw) / scale
    try:
        return max(0.0, parsedate_to_datetime(headers.get("retry-after", "")).timestamp() - now)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None


def _decode(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return body.decode("utf-8", "replace")


def _facts(data: Any, status: int) -> Facts:
    """Lenient: the vendor's `{"error": {…}}`, a flat object with `message` or `detail`, a string under `error`, or no JSON
    at all."""
    error = (data.get("error") or data) if isinstance(data, Mapping) else None
    if isinstance(error, str):
        return Facts(_sentence(_words(data) or error) or f"HTTP status {status}", status=status)
    if not isinstance(error, Mapping):
        return Facts(_sentence(data) or f"HTTP status {status}", status=status)
    details = error.get("details")
    if not isinstance(details, Mapping):  # a local server names its numbers beside the message
        details = {name: error[name] for name in ("n_ctx", "n_prompt_tokens") if name in error}
    code = details.get("error_code")
    type = error.get("type")
    words = _words(error)
    return Facts(
        _sentence(words) if words else _fallback(type, status),
        type if isinstance(type, str) else None,
        code if isinstance(code, str) else None,
        details,
        status,
    )


def _words(error: Mapping[str, Any]) -> str:
    """What an error object says: `message`, else `detail`, which is a text, an object, or a list of objects with `msg` and
    the field that it is about."""
    for said in (error.get("message"), error.get("detail")):
        if isinstance(said, str) and said.strip():
            return said
        if isinstance(said, Mapping):
            inner = said.get("error")
            if found := _words(inner if isinstance(inner, Mapping) else said):
                return found
        if isinstance(said, list):
            texts = (_of_field(part) if isinstance(part, Mapping) else part for part in said)
            if found := "; ".join(text for text in texts if isinstance(text, str) and text.strip()):
                return found
    return ""


def _of_field(fault: Mapping[str, Any]) -> str:
    """What a validator says of one field, the field's name before it."""
    said, place = fault.get("msg"), fault.get("loc")
    names = [str(part) for part in place if part != "body"] if isinstance(place, list) else []
    return ": ".join(filter(None, (".".join(names), said))) if isinstance(said, str) else ""


def _fallback(type: Any, status: int) -> str:
    return f"{type} (HTTP status {status})" if isinstance(type, str) and type != "error" else f"HTTP status {status}"


def _sentence(data: Any) -> str:
    """Text for a person: of HTML the title or what is left without tags."""
    text = data if isinstance(data, str) else orjson.dumps(data).decode()
    text = text[:READ_LIMIT]
    if "<" in text and _HTML.search(text[:2000]):
        title = _TITLE.search(text)
        text = title[1] if title else _TAGS.sub(" ", text)
    return " ".join(text.split())[: MESSAGE_LIMIT * 4]


def from_exception(
    error: BaseException, *, began: bool, headers: Mapping[str, str] | None = None, now: float = 0.0
) -> ModelError:
    """What the SDK, its transport or the operating system raised. `began` says whether the answer had begun."""
    import anthropic
    import httpx2

    if isinstance(error, ModelError):
        return error
    if isinstance(error, anthropic.APIStatusError):
        body = error.body.encode() if isinstance(error.body, str) else orjson.dumps(error.body, default=str)
        return from_response(error.status_code, error.response.headers, body, now)
    if isinstance(error, anthropic.CredentialsError):
        return ModelError(ErrorKind.AUTHENTICATION, _said(error))
    if isinstance(error, (httpx2.InvalidURL, httpx2.UnsupportedProtocol)):
        return unusable_address(error)
    return cut_off(error, headers or {}) if began else unanswered(error, timed_out=_timed_out(error))


def unusable_address(error: BaseException) -> ModelError:
    return ModelError(ErrorKind.INVALID_REQUEST, f"The base URL cannot be used: {_said(error)}")


def cut_off(error: BaseException, headers: Mapping[str, str]) -> ModelError:
    """What ended an answer that had begun. `headers` are the response's."""
    request_id = headers.get("request-id")
    return ModelError(ErrorKind.STREAM_BROKEN, f"The answer was cut off: {_said(error)}", status=200, request_id=request_id)


def unanswered(error: BaseException, *, timed_out: bool) -> ModelError:
    """Why no answer began; `timed_out` says that it was waited for, on a connection."""
    if timed_out:
        return ModelError(ErrorKind.TIMEOUT, f"The endpoint did not answer in time: {_said(error)}")
    return ModelError(ErrorKind.CONNECTION, f"No connection to the endpoint: {_said(error)}")


def _timed_out(error: BaseException) -> bool:
    """A wait for an answer, not for a connection."""
    import anthropic
    import httpx2

    cause = error.__cause__ if isinstance(error, anthropic.APITimeoutError) and error.__cause__ else error
    if isinstance(cause, (httpx2.ConnectTimeout, httpx2.PoolTimeout)):
        return False
    return isinstance(cause, (httpx2.TimeoutException, anthropic.APITimeoutError))


def _said(error: BaseException) -> str:
    """What an exception says of itself, or its cause, or its name."""
    cause = error.__cause__
    own = " ".join(str(error).split())
    if cause is not None and own in ("", "Connection error."):
        own = " ".join(str(cause).split())
    return (own or type(error).__name__)[:MESSAGE_LIMIT]
