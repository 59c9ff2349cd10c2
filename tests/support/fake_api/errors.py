"""What the fake refuses, as a value.

A `Refusal` is an HTTP error answer of the real API: status, `error.type`, message, and optional `details`. `violation`
says whether a correct client could ever have caused it: a broken pairing never, an expired key or a full window yes.
Only violations make a test fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def error_type_of(status: int) -> str:
    """The `error.type` the real API sends with `status`."""
    return _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")


def html_body(status: int, message: str) -> bytes:
    """An error as a proxy in front of the API words it."""
    return f"<html><head><title>{status}</title></head><body>{message}</body></html>".encode()


def error_body(
    kind: str, message: str, request_id: str, *, details: Mapping[str, Any] | None = None, always_details: bool = False
) -> bytes:
    """The JSON of an error, as an HTTP body and as the data of an `error` event."""
    error: dict[str, Any] = {"type": kind, "message": message}
    if details is not None or always_details:
        error["details"] = details
    return orjson.dumps({"type": "error", "error": error, "request_id": request_id})


@dataclass(eq=False)
class Refusal(Exception):
    """A request is answered with an error; `html` as an edge proxy would send it. Raised, never changed."""

    message: str
    status: int = 400
    type: str | None = None
    error_code: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    violation: bool = True
    html: bool = False

    @property
    def kind(self) -> str:
        return self.type or error_type_of(self.status)

    def all_details(self) -> Mapping[str, Any] | None:
        if self.error_code:
            return {"error_code": self.error_code, **self.details}
        return self.details or None
