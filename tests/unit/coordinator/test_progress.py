"""Progress: what is counted, and how often it is told."""

import asyncio

from coordinator.runs.progress import Coalesced, Progress, shows_life
from worker_agent.events import InputDelta, MessageAdded, ModelCalled, TextDelta, ThinkingDelta, ToolStarted
from worker_agent.messages import Usage, assistant


def test_input_is_the_latest_prompt_output_is_summed_and_activities_are_five() -> None:
    progress = Progress(lambda model, usage: 0.5)
    progress.observe(ModelCalled("r1", "m", Usage(input=10, cache_read=5, output=3), 1.0))
    progress.observe(ModelCalled("r2", "m2", Usage(input=20, cache_write_5m=7, output=4), 1.0))
    progress.observe(ModelCalled(None, "m2", Usage(), 1.0, "connection"))
    for number in range(7):
        progress.observe(ToolStarted("t", "Read", {}, f"Read {number}"))
    assert (progress.input_tokens, progress.output_tokens, progress.cost_usd, progress.model) == (27, 7, 1.0, "m2")
    assert (progress.cache_read_tokens, progress.cache_write_tokens, progress.tool_uses) == (5, 7, 7)
    assert list(progress.activities) == [f"Read {n}" for n in range(2, 7)]


def test_one_unknown_price_makes_the_cost_unknown_for_good() -> None:
    progress = Progress(lambda model, usage: None if model == "strange" else 1.0)
    for model in ("known", "strange", "known"):
        progress.observe(ModelCalled(f"r{model}", model, Usage(output=1), 1.0))
    assert progress.cost_usd is None


def test_said_text_is_kept_and_deltas_are_nothing_to_tell() -> None:
    progress = Progress(lambda model, usage: 0.0)
    assert progress.observe(MessageAdded(assistant(" found it\nin a.py ")))
    assert not progress.observe(TextDelta("x"))
    assert (progress.texts, list(progress.activities)) == (["found it\nin a.py"], [])


def test_tokens_of_an_answer_under_way_are_guessed_until_the_api_has_counted_them() -> None:
    progress = Progress(lambda model, usage: 0.0)
    for event in (ThinkingDelta("x" * 40), TextDelta("y" * 40), InputDelta(80)):
        assert shows_life(event) and not progress.observe(event)
    assert (progress.written, progress.output_tokens) == (160, 0)
    progress.observe(ModelCalled("r1", "m", Usage(output=31), 1.0))
    assert (progress.written, progress.output_tokens) == (0, 31)


def test_a_thousand_touches_in_one_interval_tell_once_now_and_once_later() -> None:
    async def scenario() -> int:
        told = 0

        def tell() -> None:
            nonlocal told
            told += 1

        coalesced = Coalesced(tell, interval=0.02)
        for _ in range(1000):
            coalesced.touch()
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        return told

    assert 1 <= asyncio.run(scenario()) <= 6
