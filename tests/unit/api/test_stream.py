"""Bytes → events → blocks: lenient in what is read, strict in what may run."""

from __future__ import annotations

import asyncio
import json

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.api.clock import ManualClock, settle
from worker_agent.api.client import BlockClosed, Finished, InputPiece, Started, TextPiece, ThinkingPiece
from worker_agent.api.stream import EventSplitter, Folder, Watchdog, fold, parse_input, usage_of
from worker_agent.errors import ErrorKind as K
from worker_agent.errors import ModelError
from worker_agent.messages import Usage

START = {
    "type": "message_start",
    "message": {"id": "msg_1", "model": "M", "usage": {"input_tokens": 7, "output_tokens": 1}},
}
STOP = {"type": "message_stop"}


def opened(index, **block):
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index, kind, **fields):
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def closed(index):
    return {"type": "content_block_stop", "index": index}


def end(reason="end_turn", **usage):
    return {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage}


def text_block(index, *pieces):
    return [opened(index, type="text", text=""), *(delta(index, "text_delta", text=p) for p in pieces), closed(index)]


def tool_block(index, raw, id="toolu_1"):
    return [
        opened(index, type="tool_use", id=id, name="Read", input={}),
        delta(index, "input_json_delta", partial_json=raw),
        closed(index),
    ]


def feed(*events):
    folder = Folder("req_1")
    found = [e for event in events for e in folder.feed(event)]
    folder.end()
    return found


def blocks(*events):
    return [(e.block, e.invalid) for e in feed(START, *events, end(), STOP) if isinstance(e, BlockClosed)]


def sse(*events, names=True, line_end="\n"):
    parts = []
    for event in events:
        head = f"event: {event['type']}{line_end}" if names else ""
        parts.append(f"{head}data: {json.dumps(event, ensure_ascii=False)}{line_end}{line_end}")
    return "".join(parts).encode()


def fold_all(*chunks, clock=None, silence=60.0, headers=None):
    async def main():
        async def body():
            for chunk in chunks:
                yield chunk

        async with Watchdog.over(clock or ManualClock(), silence) as dog:
            return [e async for e in fold(body(), dog, clock or ManualClock(), headers or {})]

    return asyncio.run(main())


def failure(*chunks, **kwargs):
    with pytest.raises(ModelError) as caught:
        fold_all(*chunks, **kwargs)
    return caught.value


# --- splitting

ANSWER = [
    START,
    {"type": "ping"},
    *text_block(0, "Grüße ", "\U0001f600"),
    *tool_block(1, '{"a": "ü"}'),
    end("tool_use", output_tokens=9),
    STOP,
]


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("names", [True, False])
@given(st.lists(st.integers(1, 40), min_size=1, max_size=30))
@example([1])
def test_bytes_cut_anywhere_give_the_same_events(line_end, names, cuts):
    data, chunks, at = sse(*ANSWER, names=names, line_end=line_end), [], 0
    while at < len(data):
        size = cuts[len(chunks) % len(cuts)]
        chunks.append(data[at : at + size])
        at += size
    splitter = EventSplitter()
    found = [pair for chunk in chunks for pair in splitter.feed(chunk)] + list(splitter.flush())
    assert [orjson.loads(d) for _, d in found] == ANSWER


def test_comments_ids_and_several_data_lines_are_read_as_the_standard_says():
    splitter = EventSplitter()
    assert list(splitter.feed(b": hello\nid: 1\nretry: 5\nevent: x\ndata: {\ndata:}\n\n: only this\n\n")) == [("x", b"{\n}")]


def test_a_whole_answer_is_folded():
    assert fold_all(sse(*ANSWER)) == [
        Started("msg_1", "M", Usage(input=7, output=1)),
        TextPiece(0, "Grüße "),
        TextPiece(0, "\U0001f600"),
        BlockClosed(0, {"type": "text", "text": "Grüße \U0001f600"}),
        InputPiece(1, 10),
        BlockClosed(1, {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"a": "ü"}}),
        Finished("tool_use", Usage(input=7, output=9)),
    ]


def test_half_a_surrogate_pair_in_each_of_two_deltas_is_one_character():
    raw = sse(START, opened(0, type="text", text="")) + b"".join(
        b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"%s"}}\n\n' % half
        for half in (b"\\ud83d", b"\\ude00")
    )
    events = fold_all(raw + sse(closed(0), end(), STOP))
    assert [e.block["text"] for e in events if isinstance(e, BlockClosed)] == ["\U0001f600"]
    assert all(e.text == "\ufffd" for e in events if isinstance(e, TextPiece))


