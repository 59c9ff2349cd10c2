"""What the peers' programs share: the coordinator's two calls, by hand and without any of them, so that only their workers differ."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bench.work import AGENT, MODEL, SYSTEM, notification

Worker = Callable[[str], Awaitable[str]]


def read(file_path: str) -> str:
    return Path(file_path).read_text()


def _ask(messages: list[dict[str, Any]]) -> bytes:
    body = {"model": MODEL, "max_tokens": 8000, "system": SYSTEM, "tools": [AGENT], "messages": messages, "stream": True}
    request = urllib.request.Request(
        f"{os.environ['ANTHROPIC_BASE_URL']}/v1/messages", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        return bytes(response.read())


async def run(worker: Worker) -> None:
    """The whole work; `worker(prompt)` is one worker of the peer's own."""
    count = int(sys.argv[1])
    await asyncio.to_thread(_ask, [{"role": "user", "content": "go"}])
    reports = await asyncio.gather(*(worker(f"worker {number}") for number in range(count)))
    told = "".join(notification(f"w{number}", report) for number, report in enumerate(reports))
    await asyncio.to_thread(
        _ask,
        [{"role": "user", "content": "go"}, {"role": "assistant", "content": "Starting."}, {"role": "user", "content": told}],
    )
