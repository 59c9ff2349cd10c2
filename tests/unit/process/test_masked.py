"""Trees end also where the system has less: each thing that only Linux has is masked in turn."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from tests.unit.process.helpers import Lab
from tests.unit.process.test_tree import gone
from worker_agent import concealment, disk, process_tree

MASKS = ("marks", "platform")


@pytest.fixture(params=MASKS)
def masked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """`marks`: no resource limit bears a mark. `platform`: the modules that ask are told that this is no Linux, so that there is
    no sub-reaper either."""
    if request.param == "marks":
        monkeypatch.setattr(process_tree, "_marks_limits", lambda: None)
    else:
        process_tree._marks_limits.cache_clear()
        for module in (process_tree, concealment):
            monkeypatch.setattr(module, "sys", SimpleNamespace(**{**vars(sys), "platform": "darwin"}))
        request.addfinalizer(process_tree._marks_limits.cache_clear)
        assert process_tree.set_subreaper() is False and process_tree._marks_limits() is None
    return str(request.param)


@pytest.mark.parametrize(
    "command",
    [
        "sleep 300 | cat",
        "timeout 100 timeout 90 sleep 80",
        "setsid sleep 300 & sleep 300",
        "env -i sleep 300 & sleep 300",
        "nohup sleep 300 >/dev/null 2>&1 & sleep 300",
        "kill -STOP $$",
        "trap '' TERM; sleep 300; sleep 300",
    ],
)
def test_the_whole_tree_ends(lab: Lab, masked: str, command: str) -> None:
    outcome = lab.run(command, timeout=0.3, grace=0.3)
    assert outcome.timed_out and outcome.survivors == () and gone(lab)


def test_where_a_path_leads_is_known_without_proc(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "to").mkdir()
    (tmp_path / "link").symlink_to("to")
    by_proc = disk.real(tmp_path / "link" / "file")
    monkeypatch.setattr(disk, "_by_the_kernel", lambda path: None)
    assert disk.real(tmp_path / "link" / "file") == by_proc == str(tmp_path / "to" / "file")
