"""What a program that drives a session says in its lines, as values: what it wants of the session from the start
(`initialize`), and its prompts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from coordinator.options import RunOptions
from worker_agent.errors import ConfigError
from worker_agent.hooks import HookConfig
from worker_agent.messages import Block
from worker_agent.structs import replace

MEDIA = frozenset({"image", "document"})


class Wanted(Struct, frozen=True, kw_only=True):
    """Of `initialize`: the program's own hooks and kinds of worker, the skills a model may use (None: all), and whether it
    wants to see what workers say and think, not only what they do."""

    hooks: HookConfig = HookConfig()
    agents: Mapping[str, Any] | None = None
    skills: tuple[str, ...] | None = None
    workers_text: bool = False

    @classmethod
    def of(cls, request: Mapping[str, Any]) -> Wanted:
        """Raises `ConfigError` for what cannot be read."""
        try:
            skills = request.get("skills")
            return cls(
                hooks=HookConfig.of_callbacks(request.get("hooks")),
                agents=dict(request.get("agents") or {}),
                skills=None if skills is None else tuple(map(str, skills)),
                workers_text=bool(request.get("forwardSubagentText")),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"initialize cannot be read, its hooks, agents or skills are none: {error!r}") from None

    def added_to(self, options: RunOptions) -> RunOptions:
        return replace(options, agents={**options.agents, **(self.agents or {})})


class Prompt(Struct, frozen=True, kw_only=True):
    """One `user` line. `fault` says why it can be no prompt; `verbatim`: nothing in its text is looked at. `uuid` is the
    program's own name for it."""

    text: str = ""
    blocks: tuple[Block, ...] = ()
    verbatim: bool = False
    uuid: str | None = None
    fault: str | None = None

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> Prompt:
        uuid = line.get("uuid")
        named = uuid if isinstance(uuid, str) else None
        try:
            content = line["message"]["content"]
            content = [{"type": "text", "text": content}] if isinstance(content, str) else content
            texts = [block["text"] for block in content if block["type"] == "text"]
            blocks = tuple(block for block in content if block["type"] in MEDIA)
            others = sorted({str(block["type"]) for block in content} - MEDIA - {"text"})
            text = "\n\n".join(texts)
        except (KeyError, TypeError, AttributeError) as error:
            return cls(uuid=named, fault=f"this is no user message: {error!r}")
        if others:
            return cls(uuid=named, fault=f"a prompt is made of text, images and documents, not of {', '.join(others)}")
        if not text.strip() and not blocks:
            return cls(uuid=named, fault="the prompt is empty")
        return cls(text=text, blocks=blocks, verbatim=line.get("client_composed") is True, uuid=named)
