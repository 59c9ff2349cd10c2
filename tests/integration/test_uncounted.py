"""An endpoint that counts nothing: what was used is unknown, and never shown as nothing."""

from __future__ import annotations

from pathlib import Path

from coordinator.cli import render
from coordinator.views.exit_codes import ExitCode
from coordinator.views.values import task_json
from tasks import ledger, registry
from tasks.registry import TaskFilter
from tests.integration.harness import Bench
from tests.integration.scripts import coordinator, fleet
from tests.support.fake_api import FakeAPI, message, usage_only_in_delta

NOTHING = dict.fromkeys(
    ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "cache_creation"), 0
)


def test_the_cost_of_answers_that_nobody_counted_is_unknown_everywhere(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with FakeAPI(fleet(coordinator("one"), message("a report", usage=NOTHING))) as api:
        outcome = bench.run(api)
    assert outcome.exit_code is ExitCode.DONE and outcome.result is not None
    assert outcome.result["total_cost_usd"] is None
    assert [task["cost_usd"] for task in outcome.result["tasks"]] == [None]
    (task,) = bench.database().read(lambda conn: registry.list_tasks(conn, TaskFilter(ended_sessions=True)))
    assert task.cost_usd is None and bench.database().read(ledger.total).known_cost_usd > 0
    assert render.cost_of(task_json(task, task.status, 0.0)) == "?"


def test_counts_that_come_late_are_counts(tmp_path: Path) -> None:
    with FakeAPI(usage_only_in_delta()) as api:
        outcome = Bench(tmp_path).run(api)
    assert outcome.result is not None and outcome.result["total_cost_usd"] > 0


def test_a_budget_takes_what_nobody_counted_at_its_worst(tmp_path: Path) -> None:
    """Else a budget in USD would hold nothing at such an endpoint."""
    bench = Bench(tmp_path)
    with FakeAPI(lambda request: message("more", usage=NOTHING)) as api:
        outcome = bench.run(api, max_budget_usd=0.20, turn_target=1_000_000)
        used = len(api.requests)
    assert used < 40 and outcome.result is not None
