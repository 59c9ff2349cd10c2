"""The seven ways back to the top, each through the real SDK: the reason, the request that went out, what was seen."""

import asyncio

import pytest

from tests.support.agent import FAST, Probe, collect, drive, engine
from tests.support.fake_api import (
    FakeAPI,
    http_error,
    message,
    stop,
    text,
    tool_use,
)
from worker_agent import events as e
from worker_agent import messages as m
from worker_agent.config import ContextSettings, LoopSettings, Settings, ToolSettings
from worker_agent.loop.ports import StopVerdict
from worker_agent.tools.base import ToolResult

SONNET_5 = "claude-sonnet-5"


def settings(**fields):
    return Settings(model=SONNET_5, retry=FAST, **fields)


def roles(request):
    return [message["role"] for message in request.messages]


def test_tools_asked_for_are_run_and_answered_in_one_message(tmp_path):
    script = [message(text("Looking."), tool_use("Probe", {"n": 1}), tool_use("Probe", {"n": 2})), text("Done.")]
    with FakeAPI(script) as api:
        run = drive(api, tmp=tmp_path, tools=[Probe()])
    assert (run.result.text, run.result.reason, run.result.turns) == ("Done.", "completed", 2)
    _first, second = api.requests
    assert roles(second) == ["user", "assistant", "user"]
    results = second.messages[-1]["content"]
    assert [block["content"] for block in results] == ["result 1", "result 2"]
    assert [block["tool_use_id"] for block in results] == [b["id"] for b in second.messages[1]["content"][1:]]


def test_a_first_cut_off_sends_the_same_request_with_a_higher_cap(tmp_path):
    with FakeAPI([stop("max_tokens", text("Half an ans")), text("A whole answer.")]) as api:
        run = drive(api, tmp=tmp_path)
    first, second = api.requests
    assert second.body == first.body | {"max_tokens": 64_000}
    assert run.result.text == "A whole answer."
    assert [stone.reason for stone in run.of(e.Tombstone)] == ["max_output_tokens"]
    assert run.notices("api_error") == []


def test_after_the_escalation_three_continuations_join_without_a_seam(tmp_path):
    parts = [stop("max_tokens", text(part)) for part in ("x", "One, ", "two, ", "three, ")]
    with FakeAPI([*parts, text("four.")]) as api:
        run = drive(api, tmp=tmp_path)
    assert run.result.text == "One, two, three, four."
    assert [r.body["max_tokens"] for r in api.requests] == [16_000, 64_000, 64_000, 64_000, 64_000]
    asked = [r.messages[-1]["content"][0]["text"] for r in api.requests[2:]]
    assert all("Go on exactly where it stopped" in one for one in asked)


def test_the_fourth_cut_off_in_a_row_is_told_at_last(tmp_path):
    with FakeAPI([stop("max_tokens", text(f"part {n} ")) for n in range(5)]) as api:
        run = drive(api, tmp=tmp_path)
    assert (run.result.is_error, run.result.error_kind) == (True, "max_tokens_too_large")
    assert run.result.text == "part 1 part 2 part 3 part 4 "
    assert len(run.notices("api_error")) == 1


@pytest.mark.parametrize(
    "refusal",
    [
        http_error(400, "invalid_request_error", "prompt is too long: 250000 tokens > 200000 maximum"),
        http_error(400, "invalid_request_error", "This model's maximum context length is 8192 tokens."),
        http_error(413, "request_too_large", "Request exceeds the maximum size"),
        http_error(413, "request_too_large", "<html>too large</html>", html=True),
        stop("model_context_window_exceeded", text("as far as I")),
    ],
)
def test_a_prompt_that_is_too_long_is_summarised_and_sent_again(tmp_path, refusal):
    with FakeAPI([refusal, text("SUMMARY OF IT ALL"), text("Done.")]) as api:
        api.allow_prefix_change()
        run = drive(api, tmp=tmp_path, prompt="the long goal")
    assert (run.result.text, run.result.is_error) == ("Done.", False)
    summarising, after = api.requests[1], api.requests[2]
    assert summarising.body.get("tool_choice") in (None, {"type": "none"})
    assert "SUMMARY OF IT ALL" in after.messages[0]["content"][0]["text"]
    assert [n.data["trigger"] for n in run.notices("compaction")] == ["reactive"]
    assert run.notices("api_error") == []
    assert [message.kind for message in run.journal.messages] == ["prompt", "boundary", "summary", "answer"]


