"""Every request the real API refuses is refused by the fake, with its text, and recorded as a violation."""

from __future__ import annotations

import base64
import struct
from typing import Any

import anthropic
import httpx2
import orjson
import pytest

from tests.support.fake_api import FakeAPI
from tests.unit.support.helpers import MODEL, OLD, READ, assistant, body, call, result, stream, user, words

HEADERS = {"authorization": "Bearer test", "anthropic-version": "2026-10-21"}
SCHEMA = {"type": "object", "properties": {}}
MARK = {"type": "ephemeral"}


def post(api: FakeAPI, content: Any, headers: dict[str, str] | None = None, path: str = "/v1/messages") -> Any:
    """The answer to a raw body, past the SDK's own checks."""
    data = content if isinstance(content, bytes) else orjson.dumps(content)
    return httpx2.post(api.base_url + path, content=data, headers=HEADERS if headers is None else headers)


def refused(content: Any, headers: dict[str, str] | None = None, **options: Any) -> str:
    """The error message of a request that must be refused with 400, and must be recorded."""
    with FakeAPI("ok", allow_violations=True, **options) as api:
        answer = post(api, content, headers)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert len(api.violations) == 1 and error["message"] in api.violations[0]
    assert api.requests[0].kind == "http_400"
    return error["message"]


def accepted(content: Any, **headers: str) -> None:
    with FakeAPI("ok") as api:
        answer = post(api, content, HEADERS | headers)
    assert answer.status_code == 200, answer.text


def turn(*results: Any, calls: Any = None) -> list[dict[str, Any]]:
    """A conversation in which one answer asked for tools, and what came back."""
    asked = calls or [call("toolu_1"), call("toolu_2")]
    return [user("hi"), assistant(asked), *([user(list(results))] if results else [])]


