"""Workers on nodes: real node processes with homes of their own, a coordinator, and a third home that looks on. All that they
share is the server and the folder in which the work is done."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from coordinator.cluster.engine import STALLED
from coordinator.views.exit_codes import ExitCode
from tests.cli.program import Program, Ran
from tests.cli.test_run_api import with_api
from tests.integration.scripts import by_turn, coordinator, fleet, notified, spawn
from tests.support.fake_api import FakeAPI, Gate, Request, message, text, tool_use
from tests.support.postgres import server
from tests.support.skips import needs_postgres

pytestmark = [needs_postgres, pytest.mark.slow]


@dataclass
class Cluster:
    """`look` is a program of a third home. Every process is ended when the test is over."""

    directory: Path
    url: str
    api: FakeAPI
    started: list[subprocess.Popen[str]]

    def program(self, home: str, cwd: Path | None = None) -> Program:
        work = cwd or self.work
        work.mkdir(exist_ok=True)
        return Program(self.directory / home, work)

    def start(self, home: str, *arguments: str, cwd: Path | None = None, **more: str) -> subprocess.Popen[str]:
        program = self.program(home, cwd)
        environment = with_api(program, self.api) | {"COORDINATOR_DATABASE_URL": self.url} | more
        self.started.append(process := program.start(*arguments, **environment))
        return process

    def node(self, name: str, *flags: str, slots: int = 4, **more: str) -> subprocess.Popen[str]:
        process = self.start(f"home-{name}", "node", "--name", name, "--slots", str(slots), *flags, **more)
        assert process.stderr is not None
        assert "takes up to" in (line := process.stderr.readline()), line + process.stderr.read()
        return process

    def run(self, *flags: str) -> subprocess.Popen[str]:
        return self.start("home-run", "run", "goal", "--backend", "cluster", "--permission-mode", "bypassPermissions", *flags)

    def look(self, *arguments: str) -> Ran:
        return self.program("home-look", self.directory)(*arguments, "--db", self.url)

    def tasks(self) -> dict[str, dict[str, Any]]:
        return {task["id"]: task for task in self.look("ps", "--all", "--json").json}

    def sql(self, statement: str) -> Any:
        return self.look("db", "sql", statement, "--json").json

    def beat_of(self, node: str) -> float:
        """When the node said last that it lives, in seconds of the server's clock."""
        return float(self.sql(f"SELECT heartbeat_at FROM nodes WHERE name = '{node}'")[0]["heartbeat_at"])

    @property
    def work(self) -> Path:
        return self.directory / "work"


@contextmanager
def cluster(tmp_path: Path, script: Callable[..., Any], *allowed: str) -> Iterator[Cluster]:
    """`allowed` are parts of what the API may complain of."""
    with FakeAPI(script, allow_violations=allowed) as api:
        made = Cluster(tmp_path, server().empty_database(), api, [])
        try:
            yield made
        finally:
            for process in made.started:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.communicate()


def until(is_so: Callable[[], Any], seconds: float = 20) -> Any:
    end = time.monotonic() + seconds
    while not (found := is_so()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.1)
    return found


def test_a_node_runs_workers_in_the_shared_folder_and_their_reports_come_back(tmp_path: Path) -> None:
    worker = by_turn(tool_use("Bash", {"command": "echo here >> lines"}), "a report")
    with cluster(tmp_path, fleet(coordinator("one", "two", final="all done"), worker)) as made:
        node = made.node("a")
        run = made.run()
        out, err = run.communicate(timeout=60)
        assert (run.returncode, out) == (0, "all done\n"), err
        tasks = made.tasks()
        assert [task["status"] for task in tasks.values()] == ["completed"] * 2
        assert (made.work / "lines").read_text().split() == ["here", "here"]
        until(lambda: made.look("nodes", "list", "--json").json[0]["running"] == 0)
        (shown,) = made.look("nodes", "list", "--json").json
        assert list(shown) == ["name", "status", "tags", "slots", "running", "version", "heartbeat_at"]
        assert (shown["name"], shown["status"], shown["slots"]) == ("a", "ready", 4)
        node.send_signal(signal.SIGTERM)
        assert node.wait(timeout=20) == 0
        assert made.look("nodes", "list", "--json").json == []


