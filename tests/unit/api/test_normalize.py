"""Whatever is stored can be sent, and what was sent does not change."""

from __future__ import annotations

import copy

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.api.histories import DOCUMENT, IMAGE, body_of, broken_histories, rules
from worker_agent.api import normalize as n
from worker_agent.api.models import info_for
from worker_agent.messages import Message, assistant, notice, text_block, tool_result_block, user

INFO = info_for("claude-opus-5")
BETAS = (n.COMPACTION_BETA,)


def call(id: str, name: str = "Read") -> dict:
    return {"type": "tool_use", "id": id, "name": name, "input": {}}


def sent(messages, betas=(), info=INFO):
    return body_of(n.normalize(messages, info, betas))["messages"]


def stored_again(wire: list[n.WireMessage]) -> tuple[Message, ...]:
    kinds = {"user": "prompt", "assistant": "answer"}
    return tuple(Message(role=m.role, content=tuple(m.blocks), kind=kinds[m.role]) for m in wire)


@settings(max_examples=400, deadline=None)
@given(broken_histories, st.sampled_from([(), BETAS]))
def test_any_stored_history_becomes_a_body_the_api_accepts(history, betas):
    rules(body_of(n.normalize(history, INFO, betas)), betas)


@settings(max_examples=200, deadline=None)
@given(broken_histories)
def test_normalising_what_was_normalised_changes_nothing(history):
    once = n.normalize(history, INFO, BETAS)
    twice = n.normalize(stored_again(once), INFO, BETAS)
    assert [m.wire for m in twice] == [m.wire for m in once]


@settings(max_examples=100, deadline=None)
@given(broken_histories)
def test_each_pass_run_twice_changes_nothing(history):
    wire = n.normalize_messages_for_api(history)
    for run in (
        n.ensure_tool_result_pairing,
        lambda w: n.strip_unsupported_blocks(w, INFO, ()),
        lambda w: n.strip_excess_media_items(w, 2),
    ):
        wire = run(wire)
        assert [m.wire for m in run(wire)] == [m.wire for m in wire]


@settings(max_examples=100, deadline=None)
@given(broken_histories)
def test_inputs_are_not_edited(history):
    before = copy.deepcopy([(m.content, m.wire, dict(m.data)) for m in history])
    n.normalize(history, INFO, BETAS)
    assert [(m.content, m.wire, dict(m.data)) for m in history] == before


@settings(max_examples=200, deadline=None)
@given(broken_histories, broken_histories)
def test_what_lies_before_the_last_answer_keeps_its_bytes_when_the_history_grows(history, more):
    if any(map(n.changes_the_past, more)):
        return
    before = n.normalize(history, INFO, BETAS)
    after = n.normalize(history + more, INFO, BETAS)
    answer = next((i for i in reversed(range(len(before))) if before[i].role == "assistant"), 0)
    assert [m.wire for m in after[:answer]] == [m.wire for m in before[:answer]]


@settings(max_examples=100, deadline=None)
@given(broken_histories)
def test_the_bytes_are_those_of_the_blocks(history):
    for message in n.normalize(history, INFO, BETAS):
        assert orjson.loads(message.wire) == {
            "role": message.role,
            "content": orjson.loads(orjson.dumps(message.blocks)),
        }


def test_a_sound_message_goes_out_as_the_bytes_it_was_born_with():
    message = user([text_block("a"), IMAGE])
    assert n.normalize([message], INFO)[0].wire_parts == [message.wire[1:-1]]


def test_what_is_only_for_observers_is_not_sent():
    assert sent([notice("compacting"), user("hi"), notice("boundary", kind="boundary")]) == [
        {"role": "user", "content": [text_block("hi")]}
    ]


def test_attachments_move_up_to_the_results_and_results_stand_first():
    history = [
        user("go"),
        assistant([call("a")]),
        user("and now?"),
        user("news", kind="attachment"),
        user([tool_result_block("a", "ok")], kind="tool_results"),
    ]
    assert [b.get("text", b["type"]) for b in sent(history)[-1]["content"]] == ["tool_result", "news", "and now?"]