def test_staged_collapses_are_drained_before_anything_is_summarised(tmp_path):
    too_long = http_error(400, "invalid_request_error", "prompt is too long: 250000 tokens > 200000 maximum")
    script = [message(text("a"), tool_use("Probe", {"n": 1})), too_long, text("Done.")]

    def stage(event, engine):
        if isinstance(event, e.ToolFinished):
            from worker_agent.context.values import Collapse

            answer = next(msg for msg in engine.agent.journal.messages if msg.role == "assistant")
            engine.context.pipeline.staged.append(Collapse(answer.id, answer.id, "it probed"))

    with FakeAPI(script) as api:
        api.allow_prefix_change()
        run = drive(api, tmp=tmp_path, tools=[Probe()], watch=stage)
    assert run.notices("compaction") == []
    assert "it probed" in str(api.requests[-1].body["messages"])


class Hook:
    """A stop hook that says what it is told, in order, then nothing."""

    def __init__(self, *verdicts):
        self.verdicts = list(verdicts)
        self.seen = []

    async def stop(self, last_message, stop_hook_active):
        self.seen.append((last_message, stop_hook_active))
        return self.verdicts.pop(0) if self.verdicts else StopVerdict()


def test_a_stop_hook_sends_the_agent_back_with_its_errors(tmp_path):
    hook = Hook(StopVerdict(blocking=("tests fail",)))
    with FakeAPI([text("I am done."), text("Now I am.")]) as api:
        run = drive(api, tmp=tmp_path, stop_hooks=hook)
    assert run.result.text == "Now I am."
    assert "tests fail" in api.requests[1].messages[-1]["content"][0]["text"]
    assert hook.seen == [("I am done.", False), ("Now I am.", True)]


def test_a_stop_hook_that_never_agrees_is_heard_eight_times(tmp_path):
    hook = Hook(*[StopVerdict(blocking=("no",))] * 50)
    with FakeAPI([text(f"try {n}") for n in range(9)]) as api:
        run = drive(api, tmp=tmp_path, stop_hooks=hook)
    assert len(api.requests) == 9 and run.result.reason == "completed"


def test_no_stop_hook_runs_after_an_api_error(tmp_path):
    hook = Hook(StopVerdict(blocking=("no",)))
    with FakeAPI([http_error(400, "invalid_request_error", "tools.0: bad")]) as api:
        run = drive(api, tmp=tmp_path, stop_hooks=hook)
    assert hook.seen == [] and run.result.error_kind == "invalid_request"


def test_a_token_budget_nudges_until_ninety_percent_are_used(tmp_path):
    def said(n):
        return message(text(f"finding {n}"), usage={"output_tokens": 1_000})

    with FakeAPI([said(n) for n in range(3)]) as api:
        run = drive(api, tmp=tmp_path, prompt="go deep +3k")
    assert run.result.text == "finding 2"
    nudges = [r.messages[-1]["content"][0]["text"] for r in api.requests[1:]]
    assert ["1,000 of the 3,000" in nudges[0], "2,000 of the 3,000" in nudges[1]] == [True, True]


def test_a_token_budget_stops_at_diminishing_returns(tmp_path):
    little = [message(text(f"bit {n}"), usage={"output_tokens": 10}) for n in range(20)]
    with FakeAPI(little) as api:
        drive(api, tmp=tmp_path, token_budget=100_000)
    assert len(api.requests) == 4


def test_a_paused_turn_is_sent_back_as_it_is(tmp_path):
    with FakeAPI([stop("pause_turn", text("Searching… ")), text("found it")]) as api:
        run = drive(api, tmp=tmp_path)
    assert roles(api.requests[1]) == ["user", "assistant"]
    assert run.result.text == "Searching… found it"


