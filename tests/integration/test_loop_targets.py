"""The target of a prompt, and what uses up the turns."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from pathlib import Path
from typing import Any

from tests.support.agent import Probe, collect, drive, engine
from tests.support.fake_api import FakeAPI, http_error, message, text, tool_use
from worker_agent import events as e
from worker_agent import messages as m
from worker_agent.loop.ports import StopVerdict


def nudges(journal: Any) -> list[str]:
    return [msg.text for msg in journal.messages if msg.data.get("reason") == "token_budget_continuation"]


def test_a_target_in_a_message_brings_nudges_until_it_is_reached_or_returns_diminish(tmp_path: Path) -> None:
    with FakeAPI([message(text("a" * 10), usage={"output_tokens": 600}) for _ in range(3)]) as api:
        run = drive(api, m.user("look into it +2k"), tmp=tmp_path)
    assert len(nudges(run.journal)) == 2 and "600 of the 2,000 tokens" in nudges(run.journal)[0]
    assert run.result.reason == "completed"
    with FakeAPI([message(text("b"), usage={"output_tokens": 100}) for _ in range(4)]) as api:
        run = drive(api, m.user("+500k look into it"), tmp=tmp_path)
    assert len(nudges(run.journal)) == 3, "three continuations with less than 500 tokens each are enough"


class Blocks:
    def __init__(self, times: int) -> None:
        self.left = times

    async def stop(self, last_message: str, stop_hook_active: bool) -> StopVerdict:
        self.left -= 1
        return StopVerdict(blocking=("not yet",) if self.left >= 0 else ())


def test_blocks_of_hooks_use_up_no_turns_and_the_overruling_of_one_is_told(tmp_path: Path) -> None:
    with FakeAPI([tool_use("Probe", {"n": 1}), *(text(f"done {n}") for n in range(9))]) as api:
        run = drive(api, tmp=tmp_path, tools=[Probe()], max_turns=2, stop_hooks=Blocks(20))
    assert (run.result.reason, run.result.text, len(api.requests)) == ("completed", "done 8", 10)
    assert run.result.transitions == ("stop_hook_blocking",) * 8
    fed = [event.message for event in run.of(e.MessageAdded) if "hook feedback" in event.message.text]
    assert len(fed) == 8, "what makes the model go on is shown"
    (told,) = run.notices("hook")
    assert "overruled" in told.text and "not yet" in told.text


def test_a_compaction_shows_its_boundary_once(tmp_path: Path) -> None:
    too_long = http_error(400, "invalid_request_error", "prompt is too long: 300000 tokens > 200000 maximum")
    with FakeAPI([too_long, text("a summary"), text("done")], allow_violations=True) as api:
        run = drive(api, tmp=tmp_path)
    assert [event.message.kind for event in run.of(e.MessageAdded)].count("boundary") == 1
    assert [event.reason for event in run.of(e.TransitionTaken)] == ["reactive_compact_retry"]
    assert run.result.transitions == ("reactive_compact_retry",)


def test_the_fallback_holds_for_the_next_prompts_until_its_time_is_over(tmp_path: Path) -> None:
    async def main(api: FakeAPI) -> list[str]:
        subject = engine(api, tmp_path, fallback_model="claude-haiku-4-5")
        for prompt in ("one", "two"):
            await collect(subject, prompt)
        subject._overloads.until = 0.0
        await collect(subject, "three")
        await subject.close()
        await subject.agent.client.close()
        return [request.body["model"] for request in api.requests]

    overloaded = http_error(529, "overloaded_error", "Overloaded")
    with FakeAPI([overloaded] * 3 + [text(each) for each in "abc"], allow_violations=True) as api:
        asked = asyncio.run(main(api))
    assert asked == ["claude-sonnet-5"] * 3 + ["claude-haiku-4-5"] * 2 + ["claude-sonnet-5"]


def test_only_the_image_that_an_error_names_is_left_out(tmp_path: Path) -> None:
    def image(data: bytes) -> dict[str, Any]:
        source = {"type": "base64", "media_type": "image/png", "data": b64encode(data).decode()}
        return {"type": "image", "source": source}

    what = "messages.0.content.1.image.source.base64: image dimensions exceed the maximum"
    refused = http_error(400, "invalid_request_error", what, error_code="image_dimensions_too_large")
    prompt = m.user([m.text_block("compare"), image(b"first"), image(b"second")])
    with FakeAPI([refused, text("seen"), text("still")], allow_violations=True) as api:
        run = drive(api, prompt, tmp=tmp_path)
    sent = api.requests[1].messages[0]["content"]
    assert [block["type"] for block in sent] == ["text", "text", "image"]
    assert sent[2]["source"]["data"] == b64encode(b"second").decode() and "left out" in sent[1]["text"]
    assert run.result.text == "seen" and len(run.notices("media_refused")) == 1 and run.result.transitions == ()
