"""An endpoint that refuses what only the vendor has: found out once, told once, and everybody goes on without."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.views.exit_codes import ExitCode
from tests.integration.harness import Bench
from tests.integration.scripts import coordinator, fleet
from tests.support.agent import FAST, Probe, drive
from tests.support.fake_api import FakeAPI, http_error, message, redacted, text, thinking, tool_use
from worker_agent.config import Settings
from worker_agent.events import Notice, NoticeKind

VENDOR_FIELDS = {"thinking", "output_config", "context_management", "cache_control", "compaction"}


def test_the_request_goes_out_again_without_and_so_does_every_later_one(tmp_path: Path) -> None:
    with FakeAPI([message(tool_use("Probe", {"n": 1})), text("done")], plain=True) as api:
        run = drive(api, tmp=tmp_path, tools=[Probe()], settings=Settings(model="claude-sonnet-5", retry=FAST), effort="high")
    assert run.result.reason == "completed" and run.result.text == "done"
    assert [request.status for request in api.requests] == [400, 200, 200]
    assert VENDOR_FIELDS & api.requests[0].body.keys() and not any(VENDOR_FIELDS & r.body.keys() for r in api.requests[1:])
    (notice,) = run.notices(NoticeKind.PLAIN_ENDPOINT)
    assert "thinking: Extra inputs are not permitted" in notice.text and "plain requests" in notice.text


def test_thinking_of_before_is_no_part_of_what_a_plain_endpoint_gets(tmp_path: Path) -> None:
    """A gateway that moves to another server in the middle of a conversation."""
    first = message(thinking("hm"), redacted(), tool_use("Probe", {"n": 1}))
    with FakeAPI([first, text("done")], allow_prefix_change=True) as api:
        refusal = http_error(400, "invalid_request_error", "messages.1.content.0: thinking blocks are not supported")
        api.fail_next(1, refusal, lambda request: request.number == 1)
        run = drive(api, tmp=tmp_path, tools=[Probe()], settings=Settings(model="claude-sonnet-5", retry=FAST))
    assert run.result.text == "done"
    assert [block["type"] for block in api.requests[-1].messages[1]["content"]] == ["tool_use"]


@pytest.mark.parametrize(
    "words",
    [
        "max_tokens: Input should be greater than 0",
        "messages.1.content.0: Invalid `signature` in `thinking` block",
        "tools.0.name: String should match pattern",
    ],
)
def test_what_is_refused_otherwise_makes_no_endpoint_plain(words: str, tmp_path: Path) -> None:
    with FakeAPI(http_error(400, "invalid_request_error", words)) as api:
        run = drive(api, tmp=tmp_path, settings=Settings(model="claude-sonnet-5", retry=FAST))
    assert run.result.error_kind == "invalid_request" and len(api.requests) == 1
    assert not run.notices(NoticeKind.PLAIN_ENDPOINT)


def test_the_workers_of_a_session_know_it_too_and_it_is_said_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with FakeAPI(fleet(coordinator("one", "two")), plain=True) as api:
        outcome = bench.run(api)
    assert outcome.exit_code is ExitCode.DONE
    assert [request.status for request in api.requests].count(400) == 1
    told = [o.event for o in bench.seen if isinstance(o.event, Notice) and o.event.kind is NoticeKind.PLAIN_ENDPOINT]
    assert len(told) == 1
