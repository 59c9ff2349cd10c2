"""One tool call through its gates, in this order. The only place where an exception becomes a result.

    known tool → input against its schema → the tool's own `validate_input` → `PreToolUse` hooks → permissions (deny
    rule, ask rule, the tool's own check, mode, allow rule, then `PermissionRequest` hooks, then the person) → record the
    intent → `call` → `PostToolUse` hooks → result: secrets out, too large to a file

Rules:

1. A failure at any gate is an `is_error` result inside `<tool_use_error>`: the model can mend it, the loop goes on.
   `TurnOver` is one too, and the outcome says that the turn stops. Any other exception is a bug of the tool: one line,
   the class and its message, never a traceback. A cancellation passes: the executor answers for it.
2. What a hook or a person puts in place of the input passes schema, `validate_input` and the deny rules again.
3. A hook's "allow" lifts only what the mode would ask. It never overrides a deny or an ask rule. Its "deny" always holds.
4. Once the tool has run, its result stands: a failing hook after it is told beside it.
5. `before_call` stands outside of rule 1: if an intent cannot be recorded, the turn fails, not the call.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from msgspec import Struct

from worker_agent.context.spill import spill
from worker_agent.errors import ToolError, ToolFailure, TurnOver
from worker_agent.events import PermissionDenial
from worker_agent.messages import Block, clean, tool_result_block
from worker_agent.redaction import in_json
from worker_agent.structs import replace
from worker_agent.tools.base import (
    Allow,
    Ask,
    Confine,
    Decision,
    Deny,
    Input,
    Passthrough,
    Tool,
    ToolContext,
    ToolOutcome,
    ToolResult,
)
from worker_agent.tools.schema import problem_with

BeforeCall = Callable[[Input, bool], Awaitable[None]]
"""Awaited with the final input and whether the call is read-only, after the last gate, before the tool runs."""

NOTHING = "(no output)"
MAX_ERROR = 2_000  # characters of an exception's own words
_TAG = re.compile(r"<(?=\s*/?\s*tool_use_error)", re.IGNORECASE)
T = TypeVar("T")


async def run_call(
    tool: Tool | None,
    block: Block,
    context: ToolContext,
    invalid: str | None = None,
    *,
    before_call: BeforeCall | None = None,
) -> ToolOutcome:
    """Run the `tool_use` in `block` and say how it ended. `context` is the copy for this call; `invalid` says why its
    JSON could not be read."""
    call = _Call(tool, block, context)
    passed = await _settled(call.pass_gates(invalid))
    if isinstance(passed, _Failure):
        return call.outcome(call.error(passed.error))
    if before_call is not None:
        await before_call(call.input, call.read_only)
    result = await _settled(call.run())
    if isinstance(result, _Failure):
        result = call.failed(result.error)
    after = await _settled(call.after(result))
    if isinstance(after, _Failure):
        after = call.noted(after.error, result)
    answer = await _settled(call.result(after))
    return call.outcome(call.error(answer.error) if isinstance(answer, _Failure) else answer)


def error_block(tool_use_id: str, text: str) -> Block:
    """The result of a call that failed: `text` inside the tag, so that it cannot close the tag itself."""
    inside = _TAG.sub("&lt;", clean(text))
    return tool_result_block(tool_use_id, f"<tool_use_error>{inside}</tool_use_error>", is_error=True)


def agrees(question: Callable[[Input], bool], input: Input) -> bool:
    """A tool's answer to `is_read_only` or `is_concurrency_safe`; a question that raises counts as no."""
    try:
        return bool(question(input))
    except Exception:
        return False


class _Failure(Struct, frozen=True):
    error: Exception


async def _settled(step: Awaitable[T]) -> T | _Failure:
    """The one broad `except` around what tools, hooks and rules do."""
    try:
        return await step
    except Exception as error:
        return _Failure(error)


