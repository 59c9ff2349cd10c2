"""What an observer of an agent may see. Every event is frozen and carries plain values.

`query()` yields these and ends with one `Terminal` (see `loop/state.py`); `QueryEngine.submit_message` yields these and
ends with one `Result`. Observers get copies enriched for reading; nothing they see is what is sent to the API.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from worker_agent.messages import Message, Usage


class Purpose(StrEnum):
    """What a model was asked for."""

    TURN = "turn"
    SUMMARY = "summary"  # of a conversation, or of a part of it
    TOOL_SUMMARY = "tool_summary"  # the line about a turn's tools
    MEMORY = "memory"  # what of an ended session is worth remembering
    SUGGESTION = "suggestion"  # what the person may type next


class RequestStarted(Struct, frozen=True):
    """A model call begins. `attempt` counts from 1."""

    model: str
    attempt: int = 1


class ModelCalled(Struct, frozen=True):
    """A model call ended, well or not: what it used, booked once per `response_id` (None: it never began). `duration`
    in seconds. Tries that were thrown away count too: they are billed."""

    response_id: str | None
    model: str
    usage: Usage
    duration: float
    error: str | None = None  # an ErrorKind
    purpose: Purpose = Purpose.TURN


class AnswerBegan(Struct, frozen=True):
    """An answer begins to come; its pieces and blocks follow. One that breaks off is followed by another, or by none."""

    response_id: str
    model: str
    usage: Usage


class TextDelta(Struct, frozen=True):
    """`index` is that of the block in its answer."""

    text: str
    index: int = 0


class ThinkingDelta(Struct, frozen=True):
    text: str
    index: int = 0


class BlockDone(Struct, frozen=True):
    """A block of the answer is whole."""

    index: int
    block: Mapping[str, Any]


class AnswerDone(Struct, frozen=True):
    """The answer is whole; `usage` is final."""

    stop_reason: str
    usage: Usage


class InputDelta(Struct, frozen=True):
    """The model writes a call: so many characters more of its input are there."""

    length: int


class MessageAdded(Struct, frozen=True):
    """A complete message joined the conversation."""

    message: Message


class TransitionTaken(Struct, frozen=True):
    """The loop goes round again, and why: a `ContinueReason` (see `loop/state.py`). What was added to the conversation
    on the way, such as a hook's feedback, came before as `MessageAdded`."""

    reason: str


class Tombstone(Struct, frozen=True):
    """A message or partial text already shown does not count any more."""

    message_id: str
    reason: str


class ToolStarted(Struct, frozen=True):
    """`activity` says in a few words what the tool does now, e.g. ``Grep "import " src``."""

    tool_use_id: str
    name: str
    input: Mapping[str, Any]
    activity: str


class ToolProgress(Struct, frozen=True):
    tool_use_id: str
    text: str


class ToolFinished(Struct, frozen=True):
    tool_use_id: str
    name: str
    is_error: bool
    duration: float  # seconds


class NoticeKind(StrEnum):
    """What a `Notice` is about."""

    API_RETRY = "api_retry"  # a try failed and another follows
    API_ERROR = "api_error"  # an error that no recovery mended
    MODEL_FALLBACK = "model_fallback"  # another model took over
    STREAM_BROKEN = "stream_broken"  # an answer broke off after a tool had started; what was whole counts
    EMPTY_ANSWER = "empty_answer"  # asked once more
    MEDIA_REFUSED = "media_refused"  # the images and documents that an error named are left out from here on
    PLAIN_ENDPOINT = "plain_endpoint"  # it refused a vendor's feature: requests go without them from here on
    OUTPUT_CAP = "output_cap"  # a smaller output cap is tried
    REPETITION = "repetition"  # the same calls for ever: the last answer is asked for, without tools
    COMPACTION = "compaction"
    TOOL_USE_SUMMARY = "tool_use_summary"  # one line about what a turn's tools did
    BUDGET = "budget"  # much of it is used
    HOOK = "hook"  # what a hook said to the person
    MCP = "mcp"  # a server that is not there, or that changed
    CONFIG = "config"  # what a file or flag means, or why it has no effect
    COORDINATOR_FAILED = "coordinator_failed"  # its workers go on to their ends


class Notice(Struct, frozen=True):
    """Something the person should know, in words and, where a program can use it, as `data`."""

    kind: NoticeKind
    text: str
    data: Mapping[str, Any] = field(default_factory=dict)


class PromptSuggested(Struct, frozen=True):
    """What the person may type next, one line of plain text. It holds for the prompt they are asked for now: what they
    type themselves, and any turn that begins, ends it."""

    text: str


class HookRan(Struct, frozen=True):
    """A handler of the hook event `event` was started, or has ended, as `ended` says: `code` None where it did not run to
    its end. `subject` is the tool's name or what else the event is about; `id` is the same for both."""

    id: str
    event: str
    subject: str
    ended: bool = False
    code: int | None = None
    stdout: str = ""
    stderr: str = ""


class PermissionDenial(Struct, frozen=True):
    """`needs_person`: it was denied only because a person had to be asked and there was none."""

    tool_name: str
    tool_use_id: str
    tool_input: Mapping[str, Any]
    reason: str
    needs_person: bool = False


class Result(Struct, frozen=True, kw_only=True):
    """How one submitted prompt ended. Durations in seconds; `cost_usd` is None when a price is unknown."""

    text: str
    reason: str  # a Terminal reason, or `budget`, `schema`
    is_error: bool
    turns: int
    duration: float
    duration_api: float
    usage: Usage
    cost_usd: float | None
    denials: tuple[PermissionDenial, ...] = ()
    error: str | None = None
    error_kind: str | None = None
    retryable: bool = False
    structured: Any = None
    transitions: tuple[str, ...] = ()  # the ways back to the top taken, in order; `next_turn` left out
    salvaged: bool = False  # the last answer was empty; `text` is the last real text
    stop_reason: str | None = None  # why the last answer ended, as the model said it


Event = (
    RequestStarted
    | ModelCalled
    | AnswerBegan
    | TextDelta
    | ThinkingDelta
    | InputDelta
    | BlockDone
    | AnswerDone
    | MessageAdded
    | TransitionTaken
    | Tombstone
    | ToolStarted
    | ToolProgress
    | ToolFinished
    | HookRan
    | Notice
    | PromptSuggested
    | Result
)
