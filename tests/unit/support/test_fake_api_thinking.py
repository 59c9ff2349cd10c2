"""Thinking is bound to the model and, on the models that bind, to every byte of meaning before it."""

from __future__ import annotations

import re
from typing import Any

import anthropic
import pytest

from tests.support.fake_api import MODELS, FakeAPI, compaction, message, redacted, sequence, thinking, tool_use
from tests.unit.support.helpers import MODEL, OLD, READ, assistant, create, replay, result, stream, user, with_client

BINDING = [m.id for m in MODELS.values() if m.binds]
SYSTEM = "Be exact."
WRITE = {**READ, "name": "Write"}


def talk(api: FakeAPI, model: str = MODEL, **fields: Any) -> list[dict[str, Any]]:
    """Two turns with thinking in each; gives the history, ending with a user message."""
    messages: list[dict[str, Any]] = [user("hi")]
    for text in ("more", "and more"):
        answer = stream(api, messages, model=model, system=SYSTEM, tools=[READ], **fields)
        messages = [*messages, replay(answer), user(text)]
    return messages


def bound_api(**options: Any) -> FakeAPI:
    script = sequence(message(thinking(), "one"), message(redacted(), thinking("b"), "two"), "three", repeat_last=True)
    return FakeAPI(script, **options)


def test_the_models_that_bind_are_the_newest() -> None:
    assert sorted(BINDING) == [
        "claude-fable-5-1", "claude-fable-5-2", "claude-haiku-5-5", "claude-mythos-5-1", "claude-mythos-5-2",
        "claude-opus-5-5", "claude-sonnet-5-5",
    ]  # fmt: skip


@pytest.mark.parametrize("model", ["claude-opus-5-5", "claude-fable-5-2", "claude-haiku-5-5", OLD])
def test_an_unchanged_history_is_accepted(model: str) -> None:
    with bound_api() as api:
        assert stream(api, talk(api, model), model=model, system=SYSTEM, tools=[READ]).content[0].text == "three"


def changed(messages: list[dict[str, Any]], how: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"system": SYSTEM, "tools": [READ]}
    if how == "first message":
        messages = [user("HI"), *messages[1:]]
    elif how == "dropped thinking":
        messages = [messages[0], assistant(messages[1]["content"][1:]), *messages[2:]]
    elif how == "dropped redacted":
        messages = [*messages[:3], assistant(messages[3]["content"][1:]), *messages[4:]]
    elif how == "inserted":
        messages = [*messages[:3], user("by the way"), *messages[3:]]
    elif how == "trimmed":
        messages = messages[2:]
    elif how == "system":
        fields["system"] = "Be vague."
    elif how == "tools":
        fields["tools"] = [READ, WRITE]
    return {"messages": messages, **fields}


CHANGES = ["first message", "dropped thinking", "dropped redacted", "inserted", "trimmed", "system", "tools"]
BOUND = r"messages\.\d+\.content\.\d+: .*bound to a different conversation"


@pytest.mark.parametrize("how", CHANGES)
def test_a_changed_prefix_is_refused_on_a_model_that_binds(how: str) -> None:
    with bound_api(allow_violations=("different conversation",)) as api:
        messages = talk(api)
        with pytest.raises(anthropic.BadRequestError) as caught:
            stream(api, **changed(messages, how))
    assert re.match(BOUND, caught.value.api_message)


@pytest.mark.parametrize("how", CHANGES)
def test_other_models_forgive_a_changed_prefix(how: str) -> None:
    with bound_api(allow_prefix_change=True) as api:
        messages = talk(api, OLD)
        stream(api, **changed(messages, how), model=OLD)


def test_a_changed_signature_or_text_is_invalid_on_every_model() -> None:
    with bound_api(allow_violations=("Invalid `signature`", "Invalid `data`")) as api:
        for model in (MODEL, OLD):
            for message_at, block_at, key in ((1, 0, "signature"), (1, 0, "thinking"), (3, 0, "data")):
                messages = talk_copy(api, model)
                messages[message_at]["content"][block_at][key] += "A"
                with pytest.raises(anthropic.BadRequestError, match="Invalid `"):
                    stream(api, messages, model=model, system=SYSTEM, tools=[READ])


def talk_copy(api: FakeAPI, model: str) -> list[dict[str, Any]]:
    """A fresh conversation, opened with words of its own."""
    messages = [user(f"hi {len(api.requests)}")]
    for text in ("more", "and more"):
        answer = stream(api, messages, model=model, system=SYSTEM, tools=[READ])
        messages = [*messages, replay(answer), user(text)]
    return messages


