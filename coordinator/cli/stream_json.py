"""Observed events as the lines of `--output-format stream-json`: pure but for what it remembers between lines.

The vocabulary is the one that parsers of headless runs know: `system/init` first, `assistant` and `user` messages,
`system/task_started|task_progress|task_updated|task_notification`, `result` last. Messages of a worker carry the
`parent_tool_use_id` of the `Agent` call that began it; those that come before the call's answer is known wait for it.
Inside, a task that was ended is `killed`; in `task_notification` the same is called `stopped`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from coordinator.cli.partial_messages import PartialMessages
from coordinator.views.messages import answer
from worker_agent.events import Event, HookRan, MessageAdded, Notice, Tombstone, ToolProgress, TransitionTaken
from worker_agent.messages import WIRE_KINDS, Message

Line = dict[str, Any]
SPOKEN = "2.1.0"  # the version of Claude Code whose vocabulary these lines are; programs look whether it is new enough
OWN_COMMANDS = ("compact", "cost", "help")
ENDED = {"completed": "completed", "failed": "failed", "killed": "stopped"}


def init_line(
    session_id: str, *, cwd: str, model: str, tools: Iterable[str], permission_mode: str, version: str,
    mcp_servers: Iterable[tuple[str, str]] = (), agents: Iterable[str] = (), skills: Sequence[str] = (),
    plugins: Iterable[tuple[str, str]] = (),
) -> Line:  # fmt: skip
    """`mcp_servers` are names and how each stands: they start while the session does, so mostly `pending`. `plugins` are
    names and directories."""
    return {
        "type": "system",
        "subtype": "init",
        "session_id": session_id,
        "cwd": cwd,
        "model": model,
        "tools": list(tools),
        "permissionMode": permission_mode,
        "mcp_servers": [{"name": name, "status": status} for name, status in mcp_servers],
        "mcp_server_errors": [],
        "apiKeySource": "none",
        "agents": list(agents),
        "skills": list(skills),
        "slash_commands": [*OWN_COMMANDS, *skills],
        "output_style": "default",
        "plugins": [{"name": name, "path": path} for name, path in plugins],
        "plugin_errors": [],
        "capabilities": [],
        "coordinator_version": version,
        "claude_code_version": SPOKEN,
    }


class StreamJson:
    """The lines of one session. `task` values are the documented objects of `tasks list`, with `result`."""

    def __init__(self, session_id: str, *, partial_messages: bool = False, hook_events: bool = False) -> None:
        self._session_id = session_id
        self._partial = partial_messages
        self._hook_events = hook_events
        self._answers: dict[str | None, PartialMessages] = {}  # by agent
        self._parents: dict[str, str] = {}  # agent id → tool_use_id of the Agent call
        self._agents: dict[str, str] = {}  # task id → agent id
        self._waiting: dict[str, list[Line]] = {}  # agent id → lines without a parent yet
        self._seen: dict[str, str] = {}  # task id → last status told

    def event(self, task_id: str | None, event: Event) -> Iterator[Line]:
        """The lines for one event of the coordinator (`task_id` None) or of a worker."""
        agent = self._agents.get(task_id, task_id) if task_id else None
        for line in self._of_event(agent, event):
            line |= {"parent_tool_use_id": None, "session_id": self._session_id}
            yield from self._placed(agent, line)
        if agent is None and isinstance(event, MessageAdded) and event.message.kind == "tool_results":
            yield from self._learn(event.message)

    def task(self, task: Mapping[str, Any], asked_by: str | None = None) -> Iterator[Line]:
        """The lines for one change of a task. `asked_by` is the call that a new one came of."""
        self._agents[task["id"]] = task["agent_id"]
        if asked_by is not None:
            self._parents.setdefault(task["agent_id"], asked_by)
        before, status = self._seen.get(task["id"]), task["status"]
        self._seen[task["id"]] = status
        if before is None:
            yield self._system("task_started", task, description=task["description"], task_type=task["type"],
                               parent_task_id=task["parent_id"], model=task["model"])  # fmt: skip
        if before == status == "running":
            yield self._system("task_progress", task, description=task["description"], usage=_usage(task),
                               last_tool_name=(task["last_activity"] or "").split(" ")[0] or None,
                               summary=task["last_activity"], cost_usd=task["cost_usd"])  # fmt: skip
        elif before != status:
            yield self._system("task_updated", task, patch={"status": status})
        if status in ENDED and before not in ENDED:
            yield from self._flush(task["agent_id"], None)
            yield self._system("task_notification", task, status=ENDED[status], summary=task["description"],
                               output_file=task.get("output_file"), usage=_usage(task), cost_usd=task["cost_usd"],
                               model=task["model"])  # fmt: skip

    def approval(self, call: Mapping[str, Any], is_over: bool) -> Iterator[Line]:
        """The line for a call that waits for a person, or waits no longer."""
        yield {"type": "system", "subtype": "approval_over" if is_over else "approval_needed"} | dict(call)

    def rest(self) -> Iterator[Line]:
        """What still waits for a parent when the session ends."""
        for agent in list(self._waiting):
            yield from self._flush(agent, None)

    def _system(self, subtype: str, task: Mapping[str, Any], **fields: Any) -> Line:
        tool_use = self._parents.get(task["agent_id"])
        head = {"type": "system", "subtype": subtype, "task_id": task["id"], "session_id": self._session_id}
        return head | ({"tool_use_id": tool_use} if tool_use else {}) | fields

    def _of_event(self, agent: str | None, event: Event) -> Iterator[Line]:
        if self._partial:
            for body in self._answers.setdefault(agent, PartialMessages()).of(event):
                yield {"type": "stream_event", "event": body}
        match event:
            case MessageAdded(message) if message.kind in WIRE_KINDS:
                yield _assistant(message) if message.role == "assistant" else _user(message)
            case MessageAdded(message) if message.kind == "boundary":
                yield {"type": "system", "subtype": "compact_boundary", "compact_metadata": dict(message.data)}
            case TransitionTaken(reason):
                yield {"type": "system", "subtype": "transition", "reason": reason}
            case Notice(kind, text, data):
                yield {"type": "system", "subtype": kind.value, "text": text} | dict(data)
            case Tombstone(message_id, reason):
                yield {"type": "system", "subtype": "tombstone", "uuid": message_id, "reason": reason}
            case HookRan() if self._hook_events:
                yield _hook_line(event)
            case ToolProgress(tool_use_id, text):
                yield {"type": "tool_progress", "tool_use_id": tool_use_id, "text": text}
            case _:
                return

    def _placed(self, agent: str | None, line: Line) -> Iterator[Line]:
        if agent is None:
            yield line
        elif parent := self._parents.get(agent):
            yield line | {"parent_tool_use_id": parent}
        else:
            self._waiting.setdefault(agent, []).append(line)

    def _learn(self, results: Message) -> Iterator[Line]:
        """Which `Agent` call began which agent, out of the calls' answers."""
        for block in results.tool_results:
            agent = _launched(block.get("content"))
            if agent:
                self._parents[agent] = block["tool_use_id"]
                yield from self._flush(agent, block["tool_use_id"])

    def _flush(self, agent: str, parent: str | None) -> Iterator[Line]:
        for line in self._waiting.pop(agent, ()):
            yield line | {"parent_tool_use_id": parent or self._parents.get(agent) or agent}


