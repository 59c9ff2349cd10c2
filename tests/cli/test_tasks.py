"""`coordinator tasks …` over a seeded store, in processes of their own."""

from __future__ import annotations

import subprocess
import time

import pytest

from coordinator.views.exit_codes import ExitCode
from tasks.ids import TaskType
from tests.cli.program import Program
from tests.cli.seed import HOSTILE, Seed, seeded

FIELDS = [
    "id", "agent_id", "session_id", "parent_id", "type", "status", "description", "name", "agent", "model", "created_at",
    "started_at", "ended_at", "duration_ms", "tool_uses", "input_tokens", "output_tokens", "total_tokens", "cost_usd",
    "last_activity", "idle_ms", "attempt", "end_reason", "error", "needs_approval",
]  # fmt: skip
MORE_FIELDS = ["prompt", "result", "worktree", "branch", "activities", "output_file"]


def all_states(seed: Seed) -> dict[str, str]:
    """A task in each stored state; id by status."""
    tasks = {
        status: seed.task(f"a {status} one", claim=status != "pending")
        for status in ("pending", "running", "completed", "failed", "killed")
    }
    seed.progress(tasks["running"], "Read a.py", "Grep x", cost_usd=None)
    seed.finish(tasks["completed"])
    seed.finish(tasks["failed"], "failed", error="it broke", error_class="server", retryable=True)
    from tasks import registry

    seed.database.write(
        lambda conn: registry.kill(conn, tasks["killed"].id, by="user", notify=True, end_reason="killed by user")
    )
    return {status: task.id for status, task in tasks.items()}


def test_the_list_has_the_documented_fields_in_every_state(program: Program) -> None:
    with seeded(program) as seed:
        ids = all_states(seed)
        rows = program.here("tasks", "list", "--json").json
    assert [list(row) for row in rows] == [FIELDS] * 5
    assert {row["status"]: row["id"] for row in rows} == ids
    assert [row["status"] for row in rows] == ["running", "pending", "failed", "killed", "completed"]
    running = rows[0]
    assert (running["cost_usd"], running["total_tokens"], running["last_activity"]) == (None, 2_500, "Grep x")
    assert running["idle_ms"] >= 0 and running["ended_at"] is None and running["started_at"].endswith("Z")


def test_screen_quiet_and_json_show_the_same_set(program: Program) -> None:
    with seeded(program) as seed:
        all_states(seed)
        for flags in (
            [],
            ["--status", "failed"],
            ["--status", "running", "--status", "killed"],
            ["-n", "2"],
            ["--session", seed.session_id],
        ):
            ids = [row["id"] for row in program.here("tasks", "list", "--json", *flags).json]
            assert program.here("tasks", "list", "-q", *flags).out.split() == ids
            assert [line.split()[0] for line in program.here("ps", *flags).out.splitlines()[1:]] == ids


def test_an_interrupted_session_is_listed_for_a_day_and_with_all_for_ever(program: Program) -> None:
    with seeded(program, dead=True) as old, seeded(program, dead=True) as fresh, seeded(program) as running:
        tasks = {name: seed.task(name).id for name, seed in (("old", old), ("fresh", fresh), ("running", running))}
        two_days_ago = time.time() - 2 * 86_400
        old.database.write(
            lambda conn: conn.execute(
                "UPDATE sessions SET updated_at = :at, heartbeat_at = :at WHERE id = :id", at=two_days_ago, id=old.session_id
            )
        )
        for arguments, shown in (
            ([], {"fresh", "running"}), (["--all"], set(tasks)), (["--session", old.session_id], {"old"}),
            (["--status", "interrupted"], {"fresh"}), (["--status", "interrupted", "--all"], {"old", "fresh"}),
        ):  # fmt: skip
            assert {row["description"] for row in program.here("ps", "--json", *arguments).json} == shown
        assert set(program.here("ps", "-q").out.split()) == {tasks["fresh"], tasks["running"]}


