"""The prefix watch: what was sent once must stand unchanged at the beginning of every later request.

Of each conversation the open ends are kept: requests that nothing has continued yet. A new request must extend one of
them, block for block and, up to the seam of its last message, byte for byte. Cache marks do not count. A request that
was answered and is sent again opens a second end (two agents may begin with the same words); one that failed is a
retry.
Whether a break is a fault (a compaction may lie between) is for the server to judge.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.support.fake_api.parse import without_marks
from tests.support.fake_api.prompt import Prompt, common_length

MAX_ENDS = 64


@dataclass(frozen=True, slots=True)
class PrefixBreak:
    """`kind`: blocks, bytes, tools or system. `path` names the first block that differs, in the later request."""

    conversation: str
    kind: str
    path: str
    before: str
    after: str
    number: int  # of the later request, from 0

    def __str__(self) -> str:
        return (
            f"prefix changed ({self.kind}) at {self.path} in request {self.number} of conversation "
            f"{self.conversation}: {self.before!r} became {self.after!r}"
        )


@dataclass(slots=True, eq=False)
class End:
    """A request that nothing has continued yet. `raw` is its messages array without cache marks."""

    prompt: Prompt
    raw: bytes
    answered: bool = False

    def body_digests(self) -> list[bytes]:
        return self.prompt.digests[len(self.prompt.head.digests) :]


@dataclass(slots=True)
class Watch:
    _ends: dict[str, list[End]] = field(default_factory=dict)

    def see(self, key: str, prompt: Prompt, raw: bytes, number: int) -> tuple[list[PrefixBreak], End, End | None]:
        """Compare a request with the open ends of its conversation: what broke, its own end, the end it was held to.

        A request that breaks the prefix takes the place of the latest end, so that one change is reported once.
        """
        new = End(prompt, without_marks(raw))
        ends = self._ends.setdefault(key, [])
        old = _longest(ends, new)
        breaks: list[PrefixBreak] = []
        if old is not None:
            breaks = _finer(key, old, new, number)
            if not (old.answered and len(old.prompt.digests) == len(prompt.digests)):
                ends.remove(old)
        elif ends:
            old = ends.pop()
            breaks.append(_difference(key, old, new, number))
        ends.append(new)
        del ends[:-MAX_ENDS]
        return breaks, new, old


def _longest(ends: list[End], new: End) -> End | None:
    digests = new.body_digests()
    best: End | None = None
    for end in ends:
        old = end.body_digests()
        longer = best is None or len(old) >= len(best.body_digests())
        if longer and digests[: len(old)] == old:
            best = end
    return best


def _difference(key: str, old: End, new: End, number: int) -> PrefixBreak:
    before, after = old.body_digests(), new.body_digests()
    at = common_length(before, after)
    path = new.prompt.where(len(new.prompt.head.digests) + at) if at < len(after) else "messages (shorter)"
    return PrefixBreak(key, "blocks", path, _excerpt(old, at), _excerpt(new, at), number)


def _finer(key: str, old: End, new: End, number: int) -> list[PrefixBreak]:
    breaks = []
    for kind in ("tools", "system"):
        a, b = (getattr(e.prompt.head, f"{kind}_digest") for e in (old, new))
        if a != b:
            breaks.append(PrefixBreak(key, kind, kind, a.hex(), b.hex(), number))
    seam = old.raw.removesuffix(b"]").removesuffix(b"}").removesuffix(b"]")
    if not new.raw.startswith(seam):
        at = next((i for i, (x, y) in enumerate(zip(seam, new.raw)) if x != y), min(len(seam), len(new.raw)))
        low = max(0, at - 20)
        pieces = [raw[low : at + 40].decode(errors="replace") for raw in (old.raw, new.raw)]
        breaks.append(PrefixBreak(key, "bytes", f"messages, byte {at}", *pieces, number))
    return breaks


def _excerpt(end: End, block: int) -> str:
    """The beginning of a block, for the message of a break."""
    for facts in end.prompt.facts:
        if block < len(facts.blocks):
            return f"{facts.role} {str(facts.blocks[block])[:160]}"
        block -= len(facts.blocks)
    return "nothing"
