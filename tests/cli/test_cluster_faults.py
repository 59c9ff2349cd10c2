"""What goes wrong in a fleet, done for real: machines that are killed again and again, that freeze, whose clocks differ, that take
one another's name; a server that goes; a session's own machine that is lost. Each result comes once, no row is lost or doubled."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_cluster import Cluster, cluster, held_twice, until
from tests.cli.test_git_workspace import git, repository
from tests.integration.scripts import by_turn, coordinator, first_prompt, fleet, notified
from tests.support.fake_api import Gate, Request, delay, hold, message, text, tool_use
from tests.support.postgres import server
from tests.support.skips import needs_postgres

pytestmark = [needs_postgres, pytest.mark.slow]

DOUBLED = "SELECT agent_id, id FROM messages GROUP BY agent_id, id HAVING count(*) > 1"


def status_of(made: Cluster) -> dict[str, str]:
    return {node["name"]: node["status"] for node in made.look("nodes", "list", "--json").json}


def kill(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def again(made: Cluster, name: str, slots: int) -> subprocess.Popen[str]:
    """A node as a supervisor begins it anew: until its name is free, which it is when the one before counts as dead."""

    def begun() -> subprocess.Popen[str] | None:
        process = made.start(f"home-{name}", "node", "--name", name, "--slots", str(slots))
        assert process.stderr is not None
        return process if "takes up to" in process.stderr.readline() else None

    return until(begun)  # type: ignore[no-any-return]


@pytest.mark.timeout(600)
def test_two_hundred_workers_while_one_of_two_nodes_is_killed_every_ten_seconds(tmp_path: Path) -> None:
    names = [f"w{n:03}" for n in range(200)]

    def worker(request: Request) -> Any:
        """Three turns, each with an effect; told that the effect of one is unknown, it goes on."""
        name, turn = first_prompt(request), request.turns
        if turn == 3:
            return hold(delay(1.0), text(f"report of {name}"))
        return hold(delay(1.0), tool_use("Bash", {"command": f"echo {turn} >> {name}"}))

    with cluster(tmp_path, fleet(coordinator(*names, final="all done"), worker)) as made:
        made.node("steady", slots=40)
        shaky = made.node("shaky", slots=40)
        run = made.run()
        kills = 0
        while run.poll() is None:
            last = time.monotonic()
            until(lambda: run.poll() is not None or time.monotonic() > last + 10)  # noqa: B023 - called at once
            if run.poll() is None:
                kill(shaky)
                shaky, kills = again(made, "shaky", 40), kills + 1
        out, err = run.communicate()
        assert (run.returncode, out) == (0, "all done\n"), err
        assert kills >= 2, "it was over before anything was tried"

        tasks = made.tasks()
        assert Counter(task["status"] for task in tasks.values()) == {"completed": 200}
        last_asked = [request for request in made.api.requests if notified(request)][-1]
        assert sorted(notified(last_asked)) == sorted(tasks), "each result once"
        assert all(last_asked.user_text.count(f"report of {name}") == 1 for name in names)
        assert made.sql(DOUBLED) == []
        for name in names:
            done = (made.work / name).read_text().split()
            assert len(done) == len(set(done)), "nothing is done twice"
        assert max(task["attempt"] for task in tasks.values()) > 1
        assert made.sql("SELECT id FROM procrastinate.procrastinate_jobs") == [], "nothing is left behind in the queue"


def test_a_node_whose_name_another_took_while_it_was_frozen_ends_and_its_workers_go_on(tmp_path: Path) -> None:
    gate, held = Gate(), Gate()

    with cluster(tmp_path, fleet(coordinator("one", final="all done"), held_twice(gate, held))) as made:
        first = made.node("a")
        run = made.run()
        gate.wait_reached(timeout=40)
        os.killpg(first.pid, signal.SIGSTOP)
        second = again(made, "a", 4)
        held.wait_reached(timeout=30)
        os.killpg(first.pid, signal.SIGCONT)
        gate.open()
        _, said = first.communicate(timeout=30)
        assert first.returncode == 1 and "node a is another process by now" in said.splitlines()[-1]
        held.open()
        out, err = run.communicate(timeout=60)
        assert (run.returncode, out) == (0, "all done\n"), err
        assert (made.work / "lines").read_text() == "x\n"
        assert made.sql(DOUBLED) == [] and status_of(made) == {"a": "ready"} and second.poll() is None


SKEWED = '''"""What the clock of this process says is off by some seconds, from the first import on."""
import os, time

off = float(os.environ["CLOCK_OFF"])
now, now_ns = time.time, time.time_ns
time.time = lambda: now() + off
time.time_ns = lambda: now_ns() + int(off * 1e9)
'''


def test_clocks_that_differ_by_five_minutes_change_nothing(tmp_path: Path) -> None:
    (tmp_path / "skewed").mkdir()
    (tmp_path / "skewed" / "sitecustomize.py").write_text(SKEWED)
    gate = Gate()
    worker = by_turn(
        message(text("begun"), tool_use("Bash", {"command": "echo once >> lines"})),
        message(text("half", gate), tool_use("Bash", {"command": "echo twice >> lines"})),
        "a report",
    )

    def off(seconds: float) -> dict[str, str]:
        return {"PYTHONPATH": str(tmp_path / "skewed"), "CLOCK_OFF": str(seconds)}

    with cluster(tmp_path, fleet(coordinator("one", final="all done"), worker)) as made:
        early = made.node("early", **off(-300))
        run = made.run()
        gate.wait_reached(timeout=40)
        late = made.node("late", **off(300))
        begun = made.beat_of("early")
        until(lambda: made.beat_of("early") > begun + 4)
        assert status_of(made) == {"early": "ready", "late": "ready"}
        (task,) = made.tasks().values()
        assert (task["status"], task["attempt"]) == ("running", 1), "nobody takes the other for dead"
        kill(early)
        gate.wait_reached(2, timeout=30)
        assert until(lambda: status_of(made) == {"early": "dead", "late": "ready"})
        gate.open()
        out, err = run.communicate(timeout=60)
        assert (run.returncode, out) == (0, "all done\n"), err
        (task,) = made.tasks().values()
        assert (task["status"], task["attempt"]) == ("completed", 2)
        assert (made.work / "lines").read_text().split() == ["once", "twice"]
        assert made.sql(DOUBLED) == []
        late.send_signal(signal.SIGTERM)
        assert late.wait(timeout=20) == 0


def test_a_session_whose_machine_is_lost_goes_on_from_another_home_and_directory(tmp_path: Path) -> None:
    """The project is a clone of what both machines reach; of the first nothing is left."""
    gate = Gate()
    worker = by_turn(
        tool_use("Bash", {"command": "echo one > one"}),
        message(text("half", gate), tool_use("Bash", {"command": "echo two >> one"})),
        "a report",
    )
    with cluster(tmp_path, fleet(coordinator("one", final="all done"), worker)) as made:
        work = repository(made)
        git(tmp_path, "clone", "-q", "--bare", str(work), str(tmp_path / "shared.git"))
        made.node("a")
        run = made.run("--remote", str(tmp_path / "shared.git"))
        gate.wait_reached(timeout=40)
        kill(run)
        shutil.rmtree(made.directory / "home-run")
        git(tmp_path, "clone", "-q", str(tmp_path / "shared.git"), str(tmp_path / "elsewhere"))
        work.rename(tmp_path / "lost")
        gate.open()
        (id,) = made.tasks()
        until(lambda: made.tasks()[id]["status"] == "completed")
        session = made.tasks()[id]["session_id"]
        refused = made.start("home-two", "resume", session, "-p", cwd=tmp_path)
        assert refused.communicate(timeout=30)[1].count("\n") == 1 and refused.returncode == 2
        resumed = made.start("home-two", "resume", session, "-p", cwd=tmp_path / "elsewhere")
        out, err = resumed.communicate(timeout=60)
        assert (resumed.returncode, out) == (0, "all done\n"), err
        (last,) = [request for request in made.api.requests if notified(request)][-1:]
        assert len(notified(last)) == 1
        applied = made.program("home-two", tmp_path / "elsewhere")("tasks", "apply", id, "--db", made.url)
        assert applied.code == 0, applied.err
        assert (tmp_path / "elsewhere" / "one").read_text() == "one\ntwo\n"


def test_without_a_remote_that_others_reach_a_lost_machine_loses_no_work(tmp_path: Path) -> None:
    """What could not be pushed stays on its node, and the report says where; who asks for it elsewhere is told why not."""
    gate = Gate()
    worker = by_turn(message(text("half", gate), tool_use("Bash", {"command": "echo done > one"})), "a report")
    with cluster(tmp_path, fleet(coordinator("one", final="all done"), worker)) as made:
        work = repository(made)
        git(tmp_path, "clone", "-q", str(work), str(tmp_path / "elsewhere"))
        made.node("a")
        run = made.run()
        gate.wait_reached(timeout=40)
        kill(run)
        shutil.rmtree(made.directory / "home-run")
        work.rename(tmp_path / "lost")
        gate.open()
        (id,) = made.tasks()
        until(lambda: made.tasks()[id]["status"] == "completed")
        shown = made.look("tasks", "show", id, "--json").json
        kept = made.directory / "home-a" / "data" / "worktrees" / shown["session_id"] / shown["agent_id"]
        assert "not pushed" in shown["result"] and f"in {kept}]" in shown["result"]
        assert (kept / "one").read_text() == "done\n"
        resumed = made.start("home-two", "resume", shown["session_id"], "-p", cwd=tmp_path / "elsewhere")
        out, err = resumed.communicate(timeout=60)
        assert (resumed.returncode, out) == (0, "all done\n"), err
        (last,) = [request for request in made.api.requests if notified(request)][-1:]
        assert str(kept) in last.user_text, "its coordinator hears of it"
        for verb in ("apply", "diff"):
            refused = made.program("home-two", tmp_path / "elsewhere")("tasks", verb, id, "--db", made.url)
            assert (
                refused.code == 1 and refused.err.count("\n") == 1 and "does not appear to be a git repository" in refused.err
            )


def test_a_server_that_is_begun_anew_again_and_again_makes_nothing_fail(tmp_path: Path) -> None:
    names = [f"w{n}" for n in range(10)]
    gates = [Gate() for _ in range(3)]
    worker = by_turn(
        *(message(text("half", gate), tool_use("Bash", {"command": f"echo {n}"})) for n, gate in enumerate(gates)), "a report"
    )
    with cluster(tmp_path, fleet(coordinator(*names, final="all done"), worker)) as made:
        nodes = [made.node("a"), made.node("b")]  # eight slots: two workers wait for one
        run = made.run()
        gates[0].wait_reached(8, timeout=40)
        for gate in gates:
            server().stop()
            gate.open()
            server().start()
        out, err = run.communicate(timeout=60)
        assert (run.returncode, out) == (0, "all done\n"), err
        tasks = made.tasks()
        assert Counter(task["status"] for task in tasks.values()) == {"completed": 10}
        last = [request for request in made.api.requests if notified(request)][-1]
        assert sorted(notified(last)) == sorted(tasks) and made.sql(DOUBLED) == []
        assert [node.poll() for node in nodes] == [None, None]
        until(lambda: made.sql("SELECT id FROM procrastinate.procrastinate_jobs") == [])


def test_a_session_on_nodes_is_followed_and_its_hooks_run_where_its_tools_do(tmp_path: Path) -> None:
    gate = Gate()
    worker = by_turn(message(text("half", gate), tool_use("Bash", {"command": "echo done > lines"})), "a report")
    hook = {"type": "command", "command": "echo $COORDINATOR_HOME >> hooked"}
    settings = {"hooks": {"PostToolUse": [{"matcher": "Bash", "hooks": [hook]}]}}
    with cluster(tmp_path, fleet(coordinator("one", final="all done"), worker)) as made:
        made.node("a")
        run = made.run("--settings", json.dumps(settings))
        gate.wait_reached(timeout=40)
        (task,) = made.tasks().values()
        seeing = made.start("home-look", "attach", task["session_id"])
        following = made.start("home-look", "logs", "-f", task["id"])
        assert seeing.stdout is not None and following.stdout is not None
        first = seeing.stdout.readline()
        assert task["id"] in first and "waits" not in first, "it has begun"
        gate.open()
        out, err = run.communicate(timeout=60)
        assert (run.returncode, out) == (0, "all done\n"), err
        seen, _ = seeing.communicate(timeout=30)
        log, _ = following.communicate(timeout=30)
        assert (seeing.returncode, following.returncode) == (0, 0)
        assert seen.splitlines()[0].startswith("✔") and task["id"] in seen, seen
        assert "echo done > lines" in log and "a report" in log
        assert (made.work / "hooked").read_text().split() == [str(made.directory / "home-a" / "data")]
