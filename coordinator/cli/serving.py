"""Runs and tasks as MCP tools, for another agent that works through us. See `commands/mcp_serve.py`.

1. A tool is one command of this program, run as the person would run it: what it may do, what it says and how it fails is
   the command's. Nothing is done here that no command does.
2. What a run may do was decided by the person who started the server: the flags for all runs stand on its command line. An
   agent chooses the goal and a directory below the server's; it can narrow (`plan_only`) and never widen.
3. Consent is a person's. Who calls these tools sees what waits for one, and answers it only if the person said so.
4. A run goes on when the server ends: it is a run in the background like any other.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from coordinator.views.exit_codes import ExitCode

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

MAX_WAIT = 600  # seconds
MAX_TEXT = 100_000  # characters of an answer
# The words of MCP's own tasks for how a task or a run stands.
STATES = {
    "pending": "working",
    "running": "working",
    "waiting": "input_required",
    "interrupted": "failed",
    "completed": "completed",
    "failed": "failed",
    "killed": "cancelled",
}
HAS_ENDED = frozenset(range(256)) - {ExitCode.USAGE, ExitCode.NOT_FOUND}  # what waiting says of how a task ended
INSTRUCTIONS = (
    "Starts runs of a multi-agent coordinator and steers them. `start_run` answers at once with the run's id; `wait` until it "
    "has ended, then `show` it: `result` is its answer. `list_tasks` shows the workers of a run. Give a run one whole goal, with "
    "all it must know: it sees nothing of your conversation."
)


class Commands(Struct, frozen=True):
    """This program's own commands. `database` is what `--db` said; `flags` hold for every run; `logs` is where runs in the
    background write."""

    cwd: Path
    logs: Path
    flags: tuple[str, ...] = ()
    database: str | None = None

    async def __call__(self, *arguments: str, fine: Collection[int] = (ExitCode.DONE,)) -> str:
        """What the command prints. Raises `ToolError` with its last words unless its exit code is `fine`."""
        from mcp.server.mcpserver.exceptions import ToolError

        database = ("--db", self.database) if self.database else ()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "coordinator", *database, *arguments, cwd=self.cwd,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            out, err = await process.communicate()
        except asyncio.CancelledError:
            process.kill()
            await process.wait()
            raise
        if process.returncode not in fine:
            raise ToolError(err.decode("utf-8", "replace").strip() or f"it failed (exit code {process.returncode})")
        return out.decode("utf-8", "replace").strip()

    async def rows(self, *arguments: str, fine: Collection[int] = (ExitCode.DONE,)) -> list[dict[str, Any]]:
        """The objects that the command prints with `--json`, each with its state in MCP's words."""
        end = arguments.index("--") if "--" in arguments else len(arguments)
        found = json.loads(await self(*arguments[:end], "--json", *arguments[end:], fine=fine) or "[]")
        return [_stated(row) for row in (found if isinstance(found, list) else [found])]

    def directory(self, text: str) -> Path:
        """A directory at or below the server's. Raises `ToolError`."""
        from mcp.server.mcpserver.exceptions import ToolError

        path = (self.cwd / text).resolve()
        if not (path.is_relative_to(self.cwd.resolve()) and path.is_dir()):
            raise ToolError(f"{text!r} is no directory in {self.cwd}")
        return path

    def result(self, run: str) -> dict[str, Any] | None:
        """How a run in the background ended, as its log has it; None while it has not."""
        try:
            lines = (self.logs / f"{run}.log").read_text("utf-8", "replace").splitlines()
            ends = (json.loads(line) for line in reversed(lines) if line.startswith('{"type": "result"'))
            return next(ends, None)
        except (OSError, ValueError):  # it is not there, or is being written
            return None


def _stated(row: dict[str, Any]) -> dict[str, Any]:
    status = row.get("status")
    if status == "ended":  # a session: how it ended stands beside
        status = "completed" if row.get("end_reason") == "completed" else "failed"
    elif status == "open":
        status = "running" if row.get("driven") else "interrupted"
    return {**row, "state": STATES.get(str(status), "working")}