# --- blocks


def test_thinking_keeps_its_signature_and_the_order_of_its_keys():
    events = [
        opened(0, type="thinking", thinking="", signature=""),
        delta(0, "thinking_delta", thinking="Hm"),
        delta(0, "signature_delta", signature="S=="),
        closed(0),
    ]
    assert blocks(*events) == [({"type": "thinking", "thinking": "Hm", "signature": "S=="}, None)]
    assert ThinkingPiece(0, "Hm") in feed(START, *events, end(), STOP)


def test_thinking_without_text_is_a_block_all_the_same():
    events = [
        opened(0, type="thinking", thinking="", signature=""),
        delta(0, "signature_delta", signature="S"),
        closed(0),
    ]
    assert blocks(*events) == [({"type": "thinking", "thinking": "", "signature": "S"}, None)]


def test_redacted_thinking_and_unknown_blocks_are_kept_verbatim():
    for block in ({"type": "redacted_thinking", "data": "ENC"}, {"type": "hologram", "x": None, "y": [1]}):
        assert blocks(opened(0, **block), delta(0, "who_knows", z=1), closed(0)) == [(block, None)]


def test_a_compaction_keeps_content_encrypted_content_and_signature():
    start = opened(0, type="compaction", content=None, encrypted_content=None, signature="C", tool_changes=[])
    found = blocks(start, delta(0, "compaction_delta", content="SUM", encrypted_content="E"), closed(0))
    assert found == [
        ({"type": "compaction", "content": "SUM", "encrypted_content": "E", "signature": "C", "tool_changes": []}, None)
    ]


def test_citations_are_gathered():
    events = [
        opened(0, type="text", text="", citations=None),
        delta(0, "text_delta", text="a"),
        delta(0, "citations_delta", citation={"n": 1}),
        delta(0, "citations_delta", citation={"n": 2}),
        closed(0),
    ]
    assert blocks(*events)[0][0]["citations"] == [{"n": 1}, {"n": 2}]


def test_an_empty_text_block_is_never_born():
    assert blocks(*text_block(0)) == []


def test_text_given_with_the_start_of_a_block_counts():
    assert blocks(opened(0, type="text", text="He"), delta(0, "text_delta", text="y"), closed(0))[0][0]["text"] == "Hey"


def test_text_without_a_block_start_is_a_block():
    assert blocks(delta(0, "text_delta", text="hi"), closed(0)) == [({"type": "text", "text": "hi"}, None)]


def test_missing_and_repeated_tool_ids_become_unique():
    found = [
        b["id"]
        for b, _ in blocks(*tool_block(0, "{}", id="call_1"), *tool_block(1, "{}", id="call_1"), *tool_block(2, "{}", id=""))
    ]
    assert found[0] == "call_1" and len(set(found)) == 3 and all(found)


@pytest.mark.parametrize(
    ("raw", "value"),
    [("", {}), ("  ", {}), ('{"a": {"b": [1, null]}}', {"a": {"b": [1, None]}}), (' {"a": "\\u00fc"} ', {"a": "ü"})],
)
def test_input_that_is_an_object_is_taken(raw, value):
    assert parse_input(raw) == (value, None)


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        ('{"path": "/x", "body": "abc', "cut off"),
        ('{"a": 1} x', "not valid JSON"),
        ('{"a": NaN}', "not valid JSON"),
        ('{"a": oops}', "not valid JSON"),
        ('{"a": 1, "a": 2}', "twice"),
        ('{"o": {"k": 1, "k": 1}}', "twice"),
        ("[1,2]", "an array"),
        ("12", "a number"),
        ("null", "null"),
        ('"text"', "a string"),
        ('"{\\"a\\": 1}"', "not quoted"),
        ('{"a":' * 300 + "1" + "}" * 300, "nested too deeply"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "not valid JSON"),
        ('{"a": "\\ud83d"}', "not valid JSON"),
    ],
)
def test_any_other_input_is_invalid_and_says_why(raw, word):
    value, invalid = parse_input(raw)
    assert value == {} and word in invalid


@given(st.text(max_size=40))
def test_parsing_never_raises(raw):
    parse_input(raw)


