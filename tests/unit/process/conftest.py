from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.process.helpers import Lab
from worker_agent.process import end_tree


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A place to run commands; whatever a test leaves behind is ended by its marker."""
    lab = Lab(tmp_path)
    yield lab
    assert asyncio.run(end_tree(None, None, lab.task, grace=0.2)) == []
