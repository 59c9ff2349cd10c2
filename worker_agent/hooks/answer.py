"""What a hook said, as a value: from exit code and output to one answer, from many answers to one verdict.

Rules: exit 0 is fine; exit 2 blocks where the event can be blocked, and nothing on stdout undoes it; any other code is one
notice and no more. Output whose first character is `{` is JSON, on every exit code; any other is plain text, which only
`SessionStart`, `UserPromptSubmit` and `UserPromptExpansion` take as context. A hook that timed out or could not start blocks nothing. Of several
decisions the stricter wins: deny, defer, ask, allow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct, field

STRING_CAP = 10_000  # characters of one string; the surplus goes to a file

# What exit code 2 does. `block`: the action; `feedback`: its text goes to the model; others tell the person only.
_BLOCKS = frozenset(
    """UserPromptSubmit UserPromptExpansion PreToolUse PostToolBatch Stop SubagentStop TaskCreated TaskCompleted
    PreCompact""".split()
)
_FEEDBACK = frozenset({"PostToolUse", "PostToolUseFailure"})
_DECIDES = (_BLOCKS | _FEEDBACK) - {"TaskCompleted"}  # events that know `decision: "block"`
_PLAIN_TEXT = frozenset({"SessionStart", "UserPromptSubmit", "UserPromptExpansion"})
_STRICTER = ("deny", "defer", "ask", "allow")
# Only titles, notifications and the bell may reach a terminal.
_TERMINAL = re.compile(r"(?:\x1b\](?:0|1|2|9|99|777);[^\x00-\x1f\x7f]*(?:\x07|\x1b\\)|\x07)*")


class Ran(Struct, frozen=True):
    """How one handler ended: `code` None when it timed out or could not start, and `trouble` says which."""

    label: str
    code: int | None
    stdout: str = ""
    stderr: str = ""
    trouble: str | None = None


class HookAnswer(Struct, frozen=True, kw_only=True):
    """One handler's answer. `block` is its objection; `stop` forbids going on at all; `notice` is for the person."""

    block: str | None = None
    stop: str | None = None
    decision: str | None = None
    reason: str = ""
    updated_input: Mapping[str, Any] | None = None
    updated_output: str | None = None
    context: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    terminal: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def refusing(self) -> HookAnswer:
        """What of it forbids something, or asks."""
        decision = None if self.decision == "allow" else self.decision
        return HookAnswer(
            block=self.block, stop=self.stop, decision=decision, reason=self.reason if decision else "", notices=self.notices
        )


class Verdict(Struct, frozen=True, kw_only=True):
    """All handlers of one event together. `blocking`: their objections in order; `stop`: going on is forbidden, and why;
    `decision` of PreToolUse is allow, deny, ask or None, `reason` its reason. `context` is for the model, `notices` for the
    person. `extra` has what only one event knows (`sessionTitle`, `initialUserMessage`, `watchPaths`); `environment` what a
    SessionStart hook wrote to its file."""

    blocking: tuple[str, ...] = ()
    stop: str | None = None
    decision: str | None = None
    reason: str = ""
    updated_input: Mapping[str, Any] | None = None
    updated_output: str | None = None
    context: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    terminal: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def blocked(self) -> bool:
        return bool(self.blocking) or self.stop is not None


class StopVerdict(Struct, frozen=True):
    """`blocking` errors send the agent back to work, `prevent` forbids going on."""

    blocking: tuple[str, ...] = ()
    prevent: str | None = None


class BatchVerdict(Struct, frozen=True):
    """`stop`: the loop ends before the next call, and why; `context` is for the model."""

    stop: str | None = None
    context: tuple[str, ...] = ()


def answer(event: str, ran: Ran, spill: Callable[[str], str]) -> HookAnswer:
    """What one handler said. `spill` shortens a long string and keeps the whole elsewhere."""
    if ran.code is None:
        return HookAnswer(notices=(f"hook {_short(ran.label)}: {ran.trouble}",))
    data, problem = _json(ran.stdout)
    said = _from_json(event, data, spill) if data is not None else {}
    notices = list(said.pop("notices", ()))
    if problem:
        notices.append(f"hook {_short(ran.label)}: {problem}")
    if data is None and not problem and ran.code == 0 and event in _PLAIN_TEXT and ran.stdout.strip():
        said["context"] = (spill(ran.stdout.strip()),)
    if ran.code == 2:
        words = spill(ran.stderr.strip()) or f"hook {_short(ran.label)} objects"
        said |= _exit_two(event, words, notices)
    elif ran.code != 0:
        notices.append(f"hook {_short(ran.label)} failed with exit code {ran.code}: {_short(ran.stderr.strip())}".rstrip(": "))
    return HookAnswer(**said, notices=tuple(notices))


def _exit_two(event: str, words: str, notices: list[str]) -> dict[str, Any]:
    if event == "PreToolUse":
        return {"block": words, "decision": "deny", "reason": words}
    if event in _BLOCKS or event in _FEEDBACK:
        return {"block": words}
    notices.append(words)
    return {}


def _json(stdout: str) -> tuple[Mapping[str, Any] | None, str | None]:
    text = stdout.strip()
    if not text.startswith("{"):
        return None, None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None, "its output begins like JSON but is none"
    return (data, None) if isinstance(data, dict) else (None, "its output is no JSON object")