def server(commands: Commands, *, may_approve: bool) -> MCPServer[Any]:
    """The MCP server over `commands`."""
    from importlib import metadata

    from mcp.server.mcpserver import MCPServer
    from mcp_types import ToolAnnotations

    made: MCPServer[Any] = MCPServer(
        "coordinator", version=metadata.version("coordinator"), instructions=INSTRUCTIONS, log_level="ERROR"
    )
    looks = ToolAnnotations(read_only_hint=True)
    ends = ToolAnnotations(destructive_hint=True)

    @made.tool(structured_output=False)
    async def start_run(goal: str, directory: str = ".", plan_only: bool = False) -> str:
        """Starts a run that works on one goal, in the background; its id. `directory` is relative to the server's own.
        With `plan_only` nothing is changed."""
        from mcp.server.mcpserver.exceptions import ToolError

        if not goal.strip() or goal.strip() == "-":
            raise ToolError("a run needs a goal")
        narrowed = ("--plan-only",) if plan_only else ()
        where = str(commands.directory(directory))
        run = await commands("run", "--bg", "--output-format", "json", *commands.flags, *narrowed, "--cwd", where, "--", goal)
        return json.dumps({"run": run, "state": "working"})

    @made.tool(annotations=looks, structured_output=False)
    async def wait(ids: list[str], timeout_seconds: int = 60, first: bool = False) -> str:
        """Waits until runs or tasks have ended, or the first of them with `first`; how they stand then. At most 600 seconds:
        call it again for more."""
        seconds = f"{max(1, min(timeout_seconds, MAX_WAIT))}s"
        any_ = ("--any",) if first else ()
        return _text(await commands.rows("wait", *any_, "--timeout", seconds, *_ids(ids), fine=HAS_ENDED))

    @made.tool(annotations=looks, structured_output=False)
    async def list_runs(limit: int = 20) -> str:
        """Lists runs, newest first."""
        return _text(await commands.rows("sessions", "list", "--limit", str(max(1, limit))))

    @made.tool(annotations=looks, structured_output=False)
    async def list_tasks(run: str | None = None, all: bool = False) -> str:
        """Lists tasks, those of one run or of all that have not ended; `all` adds those of ended runs."""
        chosen = ("--session", run) if run else ()
        return _text(await commands.rows("tasks", "list", *chosen, *(("--all",) if all or run else ())))

    @made.tool(annotations=looks, structured_output=False)
    async def show(id: str) -> str:
        """Shows one run with its tasks and its answer (`result`), or one task with its prompt and report."""
        from mcp.server.mcpserver.exceptions import ToolError

        try:
            (row,) = await commands.rows("sessions", "show", *_ids([id]))
        except ToolError:
            return _text(await commands.rows("tasks", "show", *_ids([id])))
        result = commands.result(row["id"]) or {}
        return _text(
            [{**row, "result": result.get("result"), "is_error": result.get("is_error"), "errors": result.get("errors")}]
        )

    @made.tool(annotations=looks, structured_output=False)
    async def logs(id: str, tail: int = 20) -> str:
        """What a task said and did: its last messages."""
        return (await commands("logs", "--tail", str(max(0, tail)), *_ids([id])))[-MAX_TEXT:]

    @made.tool(structured_output=False)
    async def send(id: str, message: str) -> str:
        """Sends a message to a worker or a run; it reads it at its next step."""
        return await commands("send", *_ids([id]), message) or "sent"

    @made.tool(annotations=ends, structured_output=False)
    async def kill(ids: list[str]) -> str:
        """Ends tasks or runs, and proves that their processes are gone."""
        return await commands("kill", *_ids(ids)) or "ended"

    @made.tool(annotations=looks, structured_output=False)
    async def inbox() -> str:
        """Lists the calls of workers that wait for a person's consent."""
        return _text(await commands.rows("inbox"))

    if may_approve:

        @made.tool(annotations=ends, structured_output=False)
        async def approve(ids: list[str]) -> str:
            """Lets waiting calls run: only what the person who asked you would let run."""
            return await commands("approve", *_ids(ids)) or "approved"

        @made.tool(structured_output=False)
        async def deny(ids: list[str], why: str = "") -> str:
            """Refuses waiting calls, and says why."""
            return await commands("deny", *(("--message", why) if why else ()), *_ids(ids)) or "denied"

    return made


def _ids(ids: Sequence[str]) -> list[str]:
    """Ids as arguments that no command takes for a flag. Raises `ToolError`."""
    from mcp.server.mcpserver.exceptions import ToolError

    if not ids:
        raise ToolError("no id is named")
    return ["--", *ids]


def _text(rows: Sequence[dict[str, Any]]) -> str:
    text = json.dumps(list(rows), ensure_ascii=False, indent=1)
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + f"\n[cut: {len(text):,} characters in all; ask for less]"
