"""Conversations that outgrow their window, through the real SDK: by the server's means where thinking is bound, by the
client's elsewhere. The fake counts tokens, refuses prompts over the window, checks signatures against the prefix."""

import asyncio
from dataclasses import replace

import pytest

from tests.support.agent import FAST, MemoryJournal, Probe, collect, drive, engine
from tests.support.fake_api import MODELS, FakeAPI, Gate, compaction, hold, http_error, message, text, thinking, tool_use
from worker_agent import messages as m
from worker_agent.causes import Cause
from worker_agent.config import ContextSettings, Settings
from worker_agent.context.rebuild import after_boundary
from worker_agent.tools.base import ToolResult
from worker_agent.tools.builtin.read import Read
from worker_agent.tools.builtin.todo_write import TodoWrite

CLIENT, SERVER, OLD, OWN = "claude-sonnet-5", "claude-sonnet-5-5", "claude-haiku-4-5", "our-own-model"
WINDOW = 40_000
MEMORY = m.user("<system-reminder>\nremember the milk\n</system-reminder>", kind="meta", meta=True, id="user-context")
TOO_LONG = http_error(400, "invalid_request_error", "prompt is too long: 45000 tokens > 40000 maximum")


def settings(model, **context):
    return Settings(model=model, retry=FAST, context=ContextSettings(window=WINDOW, **context))


def server(script, **fields):
    own = replace(MODELS[OLD], id=OWN, thinking=frozenset(), window=WINDOW)
    api = FakeAPI(script, windows=dict.fromkeys((CLIENT, SERVER, OLD), WINDOW), models={OWN: own}, **fields)
    api.allow_prefix_change(lambda request: request.model != SERVER)
    return api


def is_summary(request):
    return "/" in request.conversation


class Work:
    """A model that calls `Probe` for `turns` turns, thinks meanwhile, and summarises what it is shown of the facts."""

    def __init__(self, turns, thinks=False):
        self.turns, self.thinks, self.done, self.summaries = turns, thinks, 0, []

    def __call__(self, request):
        facts = "the key is 4711" if "the key is 4711" in str(request.body["messages"]) else "no fact"
        if is_summary(request):
            self.summaries.append(request)
            return compaction(f"SUMMARY: {facts}") if request.body.get("compaction") else text(f"SUMMARY: {facts}")
        self.done += 1
        if self.done > self.turns:
            self.done = 0
            return text(f"Done: {facts}.")
        parts = [tool_use("Probe", {"n": self.done})]
        return message(*([thinking(f"thought {self.done}")] if self.thinks else []), *parts)


def results(characters=8_000):
    return Probe(then=lambda n: ToolResult(f"{n} " + ("the key is 4711 " if n == 2 else "") + f"{n:x}" * characters))


def resumed(api, run, **fields):
    """An engine that goes on with what the journal of `run` holds."""
    stored = run.journal.messages
    history = tuple(row for row in after_boundary(stored) if row.kind not in ("view", "notice"))
    agent = run.engine.agent
    journal = MemoryJournal()
    journal.messages = list(stored)
    return engine(
        api, agent.tool_context.spill_dir.parent, tools=list(agent.registry), settings=agent.settings,
        journal=journal, history=history, stored=stored, user_context=agent.user_context, **fields,
    )  # fmt: skip


def job(api, tmp, model, work, prompts=1, resume=False, **context):
    """`prompts` prompts one after the other, by one engine or each by a new one; the run of the last."""

    async def main():
        subject = engine(api, tmp, tools=[results()], settings=settings(model, **context), user_context=MEMORY)
        runs = []
        for number in range(prompts):
            if number and resume:
                await subject.close()
                subject = resumed(api, runs[-1])
            runs.append(await collect(subject, f"prompt {number}"))
        await subject.close()
        await subject.agent.client.close()
        return runs[-1]

    return asyncio.run(main())


@pytest.mark.parametrize("model", [CLIENT, SERVER, OLD, OWN])
@pytest.mark.parametrize("collapse", [True, False])
@pytest.mark.parametrize("resume", [True, False])
def test_a_long_job_on_a_small_window_finishes_and_keeps_what_it_found(tmp_path, model, collapse, resume):
    work = Work(40, thinks=model == SERVER)
    with server(work) as api:
        run = job(api, tmp_path, model, work, prompts=2, resume=resume, collapse=collapse)
    assert (run.result.text, run.result.error) == ("Done: the key is 4711.", None)
    assert {request.status for request in api.requests} == {200}
    assert len(work.summaries) >= 4
    assert [request.dropped for request in api.requests if request.dropped] == []
    kinds = {row.kind for row in run.journal.messages}
    assert ("boundary" in kinds) is not collapse or "view" in kinds


