"""Stored histories for property tests, sound and broken, and the strict rules they must satisfy once normalised."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson
from hypothesis import strategies as st

from tests.support.fake_api import MODELS, validation
from tests.support.fake_api.facts import look_at
from worker_agent.api.client import ModelRequest, ToolSpec
from worker_agent.messages import Message

TOOL = ToolSpec("Read", "Reads a file.", {"type": "object", "properties": {"path": {"type": "string"}}})
_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PNG = {"type": "base64", "media_type": "image/png", "data": _PIXEL}
IMAGE = {"type": "image", "source": PNG}
DOCUMENT = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}}

ids = st.sampled_from(["toolu_1", "toolu_2", "toolu_3", "call-4", "", "bad id", 7])
texts = st.sampled_from(["hello", " ", "", "\n\n", "a\x00b", "\ud83d", "\U0001f600 ü", "</x>", None, 3])


def _block(kind: str, **fields: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"type": st.just(kind)}, optional=fields)


inner = st.one_of(
    _block("text", text=texts, extra=st.just(1)),
    st.just(IMAGE),
    st.just(DOCUMENT),
    _block("image", source=st.sampled_from([PNG, None, {}, {"type": "base64"}])),
    _block("tool_reference", tool_name=st.just("Read")),
    st.just("text"),
    st.just({"kind": "x"}),
)
blocks = st.one_of(
    inner,
    _block(
        "tool_use",
        id=ids,
        name=st.sampled_from(["Read", "no good", "", None, "x" * 80]),
        input=st.sampled_from([{}, {"a": 1}, '{"a": 2}', "{", None, [1]]),
    ),
    _block("tool_use", id=ids, name=st.just("Read"), input=st.just({"path": "x"})),
    _block(
        "tool_result",
        tool_use_id=ids,
        content=st.one_of(texts, st.lists(inner, max_size=3)),
        is_error=st.sampled_from([True, False, None, "yes"]),
    ),
    _block("thinking", thinking=texts, signature=st.sampled_from(["SIG", "", None])),
    _block("redacted_thinking", data=st.sampled_from(["ENC", None])),
    _block(
        "compaction",
        content=st.sampled_from(["a summary", None, ""]),
        signature=st.just("C"),
        encrypted_content=st.none(),
    ),
    _block("search_result", content=st.just([]), source=st.just("s"), title=st.just("t")),
    _block("text", text=st.just("marked"), cache_control=st.just({"type": "ephemeral"})),
)
_KINDS = ["prompt", "answer", "tool_results", "attachment", "meta", "boundary", "summary", "notice", "api_error"]


def _message(role: str, content: list[Any], kind: str, media: Any, stop: str | None) -> Message:
    content = [b for b in content if isinstance(b, dict) and b.get("type") and (b["type"] != "text" or "text" in b)]
    if role == "assistant":  # what a model wrote goes back with whatever it came with: here nothing but what is known
        content = [{k: v for k, v in block.items() if k != "extra"} for block in content]
    data = {"media": media} if kind == "api_error" and media is not None else {}
    return Message(role=role, content=tuple(content), kind=kind, data=data, stop_reason=stop)  # type: ignore[arg-type]


broken_messages = st.builds(
    _message,
    st.sampled_from(["user", "assistant", "system"]),
    st.lists(blocks, max_size=5),
    st.sampled_from(_KINDS),
    st.sampled_from([None, [], ["messages.0.content.0"], ["messages.2.content.1.content.0", "messages.99.content.0", 4]]),
    st.sampled_from([None, "end_turn", "tool_use"]),
)
broken_histories = st.lists(broken_messages, max_size=12).map(tuple)


def rules(body: dict[str, Any], betas: Iterable[str] = ()) -> None:
    """Raises the fake API's `Refusal` if the real one would refuse the body. Models write no unknown blocks here."""
    facts = [look_at(message) for message in body["messages"]]
    call = validation.Call(body, facts, MODELS[body["model"]], frozenset(betas))
    validation.check_fields(body, call.betas, "2026-10-21")
    validation.check(call)


def body_of(wire: Iterable[Any], model: str = "claude-opus-5") -> dict[str, Any]:
    return {"model": model, "max_tokens": 10, "messages": [orjson.loads(message.wire) for message in wire]}


def request(messages: Iterable[Message], **fields: Any) -> ModelRequest:
    values: dict[str, Any] = {
        "model": "claude-sonnet-5-5",
        "max_tokens": 1000,
        "system": ("You are an agent.", "You are in /src."),
        "tools": (TOOL,),
        "messages": tuple(messages),
        "conversation": "c1",
    }
    return ModelRequest(**{**values, **fields})
