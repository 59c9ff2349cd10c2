"""Every test that asks for a `store` runs on both databases: what is promised of the store is promised of each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.skips import needs_postgres
from tests.unit.tasks.support import Store, open_server_store, open_store


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=needs_postgres)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made = open_store(tmp_path) if request.param == "sqlite" else open_server_store()
    yield made
    made.db.close()