PAIRING = {
    "nothing comes back": (turn(), "immediately after: toolu_1, toolu_2"),
    "one is missing": (turn(result("toolu_1")), "immediately after: toolu_2"),
    "only text comes back": (turn(words("hm")), "immediately after: toolu_1, toolu_2"),
    "text stands before a result": (turn(result("toolu_1"), words("hm"), result("toolu_2")), "after: toolu_2"),
    "one is answered twice": (turn(result("toolu_1"), result("toolu_1"), result("toolu_2")), "single result"),
    "an unknown one is answered": (turn(result("toolu_1"), result("toolu_2"), result("toolu_9")), "unexpected"),
    "one is answered a turn late": (
        [*turn(result("toolu_1"), result("toolu_2")), assistant("ok"), user([result("toolu_1")])], "unexpected",
    ),
    "a result opens the conversation": ([user([result("toolu_1")])], "unexpected `tool_use_id`"),
    "two calls share an id": (turn(result("toolu_1"), calls=[call(), call()]), "must be unique"),
    "an id comes back in a later turn": (
        [*turn(result(), calls=[call()]), assistant([call()]), user([result()])], "must be unique",
    ),
    "the user speaks in between": (
        [user("hi"), assistant([call()]), user("wait"), assistant("ok"), user([result()])], "immediately after",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRING)
def test_results_are_refused_when(name: str) -> None:
    messages, text = PAIRING[name]
    assert text in refused(body(messages, tools=[READ]))


def test_results_may_be_split_over_neighbouring_user_messages_and_be_followed_by_text() -> None:
    messages = [
        user("hi"), assistant([words("ok"), call("a")]), assistant([call("b")]),
        user([result("b")]), user([result("a", is_error=True), words("and now?")]), user("more"),
    ]  # fmt: skip
    accepted(body(messages, tools=[READ]))


FIELDS = {
    "max_tokens is missing": (body(max_tokens=None), "max_tokens: Field required"),
    "max_tokens is negative": (body(max_tokens=-1), "greater than or equal to 0"),
    "max_tokens is no integer": (body(max_tokens=1.5), "valid integer"),
    "max_tokens is over the cap": (
        body(max_tokens=128_001),
        "max_tokens: 128001 > 128000, which is the maximum allowed number of output tokens for claude-opus-5-5",
    ),
    "the model is missing": (body(model=None), "model: Field required"),
    "messages are missing": ({"model": MODEL, "max_tokens": 9}, "messages: Field required"),
    "messages are empty": ({"model": MODEL, "max_tokens": 9, "messages": []}, "at least one message"),
    "a field is unknown": (body(colour="red"), "colour: Extra inputs are not permitted"),
    "temperature is given": (body(temperature=1.0), "sampling parameters"),
    "top_p is given": (body(top_p=1.0), "sampling parameters"),
    "top_k is given": (body(top_k=5), "sampling parameters"),
    "stream is no boolean": (body(stream="yes"), "stream"),
    "metadata has other keys": (body(metadata={"team": "x"}), "metadata.team"),
    "a stop sequence is blank": (body(stop_sequences=[" "]), "non-whitespace"),
    "effort is unknown": (body(output_config={"effort": "huge"}), "output_config.effort"),
    "context_management has no beta": (body(context_management={"edits": []}), "context_management: Extra inputs"),
    "compaction has no beta": (body(compaction={"type": "summarize"}), "compaction: Extra inputs"),
    "a thread has no beta": (body(thread={"type": "create"}), "thread: Extra inputs"),
    "mcp_servers have no beta": (body(mcp_servers=[]), "mcp_servers: Extra inputs"),
    "a task budget has no beta": (body(output_config={"task_budget": {"total": 50_000}}), "task_budget"),
    "block binding has no beta": (
        body(thinking={"type": "adaptive", "block_binding": {}}), "thinking.block_binding: Extra inputs",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FIELDS)
def test_a_request_is_refused_when(name: str) -> None:
    content, text = FIELDS[name]
    assert text in refused(content)


MESSAGES = {
    "the first message is the assistant's": ([assistant("hi"), user("hi")], "first message must use the user role"),
    "a role is unknown": ([user("hi"), {"role": "tool", "content": "x"}], "messages.1.role"),
    "the last message is the assistant's": ([user("hi"), assistant("The")], "prefill"),
    "the last message is only white space": ([user("hi"), assistant(" \n")], "non-whitespace"),
    "a text block is empty": ([user([words("")]), assistant("x"), user("y")], "must be non-empty"),
    "an empty text stands beside others": ([user([words("hi"), words("")])], "must be non-empty"),
    "an assistant's text block is empty": ([user("x"), assistant([words("")]), user("y")], "must be non-empty"),
    "a result holds an empty text": (turn(result(content=[words("")]), calls=[call()]), "must be non-empty"),
    "content is an empty string": ([user("")], "non-empty content"),
    "content is an empty list": ([user("x"), assistant([]), user("y")], "non-empty content"),
    "content is missing": ([{"role": "user"}], "messages.0.content: Field required"),
    "a message has other keys": ([{"role": "user", "content": "x", "id": "1"}], "messages.0.id: Extra inputs"),
    "a block has other keys": ([user([words("x", note="y")])], "messages.0.content.0.text.note: Extra inputs"),
    "a block has null where text belongs": ([user([words(None)])], "valid string"),  # type: ignore[arg-type]
    "a block has an unknown type": ([user([{"type": "hologram"}])], "Input tag 'hologram'"),
    "a tool is called by the user": ([user([call()])], "Input tag 'tool_use'"),
    "a result comes from the assistant": ([user("x"), assistant([result()]), user("y")], "Input tag 'tool_result'"),
    "a document stands in an answer": (
        [user("x"), assistant([{"type": "document", "source": {"type": "text"}}]), user("y")], "Input tag 'document'",
    ),
    "a user's text has citations": ([user([words("x", citations=[{"type": "c"}])])], "citations"),
    "tool input is no object": (
        turn(result(), calls=[{**call(), "input": [1]}]), "messages.1.content.0.tool_use.input",
    ),
    "a tool use has a bad name": (turn(result(), calls=[call(tool="a b")]), "tool_use.name"),
    "a tool use has a bad id": (turn(result("a.b"), calls=[call("a.b")]), "tool_use.id"),
    "an error result is empty": (turn(result(content="", is_error=True), calls=[call()]), "cannot be empty"),
    "a compaction block has no beta": (
        [assistant([{"type": "compaction", "content": "x"}]), user("y")], "without the beta header",
    ),
    "an mcp block has no beta": ([user("x"), assistant([{"type": "mcp_tool_use"}]), user("y")], "mcp-client-"),
    "a system message follows an answer": (
        [user("x"), assistant("y"), {"role": "system", "content": "z"}, user("w")], "must follow a user message",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MESSAGES)
def test_messages_are_refused_when(name: str) -> None:
    messages, text = MESSAGES[name]
    assert text in refused(body(messages, tools=[READ]))


TOOLS = {
    "a name has a space": ([{"name": "a b", "input_schema": SCHEMA}], "tools.0.custom.name"),
    "a name is too long": ([{"name": "a" * 65, "input_schema": SCHEMA}], "tools.0.custom.name"),
    "a name comes twice": ([READ, READ], "must be unique"),
    "a schema is missing": ([{"name": "a"}], "input_schema: Field required"),
    "a schema is no object schema": ([{"name": "a", "input_schema": {"type": "array"}}], "should be 'object'"),
    "a schema has no type": ([{"name": "a", "input_schema": {}}], "should be 'object'"),
    "a tool has other keys": ([{**READ, "colour": 1}], "tools.0.custom.colour"),
    "a vendor's tool is unknown": ([{"type": "bash_19990101", "name": "bash"}], "bash_19990101"),
}


@pytest.mark.parametrize("name", TOOLS)
def test_tools_are_refused_when(name: str) -> None:
    tools, text = TOOLS[name]
    assert text in refused(body(tools=tools))


@pytest.mark.parametrize(
    "model", ["claude-opus-5-5", "claude-sonnet-5-5", "claude-haiku-5-5", "claude-fable-5-1", "claude-mythos-5-2"]
)
@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "Read"}])
def test_forced_tools_are_refused_on_the_newest_models(model: str, choice: dict[str, str]) -> None:
    assert "forced tool use" in refused(body(model=model, tools=[READ], tool_choice=choice))


