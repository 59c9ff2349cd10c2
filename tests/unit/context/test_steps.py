"""The five steps, each alone: messages in, a decision or none out; and what a view is under decisions."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_agent import messages as m
from worker_agent.config import ContextSettings, Settings, ToolSettings
from worker_agent.context import autocompact, collapse, microcompact, snip, tool_result_budget
from worker_agent.context.autocompact import Pressure
from worker_agent.context.collapse import Means
from worker_agent.context.pipeline import Pipeline
from worker_agent.context.spill import spill_text
from worker_agent.context.tokens import effective_window, estimate, prompt_tokens
from worker_agent.context.values import Clear, Collapse, Snip, Spill, StripThinking, Tracking, from_message, to_message
from worker_agent.context.view import CLEARED, apply, draw, groups, is_collapse, with_user_context
from worker_agent.messages import Usage
from worker_agent.structs import replace

KEEP_TURNS = ContextSettings().snip_keep_turns


@dataclass(frozen=True)
class Model:
    window: int = 200_000
    max_output: int = 64_000
    chars_per_token: float = 4.0
    binds_thinking: bool = False
    server_compaction: bool = False
    server_editing: bool = False
    cache_control: bool = True


class At:
    def __init__(self, now=1_000.0):
        self.time = now

    def now(self):
        return self.time

    def monotonic(self):
        return self.time

    async def sleep(self, seconds):
        self.time += seconds


def call(n, name="Read", at=100.0, text="", **input):
    block = {"type": "tool_use", "id": f"t{n}", "name": name, "input": input or {"file_path": f"/f{n}"}}
    blocks = [m.text_block(text)] if text else []
    return m.assistant([*blocks, block], id=f"a{n}", at=at)


def results(n, content="ok", **fields):
    block = m.tool_result_block(f"t{n}", content, **fields)
    return m.user([block], kind="tool_results", meta=True, id=f"r{n}", at=100.0)


def turns(count, content="ok", start=0, **fields):
    return [msg for n in range(start, start + count) for msg in (call(n, **fields), results(n, content))]


# ── step 1 ─────────────────────────────────────────────────────────────────────────────────────────────────────────

LIMITS = ToolSettings(message_cap=1_000, preview=50)


def several(*sizes):
    blocks = [m.tool_result_block(f"t{n}", chr(97 + n) * size) for n, size in enumerate(sizes)]
    return m.user(blocks, kind="tool_results", meta=True)


def test_results_within_the_cap_of_a_message_are_left_alone():
    assert tool_result_budget.plan(several(400, 600), LIMITS, lambda id, text: "x") is None


def test_the_largest_results_are_spilled_first_until_the_rest_fits():
    spilled = tool_result_budget.plan(several(300, 900, 400), LIMITS, lambda id, text: f"<{id}>")
    assert spilled == Spill({"t1": "<t1>"})


def test_a_spilled_result_lies_whole_in_a_file_and_is_named_with_size_and_path(tmp_path):
    text = "0123456789" * 100
    shown = spill_text(text, "toolu/../x", tmp_path, 20)
    file = next(tmp_path.iterdir())
    assert file.read_text() == text and file.parent == tmp_path
    assert shown.endswith("\n01234567890123456789") and "1,000 characters" in shown and str(file) in shown


def test_spilling_twice_gives_the_same_bytes(tmp_path):
    assert spill_text("abc" * 100, "t1", tmp_path, 10) == spill_text("abc" * 100, "t1", tmp_path, 10)


# ── step 2 ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_failed_turns_and_superseded_reads_are_snipped_past_the_threshold():
    failed = [call(0, "Bash", command="x"), results(0, "e" * 40_000, is_error=True)]
    stale = [call(1, file_path="/f"), results(1, "o" * 40_000)]
    fresh = [call(2, file_path="/f"), results(2, "n" * 400)]
    view = [m.user("goal"), *failed, *stale, *fresh, *turns(KEEP_TURNS, start=10)]
    decision = snip.plan(view, Model(window=100_000), 90_000, 90_000, ContextSettings())
    assert decision.ids == ("a0", "r0", "a1", "r1")
    assert 15_000 < decision.tokens < 25_000


def test_nothing_is_snipped_below_the_threshold_or_for_too_little():
    view = [m.user("goal"), call(0), results(0, "e", is_error=True), *turns(KEEP_TURNS, start=10)]
    assert snip.plan(view, Model(), 10, 100, ContextSettings()) is None
    assert snip.plan(view, Model(), 200, 100_000, ContextSettings()) is None


def test_a_failed_turn_with_words_of_the_model_is_kept():
    view = [
        m.user("goal"),
        call(0, "Bash", text="This shows that…", command="x"),
        results(0, "e" * 400_000, is_error=True),
        *turns(KEEP_TURNS, start=10),
    ]
    assert snip.plan(view, Model(window=100_000), 90_000, 90_000, ContextSettings()) is None


# ── step 3 ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_old_results_are_cleared_only_when_the_cache_is_cold():
    view = [m.user("goal"), *turns(8)]
    warm = microcompact.plan(view, ContextSettings(), now=100.0 + 3_599)
    cold = microcompact.plan(view, ContextSettings(), now=100.0 + 3_601)
    assert (warm, cold) == (None, Clear(("t0", "t1", "t2")))


def test_results_of_tools_that_cannot_be_run_again_are_never_cleared():
    view = [m.user("goal"), *turns(8, name="Agent", prompt="x")]
    assert microcompact.plan(view, ContextSettings(), now=1e6) is None


def test_what_was_cleared_is_not_cleared_again():
    view = (m.user("goal"), *turns(8))
    once = apply(view, microcompact.plan(view, ContextSettings(), now=1e6))
    assert microcompact.plan(once, ContextSettings(), now=1e6) is None


def test_a_server_that_edits_is_asked_to_where_thinking_is_bound():
    binding = Model(binds_thinking=True, server_editing=True)
    edit = microcompact.server_edit(binding, ContextSettings(), 100_000)
    assert edit["edits"][0]["type"] == "clear_tool_uses_20250919"
    assert microcompact.server_edit(binding, ContextSettings(), 100_000) == edit
    assert microcompact.server_edit(Model(server_editing=True), ContextSettings(), 100_000) is None


# ── step 4 ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def stretch(view, model=Model(), tokens=155_000, effective=180_000, **fields):
    return collapse.next_stretch(tuple(view), model, tokens, effective, ContextSettings(**fields))


def test_where_the_cache_serves_the_old_part_stays_and_the_young_part_is_staged():
    view = [m.user("goal"), *turns(15, "x" * 40_000)]
    found = stretch(view, collapse_keep=0.06)
    front = estimate(found.before, 4.0)
    assert found.means is Means.PREFIX and 180_000 * 0.45 <= front < 180_000 * 0.45 + 11_000
    assert found.before + found.messages == tuple(view[:-2])
    assert found.messages[0].role == "assistant" and found.messages[-1].kind == "tool_results"


def test_the_next_stretch_begins_behind_the_last_summary():
    view = (m.user("goal"), *turns(15, "x" * 40_000))
    first = stretch(view)
    later = (*apply(view, first.collapse("found it")), *turns(7, "y" * 40_000, start=20))
    second = stretch(later)
    assert is_collapse(second.before[-1]) and second.messages[0].id == "a20"


def test_when_old_part_and_summaries_fill_the_window_all_of_it_is_staged_once():
    view = (m.user("goal"), *turns(15, "x" * 40_000))
    view = apply(view, stretch(view).collapse("s" * 200_000))
    found = stretch((*view, *turns(3, "y" * 40_000, start=20)))
    assert found.before == view[:1] and any(is_collapse(message) for message in found.messages)


def test_where_nothing_is_cached_the_stretch_reaches_back_to_the_first_answer():
    found = stretch([m.user("goal"), *turns(15, "x" * 40_000)], Model(cache_control=False))
    assert found.means is Means.TEXT and found.messages[0].id == "a0" and len(found.before) == 1


def test_where_the_server_compacts_its_block_stands_for_all_up_to_a_point():
    model = Model(binds_thinking=True, server_compaction=True)
    view = (m.user("goal"), *turns(15, "x" * 40_000))
    found = stretch(view, model, collapse_keep=0.06)
    assert found.means is Means.SERVER and found.before == ()
    block = {"type": "compaction", "content": "all of it"}
    folded = apply(view, replace(found.collapse("", block), after="r14"))
    assert (folded[0].role, folded[0].content) == ("assistant", (block,)) and folded[1].id == "a14"
    injected = m.user("memory", id="memory")
    assert [msg.id for msg in with_user_context((*folded, m.user("new", id="n")), injected)[-2:]] == ["memory", "n"]


def test_nothing_is_staged_while_there_is_room_or_too_little_to_say():
    view = [m.user("goal"), *turns(15, "x" * 40_000)]
    assert stretch(view, tokens=100_000) is None
    assert stretch([m.user("goal"), *turns(6)]) is None


# ── step 5 ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("tokens", "settings", "tracking", "expected"),
    [
        (166_999, ContextSettings(), Tracking(), Pressure.ROOM),
        (167_000, ContextSettings(), Tracking(), Pressure.COMPACT),
        (199_000, ContextSettings(), Tracking(None, 3), Pressure.ROOM),
        (176_999, ContextSettings(auto_compact=False), Tracking(), Pressure.ROOM),
        (177_000, ContextSettings(auto_compact=False), Tracking(), Pressure.BLOCKED),
    ],
)
def test_the_window_less_its_buffers_decides(tokens, settings, tracking, expected):
    effective = effective_window(Model(), settings)
    assert effective == 180_000
    assert autocompact.pressure(tokens, effective, settings, tracking) is expected


def test_a_compaction_keeps_whole_turns_up_to_its_share():
    view = [m.user("goal"), *turns(30, "x" * 4_000)]
    kept = autocompact.kept(view, Model(), 100_000, 0.1)
    assert kept[0].role == "assistant" and 0 < len(kept) < len(view) and kept == tuple(view[-len(kept) :])


def test_what_nobody_answered_yet_is_kept_though_the_turn_before_it_is_not():
    view = [m.user("goal"), *turns(2, "x" * 80_000), m.user("and now?", id="q")]
    assert [msg.id for msg in autocompact.kept(view, Model(), 100_000, 0.1)] == ["q"]


def test_a_prompt_that_nobody_answered_is_kept_however_large_and_whatever_came_behind_it():
    news = m.user("n" * 4_000, kind="attachment", id="news")
    view = [m.user("goal"), *turns(2), m.user("q" * 400_000, id="q"), news]
    assert [msg.id for msg in autocompact.kept(view, Model(), 8_000, 0.1)] == ["q", "news"]
    assert [msg.id for msg in autocompact.kept(view, Model(), 4_000, 0.1)] == ["q"]


def test_what_a_compaction_made_is_never_kept_by_the_next():
    boundary = m.notice("", kind="boundary")
    view = [boundary, m.user("s", kind="summary"), *turns(1), m.user("file", id="f"), m.user("go", id="q")]
    assert [msg.id for msg in autocompact.kept(view, Model(), 100_000, 0.1, {"f"})] == ["q"]


def test_dropping_the_oldest_drops_whole_groups():
    view = [m.user("goal"), *turns(10)]
    left = autocompact.drop_oldest(view)
    assert left[0] is view[0], "what was asked stays"
    assert left[1].role == "assistant" and len(left) < len(view)
    assert autocompact.drop_oldest([m.user("only")]) == ()


def test_dropping_the_oldest_never_drops_what_an_earlier_compaction_said():
    summary = m.user("s", kind="summary")
    left = autocompact.drop_oldest([summary, *turns(10)], 0.5)
    assert left[0] is summary and 9 <= len(left) < 20


# ── the view ───────────────────────────────────────────────────────────────────────────────────────────────────────

HISTORY = (m.user("goal", id="g"), *turns(5))

decisions = st.lists(
    st.one_of(
        st.builds(Spill, st.dictionaries(st.sampled_from(["t0", "t3", "t9"]), st.just("short"), min_size=1)),
        st.builds(Snip, st.sampled_from([("a0", "r0"), ("a1", "r1"), ("zz",)]), st.just(1)),
        st.builds(Clear, st.sampled_from([("t0",), ("t1", "t2"), ("t9",)])),
        st.builds(lambda pair, text: Collapse(*pair, text), st.sampled_from([("a0", "r1"), ("a2", "r2"), ("x", "y")]), st.just("s")),
        st.builds(StripThinking, st.sampled_from(["r1", "r4", "zz"])),
    ),
    max_size=6,
)  # fmt: skip


@given(decisions)
def test_drawing_is_pure_repeatable_and_keeps_calls_with_their_results(taken):
    before = [msg.wire for msg in HISTORY]
    view = draw(HISTORY, taken)
    assert [msg.wire for msg in HISTORY] == before
    assert [msg.wire for msg in draw(HISTORY, taken)] == [msg.wire for msg in view]
    assert [msg.wire for msg in draw(view, taken)] == [msg.wire for msg in view]
    calls = [c["id"] for msg in view for c in msg.tool_uses]
    assert calls == [b["tool_use_id"] for msg in view for b in msg.tool_results]


@given(decisions)
def test_a_decision_survives_being_stored(taken):
    assert [from_message(to_message(decision)) for decision in taken] == taken


def test_a_message_that_no_decision_speaks_of_stays_the_same_object():
    view = draw(HISTORY, [Clear(("t0",))])
    assert [a is b for a, b in zip(HISTORY, view, strict=True)] == [True, True, False, *[True] * 8]
    assert view[2].tool_results[0]["content"] == CLEARED


def test_thinking_before_a_change_goes_with_it():
    signed = m.assistant([{"type": "thinking", "thinking": "", "signature": "s"}, m.text_block("hi")], id="s")
    view = draw((m.user("goal"), signed, m.user("more", id="u")), [StripThinking("u")])
    assert [b["type"] for b in view[1].content] == ["text"]


def test_groups_hold_an_answer_and_its_results_together():
    assert [len(g) for g in groups([m.user("goal"), *turns(2), m.user("x", kind="meta")])] == [1, 2, 2, 1]


# ── the pipeline ───────────────────────────────────────────────────────────────────────────────────────────────────


def pipeline(clock=None, **context):
    settings = Settings(context=ContextSettings(**context), tools=LIMITS)
    return Pipeline(settings, clock or At(), lambda id, text: f"[{id} in a file]")


def test_a_spill_is_decided_once_and_keeps_its_bytes():
    steps = pipeline()
    messages = (m.user("goal"), call(0), several(900, 900))
    first = steps.run(messages, Model(), Tracking())
    again = steps.run((*messages, m.assistant("thanks"), m.user("go")), Model(), Tracking())
    assert len(steps.take_new()) == 1
    assert [msg.wire for msg in again.view[:3]] == [msg.wire for msg in first.view]


def test_the_tokens_that_were_snipped_are_subtracted_from_the_last_usage():
    answer = m.assistant("x", usage=Usage(input=150_000), at=500.0)
    failed = [call(0, "Bash", command="x"), results(0, "e" * 160_000, is_error=True)]
    messages = (m.user("goal"), *failed, *turns(KEEP_TURNS, start=10), answer)
    outcome = pipeline(collapse=False).run(messages, Model(), Tracking())
    assert outcome.pressure is Pressure.ROOM and 105_000 < outcome.tokens < 115_000


def test_a_model_that_binds_its_thinking_is_never_snipped():
    answer = m.assistant("x", usage=Usage(input=150_000), at=500.0)
    failed = [call(0, "Bash", command="x"), results(0, "e" * 160_000, is_error=True)]
    messages = (m.user("goal"), *failed, *turns(KEEP_TURNS, start=10), answer)
    steps = pipeline(collapse=False)
    assert steps.run(messages, Model(binds_thinking=True), Tracking()).tokens >= 150_000
    assert steps.take_new() == []


def test_staged_collapses_are_committed_at_the_threshold_and_autocompact_stands_back():
    steps = pipeline()
    answer = m.assistant("x", usage=Usage(input=165_000), at=500.0)
    messages = (m.user("goal"), *turns(30, "x" * 20_000), answer)
    steps.staged.append(Collapse("a0", "r25", "what was found"))
    outcome = steps.run(messages, Model(), Tracking())
    assert outcome.pressure is Pressure.ROOM and outcome.tokens < 100_000
    assert "what was found" in outcome.view[1].text


def test_a_compaction_keeps_the_decisions_about_what_it_kept_and_forgets_the_rest():
    steps = pipeline()
    steps.decide(Clear(("t1",)))
    steps.decide(Clear(("t4",)))
    steps.decide(Snip(("a0",), 5))
    steps.restart(HISTORY[-2:])
    assert steps.decisions == [Clear(("t4",))]


def test_only_what_is_new_is_drawn_as_long_as_nothing_is_decided():
    steps = pipeline()
    steps.decide(Clear(("t0",)))
    first = steps.draw(HISTORY)
    grown = (*HISTORY, m.assistant("more"))
    assert all(a is b for a, b in zip(steps.draw(grown), first, strict=False))


@given(decisions, st.integers(1, len(HISTORY)))
def test_a_view_drawn_bit_by_bit_is_the_view_drawn_at_once(taken, size):
    steps = pipeline()
    steps.draw(HISTORY[:size])
    steps.draw(HISTORY)
    for decision in taken:
        steps.decide(decision)
        steps.draw(HISTORY)
    assert [msg.wire for msg in steps.draw(HISTORY)] == [msg.wire for msg in draw(HISTORY, taken)]


# ── tokens ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_last_usage_counts_and_what_came_after_is_estimated():
    answer = m.assistant("x", usage=Usage(input=1_000, cache_read=500, output=20), at=50.0)
    view = [m.user("y" * 40_000), answer, m.user("z" * 400)]
    assert prompt_tokens(view, Model()).total == 1_520 + estimate(view[2:], 4.0)
    assert prompt_tokens(view, Model(), stale=answer.id).total == estimate(view, 4.0)


def test_json_counts_double_and_an_image_two_thousand():
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 100_000}}
    assert estimate([m.user([image])], 4.0) == 2_004
    assert estimate([m.user("x" * 400)], 4.0) == 104
    assert estimate([replace(m.user("x"), content=(call(1).content[0],), wire=b"")], 4.0) > 20


def test_the_user_of_a_small_window_still_has_most_of_it():
    assert effective_window(Model(window=8_000, max_output=4_000), ContextSettings()) == 6_400