def test_the_blocks_of_an_answer_keep_their_order_whatever_its_messages_are_called():
    parts = [Message(role="assistant", content=(text_block(t),), kind=k) for t, k in (("a", "answer"), ("b", "attachment"))]
    assert sent([user("go"), *parts, user("on")])[1]["content"] == [text_block("a"), text_block("b")]


def test_a_call_without_result_gets_an_error_result_in_the_next_message():
    history = [user("go"), assistant([call("a"), call("b")]), user([tool_result_block("b", "ok")], kind="tool_results")]
    results = sent(history)[-1]["content"]
    assert [(r["tool_use_id"], r.get("is_error", False)) for r in results] == [("a", True), ("b", False)]


def test_a_history_that_ends_with_calls_is_answered_for_them():
    assert sent([user("go"), assistant([call("a")])])[-1] == {
        "role": "user",
        "content": [tool_result_block("a", n.NO_RESULT, is_error=True)],
    }


def test_a_result_without_its_call_and_a_second_result_are_dropped():
    stray = tool_result_block("zzz", "?")
    history = [
        user([stray, text_block("hi")]),
        assistant([call("a")]),
        user([tool_result_block("a", "1"), tool_result_block("a", "2"), stray]),
    ]
    messages = sent(history)
    assert messages[0]["content"] == [text_block("hi")]
    assert messages[2]["content"] == [tool_result_block("a", "1")]


def test_a_call_that_repeats_an_id_is_dropped_with_its_result():
    history = [
        user("go"),
        assistant([call("a")]),
        user([tool_result_block("a", "1")], kind="tool_results"),
        assistant([text_block("again"), call("a")]),
        user([tool_result_block("a", "2"), text_block("so?")]),
    ]
    assert sent(history)[3:] == [
        {"role": "assistant", "content": [text_block("again")]},
        {"role": "user", "content": [text_block("so?")]},
    ]


def test_a_paused_answer_is_sent_back_as_the_last_message():
    history = [user("go"), assistant("searching", stop_reason="pause_turn")]
    assert sent(history)[-1]["role"] == "assistant"
    assert sent([user("go"), assistant("done")])[-1] == {"role": "user", "content": [text_block(n.CONTINUE)]}


def test_an_answer_of_thinking_only_is_left_out():
    thinking = {"type": "thinking", "thinking": "hm", "signature": "S"}
    assert len(sent([user("a"), assistant([thinking]), user("b")])) == 1
    assert sent([user("a"), assistant([thinking, text_block("x")]), user("b")])[1]["content"][0] == thinking


def test_empty_thinking_with_a_signature_is_kept_and_unsigned_thinking_is_not():
    signed = {"type": "thinking", "thinking": "", "signature": "S"}
    unsigned = {"type": "thinking", "thinking": "hm"}
    history = [user("a"), assistant([signed, unsigned, text_block("x")]), user("b")]
    assert sent(history)[1]["content"] == [signed, text_block("x")]
    assert sent(history, info=info_for("llama"))[1]["content"] == [signed, unsigned, text_block("x")]


def test_unknown_blocks_of_a_model_are_kept_verbatim():
    block = {"type": "hologram", "z": None, "a": [1]}
    assert sent([user("a"), assistant([block]), user("b")])[1]["content"] == [block]


def test_a_compaction_stands_for_what_came_before_it():
    block = {"type": "compaction", "content": "so far", "encrypted_content": None, "signature": "S"}
    history = [user("old"), assistant([text_block("old too"), block]), user("new")]
    assert sent(history, BETAS) == [
        {"role": "assistant", "content": [block]},
        {"role": "user", "content": [text_block("new")]},
    ]


def test_a_compaction_that_cannot_travel_leaves_its_summary_as_text():
    block = {"type": "compaction", "content": "so far", "encrypted_content": None, "signature": "S"}
    messages = sent([assistant([block]), user("new")])
    assert [m["content"][0]["text"] for m in messages] == [n.START, "so far", "new"]


