"""A small loop that drives the offline model through the real tools: one agent, or a coordinator with its workers."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from coordinator.offline.client import MODEL, OfflineClient
from worker_agent.api.client import BlockClosed, Finished, ModelRequest, Started, TextPiece, ToolSpec
from worker_agent.errors import ToolError
from worker_agent.messages import Message, assistant, tool_result_block, user
from worker_agent.tools.base import Allow, Tool, ToolContext
from worker_agent.tools.builtin.glob import Glob
from worker_agent.tools.builtin.grep import Grep
from worker_agent.tools.builtin.read import Read

TOOLS: dict[str, Tool] = {tool.name: tool for tool in (Glob(), Grep(), Read())}
SPECS = tuple(ToolSpec(t.name, t.description, t.input_schema) for t in TOOLS.values())
COORDINATOR_SPECS = tuple(ToolSpec(name, name, {"type": "object"}) for name in ("Agent", "SendMessage", "TaskStop"))


class AllowAll:
    mode = "default"

    async def decide(self, *args: Any) -> Allow:
        return Allow()

    def removes(self, tool_name: str) -> bool:
        return False

    def denies_path(self, path: Path, tool_name: str = "Read", project: Path | None = None) -> bool:
        return False


def context(cwd: Path) -> ToolContext:
    return ToolContext(session_id="s", agent_id="a", cwd=cwd, roots=(cwd,), spill_dir=cwd / ".spill", permissions=AllowAll())


@dataclass
class Talk:
    """One conversation with the model."""

    specs: tuple[ToolSpec, ...]
    messages: list[Message] = field(default_factory=list)
    client: OfflineClient = field(default_factory=OfflineClient)
    system: tuple[str, ...] = ("You are an agent.",)
    tool_names: list[str] = field(default_factory=list)

    def request(self, **fields: Any) -> ModelRequest:
        return ModelRequest(
            model=MODEL,
            max_tokens=16_000,
            system=self.system,
            tools=self.specs,
            messages=tuple(self.messages),
            **fields,
        )

    async def answer(self, **fields: Any) -> Message:
        """One model call, checked for the shape of its stream."""
        events = [event async for event in self.client.stream(self.request(**fields))]
        assert isinstance(events[0], Started) and isinstance(events[-1], Finished)
        closed = [event.block for event in events if isinstance(event, BlockClosed)]
        streamed = "".join(event.text for event in events if isinstance(event, TextPiece))
        message = assistant(closed, stop_reason=events[-1].stop_reason, usage=events[-1].usage)
        assert streamed == message.text
        assert (events[-1].stop_reason == "tool_use") == bool(message.tool_uses)
        self.messages.append(message)
        return message

    async def work(self, tools: ToolContext, rounds: int = 40) -> str:
        """Run tools until the model ends its turn; the last text."""
        for _ in range(rounds):
            message = await self.answer()
            if not message.tool_uses:
                return message.text
            self.tool_names += [use["name"] for use in message.tool_uses]
            results = await asyncio.gather(*(_result(use, tools) for use in message.tool_uses))
            self.messages.append(user(results, kind="tool_results"))
        raise AssertionError("the model does not come to an end")


async def _result(use: Any, tools: ToolContext) -> Any:
    try:
        result = await TOOLS[use["name"]].call(use["input"], tools)
    except ToolError as error:
        return tool_result_block(use["id"], f"<tool_use_error>{error}</tool_use_error>", is_error=True)
    content = result.content if isinstance(result.content, str) else list(result.content)
    return tool_result_block(use["id"], content)


async def single(goal: str, cwd: Path) -> tuple[str, Talk]:
    talk = Talk(SPECS, [user(goal)])
    return await talk.work(context(cwd)), talk


@dataclass
class Session:
    """A coordinator and its workers. Workers run when `run_workers` is called; `notify` delivers what has ended."""

    cwd: Path
    talk: Talk
    prompts: dict[str, tuple[str, str]] = field(default_factory=dict)  # task id → description, prompt
    workers: dict[str, Talk] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)

    @classmethod
    def begin(cls, goal: str, cwd: Path) -> Session:
        return cls(cwd, Talk(COORDINATOR_SPECS, [user(goal)], system=("You coordinate.", f"Working directory: {cwd}")))

    async def turn(self, **fields: Any) -> Message:
        """One answer of the coordinator; its `Agent` calls become tasks."""
        message = await self.talk.answer(**fields)
        results = []
        for use in message.tool_uses:
            assert use["name"] == "Agent"
            task = f"a{len(self.prompts):08d}"
            self.prompts[task] = (use["input"]["description"], use["input"]["prompt"])
            launched = {"status": "async_launched", "task_id": task, "agent_id": task, "output_file": "/x"}
            results.append(tool_result_block(use["id"], json.dumps(launched)))
        if results:
            self.talk.messages.append(user(results, kind="tool_results"))
        return message

    async def run_worker(self, task: str) -> str:
        worker = self.workers[task] = Talk(SPECS, [user(self.prompts[task][1])])
        return await worker.work(context(self.cwd))

    def notify(self, *ends: tuple[str, str, str]) -> None:
        """(task id, status, result) of ended tasks, in one message."""
        self.ended.update(task for task, _, _ in ends)
        elements = [notification(task, status, self.prompts[task][0], result) for task, status, result in ends]
        self.talk.messages.append(user("[From the system.]\n" + "\n".join(elements), kind="attachment", meta=True))

    async def finish(self) -> str:
        """Run everything to its end; the coordinator's last text."""
        for _ in range(10):
            message = await self.turn()
            if message.tool_uses:
                continue
            waiting = [task for task in self.prompts if task not in self.ended]
            if not waiting:
                return message.text
            self.notify(*[(task, "completed", await self.run_worker(task)) for task in waiting])
        raise AssertionError("the coordinator does not come to an end")


def notification(task: str, status: str, description: str, result: str) -> str:
    return (
        f"<task-notification>\n<task-id>{task}</task-id>\n<status>{status}</status>\n"
        f"<summary>Agent &quot;{escape(description)}&quot; {status}</summary>\n<result>{escape(result)}</result>\n"
        "<usage><total_tokens>1</total_tokens><tool_uses>1</tool_uses><duration_ms>1</duration_ms></usage>\n"
        "</task-notification>"
    )
