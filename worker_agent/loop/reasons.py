"""The seven reasons to go round again, the ten reasons to end: their names, which are stored and shown. The theory of them
stands in `state.py`; a command that only reads what was stored needs no loop."""

from __future__ import annotations

from enum import StrEnum


class ContinueReason(StrEnum):
    """Why the loop goes round again."""

    NEXT_TURN = "next_turn"
    MAX_OUTPUT_TOKENS_ESCALATE = "max_output_tokens_escalate"
    MAX_OUTPUT_TOKENS_RECOVERY = "max_output_tokens_recovery"
    COLLAPSE_DRAIN_RETRY = "collapse_drain_retry"
    REACTIVE_COMPACT_RETRY = "reactive_compact_retry"
    STOP_HOOK_BLOCKING = "stop_hook_blocking"
    TOKEN_BUDGET_CONTINUATION = "token_budget_continuation"


class PromptReason(StrEnum):
    """Why a prompt ended whose loop completed."""

    SCHEMA = "schema"  # no answer fitted the schema that was asked for


class TerminalReason(StrEnum):
    """Why the loop ends."""

    COMPLETED = "completed"
    BLOCKING_LIMIT = "blocking_limit"
    PROMPT_TOO_LONG = "prompt_too_long"
    IMAGE_ERROR = "image_error"
    MODEL_ERROR = "model_error"
    ABORTED_STREAMING = "aborted_streaming"
    ABORTED_TOOLS = "aborted_tools"
    STOP_HOOK_PREVENTED = "stop_hook_prevented"
    HOOK_STOPPED = "hook_stopped"
    MAX_TURNS = "max_turns"
