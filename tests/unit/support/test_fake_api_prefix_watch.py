"""What was sent once stands unchanged at the beginning of every later request, or the watch says where it does not."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.support.fake_api import FakeAPI, PrefixBreak, error_event, sequence
from tests.unit.support.helpers import READ, assistant, body, call, result, user, words
from tests.unit.support.test_fake_api_refusals import HEADERS, post

HI = [user("hi")]
TALK = [user("hi"), assistant("one"), user("go on")]
LONGER = [*TALK, assistant("two"), user("and on")]


def breaks(*requests: Any, script: Any = "ok", **options: Any) -> list[PrefixBreak]:
    """What the watch says of requests sent in turn; messages or whole bodies."""
    with FakeAPI(script, allow_violations=("prefix changed",), **options) as api:
        for request in requests:
            content = request if isinstance(request, (dict, bytes)) else body(request, stream=True)
            answer = post(api, content, HEADERS | {"x-conversation": "c"})
            assert answer.status_code == 200, answer.text
    assert len(api.violations) == len([b for b in api.prefix_breaks if b.kind in ("blocks", "bytes")])
    return api.prefix_breaks


def test_growing_repeating_and_merging_are_no_breaks() -> None:
    assert breaks(HI, TALK, LONGER) == []
    assert breaks(HI, HI, TALK, TALK, LONGER) == []
    assert breaks([user([words("a")])], [user([words("a"), words("b")])]) == []


def test_a_cache_mark_may_move() -> None:
    mark = {"type": "ephemeral"}
    first = [user([words("a", cache_control=mark)])]
    second = [user([words("a")]), assistant([words("b")]), user([words("c", cache_control=mark)])]
    assert breaks(first, second) == []
    asked = [user([words("a")]), assistant([call()])]
    marked = [*asked, user([result(content=[words("x", cache_control=mark)])])]
    plain = [*asked, user([result(content=[words("x")])]), assistant("b"), user("c")]
    assert breaks(*(body(messages, tools=[READ]) for messages in (first, marked, plain))) == []


@pytest.mark.parametrize(
    ("later", "path"),
    [
        ([user("HI"), assistant("one"), user("go on"), assistant("x"), user("y")], "messages.0.content.0"),
        ([user("hi"), assistant("ONE"), user("go on"), assistant("x"), user("y")], "messages.1.content.0"),
        ([user("hi"), user("go on"), assistant("x"), user("y")], "messages.1.content.0"),
        ([user("hi")], "messages (shorter)"),
    ],
)
def test_a_change_is_found_where_it_is(later: list[Any], path: str) -> None:
    (found,) = breaks(TALK, later)
    assert (found.kind, found.path, found.conversation) == ("blocks", path, "c")


def test_one_change_is_reported_once() -> None:
    changed = [user("hi"), assistant("ONE"), user("go on")]
    assert len(breaks(TALK, changed, [*changed, assistant("x"), user("y")])) == 1


def test_bytes_count_too_key_order_and_white_space() -> None:
    plain = orjson.dumps(body(TALK))
    reordered = orjson.dumps(body([{"content": "hi", "role": "user"}, *LONGER[1:]]))
    spaced = orjson.dumps(body(LONGER)).replace(b'"role":"user","content":"hi"', b'"role": "user","content":"hi"')
    blocks = orjson.dumps(body([user([words("hi")]), *LONGER[1:]]))
    for later in (reordered, spaced, blocks):
        (found,) = breaks(plain, later)
        assert found.kind == "bytes"


def test_changed_tools_and_system_are_noted_without_being_violations() -> None:
    found = breaks(body(HI, tools=[READ], system="a"), body(TALK, system="b"))
    assert {b.kind for b in found} == {"tools", "system"}


def test_a_test_may_allow_a_change_once_or_always_or_by_request() -> None:
    changed = [user("hi"), assistant("ONE"), user("go on")]
    assert breaks(TALK, changed, TALK, allow_prefix_change=True) == []
    with FakeAPI("ok", allow_violations=True) as api:
        api.allow_prefix_change(lambda r: r.nth == 1, times=1)
        for messages in (TALK, changed):
            post(api, body(messages), HEADERS | {"x-conversation": "c"})
        assert (api.prefix_breaks, api.violations) == ([], [])
        post(api, body(TALK), HEADERS | {"x-conversation": "c"})
        assert len(api.prefix_breaks) == len(api.violations) == 1


def test_a_compaction_block_or_the_tests_marker_excuses_the_change() -> None:
    block = {"type": "compaction", "content": "so far"}
    after_it = body([assistant([block]), user("go on")], model="claude-opus-5")
    with FakeAPI("ok") as api:
        headers = HEADERS | {"x-conversation": "c", "anthropic-beta": "compact-2026-09-04"}
        for content in (body(TALK, model="claude-opus-5"), after_it):
            assert post(api, content, headers).status_code == 200
    marked = [user("[compacted] so far"), assistant("x"), user("y")]
    assert breaks(TALK, marked, [*marked, assistant("z"), user("w")], compaction_marker="[compacted]") == []
    assert len(breaks(TALK, marked)) == 1


def test_after_a_compaction_the_watch_goes_on() -> None:
    marked = [user("[compacted] so far"), assistant("x"), user("y")]
    changed = [user("[compacted] so far"), assistant("X"), user("y")]
    assert len(breaks(TALK, marked, changed, compaction_marker="[compacted]")) == 1


def test_without_a_header_conversations_are_told_apart_by_system_and_first_message() -> None:
    with FakeAPI("ok") as api:
        for content in (body(TALK), body([user("other"), assistant("x"), user("y")]), body(HI, system="s")):
            post(api, content)
    assert len({r.conversation for r in api.requests}) == 3
    assert api.conversation(api.requests[0].conversation) == [api.requests[0]]


def test_agents_that_begin_with_the_same_words_do_not_disturb_each_other() -> None:
    a = [user("hi"), assistant("a"), user("x")]
    b = [user("hi"), assistant("b"), user("x")]
    assert breaks(HI, HI, a, b, [*a, assistant("c"), user("d")], [*b, assistant("c"), user("d")]) == []


def test_a_retry_opens_no_second_way() -> None:
    a = [user("hi"), assistant("a"), user("x")]
    b = [user("hi"), assistant("b"), user("x")]
    script = sequence(error_event(after="half"), "ok", repeat_last=True)
    assert len(breaks(HI, HI, a, b, script=script)) == 1


def test_a_break_fails_the_test_that_did_not_expect_it() -> None:
    api = FakeAPI("ok")
    with pytest.raises(AssertionError, match=r"prefix changed \(blocks\) at messages.0.content.0"), api:
        for messages in (HI, [user("ho")]):
            post(api, body(messages), HEADERS | {"x-conversation": "c"})