def test_workers_are_seen_written_to_and_killed_from_a_third_machine(tmp_path: Path) -> None:
    gate, second = Gate(), Gate()
    workers = {
        "one": by_turn(message(text("half", gate, " a report"), tool_use("Bash", {"command": "sleep 300"})), "never"),
        "two": by_turn(message(text("b", second), tool_use("Bash", {"command": "true"})), "two is done"),
    }
    with cluster(tmp_path, fleet(coordinator("one", "two", final="all done"), workers)) as made:
        made.node("a")
        run = made.run()
        gate.wait_reached(timeout=40)
        second.wait_reached(timeout=40)
        prompts = {made.look("tasks", "show", id, "--json").json["prompt"]: id for id in made.tasks()}
        assert {task["status"] for task in made.tasks().values()} == {"running"}
        assert made.look("send", prompts["two"], "look again").out == "queued\n"
        gate.open()
        until(lambda: subprocess.run(["pgrep", "-f", "sleep 300"], capture_output=True).returncode == 0)
        killed = made.look("kill", prompts["one"])
        assert killed.code == 0, killed.err
        second.open()
        assert made.look("wait", prompts["two"]).code == 0
        out, err = run.communicate(timeout=60)
        assert (run.returncode, out) == (0, "all done\n"), err
        assert {made.tasks()[id]["status"] for id in prompts.values()} == {"killed", "completed"}
        assert any("look again" in json.dumps(request.body) for request in made.api.requests)


def test_the_workers_of_a_killed_node_go_on_elsewhere_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    gate = Gate()
    worker = by_turn(
        message(text("begun"), tool_use("Bash", {"command": "echo once >> lines"})),
        message(text("half", gate), tool_use("Bash", {"command": "echo twice >> lines"})),
        "a report",
    )
    with cluster(tmp_path, fleet(coordinator("one", final="all done"), worker)) as made:
        first = made.node("a")
        run = made.run()
        gate.wait_reached(timeout=40)
        made.node("b")
        os.killpg(first.pid, signal.SIGKILL)
        gate.wait_reached(2, timeout=30)
        gate.open()
        out, err = run.communicate(timeout=60)
        assert (run.returncode, out) == (0, "all done\n"), err
        (task,) = made.tasks().values()
        assert (task["status"], task["attempt"]) == ("completed", 2)
        assert (made.work / "lines").read_text().split() == ["once", "twice"]
        assert made.sql("SELECT id FROM messages GROUP BY id HAVING count(*) > 1") == []
        nodes = {one["name"]: one["status"] for one in made.look("nodes", "list", "--json").json}
        assert nodes == {"a": "dead", "b": "ready"}
        assert made.look("nodes", "rm", "b").code != 0
        assert made.look("nodes", "rm", "a").code == 0


def held_twice(gate: Gate, held: Gate) -> Callable[[Request], Any]:
    """A worker that stops half way through its first answer, at one gate, and begun anew at another."""

    def worker(request: Request) -> Any:
        if request.turns == 0:
            return message(text("half", gate if not gate.arrivals else held), tool_use("Bash", {"command": "echo x >> lines"}))
        return "a report"

    return worker


def test_a_frozen_node_is_fenced_and_writes_nothing_when_it_thaws(tmp_path: Path) -> None:
    gate, held = Gate(), Gate()

    with cluster(tmp_path, fleet(coordinator("one", final="all done"), held_twice(gate, held))) as made:
        first = made.node("a")
        run = made.run()
        gate.wait_reached(timeout=40)
        made.node("b")
        os.killpg(first.pid, signal.SIGSTOP)
        held.wait_reached(timeout=30)  # the other has begun it anew
        held.open()
        out, err = run.communicate(timeout=60)
        before = made.sql("SELECT count(*) AS n FROM messages")
        os.killpg(first.pid, signal.SIGCONT)
        gate.open()
        until(lambda: first.poll() is not None or made.look("nodes", "list", "--json").json[0]["status"] == "ready")
        assert (run.returncode, out) == (0, "all done\n"), err
        assert made.sql("SELECT count(*) AS n FROM messages") == before
        assert (made.work / "lines").read_text().split() == ["x"]


def test_a_drained_node_lets_turns_end_and_gives_back_what_it_runs(tmp_path: Path) -> None:
    gate, held = Gate(), Gate()
    worker = by_turn(
        message(text("half", gate), tool_use("Bash", {"command": "echo once >> lines"})), message(text("b", held), " a report")
    )
    with cluster(tmp_path, fleet(coordinator("one", final="all done"), worker)) as made:
        first = made.node("a")
        run = made.run()
        gate.wait_reached(timeout=40)
        made.node("b")
        assert made.look("nodes", "drain", "a").code == 0
        until(lambda: {one["name"]: one["status"] for one in made.look("nodes", "list", "--json").json}["a"] == "draining")
        begun = made.beat_of("a")
        until(lambda: made.beat_of("a") > begun + 2 * STALLED)  # a turn may last longer than the silence of a dead node
        assert first.poll() is None  # its turn has not ended
        (task,) = made.tasks().values()
        assert (task["status"], task["attempt"]) == ("running", 1), "who drains is not dead"
        gate.open()
        assert first.wait(timeout=30) == 0
        held.wait_reached(timeout=30)
        held.open()
        out, err = run.communicate(timeout=60)
        assert (run.returncode, out) == (0, "all done\n"), err
        (task,) = made.tasks().values()
        assert (task["status"], task["attempt"]) == ("completed", 2)
        assert (made.work / "lines").read_text() == "once\n"
        asked = [request for request in made.api.requests if request.turns == 0 and "Agent" not in request.tool_names]
        assert len(asked) == 1, "a turn that ended is not repeated"


