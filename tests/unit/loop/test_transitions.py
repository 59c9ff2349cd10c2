"""Seven functions for seven reasons, each a whole new state, resetting what the table in `state.py` says."""

from pathlib import Path

import pytest
from msgspec.structs import asdict

from tests.support.agent import tool_context
from worker_agent import messages as m
from worker_agent.context.values import Compacted, Tracking
from worker_agent.loop import transitions
from worker_agent.loop.reasons import ContinueReason, TerminalReason
from worker_agent.loop.state import BudgetProgress, Repeats, State
from worker_agent.structs import replace

HISTORY = (m.user("goal"), m.assistant("answer"))
USED = State(
    messages=HISTORY,
    tool_context=tool_context(Path("/nowhere")),
    model="claude-sonnet-5",
    auto_compact_tracking=Tracking(turns_since_compaction=3, consecutive_failures=1),
    max_output_tokens_recovery_count=2,
    has_attempted_reactive_compact=True,
    max_output_tokens_override=64_000,
    stop_hook_active=True,
    stop_hook_block_count=3,
    budget=BudgetProgress(1_000, (10,)),
    budget_continuation_count=1,
    pause_count=2,
    repeats=Repeats("d", 2),
    turn_count=5,
)
NEWS = (m.user("news", kind="meta"),)
AFTER_COMPACTION = Compacted(messages=NEWS, added=NEWS)

TABLE = {
    ContinueReason.NEXT_TURN: (
        lambda s: transitions.next_turn(s, NEWS, ran_tools=True),
        {
            "messages": HISTORY + NEWS,
            "auto_compact_tracking": Tracking(4, 1),
            "max_output_tokens_recovery_count": 0,
            "has_attempted_reactive_compact": False,
            "max_output_tokens_override": None,
            "stop_hook_active": False,
            "stop_hook_block_count": 0,
            "pause_count": 0,
            "repeats": Repeats(),
            "turn_count": 6,
        },
    ),
    ContinueReason.MAX_OUTPUT_TOKENS_ESCALATE: (
        lambda s: transitions.max_output_tokens_escalate(s, 50_000),
        {"max_output_tokens_override": 50_000},
    ),
    ContinueReason.MAX_OUTPUT_TOKENS_RECOVERY: (
        lambda s: transitions.max_output_tokens_recovery(s, NEWS),
        {"messages": HISTORY + NEWS, "max_output_tokens_recovery_count": 3},
    ),
    ContinueReason.COLLAPSE_DRAIN_RETRY: (transitions.collapse_drain_retry, {}),
    ContinueReason.REACTIVE_COMPACT_RETRY: (
        lambda s: transitions.reactive_compact_retry(s, AFTER_COMPACTION),
        {"messages": NEWS, "auto_compact_tracking": Tracking(0, 0), "has_attempted_reactive_compact": True},
    ),
    ContinueReason.STOP_HOOK_BLOCKING: (
        lambda s: transitions.stop_hook_blocking(s, NEWS),
        {
            "messages": HISTORY + NEWS,
            "max_output_tokens_recovery_count": 0,
            "max_output_tokens_override": None,
            "stop_hook_active": True,
            "stop_hook_block_count": 4,
        },
    ),
    ContinueReason.TOKEN_BUDGET_CONTINUATION: (
        lambda s: transitions.token_budget_continuation(s, NEWS, BudgetProgress(2_000, (10, 0))),
        {
            "messages": HISTORY + NEWS,
            "max_output_tokens_recovery_count": 0,
            "max_output_tokens_override": None,
            "has_attempted_reactive_compact": False,
            "budget": BudgetProgress(2_000, (10, 0)),
            "budget_continuation_count": 2,
        },
    ),
}


def test_every_reason_has_one_function_of_its_name():
    assert set(TABLE) == set(ContinueReason)
    assert all(callable(getattr(transitions, reason.value)) for reason in ContinueReason)


@pytest.mark.parametrize("reason", list(ContinueReason))
def test_a_transition_changes_what_the_table_says_and_nothing_else(reason):
    take, changes = TABLE[reason]
    assert take(USED) == replace(USED, transition=reason, **changes)


@pytest.mark.parametrize("reason", list(ContinueReason))
def test_a_transition_leaves_its_input_as_it_was(reason):
    before = asdict(USED)
    TABLE[reason][0](USED)
    assert asdict(USED) == before


def test_a_stop_hook_never_re_arms_the_compaction_guard():
    assert transitions.stop_hook_blocking(USED, NEWS).has_attempted_reactive_compact is True


def test_a_compaction_needed_again_within_two_turns_counts_as_a_failure():
    first = Tracking().compacted()
    assert first == Tracking(0, 0)
    assert first.turn().compacted() == Tracking(0, 1)
    assert first.turn().turn().compacted() == Tracking(0, 0)


def test_there_are_seven_ways_back_and_ten_ends():
    assert (len(ContinueReason), len(TerminalReason)) == (7, 10)
