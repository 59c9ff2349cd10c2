from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.tasks.support import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = open_store(tmp_path)
    yield made
    made.db.close()
