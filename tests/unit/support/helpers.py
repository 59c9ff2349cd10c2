"""Calling the fake through the real SDK, without its retries."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic

from tests.support.fake_api import FakeAPI

MODEL = "claude-opus-5-5"
OLD = "claude-opus-4-8"
READ = {"name": "Read", "description": "Read a file", "input_schema": {"type": "object", "properties": {}}}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def call(name: str = "toolu_1", tool: str = "Read", **input: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": name, "name": tool, "input": input}


def result(name: str = "toolu_1", content: Any = "42", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": name, "content": content, **fields}


def words(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **fields}


def client(api: FakeAPI, **options: Any) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=api.base_url, **{"max_retries": 0, "api_key": "test", "timeout": 5.0} | options)


def with_client(api: FakeAPI, work: Callable[[anthropic.AsyncAnthropic], Awaitable[Any]], **options: Any) -> Any:
    """Run `work` with a client of its own, in an event loop of its own."""

    async def main() -> Any:
        async with client(api, **options) as sdk:
            return await work(sdk)

    return asyncio.run(main())


def body(messages: Any = None, **fields: Any) -> dict[str, Any]:
    """The arguments of a call; a field given as None is left out."""
    given = {"model": MODEL, "max_tokens": 100, "messages": messages or [user("hi")]} | fields
    return {k: v for k, v in given.items() if v is not None}


def stream(api: FakeAPI, messages: Any = None, *, headers: dict[str, str] | None = None, **fields: Any) -> Any:
    """One streamed call; gives the final message."""

    async def work(sdk: anthropic.AsyncAnthropic) -> Any:
        async with sdk.messages.stream(**body(messages, **fields), extra_headers=headers or {}) as running:
            return await running.get_final_message()

    return with_client(api, work)


def create(api: FakeAPI, messages: Any = None, *, beta: bool = False, **fields: Any) -> Any:
    """One call that is not streamed. With `beta` through the beta namespace."""

    async def work(sdk: anthropic.AsyncAnthropic) -> Any:
        resource = sdk.beta.messages if beta else sdk.messages
        return await resource.create(**body(messages, **fields))

    return with_client(api, work)


def raw_events(api: FakeAPI, messages: Any = None, **fields: Any) -> list[Any]:
    """The raw events of one streamed call."""

    async def work(sdk: anthropic.AsyncAnthropic) -> list[Any]:
        async with await sdk.messages.create(**body(messages, **fields), stream=True) as running:
            return [event async for event in running]

    return with_client(api, work)


def replay(message: Any) -> dict[str, Any]:
    """A received message as it is sent back."""
    return assistant([b.model_dump(mode="json", exclude_unset=True) for b in message.content])
