"""What `coordinator serve` answers, over HTTP to a real process: the command line's objects, events without a gap, one answer."""

from __future__ import annotations

import os
import signal
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from coordinator.cli.commands import serve as command
from coordinator.cli.context import Context
from coordinator.cli.failures import Failure
from coordinator.views.exit_codes import ExitCode
from tasks import approvals, events
from tasks.records import NewApproval
from tests.cli.program import Program
from tests.cli.seed import HOSTILE, Seed, seeded
from tests.cli.test_run_api import until
from tests.web.serving import browser_that_notes, serving


def asked(seed: Seed, command: str = "touch x", task: Any = None) -> str:
    """A call that waits for a person; its id."""
    new = NewApproval(
        session_id=seed.session_id, agent_id=task.agent_id if task else seed.session_id, task_id=task and task.id,
        fence=seed.fence, tool_use_id=os.urandom(4).hex(), tool="Bash", input={"command": command}, digest=os.urandom(4).hex(),
        shown=command, reason="it writes", suggested_rule="Bash(touch:*)",
    )  # fmt: skip
    return seed.database.write(lambda conn: approvals.ask(conn, new)).id


def still(rows: Any) -> Any:
    """Without what differs at every look."""
    return [{k: v for k, v in row.items() if k not in ("duration_ms", "idle_ms")} for row in rows]


def test_lists_are_the_objects_of_the_command_line(program: Program) -> None:
    with seeded(program, goal=HOSTILE) as seed:
        running = seed.task(HOSTILE, name="one")
        seed.progress(running, HOSTILE)
        done = seed.task("two")
        seed.finish(done, result=HOSTILE)
        seed.say(running.agent_id, {"type": "text", "text": HOSTILE}, task_id=running.id)
        seed.spend("model-x", 0.5, running)
        asked(seed, task=running)
        with serving(program) as page:
            shown = {path: page(path).json for path in ("/api/sessions", "/api/tasks", "/api/tasks?all=1", "/api/inbox")}
            one, two = page(f"/api/sessions/{seed.session_id}").json, page(f"/api/tasks/{running.id}").json
            lanes = page(f"/api/sessions/{seed.session_id}/timeline").json
            cost = page("/api/cost?by=model").json
            both = page(f"/api/compare?a={seed.session_id}&b={seed.session_id}").json
            status = page("/api/tasks?status=completed").json
    assert shown["/api/sessions"] == program.here("sessions", "list", "--json").json
    assert still(shown["/api/tasks"]) == still(program.here("ps", "--json").json)
    assert still(shown["/api/tasks?all=1"]) == still(program.here("ps", "--all", "--json").json)
    assert shown["/api/inbox"] == program.here("inbox", "--json").json
    listed = program.here("sessions", "show", seed.session_id, "--json").json
    assert still(one["tasks"]) == still(listed["tasks"]) and {**one, "tasks": 0} == {**listed, "tasks": 0}
    assert still([two]) == still([program.here("show", running.id, "--json").json])
    assert [lane["id"] for lane in lanes] == [seed.session_id, running.id, done.id]
    assert cost == program.here("cost", "--by", "model", "--json").json
    assert set(both) == {"sessions", "tasks", "result_diff"}
    assert [row["id"] for row in status] == [done.id]