def test_the_compaction_of_the_server_comes_first_and_what_is_kept_keeps_its_thinking(tmp_path):
    work = Work(20, thinks=True)
    with server(work) as api:
        job(api, tmp_path, SERVER, work, collapse=False)
    asked = next(request for request in api.requests if request.body.get("compaction"))
    after = next(request for request in api.requests if request.number > asked.number and not is_summary(request))
    assert "remember the milk" in str(asked.messages[0]) and "context_management" not in asked.body
    first = after.messages[0]
    assert first["role"] == "assistant" and first["content"][0]["type"] == "compaction"
    assert [block["type"] for block in first["content"][1:]] == ["thinking", "tool_use"]
    assert "remember the milk" in str(after.messages[1:]) and str(after.messages).count("remember the milk") == 1
    assert "compact-2026-09-04" in after.betas


def test_where_the_client_summarises_kept_turns_lose_their_thinking_and_the_memory_stands_in_front(tmp_path):
    def refuses_to_compact(request):
        return http_error(529, "overloaded_error", "x") if request.body.get("compaction") else work(request)

    work = Work(20, thinks=True)
    with server(refuses_to_compact) as api:
        api.allow_prefix_change()
        run = job(api, tmp_path, SERVER, work, collapse=False)
    asked = next(request for request in api.requests if is_summary(request) and request.status == 200)
    after = next(request for request in api.requests if request.number > asked.number and not is_summary(request))
    assert run.result.error is None and [request.dropped for request in api.requests if request.dropped] == []
    assert "thinking" in {block["type"] for one in asked.messages for block in one["content"]}
    assert "thinking" not in {block["type"] for one in after.messages for block in one["content"]}
    assert "remember the milk" in str(after.messages[0]) and "SUMMARY" in str(after.messages[0])


def test_the_summary_is_asked_for_on_the_agents_own_prefix_and_read_from_the_cache(tmp_path):
    work = Work(20)
    with server(work) as api:
        job(api, tmp_path, CLIENT, work, collapse=False)
    asked = work.summaries[0]
    before = next(r for r in reversed(api.requests) if r.number < asked.number and not is_summary(r))
    assert asked.body["tools"] == before.body["tools"] and asked.body["system"] == before.body["system"]
    assert asked.usage["cache_read_input_tokens"] > 20_000 > 5_000 > asked.usage["cache_creation_input_tokens"]


def test_a_compaction_of_everything_by_the_server_ends_with_a_word_that_is_stored_and_stays(tmp_path):
    """What is sent behind the block must be there in the next request too, or bound thinking would break."""
    script = [TOO_LONG, compaction("ALL OF IT"), message(thinking("hm"), tool_use("Probe", {"n": 1})), text("Done.")]
    with FakeAPI(script) as api:
        run = drive(api, tmp=tmp_path, tools=[Probe()], settings=Settings(model=SERVER, retry=FAST))
    third, fourth = (request.messages for request in api.requests[2:])
    assert [one["role"] for one in third] == ["assistant", "user"]
    assert fourth[:2] == third and fourth[2]["role"] == "assistant"
    assert run.result.text == "Done." and [request.dropped for request in api.requests if request.dropped] == []


def test_an_endpoint_that_takes_no_history_with_a_seam_gets_a_summary_of_it_all_and_no_seam_again(tmp_path):
    work = Work(40)
    refused = []

    def strict(request):
        if b"<collapsed>" in request.raw and len(request.messages) > 3:  # a conversation, not one text about it
            refused.append(request.number)
            return http_error(400, "invalid_request_error", "messages: the prefix of this conversation changed")
        return work(request)

    with server(strict) as api:
        run = job(api, tmp_path, OLD, work)
    # One refusal of the agent, and one of the summary that was asked for on the same prefix.
    assert (run.result.text, run.result.error, len(refused) <= 2) == ("Done: the key is 4711.", None, True) and refused
    assert next(n.data["trigger"] for n in run.notices("compaction")) == "edited"


@pytest.mark.parametrize("model", [CLIENT, SERVER])
def test_a_refusal_that_names_no_limit_leaves_little_of_what_was_refused(tmp_path, model):
    """A body that is too large for some proxy, far below the model's own window."""
    long = Probe(then=lambda n: ToolResult(f"{n}" * 4_000))
    calls = iter(range(100))

    def serve(request):
        if is_summary(request):
            return compaction("ALL OF IT") if request.body.get("compaction") else text("SUMMARY OF IT")
        if len(request.raw) > 40_000:
            return http_error(413, "request_too_large", "<html>413</html>", html=True)
        return tool_use("Probe", {"n": n}) if (n := next(calls)) < 20 else text("Done.")

    with server(serve) as api:
        api.allow_prefix_change()
        run = drive(api, tmp=tmp_path, tools=[long], settings=Settings(model=model, retry=FAST))
    assert (run.result.text, run.result.error) == ("Done.", None)


