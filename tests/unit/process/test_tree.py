"""Ending a whole tree, and proving it from the process table."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.unit.process.helpers import Lab, eventually, eventually_async, zombies_of_ours
from worker_agent.config import SystemClock
from worker_agent.process import ProcessTree, end_tree, find_tree, set_subreaper, start_time, sweep_zombies
from worker_agent.process_tree import SHELL_MARKER, TASK_MARKER, not_gone

DAEMON = (
    "import os, sys, time\n"
    "if os.fork(): os._exit(0)\n"
    "os.setsid()\n"
    "if os.fork(): os._exit(0)\n"
    "open(sys.argv[1], 'w').write(str(os.getpid()))\n"
    "time.sleep(300)\n"
)


@pytest.fixture(scope="module", autouse=True)
def subreaper() -> Iterator[None]:
    """Orphans become ours, as in the program itself; put back afterwards."""
    assert set_subreaper()
    yield
    assert set_subreaper(False)


def gone(lab: Lab) -> bool:
    """No process of the lab's commands is left: by marker, and by the session of each shell."""
    rows = subprocess.run(["ps", "-eo", "sid=,stat="], capture_output=True, text=True, check=True).stdout.splitlines()
    sessions = {row.split()[0] for row in rows if not row.split()[1].startswith("Z")}
    return not lab.alive() and not sessions & {str(pid) for pid, _ in lab.started}


@pytest.mark.parametrize(
    "command",
    [
        "sleep 300",
        "sleep 300 | cat | cat",
        "for i in 1 2 3; do timeout 60 python3 -c 'import time; time.sleep(50)'; done",
        "timeout 100 timeout 90 sleep 80",
        "setsid sleep 300 & sleep 300",
        "env -i setsid sleep 300 & sleep 300",
        "env -i sleep 300 & (env -i sleep 301 &) ; sleep 300",
        "nohup sleep 300 >/dev/null 2>&1 & sleep 300",
        "bash -c 'bash -c \"sleep 300 & sleep 300\" & sleep 300' & wait",
        "kill -STOP $$",
        "sleep 300 & kill -STOP $!; wait",
        "set -m; sleep 300 & sleep 301 & wait",
    ],
)
def test_the_time_limit_ends_the_whole_tree(lab: Lab, command: str) -> None:
    outcome = lab.run(command, timeout=0.3, grace=2.0)
    assert outcome.timed_out and outcome.survivors == ()
    assert outcome.duration < 4
    assert gone(lab)


def test_a_double_forked_daemon_is_found_by_its_marker(lab: Lab) -> None:
    (lab.directory / "daemon.py").write_text(DAEMON)
    pidfile = lab.directory / "pid"
    command = f"{sys.executable} daemon.py {pidfile}; until [ -s {pidfile} ]; do :; done; sleep 300"
    outcome = lab.run(command, timeout=1.5)
    assert outcome.timed_out and outcome.survivors == ()
    assert not os.path.exists(f"/proc/{pidfile.read_text()}") and gone(lab)


def test_what_ignores_term_is_killed_after_the_grace_period(lab: Lab) -> None:
    outcome = lab.run("trap '' TERM; echo ready; sleep 300; sleep 300", timeout=0.3, grace=0.5)
    assert outcome.timed_out and outcome.survivors == () and outcome.exit_code == -signal.SIGKILL
    assert 0.8 <= outcome.duration < 4 and gone(lab)


def test_what_heeds_term_gets_the_time_to_clean_up(lab: Lab) -> None:
    outcome = lab.run("trap 'echo cleaned; exit 0' TERM; while :; do sleep 0.05; done", timeout=0.3)
    assert outcome.timed_out and outcome.output.endswith("cleaned\n") and outcome.exit_code == 0


def test_a_storm_of_forks_is_ended(lab: Lab) -> None:
    command = "trap '' TERM; for i in 1 2 3 4; do (trap '' TERM; while :; do (sleep 0.02); done) & done; wait"
    outcome = lab.run(command, timeout=0.5, grace=0.3)
    assert outcome.timed_out and outcome.survivors == () and gone(lab)


