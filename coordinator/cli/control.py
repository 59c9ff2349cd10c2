"""`--input-format stream-json`: a program talks to the session over standard input, a JSON object a line.

1. A `user` line is a prompt. The next one is given to the session when the result of the one before is printed, so that
   every prompt has its result line; the end of input ends the session.
2. A `control_request` line is answered by a `control_response` of the same `request_id`: at once, also while a turn runs.
   What cannot be done is refused by an error that names it, never taken in silence.
3. With `--permission-prompt-tool stdio` a call that needs consent is asked of the program (`can_use_tool`). When input has
   ended nobody can consent: what waits is denied. A program that did not ask for this is asked nothing, and such calls
   are denied.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from coordinator.cli.console import Console
from coordinator.cli.person import Person
from coordinator.cli.run_views import StreamJsonView, tell_failure
from coordinator.observed import Observed
from coordinator.views.terminal_text import one_line
from tasks.errors import StoreError
from worker_agent.events import MessageAdded, Result
from worker_agent.messages import Usage
from worker_agent.tools.base import Allow, Ask, Deny, Input, Tool, ToolContext

if TYPE_CHECKING:
    from coordinator.session.handle import SessionHandle

Fields = Mapping[str, Any]
NOBODY = "it needs consent, and this program answers no questions (--permission-prompt-tool stdio)"
GONE = "it needs consent, and the program that could give it has closed standard input"
# What a program wants of a session in `initialize`, and what is not done yet.
NOT_YET = {"hooks": "hook callbacks", "agents": "agent definitions in `initialize`", "skills": "a list of skills"}


class Refused(Exception):
    """What a control request asks for cannot be done; the text goes to the program."""


class Control(StreamJsonView):
    """The view, the input and the approver of a session that a program drives. Belongs to one event loop."""

    def __init__(self, console: Console, *, partial_messages: bool, answers: bool) -> None:
        """`answers`: the program answers `can_use_tool`."""
        super().__init__(console, partial_messages=partial_messages)
        self._out = console
        self._answers = answers
        self._handle: SessionHandle | None = None
        self._prompts: asyncio.Queue[str | None] = asyncio.Queue()  # None: the end of input
        self._asked: dict[str, asyncio.Future[Fields]] = {}  # request id → what the program will answer
        self._work: set[asyncio.Task[None]] = set()
        self._told = asyncio.Event()  # the last prompt has its result line
        self._sending = asyncio.Lock()
        self._input_ended = self._is_last = False
        self._owes_result = True
        self.person = Person(self._line, self._end)

    def ready(self, handle: SessionHandle) -> None:
        self._handle = handle
        self.person.listen()
        self._begin(self._converse(handle))

    # ── what the session does ──────────────────────────────────────────────────────────────────────────────────────

    def on(self, observed: Observed) -> None:
        super().on(observed)
        if observed.task_id is not None:
            return
        match observed.event:
            case MessageAdded():
                self._owes_result = True
            case Result() as result if not self._is_last:  # the last one is told when the session has ended
                assert self._handle is not None
                if result.is_error or self._handle.is_settled:
                    self._tell(result)

    def finish(self, result: Mapping[str, Any] | None) -> None:
        self._out_of_words()
        if result is not None and not self._owes_result:
            tell_failure(self._out, result)
            result = None
        super().finish(result)

    def _tell(self, result: Result) -> None:
        assert self._handle is not None
        self.write(self._handle.result_of_turn(result))
        self._owes_result = False
        self._told.set()

    # ── what the program says ──────────────────────────────────────────────────────────────────────────────────────

    def _line(self, text: str) -> None:
        if not text.strip():
            return
        try:
            line = json.loads(text)
            kind = line["type"]
            match kind:
                case "user":
                    self._prompts.put_nowait(_text_of(line["message"]["content"]))
                case "control_request":
                    self._begin(self._answer(line["request_id"], line["request"]))
                case "control_response":
                    self._settle(line["response"])
                case _:
                    self._out.note(f"standard input: a line of the unknown type {one_line(str(kind))} is left out")
        except (ValueError, TypeError, KeyError) as error:
            self._out.note(f"standard input: a line is left out that is no message ({error!r}): {one_line(text, 200)}")

    def _end(self) -> None:
        self._input_ended = True
        self._prompts.put_nowait(None)
        self._out_of_words()

    def _out_of_words(self) -> None:
        """Nobody answers any more."""
        for asked in self._asked.values():
            if not asked.done():
                asked.set_result({"behavior": "deny", "message": GONE})

    async def _converse(self, handle: SessionHandle) -> None:
        while (prompt := await self._prompts.get()) is not None:
            self._told.clear()
            async with self._sending:
                refusal = await handle.send(prompt)
            if refusal is not None:
                self._tell(_refused(refusal))
            elif self._input_ended and self._prompts.qsize() == 1:
                self._is_last = True
                break
            await self._told.wait()
        handle.close()

    def _begin(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    # ── control requests of the program ────────────────────────────────────────────────────────────────────────────

    async def _answer(self, request_id: str, request: Fields) -> None:
        try:
            async with self._sending:  # a prompt that came before it is there before
                answer = await self._do(request)
        except (Refused, KeyError, ValueError, StoreError) as error:
            told: dict[str, Any] = {"subtype": "error", "request_id": request_id, "error": str(error)}
        else:
            told = {"subtype": "success", "request_id": request_id, "response": answer}
        self._out.json_line({"type": "control_response", "response": told})

    async def _do(self, request: Fields) -> Fields:
        handle = self._handle
        assert handle is not None
        match request.get("subtype"):
            case "initialize":
                for name, words in NOT_YET.items():
                    if request.get(name):
                        raise Refused(f"coordinator cannot do this yet: {words}")
                return {"commands": [], "output_style": "default", "available_output_styles": ["default"], "models": [],
                        "account": {}}  # fmt: skip
            case "interrupt":
                if handle.is_in_turn:
                    handle.interrupt()
                return {}
            case "set_permission_mode":
                handle.set_permission_mode(request["mode"])
                return {"mode": request["mode"]}
            case "set_model":
                handle.set_model(request.get("model"))
                return {}
            case "mcp_status":
                return {"mcpServers": [{"name": name, "status": status} for name, status in handle.mcp_status()]}
            case "stop_task":
                await handle.stop_task(request["task_id"])
                return {}
            case other:
                raise Refused(f"coordinator does not know the control request {other!r}")

    # ── questions to the program ───────────────────────────────────────────────────────────────────────────────────

    async def ask(self, tool: Tool, input: Input, ask: Ask, context: ToolContext) -> Allow | Deny:
        """As `Approver.ask`: the program's word about one call."""
        if not self._answers:
            return Deny(NOBODY)
        said = await self._request(
            {"subtype": "can_use_tool", "tool_name": tool.name, "input": dict(input), "permission_suggestions": [],
             "tool_use_id": context.tool_use_id, "decision_reason": ask.reason}
            | ({"agent_id": context.agent_id} if context.task_id else {})
        )  # fmt: skip
        if said.get("behavior") == "allow":
            if said.get("updatedInput", input) != input:
                return Deny("the program wants another input for it, which coordinator cannot do: call it with that input")
            return Allow(reason="the program allowed it")
        if said.get("interrupt") and self._handle is not None:
            self._handle.interrupt()
        return Deny(str(said.get("message") or "the program said no"))

    async def _request(self, request: Fields) -> Fields:
        """What the program answers; an error of it is a denial."""
        if self._input_ended:
            return {"behavior": "deny", "message": GONE}
        id = str(uuid.uuid4())
        self._asked[id] = asyncio.get_running_loop().create_future()
        self._out.json_line({"type": "control_request", "request_id": id, "request": request})
        try:
            return await self._asked[id]
        except asyncio.CancelledError:
            self._out.json_line({"type": "control_cancel_request", "request_id": id})
            raise
        finally:
            del self._asked[id]

    def _settle(self, response: Fields) -> None:
        asked = self._asked.get(response["request_id"])
        if asked is None or asked.done():
            return
        if response.get("subtype") == "success":
            asked.set_result(response.get("response") or {})
        else:
            asked.set_result({"behavior": "deny", "message": f"the program failed to answer: {response.get('error')}"})


def _text_of(content: Any) -> str:
    """The text of a user message. Raises `ValueError` for blocks that are no text."""
    if isinstance(content, str):
        return content
    if others := sorted({str(block["type"]) for block in content} - {"text"}):
        raise ValueError(f"only text can be read here, not {', '.join(others)}")
    return "\n\n".join(block["text"] for block in content)


def _refused(reason: str) -> Result:
    return Result(
        text="", reason="hook_stopped", is_error=True, turns=0, duration=0.0, duration_api=0.0, usage=Usage(), cost_usd=0.0,
        error=reason,
    )  # fmt: skip
