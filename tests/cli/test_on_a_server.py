"""The real commands with PostgreSQL as their store: from several processes, through a crash of each of them."""

from __future__ import annotations

import threading

import pytest

from tests.cli.program import Program
from tests.cli.test_run_api import with_api
from tests.integration.scripts import by_turn, coordinator, fleet
from tests.support.fake_api import FakeAPI, Gate, message, text, tool_use
from tests.support.postgres import server
from tests.support.skips import needs_postgres
from tests.web.serving import serving

pytestmark = [needs_postgres, pytest.mark.slow]


@pytest.fixture
def url() -> str:
    return server().empty_database()


def test_a_run_is_seen_written_to_and_killed_from_elsewhere(program: Program, url: str) -> None:
    """Another home, another directory: all that both share is the server."""
    other = Program(program.home.parent / "elsewhere", program.cwd)
    gate, second = Gate(), Gate()
    workers = {"one": message(text("half a", gate, " report")), "two": by_turn(message(text("b", second)), "two is done")}
    with FakeAPI(fleet(coordinator("one", "two", final="all done"), workers)) as api:
        run = program.start("run", "goal", "--db", url, **with_api(program, api))
        gate.wait_reached(timeout=30)
        second.wait_reached(timeout=30)
        tasks = {task["id"]: task for task in other("ps", "--json", "--db", url).json}
        assert {task["status"] for task in tasks.values()} == {"running"} and len(tasks) == 2
        by_prompt = {other("tasks", "show", id, "--json", "--db", url).json["prompt"]: id for id in tasks}
        killed, lives = by_prompt["one"], by_prompt["two"]
        assert other("send", lives, "look again", "--db", url).out == "queued\n"
        done = other("kill", killed, "--db", url)
        assert done.code == 0, done.err
        gate.open()
        waiting = other.start("wait", lives, "--db", url)
        following = other.start("logs", "-f", lives, "--db", url)
        second.open()
        assert waiting.wait(timeout=30) == 0, waiting.communicate()
        shown, _ = following.communicate(timeout=30)
        out, err = run.communicate(timeout=30)
    assert (run.returncode, out) == (0, "all done\n"), err
    assert "two is done" in shown
    ended = {task["id"]: task["status"] for task in other("ps", "--all", "--json", "--db", url).json}
    assert ended == {killed: "killed", lives: "completed"}


def test_an_outage_of_ten_seconds_and_a_killed_owner_lose_nothing(program: Program, url: str) -> None:
    first, second = Gate(), Gate()
    worker = by_turn(
        message(text("begun", first), tool_use("Bash", {"command": "echo once >> lines"})),
        message("between", tool_use("Bash", {"command": "echo twice >> lines"})),
        message(text("nearly", second, " done")),
    )
    with FakeAPI(fleet(coordinator("one", final="all done"), worker)) as api:
        environment = with_api(program, api) | {"COORDINATOR_DATABASE_URL": url}
        run = program.start("run", "goal", "--permission-mode", "bypassPermissions", **environment)
        first.wait_reached(timeout=30)
        server().stop()
        back = threading.Timer(10.0, server().start)
        back.start()
        first.open()  # the answer, its tools, the next answer: all of it while nothing can be stored
        back.join()
        second.wait_reached(timeout=30)
        run.kill()
        run.communicate()
        (task,) = program("ps", "--json", "--all", **environment).json
        assert task["status"] == "interrupted"
        resumed = program.start("resume", task["session_id"], "-p", **environment)
        second.open()
        out, err = resumed.communicate(timeout=50)
    assert (resumed.returncode, out) == (0, "all done\n"), err
    shown = program("tasks", "show", task["id"], "--json", **environment).json
    assert (shown["status"], shown["attempt"]) == ("completed", 2)
    assert (program.cwd / "lines").read_text().split() == ["once", "twice"]
    doubled = program("db", "sql", "SELECT id FROM messages GROUP BY id HAVING count(*) > 1", "--json", **environment).json
    assert doubled == []


def test_the_page_reads_and_follows_a_server(program: Program, url: str) -> None:
    (program.cwd / "a.py").write_text("def area():\n    return 1\n")
    assert program("run", "--offline", "where is area", "--db", url).code == 0
    with serving(program, "--db", url) as page:
        (session,) = page("/api/sessions").json
        log = page(f"/api/sessions/{session['id']}/log?limit=5").json
        place = f"{log[2]['at']!r}:{log[2]['agent_id']}:{log[2]['seq']}"
        older, newer = (page(f"/api/sessions/{session['id']}/log?{way}={place}").json for way in ("before", "after"))
        others = {path: page(f"/api/sessions/{session['id']}/{path}").status for path in ("timeline", "money", "events")}
        with page.events(f"?session={session['id']}") as told:
            assert next(told)[2]["whole"]
        with page.events() as fleet_told:
            next(fleet_told)
            forked = program("sessions", "fork", session["id"], "--db", url).out.strip()
            kind, _, event = next(fleet_told)
    assert older[-2:] == log[:2] and newer == log[3:]
    assert set(others.values()) == {200}
    assert (kind, event["session_id"]) == ("event", forked)
