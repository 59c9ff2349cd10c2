"""Workers apart from each other and from what goes wrong in them: worktrees, stubborn tools, broken tools, secrets."""

from __future__ import annotations

import asyncio
import subprocess
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from coordinator.views.exit_codes import ExitCode
from tests.integration.harness import Bench
from tests.integration.scripts import by_turn, coordinator, fleet, notified, spawn
from tests.support.fake_api import FakeAPI, message, tool_use
from worker_agent.tool_facts import Facts
from worker_agent.tools.base import Input, Tool, ToolContext, ToolResult
from worker_agent.tools.registry import ToolRegistry


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def git(path: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", path, *arguments], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(bench: Bench) -> Path:
    git(bench.work, "init", "-q", "-b", "main")
    git(bench.work, "config", "user.email", "a@example.com")
    git(bench.work, "config", "user.name", "A")
    (bench.work / "a.txt").write_text("one\n")
    git(bench.work, "add", ".")
    git(bench.work, "commit", "-q", "-m", "first")
    return bench.work


def boss_requests(api: FakeAPI) -> list:
    return [request for request in api.requests if "Agent" in request.tool_names]


def notices(api: FakeAPI) -> list[ElementTree.Element]:
    xml = "".join(m for m in boss_requests(api)[-1].user_text.splitlines(True) if not m.startswith("[From"))
    start = xml.index("<task-notification>")
    return ElementTree.fromstring(f"<all>{xml[start:]}</all>").findall("task-notification")


def test_two_workers_in_worktrees_do_not_touch_the_tree_or_each_other(bench: Bench, repository: Path) -> None:
    prompts = [spawn(p, isolation="worktree") for p in ("left", "right")]
    workers = {
        side: by_turn(tool_use("Write", {"file_path": "new.txt", "content": side}), "written") for side in ("left", "right")
    }
    with FakeAPI(fleet(coordinator(*prompts), workers)) as api:
        outcome = bench.run(api)
    assert outcome.exit_code is ExitCode.DONE and sorted(p.name for p in repository.iterdir()) == [".git", "a.txt"]
    trees = [Path(notice.findtext("worktree")) for notice in notices(api)]
    assert sorted((tree / "new.txt").read_text() for tree in trees) == ["left", "right"]
    assert all(notice.findtext("branch").startswith("coordinator/a") for notice in notices(api))
    assert all("was kept" in notice.findtext("result") for notice in notices(api))


def test_a_worktree_in_which_nothing_was_changed_is_gone_afterwards(bench: Bench, repository: Path) -> None:
    with FakeAPI(fleet(coordinator(spawn("look", isolation="worktree")))) as api:
        bench.run(api)
    assert len(git(repository, "worktree", "list").splitlines()) == 1
    assert git(repository, "branch", "--list") == "* main"


def test_a_worktree_without_a_repository_fails_the_task_in_words(bench: Bench) -> None:
    with FakeAPI(fleet(coordinator(spawn("look", isolation="worktree")))) as api:
        outcome = bench.run(api)
    (task,) = outcome.result["tasks"]
    assert task["status"] == "failed" and "needs a git repository" in task["error"]


@pytest.mark.parametrize("again", [False, True], ids=["gone", "made again"])
def test_a_worktree_that_goes_fails_the_task_and_is_not_made_again_by_writing(
    bench: Bench, repository: Path, again: bool
) -> None:
    remove = 'cd / && rm -rf "$OLDPWD"' + (' && mkdir "$OLDPWD"' if again else "")
    calls = (
        tool_use("Bash", {"command": remove}),
        tool_use("Write", {"file_path": "new.txt", "content": "lost"}),
    )
    with FakeAPI(fleet(coordinator(spawn("look", isolation="worktree")), {"look": by_turn(*calls, "written")})) as api:
        outcome = bench.run(api, permission_mode="bypassPermissions")
    (task,) = outcome.result["tasks"]
    assert task["status"] == "failed" and "was removed or replaced" in task["error"], task
    (notice,) = notices(api)
    assert Path(notice.findtext("worktree")).is_dir() == again
    assert again or any(b"is gone; nothing was written" in request.raw for request in api.requests)


class Stubborn(Tool):
    """Ignores cancellation for longer than any test may last."""

    facts = Facts(name="Stubborn")
    description = "never answers"
    input_schema = {"type": "object", "properties": {}, "additionalProperties": False}
    begun = False

    async def call(self, input: Input, context: ToolContext) -> ToolResult:
        Stubborn.begun = True
        until = time.monotonic() + 20
        while time.monotonic() < until and not Stubborn.released:
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue
        return ToolResult("late")

    released = False


def test_a_tool_that_ignores_cancellation_does_not_hold_the_stop_or_the_slot(bench: Bench, monkeypatch) -> None:
    """K4."""
    Stubborn.begun = Stubborn.released = False
    builtin = ToolRegistry.builtin
    monkeypatch.setattr(ToolRegistry, "builtin", lambda extra=(): builtin([Stubborn()]))

    async def boss(request):
        if request.turns == 0:
            return message("starting", spawn("stuck", name="stuck"))
        if request.turns == 1:
            while not Stubborn.begun:
                await asyncio.sleep(0.01)
            return message(tool_use("TaskStop", {"task_id": "stuck"}))
        if request.turns == 2:
            return message("another", spawn("next"))
        return message("done" if notified(request) else "waiting")

    workers = {"stuck": tool_use("Stubborn", {}), "next": "report"}
    begun = time.monotonic()
    with FakeAPI(fleet(boss, workers)) as api:

        async def scenario():
            try:
                return await bench.session(api, max_workers=1, permission_mode="bypassPermissions")
            finally:
                Stubborn.released = True
                await asyncio.sleep(0.1)

        outcome = asyncio.run(scenario())
    assert [t["status"] for t in outcome.result["tasks"]] == ["killed", "completed"]
    assert time.monotonic() - begun < 15


def test_a_run_that_breaks_ends_its_task_with_the_class_of_what_broke(bench: Bench, monkeypatch) -> None:
    from coordinator.agents.engines import EngineFactory

    async def broken(self, parts):
        raise LookupError("a bug")

    monkeypatch.setattr(EngineFactory, "worker", broken)
    with FakeAPI(fleet(coordinator("one"))) as api:
        outcome = bench.run(api)
    (task,) = outcome.result["tasks"]
    assert (task["status"], task["error"], outcome.exit_code) == ("failed", "LookupError: a bug", ExitCode.DONE)


def test_a_secret_of_the_environment_reaches_neither_tools_nor_transcript_nor_notice(bench: Bench, monkeypatch) -> None:
    """S3."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-very-secret-value")
    (bench.work / "leak.txt").write_text("key = sk-ant-very-secret-value\n")
    worker = by_turn(
        message(tool_use("Bash", {"command": "env"}), tool_use("Read", {"file_path": str(bench.work / "leak.txt")})),
        "the key is sk-ant-very-secret-value",
    )
    with FakeAPI(fleet(coordinator("one"), worker)) as api:
        bench.run(api)
    results = [r for r in api.requests if "Agent" not in r.tool_names][-1].tool_results
    assert all("sk-ant-very-secret-value" not in text for text in results.values())
    assert "sk-ant-very-secret-value" not in boss_requests(api)[-1].user_text
    for path in (bench.home / "transcripts").rglob("*.md"):
        assert "sk-ant-very-secret-value" not in path.read_text()