def test_forced_tools_are_accepted_on_older_models() -> None:
    accepted(body(model=OLD, tools=[READ], tool_choice={"type": "tool", "name": "Read"}))
    assert "not found" in refused(body(model=OLD, tools=[READ], tool_choice={"type": "tool", "name": "Write"}))
    assert "while providing `tools`" in refused(body(model=OLD, tool_choice={"type": "auto"}))


THINKING = {
    ("claude-opus-5-5", "enabled"): False,
    ("claude-opus-5-5", "disabled"): False,
    ("claude-opus-5-5", "adaptive"): True,
    ("claude-opus-5-5", "between_tools"): False,
    ("claude-fable-5", "disabled"): False,
    ("claude-sonnet-5-5", "between_tools"): True,
    ("claude-sonnet-5-5", "disabled"): False,
    ("claude-sonnet-5", "enabled"): False,
    ("claude-opus-5", "disabled"): True,
    ("claude-haiku-5-5", "disabled"): True,
    ("claude-opus-4-6", "enabled"): True,
    ("claude-haiku-4-5", "enabled"): True,
    ("claude-haiku-4-5", "adaptive"): False,
}


@pytest.mark.parametrize(("model", "kind"), THINKING)
def test_each_model_has_its_thinking_types(model: str, kind: str) -> None:
    config = {"type": kind} | ({"budget_tokens": 1024} if kind == "enabled" else {})
    content = body(model=model, thinking=config, max_tokens=2000)
    if THINKING[model, kind]:
        accepted(content)
    else:
        assert f"`{kind}` is not supported by {model}" in refused(content)


def test_thinking_has_its_own_limits() -> None:
    enabled = {"type": "enabled", "budget_tokens": 1000}
    assert "1024" in refused(body(model="claude-haiku-4-5", thinking=enabled, max_tokens=4000))
    enabled = {"type": "enabled", "budget_tokens": 4000}
    assert "greater than" in refused(body(model="claude-haiku-4-5", thinking=enabled, max_tokens=4000))
    off = body(model="claude-opus-5", thinking={"type": "disabled"}, output_config={"effort": "max"})
    assert "effort `high` or lower" in refused(off)


