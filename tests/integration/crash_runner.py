"""A session in a process of its own, for tests that end it from outside: `python crash_runner.py TMP BASE_URL
[RESUME]`.

Prints the session's id when it is ready, and its exit code at the end. SIGTERM and SIGINT do what the command line
does."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from coordinator.app import SessionHandle, run_session
from tests.integration.harness import Bench
from worker_agent.api.anthropic_client import AnthropicClient


async def main(tmp: str, base_url: str, resume: str | None = None) -> None:
    bench = Bench(Path(tmp))
    options = bench.options(None if resume else "do it", resume=resume)
    client = AnthropicClient(settings=options.effective(), base_url=base_url, api_key="test")
    loop = asyncio.get_running_loop()

    def ready(handle: SessionHandle) -> None:
        loop.add_signal_handler(signal.SIGTERM, handle.terminate)
        loop.add_signal_handler(signal.SIGINT, handle.interrupt)
        print(handle.session_id, flush=True)

    outcome = await run_session(options, lambda observed: None, on_ready=ready, client=client)
    await client.close()
    print(int(outcome.exit_code), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
