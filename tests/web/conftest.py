from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.program import Program


@pytest.fixture
def program(tmp_path: Path) -> Program:
    work = tmp_path / "work"
    work.mkdir()
    return Program(tmp_path / "home", work)
