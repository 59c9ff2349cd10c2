"""`State`, the seven reasons to go round again, the ten reasons to end: the theory of the loop.

Theory of operation
-------------------
One *turn* is one model call plus the tools it asked for. `query()` holds the only `while True`; each pass prepares the
context, streams the model (starting tools while it still talks), then decides. A decision is a value: a
`ContinueReason`, or a `Terminal`. State is frozen: each way back to the top is one pure function in `transitions.py`,
named as its reason, which builds a whole new `State` with that reason in `state.transition`.

Every recovery has a guard of its own, a flag or a counter in `State`, so no path can go round for ever. Who resets what:

    field                              next_turn  escalate  recovery  drain  reactive  stop_hook  budget
    max_output_tokens_recovery_count   0          =         +1        =      =         0          0
    max_output_tokens_override         None       raised    =         =      =         None       None
    has_attempted_reactive_compact     False      =         =         =      True      =          False
    stop_hook_active                   False      =         =         =      =         True       =
    stop_hook_block_count              0          =         =         =      =         +1         =
    budget_continuation_count          =          =         =         =      =         =          +1
    pause_count                        0 or +1    =         =         =      =         =          =
    turn_count                         0 or +1    =         =         =      =         =          =

`=` keeps the value. A stop hook that blocks must not re-arm the compaction guard: error → hook blocks → retry → error
would be a death spiral; for the same reason no stop hook runs after an API error.
"""

from __future__ import annotations

import asyncio

from msgspec import Struct

from worker_agent.errors import ModelError
from worker_agent.loop.ports import Tracking
from worker_agent.loop.reasons import ContinueReason, TerminalReason
from worker_agent.messages import Message
from worker_agent.tools.base import ToolContext


class Repeats(Struct, frozen=True):
    """The same calls in a row, with nothing new in their results: digests of the last turn's calls and of the different
    results that these calls have had, newest last, and how many turns in a row brought a result that was there before."""

    digest: str = ""
    count: int = 0
    results: tuple[str, ...] = ()


class BudgetProgress(Struct, frozen=True):
    """Output tokens since the prompt, and the sizes of the last continuations' answers, newest last."""

    used: int = 0
    continuations: tuple[int, ...] = ()


class State(Struct, frozen=True, kw_only=True):
    """What one pass of the loop starts from. `turn_count` is one more than the
    model calls whose tools ran; `model` is the one in use (a
    fallback stays for ten minutes, over prompts); `report_only` makes the next call tool-free, to report and end."""

    messages: tuple[Message, ...]
    tool_context: ToolContext
    model: str
    auto_compact_tracking: Tracking = Tracking()
    max_output_tokens_recovery_count: int = 0
    has_attempted_reactive_compact: bool = False
    max_output_tokens_override: int | None = None
    pending_tool_use_summary: asyncio.Task[str | None] | None = None
    stop_hook_active: bool = False
    stop_hook_block_count: int = 0
    budget: BudgetProgress = BudgetProgress()
    budget_continuation_count: int = 0
    pause_count: int = 0
    repeats: Repeats = Repeats()
    report_only: bool = False
    turn_count: int = 1
    transition: ContinueReason | None = None


class Terminal(Struct, frozen=True, kw_only=True):
    """How the loop ended. `error` is the API error that no recovery mended, or what a hook said; `messages` the
    conversation as it stands."""

    reason: TerminalReason
    turn_count: int
    messages: tuple[Message, ...]
    error: ModelError | None = None
    detail: str = ""