def test_a_system_message_needs_a_model_that_knows_it() -> None:
    messages = [user("x"), {"role": "system", "content": "be brief"}, assistant("y"), user("z")]
    accepted(body(messages))
    assert "role 'system'" in refused(body(messages, model="claude-sonnet-5"))


def test_sampling_is_accepted_only_from_old_models_in_the_old_version() -> None:
    old = {"anthropic-version": "2023-06-01"}
    accepted(body(model="claude-haiku-4-5", temperature=0.5), **old)
    assert "sampling" in refused(body(temperature=0.5), HEADERS | old)


# ------------------------------------------------------------------ cache marks and media


def test_at_most_four_cache_marks_are_accepted_the_automatic_one_counts() -> None:
    four = [words(str(n), cache_control=MARK) for n in range(4)]
    accepted(body([user(four)]))
    assert "maximum of 4" in refused(body([user(four)], cache_control=MARK))
    assert "maximum of 4" in refused(body([user(four)], system=[words("s", cache_control=MARK)]))


@pytest.mark.parametrize("mark", [{"type": "permanent"}, {"type": "ephemeral", "ttl": "2h"}, {}])
def test_a_cache_mark_must_be_well_formed(mark: dict[str, str]) -> None:
    assert "cache_control" in refused(body([user([words("x", cache_control=mark)])]))
    assert "cache_control" in refused(body(system=[words("x", cache_control=mark)]))


def test_a_longer_lived_mark_stands_before_a_shorter_lived_one() -> None:
    hour = {"type": "ephemeral", "ttl": "1h"}
    accepted(body([user([words("a", cache_control=hour), words("b", cache_control=MARK)])]))
    assert "1h" in refused(body([user([words("a", cache_control=MARK), words("b", cache_control=hour)])]))


def image(data: str = "AAAA", media_type: str = "image/png") -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}


def png(width: int, height: int) -> str:
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height)
    return base64.b64encode(head + bytes(20)).decode()


def test_the_number_of_images_depends_on_the_window() -> None:
    accepted(body([user([image()] * 600)]))
    assert "601 images > 600" in refused(body([user([image()] * 601)]))
    assert "101 images > 100" in refused(body([user([image()] * 101)], model="claude-haiku-4-5"))
    in_result = turn(result(content=[image()] * 101), calls=[call()])
    assert "101 images > 100" in refused(body(in_result, model="claude-haiku-4-5", tools=[READ]))


def test_an_image_type_must_be_known() -> None:
    assert "media_type" in refused(body([user([image(media_type="image/tiff")])]))


def test_an_image_too_large_is_an_error_but_no_violation() -> None:
    with FakeAPI("ok") as api:
        heavy = post(api, body([user([image("A" * (5 * 1024 * 1024 + 4))])])).json()["error"]
        wide = post(api, body([user([image(png(9000, 10))])])).json()["error"]
        many = post(api, body([user([image(png(10, 3000))] * 21)])).json()["error"]
    assert "image exceeds 5 MB maximum" in heavy["message"]
    assert wide["details"] == {
        "error_code": "image_dimensions_too_large", "max_side_length_pixels": 8000, "paths": ["messages.0.content.0"],
    }  # fmt: skip
    assert many["details"]["max_side_length_pixels"] == 2000


# ------------------------------------------------------------------ headers and bytes


@pytest.mark.parametrize("value", [None, "Basic x", "Bearer", "Bearer wrong"])
def test_without_the_right_key_it_is_401_and_no_violation(value: str | None) -> None:
    headers = {"anthropic-version": "2026-10-21"} | ({"authorization": value} if value else {})
    with FakeAPI("ok", expected_key="right") as api:
        answer = post(api, body(), headers)
    assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")


def test_an_api_key_header_is_no_authentication() -> None:
    with FakeAPI("ok") as api:
        assert post(api, body(), {"x-api-key": "k", "anthropic-version": "2026-10-21"}).status_code == 401


def test_the_version_header_is_required_and_known() -> None:
    assert "header is required" in refused(body(), {"authorization": "Bearer k"})
    assert "not a valid version" in refused(body(), HEADERS | {"anthropic-version": "1999-01-01"})