def test_a_task_whose_owner_is_gone_is_shown_as_interrupted_and_stored_as_it_was(program: Program) -> None:
    with seeded(program, dead=True) as seed:
        task = seed.task()
        done = seed.task()
        seed.finish(done)
        rows = {row["id"]: row["status"] for row in program.here("tasks", "list", "--json").json}
        assert rows == {task.id: "interrupted", done.id: "completed"}
        assert program.here("tasks", "list", "-q", "--status", "interrupted").out.split() == [task.id]
        assert program("db", "sql", f"SELECT status FROM tasks WHERE id = '{task.id}'", "--json").json == [
            {"status": "running"}
        ]
        waited = program("wait", task.id)
        assert (waited.code, waited.out) == (ExitCode.FAILED, f"{task.id} interrupted\n")
        assert f"coordinator resume {seed.session_id}" in waited.err


def test_tasks_of_ended_sessions_are_listed_only_when_asked_for(program: Program) -> None:
    with seeded(program) as seed:
        task = seed.task()
        seed.finish(task)
        seed.end()
        assert program.here("tasks", "list", "--json").json == []
        assert program.here("tasks", "list", "-aq").out.split() == [task.id]
        assert program.here("tasks", "list", "-q", "--session", seed.session_id).out.split() == [task.id]


def test_showing_a_task_has_more_fields_and_takes_any_reference(program: Program) -> None:
    with seeded(program) as seed:
        task = seed.task("find it", name="finder", prompt="look\nhere")
        seed.progress(task, "Read a.py")
        seed.finish(task, result="found")
        for ref in (task.id, task.id[:6], "finder"):
            row = program.here("tasks", "show", ref, "--json").json
            assert list(row) == FIELDS + MORE_FIELDS
            assert (row["id"], row["prompt"], row["result"], row["activities"]) == (
                task.id,
                "look\nhere",
                "found",
                ["Read a.py"],
            )
        assert len(program.here("tasks", "show", task.id, "finder", "--json").json) == 2
        assert "look\nhere\n" in program.here("tasks", "show", "finder").out


def test_an_export_as_lines_is_the_session_and_then_each_message_in_order(program: Program) -> None:
    with seeded(program) as seed:
        task = seed.task()
        seed.say(seed.session_id, {"type": "text", "text": "I start."})
        seed.say(task.agent_id, {"type": "text", "text": "I look."}, task_id=task.id)
        seed.say(seed.session_id, {"type": "text", "text": "I wait."})
        session, *rows = program("sessions", "export", seed.session_id, "--format", "jsonl").lines
        whole = program("sessions", "export", seed.session_id).json
    assert (session["type"], session["id"], [row["id"] for row in session["tasks"]]) == ("session", seed.session_id, [task.id])
    assert {row["type"] for row in rows} == {"message"}
    assert [(row["agent_id"], row["content"][0]["text"]) for row in rows] == [
        (seed.session_id, "I start."), (seed.session_id, "I wait."), (task.agent_id, "I look."),
    ]  # fmt: skip
    assert [{**message, "type": "message"} for told in whole["transcripts"] for message in told["messages"]] == rows


def test_an_ambiguous_id_is_exit_code_2_with_the_candidates(program: Program) -> None:
    with seeded(program) as seed:
        ids = {seed.task(id="aaaaaaaa1").id, seed.task(id="aaaaaaaa2").id}
        ran = program.here("tasks", "show", "aaaa")
    assert (ran.code, ran.out) == (ExitCode.USAGE, "")
    assert ids == {line.strip() for line in ran.err.splitlines()[1:]}


