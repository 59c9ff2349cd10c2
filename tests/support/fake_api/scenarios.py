"""Named scripts, for running the fake on its own: `python -m tests.support.fake_api --scenario NAME`.

`fanout:N:TURNS` is the benchmark's work: a coordinator (known by its tool `Agent`) starts N workers in one answer, each
makes TURNS turns of two parallel reads and then reports; when all N notifications are there, the coordinator concludes.
The other names are single answers, one for each way a stream can end or fail.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.fake_api import wire
from tests.support.fake_api.gates import Delay
from tests.support.fake_api.request import Request
from tests.support.fake_api.scripts import Script, as_script

_TASK_ID = re.compile(r"<task-id>([^<]+)</task-id>")


@dataclass(frozen=True, slots=True)
class Options:
    """`path` is what workers read, `path_argument` the name of that input; `delay` seconds pass before each answer."""

    path: str = "README.md"
    read_tool: str = "Read"
    path_argument: str = "file_path"
    delay: float = 0.0


def fanout(workers: int, turns: int, options: Options = Options()) -> Script:
    def script(request: Request) -> Any:
        coordinating = "Agent" in request.tool_names
        reply = _coordinate(request, workers) if coordinating else _work(request, turns, options)
        return wire.hold(Delay(options.delay), reply) if options.delay else reply

    return script


def _coordinate(request: Request, workers: int) -> wire.Reply:
    if request.turns == 0:
        return wire.message("Starting the workers.", *(_spawn(number) for number in range(workers)))
    reported = set(_TASK_ID.findall(request.user_text))
    if len(reported) >= workers:
        return wire.message(f"All {workers} workers have reported.")
    return wire.message("waiting")


def _spawn(number: int) -> wire.ToolUse:
    return wire.tool_use("Agent", {"description": f"read part {number}", "prompt": f"worker {number}"})


def _work(request: Request, turns: int, options: Options) -> wire.Reply:
    if request.turns >= turns:
        return wire.message(f"Report: {turns} turns of reading are done.")
    call = {options.path_argument: options.path}
    return wire.message(
        f"Reading, turn {request.turns + 1}.",
        wire.tool_use(options.read_tool, call),
        wire.tool_use(options.read_tool, call),
    )


def _a_tool(request: Request) -> str:
    return next(iter(request.tool_names), "Read")


SINGLE: Mapping[str, Callable[[], Any]] = {
    "text": lambda: wire.text("Hello from the fake."),
    "thinking": lambda: wire.message(wire.thinking(), "Done."),
    "redacted": lambda: wire.message(wire.redacted(), "Done."),
    "empty_answer": wire.empty_answer,
    "max_tokens": lambda: wire.stop("max_tokens", "Half of"),
    "refusal": wire.refusal,
    "pause_turn": wire.pause_turn,
    "compaction": wire.compaction,
    "overloaded": lambda: wire.http_error(529),
    "rate_limit": lambda: wire.http_error(429, headers={"retry-after": "1"}),
    "rate_limit_huge": lambda: wire.http_error(429, headers={"retry-after": "3600"}),
    "spend_limit": lambda: wire.http_error(429, headers={"x-should-retry": "false"}, error_code="enforced_spend_limit_reached"),
    "server_error": lambda: wire.http_error(500),
    "unauthorized": lambda: wire.http_error(401),
    "too_large": lambda: wire.http_error(413),
    "too_large_html": lambda: wire.http_error(413, html=True),
    "prompt_too_long": lambda: wire.http_error(400, message="prompt is too long: 250000 tokens > 200000 maximum"),
    "error_event": lambda: wire.error_event(after="Half an ans"),
    "error_event_api": lambda: wire.error_event("api_error", after="Half an ans", message="Internal server error"),
    "error_event_not_json": lambda: wire.error_event(after="Half an ans", data="upstream went away"),
    "drop": wire.drop,
    "drop_midway": lambda: wire.drop(after="Half an ans"),
    "stall": wire.stall,
    "stall_midway": lambda: wire.stall(after="Half an ans"),
    "stall_pings": lambda: wire.stall(after="Half an ans", pings=True, every=1.0),
    "clean_eof": wire.clean_eof,
    "empty_body": wire.empty_body,
    "not_sse": lambda: wire.raw(b"<html>hello</html>", content_type="text/html"),
    "unknown_block": lambda: wire.message(wire.unknown_block(), "Hello"),
    "unknown_delta": lambda: wire.message(wire.unknown_delta()),
    "unknown_event": lambda: wire.message(wire.unknown_event(), "Hello"),
    "unknown_stop_reason": wire.unknown_stop_reason,
    "usage_only_in_delta": wire.usage_only_in_delta,
    "no_event_lines": wire.no_event_lines,
    "torn": lambda: wire.torn("Grüße, 世界 🌍"),
}
TOOL: Mapping[str, Callable[[str], Any]] = {
    "cut_tool_json": lambda name: wire.cut_tool_json(name, '{"file_path": "/tmp/x", "content": "abc'),
    "cut_tool_json_eof": lambda name: wire.cut_tool_json(name, '{"file_path": "/tmp/x', None),
    "garbage_tool_json": wire.garbage_tool_json,
}


def names() -> list[str]:
    return sorted([*SINGLE, *TOOL, "fanout:N:TURNS"])


def scenario(name: str, options: Options = Options()) -> Script:
    """The script called `name`; ValueError lists the names when there is none."""
    if name.startswith("fanout:"):
        workers, turns = (int(n) for n in name.split(":")[1:])
        return fanout(workers, turns, options)
    if name in SINGLE:
        return as_script(SINGLE[name]())
    if name in TOOL:
        return lambda request: TOOL[name](_a_tool(request))
    raise ValueError(f"no scenario {name!r}; there are: {', '.join(names())}")