def test_what_only_the_page_shows(program: Program) -> None:
    long = "x" * 1_000_000
    with seeded(program) as seed:
        task = seed.task("edits", cwd=str(program.cwd))
        calls = [
            {"type": "tool_use", "id": f"t{n}", "name": name, "input": {field: "a.py"}}
            for n, (name, field) in enumerate((("Read", "file_path"), ("Edit", "file_path"), ("Bash", "command")))
        ]
        seed.say(task.agent_id, *calls, task_id=task.id)
        for n in range(4):
            seed.say(task.agent_id, {"type": "text", "text": f"{n} {long}"}, task_id=task.id)
        seed.say(seed.session_id, {"type": "text", "text": "of the coordinator"})
        seed.spend("model-x", None, task)
        with serving(program) as page:
            log = page(f"/api/sessions/{seed.session_id}/log").json
            older = page(f"/api/sessions/{seed.session_id}/log?limit=2&before={_place(log[2])}").json
            newer = page(f"/api/sessions/{seed.session_id}/log?limit=2&after={_place(log[2])}").json
            own = page(f"/api/sessions/{seed.session_id}/log?task={seed.session_id}").json
            whole = page(f"/api/agents/{task.agent_id}/messages/4").json
            nothing = page(f"/api/agents/{task.agent_id}/messages/400")
            files = page(f"/api/tasks/{task.id}/files").json
            money, usage = page(f"/api/sessions/{seed.session_id}/money").json, page(f"/api/tasks/{task.id}/usage").json
            diff = page(f"/api/tasks/{task.id}/diff")
            happened = page(f"/api/sessions/{seed.session_id}/events?after=1").json
    assert [one["seq"] for one in log] == [0, 1, 2, 3, 4, 0]
    assert (older, newer) == (log[:2], log[3:5])
    assert own == log[5:]
    assert [len(part["text"]) for part in log[4]["parts"]] == [4_000] and log[4]["parts"][0]["length"] == 1_000_002
    assert whole["parts"][0]["text"] == f"3 {long}" and nothing.status == 404
    assert [(one["path"], one["reads"], one["edits"]) for one in files] == [("a.py", 1, 1)]
    assert (money["cost_usd"], money["cache_share"]) == (None, pytest.approx(1_000 / 1_100))
    assert usage[0]["model"] == "model-x" and usage[0]["cache_read_tokens"] == 1_000
    assert diff.status == 409 and "has no worktree" in diff.json["error"]
    assert [one["kind"] for one in happened] == ["task_created", "task_running"]


def _place(line: Any) -> str:
    return f"{line['at']!r}:{line['agent_id']}:{line['seq']}"


def test_a_feed_goes_on_behind_the_event_that_was_seen_last(program: Program) -> None:
    with seeded(program) as seed, serving(program) as page:
        with page.events(f"?session={seed.session_id}") as first:
            kind, _, update = next(first)
            assert (
                kind == "update" and update["whole"] and [one["id"] for one in update["sessions"]["rows"]] == [seed.session_id]
            )
            task = seed.task("one")
            seen = []
            while len(seen) < 2:
                kind, id, data = next(first)
                seen += [(id, data["kind"])] if kind == "event" else []
        seed.say(task.agent_id, {"type": "text", "text": "missed"}, task_id=task.id)
        seed.finish(task)
        with page.events(f"?session={seed.session_id}", last_event_id=str(seen[0][0])) as second:
            again = [next(second) for _ in range(3)]
            seed.say(task.agent_id, {"type": "text", "text": "live"}, task_id=task.id)
            _, _, live = next(second)
        stored = seed.database.read(lambda conn: events.since(conn, seen[0][0]))
    assert [kind for _, kind in seen] == ["task_created", "task_running"]
    assert [(kind, id) for kind, id, _ in again] == [*(("event", event.id) for event in stored), ("update", None)]
    assert [row["status"] for row in again[-1][2]["tasks"]["rows"]] == ["completed"]
    assert [one["parts"][0]["text"] for one in live["log"]] == ["live"] and not live["whole"]
    assert "sessions" not in live and "tasks" not in live, "only what changed is sent"