def test_what_models_wrote_is_shown_literally(program: Program) -> None:
    with seeded(program) as seed:
        task = seed.task(HOSTILE, prompt=HOSTILE)
        seed.progress(task, HOSTILE)
        seed.say(task.agent_id, {"type": "text", "text": HOSTILE}, task_id=task.id)
        seed.finish(task, "failed", result=HOSTILE, error=HOSTILE, error_class="server")
        for command in (["ps"], ["tasks", "show", task.id], ["logs", task.id], ["tasks", "show", task.id, "--json"], ["ps", "--json"],
                        ["sessions", "show", seed.session_id], ["sessions", "export", seed.session_id, "--format", "markdown"]):  # fmt: skip
            ran = program(*command, FORCE_COLOR="1", COLUMNS="40")
            assert ran.code == 0, ran.err
            assert "\x1b" not in ran.out and "\x9b" not in ran.out, command
            assert "[bold]markup[/bold]" in ran.out, command


def test_piping_the_list_into_head_is_quiet(program: Program) -> None:
    with seeded(program) as seed:
        for n in range(30):
            seed.task(f"work {n} " + "x" * 3_000, claim=False)
    command = " ".join(["exec", *program.command("tasks", "list")])
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; ({command}) | head -1"], capture_output=True, text=True, env=program.environment(),
        cwd=program.cwd, timeout=50,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ID")


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        ({"status": "completed"}, ExitCode.DONE),
        ({"status": "failed", "error_class": "server", "end_reason": "error"}, ExitCode.FAILED),
        ({"status": "failed", "error_class": "budget", "end_reason": "budget"}, ExitCode.BUDGET),
        ({"status": "failed", "error_class": "max_turns", "end_reason": "max_turns"}, ExitCode.LIMIT),
        ({"status": "failed", "error_class": "authentication", "end_reason": "error"}, ExitCode.NOT_AUTHENTICATED),
    ],
)
def test_waiting_exits_with_the_tasks_own_code(ended: dict[str, str], code: ExitCode, program: Program) -> None:
    with seeded(program) as seed:
        task, other = seed.task(), seed.task()
        seed.finish(task, **ended)
        seed.finish(other)
        assert program("wait", other.id).code == ExitCode.DONE
        assert program("wait", other.id, task.id).code == code
        assert program("logs", "-f", task.id).code == code


def test_waiting_ends_when_the_task_does(program: Program) -> None:
    with seeded(program) as seed:
        task = seed.task()
        process = program.start("tasks", "wait", task.id, "--json")
        seed.progress(task, "Read")
        seed.finish(task)
        out, err = process.communicate(timeout=50)
    assert process.returncode == 0, err
    assert '"status": "completed"' in out


def test_waiting_runs_out_of_time_with_124_and_any_needs_only_one(program: Program) -> None:
    with seeded(program) as seed:
        running, done = seed.task(), seed.task()
        seed.finish(done)
        ran = program("wait", running.id, "--timeout", "0.1s")
        assert (ran.code, ran.out) == (ExitCode.WAIT_TIMEOUT, f"{running.id} running\n")
        assert program("wait", "--any", running.id, done.id).code == ExitCode.DONE


def test_logs_show_a_conversation_and_follow_it_to_its_end(program: Program) -> None:
    with seeded(program) as seed:
        task = seed.task()
        seed.say(task.agent_id, {"type": "text", "text": "look for x"}, role="user", task_id=task.id)
        seed.say(
            task.agent_id,
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "t1", "name": "Grep", "input": {"pattern": "x"}},
            task_id=task.id,
        )
        process = program.start("logs", "-f", task.id)
        assert process.stdout is not None
        assert process.stdout.readline() == "▶ look for x\n"
        seed.say(
            task.agent_id, {"type": "tool_result", "tool_use_id": "t1", "content": "a.py:1: x"}, role="user", task_id=task.id
        )
        seed.finish(task)
        rest = process.stdout.read()
        assert process.wait(timeout=50) == 0
        assert rest == 'I look.\n→ Grep {"pattern":"x"}\n← a.py:1: x\n'
        assert program.here("logs", task.id, "--tail", "1").out == "← a.py:1: x\n"
        assert program.here("logs", task.id, "--kind", "tool").out.splitlines() == ['→ Grep {"pattern":"x"}', "← a.py:1: x"]
        assert [line["seq"] for line in program.here("logs", task.id, "--json").lines] == [0, 1, 2]


