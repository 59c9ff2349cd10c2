"""The prompt cache, simulated closely enough to assert on usage figures.

1. Entries are per model, keyed by the chain hash at a marked block (see `prompt`), and live for their ttl since
   last use.
2. Each mark looks back over 20 blocks, itself included, for an entry that is readable; the longest hit of all marks
   is what is read.
3. Each mark after the hit whose prefix reaches the model's minimum writes an entry. It becomes readable only when the
   response that writes it has begun: requests sent side by side all pay for the same prefix.
4. The top-level mark counts as one on the last block that can bear a mark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.fake_api.models import Model
from tests.support.fake_api.prompt import Prompt

LOOKBACK = 20
TTL = {"5m": 300.0, "1h": 3600.0}  # seconds


@dataclass(frozen=True, slots=True)
class Accounting:
    """Tokens of a prompt by what they cost, and the entries to make readable when the response begins."""

    input: int
    read: int = 0
    write_5m: int = 0
    write_1h: int = 0
    entries: tuple[tuple[bytes, str], ...] = ()

    @property
    def total(self) -> int:
        return self.input + self.read + self.write_5m + self.write_1h

    def usage(self) -> dict[str, Any]:
        return {
            "input_tokens": self.input,
            "cache_creation_input_tokens": self.write_5m + self.write_1h,
            "cache_read_input_tokens": self.read,
            "cache_creation": {
                "ephemeral_5m_input_tokens": self.write_5m,
                "ephemeral_1h_input_tokens": self.write_1h,
            },
            "output_tokens": 1,
            "service_tier": "standard",
        }


@dataclass(slots=True)
class PromptCache:
    """`clock` gives seconds; tests move it to let entries expire."""

    clock: Callable[[], float]
    _entries: dict[tuple[str, bytes], tuple[str, float]] = field(default_factory=dict)  # -> ttl, expiry

    def account(self, model: Model, prompt: Prompt, automatic: Mapping[str, Any] | None) -> Accounting:
        """What `prompt` would be billed now. Refreshes the entry that is read."""
        marks = _marks(prompt, automatic)
        if not marks:
            return Accounting(prompt.total)
        hit = max((self._look_back(model.id, prompt, index) for index, _ in marks), default=0)
        read = prompt.size(hit)
        done, writes, entries = read, {"5m": 0, "1h": 0}, []
        for index, ttl in marks:
            size = prompt.size(index + 1)
            if index < hit or size < model.cache_minimum:
                continue
            writes[ttl] += size - done
            done = size
            entries.append((prompt.chain[index], ttl))
        return Accounting(prompt.total - done, read, writes["5m"], writes["1h"], tuple(entries))

    def began(self, model: Model, accounting: Accounting) -> None:
        """The response has begun: what it writes can be read from now on."""
        for key, ttl in accounting.entries:
            self._entries[model.id, key] = (ttl, self.clock() + TTL[ttl])

    def _look_back(self, model: str, prompt: Prompt, index: int) -> int:
        """How many blocks the longest readable entry at or before `index` covers; 0 for none."""
        for at in range(index, max(-1, index - LOOKBACK), -1):
            key = (model, prompt.chain[at])
            entry = self._entries.get(key)
            if entry and entry[1] > self.clock():
                self._entries[key] = (entry[0], self.clock() + TTL[entry[0]])
                return at + 1
        return 0


def _marks(prompt: Prompt, automatic: Mapping[str, Any] | None) -> list[tuple[int, str]]:
    marks = dict(prompt.marks)
    if automatic is not None:
        last = _last_markable(prompt)
        if last is not None:
            marks.setdefault(last, automatic.get("ttl", "5m"))
    return sorted(marks.items())


def _last_markable(prompt: Prompt) -> int | None:
    for number in range(len(prompt.facts) - 1, -1, -1):
        facts = prompt.facts[number]
        for index in range(len(facts.blocks) - 1, -1, -1):
            if facts.blocks[index]["type"] not in ("thinking", "redacted_thinking"):
                return prompt.starts[number] + index
    return len(prompt.digests) - 1 if prompt.digests else None