class _Call:
    """One call on its way: its input as the gates left it, and what hooks want to say beside the result."""

    __slots__ = ("_begun", "_notes", "_stop", "block", "context", "input", "read_only", "tool")

    def __init__(self, tool: Tool | None, block: Block, context: ToolContext) -> None:
        self.tool = tool
        self.block = block
        self.context = context
        self.input: Input = block.get("input") or {}
        self.read_only = tool is None  # what never runs has no effects
        self._notes: tuple[str, ...] = ()
        self._stop: str | None = None
        self._begun = context.clock.monotonic()

    # ── the gates ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def pass_gates(self, invalid: str | None) -> None:
        tool = self._known()
        if invalid:
            raise ToolError(invalid)
        await self._check_input(tool)
        decision = await self._ask_hooks(tool)
        await self._ask_permission(tool, decision)
        self.read_only = agrees(tool.is_read_only, self.input)

    def _known(self) -> Tool:
        if self.tool is None:
            name = str(self.block.get("name"))[:100]
            raise ToolError(f"There is no tool named {name!r}. Use one of those you were given.")
        self.read_only = False
        return self.tool

    async def _check_input(self, tool: Tool) -> None:
        problem = problem_with(tool, self.input) or await tool.validate_input(self.input, self.context)
        if problem:
            raise ToolError(problem)

    async def _ask_hooks(self, tool: Tool) -> Decision:
        said = await self.context.hooks.pre_tool_use(tool.name, self.input, self.context.tool_use_id)
        self._notes += said.context
        if isinstance(said.decision, Deny):
            self._deny(said.decision.reason)
        await self._put_in_place(tool, said.updated_input)
        return said.decision

    async def _ask_permission(self, tool: Tool, hook: Decision) -> None:
        decision = await self.context.permissions.decide(tool, self.input, self.context)
        if isinstance(decision, Passthrough):
            decision = Ask("no rule allows it")
        if isinstance(decision, Ask) and isinstance(hook, Allow) and not decision.by_rule:
            decision = hook
        elif isinstance(decision, Allow) and isinstance(hook, Ask):
            await self._put_in_place(tool, decision.updated_input)
            decision = hook
        nobody = False
        if isinstance(decision, Ask):
            answered = await self._answered_by_hooks(tool, decision)
            nobody = answered is None and self.context.approver is None
            decision = answered or await self._ask_person(tool, decision)
        if isinstance(decision, Deny):
            self._deny(decision.reason, needs_person=nobody)
        elif isinstance(decision, Allow):
            confine = decision.confine
            if await self._put_in_place(tool, decision.updated_input):
                again = await self.context.permissions.decide(tool, self.input, self.context)
                if isinstance(again, Deny):
                    self._deny(again.reason)
                confine = Confine.GUARD  # what was read is not what runs
            if confine is not self.context.confine:
                self.context = replace(self.context, confine=confine)

    async def _answered_by_hooks(self, tool: Tool, ask: Ask) -> Allow | Deny | None:
        """What hooks say in the person's place; None where it is for the person to say."""
        said = await self.context.hooks.permission_request(tool.name, self.input, ask.suggestion)
        if isinstance(said, Deny):
            return said
        if not isinstance(said, Allow) or ask.by_rule:
            return None
        if await self._put_in_place(tool, said.updated_input):
            again = await self.context.permissions.decide(tool, self.input, self.context)
            if isinstance(again, Deny):
                return again
            if isinstance(again, Ask) and again.by_rule:
                return None
        return Allow(reason=said.reason)

    async def _ask_person(self, tool: Tool, ask: Ask) -> Allow | Deny:
        if self.context.approver is not None:
            return await self.context.approver.ask(tool, self.input, ask, self.context)
        hint = f" A rule that would allow it: {ask.suggestion}" if ask.suggestion else ""
        return Deny(f"this needs a person's approval, and there is nobody to ask ({ask.reason}).{hint}")

    async def _put_in_place(self, tool: Tool, updated: Input | None) -> bool:
        if updated is None or updated == self.input:
            return False
        self.input = updated
        await self._check_input(tool)
        return True

    def _deny(self, reason: str, *, needs_person: bool = False) -> None:
        reason = self.context.redact(clean(reason))
        input = in_json(self.input, self.context.redact)
        denial = PermissionDenial(str(self.block["name"]), self.context.tool_use_id, input, reason, needs_person)
        self.context.denials.append(denial)
        raise ToolError(f"Permission denied: {reason}")

    # ── the call and what comes after ──────────────────────────────────────────────────────────────────────────────

    async def run(self) -> ToolResult:
        assert self.tool is not None
        return await self.tool.call(self.input, self.context)

    async def after(self, result: ToolResult) -> ToolResult:
        assert self.tool is not None
        duration = self.context.clock.monotonic() - self._begun
        said = await self.context.hooks.post_tool_use(self.tool.name, self.input, self.context.tool_use_id, result, duration)
        self._notes += (*said.feedback, *said.context)
        return result if said.updated_output is None else replace(result, content=said.updated_output)

    def error(self, error: Exception) -> Block:
        """The result of a call that a gate stopped, or whose result is none."""
        return error_block(self._id, self._redacted(self._words(error)))

    def failed(self, error: Exception) -> ToolResult:
        """The result of a call that raised, as hooks see it."""
        return _FailedResult(self._words(error), is_error=True)

    def noted(self, error: Exception, result: ToolResult) -> ToolResult:
        self._notes += (f"A hook after the call failed: {self._words(error)}",)
        return result

    def _words(self, error: Exception) -> str:
        if isinstance(error, TurnOver):
            self._stop = self._redacted(str(error)) or error.reason
        if isinstance(error, ToolFailure):
            return str(error)
        first = next(iter(str(error).strip().splitlines()), "")
        what = f"{type(error).__name__}: {first[:MAX_ERROR]}" if first else type(error).__name__
        return f"{self.tool.name if self.tool else 'The tool'} failed: {what}"

    # ── the result ─────────────────────────────────────────────────────────────────────────────────────────────────

    def outcome(self, block: Block) -> ToolOutcome:
        return ToolOutcome(
            tool_use_id=self._id,
            name=str(self.block.get("name")),
            block=block,
            is_error=bool(block.get("is_error")),
            duration=self.context.clock.monotonic() - self._begun,
            read_only=self.read_only,
            context=tuple(self._redacted(note) for note in self._notes if note),
            stop=self._stop,
        )

    @property
    def _id(self) -> str:
        return str(self.block["id"])

    async def result(self, result: ToolResult) -> Block:
        """The block for the model: secrets out, within the tool's cap."""
        content = self._within_cap(self._cleaned(result.content))
        if isinstance(result, _FailedResult) and isinstance(content, str):
            return error_block(self._id, content)
        return tool_result_block(self._id, content, is_error=result.is_error)

    def _cleaned(self, content: str | Sequence[Block]) -> str | Sequence[Block]:
        if isinstance(content, str):
            return self._redacted(content) or NOTHING
        blocks = [self._cleaned_block(block) for block in content]
        return [b for b in blocks if b.get("type") != "text" or b["text"]] or NOTHING

    def _cleaned_block(self, block: Block) -> Block:
        if block.get("type") == "text":
            return {**block, "text": self._redacted(block["text"])}
        return block

    def _within_cap(self, content: str | Sequence[Block]) -> str | Sequence[Block]:
        assert self.tool is not None
        settings = self.context.settings
        cap = self.tool.result_cap
        if cap is None:
            return content
        cap = settings.result_cap if cap == Tool.result_cap else cap
        try:
            return spill(content, self._id, self.context.spill_dir, cap, settings.preview)[0]
        except OSError as error:
            why = error.strerror or type(error).__name__
            return f"{str(content)[: settings.preview]}\n[cut here: the rest could not be written to a file: {why}]"

    def _redacted(self, text: str) -> str:
        return self.context.redact(clean(text))


class _FailedResult(ToolResult, Struct, frozen=True):
    """What stands for the result of a call that raised."""


__all__ = ["BeforeCall", "agrees", "error_block", "run_call"]
