"""The errors of one agent, as one tree.

    AgentError
    ├─ ConfigError            a setting, flag or file cannot be used (exit code 2)
    ├─ ModelError             a model call failed; `.kind` says how, never the text
    └─ ToolFailure            a tool call failed
       ├─ ToolError           the model can mend it: becomes an `is_error` result, the loop goes on
       └─ TurnOver            the turn is over: a hook forbade going on, the budget is used up

Decisions are made on `.kind` and class, never on message text. The message of an error is a sentence for a person.
"""

from __future__ import annotations

from enum import StrEnum


class AgentError(Exception):
    """Base of everything this package raises on purpose."""


class ConfigError(AgentError):
    """A setting, flag or file cannot be used. The message says which, and what to do."""


class ErrorKind(StrEnum):
    """How a model call failed. `RETRYABLE` and `CONTEXT` below group them."""

    OVERLOADED = "overloaded"  # 529, or `overloaded_error` inside a stream
    RATE_LIMIT = "rate_limit"  # 429 that clears by waiting
    SPEND_LIMIT = "spend_limit"  # 429 / 400 spend cap: waiting does not help
    SERVER = "server"  # 5xx, `api_error`
    TIMEOUT = "timeout"  # 408, 504, `timeout_error`
    CONFLICT = "conflict"  # 409
    CONNECTION = "connection"  # refused, reset, DNS, TLS, before the first byte
    STREAM_BROKEN = "stream_broken"  # cut after it began, or ended without `message_stop`
    STREAM_SILENT = "stream_silent"  # no content event within the limit
    NONSENSE = "nonsense"  # 200 with something that is no Messages stream
    AUTHENTICATION = "authentication"  # 401, no credentials
    PERMISSION = "permission"  # 403
    BILLING = "billing"  # 402
    NOT_FOUND = "not_found"  # 404: mostly an unknown model
    PROMPT_TOO_LONG = "prompt_too_long"  # 400 / 413 of the prompt, `model_context_window_exceeded`
    MEDIA_TOO_LARGE = "media_too_large"  # an image or document that cannot be sent as it is
    REQUEST_TOO_LARGE = "request_too_large"  # 413, the body
    MAX_TOKENS_TOO_LARGE = "max_tokens_too_large"  # 400: the output cap does not fit model or window
    UNSUPPORTED = "unsupported"  # 400 / 422 of a vendor's feature: from now on requests go without such
    INVALID_REQUEST = "invalid_request"  # any other 400 / 422
    REFUSAL = "refusal"  # the model declined; HTTP 200
    EMPTY_ANSWER = "empty_answer"  # twice an answer without text and without tools
    UNKNOWN_STOP = "unknown_stop"  # a stop reason nobody knows: never a success
    BUDGET = "budget"  # our own: the money or token budget is used up
    UNFORESEEN = "unforeseen"  # anything else


RETRYABLE = frozenset(
    {
        ErrorKind.OVERLOADED,
        ErrorKind.RATE_LIMIT,
        ErrorKind.SERVER,
        ErrorKind.TIMEOUT,
        ErrorKind.CONFLICT,
        ErrorKind.CONNECTION,
        ErrorKind.STREAM_BROKEN,
        ErrorKind.STREAM_SILENT,
        ErrorKind.NONSENSE,
    }
)


class ModelError(AgentError):
    """A model call failed.

    `status` is the HTTP status (200 for an error event inside a stream, None without a response); `retry_after` is in
    seconds, as the server asked; `limit` is the number a "too large" answer named (window, output cap or pixels) and
    `actual` the number it complained of, each None when it named none (of an output cap only where it is over the
    model's own, not over what the prompt leaves of the window); `paths` names the content blocks it complained of
    (`messages.3.content.0`); `server_should_retry` is the `x-should-retry` header; `news` is what the client learned of the
    endpoint by it, for a person to be told once.
    """

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        *,
        status: int | None = None,
        retry_after: float | None = None,
        request_id: str | None = None,
        limit: int | None = None,
        actual: int | None = None,
        paths: tuple[str, ...] = (),
        server_should_retry: bool | None = None,
        news: str | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.status = status
        self.retry_after = retry_after
        self.request_id = request_id
        self.limit = limit
        self.actual = actual
        self.paths = paths
        self.server_should_retry = server_should_retry
        self.news = news

    def reworded(self, message: str) -> ModelError:
        """The same failure in other words."""
        return self if message == self.message else self._again(self.kind, message, self.news)

    def as_unsupported(self, news: str | None) -> ModelError:
        """The same failure, known as the refusal of a vendor's feature."""
        return self._again(ErrorKind.UNSUPPORTED, self.message, news)

    def _again(self, kind: ErrorKind, message: str, news: str | None) -> ModelError:
        return ModelError(
            kind,
            message,
            status=self.status,
            retry_after=self.retry_after,
            request_id=self.request_id,
            limit=self.limit,
            actual=self.actual,
            paths=self.paths,
            server_should_retry=self.server_should_retry,
            news=news,
        )

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later; the server's own word wins."""
        if self.server_should_retry is not None:
            return self.server_should_retry
        return self.kind in RETRYABLE


class ToolFailure(AgentError):
    """A tool call failed; see the two subclasses."""


class ToolError(ToolFailure):
    """The model can mend it. The message is shown to the model inside `<tool_use_error>`."""


class TurnOver(ToolFailure):
    """The turn is over. `reason` is the name of a `Terminal` reason, `hook_stopped` mostly."""

    def __init__(self, message: str, *, reason: str = "hook_stopped") -> None:
        super().__init__(message)
        self.reason = reason
