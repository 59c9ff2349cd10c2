"""The command, with what only its own process can say of it: how long the event loop was held at a time, and when tools began.

    BENCH_PROBE=file python -m bench.probe run …

`file` gets JSON: `held` (callbacks of the loop that took over 20 ms by the clock: when each began, and its seconds) and `began` (call id → `time.monotonic()`
at which a `Read` was entered; the clock is one for all processes of the machine).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from coordinator.cli.main import main
from worker_agent.tools.builtin.read import Read

LONG = 0.02  # seconds
held: list[tuple[float, float]] = []
began: dict[str, float] = {}


def _watch_the_loop() -> None:
    run = asyncio.Handle._run  # type: ignore[attr-defined]

    def timed(handle: Any) -> None:
        start = time.monotonic()
        run(handle)
        if (took := time.monotonic() - start) > LONG:
            held.append((start, took))

    asyncio.Handle._run = timed  # type: ignore[attr-defined]


def _watch_reads() -> None:
    call = Read.call

    async def noted(self: Read, input: Any, context: Any) -> Any:
        began[context.tool_use_id] = time.monotonic()
        return await call(self, input, context)

    Read.call = noted  # type: ignore[method-assign]


if __name__ == "__main__":
    _watch_the_loop()
    _watch_reads()
    try:
        code = main()
    finally:
        Path(os.environ["BENCH_PROBE"]).write_text(json.dumps({"held": held, "began": began}))
    sys.exit(code)
