"""`coordinator run`, `resume`, `chat` with the offline model, as a person without a key uses them."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest

from coordinator.views.exit_codes import ExitCode
from tests.cli.program import Program
from tests.cli.test_tasks import FIELDS

RESULT_FIELDS = {
    "type", "subtype", "is_error", "session_id", "result", "terminal_reason", "stop_reason", "num_turns", "duration_ms", "duration_api_ms",
    "total_cost_usd", "usage", "model_usage", "modelUsage", "permission_denials", "tasks",
}  # fmt: skip


@pytest.fixture
def project(program: Program) -> Program:
    """A small repository to survey."""
    (program.cwd / "area.py").write_text("def area(radius):\n    # TODO: check radius\n    return 3 * radius * radius\n")
    (program.cwd / "test_area.py").write_text("from area import area\n\n\ndef test_area():\n    assert area(1) == 3\n")
    subprocess.run(["git", "init", "-q", str(program.cwd)], check=True)
    return program


def test_the_answer_is_on_stdout_and_what_happens_on_stderr(project: Program) -> None:
    ran = project("run", "--offline", "where is area computed")
    assert ran.code == 0, ran.err
    assert ran.out.startswith("# Survey")
    assert "`area.py:1` `def area(radius):`" in ran.out
    assert "\x1b" not in ran.out + ran.err
    assert len(re.findall(r"^✔ a\w{8} completed", ran.err, re.MULTILINE)) == 5
    assert "no language model" in ran.err


def test_json_is_one_object_with_the_documented_fields(project: Program) -> None:
    ran = project("run", "--offline", "--output-format", "json", "where is area computed")
    assert ran.out.count("\n") == 1
    result = ran.json
    assert set(result) == RESULT_FIELDS
    assert (result["type"], result["subtype"], result["is_error"], result["terminal_reason"]) == (
        "result",
        "success",
        False,
        "completed",
    )
    assert [list(task) for task in result["tasks"]] == [FIELDS] * 5
    assert {task["status"] for task in result["tasks"]} == {"completed"}
    listed = project.here("ps", "-a", "--json", "--session", result["session_id"]).json
    assert {task["id"]: task for task in listed} == {task["id"]: task for task in result["tasks"]}
    assert ran.err == ""


def test_stream_json_begins_with_init_ends_with_the_result_and_tells_the_tree(project: Program) -> None:
    ran = project("run", "--offline", "--output-format", "stream-json", "--include-partial-messages", "where is area computed")
    lines = ran.lines
    assert (lines[0]["type"], lines[0]["subtype"]) == ("system", "init")
    assert {"Agent", "SendMessage", "TaskStop"} == set(lines[0]["tools"])
    assert lines[-1]["type"] == "result" and set(lines[-1]) == RESULT_FIELDS | {"uuid"}
    assert {line["session_id"] for line in lines} == {lines[-1]["session_id"]}
    calls = {
        block["id"]
        for line in lines
        if line["type"] == "assistant" and line["parent_tool_use_id"] is None
        for block in line["message"]["content"]
        if block["type"] == "tool_use" and block["name"] == "Agent"
    }
    parents = {line["parent_tool_use_id"] for line in lines if line["type"] in ("assistant", "user")} - {None}
    assert parents == calls and len(calls) == 5
    by_subtype = {
        kind: [line["task_id"] for line in lines if line.get("subtype") == kind]
        for kind in ("task_started", "task_notification")
    }
    ids = {task["id"] for task in lines[-1]["tasks"]}
    assert {kind: (set(found), len(found)) for kind, found in by_subtype.items()} == dict.fromkeys(by_subtype, (ids, 5))
    for id in ids:
        told = [line["subtype"] for line in lines if line.get("task_id") == id]
        assert told[0] == "task_started" and told[-1] == "task_notification"
    assert any(line["type"] == "stream_event" for line in lines)
    sources = {line.get("source") for line in lines if line["type"] == "user" and line["parent_tool_use_id"] is None}
    assert "task_notification" in sources


def test_the_goal_comes_from_stdin_for_a_dash_and_from_a_pipe(project: Program) -> None:
    for arguments in (["run", "--offline", "-"], ["run", "--offline"], ["-p", "--offline"]):
        ran = project(*arguments, stdin="where is area computed\n")
        assert ran.code == 0 and "area.py:1" in ran.out


@pytest.mark.parametrize("arguments", [["run"], ["run", "--offline", " "], ["-p"], ["run", "--offline", "-"]])
def test_without_a_goal_it_is_a_usage_error(arguments: list[str], program: Program) -> None:
    ran = program(*arguments)
    assert (ran.code, ran.out) == (ExitCode.USAGE, "")
    assert ran.err.count("\n") == 1 and "goal" in ran.err


def test_without_a_key_it_says_what_to_set_and_begins_nothing(program: Program) -> None:
    for arguments in (["run", "goal"], ["chat", "goal"], ["run", "--bg", "goal"], ["do something"]):
        ran = program(*arguments)
        assert (ran.code, ran.out) == (ExitCode.NOT_AUTHENTICATED, "")
        assert ran.err.count("\n") == 1 and "ANTHROPIC_API_KEY" in ran.err and "--offline" in ran.err
    assert program.here("sessions", "list", "--json").json == []


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--max-workers", "0"], "--max-workers"),
        (["--timeout", "soon"], "duration"),
        (["--permission-mode", "yolo"], "--permission-mode"),
        (["--output-format", "xml"], "--output-format"),
        (["--session-id", "../../etc"], "--session-id"),
        (["--json-schema", "{"], "--json-schema"),
        (["--json-schema", "nowhere.json"], "nowhere.json"),
        (["--json-schema", '{"type":12}'], "no valid JSON schema"),
        (["--cwd", "nowhere"], "nowhere"),
        (["--allowed-tools", "Bash(git"], "Bash(git"),
        (["--continue"], "no earlier session"),
    ],
)
def test_a_flag_that_cannot_be_used_is_named(flags: list[str], said: str, program: Program) -> None:
    ran = program.here("run", "--offline", "goal", *flags)
    assert (ran.code, ran.out) == (ExitCode.USAGE, ""), ran
    assert said in ran.err and ran.err.count("\n") == 1, ran.err


def test_precedence_is_flag_then_variable_then_project_then_user(program: Program) -> None:
    def value(**environment: str) -> tuple[object, str]:
        rows = {row["name"]: row for row in program.here("config", "list", "--json", **environment).json}
        return rows["max_workers"]["value"], Path(rows["max_workers"]["origin"]).name

    assert value() == (8, "default")
    program.here("db", "upgrade")
    (program.home / "data/config.toml").write_text("max_workers = 2\n")
    assert value() == (2, "config.toml")
    (program.cwd / ".coordinator").mkdir()
    (program.cwd / ".coordinator/settings.toml").write_text('max_workers = 3\nverify = "make me a sandwich"\n')
    assert value() == (2, "config.toml")  # nobody trusts it
    program.here("trust")
    assert value() == (3, "settings.toml")
    (program.cwd / ".coordinator/settings.local.toml").write_text("max-workers = 4\n")
    program.here("trust")
    assert value() == (4, "settings.local.toml")
    assert value(COORDINATOR_MAX_WORKERS="5") == (5, "COORDINATOR_MAX_WORKERS")


def test_what_a_repository_asks_for_counts_only_when_trusted(program: Program) -> None:
    (program.cwd / ".coordinator").mkdir()
    (program.cwd / ".coordinator/settings.toml").write_text('permission_mode = "bypassPermissions"\nnonsense = 1\n')
    ran = program.here("config", "list", "--json")
    assert {row["name"]: row["value"] for row in ran.json}["permission_mode"] == "default"
    assert "permission_mode does not count" in ran.err and "nonsense" in ran.err
    assert program.here("trust").code == 0
    assert {row["name"]: row["value"] for row in program.here("config", "list", "--json").json}[
        "permission_mode"
    ] == "bypassPermissions"
    (program.cwd / ".coordinator/settings.toml").write_text("not toml")
    broken = program.here("run", "--offline", "goal")
    assert (broken.code, broken.err.count("\n")) == (ExitCode.USAGE, 1) and "settings.toml" in broken.err


def test_a_session_goes_on_where_it_was_by_id_and_as_the_newest_of_its_directory(project: Program) -> None:
    first = project.here("run", "--offline", "--output-format", "json", "--session-id", "mine-1", "where is area computed").json
    assert first["session_id"] == "mine-1"
    again = project.here("run", "--offline", "--session-id", "mine-1", "more")
    assert again.code == ExitCode.USAGE and "mine-1" in again.err
    over = project.here("resume", "mine-1")
    assert (over.code, over.out) == (0, "")
    assert over.err.splitlines()[-1] == 'session mine-1 has ended; a prompt goes on with it: coordinator resume mine-1 "…"'
    resumed = project.here("resume", "mine-1", "what about radius", "--output-format", "json").json
    assert resumed["session_id"] == "mine-1" and len(resumed["tasks"]) == 10
    continued = project.here("run", "--offline", "-c", "--fork-session", "--output-format", "json", "and now").json
    assert continued["session_id"] != "mine-1"
    assert project.here("sessions", "show", continued["session_id"], "--json").json["parent_id"] == "mine-1"


def test_a_run_in_the_background_prints_its_id_and_goes_on(project: Program) -> None:
    ran = project("run", "--offline", "--bg", "where is area computed")
    assert ran.code == 0, ran.err
    session = ran.out.strip()
    attached = project("attach", session)
    assert attached.code == 0
    assert project.here("sessions", "show", session, "--json").json["status"] == "ended"
    assert "# Survey" in (project.home / f"data/logs/{session}.log").read_text()


def test_a_run_whose_reader_went_away_still_does_its_work(project: Program) -> None:
    command = " ".join(["exec", *project.command("run", "--offline", "--output-format", "stream-json", "area")])
    done = subprocess.run(
        ["bash", "-c", f"({command}) | head -1"],
        capture_output=True,
        text=True,
        env=project.environment(),
        cwd=project.cwd,
        timeout=50,
    )
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)
    assert [row["status"] for row in project.here("sessions", "list", "--json").json] == ["ended"]


def test_a_chat_reads_lines_until_its_input_ends(project: Program) -> None:
    ran = project("chat", "--offline", stdin="where is area computed\n/quit\nnever read\n")
    assert ran.code == 0, ran.err
    assert "area.py:1" in ran.out
    assert "never read" not in project.here("sessions", "export", project.here("sessions", "list", "-q").out.strip()).out


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, ExitCode.TERMINATED), (signal.SIGHUP, ExitCode.TERMINATED)])
def test_a_terminated_chat_is_resumable(number: signal.Signals, code: ExitCode, project: Program) -> None:
    process = subprocess.Popen(
        project.command("chat", "--offline"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=project.cwd, env=project.environment(),
    )  # fmt: skip
    assert process.stderr is not None and process.stderr.readline().startswith("session s")
    process.send_signal(number)
    assert process.wait(timeout=20) == code
    assert "Traceback" not in process.stderr.read()
    (session,) = project.here("sessions", "list", "--json").json
    assert (session["status"], session["state"], session["driven"]) == ("open", "waiting for you", False)
    assert project("resume", session["id"], "where is area computed").code == 0


def test_plain_lines_without_colour_on_a_terminal_that_wants_none(project: Program) -> None:
    from tests.cli.test_console import on_a_terminal

    program = (
        "import os, sys\n"
        f"os.chdir({str(project.cwd)!r})\n"
        "from coordinator.cli.main import main\nmain(['run', '--offline', 'where is area computed'])"
    )
    written = on_a_terminal(program, **project.environment(NO_COLOR="1"))
    assert b"\x1b" not in written and b"# Survey" in written
    assert b"\x1b[" in on_a_terminal(program, **project.environment())