def test_the_first_answer_counts_and_the_second_is_told(program: Program) -> None:
    with seeded(program) as seed, serving(program) as page:
        call, denied, ruled = (asked(seed, f"touch {name}") for name in "abc")
        with ThreadPoolExecutor(4) as pool:
            paths = [f"/api/approvals/{call}/{word}" for word in ("approve", "deny") * 2]
            answers = list(pool.map(page.post, paths))
        told = page.post(f"/api/approvals/{denied}/deny", why="not here")
        other = page.post(f"/api/approvals/{ruled}/approve", rule="Bash(rm:*)")
        always = page.post(f"/api/approvals/{ruled}/approve", always=True)
        unknown = page.post("/api/approvals/nowhere/approve")
        left = page("/api/inbox").json
        records = {one.id: one for one in seed.database.read(lambda conn: approvals.by_id(conn, [call, denied, ruled]))}
    assert sorted(answer.status for answer in answers) == [200, 409, 409, 409]
    assert all("already" in answer.json["error"] for answer in answers if answer.status == 409)
    assert told.status == 200 and "said: not here" in str(records[denied].note)
    assert other.status == 400 and "does not cover" in other.json["error"]
    assert always.json[0]["rule"] == "Bash(touch:*)" and records[ruled].rule == "Bash(touch:*)"
    assert (unknown.status, left) == (404, [])


def test_messages_are_queued_and_tasks_end(program: Program) -> None:
    with seeded(program, dead=True) as seed, serving(program) as page:
        task = seed.task("one", claim=False)
        sent = page.post(f"/api/tasks/{task.id}/send", message="look again")
        empty = page.post(f"/api/tasks/{task.id}/send", message=" ")
        wrong = page.post(f"/api/tasks/{task.id}/send", message=7)
        killed = page.post(f"/api/tasks/{task.id}/kill")
        again = page.post(f"/api/tasks/{task.id}/kill")
        dead = page.post(f"/api/tasks/{task.id}/send", message="still there?")
        session = page.post(f"/api/sessions/{seed.session_id}/kill")
        nobody = page.post("/api/tasks/nowhere/kill")
    assert sent.json == {"words": "queued", "undriven": seed.session_id}
    assert (empty.status, wrong.status) == (400, 400)
    assert (killed.json["status"], killed.json["changed"], killed.json["ended"]) == ("killed", True, True)
    assert again.json["changed"] is False
    assert dead.status == 409 and "does not revive" in dead.json["error"]
    assert session.json["changed"] is True and session.json["ended"] is True
    assert nobody.status == 404


def test_who_may_ask(program: Program) -> None:
    with seeded(program) as seed, serving(program) as page:
        call = asked(seed)
        approve = f"/api/approvals/{call}/approve"
        refused = [
            page("/api/sessions", host="coordinator.example"),
            page("/", host=f"127.0.0.1:{page.port + 1}"),
            page("/api/sessions", origin="http://evil.example"),
            page("/api/sessions", origin="null"),
            page("/api/sessions", sec_fetch_site="cross-site", sec_fetch_mode="no-cors"),
            page(approve, "POST", {}, origin=f"http://localhost:{page.port + 1}"),
        ]
        unknown = [
            page(approve, "POST", {}, authorization=""),
            page(approve, "POST", {}, authorization="Bearer not-the-token"),
            page(approve, "POST", {}, authorization="Basic " + page.token),
            page("/api/sessions", authorization="Bearer not-the-token"),
        ]
        bad = [
            page(approve, "POST", b"x=1", content_type="application/x-www-form-urlencoded"),
            page(approve, "POST", b"{" * 10),
            page(approve, "POST", b"[]"),
            page(approve, "POST", b" " * 300_000),
            page("/api/cost?by=nothing"), page("/api/tasks?limit=-1"), page(f"/api/sessions/{seed.session_id}/log?before=x"),
        ]  # fmt: skip
        fine = [
            page("/api/sessions", authorization=""),
            page("/api/sessions", host=f"localhost:{page.port}"),
            page("/api/sessions", origin=page.url, sec_fetch_site="same-origin"),
            page("/", sec_fetch_site="cross-site", sec_fetch_mode="navigate", authorization=""),
        ]
        waits = page("/api/inbox").json
    assert [answer.status for answer in refused] == [403] * len(refused)
    assert [answer.status for answer in unknown] == [401] * len(unknown)
    assert [answer.status for answer in bad] == [415, 400, 400, 413, 400, 400, 400]
    assert [answer.status for answer in fine] == [200] * len(fine)
    assert [one["id"] for one in waits] == [call], "nothing of it was an answer"
    for answer in (*refused, *unknown, *fine):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff" and "access-control-allow-origin" not in answer.headers


