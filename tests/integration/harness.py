"""A session in a directory of its own, against the fake API, through the real SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coordinator.app import RunOptions, RunOutcome, SessionHandle, run_session
from coordinator.observed import Observed, TaskChanged
from tasks.db import Database
from tasks.records import TaskRecord
from tests.support.fake_api import FakeAPI
from worker_agent.api.anthropic_client import AnthropicClient
from worker_agent.config import Settings
from worker_agent.structs import replace


@dataclass
class Bench:
    """`home` holds the database, `work` is where agents work; `seen` is everything an observer saw."""

    tmp: Path
    seen: list[Observed] = field(default_factory=list)
    handle: SessionHandle | None = None
    on_event: Callable[[Observed], None] = lambda observed: None

    @property
    def home(self) -> Path:
        return self.tmp / "home"

    @property
    def work(self) -> Path:
        path = self.tmp / "work"
        path.mkdir(exist_ok=True)
        return path

    def options(self, prompt: str | None = "do it", **changes: Any) -> RunOptions:
        config = Settings(home=self.home)
        config = replace(config, loop=replace(config.loop, tool_use_summaries=False))
        base = RunOptions(prompt=prompt, cwd=self.work, config=config, permission_mode="bypassPermissions")
        return replace(base, **changes)

    async def session(self, api: FakeAPI, prompt: str | None = "do it", **changes: Any) -> RunOutcome:
        options = self.options(prompt, **changes)
        client = AnthropicClient(settings=options.effective(), base_url=api.base_url, api_key="test")

        def observe(observed: Observed) -> None:
            self.seen.append(observed)
            self.on_event(observed)

        def ready(handle: SessionHandle) -> None:
            self.handle = handle

        try:
            return await run_session(options, observe, on_ready=ready, client=client)
        finally:
            await client.close()

    def run(self, api: FakeAPI, prompt: str | None = "do it", **changes: Any) -> RunOutcome:
        return asyncio.run(self.session(api, prompt, **changes))

    def database(self) -> Database:
        return Database.open(self.home / "coordinator.db")

    def changes(self) -> list[TaskRecord]:
        return [observed.event.task for observed in self.seen if isinstance(observed.event, TaskChanged)]
