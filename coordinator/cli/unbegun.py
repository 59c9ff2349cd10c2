"""The result object of a run that a failure ended before its session could give one: a program that reads
`--output-format json` or `stream-json` gets an object for every ending.

A command line that cannot be parsed has told nothing yet, so that the format is looked for in its words, too.
"""

from __future__ import annotations

import json
import signal
import uuid
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from coordinator.cli import early
from coordinator.cli.context import Context
from coordinator.views.ends import subtype
from worker_agent.causes import Cause
from worker_agent.config import variable

FORMATS = ("json", "stream-json")
RUNS = ("run", "resume", "-p", "--print")
FLAG = "--output-format"


def tell(context: Context, words: Sequence[str], reason: str, message: str) -> None:
    """Print the object, if one was asked for and none has been printed. `reason` is its `terminal_reason`."""
    form = context.result_format or _format_in(words)
    if form not in FORMATS or context.has_result:
        return
    early.have_last_words({})
    value = _result(context, form, reason, message)
    context.note_result()
    if form == "json":
        context.console.json(value)
    else:
        context.console.json_line(value)


def foresee(context: Context, words: Sequence[str]) -> None:
    """Have the object ready for a signal that comes before anybody listens."""
    form = context.result_format or _format_in(words)
    ends = {signal.SIGINT: Cause.PERSON, signal.SIGTERM: Cause.TERMINATED, signal.SIGHUP: Cause.TERMINATED}
    early.have_last_words({
        number: json.dumps(_result(context, form, cause, cause.to_person)).encode() + b"\n" if form in FORMATS else b""
        for number, cause in ends.items()
    })  # fmt: skip


def _result(context: Context, form: str, reason: str, message: str) -> dict[str, Any]:
    value = {
        "type": "result",
        "subtype": subtype(reason, is_error=True),
        "is_error": True,
        "session_id": context.session_id,
        "result": "",
        "terminal_reason": reason,
        "stop_reason": None,
        "num_turns": 0,
        "duration_ms": 0,
        "duration_api_ms": 0,
        "total_cost_usd": 0.0,
        "usage": {
            "input_tokens": 0,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 0,
        },
        "model_usage": {},
        "modelUsage": {},
        "permission_denials": [],
        "tasks": [],
        "errors": [message],
    }
    return value | {"uuid": str(uuid.uuid4())} if form == "stream-json" else value


def _format_in(words: Sequence[str]) -> str:
    """What a command line asks for as a run's output format; "" if it is no run's, or asks for nothing."""
    words = words[: words.index("--")] if "--" in words else words
    if not any(word in RUNS for word in words) and not (words and words[0].startswith("-")):
        return ""
    values = [after for word, after in pairwise(words) if word == FLAG]
    values += [word.partition("=")[2] for word in words if word.startswith(f"{FLAG}=")]
    return values[-1] if values else variable("COORDINATOR_OUTPUT_FORMAT")
