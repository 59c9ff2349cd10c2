"""The body of a request: byte-stable, incremental, and only what the model knows."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.api.histories import IMAGE, TOOL, broken_histories, request, rules
from worker_agent.api.client import ToolSpec
from worker_agent.api.models import guess, info_for
from worker_agent.api.normalize import COMPACTION_BETA
from worker_agent.api.request import CONTEXT_MANAGEMENT_BETA, RequestBuilder
from worker_agent.errors import ErrorKind, ModelError
from worker_agent.messages import CACHE_ANCHOR, assistant, notice, text_block, tool_result_block, user

SONNET = info_for("claude-sonnet-5-5")
MARK = {"type": "ephemeral"}


def body(messages, info=SONNET, builder=None, **fields):
    return orjson.loads((builder or RequestBuilder()).call(request(messages, **fields), info).body)


def headers(messages, info=SONNET, **fields):
    return RequestBuilder().call(request(messages, **fields), info).headers


def turn(number: int, calls: int = 1):
    uses = [{"type": "tool_use", "id": f"t{number}_{i}", "name": "Read", "input": {"path": "x"}} for i in range(calls)]
    results = [tool_result_block(use["id"], "content") for use in uses]
    return [assistant([text_block("Reading."), *uses]), user(results, kind="tool_results")]


def conversation(turns: int, calls: int = 1):
    return (user("go"), *(m for n in range(turns) for m in turn(n, calls)))


@settings(max_examples=200, deadline=None)
@given(broken_histories, st.sampled_from(["claude-sonnet-5-5", "claude-opus-5", "local-model"]))
def test_a_history_that_grows_is_built_from_what_is_kept_to_the_same_bytes(history, model):
    info, kept = info_for(model), RequestBuilder()
    for end in range(len(history) + 1):
        asked = request(history[:end], model=model)
        assert kept.call(asked, info).body == RequestBuilder().call(asked, info).body


@settings(max_examples=100, deadline=None)
@given(broken_histories)
def test_every_body_satisfies_the_strict_rules(history):
    call = RequestBuilder().call(request(history), SONNET)
    rules(orjson.loads(call.body), call.headers.get("anthropic-beta", "").split(","))


def test_the_messages_of_a_request_begin_the_messages_of_the_next_one_byte_for_byte():
    builder, before = RequestBuilder(), b""
    for turns in range(6):
        now = builder.call(request(conversation(turns)), SONNET).body
        assert now.startswith(before.removesuffix(b"]}"))
        before = now


def test_settled_messages_are_not_normalised_again():
    builder = RequestBuilder()
    for turns in range(1, 50):
        history = conversation(turns)
        builder.call(request(history), SONNET)
        kept = builder._kept["c1", SONNET.id]
        assert len(kept.messages) == len(history) - 2 and kept.messages == history[:-2]


def test_a_long_conversation_of_small_messages_is_sent_in_few_parts_that_are_the_same_bytes():
    builder, small, history = RequestBuilder(), 0, (user("go"),)
    for number in range(300):
        history = (*history, *turn(number, calls=20 if number % 90 == 89 else 1))  # many calls: what is settled gets a mark
        call = builder.call(request(history), SONNET)
        assert call.body == b"".join(call.parts) == RequestBuilder().call(request(history), SONNET).body
        small = max(small, len(call.parts))
    assert small < 700


def test_a_mark_in_what_was_put_together_long_ago_stands_where_it_stood():
    builder, history = RequestBuilder(), (user("go"), *turn(0), user("kept", kind="summary", data={CACHE_ANCHOR: True}))
    for number in range(1, 200):
        history = (*history, *turn(number))
        call = builder.call(request(history), SONNET)
        assert call.body.count(b"cache_control") == 3
    assert call.body == RequestBuilder().call(request(history), SONNET).body


def test_large_results_are_sent_as_the_bytes_that_the_history_holds():
    builder, large = RequestBuilder(), "x" * 20_000
    history = (user("go"),)
    for number in range(100):
        use = {"type": "tool_use", "id": f"t{number}", "name": "Read", "input": {}}
        history = (*history, assistant([use]), user([tool_result_block(use["id"], large)], kind="tool_results"))
        call = builder.call(request(history), SONNET)
    assert max(map(len, call.parts)) < 25_000


def test_a_changed_history_is_built_anew():
    builder = RequestBuilder()
    builder.call(request(conversation(3)), SONNET)
    other = (user("something else"), *turn(7), *turn(8))
    assert builder.call(request(other), SONNET).body == RequestBuilder().call(request(other), SONNET).body


def test_too_many_images_and_refused_media_reach_into_what_is_settled():
    builder = RequestBuilder()
    history = [user("go")]
    for number in range(60):
        use = {"type": "tool_use", "id": f"t{number}", "name": "Read", "input": {}}
        history += [assistant([use]), user([tool_result_block(use["id"], [IMAGE, IMAGE])], kind="tool_results")]
        assert builder.call(request(history), SONNET).body == RequestBuilder().call(request(history), SONNET).body
    refused = [*history, notice("no", kind="api_error", media=[]), *turn(99)]
    assert builder.call(request(refused), SONNET).body == RequestBuilder().call(request(refused), SONNET).body


def test_the_cache_marks_stand_after_the_shared_system_block_and_at_the_tail():
    asked = body(conversation(2))
    assert [block.get("cache_control") for block in asked["system"]] == [MARK, None]
    assert asked["cache_control"] == MARK
    assert b"cache_control" not in orjson.dumps(asked["messages"])


def test_a_turn_with_many_calls_marks_the_end_of_the_request_before_it():
    history = (*conversation(1), *turn(1, calls=12))
    messages = body(history)["messages"]
    assert messages[2]["content"][-1]["cache_control"] == MARK
    assert sum(b"cache_control" in orjson.dumps(message) for message in messages) == 1


def test_models_that_no_table_knows_get_no_marks_betas_thinking_or_effort():
    history = conversation(1)
    asked = body(history, guess("local"), model="local", effort="high", betas=("x-1",), context_management={"edits": []})
    assert sorted(asked) == ["max_tokens", "messages", "model", "stream", "system", "tools"]
    assert b"cache_control" not in orjson.dumps(asked)
    assert "anthropic-beta" not in headers(history, guess("local"), betas=("x-1",), context_management={"edits": []})


def test_no_sampling_parameters_are_ever_sent():
    assert not {"temperature", "top_p", "top_k"} & set(body(conversation(1)))


def test_thinking_effort_and_output_format_follow_the_capabilities():
    asked = body(conversation(1), effort="low", output_schema={"type": "object"})
    assert asked["thinking"] == {"type": "adaptive", "display": "summarized"}
    assert asked["output_config"] == {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}}
    assert "thinking" not in body(conversation(1), info_for("claude-haiku-4-5"))


def test_tools_stay_in_the_prefix_when_a_call_must_not_use_them():
    asked = body(conversation(1), tools_allowed=False)
    assert asked["tool_choice"] == {"type": "none"} and asked["tools"][0]["name"] == TOOL.name


def test_the_output_cap_never_exceeds_the_models_own():
    assert body(conversation(1), max_tokens=10**9)["max_tokens"] == 128_000


def test_on_demand_compaction_is_a_field_and_a_beta_and_takes_the_output_format_out():
    fields = {
        "compact": "",
        "output_schema": {"type": "object"},
        "context_management": {"edits": []},
        "tools_allowed": False,
    }
    asked = body(conversation(1), **fields)
    assert asked["compaction"] == {"type": "summarize"}
    assert not {"output_config", "tool_choice", "context_management"} & set(asked)
    assert headers(conversation(1), **fields)["anthropic-beta"] == COMPACTION_BETA
    assert body(conversation(1), compact="Keep paths.")["compaction"]["instructions"] == "Keep paths."


def test_a_conversation_that_holds_a_compaction_keeps_sending_its_beta():
    block = {"type": "compaction", "content": "so far", "encrypted_content": "E", "signature": "S"}
    builder, history = RequestBuilder(), [assistant([block]), user("on")]
    for number in range(4):
        call = builder.call(request(history), SONNET)
        assert call.headers["anthropic-beta"] == COMPACTION_BETA
        assert orjson.loads(call.body)["messages"][0] == {"role": "assistant", "content": [block]}
        history += turn(number)


def test_a_model_that_cannot_compact_says_so():
    with pytest.raises(ModelError) as caught:
        RequestBuilder().call(request(conversation(1), compact=""), info_for("claude-haiku-4-5"))
    assert caught.value.kind is ErrorKind.INVALID_REQUEST


def test_context_editing_carries_its_beta_beside_the_callers():
    sent = headers(conversation(1), context_management={"edits": []}, betas=("task-budgets-2026-03-13",))
    assert sent == {"x-conversation": "c1", "anthropic-beta": f"task-budgets-2026-03-13,{CONTEXT_MANAGEMENT_BETA}"}


def test_the_tools_of_many_agents_are_serialised_once():
    builder, tools = RequestBuilder(), (TOOL,)
    builder.call(request(conversation(1), tools=tools, conversation="a"), SONNET)
    first = builder._tools[id(tools)][1]
    builder.call(request(conversation(1), tools=tools, conversation="b"), SONNET)
    assert builder._tools[id(tools)][1] is first


def test_the_conversations_not_used_for_longest_are_forgotten_when_there_is_no_room():
    builder = RequestBuilder(kept_bytes=20_000)
    history = (user("x" * 5_000), *turn(0), *turn(1))
    for number in range(10):
        builder.call(request(history, conversation=str(number)), SONNET)
    assert [conversation for conversation, _ in builder._kept] == ["7", "8", "9"]
    assert builder._room == 20_000 - sum(kept.size for kept in builder._kept.values())
    builder.call(request((user("y" * 50_000), *turn(0), *turn(1)), conversation="big"), SONNET)
    assert [conversation for conversation, _ in builder._kept] == ["big"]


def test_a_conversation_that_ended_is_forgotten_for_every_model_and_its_room_given_back():
    builder = RequestBuilder(kept_bytes=1_000_000)
    for info in (SONNET, info_for("claude-opus-5")):
        for name in ("one", "two"):
            builder.call(request(conversation(3), conversation=name, model=info.id), info)
    builder.forget("one")
    builder.forget("unheard of")
    assert {conversation for conversation, _ in builder._kept} == {"two"}
    assert builder._room == 1_000_000 - sum(kept.size for kept in builder._kept.values())


# ── deferred tools ───────────────────────────────────────────────────────────────────────────────────────────────────

SCHEMA = {"type": "object", "properties": {}}
SOME = (ToolSpec("Find", "Finds.", SCHEMA), *(ToolSpec(f"mcp__x__{n}", n, SCHEMA, deferred=True) for n in ("a", "b", "c")))


def found(number: int, *names: str):
    uses = [{"type": "tool_use", "id": f"f{number}", "name": "Find", "input": {}}]
    content = [text_block("Found"), *({"type": "tool_reference", "tool_name": name} for name in names)]
    return [assistant(uses), user([tool_result_block(f"f{number}", content)], kind="tool_results")]


def test_a_model_that_knows_deferred_tools_gets_them_all_marked_and_its_references_as_they_are():
    before = body([user("go")], tools=SOME)
    after = body([user("go"), *found(1, "mcp__x__b", "mcp__x__gone")], tools=SOME)
    assert before["tools"] == after["tools"]
    assert [tool.get("defer_loading") for tool in after["tools"]] == [None, True, True, True]
    assert after["messages"][-1]["content"][0]["content"][1:] == [{"type": "tool_reference", "tool_name": "mcp__x__b"}]


def test_any_other_model_is_told_of_a_deferred_tool_once_it_was_found_and_gets_no_reference():
    builder, plain = RequestBuilder(), guess("local-model")
    history = [user("go")]
    assert [t["name"] for t in body(history, plain, builder, tools=SOME)["tools"]] == ["Find"]
    history += found(1, "mcp__x__c")
    told = body(history, plain, builder, tools=SOME)
    assert told["tools"] == [
        {"name": n, "description": d, "input_schema": SCHEMA} for n, d in (("Find", "Finds."), ("mcp__x__c", "c"))
    ]
    assert [block["type"] for block in told["messages"][-1]["content"][0]["content"]] == ["text"]
    history += found(2, "mcp__x__a", "mcp__x__c")
    assert [t["name"] for t in body(history, plain, builder, tools=SOME)["tools"]] == ["Find", "mcp__x__c", "mcp__x__a"]