def test_a_summary_that_is_too_long_itself_drops_whole_groups_from_the_old_end(tmp_path):
    refused = [TOO_LONG, TOO_LONG]

    def script(request):
        return refused.pop() if is_summary(request) and refused else work(request)

    work = Work(20)
    with server(script) as api:
        run = job(api, tmp_path, CLIENT, work, collapse=False)
    tries = [r for r in api.requests if is_summary(r)][:3]
    assert len(tries[0].messages) > len(tries[1].messages) > len(tries[2].messages)
    assert tries[2].status == 200 and run.result.error is None


def test_a_summary_that_never_fits_is_tried_three_times_and_three_rounds_at_most(tmp_path):
    def script(request):
        return TOO_LONG if is_summary(request) else work(request)

    work = Work(30)
    with server(script) as api:
        run = job(api, tmp_path, CLIENT, work, collapse=False)
    # three rounds of autocompact open the breaker, then the refused prompt itself asks for one more
    assert len([r for r in api.requests if is_summary(r)]) <= 4 * 3
    assert run.result.reason == "prompt_too_long" and "result of the tool Probe" in run.result.error


def test_a_newest_message_that_alone_is_too_large_ends_clearly_and_is_named(tmp_path):
    work = Work(0)
    with server(work) as api:
        run = drive(api, "x" * 400_000, tmp=tmp_path, settings=settings(CLIENT))
    assert run.result.reason == "prompt_too_long"
    assert "400,000 characters" in run.result.error or "400,0" in run.result.error
    assert len(api.requests) <= 1 + 3


@pytest.mark.parametrize("earlier", [False, True])
def test_a_prompt_that_fills_most_of_a_small_window_is_sent_word_for_word(tmp_path, earlier):
    """8k, as many local servers have it: what nobody has answered yet is never left to a summary."""
    prompt = "Find the word. " + "lorem ipsum " * 2_050  # about 6,150 tokens as we count

    def script(request):
        return text("SUMMARY: hello was said") if is_summary(request) else text("here it is")

    async def main(api):
        small = Settings(model=OLD, retry=FAST, context=ContextSettings(window=8_192))
        subject = engine(api, tmp_path, settings=small)
        if earlier:
            await collect(subject, "hello " * 400)
        run = await collect(subject, prompt)
        await subject.agent.client.close()
        return run

    with FakeAPI(script, windows={OLD: 8_192}, allow_prefix_change=True) as api:
        run = asyncio.run(main(api))
    assert run.result.text == "here it is" and run.result.error is None
    assert prompt.strip() in api.requests[-1].last_user_text
    assert sum(map(is_summary, api.requests)) == earlier


