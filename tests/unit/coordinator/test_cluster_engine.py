"""What stands between a person and nodes: a store that machines share, and the extra."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from coordinator.cluster.engine import Engine, queue_of, queues_of
from tasks.db import Database
from tests.support.postgres import server
from tests.support.skips import needs_postgres
from worker_agent.errors import ConfigError


def test_a_file_is_no_store_for_nodes(tmp_path: Path) -> None:
    database = Database.open(tmp_path / "c.db")
    with pytest.raises(ConfigError, match="need PostgreSQL"):
        Engine(database)
    database.close()


@needs_postgres
def test_without_the_extra_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database.open(server().new_database())
    monkeypatch.setitem(sys.modules, "procrastinate", None)
    with pytest.raises(ConfigError, match=r"pip install 'coordinator\[cluster\]'"):
        Engine(database)
    database.close()


def test_a_node_serves_every_choice_of_its_tags_and_no_other() -> None:
    served = queues_of(("docker", "gpu"))
    for tags in ((), ("gpu",), ("docker",), ("gpu", "docker")):
        assert queue_of(tags) in served
    assert queue_of(("big", "gpu")) not in served and len(served) == 4
