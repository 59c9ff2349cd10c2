"""What `coordinator doctor --endpoint` finds out: three small calls, and in words what this endpoint can do.

The list of models; one word, streamed; one call of a tool with all that only the vendor has. Where that is refused, the third
call goes out again without, as a run would send it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from coordinator.cli.failures import Failure
from coordinator.views.exit_codes import ExitCode
from coordinator.views.findings import Finding
from coordinator.views.terminal_text import one_line

if TYPE_CHECKING:
    from worker_agent.api.anthropic_client import AnthropicClient
    from worker_agent.api.client import ModelInfo, ModelRequest
    from worker_agent.config import Settings
    from worker_agent.errors import ModelError
    from worker_agent.messages import Usage

TOOL = "report"
SMALL = 64  # tokens of a short answer
THOUGHTFUL = 1_024  # tokens, where some go into thinking
SCHEMA = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
EDITS = {"edits": [{"type": "clear_tool_uses_20250919"}]}


def examined(settings: Settings, model: str | None) -> tuple[list[Finding], ExitCode]:
    """The findings, and the exit code: 1 where the endpoint cannot be used, 4 where it refuses the credentials. Raises
    `Failure` for an address or key that cannot be used."""
    from coordinator.cli.credentials import credentials_problem
    from worker_agent.api import providers
    from worker_agent.api.models import resolve
    from worker_agent.config import connection_problem, mend_credentials, provider

    mend_credentials()
    cloud = provider()
    if (problem := connection_problem() if cloud is None else providers.problem(cloud)) is not None:
        raise Failure(problem, ExitCode.USAGE)
    if (problem := credentials_problem()) is not None:
        raise Failure(problem, ExitCode.NOT_AUTHENTICATED)
    return asyncio.run(_examine(settings, resolve(model or settings.model)))


async def _examine(settings: Settings, model: str) -> tuple[list[Finding], ExitCode]:
    from worker_agent.api.anthropic_client import AnthropicClient
    from worker_agent.errors import ErrorKind, ModelError

    client = AnthropicClient(settings=settings)
    found = [Finding("address", "ok", client.address)]
    try:
        found.append(await _models(client, model))
        info = await client.model_info(model)
        found.append(_window(info))
        found += await _word(client, info)
        found += await _features(client, info)
        return found, ExitCode.DONE
    except ModelError as error:
        found.append(Finding("messages", "problem", _said(error)))
        return found, ExitCode.NOT_AUTHENTICATED if error.kind is ErrorKind.AUTHENTICATION else ExitCode.FAILED
    finally:
        await client.close()


async def _models(client: AnthropicClient, model: str) -> Finding:
    from worker_agent.errors import ErrorKind, ModelError

    try:
        listed = await client.listed_models()
    except ModelError as error:
        if error.kind in (ErrorKind.AUTHENTICATION, ErrorKind.CONNECTION):
            raise
        return Finding("models", "note", f"no list of models: {_said(error)}")
    ids = [str(entry.get("id")) for entry in listed]
    names = ", ".join(ids[:5]) + (", …" if len(ids) > 5 else "")
    if model in ids or len(ids) == 1:
        return Finding("models", "ok", one_line(f"{len(ids)} listed: {names}"))
    return Finding("models", "note", one_line(f"{len(ids)} listed, {model} is not among them: {names}"))


def _window(info: ModelInfo) -> Finding:
    return Finding("window", "ok", f"{info.window:,} tokens, at most {info.max_output:,} of output, for {one_line(info.id)}")


async def _word(client: AnthropicClient, info: ModelInfo) -> list[Finding]:
    """The tiny message: whether it streams, and whether tokens are counted. Raises `ModelError`."""
    from worker_agent.api.plain import without_features

    got = await _asked(client, _request(info, "Answer with the word ok.", SMALL), without_features(info))
    counted = f"{got.usage.prompt:,} tokens in, {got.usage.output:,} out" if got.usage.total else ""
    return [
        Finding(
            "messages", "ok", f"answers after {got.seconds:.1f} s" + (f", in {got.pieces} pieces" if got.pieces > 1 else "")
        ),
        Finding("usage", "ok", counted) if counted else Finding("usage", "note", "tokens are not counted: costs stay unknown"),
    ]


async def _features(client: AnthropicClient, info: ModelInfo) -> list[Finding]:
    """The call with a tool, thinking, effort, cache marks and context management. Raises `ModelError`."""
    from worker_agent.api.plain import refused, with_features, without_features
    from worker_agent.errors import ModelError

    whole = with_features(info)
    request = _request(whole, f"Call the tool {TOOL} with the word ready.", THOUGHTFUL, tools=True)
    try:
        got = await _asked(client, request, whole)
    except ModelError as error:
        feature = refused(error, request, whole)
        if feature is None:
            raise
        got = await _asked(client, request, without_features(info))
        text = f"it does not take {feature}: {_said(error)}. Runs send it plain requests"
        return [_tools(got), Finding("vendor features", "note", text)]
    taken = [name for name, has in _FEATURES.items() if getattr(whole, has)]
    text = f"it takes {', '.join(taken)}" if taken else "this model has none"
    return [_tools(got), Finding("vendor features", "ok", text), *_seen(got, whole)]


_FEATURES: Mapping[str, str] = {
    "thinking": "adaptive_thinking",
    "effort": "effort",
    "cache marks": "cache_control",
    "context management": "server_editing",
}


def _tools(got: Got) -> Finding:
    if got.calls == [TOOL]:
        return Finding("tools", "ok", "the model calls a tool")
    return Finding("tools", "note", f"the model called {', '.join(got.calls) or 'no tool'}: agents may not work with it")


def _seen(got: Got, info: ModelInfo) -> list[Finding]:
    """What a server takes it may ignore all the same."""
    cached = got.usage.cache_read + got.usage.cache_write_5m + got.usage.cache_write_1h
    if info.cache_control and not cached:
        return [Finding("cache", "note", "nothing of this small call was cached; a longer one may be")]
    return []


class Got(Struct, frozen=True):
    """What one call brought. `seconds` until the answer began, `calls` are the names of tools."""

    usage: Usage
    seconds: float
    pieces: int
    calls: list[str]


async def _asked(client: AnthropicClient, request: ModelRequest, info: ModelInfo) -> Got:
    """Raises `ModelError`."""
    from worker_agent.api.client import BlockClosed, Finished, TextPiece, ThinkingPiece
    from worker_agent.messages import Usage

    begun, waited, pieces = time.monotonic(), 0.0, 0
    calls: list[str] = []
    usage = Usage()
    async for event in client.stream_as(request, info):
        match event:
            case TextPiece() | ThinkingPiece():
                pieces += 1
            case BlockClosed() if event.block["type"] == "tool_use":
                calls.append(str(event.block["name"]))
            case Finished():
                usage = event.usage
        waited = waited or time.monotonic() - begun
    return Got(usage, waited, pieces, calls)


def _request(info: ModelInfo, prompt: str, tokens: int, *, tools: bool = False) -> ModelRequest:
    from worker_agent import messages as m
    from worker_agent.api.client import ModelRequest, ToolSpec

    more: dict[str, Any] = {"effort": "low", "context_management": EDITS} if tools else {}
    specs: Sequence[ToolSpec] = (ToolSpec(TOOL, "Reports one word.", SCHEMA),) if tools else ()
    return ModelRequest(
        model=info.id, max_tokens=tokens, system=("You are being tested.",), tools=tuple(specs), messages=(m.user(prompt),),
        single=True, **more,
    )  # fmt: skip


def _said(error: ModelError) -> str:
    return one_line(error.message).rstrip(". ")