@pytest.mark.skipif(os.geteuid() != 0 or not Path("/proc/net/tcp").exists(), reason="only root can be somebody else here")
def test_another_user_of_the_machine_reads_nothing_without_the_token(program: Program) -> None:
    with seeded(program), serving(program) as page:
        mine = page("/api/sessions", authorization="")
        connection = page.connection()
        os.seteuid(65534)  # whose a socket is says who makes it
        try:
            connection.connect()
        finally:
            os.seteuid(0)
        connection.request("GET", "/api/sessions")
        theirs = connection.getresponse().status
        connection.close()
    assert (mine.status, theirs) == (200, 401)


def test_a_start_says_where_and_a_second_one_what_is_in_its_way(program: Program) -> None:
    with serving(program) as page:
        taken = program("serve", "--port", str(page.port))
        token = (program.home / "data/serve-token").read_text().strip()
        mode = stat.S_IMODE((program.home / "data/serve-token").stat().st_mode)
        with page.events():
            page.process.send_signal(signal.SIGINT)
            code = page.process.wait(20)
    with serving(program, "--open", BROWSER="") as again:
        kept = again.token
        assert again.process.stderr is not None
        said = again.process.stderr.readline()
        again.process.send_signal(signal.SIGTERM)
        terminated = again.process.wait(20)
    weak = program("serve", "--token", "short")
    assert (taken.code, taken.out) == (ExitCode.FAILED, "") and "--port 0 takes" in taken.err.replace(
        "and --port 0 one", "--port 0 takes"
    )
    assert len(taken.err.splitlines()) == 1
    assert (token, mode) == (page.token, 0o600) and kept == token
    assert said == "no browser can be opened here: open the address above in one on this machine\n"
    assert (code, terminated) == (ExitCode.DONE, ExitCode.TERMINATED)
    assert weak.code == ExitCode.USAGE


def test_a_browser_is_given_a_code_that_stands_for_the_token_once(program: Program) -> None:
    """Every user of the machine can read what a process was started with."""
    with serving(program, "--open", BROWSER=browser_that_notes(program)) as page:
        until((program.home / "opened").exists)
        url, _, code = (program.home / "opened").read_text().strip().partition("/#code=")
        answers = [page("/api/token", "POST", {"code": one}, authorization="") for one in ("x", code, code)]
        elsewhere = page("/api/token", "POST", {"code": code}, authorization="", origin="http://evil.example")
    assert url == page.url and page.token not in (program.home / "opened").read_text()
    assert [answer.status for answer in answers] == [401, 200, 401] and answers[1].json == {"token": page.token}
    assert "was used before" in answers[2].json["error"] and elsewhere.status == 403


def test_without_the_extra_a_line_says_what_to_install(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "uvicorn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "coordinator.web.server", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert command.serve.callback is not None
    with pytest.raises(Failure, match=r"pip install 'coordinator\[web\]'") as failed:
        command.serve.main(["--port", "0"], standalone_mode=False, obj=Context())
    assert failed.value.code == ExitCode.USAGE


def test_static_files_are_our_own_and_nothing_else(program: Program) -> None:
    with serving(program) as page:
        start = page("/", authorization="")
        outside = [
            page(path).status for path in ("/static/../server.py", "/static/%2e%2e/server.py", "/static/", "/api/nothing")
        ]
    assert start.status == 200 and start.headers["content-type"].startswith("text/html")
    assert outside == [404] * 4
