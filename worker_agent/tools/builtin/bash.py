"""`Bash`: a shell command in the agent's working directory, its output within bounds, its processes ended for certain.

The directory a command ends in is where the next one starts. A command with `run_in_background` becomes a task of its
own, through `context.background`. What a command leaves running on purpose (`server &`) is named in the result; it ends
with the agent's task.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from worker_agent import tool_facts
from worker_agent.context.spill import spill_path
from worker_agent.errors import ToolError
from worker_agent.process import MAX_COMMAND, TASK_MARKER, ShellOutcome, run_shell
from worker_agent.process_tree import lineage_names
from worker_agent.tools import heavy
from worker_agent.tools.base import Input, ShellState, Tool, ToolContext, ToolResult

PROGRESS_EVERY = 0.5  # seconds between two lines of progress
PROGRESS_WIDTH = 160  # characters
_KILLALL = re.compile(r"\bkillall\b([^;&|\n]*)")


class Bash(Tool):
    facts = tool_facts.BASH
    description = (
        "Runs a shell command (bash) and returns what it wrote to standard output and error, and its exit code if "
        "that is not 0. The working directory lasts from call to call; other shell state (variables, functions) "
        "does not. Standard input is closed: a command that asks for input gets end-of-file, so pass answers as "
        "arguments or flags. Long output is cut in the middle; the whole of it is then in a file that the result "
        "names. At the time limit (`timeout`, in milliseconds; 120000 unless told, at most 600000) the command and "
        "everything it started is ended. Use run_in_background for servers and for what takes longer. To search or "
        "read files use Grep, Glob and Read, to change them Edit and Write. Quote paths that hold blanks."
    )
    input_schema = {
        "type": "object",
        "properties": {
            "command": {"type": "string", "minLength": 1, "description": "The command"},
            "timeout": {"type": "number", "minimum": 1, "description": "Time limit in milliseconds"},
            "description": {"type": "string", "description": "What it does, in 5 to 10 words"},
            "run_in_background": {"type": "boolean", "description": "Answer at once and let it run on as a task"},
        },
        "required": ["command"],
        "additionalProperties": False,
    }

    def is_read_only(self, input: Input) -> bool:
        return not input.get("run_in_background") and _read_only(input["command"])

    async def validate_input(self, input: Input, context: ToolContext) -> str | None:
        command = input["command"]
        if not command.strip():
            return "The command is empty."
        if "\x00" in command:
            return "The command holds a NUL character."
        if len(command.encode("utf-8", "replace")) > MAX_COMMAND:
            return f"The command is longer than {MAX_COMMAND:,} bytes. Write it to a file with Write and run that."
        if "killall" in command and (own := _hits_us(command)):
            return f"`killall {own}` would end the program that runs you. End the process by its id: `kill PID`."
        return None

    async def call(self, input: Input, context: ToolContext) -> ToolResult:
        shell = _shell_state(context)
        lost = "" if shell.cwd.is_dir() else f"[{shell.cwd} is gone; back in {context.cwd}]\n"
        if lost:
            shell.move(context.cwd)
        if input.get("run_in_background"):
            return await self._background(input, shell.cwd, context)
        limit = _limit(input, context)
        outcome = await self._run(input["command"], limit, shell.cwd, context)
        moved = outcome.cwd is not None and outcome.cwd != shell.cwd
        if outcome.cwd is not None:
            shell.move(outcome.cwd)
        text = lost + told(outcome, limit)
        return ToolResult(
            text,
            is_error=outcome.exit_code != 0 or outcome.timed_out or outcome.capped,
            output_file=outcome.output_file,
            data={
                "stdout": outcome.output,
                "exit_code": outcome.exit_code,
                "interrupted": outcome.timed_out or outcome.capped,
                **({"cwd": str(shell.cwd)} if moved else {}),
            },
        )

    async def _run(self, command: str, limit: float, cwd: Path, context: ToolContext) -> ShellOutcome:
        settings = context.settings
        owner = context.task_id or context.agent_id
        try:
            async with heavy.turn(command, settings.heavy_commands, context.progress):
                return await run_shell(
                    command,
                    cwd=cwd,
                    env={TASK_MARKER: owner, **context.environment},
                    output_file=spill_path(context.spill_dir, f"{context.tool_use_id or 'shell'}-output"),
                    timeout=limit,
                    keep=settings.bash_output,
                    file_cap=settings.bash_file_cap,
                    grace=settings.kill_grace,
                    wrap=context.wrap(),
                    redact=context.redact,
                    memory=settings.command_memory,
                    nice=settings.command_nice,
                    on_start=context.on_process,
                    on_output=_progress(context),
                )
        except OSError as error:
            raise ToolError(f"The shell could not be started: {error.strerror or error}") from error

    async def _background(self, input: Input, cwd: Path, context: ToolContext) -> ToolResult:
        if context.background is None:
            raise ToolError("Commands cannot run in the background here. Run it without run_in_background.")
        command = input["command"]
        limit = _background_limit(input, context)
        description = input.get("description") or command[:80]
        started = await context.background.start(command, cwd, description, context, limit)
        text = (
            f"Started in the background as task {started['task_id']}; its output goes to {started['output_file']} "
            f"(read it with Read). You are told when it ends, after {limit:g} s at the latest: do not wait for it by "
            "polling."
        )
        return ToolResult(text, data=dict(started))

    def activity(self, input: Input) -> str:
        line = " ".join(str(input.get("command", "")).split())
        return f"Bash {line[:100]}"


def told(outcome: ShellOutcome, limit: float) -> str:
    """The result in words: what it wrote, then what happened, a line each."""
    notes = []
    if outcome.binary:
        notes.append(
            f"It wrote {outcome.size:,} bytes that are binary or not UTF-8; they are not shown. Send them to a file, "
            "or through `xxd`, `file` or `iconv`."
        )
    if outcome.timed_out:
        notes.append(
            f"The time limit of {limit:g} s ran out and the command was ended. Give a longer `timeout`, or use "
            "run_in_background."
        )
    elif outcome.capped:
        notes.append(f"It was ended because it wrote more than {outcome.size:,} bytes.")
    elif outcome.exit_code:
        notes.append(_exit_words(outcome.exit_code))
    if outcome.background:
        notes.append("Still running in the background: " + ", ".join(map(str, outcome.background)) + _where(outcome))
    if outcome.survivors:
        notes.append("These processes could not be ended: " + ", ".join(map(str, outcome.survivors)))
    notes += outcome.notes
    output = outcome.output
    if output and notes and not output.endswith("\n"):
        output += "\n"
    return output + "\n".join(f"[{note}]" for note in notes)


def _where(outcome: ShellOutcome) -> str:
    return f". Further output: {outcome.output_file}" if outcome.output_file else ""


def _exit_words(code: int) -> str:
    if code >= 0:
        return f"Exit code {code}"
    try:
        return f"Ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"Ended by signal {-code}"


def _limit(input: Input, context: ToolContext) -> float:
    asked = input.get("timeout")
    seconds = context.settings.bash_timeout if asked is None else asked / 1000
    return min(seconds, context.settings.bash_max_timeout)


def _background_limit(input: Input, context: ToolContext) -> float:
    asked, most = input.get("timeout"), context.settings.bash_background_timeout
    return most if asked is None else min(asked / 1000, most)


def _shell_state(context: ToolContext) -> ShellState:
    assert context.shell is not None  # from its making on
    return context.shell


def _progress(context: ToolContext) -> Callable[[str], None]:
    """The last line of the output, now and then."""
    due = context.clock.monotonic() + PROGRESS_EVERY

    def told_now_and_then(text: str) -> None:
        nonlocal due
        now = context.clock.monotonic()
        if now < due:
            return
        due = now + PROGRESS_EVERY
        lines = text.rstrip().rsplit("\n", 1)
        if lines[-1].strip():
            context.progress(lines[-1].strip()[:PROGRESS_WIDTH])

    return told_now_and_then


@lru_cache(maxsize=512)
def _read_only(command: str) -> bool:
    from worker_agent.tools.shell_harmless import changes_nothing

    return changes_nothing(command)


def _hits_us(command: str) -> str | None:
    """The name by which a `killall` in `command` would end this process or one of its ancestors."""
    words = {word.strip("'\"") for match in _KILLALL.finditer(command) for word in match[1].split()}
    return next((name for name in lineage_names() if name in words), None)
