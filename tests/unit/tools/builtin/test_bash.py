"""`Bash` as a model uses it: through the executor, with real commands."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.unit.tools.kit import Policy, context_in, use
from worker_agent.causes import Cause
from worker_agent.config import ToolSettings, tool_environment
from worker_agent.events import ToolProgress
from worker_agent.process import TASK_MARKER, Wrapped, end_tree, find_tree
from worker_agent.structs import replace
from worker_agent.tools.base import Ask, Confine, Passthrough, ToolContext, ToolOutcome
from worker_agent.tools.builtin.bash import Bash
from worker_agent.tools.executor import StreamingToolExecutor
from worker_agent.tools.registry import ToolRegistry

BASH = Bash()


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    settings = ToolSettings(kill_grace=0.3, bash_output=2000)
    return context_in(tmp_path.resolve(), settings=settings, task_id=f"t{os.urandom(6).hex()}")


async def call(context: ToolContext, command: str, events: list[Any] | None = None, **input: Any) -> ToolOutcome:
    on_event = (events if events is not None else []).append
    executor = StreamingToolExecutor(ToolRegistry([BASH]), context, on_event=on_event)
    executor.add_tool(use("tu_1", "Bash", command=command, **input))
    return (await executor.results())[0]


def bash(context: ToolContext, command: str, **input: Any) -> ToolOutcome:
    return asyncio.run(call(context, command, **input))


def text(outcome: ToolOutcome) -> str:
    return outcome.block["content"]


def test_what_a_command_wrote_is_the_result(context: ToolContext) -> None:
    outcome = bash(context, "echo out; echo err >&2")
    assert (text(outcome), outcome.is_error) == ("out\nerr\n", False)
    assert text(bash(context, "true")) == "(no output)"


def test_an_exit_code_is_told_and_is_an_error(context: ToolContext) -> None:
    outcome = bash(context, "echo partly; exit 3")
    assert (text(outcome), outcome.is_error) == ("partly\n[Exit code 3]", True)
    assert text(bash(context, "printf no-newline; false")) == "no-newline\n[Exit code 1]"
    assert text(bash(context, "kill -9 $$")) == "[Ended by SIGKILL]"


def test_the_working_directory_lasts_from_call_to_call(context: ToolContext) -> None:
    async def scenario() -> None:
        await call(context, "mkdir -p a/b && cd a/b")
        assert text(await call(context, "pwd")) == f"{context.cwd}/a/b\n"
        await call(context, "cd ..; exit 1")
        assert text(await call(context, "pwd; export X=1")) == f"{context.cwd}/a\n"
        assert text(await call(context, "echo [$X]")) == "[]\n"

    asyncio.run(scenario())


def test_a_working_directory_that_is_gone_is_told_and_left(context: ToolContext) -> None:
    async def scenario() -> None:
        await call(context, "mkdir gone && cd gone")
        (context.cwd / "gone").rmdir()
        told = f"[{context.cwd}/gone is gone; back in {context.cwd}]\n"
        assert text(await call(context, "pwd")) == f"{told}{context.cwd}\n"
        assert text(await call(context, "pwd")) == f"{context.cwd}\n"

    asyncio.run(scenario())


def test_the_time_limit_is_in_milliseconds_and_told_with_what_was_written(context: ToolContext) -> None:
    begun = time.monotonic()
    outcome = bash(context, "echo begun; sleep 60", timeout=300)
    assert time.monotonic() - begun < 5 and outcome.is_error
    assert text(outcome).startswith("begun\n[The time limit of 0.3 s ran out and the command was ended.")


def test_no_limit_asked_for_is_longer_than_the_longest_allowed(context: ToolContext) -> None:
    context = replace(context, settings=ToolSettings(bash_max_timeout=0.3, kill_grace=0.3))
    assert "limit of 0.3 s" in text(bash(context, "sleep 60", timeout=9e9))


@pytest.mark.parametrize("command", ["cat", "read x", "git commit", "python3 -c 'input()'", "man ls", "git log | less"])
def test_what_would_wait_for_a_person_ends_at_once(context: ToolContext, command: str) -> None:
    context.environment = tool_environment({"PATH": os.environ["PATH"], "HOME": str(context.cwd)})
    who = "git config user.email a@b && git config user.name n"
    asyncio.run(call(context, f"git init -q . && {who} && echo x > f && git add f"))
    begun = time.monotonic()
    outcome = bash(context, command, timeout=20_000)
    assert time.monotonic() - begun < 8 and "time limit" not in text(outcome)


def test_credentials_do_not_reach_the_command(context: ToolContext) -> None:
    environ = {"PATH": os.environ["PATH"], "ANTHROPIC_API_KEY": "sk-very-secret-1", "MY_TOKEN": "tok-very-secret-2"}
    context.environment = tool_environment(environ)
    context.redact = lambda text: text.replace("tok-very-secret-2", "[redacted]")
    shown = text(bash(context, "env; echo tok-very-secret-2"))
    assert "sk-very-secret" not in shown and "tok-very-secret" not in shown and "[redacted]" in shown


def test_the_command_carries_the_marker_of_its_task_or_agent(context: ToolContext) -> None:
    assert text(bash(context, f"echo ${TASK_MARKER}")) == f"{context.task_id}\n"
    context.task_id = None
    assert text(bash(context, f"echo ${TASK_MARKER}")) == "a1\n"


def test_process_trees_are_announced_as_they_begin(context: ToolContext) -> None:
    seen: list[tuple[int, float]] = []
    context.on_process = lambda pid, start: seen.append((pid, start))
    outcome = bash(context, "echo $$")
    assert [pid for pid, _ in seen] == [int(text(outcome))] and abs(seen[0][1] - time.time()) < 60


def test_long_output_is_cut_in_the_middle_and_whole_in_a_file(context: ToolContext) -> None:
    outcome = bash(context, "seq 1 5000")
    file = context.spill_dir / "tu_1-output.txt"
    assert file.read_text() == "".join(f"{n}\n" for n in range(1, 5001))
    assert text(outcome).startswith("1\n2\n") and text(outcome).endswith("4999\n5000\n")
    assert f"characters left out; the output is in {file}" in text(outcome) and len(text(outcome)) < 2300


def test_an_endless_producer_is_ended_at_the_cap_and_told(context: ToolContext) -> None:
    context = replace(context, settings=ToolSettings(bash_file_cap=1_000_000))
    outcome = bash(context, "yes")
    assert outcome.is_error and text(outcome).startswith("y\ny\n")
    assert "It was ended because it wrote more than" in text(outcome)
    assert (context.spill_dir / "tu_1-output.txt").stat().st_size <= 1_000_000
    assert find_tree(None, None, context.task_id) == []


def test_binary_output_is_said_in_words(context: ToolContext) -> None:
    outcome = bash(context, "head -c 5000 /dev/urandom")
    assert text(outcome).startswith("[It wrote 5,000 bytes that are binary or not UTF-8") and not outcome.is_error


def test_a_server_left_running_is_named_and_found_by_the_tasks_marker(context: ToolContext) -> None:
    outcome = bash(context, "sleep 300 & echo started")
    assert text(outcome).startswith("started\n[Still running in the background: ") and "(sleep 300)" in text(outcome)
    assert not outcome.is_error
    assert len(find_tree(None, None, context.task_id)) == 1
    assert asyncio.run(end_tree(None, None, context.task_id)) == []


def test_an_interrupt_ends_the_tree_before_it_answers(context: ToolContext) -> None:
    async def scenario() -> None:
        begun = asyncio.Event()
        context.on_process = lambda pid, start: begun.set()
        executor = StreamingToolExecutor(ToolRegistry([BASH]), context)
        executor.add_tool(use("tu_1", "Bash", command="trap '' TERM; setsid sleep 300 & sleep 300"))
        await begun.wait()
        (outcome,) = await executor.interrupt(Cause.KILLED.in_words)
        assert outcome.synthetic and "effects are unknown" in text(outcome)
        assert find_tree(None, None, context.task_id) == []
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


def test_progress_tells_the_last_line_now_and_then(context: ToolContext) -> None:
    class Fast:
        ticks = 0.0

        def now(self) -> float:
            return 0.0

        def monotonic(self) -> float:
            self.ticks += 1.0
            return self.ticks

        async def sleep(self, seconds: float) -> None:
            await asyncio.sleep(0)

    context.clock = Fast()
    events: list[Any] = []
    asyncio.run(call(context, "for i in 1 2 3; do echo step $i; sleep 0.1; done", events))
    assert [e.text for e in events if isinstance(e, ToolProgress)] == ["step 1", "step 2", "step 3"]


def test_a_background_run_is_a_task_of_its_own(context: ToolContext) -> None:
    class Shells:
        started: tuple[Any, ...] = ()

        async def start(
            self, command: str, cwd: Path, description: str, context: ToolContext, timeout: float
        ) -> Mapping[str, Any]:
            self.started = (command, cwd, description, timeout)
            return {"task_id": "b1234abcd", "output_file": "/spill/b1234abcd.log"}

    shells = Shells()
    context.background = shells
    outcome = bash(context, "sleep 5", run_in_background=True, description="wait a bit")
    assert shells.started == ("sleep 5", context.cwd, "wait a bit", 3600)
    assert "task b1234abcd" in text(outcome) and "/spill/b1234abcd.log" in text(outcome) and not outcome.is_error
    context.background = None
    assert "cannot run in the background here" in text(bash(context, "sleep 5", run_in_background=True))


@dataclass
class Box:
    wrapped: Callable[[Sequence[str], Path], Wrapped]
    why_not: str | None = None

    def holds(self, level: Confine) -> bool:
        return True

    def wrap(self, argv: Sequence[str], cwd: Path, level: Confine) -> Wrapped:
        return self.wrapped(argv, cwd)


def test_a_sandbox_wraps_the_shell_and_the_directory_still_lasts(context: ToolContext) -> None:
    context.sandbox = Box(lambda argv, cwd: Wrapped(("env", f"BOX={cwd}", *argv), finish=lambda: ("a note of it",)))
    outcome = bash(context, "echo in $BOX; cd /usr")
    assert text(outcome) == f"in {context.cwd}\n[a note of it]" and str(context.shell.cwd) == "/usr"  # type: ignore[union-attr]


def test_a_shell_that_cannot_start_is_an_answer(context: ToolContext) -> None:
    context.sandbox = Box(lambda argv, cwd: Wrapped(("/nonexistent/sandbox", *argv)))
    assert "The shell could not be started: No such file or directory" in text(bash(context, "true"))


@pytest.mark.parametrize(
    ("command", "words"),
    [("   ", "is empty"), ("echo a\x00b", "NUL"), ("echo " + "x" * 100_001, "longer than 100,000 bytes")],
)
def test_a_command_that_cannot_be_run_is_refused_in_words(context: ToolContext, command: str, words: str) -> None:
    assert words in text(bash(context, command))


def test_killall_of_our_own_name_is_refused(context: ToolContext) -> None:
    import psutil

    name = psutil.Process().name()
    assert f"`killall {name}` would end the program" in text(bash(context, f"true && killall -q {name}"))
    assert "would end" not in text(bash(context, "killall no_such_name_zq; true"))


@pytest.mark.parametrize(
    ("command", "safe"),
    [
        ("ls -la", True), ("git status", True), ("grep -rn x . | head -3", True), ("rm x", False), ("ls > out", False),
        ("ls; touch x", False), ("cat $(rm x)", False), ("nosuch", False), ("if (", False),
        ("git log --output=x", False), ("uniq a x", False), ("uniq *", False), ("sort -o x", False), ("cd x && ls", False),
    ],
)  # fmt: skip
def test_read_only_commands_may_run_beside_others(command: str, safe: bool) -> None:
    assert BASH.is_read_only({"command": command}) is safe
    assert BASH.is_concurrency_safe({"command": command}) is safe
    assert not BASH.is_read_only({"command": command, "run_in_background": True})


def test_the_tool_leaves_permission_to_the_rules(context: ToolContext) -> None:
    assert asyncio.run(BASH.check_permissions({"command": "ls"}, context)) == Passthrough()
    context.permissions = Policy(Ask("?"))
    assert "nobody to ask" in text(bash(context, "touch made")) and not (context.cwd / "made").exists()


def test_activity_is_one_short_line() -> None:
    assert BASH.activity({"command": "make\n\t test"}) == "Bash make test"
    assert len(BASH.activity({"command": "x" * 500})) <= 105
    assert BASH.activity({}) == "Bash "
