"""What the fake knows of each model: window, output cap, cache minimum, and which requests it refuses.

The figures follow the vendor's model table; where that is silent (minimum cached prefix of the newest models) the
nearest documented relative stands in. A test may add or replace a model with `FakeAPI(models={...})`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

THINKING_TYPES = ("adaptive", "between_tools", "disabled", "enabled")
_RELEASED = "2026-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Facts of one model. Sizes in tokens; `thinking` names the accepted `thinking.type` values."""

    id: str
    line: str
    window: int = 1_000_000
    cap: int = 128_000
    cache_minimum: int = 1024
    thinking: frozenset[str] = frozenset({"adaptive", "disabled"})
    disabled_needs_low_effort: bool = False  # `disabled` only with effort `high` or lower
    display: str = "omitted"  # what `thinking.display` is when not given
    binds: bool = False  # thinking signatures are bound to the exact prefix
    forced_tools: bool = True  # tool_choice `any` and `tool` accepted
    system_messages: bool = False  # role `system` inside `messages`
    sampling: bool = False  # temperature and its kin, under the old API version only
    compacts: bool = True
    lifecycle: str = "active"

    @property
    def images(self) -> int:
        return 100 if self.window <= 200_000 else 600

    def info(self, *, beta: bool = False) -> dict[str, Any]:
        """The `ModelInfo` object of `GET /v1/models/{id}`; with `beta` also `capabilities.compaction`."""
        retiring = self.lifecycle != "active"
        return {
            "type": "model",
            "id": self.id,
            "display_name": self.id.replace("-", " ").title(),
            "created_at": _RELEASED,
            "line": self.line,
            "lifecycle": self.lifecycle,
            "deprecated_at": _RELEASED if retiring else None,
            "retires_at": "2027-01-22T00:00:00Z" if retiring else None,
            "max_input_tokens": self.window,
            "max_tokens": self.cap,
            "capabilities": self._capabilities(beta),
        }

    def _capabilities(self, beta: bool) -> dict[str, Any]:
        yes = {"supported": True}
        compacts = {"supported": self.compacts}
        everything: dict[str, Any] = dict.fromkeys(
            ("batch", "citations", "code_execution", "image_input", "pdf_input", "structured_outputs"), yes
        )
        everything["context_management"] = {
            "supported": True,
            "clear_thinking_20251015": yes,
            "clear_tool_uses_20250919": yes,
            "compact_20260112": compacts,
        }
        everything["effort"] = {"supported": True} | dict.fromkeys(("low", "medium", "high", "xhigh", "max"), yes)
        everything["server_tools"] = {"supported": True, "code_execution": yes, "web_search": yes}
        everything["thinking"] = {
            "supported": True,
            "types": {name: {"supported": name in self.thinking} for name in THINKING_TYPES},
        }
        if beta:
            everything["compaction"] = {"supported": self.compacts, "summarize": compacts}
        return everything


def _all() -> dict[str, Model]:
    always = frozenset({"adaptive"})
    manual = frozenset({"enabled", "disabled"})
    four_six = frozenset({"adaptive", "enabled", "disabled"})
    models: list[Model] = []
    for line in ("fable", "mythos"):
        base = Model(id="", line=line, cache_minimum=512, thinking=always, system_messages=True)
        models.append(replace(base, id=f"claude-{line}-5"))
        for number in ("5-1", "5-2"):
            models.append(replace(base, id=f"claude-{line}-{number}", binds=True, forced_tools=False))
    opus = Model(id="", line="opus", system_messages=True)
    models += [
        replace(opus, id="claude-opus-5-5", cache_minimum=512, thinking=always, binds=True, forced_tools=False),
        replace(opus, id="claude-opus-5", cache_minimum=512, disabled_needs_low_effort=True),
        replace(opus, id="claude-opus-4-8"),
        replace(opus, id="claude-opus-4-7", cache_minimum=2048, system_messages=False),
    ]
    old_opus = replace(opus, cache_minimum=4096, system_messages=False, display="summarized", sampling=True)
    models.append(replace(old_opus, id="claude-opus-4-6", thinking=four_six))
    for name in ("claude-opus-4-5", "claude-opus-4-5-20251101"):
        models.append(
            replace(old_opus, id=name, window=200_000, cap=64_000, thinking=manual, compacts=False,
                    lifecycle="deprecated")
        )  # fmt: skip
    sonnet = Model(id="", line="sonnet")
    models += [
        replace(sonnet, id="claude-sonnet-5-5", cache_minimum=512, thinking=frozenset({"adaptive", "between_tools"}),
                binds=True, forced_tools=False, system_messages=True),
        replace(sonnet, id="claude-sonnet-5"),
        replace(sonnet, id="claude-sonnet-4-6", thinking=four_six, display="summarized", sampling=True),
    ]  # fmt: skip
    haiku = Model(id="", line="haiku")
    models.append(
        replace(haiku, id="claude-haiku-5-5", cache_minimum=512, disabled_needs_low_effort=True, binds=True,
                forced_tools=False, system_messages=True)
    )  # fmt: skip
    for name in ("claude-haiku-4-5", "claude-haiku-4-5-20251001"):
        models.append(
            replace(haiku, id=name, window=200_000, cap=64_000, cache_minimum=4096, thinking=manual,
                    display="summarized", sampling=True, compacts=False)
        )  # fmt: skip
    return {m.id: m for m in models}


MODELS: dict[str, Model] = _all()
