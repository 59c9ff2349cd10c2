"""A fake of the Anthropic Messages API, over real HTTP, as strict as the real one.

    with FakeAPI([tool_use("Read", {"file_path": "a"}), text("done")]) as api:
        client = AsyncAnthropic(base_url=api.base_url, api_key="test", max_retries=0)

It refuses what the real API refuses, watches that no conversation changes what it has already sent, simulates the
prompt cache, binds thinking to its prefix, and can fail in every way a stream can fail. Leaving the `with` block raises
AssertionError when a request was one that a correct client never sends.

Reading order: `wire` (answers) → `scripts` (which answer) → `gates` → `server` → `validation`.
"""

from tests.support.fake_api.gates import Delay, Gate, delay
from tests.support.fake_api.models import MODELS, Model
from tests.support.fake_api.request import Request
from tests.support.fake_api.scenarios import Options, fanout, scenario
from tests.support.fake_api.scripts import (
    ScriptExhausted,
    after,
    has_tool,
    model_is,
    opened_with,
    route,
    sequence,
    system_has,
    turns_are,
    user_has,
    user_matches,
)
from tests.support.fake_api.server import FakeAPI
from tests.support.fake_api.watch import PrefixBreak
from tests.support.fake_api.wire import (
    RawBlock,
    RawEvent,
    Reply,
    clean_eof,
    compaction,
    cut_tool_json,
    drop,
    empty_answer,
    empty_body,
    error_event,
    garbage_tool_json,
    hold,
    http_error,
    message,
    no_event_lines,
    pause_turn,
    ping,
    raw,
    redacted,
    refusal,
    stall,
    stop,
    text,
    thinking,
    tool_use,
    torn,
    unknown_block,
    unknown_delta,
    unknown_event,
    unknown_stop_reason,
    usage_only_in_delta,
    with_headers,
)

__all__ = [name for name in dir() if not name.startswith("_")]
