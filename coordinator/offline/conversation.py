"""How the surveyor reads messages."""

from __future__ import annotations

from worker_agent.messages import Block, Message

PLAIN = (
    "I am the offline model, no language model: I survey a directory for a goal, and can neither discuss nor change anything."
)


def is_prompt(message: Message) -> bool:
    """Whether a person or a coordinator wrote this; what the program adds as context is `meta`."""
    return message.kind == "prompt" and not message.meta


def text_of(block: Block) -> str:
    """The text of a tool's result."""
    content = block.get("content") or ""
    return content if isinstance(content, str) else "".join(b.get("text", "") for b in content if b.get("type") == "text")