def test_a_turn_that_does_not_end_in_time_is_stopped_where_it_stands(tmp_path: Path) -> None:
    gate = Gate()
    with cluster(tmp_path, fleet(coordinator("one", final="all done"), message(text("half", gate, " a report")))) as made:
        first = made.node("a", "--drain-timeout", "1s")
        run = made.run()
        gate.wait_reached(timeout=40)
        made.node("b")
        assert made.look("nodes", "drain", "a").code == 0
        assert first.wait(timeout=30) == 0
        gate.wait_reached(2, timeout=30)
        gate.open()
        out, err = run.communicate(timeout=60)
        assert (run.returncode, out) == (0, "all done\n"), err
        (task,) = made.tasks().values()
        assert (task["status"], task["attempt"]) == ("completed", 2)


def test_at_most_so_many_workers_of_a_session_run_on_all_nodes(tmp_path: Path) -> None:
    gate = Gate()
    names = [f"w{n}" for n in range(4)]
    with cluster(tmp_path, fleet(coordinator(*names, final="all done"), message(text("half", gate, " a report")))) as made:
        made.node("a")
        run = made.start("home-run", "run", "goal", "--backend", "cluster", "--max-workers", "2")
        gate.wait_reached(2, timeout=40)
        waiting = until(lambda: [task for task in made.tasks().values() if task["status"] == "pending"])
        assert len(made.tasks()) == 4 and {task["last_activity"] for task in waiting} == {
            "waits: 2 workers run (--max-workers)"
        }
        assert len(waiting) == 2
        gate.open()
        out, err = run.communicate(timeout=60)
        assert (run.returncode, out) == (0, "all done\n"), err
        assert [task["status"] for task in made.tasks().values()] == ["completed"] * 4


def test_workers_go_on_without_the_process_that_began_them_and_resume_hears_of_it(tmp_path: Path) -> None:
    gate = Gate()
    with cluster(tmp_path, fleet(coordinator("one", final="all done"), message(text("half", gate, " a report")))) as made:
        made.node("a")
        run = made.run()
        gate.wait_reached(timeout=40)
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
        (id,) = made.tasks()
        assert made.tasks()[id]["status"] == "running", "a living node runs it"
        sent = made.look("send", id, "look again")
        assert (sent.out, sent.err) == ("queued\n", ""), "it waits for nobody"
        gate.open()
        until(lambda: made.tasks()[id]["status"] == "completed")
        session = made.tasks()[id]["session_id"]
        resumed = made.start("home-run", "resume", session, "-p")
        out, err = resumed.communicate(timeout=60)
        assert (resumed.returncode, out) == (0, "all done\n"), err
        (last,) = [request for request in made.api.requests if notified(request)][-1:]
        assert len(notified(last)) == 1


def test_a_budget_holds_over_nodes(tmp_path: Path) -> None:
    names = [f"w{n}" for n in range(6)]
    worker = by_turn(*(tool_use("Bash", {"command": "true"}) for _ in range(30)), "a report")
    with cluster(tmp_path, fleet(coordinator(*names, final="all done"), worker)) as made:
        made.node("a")
        made.node("b")
        run = made.start("home-run", "run", "goal", "--backend", "cluster", "--token-budget", "60000")
        _, err = run.communicate(timeout=60)
        spent = int(made.sql("SELECT sum(output_tokens) AS n FROM v_cost")[0]["n"])
        assert 0 < spent <= 60_000
        assert run.returncode in (ExitCode.DONE, ExitCode.LIMIT), err
        ran_on = made.sql("SELECT DISTINCT owner_pid AS pid FROM tasks")
        assert len(ran_on) == 2
        assert made.sql("SELECT id FROM messages GROUP BY agent_id, id HAVING count(*) > 1") == []
        left = made.sql("SELECT holder FROM budget_shares WHERE busy")
        assert left == []