def test_one_result_that_is_larger_than_the_window_goes_to_a_file_before_it_is_sent(tmp_path):
    work = Work(3)
    with server(work) as api:
        run = drive(api, tmp=tmp_path, tools=[results(49_000 // 2)], settings=settings(CLIENT))
    assert run.result.error is None


def test_with_autocompact_off_the_blocking_limit_stops_before_the_call(tmp_path):
    work = Work(30)
    with server(work) as api:
        run = job(api, tmp_path, CLIENT, work, auto_compact=False, collapse=False)
    assert run.result.reason == "blocking_limit" and "/compact" in run.result.error
    assert {r.status for r in api.requests} == {200} and not work.summaries


def test_compaction_by_hand_takes_instructions_and_keeps_a_question_nobody_answered(tmp_path):
    work = Work(3)

    async def main(api):
        subject = engine(api, tmp_path, tools=[results(100)], settings=settings(CLIENT))
        await collect(subject, "prompt 0")
        told = await collect(subject, "/compact keep the numbers")
        last = await collect(subject, "and now?")
        await subject.agent.client.close()
        return told, last

    with server(work) as api:
        told, last = asyncio.run(main(api))
    assert told.result.text == "The conversation was summarised." and last.result.error is None
    assert "keep the numbers" in work.summaries[0].last_user_text


def test_there_is_nothing_to_summarise_in_an_empty_conversation(tmp_path):
    with server(text("never")) as api:
        run = drive(api, "/compact", tmp=tmp_path, settings=settings(CLIENT))
    assert "nothing to summarise" in run.result.text and api.requests == []


@pytest.mark.parametrize("model", [CLIENT, SERVER])
def test_a_compaction_can_be_compacted(tmp_path, model):
    work = Work(3, thinks=model == SERVER)

    async def main(api):
        subject = engine(api, tmp_path, tools=[results(100)], settings=settings(model), user_context=MEMORY)
        for _ in range(3):
            await collect(subject, "go on")
            told = await collect(subject, "/compact")
            assert told.result.text == "The conversation was summarised."
        last = await collect(subject, "go on")
        await subject.agent.client.close()
        return last

    with server(work) as api:
        last = asyncio.run(main(api))
    assert last.result.text == "Done: the key is 4711."
    assert [row.kind for row in last.journal.messages].count("boundary") == 3


def test_a_model_that_calls_tools_in_place_of_a_summary_is_asked_in_plain_text(tmp_path):
    def script(request):
        if is_summary(request) and request.tool_names:
            return tool_use("Probe", {"n": 1})
        return work(request)

    work = Work(20)
    with server(script) as api:
        run = job(api, tmp_path, OWN, work, collapse=False)
    assert run.result.text == "Done: the key is 4711."


def test_an_endpoint_without_the_small_model_collapses_by_the_agents_own(tmp_path):
    unknown = replace(MODELS[OLD], id=OWN, thinking=frozenset(), window=WINDOW)
    work = Work(40)
    with FakeAPI(work, models={OWN: unknown}, without=("models",)) as api:
        api.allow_prefix_change()
        api.models.pop("claude-haiku-5-5")
        run = job(api, tmp_path, OWN, work)
    assert run.result.text == "Done: the key is 4711."
    assert {r.model for r in work.summaries} == {OWN} and "view" in {row.kind for row in run.journal.messages}


def test_an_interrupt_ends_a_compaction(tmp_path):
    gate = Gate()
    work = Work(20)

    def script(request):
        return hold(gate, text("late")) if is_summary(request) else work(request)

    async def main(api):
        subject = engine(api, tmp_path, tools=[results()], settings=settings(CLIENT, collapse=False))
        running = asyncio.create_task(collect(subject, "go"))
        while not any("/" in (r.conversation or "") for r in api.requests):
            await asyncio.sleep(0.01)
        subject.interrupt(Cause.PERSON)
        run = await running
        await subject.agent.client.close()
        return run

    with server(script) as api:
        run = asyncio.run(main(api))
        gate.open()
    assert run.result.reason == "aborted_streaming" and "boundary" not in {row.kind for row in run.journal.messages}


def test_what_is_rebuilt_stands_in_the_given_order(tmp_path):
    seen = tmp_path / "seen.py"
    seen.write_text("answer = 42\n")

    async def tasks():
        return (m.user("TASKS", kind="attachment", meta=True),)

    async def hooks():
        return (m.user("HOOKS", kind="attachment", meta=True),)

    plan = {"todos": [{"content": "count the eggs", "status": "in_progress"}]}
    script = [
        message(tool_use("Read", {"file_path": str(seen)}), tool_use("TodoWrite", plan)),
        text("half"),
        text("SUMMARY"),
        text("whole"),
    ]

    async def main(api):
        subject = engine(api, tmp_path, tools=[Read(), TodoWrite()], settings=settings(CLIENT, compact_keep=0.0))
        subject.context.rebuild_tasks, subject.context.rebuild_last = tasks, hooks
        await collect(subject, "begin")
        await collect(subject, "/compact")
        seen.write_text("answer = 43\n")
        await collect(subject, "go on")
        await subject.agent.client.close()

    with server(script) as api:
        asyncio.run(main(api))
    sent = "\n".join(block["text"] for block in api.requests[-1].messages[0]["content"])
    marks = ["SUMMARY", "answer = 42", "TASKS", "count the eggs", "HOOKS", "go on"]
    assert [sent.index(mark) for mark in marks] == sorted(sent.index(mark) for mark in marks)
    assert "begin" not in sent.replace("beginning", "")


def test_after_a_compaction_a_picture_and_a_notebook_come_back_as_a_note_and_text_as_text(tmp_path):
    png = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x02\x00\x00\x00\x02\x08\x02\x00\x00\x00"
    files = {"shot.png": png + bytes(range(256)) * 8, "n.ipynb": b'{"cells": []}', "wide.txt": "answer = 42".encode("utf-16")}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    calls = [tool_use("Read", {"file_path": str(tmp_path / name)}) for name in files]

    async def main(api):
        subject = engine(api, tmp_path, tools=[Read()], settings=settings(CLIENT, compact_keep=0.0))
        for prompt in ("begin", "/compact", "go on"):
            await collect(subject, prompt)
        await subject.agent.client.close()

    with server([message(*calls), text("half"), text("SUMMARY"), text("whole")]) as api:
        asyncio.run(main(api))
    sent = "\n".join(block["text"] for block in api.requests[-1].messages[0]["content"])
    assert "[shot.png is image/png. It was read before" in sent and "[n.ipynb is a notebook. It was read" in sent
    assert "answer = 42" in sent and "\ufffd" not in sent
