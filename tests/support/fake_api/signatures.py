"""Thinking signatures and compaction signatures: issued by the fake, checked when they come back.

A thinking signature names its model, how many blocks stood before the answer, the chain hash of those blocks (on models
that bind), how many thinking blocks the answer had before it, and a digest of its own text. So any edit of tools,
system or earlier messages shows, and so does an edit of the thinking itself. A signature of another model is dropped
without an error, as the real API drops it.

A compaction block stands for the blocks it covers: after it, the chain goes on from where the covered prefix ended, so
that thinking of the turns kept behind it remains valid.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from tests.support.fake_api.errors import Refusal
from tests.support.fake_api.models import Model
from tests.support.fake_api.prompt import Prompt, link

_SECRET = b"fake-messages-api"


@dataclass(frozen=True, slots=True)
class Binding:
    """The chain that signatures are bound to. `covered` blocks went before chain[0], hidden in a compaction block, and
    `offset` more blocks stand before a flat index of the prompt than the prompt shows."""

    chain: list[bytes]
    covered: int = 0
    offset: int = 0

    def count(self) -> int:
        return self.covered + len(self.chain)

    def at(self, count: int) -> bytes | None:
        """The chain value after `count` blocks, None where that lies inside the compacted part or beyond the end."""
        index = count - self.covered - 1
        return self.chain[index] if 0 <= index < len(self.chain) else None


@dataclass(frozen=True, slots=True)
class Dropped:
    """A thinking block left out of what the model is shown; reported as `input_transformations`."""

    path: str
    reason: str

    def entry(self) -> dict[str, str]:
        return {"type": "thinking_dropped", "path": self.path, "reason": self.reason}


@dataclass(slots=True)
class Signatures:
    literals: set[str] = field(default_factory=set)  # signatures a script chose itself: never checked
    _covered: dict[str, tuple[bytes, int]] = field(default_factory=dict)  # compaction signature -> chain end, blocks

    def binding(self, prompt: Prompt) -> Binding:
        """The binding chain of a prompt; checks the signature of a compaction block at its head."""
        if not prompt.facts or prompt.facts[0].compaction != 0:
            return Binding(prompt.chain)
        block = prompt.facts[0].blocks[0]
        signature = block.get("signature") or ""
        if signature not in self._covered:
            if signature in self.literals or block["content"] is None or not signature:
                return Binding(prompt.chain)
            raise _invalid("the signature of the compaction block is not valid", "compaction_signature_invalid")
        if signature != _compaction(block["content"], *self._covered[signature]):
            raise _invalid("the content of the compaction block was changed", "compaction_content_mismatch")
        last, covered = self._covered[signature]
        chain = [last]
        for digest in prompt.digests[prompt.starts[0] + 1 :]:
            chain.append(link(chain[-1], digest))
        return Binding(chain, covered - 1, covered - prompt.starts[0] - 1)

    def thinking(self, text: str, model: Model, binding: Binding, before: int) -> str:
        """A new signature for thinking `text` in the answer to the prompt of `binding`, after `before` others in it."""
        count = binding.count() if model.binds else 0
        bound = (binding.at(count) or b"").hex() if model.binds else "-"
        return _seal(f"{model.id}|{count}|{bound}|{before}|{_hash(text.encode())}")

    def compaction(self, summary: str, binding: Binding) -> str:
        count = binding.count()
        end = binding.at(count) or b""
        signature = _compaction(summary, end, count)
        self._covered[signature] = (end, count)
        return signature

    def check(self, prompt: Prompt, model: Model, binding: Binding, *, drop: bool) -> list[Dropped]:
        """Check each thinking block sent back; with `drop` a changed prefix drops the block instead of refusing."""
        dropped: list[Dropped] = []
        for number, facts in enumerate(prompt.facts):
            failing = False
            for index in facts.thinking:
                path = f"messages.{number}.content.{index}"
                reason = self._fault(prompt, number, index, path, model, binding)
                if reason == "prefix_binding_mismatch" and not drop:
                    raise Refusal(
                        f"{path}: this `{facts.blocks[index]['type']}` block is bound to a different conversation: the "
                        "model, tools, system or messages before it are not those it was created with"
                    )
                failing = failing or reason == "prefix_binding_mismatch"
                if reason or failing:
                    dropped.append(Dropped(path, reason or "prefix_binding_mismatch"))
        return dropped

    def _fault(self, prompt: Prompt, number: int, index: int, path: str, model: Model, binding: Binding) -> str | None:
        block = prompt.facts[number].blocks[index]
        signature, text = _signed(block)
        if signature in self.literals:
            return None
        parts = _open(signature)
        if parts is None or parts[-1] != _hash(text.encode()):
            name = "signature" if block["type"] == "thinking" else "data"
            raise Refusal(f"{path}: Invalid `{name}` in `{block['type']}` block")
        if parts[0] != model.id:
            return "model_binding_mismatch"
        if not model.binds:
            return None
        count, bound, before = int(parts[1]), parts[2], int(parts[3])
        same = (binding.at(count) or b"").hex() == bound
        between = prompt.starts[number] + index + binding.offset - count
        if same and _thinking_between(prompt, number, index, between) == before:
            return None
        return "prefix_binding_mismatch"


def _invalid(text: str, code: str) -> Refusal:
    return Refusal(f"messages.0.content.0: {text}", error_code=code)


def _signed(block: Mapping[str, Any]) -> tuple[str, str]:
    """The signature of a thinking block and the text it covers."""
    return (block["signature"], block["thinking"]) if block["type"] == "thinking" else (block["data"], "")


def _thinking_between(prompt: Prompt, number: int, index: int, blocks: int) -> int | None:
    """How many of the `blocks` blocks before a block are thinking; None unless all of them are the assistant's."""
    if blocks < 0:
        return None
    found = 0
    while blocks:
        if index == 0:
            number -= 1
            if number < 0 or prompt.facts[number].role != "assistant":
                return None
            index = len(prompt.facts[number].blocks)
            continue
        index, blocks = index - 1, blocks - 1
        found += index in prompt.facts[number].thinking
    return found


def _hash(data: bytes) -> str:
    return blake2b(data, digest_size=8).hexdigest()


def _seal(text: str) -> str:
    data = text.encode()
    return base64.b64encode(data + b"|" + blake2b(data, key=_SECRET, digest_size=12).hexdigest().encode()).decode()


def _open(signature: str) -> list[str] | None:
    """The parts of a signature that this fake issued, in whatever process; else None."""
    try:
        data, _, seal = base64.b64decode(signature, validate=True).rpartition(b"|")
        good = blake2b(data, key=_SECRET, digest_size=12).hexdigest().encode() == seal
        return data.decode().split("|") if good else None
    except ValueError:
        return None


def _compaction(summary: str | None, end: bytes, count: int) -> str:
    return _seal(f"compaction|{count}|{end.hex()}|{_hash((summary or '').encode())}")
