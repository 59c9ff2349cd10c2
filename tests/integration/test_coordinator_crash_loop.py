"""SIGKILL at any moment, again and again: nothing runs twice, nothing is announced twice, everything ends."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from pathlib import Path

import pytest

from coordinator.agents.journal import from_record
from coordinator.views.exit_codes import ExitCode
from tasks import registry, transcripts
from tasks.registry import TaskFilter
from tests.integration.harness import Bench
from tests.integration.scripts import coordinator, first_prompt, fleet
from tests.integration.test_coordinator_stops import start
from tests.support.fake_api import FakeAPI, message, tool_use
from worker_agent.process_tree import find_tree

TURNS = 4


def worker(request):
    """Each turn writes a line of its own, so that a call that ran twice shows."""
    if request.turns >= TURNS:
        return message(f"report of {first_prompt(request)}")
    line = f"{first_prompt(request)}-{request.turns}"
    return message(f"writing {line}", tool_use("Bash", {"command": f"echo {line} >> lines; sleep 0.05"}))


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", range(4))
def test_a_session_that_is_killed_again_and_again_comes_to_its_end(tmp_path: Path, seed: int) -> None:
    bench, rng = Bench(tmp_path), random.Random(seed)
    with FakeAPI(fleet(coordinator("w0", "w1", "w2"), worker)) as api:
        process = start(bench, api)
        id = process.stdout.readline().strip()
        for _ in range(4):
            time.sleep(rng.uniform(0.0, 0.8))  # the crash may come at any moment: that is what is tested
            process.kill()
            process.wait(20)
            process.stdout.close()
            process = start(bench, api, id)
            process.stdout.readline()
        process.kill()
        process.wait(20)
        process.stdout.close()
        outcome = bench.run(api, None, resume=id)
    assert outcome.exit_code is ExitCode.DONE
    assert [t["status"] for t in outcome.result["tasks"]] == ["completed"] * 3
    db = bench.database()
    tasks = db.read(lambda conn: registry.list_tasks(conn, TaskFilter(session_id=id)))
    told = [from_record(row).text for row in db.read(lambda conn: transcripts.load(conn, id))]
    assert db.check() == []
    db.close()
    assert Counter(re.findall(r"<task-id>(\w+)</task-id>", "".join(told))) == {task.id: 1 for task in tasks}
    lines = Counter((bench.work / "lines").read_text().split()) if (bench.work / "lines").exists() else Counter()
    assert set(lines.values()) <= {1}
    assert not any(find_tree(None, None, task.id) for task in tasks)
