"""What an agent was made of is let go when it ends: by its references, not when the collector of cycles comes by."""

from __future__ import annotations

import gc
import time
import weakref
from pathlib import Path

from coordinator.observed import Observed
from coordinator.views.exit_codes import ExitCode
from tests.integration.harness import Bench
from tests.integration.scripts import by_turn, coordinator, fleet
from tests.support.fake_api import FakeAPI, message, tool_use
from worker_agent.events import MessageAdded
from worker_agent.messages import Message


def test_the_messages_of_a_worker_that_ended_are_freed_at_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (bench.work / "a").write_text("content\n" * 100)
    of_workers: list[weakref.ref[Message]] = []

    def note(observed: Observed) -> None:
        if observed.task_id is not None and isinstance(observed.event, MessageAdded):
            of_workers.append(weakref.ref(observed.event.message))
        bench.seen.clear()  # which holds every event

    alive: list[int] = []

    def final(request):
        until = time.monotonic() + 5  # a run is told of while it still closes
        while any(ref() is not None for ref in of_workers) and time.monotonic() < until:
            time.sleep(0.01)
        alive.append(sum(ref() is not None for ref in of_workers))
        return message("all is done")

    read = message("reading", tool_use("Read", {"file_path": str(bench.work / "a")}))
    bench.on_event = note
    with FakeAPI(fleet(coordinator("one", "two", final=final), by_turn(read, read, "a report"))) as api:
        gc.collect()
        gc.disable()
        try:
            outcome = bench.run(api)
        finally:
            gc.enable()
    assert outcome.exit_code is ExitCode.DONE
    assert len(of_workers) >= 10
    assert alive == [0]