def _from_json(event: str, data: Mapping[str, Any], spill: Callable[[str], str]) -> dict[str, Any]:
    said: dict[str, Any] = {"notices": []}
    own = data.get("hookSpecificOutput")
    own = own if isinstance(own, Mapping) and own.get("hookEventName", event) == event else {}
    if data.get("continue") is False:
        said["stop"] = spill(_text(data.get("stopReason")) or "a hook forbade going on")
    if message := _text(data.get("systemMessage")):
        said["notices"].append(spill(message))
    sequence = data.get("terminalSequence")
    if isinstance(sequence, str) and _TERMINAL.fullmatch(sequence):
        said["terminal"] = sequence
    if data.get("decision") == "block" and event in _DECIDES:
        said["block"] = spill(_text(data.get("reason")) or "a hook objects")
    if context := _text(own.get("additionalContext")):
        said["context"] = (spill(context),)
    if event == "PreToolUse":
        _pre_tool_use(said, data, own, spill)
    if event == "PermissionRequest":
        _permission_request(said, own.get("decision"), spill)
    if event in _FEEDBACK and own.get("updatedToolOutput") is not None:
        output = own["updatedToolOutput"]
        said["updated_output"] = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    said["extra"] = {k: own[k] for k in ("sessionTitle", "initialUserMessage", "watchPaths") if k in own}
    return said


def _pre_tool_use(said: dict[str, Any], data: Mapping[str, Any], own: Mapping[str, Any], spill: Callable[[str], str]) -> None:
    old = {"approve": "allow", "block": "deny"}.get(str(data.get("decision")))
    decision = own.get("permissionDecision", old)
    if decision in _STRICTER:
        said["decision"] = decision
        said["reason"] = spill(_text(own.get("permissionDecisionReason")) or _text(data.get("reason")) or "")
    if decision == "deny":
        said["block"] = said["reason"] or "a hook denies it"
    else:
        said.pop("block", None)
    if isinstance(own.get("updatedInput"), Mapping):
        said["updated_input"] = own["updatedInput"]


def _permission_request(said: dict[str, Any], decision: Any, spill: Callable[[str], str]) -> None:
    """`{behavior, updatedInput, message, interrupt}`. What is neither allow nor deny leaves it to the person."""
    if not isinstance(decision, Mapping) or decision.get("behavior") not in ("allow", "deny"):
        return
    said["decision"] = decision["behavior"]
    said["reason"] = spill(_text(decision.get("message")))
    if said["decision"] == "deny":
        said["block"] = said["reason"] or "a hook denies it"
        if decision.get("interrupt") is True:
            said["stop"] = said["block"]
        return
    if isinstance(decision.get("updatedInput"), Mapping):
        said["updated_input"] = decision["updatedInput"]
    if decision.get("updatedPermissions"):
        said["notices"].append(
            "what a hook of PermissionRequest says in updatedPermissions is passed over: it allows this call"
        )


# What the field `permissionDecision`, or `decision`, of an answer may be.
_DECISIONS = {"permissionDecision": _STRICTER, "decision": ("block", "approve")}
_UNBLOCKED = frozenset({"Stop", "SubagentStop", "TaskCompleted"})  # going back to work is no safe side to err on


def fault(event: str, output: Any) -> str | None:
    """What is wrong with what a callback answered, in words; None where it can be read. Keys that nobody knows are no fault."""
    if not isinstance(output, Mapping):
        return f"it answered {type(output).__name__}, and no object"
    own = output.get("hookSpecificOutput")
    if own is not None and (not isinstance(own, Mapping) or own.get("hookEventName", event) != event):
        return f"its hookSpecificOutput is none of {event}"
    for key, known in _DECISIONS.items():
        said = (output if key == "decision" else own or {}).get(key)
        if said is not None and said not in known:
            return f"its {key} {said!r} is none of {', '.join(known)}"
    if own is not None and not isinstance(own.get("updatedInput", {}), Mapping):
        return "its updatedInput is no object"
    return None


def objection(event: str, why: str) -> Mapping[str, Any]:
    """The answer of a handler that blocks, where `event` can be blocked; else one that says nothing."""
    match event:
        case "PreToolUse":
            own: Mapping[str, Any] = {"permissionDecision": "deny", "permissionDecisionReason": why}
        case "PermissionRequest":
            own = {"decision": {"behavior": "deny", "message": why}}
        case _ if event in _DECIDES and event not in _UNBLOCKED:
            return {"decision": "block", "reason": why}
        case _:
            return {"systemMessage": why}
    return {"hookSpecificOutput": {"hookEventName": event, **own}}


def combine(answers: Iterable[HookAnswer]) -> Verdict:
    """One verdict out of all answers, in the order of the handlers."""
    every = list(answers)
    decided = sorted((a for a in every if a.decision), key=lambda a: _STRICTER.index(a.decision or "allow"))
    first = decided[0] if decided else HookAnswer()
    extra: dict[str, Any] = {}
    for one in every:
        extra |= one.extra
    return Verdict(
        blocking=tuple(a.block for a in every if a.block is not None),
        stop=next((a.stop for a in every if a.stop is not None), None),
        decision="ask" if first.decision == "defer" else first.decision,
        reason=first.reason,
        updated_input=next((a.updated_input for a in reversed(every) if a.updated_input is not None), None),
        updated_output=next((a.updated_output for a in reversed(every) if a.updated_output is not None), None),
        context=tuple(text for a in every for text in a.context),
        notices=tuple(text for a in every for text in a.notices),
        terminal="".join(a.terminal for a in every),
        extra=extra,
    )


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


def _short(text: str, limit: int = 200) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
