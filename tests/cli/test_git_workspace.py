"""Workers on nodes that share no folder with anybody: all that they have of the project comes by git, and what they do goes back."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_cluster import Cluster, cluster, until
from tests.integration.scripts import by_turn, coordinator, fleet, notified
from tests.support.fake_api import Gate, Request, message, text, tool_use
from tests.support.skips import needs_postgres

pytestmark = [needs_postgres, pytest.mark.slow]
COMMIT = "git -c user.name=w -c user.email=w@x commit -qm"


def git(directory: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@x", "-C", str(directory), *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def repository(made: Cluster) -> Path:
    """The coordinator's own folder, which no node is told of but by its session."""
    work = made.program("home-run").cwd
    git(work, "init", "-q", "-b", "main")
    (work / "kept").write_text("kept\n")
    git(work, "add", ".")
    git(work, "commit", "-qm", "first")
    return work


def test_workers_edit_and_commit_in_clones_and_their_branches_are_shown_and_taken_over(tmp_path: Path) -> None:
    workers = {
        "one": by_turn(
            tool_use("Bash", {"command": f"pwd; echo one > one && git add one && {COMMIT} own"}),
            tool_use("Bash", {"command": "cat kept && echo more >> one"}),
            "one is done",
        ),
        "two": by_turn(tool_use("Bash", {"command": "git status --short"}), "two is done"),
    }
    with cluster(tmp_path, fleet(coordinator("one", "two", final="all done"), workers)) as made:
        work = repository(made)
        (work / "loose").write_text("not committed")
        made.node("a")
        run = made.run()
        out, err = run.communicate(timeout=60)
        assert (run.returncode, out) == (0, "all done\n"), err
        assert "do not see what is not committed here: 1 file" in err
        shown = {task["prompt"]: task for id in made.tasks() for task in [made.look("tasks", "show", id, "--json").json]}
        one, two = shown["one"], shown["two"]
        assert "branch coordinator/" in one["result"] and "nothing was changed" in two["result"]
        assert sorted(os.listdir(work)) == [".git", "kept", "loose"]
        (work / "loose").unlink()
        clones = [path.name for path in (made.directory / "home-a").rglob("worktrees/*/*")]
        assert clones == [], "what is at the remote needs no copy"

        start = made.program("home-run")
        diff = start("tasks", "diff", one["id"], "--db", made.url)
        assert diff.code == 0 and "+one\n+more\n" in diff.out, diff.err
        assert git(work, "branch", "--list", "coordinator/*") == "", "looking changes nothing"
        applied = start("tasks", "apply", one["id"], "--db", made.url)
        assert applied.code == 0, applied.err
        assert (work / "one").read_text() == "one\nmore\n"
        assert "own" in git(work, "log", "--format=%s")
        nothing = start("tasks", "diff", two["id"], "--db", made.url)
        assert nothing.code != 0 and "nothing was changed" in nothing.err


def test_a_worker_goes_on_from_its_pushed_branch_and_says_what_was_not_pushed(tmp_path: Path) -> None:
    pushed, away = Gate(), Gate()
    worker = by_turn(
        tool_use("Bash", {"command": "echo pushed > file"}),
        message(text("now", pushed), tool_use("Bash", {"command": "echo lost >> file; cat file"})),
        message(text("half", away), tool_use("Bash", {"command": "echo again >> file"})),
        "a report",
    )
    with cluster(tmp_path, fleet(coordinator("one", final="all done"), worker)) as made:
        work = repository(made)
        first = made.node("a")
        run = made.run()
        pushed.wait_reached(timeout=40)
        until(lambda: made.sql("SELECT id FROM events WHERE kind = 'work_pushed'"))
        remote = next((made.directory / "home-run").rglob("remotes/*.git"))
        remote.rename(aside := remote.with_suffix(".away"))  # nothing can be pushed now
        pushed.open()
        away.wait_reached(timeout=40)
        made.node("b")
        aside.rename(remote)
        os.killpg(first.pid, signal.SIGKILL)
        away.wait_reached(2, timeout=30)
        away.open()
        out, err = run.communicate(timeout=60)
        assert (run.returncode, out) == (0, "all done\n"), err
        (id,) = made.tasks()
        task = made.look("tasks", "show", id, "--json").json
        assert (task["status"], task["attempt"]) == ("completed", 2)
        assert "not pushed when attempt 1 was lost with its machine: Bash echo lost >> file" in task["result"]
        patch = made.program("home-run")("tasks", "diff", id, "--db", made.url)
        assert "+pushed\n+again\n" in patch.out, patch.err
        assert not (work / "file").exists()
        assert any("You go on on another machine" in request.user_text for request in made.api.requests)
        (told,) = [request for request in made.api.requests if notified(request)][-1:]
        assert "not pushed when attempt 1" in told.user_text