def test_thinking_of_another_model_is_dropped_without_an_error() -> None:
    with bound_api() as api:
        messages = talk(api)
        stream(api, messages, model="claude-sonnet-5-5", system=SYSTEM, tools=[READ])
        dropped = api.requests[-1].dropped
    assert [(d.path, d.reason) for d in dropped] == [
        ("messages.1.content.0", "model_binding_mismatch"),
        ("messages.3.content.0", "model_binding_mismatch"),
        ("messages.3.content.1", "model_binding_mismatch"),
    ]


def test_on_request_a_failing_block_is_dropped_and_reported() -> None:
    config = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
    with bound_api(allow_prefix_change=True) as api:
        messages = talk(api)
        answer = create(
            api, beta=True, betas=["thinking-binding-controls-2026-08-01"], thinking=config,
            **changed(messages, "first message"),
        )  # fmt: skip
    assert [t.path for t in answer.input_transformations] == [
        "messages.1.content.0", "messages.3.content.0", "messages.3.content.1",
    ]  # fmt: skip
    assert {t.reason for t in answer.input_transformations} == {"prefix_binding_mismatch"}


def test_binding_can_be_switched_off_as_for_older_accounts() -> None:
    with bound_api(enforce_binding=False, allow_prefix_change=True) as api:
        stream(api, **changed(talk(api), "first message"))
        assert api.requests[-1].dropped


def test_cache_marks_do_not_matter_to_the_binding() -> None:
    with bound_api() as api:
        messages = talk(api, cache_control={"type": "ephemeral"})
        marked = [*messages[:-1], user([{"type": "text", "text": "and more", "cache_control": {"type": "ephemeral"}}])]
        system = [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}]
        stream(api, marked, system=system, tools=[READ])


def test_thinking_inside_a_tool_turn_is_bound_too() -> None:
    script = sequence(message(thinking(), tool_use("Read", id="toolu_1")), message(thinking("y"), "done"), "end")
    with FakeAPI(script, allow_violations=("different conversation",)) as api:
        messages = [user("hi"), replay(stream(api, tools=[READ])), user([result("toolu_1", "42")])]
        messages += [replay(stream(api, messages, tools=[READ])), user("thanks")]
        edited = [*messages[:2], user([result("toolu_1", "cleared")]), *messages[3:]]
        with pytest.raises(anthropic.BadRequestError, match="messages.3.content.0"):
            stream(api, edited, tools=[READ])
        stream(api, messages, tools=[READ])


def test_counting_runs_the_same_check() -> None:
    async def work(sdk: anthropic.AsyncAnthropic) -> Any:
        return await sdk.messages.count_tokens(model=MODEL, **changed(messages, "system"))

    with bound_api(allow_violations=("different conversation",)) as api:
        messages = talk(api)
        with pytest.raises(anthropic.BadRequestError, match="bound to a different conversation"):
            with_client(api, work)


def compacted(api: FakeAPI) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The message of an on-demand compaction of `hi, one, more`, and the turn made after it was asked for."""
    messages = talk(api)
    answer = create(
        api, messages[:3], beta=True, betas=["compact-2026-09-04"], compaction={"type": "summarize"}, system=SYSTEM,
        tools=[READ],
    )  # fmt: skip
    return replay(answer), messages[3:]


BETA = {"betas": ["compact-2026-09-04"], "beta": True, "system": SYSTEM, "tools": [READ]}


def compacting_api(**options: Any) -> FakeAPI:
    talk_script = sequence(message(thinking(), "one"), message(thinking("b"), "two"), message(thinking("c"), "three"), "end")
    return FakeAPI(
        lambda r: compaction("So far.") if "compaction" in r.body else talk_script(r),
        allow_prefix_change=True, **options,
    )  # fmt: skip


def test_thinking_behind_a_compaction_block_stays_valid() -> None:
    with compacting_api() as api:
        block, kept = compacted(api)
        first = create(api, [block, *kept], **BETA)
        create(api, [block, *kept, replay(first), user("on")], **BETA)


def test_a_changed_compaction_block_is_refused() -> None:
    with compacting_api(allow_violations=("compaction",)) as api:
        block, kept = compacted(api)
        for key, code in (("content", "compaction_content_mismatch"), ("signature", "compaction_signature_invalid")):
            other = assistant([{**block["content"][0], key: block["content"][0][key] + "A"}])
            with pytest.raises(anthropic.BadRequestError) as caught:
                create(api, [other, *kept], **BETA)
            assert caught.value.error_code == code


def test_a_turn_edited_behind_a_compaction_block_is_refused() -> None:
    with compacting_api(allow_violations=("different conversation",)) as api:
        block, kept = compacted(api)
        with pytest.raises(anthropic.BadRequestError, match="bound to a different"):
            create(api, [block, user("inserted"), *kept], **BETA)