def test_an_unknown_beta_is_refused() -> None:
    assert "`made-up-2026-01-01`" in refused(body(), HEADERS | {"anthropic-beta": "made-up-2026-01-01"})


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[1]", "should be an object"),
        (b'{"model": NaN}', "not valid JSON"),
        (b'{"model": "\xff"}', "not valid JSON"),
        (b'{"model": "\\ud800"}', "not valid JSON"),
        (b'{"model":"a","model":"b"}', "duplicate key: 'model'"),
        (b'{"model":"m","messages":[{"role":"user","role":"user","content":"x"}]}', "duplicate key: 'role'"),
    ],
)
def test_a_body_that_is_no_strict_json_is_refused(raw: bytes, text: str) -> None:
    assert text in refused(raw)


def test_white_space_and_escapes_in_a_body_change_nothing() -> None:
    raw = b'{ "model": "claude-opus-5-5", "max_tokens": 5,\n "messages": [ {"role":"user", "content":"\\u0068i"} ] }'
    with FakeAPI("ok") as api:
        assert post(api, raw).status_code == 200
    assert api.requests[0].messages == [user("hi")]


def test_a_body_over_32_mb_is_413_in_json_or_html() -> None:
    large = b" " * (32 * 1024 * 1024 + 1)
    with FakeAPI("ok") as api:
        answer = post(api, large)
        assert post(api, body()).status_code == 200  # the connection and the server live on
    assert (answer.status_code, answer.json()["error"]["type"]) == (413, "request_too_large")
    with FakeAPI("ok", html_413=True, max_body=100) as api:
        assert post(api, b" " * 101).text.startswith("<html>")


def test_an_unknown_model_and_route_are_404_and_no_violation() -> None:
    with FakeAPI("ok") as api:
        assert post(api, body(model="claude-3")).json()["error"]["message"] == "model: claude-3"
        assert post(api, body(), path="/v2/messages").status_code == 404


def test_a_prompt_over_the_window_says_by_how_much_and_is_no_violation() -> None:
    with FakeAPI("ok", windows={MODEL: 100}) as api:
        error = post(api, body([user("x" * 4000)])).json()["error"]
    assert error["message"] == "prompt is too long: 1007 tokens > 100 maximum"


def test_a_summarizing_request_has_conditions_of_its_own() -> None:
    beta = HEADERS | {"anthropic-beta": "compact-2026-09-04,context-management-2025-06-27"}
    wish = {"compaction": {"type": "summarize"}, "model": "claude-opus-5"}
    assert "unanswered" in refused(body(turn(), **wish), beta)
    assert "stop_sequences" in refused(body(stop_sequences=["x"], **wish), beta)
    assert "context_management" in refused(body(context_management={"edits": []}, **wish), beta)
    assert "not supported" in refused(body(**wish | {"model": "claude-haiku-4-5"}), beta)
    block = {"type": "compaction", "content": "so far"}
    misplaced = [user("x"), assistant([block]), user("y")]
    assert "must come first" in refused(body(misplaced, model="claude-opus-5"), beta)
    with FakeAPI("ok") as api:
        assert post(api, body([user("x"), assistant("y")], **wish), beta).status_code == 200


def test_leaving_with_a_violation_fails_the_test() -> None:
    api = FakeAPI("ok")
    with pytest.raises(AssertionError, match="temperature"), api:
        post(api, body(temperature=0))


def test_only_the_named_violations_are_allowed() -> None:
    with FakeAPI("ok", allow_violations=("temperature",)) as api:
        post(api, body(temperature=0))
    api = FakeAPI("ok", allow_violations=("temperature",))
    with pytest.raises(AssertionError, match="colour"), api:
        post(api, body(colour=1))


def test_the_sdk_sees_a_bad_request() -> None:
    with FakeAPI("ok", allow_violations=True) as api, pytest.raises(anthropic.BadRequestError) as caught:
        stream(api, [user("hi"), assistant([call()]), user("no")], tools=[READ])
    assert caught.value.api_message.startswith("messages.1: `tool_use` ids were found without `tool_result` blocks")