def test_logs_end_with_why_a_task_failed(program: Program) -> None:
    with seeded(program) as seed:
        broke, done = seed.task(), seed.task()
        for task in (broke, done):
            seed.say(task.agent_id, {"type": "text", "text": "I look."}, task_id=task.id)
        seed.finish(broke, "failed", error="it broke", error_class="server")
        seed.finish(done)
        assert program.here("logs", broke.id).out == program("logs", "-f", broke.id).out == "I look.\n✘ failed: it broke\n"
        assert program.here("logs", done.id).out == "I look.\n"
        assert program.here("logs", broke.id, "--kind", "text").out == "I look.\n"
        assert program.here("logs", broke.id, done.id).out.splitlines()[-1] == f"[{broke.id}] ✘ failed: it broke"
        assert len(program.here("logs", broke.id, "--json").lines) == 1


def test_sending_says_what_really_happened(program: Program) -> None:
    with seeded(program) as seed:
        running, done, killed = seed.task(name="runs"), seed.task(), seed.task()
        seed.finish(done)
        assert program("send", "runs", "look", "again").out == "queued\n"
        ran = program("send", done.id, "more")
        new = ran.out.removeprefix("continued ").strip()
        assert program.here("tasks", "show", new, "--json").json["agent_id"] == done.agent_id
        assert program("kill", killed.id, "-t", "0.1").code == 0
        refused = program("send", killed.id, "again")
        assert refused.code == ExitCode.FAILED and "killed" in refused.err
        assert program("send", running.id, " ").code == ExitCode.USAGE
        assert program("send", seed.session_id, "to the coordinator").out == "queued\n"
        seed.finish(command := seed.task("a build", type=TaskType.LOCAL_BASH))
        unread = program("send", command.id, "hurry")
        assert unread.code == ExitCode.USAGE and "reads no messages" in unread.err
        waiting = program(
            "db", "sql", "SELECT agent_id, body FROM deliveries WHERE kind = 'message' ORDER BY position", "--json"
        ).json
    assert waiting == [
        {"agent_id": running.agent_id, "body": "look again"},
        {"agent_id": seed.session_id, "body": "to the coordinator"},
    ]


def test_killing_a_task_of_a_dead_owner_ends_it_and_killing_again_is_no_error(program: Program) -> None:
    with seeded(program, dead=True) as seed:
        task = seed.task()
        assert program("kill", task.id).out == f"{task.id} killed\n"
        again = program("kill", task.id)
        assert (again.code, again.out) == (0, f"{task.id} had ended: killed\n")


def test_retrying_makes_a_new_task_on_the_same_conversation(program: Program) -> None:
    with seeded(program) as seed:
        task = seed.task()
        assert program("tasks", "retry", task.id).code == ExitCode.FAILED
        seed.finish(task, "failed", error="it broke", error_class="server")
        done = seed.task()
        seed.finish(done)
        refused = program("tasks", "retry", task.id, done.id)
        assert (refused.code, refused.out) == (ExitCode.FAILED, "") and f"{done.id} is completed" in refused.err
        new = program("tasks", "retry", task.id).out.strip()
        row = program.here("tasks", "show", new, "--json").json
    assert (row["status"], row["agent_id"]) == ("pending", task.agent_id)
    assert "it broke" in row["prompt"]


def test_a_page_is_the_beginning_of_the_list(program: Program) -> None:
    with seeded(program) as seed:
        all_states(seed)
        for flags in ([], ["--status", "completed"], ["--status", "failed", "--status", "killed"]):
            everything = program.here("ps", "--all", "-q", *flags).out.split()
            assert everything
            for limit in (1, 2, len(everything)):
                assert program.here("ps", "--all", "-q", "-n", str(limit), *flags).out.split() == everything[:limit]