def test_many_daemons_at_once_are_ended(lab: Lab) -> None:
    command = "for i in $(seq 40); do (setsid sleep 300 &) ; done; sleep 300"
    outcome = lab.run(command, timeout=1.0)
    assert outcome.survivors == () and gone(lab)


def test_cancelling_ends_the_tree_before_it_returns(lab: Lab) -> None:
    async def scenario() -> None:
        running = asyncio.create_task(lab.shell("setsid sleep 300 & trap '' TERM; echo up; sleep 300", grace=0.3))
        assert await eventually_async(lambda: len(lab.alive()) >= 2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert gone(lab)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario(), debug=True)


def test_cancelling_again_and_again_does_not_leave_the_tree_half_ended(lab: Lab) -> None:
    async def scenario() -> None:
        running = asyncio.create_task(lab.shell("trap '' TERM; sleep 300; sleep 300", grace=0.3))
        assert await eventually_async(lambda: len(lab.alive()) >= 2)
        while not running.done():
            running.cancel()
            await asyncio.sleep(0.01)
        assert running.cancelled() and gone(lab)

    asyncio.run(scenario())


def test_a_kill_waits_for_no_grace_when_everything_heeds_it(lab: Lab) -> None:
    async def scenario() -> None:
        running = asyncio.create_task(lab.shell("timeout 100 sleep 90", grace=600.0))
        assert await eventually_async(lambda: len(lab.alive()) >= 3)
        running.cancel()
        await asyncio.wait({running})

    asyncio.run(scenario())


def test_another_process_ends_the_tree_by_pid_and_start_time(lab: Lab) -> None:
    async def scenario() -> None:
        running = asyncio.create_task(lab.shell("env -i setsid sleep 300 & timeout 90 sleep 80"))
        assert await eventually_async(lambda: len(find_tree(*lab.started[0])) >= 4 if lab.started else False)
        pid, start = lab.started[0]
        program = (
            f"import asyncio; from worker_agent.process import end_tree\nprint(asyncio.run(end_tree({pid}, {start!r}, None)))"
        )
        done = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=subprocess.PIPE)
        out, _ = await done.communicate()
        assert out.strip() == b"[]"
        outcome = await running
        assert outcome.exit_code == -signal.SIGTERM and gone(lab)

    asyncio.run(scenario())


