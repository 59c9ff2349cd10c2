"""`--input-format stream-json`: a program talks to the session over standard input, a JSON object a line.

1. The session is made when the first line is there: `initialize`, if the program sends it, says what the session is made of
   (hooks that are functions of the program, kinds of worker, skills).
2. A `user` line is a prompt. The next one is given to the session when the result of the one before is printed, so that
   every prompt has its result line; the end of input ends the session. `system/init` stands before each prompt's turn.
3. A `control_request` line is answered by a `control_response` of the same `request_id`: at once, also while a turn runs.
   What cannot be done is refused by an error that names it, never taken in silence.
4. What only the program can do is asked of it (`channel.py`): its hooks (`hook_callback`), its MCP servers
   (`mcp_message`), and with `--permission-prompt-tool stdio` its consent (`can_use_tool`). When input has ended nobody can
   consent: what waits is denied. A program that did not ask for this is asked nothing, and such calls are denied.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from coordinator.cli import attached
from coordinator.cli.channel import Channel, Unanswered
from coordinator.cli.console import Console
from coordinator.cli.drive import started
from coordinator.cli.driven import Prompt, Wanted
from coordinator.cli.person import Person
from coordinator.cli.run_views import Started, StreamJsonView, tell_failure
from coordinator.observed import Observed
from coordinator.options import RunOptions
from coordinator.program import Program
from coordinator.views.terminal_text import one_line
from tasks.errors import StoreError
from worker_agent.config import variable
from worker_agent.errors import ConfigError
from worker_agent.events import MessageAdded, Result
from worker_agent.messages import WIRE_KINDS, Usage
from worker_agent.structs import replace
from worker_agent.tools.base import Allow, Ask, Deny, Input, Tool, ToolContext
from worker_agent.tools.tool_hooks import as_update

if TYPE_CHECKING:
    from coordinator.session.handle import SessionHandle
    from worker_agent.mcp.connection import Connection

Fields = Mapping[str, Any]
NOBODY = "it needs consent, and this program answers no questions (--permission-prompt-tool stdio)"
LATE = "hooks, agent definitions and skills are taken from the first line, before there is a session"
NOT_HERE = {
    "rewind_files": "coordinator keeps no copies of files to go back to; git and worktrees do",
    "mcp_toggle": "an agent's tools stay as they are while its conversation goes on",
}
SHOWN_OF_WORKERS = frozenset({"tool_use", "tool_result"})  # blocks, where a program does not want the rest
READS_STATE, SHOWS_STATE = "CLAUDE_CODE_SDK_READS_SESSION_STATE", "CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS"


class Refused(Exception):
    """What a control request asks for cannot be done; the text goes to the program."""


class Control(StreamJsonView):
    """The view, the input and the approver of a session that a program drives. Belongs to one event loop."""

    def __init__(self, console: Console, *, partial_messages: bool, answers: bool, hook_events: bool = False) -> None:
        """`answers`: the program answers `can_use_tool`."""
        super().__init__(console, partial_messages=partial_messages, hook_events=hook_events)
        self._out = console
        self._answers = answers
        self._channel = Channel(console.json_line)
        self._handle: SessionHandle | None = None
        self._options: RunOptions | None = None
        self._wanted = Wanted()
        self._fault: ConfigError | None = None  # of `initialize`
        self._init: str | None = None  # the request id of the `initialize` that the session is made by
        self._spoke = asyncio.Event()  # there is a first line, or the end
        self._is_there = asyncio.Event()  # the session
        self._prompts: asyncio.Queue[Prompt | None] = asyncio.Queue()  # None: the end of input
        self._answered: Prompt | None = None  # the one that the session works on
        self._work: set[asyncio.Task[None]] = set()
        self._told = asyncio.Event()  # the last prompt has its result line
        self._sending = asyncio.Lock()
        self._input_ended = self._is_last = False
        self._owes_result = True
        self._state = ""
        self.person = Person(self._line, self._end)

    @property
    def program(self) -> Program:
        """What the program brings; its hooks are known when `prepare` has returned."""
        return Program(hooks=self._wanted.hooks, callback=self._hook, servers=self._server, skills=self._wanted.skills)

    async def prepare(self, options: RunOptions) -> RunOptions:
        """The options with what the program says first. Raises `ConfigError` where that cannot be had."""
        self.person.listen()
        await self._spoke.wait()
        if self._fault is not None:
            raise self._fault  # what may be a fence is not there: nothing runs without it
        self._options = self._wanted.added_to(options)
        return self._options

    def ready(self, handle: SessionHandle) -> None:
        self._handle = handle
        self._is_there.set()
        self._begin(self._converse(handle))

    # ── what the session does ──────────────────────────────────────────────────────────────────────────────────────

    def started(self, session: Started) -> None:
        self.begin(session.session_id)  # `init` comes with each prompt

    def on(self, observed: Observed) -> None:
        event = observed.event
        if observed.task_id is not None:
            if (wanted := self._as_wanted(observed)) is not None:
                super().on(wanted)
            return
        super().on(observed)
        match event:
            case MessageAdded():
                self._owes_result = True
                self._say_state("running")
            case Result() if not self._is_last:  # the last one is told when the session has ended
                assert self._handle is not None
                if event.is_error or self._handle.is_settled:
                    self._tell(event)

    def _as_wanted(self, observed: Observed) -> Observed | None:
        """What a worker did, without what it said where the program does not want that; None where nothing is left."""
        if self._wanted.workers_text or not isinstance(observed.event, MessageAdded):
            return observed
        message = observed.event.message
        if message.kind not in WIRE_KINDS:
            return observed
        kept = tuple(block for block in message.content if block.get("type") in SHOWN_OF_WORKERS)
        return replace(observed, event=MessageAdded(replace(message, content=kept, wire=b""))) if kept else None

    def finish(self, result: Mapping[str, Any] | None) -> None:
        self._channel.close()
        if result is not None and not self._owes_result:
            tell_failure(self._out, result)
            result = None
        super().finish(result and {**result, **self._named()})

    def _tell(self, result: Result) -> None:
        assert self._handle is not None
        self.write({**self._handle.result_of_turn(result), **self._named()})
        self._owes_result = False
        self._told.set()
        if self._handle.is_settled and self._prompts.qsize() == 0:
            self._say_state("idle")

    def _named(self) -> Fields:
        """Which prompt a result answers, by the program's own name for it."""
        uuid = self._answered.uuid if self._answered else None
        return {"user_message_uuid": uuid, "user_message_uuids": [uuid]} if uuid else {}

    def _say_state(self, state: str) -> None:
        """The state of the session for a program that asked for it: it keeps standard input open until `idle`."""
        reads, shows = variable(READS_STATE), variable(SHOWS_STATE)
        if state == self._state or not (reads or shows):
            return
        self._state = state
        line = {"type": "system", "subtype": "session_state_changed", "state": state}
        self.write(line if shows else {**line, "sdk_host_only": True})

    # ── what the program says ──────────────────────────────────────────────────────────────────────────────────────

    def _line(self, text: str) -> None:
        if not text.strip():
            return
        try:
            self._take(json.loads(text))
        except (ValueError, TypeError, KeyError) as error:
            self._out.note(f"standard input: a line is left out that is no message ({error!r}): {one_line(text, 200)}")

    def _take(self, line: Any) -> None:
        match kind := line["type"]:
            case "user":
                self._prompts.put_nowait(Prompt.of(line))
            case "control_request":
                id, request = line["request_id"], line["request"]
                if not self._spoke.is_set() and request.get("subtype") == "initialize":
                    self._initialize(id, request)
                else:
                    self._begin(self._answer(id, request))
            case "control_response":
                self._channel.settle(line["response"])
            case "keep_alive" | "control_cancel_request":
                return
            case _:
                self._out.note(f"standard input: a line of the unknown type {one_line(str(kind))} is left out")
                return
        self._spoke.set()

    def _initialize(self, id: str, request: Fields) -> None:
        """Before there is a session. It is answered when there is one."""
        try:
            self._wanted = Wanted.of(request)
        except ConfigError as error:
            self._fault = error
            self._respond(id, {"subtype": "error", "error": str(error)})
        else:
            self._init = id
            self._begin(self._answer(id, request))

    def _end(self) -> None:
        self._input_ended = True
        self._prompts.put_nowait(None)
        self._channel.close()
        self._spoke.set()

    async def _converse(self, handle: SessionHandle) -> None:
        while (prompt := await self._prompts.get()) is not None:
            self._told.clear()
            self._answered = prompt
            async with self._sending:
                refusal = await self._give(handle, prompt)
            if refusal is not None:
                self._tell(_refused(refusal))
            elif self._input_ended and self._prompts.qsize() == 1:
                self._is_last = True
                break
            await self._told.wait()
        handle.close()

    async def _give(self, handle: SessionHandle, prompt: Prompt) -> str | None:
        """Hand a prompt on to the session. Why it cannot be, if it cannot."""
        assert self._options is not None
        self.announce(started(handle, self._options))
        self._say_state("running")
        if prompt.fault is not None:
            return prompt.fault
        if handle.is_command(prompt.text):
            return await handle.send(prompt.text)
        text, blocks = prompt.text, prompt.blocks
        if not prompt.verbatim:
            try:
                text = await asyncio.to_thread(handle.expand, text)
            except ConfigError as error:
                return str(error)
            if "@" in prompt.text:
                found = await asyncio.to_thread(attached.files, prompt.text, self._options.cwd)
                text, blocks = "\n\n".join(filter(None, (text, found.text))), (*blocks, *found.blocks)
                for note in found.notes:
                    self._out.note(note)
        return await handle.prompt(text, blocks)

    def _begin(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    # ── control requests of the program ────────────────────────────────────────────────────────────────────────────

    async def _answer(self, request_id: str, request: Fields) -> None:
        await self._is_there.wait()
        try:
            async with self._sending:  # a prompt that came before it is there before
                answer = await self._do(request_id, request)
        except (Refused, KeyError, ValueError, TypeError, StoreError, ConfigError) as error:
            self._respond(request_id, {"subtype": "error", "error": str(error) or type(error).__name__})
        else:
            self._respond(request_id, {"subtype": "success", "response": answer})

    def _respond(self, request_id: str, told: Fields) -> None:
        self._out.json_line({"type": "control_response", "response": {**told, "request_id": request_id}})

    async def _do(self, request_id: str, request: Fields) -> Fields:
        handle = self._handle
        assert handle is not None
        match request.get("subtype"):
            case "initialize":
                return self._about(handle, is_first=request_id == self._init, request=request)
            case "interrupt":
                handle.stop_turn()
                return {}
            case "set_permission_mode":
                handle.set_permission_mode(request["mode"])
                return {"mode": request["mode"]}
            case "set_model":
                handle.set_model(request.get("model"))
                return {}
            case "mcp_status":
                return {"mcpServers": [_server_status(connection) for connection in handle.mcp_connections()]}
            case "mcp_reconnect":
                await _reconnected(handle.mcp_connections(), request["serverName"])
                return {}
            case "get_context_usage":
                return _context_usage(handle)
            case "stop_task":
                await handle.stop_task(request["task_id"])
                return {}
            case str() as known if known in NOT_HERE:
                raise Refused(f"{known} is not supported: {NOT_HERE[known]}")
            case other:
                raise Refused(f"coordinator does not know the control request {other!r}")

    def _about(self, handle: SessionHandle, *, is_first: bool, request: Fields) -> Fields:
        """What a program is told of the session."""
        if not is_first and any(request.get(name) for name in ("hooks", "agents", "skills")):
            raise Refused(LATE)
        commands = [{"name": name, "description": text, "argumentHint": ""} for name, text in handle.commands()]
        agents = [{"name": name, "description": text} for name, text in handle.agent_types()]
        return {
            "commands": commands, "agents": agents, "output_style": "default", "available_output_styles": ["default"],
            "models": [], "account": {}, "hook_on_failure_supported": True, "hooks_applied": is_first,
        }  # fmt: skip

    # ── what is asked of the program ───────────────────────────────────────────────────────────────────────────────

    async def ask(self, tool: Tool, input: Input, ask: Ask, context: ToolContext) -> Allow | Deny:
        """As `Approver.ask`: the program's word about one call."""
        if not self._answers:
            return Deny(NOBODY)
        worker = {"agent_id": context.agent_id} if context.task_id else {}
        self._say_state("requires_action")
        try:
            said = await self._channel.ask(
                "can_use_tool", tool_name=tool.name, input=dict(input), tool_use_id=context.tool_use_id,
                permission_suggestions=[as_update(ask.suggestion)] if ask.suggestion else [], blocked_path=None,
                decision_reason=ask.reason, title=tool.activity(input), display_name=tool.name,
                description=str(input.get("description") or ""), **worker,
            )  # fmt: skip
        except Unanswered as error:
            return Deny(f"it needs consent, and there was no answer: {error}")
        finally:
            self._say_state("running")
        return self._decided(said, input)

    def _decided(self, said: Fields, input: Input) -> Allow | Deny:
        if said.get("behavior") == "allow":
            self._update_permissions(said.get("updatedPermissions") or ())
            updated = said.get("updatedInput")
            if updated is not None and not isinstance(updated, Mapping):
                return Deny("the program allowed it with an input that is none")
            return Allow(updated if updated != input else None, reason="the program allowed it")
        if said.get("interrupt") and self._handle is not None:
            self._handle.stop_turn()
        return Deny(str(said.get("message") or "the program said no"))

    def _update_permissions(self, updates: Sequence[Fields]) -> None:
        assert self._handle is not None
        try:
            self._handle.update_permissions(updates)
        except ConfigError as error:
            self._out.note(f"the program's updates of permissions change nothing: {error}")

    async def _hook(self, id: str, payload: Fields, tool_use_id: str | None) -> Fields:
        return await self._channel.ask("hook_callback", callback_id=id, input=payload, tool_use_id=tool_use_id)

    async def _server(self, name: str, message: Fields) -> Fields:
        said = await self._channel.ask("mcp_message", server_name=name, message=message)
        answer: Fields = said.get("mcp_response") or {}
        return answer


def _server_status(connection: Connection) -> Fields:
    server, offer = connection.server, connection.offer
    config = {"type": server.kind} | ({"command": server.command} if server.command else {})
    config |= {"url": server.url} if server.url else {"name": server.name} if server.kind == "sdk" else {}
    name, _, version = offer.version.rpartition(" ")
    status: dict[str, Any] = {
        "name": server.name,
        "status": str(connection.state),
        "scope": str(server.scope),
        "config": config,
    }
    if connection.state == "connected":
        tools = [{"name": tool.own_name, "description": tool.description} for tool in offer.tools]
        status |= {"serverInfo": {"name": name or offer.version, "version": version}, "tools": tools}
    return status | ({"error": connection.problem} if connection.problem else {})


async def _reconnected(connections: Sequence[Connection], name: str) -> None:
    """Start a server that is not there. Raises `Refused`."""
    connection = next((one for one in connections if one.server.name == name), None)
    if connection is None:
        raise Refused(f"there is no MCP server {name!r}")
    await connection.start()
    if connection.problem is not None:
        raise Refused(f"the MCP server {name!r} is not there: {connection.problem}")


def _context_usage(handle: SessionHandle) -> Fields:
    """As far as it is known: how much of the window the newest call took."""
    used, window = handle.context_usage()
    return {
        "categories": [{"name": "Messages", "tokens": used, "color": "blue"}], "totalTokens": used, "maxTokens": window,
        "rawMaxTokens": window, "percentage": 100 * used / window if window else 0.0, "model": handle.current_model,
        "isAutoCompactEnabled": True, "memoryFiles": [], "mcpTools": [], "agents": [], "gridRows": [],
    }  # fmt: skip


def _refused(reason: str) -> Result:
    return Result(
        text="", reason="hook_stopped", is_error=True, turns=0, duration=0.0, duration_api=0.0, usage=Usage(), cost_usd=0.0,
        error=reason,
    )  # fmt: skip