@given(
    st.dictionaries(
        st.text(),
        st.recursive(
            st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        ),
        max_size=4,
    )
)
def test_a_prefix_of_an_input_never_passes_for_it(value):
    raw = json.dumps(value)
    assert parse_input(raw) == (value, None)
    assert all(parse_input(raw[:cut])[1] for cut in range(1, len(raw)))


def test_input_given_whole_with_the_start_is_taken():
    assert blocks(opened(0, type="tool_use", id="t", name="Read", input={"a": 1}), closed(0))[0][0]["input"] == {"a": 1}


def test_a_block_that_the_end_cuts_is_no_closed_block():
    events = feed(START, *tool_block(0, '{"a": 1')[:2], end("max_tokens"), STOP)
    assert events[-1] == Finished(
        "max_tokens", Usage(input=7, output=1), {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {}}
    )
    assert not any(isinstance(e, BlockClosed) for e in events)


# --- the message


@pytest.mark.parametrize("reason", ["refusal", "pause_turn", "compaction", "model_context_window_exceeded", "bored"])
def test_every_stop_reason_passes_as_it_is(reason):
    details = {"type": "refusal", "category": "cyber"}
    stop = {"type": "message_delta", "delta": {"stop_reason": reason, "stop_details": details}, "usage": None}
    assert feed(START, stop, STOP)[-1] == Finished(reason, Usage(input=7, output=1), stop_details=details)


def test_usage_is_cumulative_and_null_or_missing_is_nothing_new():
    null = {"type": "message_start", "message": {"id": "m", "model": "M", "usage": None}}
    assert feed(null, end(input_tokens=5, output_tokens=3), STOP)[-1].usage == Usage(input=5, output=3)
    assert feed(START, end(input_tokens=None, output_tokens=4), end(output_tokens=6), STOP)[-1].usage == Usage(
        input=7, output=6
    )


def test_cache_writes_are_split_by_their_life():
    raw = {
        "input_tokens": 1,
        "cache_creation_input_tokens": 30,
        "cache_read_input_tokens": 4,
        "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20},
    }
    assert usage_of(raw) == Usage(input=1, cache_write_5m=10, cache_write_1h=20, cache_read=4)
    assert usage_of({"cache_creation_input_tokens": 30}) == Usage(cache_write_5m=30)
    assert usage_of({"input_tokens": "x", "output_tokens": -1, "cache_creation": 3}) == Usage()


def test_iterations_are_summed_because_the_top_level_leaves_the_compaction_out():
    raw = {
        "input_tokens": 5,
        "output_tokens": 1,
        "iterations": [
            {"type": "compaction", "input_tokens": 100, "output_tokens": 9},
            {"type": "message", "input_tokens": 5, "output_tokens": 1},
        ],
    }
    assert usage_of(raw) == Usage(input=105, output=10)


def test_a_message_without_message_start_gets_an_id_of_its_own():
    ids = {feed(*text_block(0, "x"), end(), STOP)[0].response_id for _ in range(2)}
    assert len(ids) == 2 and all(id.startswith("msg_local_") for id in ids)


def test_nothing_after_message_stop_counts():
    assert isinstance(feed(START, end(), STOP, *text_block(0, "late"), {"type": "error", "error": {}})[-1], Finished)


@pytest.mark.parametrize(
    "events", [[START], [START, *text_block(0, "x")], [START, end()], [START, STOP], [STOP], [{"type": "ping"}]]
)
def test_without_stop_reason_and_message_stop_the_stream_is_broken(events):
    assert failure(sse(*events)).kind is K.STREAM_BROKEN


def test_an_error_event_ends_the_stream_with_its_own_kind():
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    found = failure(sse(START, error), headers={"request-id": "req_7"})
    assert (found.kind, found.status, found.request_id) == (K.OVERLOADED, 200, "req_7")


@pytest.mark.parametrize(
    "data",
    [
        b"event: error\ndata: upstream gone\n\n",
        b'data: {"error": {"type": "api_error", "message": "x"}}\n\n',
        b'event: error\ndata: {"message": "x"}\n\n',
        b'event: error\ndata: "x"\n\n',
    ],
)
def test_errors_of_other_shapes_are_server_errors(data):
    assert failure(sse(START) + data).kind is K.SERVER