def test_another_process_ends_what_an_ended_shell_left_behind(lab: Lab) -> None:
    outcome = lab.run("setsid sleep 300 >/dev/null 2>&1 & sleep 301 & true")
    assert len(outcome.background) == 2
    program = (
        f"import asyncio; from worker_agent.process import end_tree\nprint(asyncio.run(end_tree(None, None, {lab.task!r})))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]" and lab.alive() == []


def test_a_cleared_orphan_in_the_dead_shells_session_is_found_by_pid_and_start_time(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker_agent.process_tree._marks_limits", lambda: None)
    outcome = lab.run("env -i sleep 300 & true")
    pid, start = lab.started[0]
    assert lab.alive() == []
    assert [s.pid for s in find_tree(pid, start)] == [s.pid for s in outcome.background]
    assert asyncio.run(end_tree(pid, start)) == []


def test_ending_one_command_leaves_the_other_commands_of_the_task_alone(lab: Lab) -> None:
    server = lab.run("sleep 300 & true").background[0]
    assert lab.run("sleep 300", timeout=0.2).timed_out
    assert [s.pid for s in lab.alive()] == [server.pid]


def test_a_reused_pid_is_never_taken_for_the_tree() -> None:
    other = subprocess.Popen(["sleep", "300"], start_new_session=True)
    try:
        start = start_time(other.pid)
        assert start is not None
        assert [s.pid for s in find_tree(other.pid, start)] == [other.pid]
        assert find_tree(other.pid, start - 100) == []
        assert asyncio.run(end_tree(other.pid, start - 100)) == []
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_record_from_before_the_last_boot_finds_nothing() -> None:
    other = subprocess.Popen(["sh", "-c", "sleep 300 & exit 0"], start_new_session=True)
    other.wait()
    orphan = find_tree(other.pid, time.time() - 5)
    try:
        assert len(orphan) == 1
        assert find_tree(other.pid, 1000.0) == []
    finally:
        os.kill(orphan[0].pid, signal.SIGKILL)
        assert eventually(lambda: not find_tree(other.pid, time.time() - 5))
        os.waitpid(orphan[0].pid, 0)


def test_this_process_and_its_ancestors_are_never_part_of_what_is_ended() -> None:
    me = os.getpid()
    assert asyncio.run(end_tree(me, start_time(me), grace=0.1)) == []
    parent = os.getppid()
    assert asyncio.run(end_tree(parent, start_time(parent), grace=0.1)) == []
    assert asyncio.run(end_tree(1, start_time(1), grace=0.1)) == []


def test_a_tree_that_the_caller_itself_belongs_to_is_ended_around_it(lab: Lab) -> None:
    program = (
        "import asyncio, os; from worker_agent.process import end_tree\n"
        f"left = asyncio.run(end_tree(None, None, {lab.task!r}, 0.5))\n"
        "print(sorted(s.pid for s in left) == sorted([os.getpid(), os.getppid()]))"
    )
    (lab.directory / "inside.py").write_text(program)
    env = {**lab.env, "PYTHONPATH": os.getcwd()}
    outcome = lab.run(f"sleep 300 >/dev/null & {sys.executable} inside.py; true", env=env, timeout=20)
    assert outcome.output == "True\n" and outcome.background == ()


def test_survivors_are_named_by_pid_and_command_line(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    server = lab.run("sleep 300 & true").background[0]
    monkeypatch.setattr("worker_agent.process_tree.KILL_BOUND", 0.05)
    with monkeypatch.context() as deaf:
        deaf.setattr(os, "kill", lambda pid, number: None)
        deaf.setattr(os, "killpg", lambda group, number: None)
        left = asyncio.run(end_tree(None, None, lab.task, grace=0.05))
    assert [str(s) for s in left] == [f"{server.pid} (sleep 300)"]


def test_markers_match_as_a_whole_and_by_either_variable(lab: Lab) -> None:
    server = lab.run("sleep 300 & true", env={**lab.env, "OTHER": "x"}).background[0]
    assert [s.pid for s in find_tree(None, None, f"{TASK_MARKER}={lab.task}")] == [server.pid]
    assert find_tree(None, None, lab.task[:-1]) == [] and find_tree(None, None, lab.task + "x") == []
    assert find_tree(None, None, f"{SHELL_MARKER}={lab.task}") == [] and find_tree(None, None, "") == []
    assert find_tree(None) == []


def test_no_zombie_is_left_of_what_was_ended(lab: Lab) -> None:
    before = zombies_of_ours()
    (lab.directory / "daemon.py").write_text(DAEMON)
    daemons = " ".join(f"{sys.executable} daemon.py p{n};" for n in range(3))
    assert lab.run(f"{daemons} (sleep 300 &) ; setsid sleep 300 & sleep 300", timeout=1.0).survivors == ()

    def none_left() -> bool:
        sweep_zombies()
        return zombies_of_ours() <= before

    assert eventually(none_left)


def test_reaping_orphans_leaves_the_children_of_others_alone(lab: Lab) -> None:
    async def scenario() -> list[int]:
        others = [await asyncio.create_subprocess_exec("sh", "-c", f"sleep 0.0{n}; exit {n}") for n in range(8)]
        ends = asyncio.gather(*(o.wait() for o in others))
        while not ends.done():
            find_tree(None, None, lab.task)
            await asyncio.sleep(0)
        return await ends

    assert asyncio.run(scenario()) == list(range(8))


def test_a_tree_remembers_members_that_lost_their_parent(lab: Lab) -> None:
    async def scenario() -> None:
        command = "env -i setsid sleep 300 >/dev/null & echo; wait"
        process = await asyncio.create_subprocess_exec("bash", "-c", command, start_new_session=True, stdout=subprocess.PIPE)
        assert process.stdout is not None
        await process.stdout.readline()
        tree = ProcessTree(process.pid, start_time(process.pid))
        assert await eventually_async(lambda: [s.cmdline for s in tree.living()][1:] == ["sleep 300"])
        process.kill()
        await process.wait()
        assert [s.cmdline for s in tree.living()] == ["sleep 300"]
        assert await tree.end(1.0, SystemClock()) == []

    asyncio.run(scenario())


ORPHANS = {
    "setsid in the background": "(env -i setsid sh -c 'echo $$ > {pid}; exec sleep 300' &)",
    "setsid that forks": "env -i setsid -f sh -c 'echo $$ > {pid}; exec sleep 300'",
    "a daemon": "env -i {python} daemon.py {pid}",
}


@pytest.mark.parametrize("kind", ORPHANS)
def test_an_orphan_without_environment_in_a_session_of_its_own_bears_the_mark_of_its_tree(lab: Lab, kind: str) -> None:
    if shutil.which("prlimit") is None:
        pytest.skip("no prlimit here")
    pid = lab.directory / "pid"
    (lab.directory / "daemon.py").write_text(DAEMON)
    orphan = ORPHANS[kind].format(pid=pid, python=sys.executable)
    lab.run(f"{orphan} ; until [ -s {pid} ]; do :; done")
    other = f"import asyncio; from worker_agent.process_tree import *; print(asyncio.run(end_tree(None, None, {lab.task!r})))"
    assert find_tree(None, None, lab.task + "x") == []
    assert [s.pid for s in find_tree(None, None, lab.task)] == [int(pid.read_text())]
    said = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n" and eventually(lambda: find_tree(None, None, lab.task) == [])


def test_one_look_tells_which_of_many_trees_are_not_gone(lab: Lab) -> None:
    lab.run("true")
    lab.run("(sleep 300 &)")  # its shell is gone, its session is not
    (gone_pid, _), (left_pid, _) = lab.started
    assert not_gone([gone_pid, left_pid, os.getpid()]) == {left_pid, os.getpid()}
    assert asyncio.run(end_tree(None, None, lab.task)) == []
    assert not_gone([gone_pid, left_pid]) == set()


def test_ending_one_shell_leaves_the_trees_of_its_task_alone(lab: Lab) -> None:
    lab.run("(env -i setsid sleep 300 &)")
    lab.run("sleep 300 & sleep 300", timeout=0.3)
    assert [s.cmdline for s in find_tree(None, None, lab.task)] == ["sleep 300"]
    assert asyncio.run(end_tree(None, None, lab.task)) == []


def test_what_cannot_be_found_without_that_mark_is_a_cleared_orphan_in_a_session_of_its_own(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stated limit. Its pid is known to the test only; under a sub-reaper it is at least our child."""
    monkeypatch.setattr("worker_agent.process_tree._marks_limits", lambda: None)
    pidfile = lab.directory / "pid"
    orphan = f"(env -i setsid sh -c 'echo $$ > {pidfile}; exec sleep 300' &)"
    outcome = lab.run(f"{orphan} ; until [ -s {pidfile} ]; do :; done")
    pid = int(pidfile.read_text())
    assert outcome.background == () and find_tree(*lab.started[0], lab.task) == []
    try:
        ps = subprocess.run(["ps", "-o", "ppid=", "-p", str(pid)], capture_output=True, text=True, check=True)
        assert int(ps.stdout) == os.getpid()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_cancelling_while_the_shell_is_being_started_leaves_nothing(lab: Lab) -> None:
    async def scenario() -> None:
        for steps in range(1, 8):
            running = asyncio.create_task(lab.shell("setsid sleep 300 & sleep 300"))
            for _ in range(steps):
                await asyncio.sleep(0)
            running.cancel()
            await asyncio.wait({running})
        assert gone(lab) and asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())
