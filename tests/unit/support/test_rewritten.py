"""What is made of tests before they run is what pytest takes."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

from tests.support.rewritten import TESTS, keep, rewritten_files


def test_pytest_takes_what_is_kept_instead_of_making_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    path = tmp_path / "test_one.py"
    path.write_text("def one(value):\n    assert value == 2\n")
    keep(path)
    monkeypatch.setattr(rewrite, "_rewrite_test", lambda *_: pytest.fail("it was made again"))
    keep(path)
    hook = pytestconfig.pluginmanager.rewrite_hook
    spec = spec_from_file_location("test_one", path, loader=hook)
    assert spec is not None
    hook.exec_module(module := module_from_spec(spec))
    with pytest.raises(AssertionError, match="assert 1 == 2"):
        module.one(1)


def test_tests_and_plugins_are_rewritten() -> None:
    files = {path for path in rewritten_files() if path.is_file()}
    assert {Path(__file__), TESTS / "conftest.py"} <= files
    assert any(path.name == "pytest_timeout.py" for path in files)