def test_a_failed_compaction_covers_nothing():
    block = {"type": "compaction", "content": None}
    assert [m["role"] for m in sent([user("old"), assistant([block, text_block("x")]), user("new")], BETAS)] == [
        "user",
        "assistant",
        "user",
    ]


def _refusal(media) -> Message:
    return notice("too large", kind="api_error", media=media)


def test_media_the_api_named_leaves_the_message_that_carried_it():
    result = tool_result_block("a", [text_block("two pages"), IMAGE, DOCUMENT])
    history = [user([text_block("look"), IMAGE]), assistant([call("a")]), user([result], kind="tool_results")]
    messages = sent([*history, _refusal(["messages.2.content.0.content.1"]), user("go on", kind="meta")])
    assert messages[0]["content"][1] == IMAGE
    assert messages[2]["content"][0]["content"] == [
        text_block("two pages"),
        text_block("[image left out: the API refused it]"),
        DOCUMENT,
    ]


def test_media_named_by_no_usable_path_is_that_of_the_last_message_with_any():
    history = [user([IMAGE]), assistant("nice"), user([DOCUMENT, text_block("read")])]
    messages = sent([*history, _refusal(["nonsense"])])
    assert messages[0]["content"] == [IMAGE]
    assert messages[2]["content"][0]["text"].startswith("[document left out")


def test_at_most_a_hundred_media_items_go_and_the_oldest_leave_first():
    history = [user([{**IMAGE, "source": {**IMAGE["source"], "data": f"A{i}"}} for i in range(101)])]
    content = sent(history)[0]["content"]
    assert [b["type"] for b in content[:12]] == ["text"] * 10 + ["image"] * 2
    assert sum(b["type"] == "image" for b in content) == 91


def test_one_image_more_does_not_change_what_was_left_out():
    def parts(count):
        return sent([user([IMAGE]) if i % 2 == 0 else assistant("ok") for i in range(2 * count - 1)])

    assert parts(110)[:-1] == parts(109) + parts(110)[len(parts(109)) : -1]


def server_call(id: str, kind: str = "server_tool_use") -> dict:
    return {"type": kind, "id": id, "name": "web_search", "input": {}}


def server_result(id: str, kind: str = "web_search_tool_result") -> dict:
    return {"type": kind, "tool_use_id": id, "content": []}


def test_a_server_tools_call_and_its_result_go_together():
    lonely = assistant([text_block("t"), server_call("srvtoolu_1"), server_result("srvtoolu_2")])
    whole = assistant([text_block("t"), server_call("srvtoolu_3"), server_result("srvtoolu_3")])
    types = [[block["type"] for block in m["content"]] for m in sent((user("q"), lonely, user("on"), whole, user("go")))]
    assert types == [["text"], ["text"], ["text"], ["text", "server_tool_use", "web_search_tool_result"], ["text"]]


def test_the_call_behind_a_result_that_cannot_travel_goes_too():
    advised = assistant([text_block("t"), server_call("srvtoolu_1"), server_result("srvtoolu_1", "advisor_tool_result")])
    assert [b["type"] for b in sent((user("q"), advised, user("on")))[1]["content"]] == ["text"]
    kept = sent((user("q"), advised, user("on")), ("advisor-tool-2026-03-01",))[1]["content"]
    assert [b["type"] for b in kept] == ["text", "server_tool_use", "advisor_tool_result"]


def test_a_call_that_the_server_paused_at_goes_back_while_it_is_the_last():
    paused = assistant([text_block("t"), server_call("srvtoolu_1")], stop_reason="pause_turn")

    def kinds(*messages):
        return [b["type"] for b in sent(messages)[1]["content"]]

    assert kinds(user("q"), paused) == ["text", "server_tool_use"]
    assert kinds(user("q"), paused, user("stop")) == ["text"]
    assert kinds(user("q"), paused, assistant([server_result("srvtoolu_1"), text_block("found")])) == [
        "text", "server_tool_use", "web_search_tool_result", "text",
    ]  # fmt: skip