def test_a_second_node_of_one_name_is_refused_and_a_file_is_no_store_for_nodes(tmp_path: Path, program: Program) -> None:
    with cluster(tmp_path, fleet(coordinator("one"))) as made:
        made.node("a")
        second = made.start("home-c", "node", "--name", "a")
        _, err = second.communicate(timeout=30)
        assert second.returncode != 0 and len(err.splitlines()) == 1 and "node a" in err
    for arguments in (("node",), ("run", "--backend", "cluster", "goal", "--offline")):
        refused = program(*arguments)
        assert refused.code == ExitCode.USAGE and len(refused.err.splitlines()) == 1 and "PostgreSQL" in refused.err


def test_an_outage_of_the_server_makes_nothing_fail(tmp_path: Path) -> None:
    gate, held = Gate(), Gate()
    worker = by_turn(
        message(text("begun", gate), tool_use("Bash", {"command": "echo once >> lines"})),
        message(text("half", held), tool_use("Bash", {"command": "echo twice >> lines"})),
        "a report",
    )
    with cluster(tmp_path, fleet(coordinator("one", final="all done"), worker)) as made:
        node = made.node("a")
        run = made.run()
        gate.wait_reached(timeout=40)
        server().stop()
        back = threading.Timer(10.0, server().start)
        back.start()
        gate.open()
        held.open()
        back.join()
        out, err = run.communicate(timeout=60)
        assert (run.returncode, out) == (0, "all done\n"), err
        assert (made.work / "lines").read_text().split() == ["once", "twice"]
        assert made.sql("SELECT id FROM messages GROUP BY id HAVING count(*) > 1") == []
        until(lambda: made.look("nodes", "list", "--json").json[0]["status"] == "ready")
        assert node.poll() is None
        again = made.run()  # and the node takes new ones
        assert again.communicate(timeout=60)[0] == "all done\n"


def test_a_worker_runs_where_its_tags_are_and_says_what_it_waits_for(tmp_path: Path) -> None:
    boss = coordinator(spawn("one", tags=["gpu", "docker"]), "two", final="all done")
    workers = {"one": by_turn(tool_use("Bash", {"command": "true"}), "a report"), "two": "two is done"}
    with cluster(tmp_path, fleet(boss, workers)) as made:
        made.node("plain", "--tags", "docker")
        run = made.run()
        two = until(lambda: [task for task in made.tasks().values() if task["status"] == "completed"])
        (one,) = [task for task in made.tasks().values() if task["id"] != two[0]["id"]]
        assert (one["status"], one["last_activity"]) == ("pending", "waits for a node with docker, gpu")
        assert "waits for a node with docker, gpu" in made.look("ps").out
        made.node("rich", "--tags", "docker,gpu,big")
        out, err = run.communicate(timeout=60)
        assert (run.returncode, out) == (0, "all done\n"), err
        hosts = made.sql(f"SELECT owner_pid AS pid FROM tasks WHERE id = '{one['id']}'")
        assert hosts[0]["pid"] == made.started[-1].pid


def test_a_call_on_a_node_waits_for_a_person_who_answers_from_elsewhere(tmp_path: Path) -> None:
    worker = by_turn(tool_use("Bash", {"command": "echo asked >> lines"}), "a report")
    with cluster(tmp_path, fleet(coordinator("one", final="all done"), worker)) as made:
        made.node("a")
        run = made.start("home-run", "run", "goal", "--backend", "cluster", "--wait-approvals")
        (waiting,) = until(lambda: made.look("inbox", "--json").json)
        assert not (made.work / "lines").exists()
        assert made.look("approve", waiting["id"]).code == 0
        out, err = run.communicate(timeout=60)
        assert (run.returncode, out) == (0, "all done\n"), err
        assert (made.work / "lines").read_text() == "asked\n"


def test_a_command_in_the_background_of_a_dead_node_ends_as_interrupted_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    gate = Gate()
    worker = by_turn(
        tool_use("Bash", {"command": "sleep 86427", "run_in_background": True}),
        message(text("half", gate), tool_use("Bash", {"command": "true"})),
        "a report",
    )
    with cluster(tmp_path, fleet(coordinator("one", final="all done"), worker)) as made:
        first = made.node("a")
        run = made.run()
        gate.wait_reached(timeout=40)
        made.node("b")
        os.killpg(first.pid, signal.SIGKILL)
        gate.open()
        out, err = run.communicate(timeout=60)
        assert (run.returncode, out) == (0, "all done\n"), err
        ended = {task["type"]: (task["status"], task["end_reason"]) for task in made.tasks().values()}
        assert ended == {"local_agent": ("completed", "completed"), "local_bash": ("failed", "interrupted")}
        assert subprocess.run(["pgrep", "-f", "sleep 86427"], capture_output=True).returncode == 1
