"""Why a session failed, as sentences for a person: what happened, and what to do about it. Pure.

The words of the API stand in the middle, as they came; decisions are made on the kind of the error only.
"""

from __future__ import annotations

from collections.abc import Mapping

from tasks.errors import DatabaseError, DatabaseGone
from worker_agent.errors import RETRYABLE, ErrorKind
from worker_agent.events import Result
from worker_agent.loop.reasons import PromptReason

WHAT: Mapping[str, str] = {
    ErrorKind.AUTHENTICATION: "the API refused the credentials",
    ErrorKind.PERMISSION: "the API does not permit this",
    ErrorKind.BILLING: "the API asks for payment",
    ErrorKind.SPEND_LIMIT: "the spend limit of the account is reached",
    ErrorKind.NOT_FOUND: "the API does not know what was asked for",
    ErrorKind.UNSUPPORTED: "the API refused a feature",
    ErrorKind.INVALID_REQUEST: "the API refused the request",
    ErrorKind.OVERLOADED: "the model is overloaded",
    ErrorKind.RATE_LIMIT: "the rate limit is reached",
    ErrorKind.SERVER: "the API failed",
}
ADVICE: Mapping[str, str] = {
    ErrorKind.AUTHENTICATION: "set ANTHROPIC_API_KEY (or ANTHROPIC_AUTH_TOKEN) to one that is valid",
    ErrorKind.PERMISSION: "check what the key may use, and --model",
    ErrorKind.BILLING: "check the billing of the account",
    ErrorKind.SPEND_LIMIT: "raise it or wait for its reset",
    ErrorKind.NOT_FOUND: "check --model and ANTHROPIC_BASE_URL",
    ErrorKind.CONNECTION: "check the network and ANTHROPIC_BASE_URL",
    ErrorKind.BUDGET: "raise --max-budget-usd or --token-budget",
}


def in_words(result: Result, session_id: str) -> str | None:
    """Why `result` is an error; None if it is none."""
    if not result.is_error:
        return None
    kind, error = result.error_kind or "", _sentence(result)
    what = f"{WHAT[kind]}: {error}" if kind in WHAT else error
    advice = ADVICE.get(kind) or ("try again later" if kind in RETRYABLE else None)
    return f"{what.rstrip('. ')}. To go on: {advice}, then `coordinator resume {session_id}`" if advice else what


def to_go_on(session_id: str) -> str:
    """What a person who interrupted a run wants to know."""
    return f"`coordinator resume {session_id}` goes on"


def not_stored(error: DatabaseError, session_id: str) -> str:
    """The store gave `error`, which says itself what to do about it."""
    if isinstance(error, DatabaseGone):
        return f"{error}; what this run stored is lost with it, and `resume` cannot go on from it"
    return f"{str(error).rstrip('. ')}. Then go on with `coordinator resume {session_id}`"


def _sentence(result: Result) -> str:
    error = (result.error or "").strip()
    if result.reason == PromptReason.SCHEMA:
        return f"the answer never fitted the schema; {error}"
    return error or f"the coordinator ended without an answer ({result.reason})"
