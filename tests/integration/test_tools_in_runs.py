"""Tools in whole sessions: background commands, files that two workers edit, odd files, secrets in everything that is kept."""

from __future__ import annotations

import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.program import Program
from tests.cli.test_run_api import with_api
from tests.integration.harness import Bench
from tests.integration.scripts import by_turn, coordinator, fleet
from tests.support.fake_api import FakeAPI, Gate, Request, message, text, tool_use
from worker_agent.config import ToolSettings
from worker_agent.tools.base import Confine
from worker_agent.tools.confinement import Confinements, choose, native

SANDBOX = choose("auto")
needs_sandbox = pytest.mark.skipif(SANDBOX.means is None or bool(SANDBOX.means.lacks), reason=f"NOT TESTED: {SANDBOX.notice}")
KERNEL = native.find()[0]
KEY = "sk-ant-api03-0123456789abcdefghij"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def program(tmp_path: Path) -> Program:
    (tmp_path / "work").mkdir(exist_ok=True)
    return Program(tmp_path / "home", tmp_path / "work")


def bash(command: str, id: str = "t0", **more: Any) -> Any:
    return tool_use("Bash", {"command": command, **more}, id=id)


def result(api: FakeAPI, id: str) -> str:
    return next(request.tool_results[id] for request in reversed(api.requests) if id in request.tool_results)


