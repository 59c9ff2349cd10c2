"""Nothing that was asked for is lost: by a resume that is refused, a death before the first message, news at the end."""

from __future__ import annotations

import json
from collections.abc import Sequence

from coordinator.views.exit_codes import ExitCode
from tasks import leases, sessions
from tasks.db import Database
from tasks.records import Owner
from tests.cli.program import Program
from tests.cli.test_run_api import start, with_api
from tests.integration.scripts import coordinator, fleet, notified, spawn
from tests.support.fake_api import FakeAPI, Gate, message, text


def refusals(program: Program) -> Sequence[tuple[str, ...]]:
    typo = program.cwd / "typo.json"
    typo.write_text('{"permissions": {"allow": ["Bash(ls"', encoding="utf-8")
    return (
        ("--settings", "/nonexistent.json"),
        ("--settings", str(typo)),
        ("--allowed-tools", "Bash(git"),
        ("--model", "no-such-model-1", "--max-budget-usd", "1"),
    )


def test_a_resume_that_is_refused_changes_nothing(program: Program) -> None:
    gate = Gate()
    with FakeAPI(fleet(coordinator("one", final="all done"), message(text("begun", gate, " and reported")))) as api:
        process = start(program, api, "run", "goal")
        gate.wait_reached(timeout=20)
        process.kill()
        process.communicate()
        (before,) = program.here("ps", "--json").json
        gate.open()
        environment = with_api(program, api)
        refused = [program.here("resume", before["session_id"], "-p", *flags, **environment) for flags in refusals(program)]
        moved = program.cwd.with_name("moved")
        program.cwd.rename(moved)
        elsewhere = Program(program.home, program.home)
        refused.append(elsewhere("resume", before["session_id"], "-p", **with_api(program, api)))
        moved.rename(program.cwd)
        (after,) = program.here("ps", "--json").json
        resumed = program("resume", before["session_id"], "-p", **with_api(program, api))
    assert [ran.code for ran in refused] == [ExitCode.USAGE] * len(refused), [ran.err for ran in refused]
    assert all("Traceback" not in ran.err for ran in refused)
    assert (after["status"], after["attempt"]) == ("interrupted", before["attempt"])
    assert (resumed.code, resumed.out) == (0, "all done\n"), resumed.err


def test_a_refused_run_leaves_no_session_and_a_refused_resume_leaves_an_ended_one_ended(program: Program) -> None:
    with FakeAPI(fleet(coordinator(final="done"))) as api:
        assert program.here("run", "goal", "--settings", "/nonexistent.json", **with_api(program, api)).code == ExitCode.USAGE
        assert program.here("sessions", "list", "-q").out == ""
        assert program.here("run", "goal", "-p", **with_api(program, api)).code == 0
        (before,) = program.here("sessions", "list", "--json").json
        bad = program.here("resume", before["id"], "more", "--allowed-tools", "Bash(git", **with_api(program, api))
        assert bad.code == ExitCode.USAGE
        assert program.here("sessions", "list", "--json").json == [before]


def test_a_session_whose_owner_died_before_its_first_message_works_on_its_goal(program: Program) -> None:
    place = program.home / "data"
    place.mkdir(parents=True)
    database = Database.open(place / "coordinator.db")
    me = leases.this_owner()
    dead = Owner(me.pid, me.started_at - 1_000, me.host)
    ids = []
    for goal in ("find the cause", "find the place"):
        made = database.write(lambda conn, goal=goal: sessions.create(
            conn, goal=goal, cwd=str(program.cwd), model=None, options={}
        ))  # fmt: skip
        database.write(lambda conn, id=made.id: leases.acquire(conn, id, dead, 0.0, ttl=-1.0))
        ids.append(made.id)
    database.close()
    with FakeAPI("it was the cache") as api:
        plain = program.here("resume", ids[0], "-p", **with_api(program, api))
        more = program.here("resume", ids[1], "be quick", "-p", **with_api(program, api))
        asked = [request.last_user_text for request in api.requests]
    assert (plain.code, plain.out) == (more.code, more.out) == (0, "it was the cache\n"), plain.err + more.err
    assert "find the cause" in asked[0]
    assert "find the place" in asked[1] and "be quick" in asked[1]


def test_what_comes_while_the_work_is_verified_is_read_before_the_session_ends(program: Program) -> None:
    """A message to an ended worker and one to the session, sent by the verification itself: the last moment there is."""
    send = " ".join(program.command("send"))
    verify = program.cwd / "verify.sh"
    verify.write_text(
        "test -e sent && exit 0; touch sent\n"
        f"{send} scout 'look again' || exit 1\n{send} $COORDINATOR_SESSION_ID 'and another thing' || exit 1\n"
    )

    def boss(request):
        if request.turns == 0:
            return message("starting", spawn("one", name="scout"))
        return message(f"told of {len(notified(request))}, {'another thing' in request.user_text}")

    with FakeAPI(fleet(boss, "a report")) as api:
        ran = program.here(
            "run", "goal", "--verify", f"sh {verify}", "--output-format", "json", "--permission-mode", "bypassPermissions",
            **with_api(program, api),
        )  # fmt: skip
    assert ran.code == 0, ran.err
    assert ran.json["result"] == "told of 2, True"
    assert [task["status"] for task in ran.json["tasks"]] == ["completed", "completed"]
    waiting = program.here("db", "sql", "SELECT count(*) AS n FROM deliveries WHERE status = 'waiting'", "--json").json
    assert waiting == [{"n": 0}]


def test_what_comes_while_the_answer_is_shaped_is_in_the_answer(program: Program) -> None:
    gate = Gate()
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

    def boss(request):
        if "fits the required schema" not in request.user_text:
            return message("working")
        n = 1 + ("wait for this" in request.user_text)
        return message(text(f'{{"n": {n}', gate, "}"))

    with FakeAPI(boss) as api:
        process = start(program, api, "run", "goal", "--json-schema", json.dumps(schema), "--output-format", "json")
        gate.wait_reached(timeout=20)
        session_id = program.here("sessions", "list", "-q").out.strip()
        assert program("send", session_id, "wait for this").out == "queued\n"
        gate.open()
        out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert json.loads(out)["structured_output"] == {"n": 2}
