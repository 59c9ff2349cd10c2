"""What a conversation consists of after a compaction, in this order:

boundary marker → summary → recent messages that are kept → files last read, afresh → state of the background agents →
plan → skills used → listings as far as they changed → results of session-start hooks.

A message older than the boundary that is not named in it is never sent again. The boundary names the kept messages and
the rebuilt ones by id, so that a resumed conversation draws the same view.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from worker_agent import messages as m
from worker_agent.context.values import Compacted
from worker_agent.context.view import USER_CONTEXT_AFTER, without_media, without_thinking
from worker_agent.messages import Message, Usage
from worker_agent.structs import replace

SKILL_CAP = 20_000  # characters of one skill that is shown again
SKILLS_CAP = 80_000  # characters of all of them
PLAN, SKILL = "plan", "skill"  # `data["source"]` of what is rebuilt

SUMMARY_HEAD = (
    "This conversation goes on from an earlier part that no longer fits. Below is a summary of it; the full transcript"
    " is stored. Go on with the work where it stands; do not greet, do not repeat the summary.\n\n"
)


GO_ON = "Go on with the work where it stands."


def compacted(
    *,
    trigger: str,
    tokens_before: int,
    summary: str | Message,
    kept: Sequence[Message],
    rebuilt: Sequence[Message],
    last_id: str | None,
    strip_thinking: bool,
    strip_media: bool = False,
    at: float,
    usage: Usage = Usage(),
) -> Compacted:
    """`summary` is text, or the server's own compaction message, its content kept unchanged."""
    if isinstance(summary, str):
        summary = m.user(SUMMARY_HEAD + summary, kind="summary", meta=True, at=at)
    else:
        summary = replace(summary, data={USER_CONTEXT_AFTER: kept[-1].id if kept else ""})
    rebuilt = [replace(message, kind="meta") for message in rebuilt]  # attachments would move in front of the summary
    if summary.role == "assistant" and not kept and not rebuilt and trigger != "manual":
        # An answer is wanted, so the conversation must end with the user; said here, once, and stored.
        rebuilt = [m.user(GO_ON, kind="meta", meta=True, at=at)]
    data: dict[str, Any] = {
        "trigger": trigger,
        "tokens_before": tokens_before,
        "transcript_position": last_id,
        "summary": summary.id,
        "kept": [message.id for message in kept],
        "rebuilt": [message.id for message in rebuilt],
        "strip_thinking": strip_thinking,
        "strip_media": strip_media,
    }
    boundary = Message(role="system", content=(), kind="boundary", meta=True, data=data, at=at)
    added = (boundary, summary, *rebuilt)
    return Compacted(messages=_in_order(boundary, summary, kept, rebuilt), added=added, usage=usage)


def rebuilt_ids(messages: Sequence[Message]) -> frozenset[str]:
    """The ids of what the last compaction rebuilt."""
    boundary = next((message for message in reversed(messages) if message.kind == "boundary"), None)
    return frozenset(boundary.data["rebuilt"]) if boundary else frozenset()


def was_made_by_hand(messages: Sequence[Message]) -> bool:
    """Whether the conversation ends with a compaction that a person asked for: then nothing waits for an answer."""
    if not messages:
        return False
    last, boundary = messages[-1], next((message for message in reversed(messages) if message.kind == "boundary"), None)
    if boundary is None or boundary.data["trigger"] != "manual":
        return False
    return last.id in (boundary.id, boundary.data["summary"], *boundary.data["rebuilt"])


def plan_and_skills(messages: Sequence[Message], kept: Sequence[Message], at: float) -> list[Message]:
    """The plan as it was written last, and the skills that were used, as far as the kept messages do not show them."""
    shown = {call["id"] for message in kept for call in message.tool_uses}
    plan = None
    skills: dict[str, str] = {}
    results = {b["tool_use_id"]: b for message in messages for b in message.tool_results if not b.get("is_error")}
    for message in messages:
        if message.data.get("source") == PLAN:
            plan = ("", message.data["todos"])
        elif message.data.get("source") == SKILL:
            skills[message.data["skill"]] = message.data["text"]
        for call in message.tool_uses:
            if call["name"] == "TodoWrite" and call["id"] in results:
                plan = (call["id"], call["input"]["todos"])
            elif call["name"] == "Skill" and isinstance(body := results.get(call["id"], {}).get("content"), str):
                skills.pop(name := str(call["input"].get("skill")), None)
                if call["id"] not in shown:
                    skills[name] = body[:SKILL_CAP]
    found = [_plan(plan[1], at)] if plan and plan[1] and plan[0] not in shown else []
    return found + _skills(skills, at)


def _plan(todos: Sequence[Mapping[str, Any]], at: float) -> Message:
    lines = "\n".join(f"- [{todo['status']}] {todo['content']}" for todo in todos)
    text = f"<system-reminder>\nYour plan as you wrote it last:\n{_inert(lines)}\n</system-reminder>"
    return m.user(text, kind="attachment", meta=True, at=at, data={"source": PLAN, "todos": list(todos)})


def _skills(skills: dict[str, str], at: float) -> list[Message]:
    """The skills used last, as many as have room, in the order they were used."""
    room, found = SKILLS_CAP, []
    for name, body in reversed(skills.items()):
        room -= len(body)
        if room < 0:
            break
        text = f"<system-reminder>\nYou use the skill {_inert(name)}; it says:\n{_inert(body)}\n</system-reminder>"
        data = {"source": SKILL, "skill": name, "text": body}
        found.append(m.user(text, kind="attachment", meta=True, at=at, data=data))
    return found[::-1]


def file_message(path: str, text: str, at: float) -> Message:
    """The content of a file, read again behind a summary."""
    shown = f"Content of {_inert(path)}, read again after the summary:\n{_inert(text)}"
    text = f"<system-reminder>\n{shown}\n</system-reminder>"
    return m.user(text, kind="attachment", meta=True, at=at, data={"source": "file"})


def _inert(text: str) -> str:
    """`text` that cannot end the reminder it stands in."""
    return text.replace("</system-reminder", "<\\/system-reminder")


def after_boundary(stored: Sequence[Message]) -> tuple[Message, ...]:
    """The conversation as it stands, from everything that was ever stored: the last boundary with what it names, then
    what came after."""
    index = next((i for i in range(len(stored) - 1, -1, -1) if stored[i].kind == "boundary"), None)
    if index is None:
        return tuple(stored)
    boundary = stored[index]
    by_id = {message.id: message for message in stored}
    named = {boundary.data["summary"], *boundary.data["rebuilt"]}
    kept = [by_id[id_] for id_ in boundary.data["kept"] if id_ in by_id]
    rebuilt = [by_id[id_] for id_ in boundary.data["rebuilt"] if id_ in by_id]
    later = [message for message in stored[index + 1 :] if message.id not in named]
    return (*_in_order(boundary, by_id[boundary.data["summary"]], kept, rebuilt), *later)


def _in_order(boundary: Message, summary: Message, kept: Sequence[Message], rebuilt: Sequence[Message]) -> tuple[Message, ...]:
    if boundary.data["strip_thinking"]:
        kept = [without_thinking(message) for message in kept]
    if boundary.data["strip_media"]:
        kept = [without_media(message) for message in kept]
    return (boundary, summary, *kept, *rebuilt)