def test_what_waits_at_the_end_of_a_turn_is_read_before_it_ends(tmp_path):
    class Waiting:
        """Has a message as soon as the first answer is written."""

        def __init__(self):
            self.asked = 0

        async def take(self):
            from worker_agent.loop.ports import Attachment

            self.asked += 1
            if self.asked != 2:
                return ()
            return (Attachment(m.user("one more thing", kind="attachment", meta=True), ("d1",)),)

    with FakeAPI([text("first"), text("second")]) as api:
        run = drive(api, tmp=tmp_path, inbox=Waiting())
    assert run.result.text == "second"
    assert run.journal.consumed == ["d1"]


def test_the_same_calls_five_times_bring_a_warning_and_then_one_last_answer(tmp_path):
    script = [tool_use("Probe", {"n": 1}) for _ in range(6)] + [text("I give up.")]
    with FakeAPI(script) as api:
        run = drive(api, tmp=tmp_path, tools=[Probe()])
    assert "same calls" in str(api.requests[5].messages[-1]["content"])
    assert api.requests[6].body["tool_choice"] == {"type": "none"}
    assert run.result.text == "I give up."
    (notice,) = run.notices("repetition")
    assert "made the same calls 6 times in a row" in notice.text


def test_a_result_that_only_alternates_is_nothing_new(tmp_path):
    """As Read does: the text, "unchanged", the text, …"""
    counter = iter(range(100))
    probe = Probe(then=lambda n: ToolResult(("content", "unchanged")[next(counter) % 2]))
    with FakeAPI([tool_use("Probe", {"n": 1}) for _ in range(7)] + [text("I give up.")]) as api:
        run = drive(api, tmp=tmp_path, tools=[probe])
    assert "same calls" in str(api.requests[6].messages[-1]["content"])
    assert api.requests[7].body["tool_choice"] == {"type": "none"}
    assert run.result.text == "I give up."


def test_polling_something_that_changes_is_no_repetition(tmp_path):
    counter = iter(range(100))

    def changing(n):
        from worker_agent.tools.base import ToolResult

        return ToolResult(f"state {next(counter)}")

    script = [tool_use("Probe", {"n": 1}) for _ in range(8)] + [text("ready")]
    with FakeAPI(script) as api:
        run = drive(api, tmp=tmp_path, tools=[Probe(then=changing)])
    assert "same calls" not in str([r.body for r in api.requests])
    assert run.notices("repetition") == []


def test_auto_compaction_happens_before_the_window_is_full(tmp_path):
    small = settings(context=ContextSettings(window=20_000, collapse=False), loop=LoopSettings())
    big = "x" * 30_000
    script = [
        message(tool_use("Probe", {"n": 1}), usage={"input_tokens": 19_000}),
        text("SUMMARY"),
        text("Done."),
    ]

    def long(n):
        from worker_agent.tools.base import ToolResult

        return ToolResult(big)

    with FakeAPI(script) as api:
        api.allow_prefix_change()
        run = drive(api, tmp=tmp_path, tools=[Probe(then=long)], settings=small)
    assert [n.data["trigger"] for n in run.notices("compaction")] == ["auto"]
    assert run.result.text == "Done."


def test_a_model_chosen_between_two_prompts_answers_the_next_and_none_is_the_first_one_again(tmp_path):
    async def main(api):
        subject = engine(api, tmp_path)
        await collect(subject, "one")
        for chosen in ("claude-haiku-4-5", None):
            subject.use_model(chosen)
            await collect(subject, "next")
        await subject.close()
        await subject.agent.client.close()

    with FakeAPI([text("a"), text("b"), text("c")]) as api:
        asyncio.run(main(api))
    assert [request.body["model"] for request in api.requests] == [SONNET_5, "claude-haiku-4-5", SONNET_5]


def test_without_streaming_a_tool_begins_when_the_whole_answer_is_there(tmp_path):
    script = [message(tool_use("Probe", {"n": 1}), text("and more words")), text("Done.")]
    with FakeAPI(script) as api:
        held = Settings(model=SONNET_5, retry=FAST, tools=ToolSettings(streaming=False))
        run = drive(api, tmp=tmp_path, tools=[Probe()], settings=held)
    kinds = [type(event) for event in run.events]
    last_word = max(i for i, event in enumerate(run.events[: kinds.index(e.ToolFinished)]) if isinstance(event, e.TextDelta))
    assert run.result.text == "Done." and last_word < kinds.index(e.ToolStarted)
    assert api.requests[1].messages[-1]["content"][0]["content"] == "result 1"