def _assistant(message: Message) -> Line:
    return {"type": "assistant", "message": answer(message, [dict(block) for block in message.content]), "uuid": message.id}


def _user(message: Message) -> Line:
    body = {"role": message.role, "content": [dict(block) for block in message.content]}
    line: Line = {"type": "user", "message": body, "uuid": message.id, "isSynthetic": message.meta or message.kind != "prompt"}
    if (source := message.data.get("source") or message.data.get("reason")) is not None:
        line["source"] = source  # why it is there: a message sent, a notification, a hook's feedback, a nudge …
    return line


def _hook_line(ran: HookRan) -> Line:
    name = f"{ran.event}:{ran.subject}" if ran.subject else ran.event
    line = {"type": "system", "hook_id": ran.id, "hook_name": name, "hook_event": ran.event}
    if not ran.ended:
        return line | {"subtype": "hook_started"}
    outcome = "cancelled" if ran.code is None else "success" if ran.code == 0 else "error"
    said = {"output": ran.stdout + ran.stderr, "stdout": ran.stdout, "stderr": ran.stderr}
    return line | said | {"subtype": "hook_response", "exit_code": ran.code, "outcome": outcome}


def _launched(content: Any) -> str | None:
    """The agent id in the answer of an `Agent` call, else None."""
    if isinstance(content, list):
        content = "".join(block.get("text", "") for block in content if isinstance(block, Mapping))
    try:
        answer = json.loads(content)
    except (TypeError, ValueError):
        return None
    return answer.get("agent_id") if isinstance(answer, dict) and answer.get("status") == "async_launched" else None


def _usage(task: Mapping[str, Any]) -> Line:
    return {"total_tokens": task["total_tokens"], "tool_uses": task["tool_uses"], "duration_ms": task["duration_ms"]}
