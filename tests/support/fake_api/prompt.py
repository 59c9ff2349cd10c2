"""A request's prompt as one row of blocks: tools, then system, then messages, with a hash chain over it.

`chain[i]` is the hash of blocks 0..i without cache marks. It is what the prefix cache looks up, what thinking
signatures are bound to, and (through `digests`) what the prefix watch compares. A chain is continued from the
conversation's previous request as far as both agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import orjson

from tests.support.fake_api.facts import MessageFacts, check_mark, digest_of, look_at, strip_marks, tokens_of


@dataclass(slots=True)
class Head:
    """Tools and system: they stand before every conversation and hardly ever change."""

    digests: list[bytes]
    tokens: list[int]
    marks: list[tuple[int, str]]
    tools_digest: bytes
    system_digest: bytes


@dataclass(slots=True)
class Prompt:
    """`starts[i]` is the flat index of the first block of message i; `marks` are (flat index, ttl)."""

    head: Head
    facts: list[MessageFacts]
    message_bytes: list[bytes]
    digests: list[bytes]
    chain: list[bytes]
    tokens: list[int]
    starts: list[int]
    marks: list[tuple[int, str]]
    total: int

    def size(self, blocks: int) -> int:
        """Tokens of the first `blocks` blocks."""
        return sum(self.tokens[:blocks])

    def end(self, blocks: int | None = None) -> bytes:
        """The chain value after the first `blocks` blocks (all by default)."""
        count = len(self.chain) if blocks is None else blocks
        return self.chain[count - 1] if count else b""

    def where(self, flat: int) -> str:
        """The path of a flat index as error messages name it."""
        for number in range(len(self.starts) - 1, -1, -1):
            if self.starts[number] <= flat:
                return f"messages.{number}.content.{flat - self.starts[number]}"
        return "system" if flat >= 0 else "tools"


def link(previous: bytes, digest: bytes) -> bytes:
    return blake2b(previous + digest, digest_size=16).digest()


def head_of(body: dict[str, Any]) -> Head:
    tools, system = body.get("tools") or [], body.get("system") or []
    if isinstance(system, str):
        system = [{"type": "text", "text": system}]
    digests, tokens, marks = [], [], []
    for role, blocks in (("tools", tools), ("system", system)):
        for block in blocks:
            data = orjson.dumps(strip_marks(block))
            mark = block.get("cache_control")
            if mark is not None:
                marks.append((len(digests), check_mark(mark, role)))
            digests.append(digest_of(role, data))
            tokens.append(tokens_of(data))
    of_tools, of_system = b"".join(digests[: len(tools)]), b"".join(digests[len(tools) :])
    return Head(digests, tokens, marks, digest_of("tools", of_tools), digest_of("system", of_system))


def conversation_key(head: Head, messages: Sequence[Any]) -> str:
    """The name of a conversation that gives none itself: a hash of its system prompt and first user message."""
    first = next((m for m in messages if isinstance(m, dict) and m.get("role") == "user"), {})
    content = first.get("content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    return link(head.system_digest, orjson.dumps(strip_marks(content))).hex()[:12]


def facts_of(messages: Sequence[Any], pieces: list[bytes], before: Prompt | None) -> list[MessageFacts]:
    """The facts of each message, taken over from `before` where the bytes are the same."""
    known = before.message_bytes if before else []
    facts = []
    for index, message in enumerate(messages):
        if index < len(known) and known[index] == pieces[index]:
            facts.append(before.facts[index])  # type: ignore[union-attr]
        else:
            facts.append(look_at(message))
    return facts


def assemble(head: Head, facts: list[MessageFacts], pieces: list[bytes], before: Prompt | None) -> Prompt:
    digests, tokens = list(head.digests), list(head.tokens)
    marks, starts = list(head.marks), []
    for one in facts:
        start = len(digests)
        starts.append(start)
        marks.extend((start + index, ttl) for index, ttl, _ in one.marks)
        digests.extend(one.digests)
        tokens.extend(one.tokens)
    return Prompt(head, facts, pieces, digests, _chain(digests, before), tokens, starts, marks, sum(tokens))


def common_length(a: Sequence[bytes], b: Sequence[bytes]) -> int:
    """How many leading entries two rows share."""
    shorter = min(len(a), len(b))
    if a[:shorter] == b[:shorter]:
        return shorter
    return next(i for i in range(shorter) if a[i] != b[i])


def _chain(digests: list[bytes], before: Prompt | None) -> list[bytes]:
    common = common_length(digests, before.digests) if before else 0
    chain = before.chain[:common] if before else []
    last = chain[-1] if chain else b""
    for digest in digests[common:]:
        last = link(last, digest)
        chain.append(last)
    return chain
