"""The values of the context steps: what a window is, what a step decided, what a conversation is after a compaction.

A *decision* changes what is sent of the history, never what is stored. Decisions are taken rarely and in one go, are
recorded in order beside the transcript, and are applied to the history by pure functions: the same history and the
same decisions give the same view, byte for byte, also after a restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from msgspec import Struct, field
from msgspec.structs import asdict

from worker_agent import messages as m
from worker_agent.messages import Message, Usage
from worker_agent.structs import replace


class Window(Protocol):
    """What the steps need to know of a model; `api.client.ModelInfo` is one."""

    @property
    def window(self) -> int: ...

    @property
    def max_output(self) -> int: ...

    @property
    def chars_per_token(self) -> float: ...

    @property
    def binds_thinking(self) -> bool: ...

    @property
    def server_compaction(self) -> bool: ...

    @property
    def server_editing(self) -> bool: ...

    @property
    def cache_control(self) -> bool: ...


class Spill(Struct, frozen=True):
    """Step 1: these results (`tool_use_id` → the text that stands for it) lie whole in a file."""

    kind: ClassVar[str] = "spill"
    texts: Mapping[str, str]


class Snip(Struct, frozen=True):
    """Step 2: these messages are left out; `tokens` is about what they had."""

    kind: ClassVar[str] = "snip"
    ids: tuple[str, ...]
    tokens: int


class Clear(Struct, frozen=True):
    """Step 3: the content of these results is replaced by a short marker."""

    kind: ClassVar[str] = "clear"
    tool_use_ids: tuple[str, ...]


class Collapse(Struct, frozen=True):
    """Step 4: the messages from `first` to `last` (ids, both included) are shown as `summary`. Where the server made
    it, `block` is its compaction block, which stands for everything before it, and `after` the id of the newest message
    when it was committed: thinking up to there is bound to the order that was sent."""

    kind: ClassVar[str] = "collapse"
    first: str
    last: str
    summary: str
    block: Mapping[str, Any] | None = None
    after: str = ""


class StripThinking(Struct, frozen=True):
    """Beside any other decision on a model that binds its thinking: the thinking blocks of every message from `first`
    ("" = the beginning) to `last`, both included, are left out, because their signatures do not hold for the changed
    prefix. What stands before the change is still bound to what it was."""

    kind: ClassVar[str] = "strip_thinking"
    last: str
    first: str = ""


Decision = Spill | Snip | Clear | Collapse | StripThinking
_KINDS: dict[str, type[Decision]] = {cls.kind: cls for cls in (Spill, Snip, Clear, Collapse, StripThinking)}


def to_message(decision: Decision) -> Message:
    """The row that records a decision beside the transcript."""
    return m.notice("", kind="view", decision=decision.kind, **m.clean_json(asdict(decision)))


def from_message(message: Message) -> Decision:
    data: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in message.data.items()}
    kind: str = data.pop("decision")
    return _KINDS[kind](**data)


class Tracking(Struct, frozen=True):
    """Autocompact's memory, kept in the loop's `State`. A compaction that was needed again within two turns counts as a
    failure: it did not help. `turns_since_compaction` is None before the first one."""

    turns_since_compaction: int | None = None
    consecutive_failures: int = 0

    def turn(self) -> Tracking:
        since = self.turns_since_compaction
        return self if since is None else replace(self, turns_since_compaction=since + 1)

    def compacted(self) -> Tracking:
        futile = self.turns_since_compaction is not None and self.turns_since_compaction < 2
        return Tracking(0, self.consecutive_failures + 1 if futile else 0)

    def failed(self) -> Tracking:
        return replace(self, consecutive_failures=self.consecutive_failures + 1)


class Compacted(Struct, frozen=True, kw_only=True):
    """A conversation after a compaction: `messages` stands for the history from now on, `added` are those of them that
    are new and must be stored (boundary, summary, what was rebuilt)."""

    messages: tuple[Message, ...]
    added: tuple[Message, ...]
    usage: Usage = Usage()


class Prepared(Struct, frozen=True, kw_only=True):
    """The view to send and about how many tokens it has. `compacted` when autocompact ran, `compact_failed` when it
    tried in vain; `blocking` when the hard limit is reached; the rest goes into the request."""

    view: tuple[Message, ...]
    tokens: int
    compacted: Compacted | None = None
    blocking: bool = False
    compact_failed: bool = False
    context_management: Mapping[str, Any] | None = None
    betas: tuple[str, ...] = ()
    notices: tuple[str, ...] = field(default=())