def processes(word: str) -> list[str]:
    """Living processes with `word` in their command line or name."""
    lines = subprocess.run(["ps", "-eo", "pid,stat,args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in lines if word in line and " Z" not in line and "ps -eo" not in line]


# ── background commands ──────────────────────────────────────────────────────────────────────────────────────────────


def until_told(*calls: Any, final: str = "done") -> Any:
    """Makes the calls, then waits until as many notifications came."""

    def script(request: Request) -> Any:
        if request.turns == 0:
            return message(*calls)
        told = request.user_text.count("<task-notification>")
        return message(final if told >= len(calls) else "waiting")

    return script


def test_a_command_in_the_background_is_a_task_that_is_announced_with_its_output(bench: Bench) -> None:
    with FakeAPI(until_told(bash("echo out; echo err >&2; exit 3", run_in_background=True))) as api:
        outcome = bench.run(api, use_coordinator=False)
    (task,) = outcome.result["tasks"]
    assert (task["type"], task["status"]) == ("local_bash", "failed") and task["id"].startswith("b")
    assert task["id"] in result(api, "t0")
    notice = api.requests[-1].user_text
    assert f"<task-id>{task['id']}</task-id>" in notice and "exit code 3" in notice and "out\nerr" in notice


def test_a_command_in_the_background_ends_at_its_time_limit_with_all_it_started(bench: Bench) -> None:
    slow = bash("trap '' TERM; setsid sleep 86413 & sleep 86413", run_in_background=True, timeout=500)
    with FakeAPI(until_told(slow)) as api:
        outcome = bench.run(api, use_coordinator=False)
    (task,) = outcome.result["tasks"]
    assert task["status"] == "failed" and "the time limit of 0.5 s ran out" in api.requests[-1].user_text
    assert not processes("86413")


def test_a_command_in_the_background_that_floods_is_stopped_at_the_cap(bench: Bench) -> None:
    small = ToolSettings(bash_file_cap=200_000)
    options = bench.options(use_coordinator=False)
    config = type(options.config)(home=bench.home, tools=small, loop=options.config.loop)
    with FakeAPI(until_told(bash("yes", run_in_background=True))) as api:
        outcome = bench.run(api, use_coordinator=False, config=config)
    (task,) = outcome.result["tasks"]
    database = bench.database()
    with sqlite3.connect(bench.home / "coordinator.db") as conn:
        (file,) = conn.execute("select output_file from tasks where id = ?", (task["id"],)).fetchone()
    database.close()
    assert task["status"] == "failed" and 0 < os.path.getsize(file) <= 200_000
    assert "wrote more than" in api.requests[-1].user_text and not processes(" yes")


def test_a_command_in_the_background_ends_with_the_session(program: Program) -> None:
    gate = Gate()

    def script(request: Request) -> Any:
        return message(bash("sleep 86414", run_in_background=True)) if request.turns == 0 else message(text("x", gate, "y"))

    with FakeAPI(script) as api:
        process = program.start(
            "run", "goal", "--no-coordinator", "--permission-mode", "bypassPermissions", **with_api(program, api)
        )
        gate.wait_reached(timeout=30)
        assert processes("86414")
        process.terminate()
        _, err = process.communicate(timeout=30)
        gate.open()
    assert process.returncode == 143, err
    assert not processes("86414")


def test_a_worker_that_ends_takes_its_background_commands_with_it_and_says_so(bench: Bench) -> None:
    worker = by_turn(message(bash("sleep 86415", run_in_background=True)), "report")
    with FakeAPI(fleet(coordinator("one"), worker)) as api:
        outcome = bench.run(api)
    assert {task["type"]: task["status"] for task in outcome.result["tasks"]} == {
        "local_agent": "completed",
        "local_bash": "killed",
    }
    assert "stopped with the worker" in api.requests[-1].user_text and not processes("86415")


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_of_two_workers_that_edit_one_file_the_second_is_stale_and_succeeds_after_a_read(bench: Bench) -> None:
    """X5."""
    shared = bench.work / "shared.txt"
    shared.write_text("alpha\nbeta\n")
    both_read, first_done = Gate(), Gate()

    def edit(old: str, id: str) -> Any:
        return tool_use("Edit", {"file_path": str(shared), "old_string": old, "new_string": old.upper()}, id=id)

    def read(id: str) -> Any:
        return tool_use("Read", {"file_path": str(shared)}, id=id)

    def observe(observed: Any) -> None:
        name = type(observed.event).__name__
        if name == "ToolFinished" and observed.event.tool_use_id == "r2":
            both_read.open()
        if name == "ToolFinished" and observed.event.tool_use_id == "e1":
            first_done.open()

    bench.on_event = observe
    one = by_turn(message(read("r1")), message(text("now", both_read, "!"), edit("alpha", "e1")), "one done")
    two = by_turn(
        message(read("r2")),
        message(text("now", first_done, "!"), edit("beta", "e2")),
        message(read("r3")),
        message(edit("beta", "e3")),
        "two done",
    )
    with FakeAPI(fleet(coordinator("one", "two"), {"one": one, "two": two})) as api:
        bench.run(api)
    assert "changed" in result(api, "e2") and "<tool_use_error>" in result(api, "e2")
    assert "<tool_use_error>" not in result(api, "e3")
    assert shared.read_text() == "ALPHA\nBETA\n"


def test_odd_files_are_answers_and_never_a_hang(bench: Bench) -> None:
    work = bench.work
    os.mkfifo(work / "fifo")
    with open(work / "huge", "wb") as file:
        file.truncate(1 << 30)
    Path(os.fsdecode(os.fsencode(work) + b"/caf\xe9.txt")).write_text("needle\n")
    (work / "dangling").symlink_to("nowhere")
    (work / "loop").symlink_to("loop")
    paths = ["fifo", "huge", "/dev/zero", "/dev/tty", "dangling", "loop", "gone", ".", "x" * 300, "nul\0name"]
    calls = [tool_use("Read", {"file_path": path}, id=f"r{i}") for i, path in enumerate(paths)]
    calls += [
        tool_use("Edit", {"file_path": path, "old_string": "a", "new_string": "b"}, id=f"e{i}") for i, path in enumerate(paths)
    ]
    calls += [
        tool_use("Write", {"file_path": path, "content": "x"}, id=f"w{i}")
        for i, path in enumerate(paths)
        if path in ("fifo", ".", "loop", "x" * 300)
    ]
    calls += [
        tool_use("Glob", {"pattern": "*"}, id="g"),
        tool_use("Grep", {"pattern": "needle"}, id="s"),
        bash("cat; read x; python3 -c 'input()'", "b"),
    ]
    with FakeAPI(by_turn(message(*calls), "done")) as api:
        outcome = bench.run(api, use_coordinator=False, permission_mode="bypassPermissions", timeout=60)
    assert outcome.result["result"] == "done", outcome.result
    results = api.requests[-1].tool_results
    for key, said in results.items():
        assert key == "b" or ("Traceback" not in said and "failed: " not in said), (key, said)
    assert all("<tool_use_error>" in results[key] for key in results if key[0] in "ew"), results
    assert "caf" in results["g"] and "caf" in results["s"] and "EOFError" in results["b"]
    assert (work / "fifo").is_fifo()


# ── secrets ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_known_secret_is_in_no_tools_environment_and_in_nothing_that_is_kept_or_shown(program: Program) -> None:
    """S3."""
    (program.cwd / "config.ini").write_text(f"token = {KEY}\n")
    (program.cwd / "CLAUDE.md").write_text(f"The key is {KEY}.\n")
    worker = by_turn(
        message(
            bash("env", "t0"), bash("cat config.ini; base64 config.ini; xxd -p config.ini", "t1"), tool_use("Read", {"file_path": "config.ini"}, id="t2"),
            tool_use("Grep", {"pattern": "token", "output_mode": "content"}, id="t3"), bash("cat /proc/$PPID/environ | tr '\\0' '\\n'", "t4"),
            bash("yes \"$(cat config.ini)\" | head -20000", "t5"), bash("cat config.ini", "t6", run_in_background=True),
        ),
        lambda request: message("I found: " + request.tool_results["t1"][:300]),
    )  # fmt: skip
    with FakeAPI(fleet(coordinator("one", final="all done"), worker)) as api:
        environment = with_api(program, api) | {"ANTHROPIC_API_KEY": KEY}
        ran = program(
            "run", "goal", "--permission-mode", "bypassPermissions", "--output-format", "stream-json", "--include-partial-messages",
            "--debug", **environment,
        )  # fmt: skip
        assert ran.code == 0, ran.err
        results = next(request.tool_results for request in reversed(api.requests) if "t0" in request.tool_results)
        assert "ANTHROPIC" not in results["t0"] and "PATH=" in results["t0"]
        assert "[redacted]" in results["t1"] and "[redacted]" in results["t2"] and "[redacted]" in results["t3"]
        sent = "\n".join(json.dumps(request.body) for request in api.requests)
    task = next(row["id"] for row in program("ps", "--all", "--json").json if row["type"] == "local_agent")
    shown = [program(*words) for words in (("logs", task), ("tasks", "show", task, "--json"), ("sessions", "list", "--json"))]
    assert all(one.code == 0 and one.out for one in shown)
    assert KEY not in sent + ran.out + ran.err + "".join(one.out for one in shown)
    for path in (program.home / "data").rglob("*"):
        if path.is_file():
            assert not re.search(KEY.encode(), path.read_bytes()), path


# ── sandbox ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def sandboxed(program: Program, mode: str, *commands: str, **environment: str) -> tuple[Any, dict[str, str]]:
    calls = [bash(command, f"t{i}") for i, command in enumerate(commands)]
    script = by_turn(*(message(call) for call in calls), "report")
    with FakeAPI(fleet(coordinator("one"), script)) as api:
        ran = program(
            "run",
            "goal",
            "--permission-mode",
            "bypassPermissions",
            "--sandbox",
            mode,
            "--output-format",
            "json",
            **with_api(program, api) | environment,
        )
        found = [request.tool_results for request in api.requests if "t0" in request.tool_results]
        return ran, found[-1] if found else {}


@needs_sandbox
def test_a_worker_in_the_sandbox_writes_only_where_it_may_and_cannot_reach_the_coordinator(program: Program) -> None:
    outside, home = program.cwd.parent / "outside", program.home
    ran, results = sandboxed(
        program, "required",
        f"echo 1 > inside; echo 2 > {outside}; echo 3 > {home}/x; echo 4 > /etc/x; touch /usr/x; echo $?",
        "cd / && pwd", f"pwd; echo 5 > {outside}; touch /y; echo 6 > {program.cwd}/inside2; cd {program.cwd}",
        "ps -e 2>/dev/null | grep -c python; ls -d /proc/[0-9]* | wc -l; kill -9 -1; pkill -9 -f coordinator; kill -9 $PPID; echo alive",
        f"find {home}/data -name '*.db*'; cat {home}/data/coordinator.db", "mkdir -p sub && cd sub && echo 7 > ../inside3",
        "sleep 86416 & disown; echo begun",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert [task["status"] for task in ran.json["tasks"]] == ["completed"]
    assert not outside.exists() and not Path("/etc/x").exists() and not Path("/y").exists() and not (home / "x").exists()
    assert [(program.cwd / name).exists() for name in ("inside", "inside2", "inside3")] == [True] * 3
    assert results["t2"].startswith("/\n") and "alive" in results["t3"]
    assert ".db" not in results["t4"].replace("coordinator.db: No such", "") and "begun" in results["t6"]
    assert not processes("86416")


@needs_sandbox
def test_the_sandbox_has_no_network_unless_it_is_switched_on(program: Program) -> None:
    connect = (
        'python3 -c \'import os, socket; socket.create_connection(("127.0.0.1", int(os.environ["PORT"])), 5)\' && echo reached'
    )
    with socket.create_server(("127.0.0.1", 0)) as there:
        port = {"PORT": str(there.getsockname()[1])}
        _, off = sandboxed(program, "required", connect, **port)
        _, on = sandboxed(program, "required", connect, COORDINATOR_TOOLS_SANDBOX_NETWORK="1", **port)
    assert on["t0"].strip() == "reached" and off["t0"].strip().splitlines()[0] != "reached"


@needs_sandbox
def test_the_scratchpad_can_be_written_and_a_spilled_result_be_read_in_the_sandbox(program: Program) -> None:
    scratch = 'echo note > "$(echo $HOME/data/scratch/*)/note" && cat $HOME/data/scratch/*/note'
    ran, results = sandboxed(
        program, "required", scratch, "seq 100000", "wc -l $HOME/data/spill/*/*/*; touch $HOME/data/spill/*/x || echo kept"
    )
    assert ran.code == 0, ran.err
    assert results["t0"] == "note\n", results
    assert "100000" in results["t2"] and "kept" in results["t2"]


@pytest.mark.skipif(KERNEL is None, reason="NOT TESTED: this kernel has no Landlock")
def test_required_refuses_where_not_all_of_it_can_be_held(program: Program) -> None:
    """Inside a confinement of its own the program can make no namespaces: Landlock alone is left."""
    assert KERNEL is not None
    ours = (Path(__file__).parents[2], Path(sys.prefix))  # which may lie under /tmp, of which a command has its own
    outer = Confinements(
        means=KERNEL, home=program.home, aside=program.home / "aside", writable=(program.home,), readable=ours, network=True
    )
    for mode, code in (("required", 2), ("auto", 0)):
        wrapped = outer.of(program.cwd).wrap(
            (sys.executable, "-m", "coordinator.cli.main", "run", "goal", "--offline", "--sandbox", mode),
            program.cwd,
            Confine.WORKSPACE,
        )
        environment = {
            **os.environ,
            "HOME": str(program.home),
            "COORDINATOR_HOME": str(program.home / "data"),
            **wrapped.environment,
        }
        done = subprocess.run(
            wrapped.argv,
            cwd=program.cwd,
            env=environment,
            pass_fds=wrapped.pass_fds,
            capture_output=True,
            text=True,
            check=False,
        )
        wrapped.close()
        assert done.returncode == code, done.stderr
        assert ("--sandbox required: " in done.stderr) == (mode == "required")
        assert len(done.stderr.strip().splitlines()) == 1 or mode == "auto"


def test_a_run_without_the_flag_says_nothing_of_sandboxes(program: Program) -> None:
    ran, _ = sandboxed(program, "off", "true")
    assert ran.code == 0 and "sandbox" not in ran.err