MOVED = "You go on on another machine"


def committing(request: Request) -> Any:
    """A worker that reads, edits and commits in three turns, and does so again where it was told that it moved."""
    blocks = request.messages[0]["content"]  # a worker that moved before its first answer is told so in front of its prompt
    texts = [blocks] if isinstance(blocks, str) else [block["text"] for block in blocks if block["type"] == "text"]
    name = next(text for text in texts if re.fullmatch(r"w\d\d", text))
    said = [json.dumps(one["content"]) if one["role"] == "user" else "" for one in request.messages]
    moved = max((n for n, text in enumerate(said) if MOVED in text), default=0)
    step = sum(one["role"] == "assistant" for one in request.messages[moved:])
    commands = (
        "cat kept; sleep 0.3",
        f"printf 'one\\n' > {name} && git add {name} && ({COMMIT} one || true); sleep 0.3",
        f"printf 'one\\ntwo\\n' > {name} && ({COMMIT} two {name} || true); sleep 0.3",
    )
    return tool_use("Bash", {"command": commands[step]}) if step < len(commands) else f"report of {name}"


@pytest.mark.timeout(300)
def test_forty_workers_on_two_nodes_of_which_one_freezes_and_one_is_killed(tmp_path: Path) -> None:
    names = [f"w{n:02}" for n in range(40)]
    # Who moved before the first answer asks once more for it, and is told of the move in front of the prompt.
    allowed = "prefix changed (blocks) at messages.0.content.0"
    with cluster(tmp_path, fleet(coordinator(*names, final="all done"), committing), allowed) as made:
        repository(made)
        frozen = made.node("frozen", slots=12)
        killed = made.node("killed", slots=12)
        run = made.run()

        def seen(status: str) -> int:
            """From a third home, which is to see each task once and in a state that there is, all the while."""
            tasks = made.tasks()
            assert {task["status"] for task in tasks.values()} <= {"pending", "running", "completed"}
            return sum(task["status"] == status for task in tasks.values())

        until(lambda: seen("completed") >= 4, 60)
        os.killpg(frozen.pid, signal.SIGSTOP)
        until(lambda: {n["name"]: n["status"] for n in made.look("nodes", "list", "--json").json}["frozen"] == "dead")
        until(lambda: seen("completed") >= 12, 60)
        os.killpg(frozen.pid, signal.SIGCONT)
        if frozen.poll() is None:
            until(lambda: {n["name"]: n["status"] for n in made.look("nodes", "list", "--json").json}["frozen"] == "ready")
        os.killpg(killed.pid, signal.SIGKILL)
        until(lambda: seen("completed") == 40, 150)
        out, err = run.communicate(timeout=60)
        assert (run.returncode, out) == (0, "all done\n"), err

        last = [request for request in made.api.requests if notified(request)][-1]
        assert sorted(notified(last)) == sorted(made.tasks()), "each result once"
        for name in names:
            assert last.user_text.count(f"report of {name}") == 1
        remote = next((made.directory / "home-run").rglob("remotes/*.git"))
        git(remote, "fsck", "--strict")
        base = git(made.work, "rev-parse", "HEAD").strip()
        for task in made.tasks().values():
            shown = made.look("tasks", "show", task["id"], "--json").json
            assert git(remote, "show", f"{shown['branch']}:{shown['prompt']}") == "one\ntwo\n"
            assert git(remote, "diff", "--name-only", base, shown["branch"]).split() == [shown["prompt"]]
        assert made.sql("SELECT agent_id, id FROM messages GROUP BY agent_id, id HAVING count(*) > 1") == []