@pytest.mark.parametrize(
    "body",
    [
        [],
        [b""],
        [b"<html><title>Sign in</title></html>"],
        [b'{"id": "msg_1", "content": []}'],
        [b"plain words\n\nmore"],
    ],
)
def test_a_body_that_is_no_stream_is_nonsense(body):
    assert failure(*body).kind is K.NONSENSE


def test_an_event_that_is_not_json_is_nonsense_at_first_and_a_broken_stream_later():
    assert failure(b"data: oops\n\n").kind is K.NONSENSE
    assert failure(sse(START) + b"data: {oops\n\n").kind is K.STREAM_BROKEN


def test_a_last_event_without_its_blank_line_counts_if_it_is_whole():
    assert isinstance(fold_all(sse(START, end(), STOP).rstrip(b"\n"))[-1], Finished)
    assert failure(sse(START, end(), STOP).rstrip(b"\n")[:-5]).kind is K.STREAM_BROKEN


def test_the_done_line_of_other_protocols_is_ignored():
    assert isinstance(fold_all(sse(START, end()) + b"data: [DONE]\n\n" + sse(STOP))[-1], Finished)


_events = st.sampled_from(
    [
        START,
        STOP,
        end(),
        end(None),
        *text_block(0, "x"),
        *text_block(1, "y"),
        *tool_block(0, '{"a"'),
        delta(2, "who"),
        {"type": "odd"},
        {"type": "ping"},
        {"type": "message_start"},
        {"type": "content_block_start"},
        {"type": "content_block_delta", "index": "x"},
        {"type": "message_delta", "usage": 3, "delta": []},
    ]
)


@given(st.lists(_events, max_size=20))
def test_any_order_of_events_gives_a_well_formed_answer_or_a_broken_stream(events):
    try:
        found = feed(*events)
    except ModelError as error:
        assert error.kind is K.STREAM_BROKEN
        return
    assert isinstance(found[0], Started) and isinstance(found[-1], Finished)
    assert sum(isinstance(e, Started | Finished) for e in found) == 2


# --- silence


def watch(script, silence=90.0):
    """Runs `script(clock, put, found)` against a fold that is fed through a queue."""

    async def main():
        clock, queue, found = ManualClock(), asyncio.Queue(), []

        async def body():
            while (chunk := await queue.get()) is not None:
                yield chunk

        async def consume():
            async with Watchdog.over(clock, silence) as dog:
                async for event in fold(body(), dog, clock, {}):
                    found.append(event)

        task = asyncio.create_task(consume())
        await settle()
        await script(clock, queue.put_nowait, found)
        try:
            await asyncio.wait_for(task, 5)
        except ModelError as error:
            found.append(error.kind)
        return found

    return asyncio.run(main())


def test_pings_do_not_keep_a_silent_stream_alive():
    async def script(clock, put, found):
        put(sse(START))
        for _ in range(10):
            await clock.advance(10)
            put(sse({"type": "ping"}))

    assert watch(script)[-1] is K.STREAM_SILENT


def test_thinking_keeps_a_stream_alive_however_long_it_takes():
    async def script(clock, put, found):
        put(sse(START, opened(0, type="thinking", thinking="", signature="")))
        for _ in range(50):
            await clock.advance(80)
            put(sse(delta(0, "thinking_delta", thinking="hm")))
            await settle()
        put(sse(closed(0), end(), STOP))

    assert isinstance(watch(script)[-1], Finished)


def test_nothing_at_all_is_silence_too():
    async def script(clock, put, found):
        await clock.advance(89)
        assert found == []
        await clock.advance(2)

    assert watch(script) == [K.STREAM_SILENT]


def test_the_time_a_consumer_takes_is_not_silence():
    async def main():
        clock = ManualClock()

        async def body():
            yield sse(START, *text_block(0, "a"))
            yield sse(end(), STOP)

        seen = []
        async with Watchdog.over(clock, 90) as dog:
            async for event in fold(body(), dog, clock, {}):
                await clock.advance(1000)
                seen.append(event)
        return seen

    assert isinstance(asyncio.run(main())[-1], Finished)


def test_a_cancellation_from_outside_stays_one():
    async def main():
        async def body():
            await asyncio.Event().wait()
            yield b""

        async def consume():
            async with Watchdog.over(ManualClock(), 90) as dog:
                async for _ in fold(body(), dog, ManualClock(), {}):
                    pass

        task = asyncio.create_task(consume())
        await settle()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
