"""Plan mode as the agent is told of it: once when it begins, once when it is over, again where a compaction took it away.

What is told is a message of the conversation and no part of the system prompt: the mode of a session can change from one
prompt to the next, and what was sent stays as it was.
"""

from __future__ import annotations

from collections.abc import Sequence

from worker_agent.messages import Message, user

ON, OFF = "plan_mode", "plan_mode_over"  # `data["reason"]`
TEXTS = {
    ON: (
        "Plan mode is on. Read, search and think; then present a plan as your answer: what is to be changed, where, in which "
        "order, and how it will be checked. Change nothing: edits and commands that write are refused, also to agents "
        "that you start. A person decides whether the plan is carried out."
    ),
    OFF: "Plan mode is over: changes are possible again, as far as the person asks for them and the permissions allow them.",
}


def news(messages: Sequence[Message], mode: str, at: float) -> list[Message]:
    """What an agent that knows `messages` does not know yet of a session in this mode: one message, or none."""
    told = next((m.data["reason"] for m in reversed(messages) if m.data.get("reason") in TEXTS), OFF)
    now = ON if mode == "plan" else OFF
    if told == now:
        return []
    text = f"<system-reminder>\n{TEXTS[now]}\n</system-reminder>"
    return [user(text, kind="meta", meta=True, data={"reason": now}, at=at)]
