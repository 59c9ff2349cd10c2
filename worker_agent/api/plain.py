"""Endpoints that refuse what only the vendor has: which refusal says so, and what is left of a model on such an endpoint.

1. A refusal counts when its words name a feature that the request carried. What it says of a *value* is no such word: a
   signature that does not fit, a window that is too small.
2. One refused feature is enough: who lacks one lacks the others, and finding that out one by one costs a request each.
3. The vendor's own address is never plain. There a refusal is about a value, and going on without cache marks would only
   be dear.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from worker_agent.api.client import ModelInfo, ModelRequest
from worker_agent.errors import ErrorKind, ModelError
from worker_agent.structs import replace

_WORDS: Mapping[str, re.Pattern[str]] = {
    "thinking": re.compile(r"thinking|adaptive|reasoning", re.I),
    "effort": re.compile(r"\beffort|output_config", re.I),
    "output format": re.compile(r"output_config|output_format|json_schema|structured output", re.I),
    "betas": re.compile(r"\bbetas?\b|anthropic-beta", re.I),
    "cache marks": re.compile(r"cache[_ -]?control|prompt cach|ephemeral", re.I),
    "context management": re.compile(r"context[_ -]management|clear_tool_uses", re.I),
    "compaction": re.compile(r"compaction|\bsummarize\b", re.I),
    "tool search": re.compile(r"defer_loading|tool_reference|tool[_ -]search", re.I),
}
_OF_A_VALUE = re.compile(r"signature|bound to|too long|exceed", re.I)
_THINKING = frozenset({"thinking", "redacted_thinking"})


def refused(error: ModelError, request: ModelRequest, info: ModelInfo) -> str | None:
    """The vendor's feature that `error` refused, of those that `request` carried; None where it is about something else."""
    if error.kind is not ErrorKind.INVALID_REQUEST or info.plain or _OF_A_VALUE.search(error.message):
        return None
    return next((name for name in _carried(request, info) if _WORDS[name].search(error.message)), None)


def _carried(request: ModelRequest, info: ModelInfo) -> Iterator[str]:
    """The vendor's features in the request, as `request.py` builds it for such a model."""
    thought = (block.get("type") for message in request.messages if message.role == "assistant" for block in message.content)
    carried = {
        "thinking": info.adaptive_thinking or any(kind in _THINKING for kind in thought),
        "effort": info.effort and request.effort is not None,
        "output format": request.output_schema is not None,
        "cache marks": info.cache_control,
        "context management": info.server_editing and request.context_management is not None,
        "compaction": request.compact is not None,
        "tool search": info.tool_search and any(tool.deferred for tool in request.tools),
        "betas": info.known and bool(request.betas or request.compact is not None or request.context_management),
    }
    return (name for name, is_carried in carried.items() if is_carried)


def without_features(info: ModelInfo) -> ModelInfo:
    """What is left of a model where nothing of the vendor's may be sent: window, cap, and plain messages with tools."""
    return replace(
        info,
        binds_thinking=False,
        server_compaction=False,
        server_editing=False,
        cache_control=False,
        adaptive_thinking=False,
        effort=False,
        tool_search=False,
        known=False,
        plain=True,
    )


def with_features(info: ModelInfo) -> ModelInfo:
    """A model nobody described, as one of the vendor's: to find out what the endpoint takes. A described one as it is."""
    if info.known:
        return info
    return replace(info, cache_control=True, adaptive_thinking=True, effort=True, server_editing=True, known=True, plain=False)


def news(feature: str, error: ModelError) -> str:
    """The line for a person."""
    return (
        f"the endpoint does not take {feature} ({error.message}); from now on it gets plain requests, without thinking, effort, "
        "betas, cache marks and context management"
    )
