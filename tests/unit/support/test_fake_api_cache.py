"""The simulated prompt cache: what is written, what is read, and when."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.fake_api import MODELS, FakeAPI, Gate, hold, message
from tests.unit.support.helpers import MODEL, OLD, assistant, body, client, create, user, with_client, words

MARK = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}
LONG = "x" * 8000  # some 2,000 tokens


def figures(answer: Any) -> tuple[int, int, int]:
    """Input, written, read."""
    usage = answer.usage
    return usage.input_tokens, usage.cache_creation_input_tokens, usage.cache_read_input_tokens


def talk(*texts: str, mark: dict[str, str] | None = MARK) -> list[dict[str, Any]]:
    """Turns of user and assistant by turns; the last block is marked."""
    made = [(user if n % 2 == 0 else assistant)([words(t)]) for n, t in enumerate(texts)]
    if mark:
        made[-1]["content"] = [words(texts[-1], cache_control=mark)]
    return made


def test_the_first_request_writes_what_the_second_reads() -> None:
    with FakeAPI("ok") as api:
        first = figures(create(api, talk(LONG)))
        again = figures(create(api, talk(LONG)))
        grown = figures(create(api, talk(LONG, "ok", "go on")))
    size = first[1]
    assert first == (0, size, 0) and 2000 <= size <= 2020
    assert again == (0, 0, size)
    assert grown[2] == size and grown[0] == 0 and 0 < grown[1] < 40


def test_prompt_size_is_the_sum_of_the_three_and_what_counting_says() -> None:
    with FakeAPI("ok") as api:
        sizes = [sum(figures(create(api, talk(LONG), system=s))) for s in ("s", "s")]
        counted = with_client(api, lambda sdk: sdk.messages.count_tokens(model=MODEL, messages=talk(LONG), system="s"))
    assert sizes == [counted.input_tokens] * 2


def test_without_marks_nothing_is_cached() -> None:
    with FakeAPI("ok") as api:
        answers = [figures(create(api, talk(LONG, mark=None))) for _ in range(2)]
    assert all(written == read == 0 for _, written, read in answers)


def test_the_automatic_mark_moves_with_the_conversation() -> None:
    with FakeAPI("ok") as api:
        first = figures(create(api, talk(LONG, mark=None), cache_control=MARK))
        grown = figures(create(api, talk(LONG, "ok", "go on", mark=None), cache_control=MARK))
    assert first[1] > 2000 and grown[2] == first[1] and grown[0] == 0


@pytest.mark.parametrize("model", [MODEL, OLD, "claude-opus-4-7", "claude-haiku-4-5"])
def test_below_the_minimum_nothing_is_cached(model: str) -> None:
    minimum = MODELS[model].cache_minimum
    with FakeAPI("ok") as api:
        below = [figures(create(api, talk("y" * 4 * (minimum - 20)), model=model)) for _ in range(2)]
        above = [figures(create(api, talk("z" * 4 * minimum), model=model)) for _ in range(2)]
    assert below[1][1:] == (0, 0)
    assert above[1][2] >= minimum


def test_each_model_has_its_own_entries() -> None:
    with FakeAPI("ok") as api:
        create(api, talk(LONG))
        assert figures(create(api, talk(LONG), model=OLD))[2] == 0


def test_tools_stand_before_system_and_system_before_messages() -> None:
    tool = {"name": "Read", "description": LONG, "input_schema": {"type": "object"}, "cache_control": MARK}
    system = [words(LONG, cache_control=MARK)]
    with FakeAPI("ok") as api:
        first = figures(create(api, tools=[tool], system=system))
        other_message = figures(create(api, [user("ho")], tools=[tool], system=system))
        other_system = figures(create(api, tools=[tool], system=[words(LONG + "!", cache_control=MARK)]))
        other_tool = figures(create(api, tools=[{**tool, "name": "Write"}], system=system))
    assert first[1] > 4000 and other_message[1:] == (0, first[1])
    assert 2000 < other_system[2] < 2100 and other_system[1] > 2000
    assert other_tool[2] == 0


def test_a_mark_looks_back_twenty_blocks_and_no_further() -> None:
    def grown(extra: int) -> list[dict[str, Any]]:
        return [user([words(LONG), *(words(f"b{n}") for n in range(extra - 1)), words("end", cache_control=MARK)])]

    with FakeAPI("ok", allow_prefix_change=True) as api:
        create(api, [user([words(LONG, cache_control=MARK)])])
        near = figures(create(api, grown(19)))
        api.advance(10_000)
        create(api, [user([words(LONG, cache_control=MARK)])])
        far = figures(create(api, grown(20)))
    assert near[2] > 2000 and far[2] == 0


def test_a_second_mark_bridges_a_long_turn() -> None:
    blocks = [words(LONG), *(words(f"b{n}") for n in range(40))]
    with FakeAPI("ok", allow_prefix_change=True) as api:
        create(api, [user([words(LONG, cache_control=MARK)])])
        marked = [{**b, "cache_control": MARK} if n in (15, 40) else b for n, b in enumerate(blocks)]
        assert figures(create(api, [user(marked)]))[2] > 2000


def test_entries_expire_after_their_ttl_unless_they_are_used() -> None:
    with FakeAPI("ok") as api:
        create(api, talk(LONG))
        for _ in range(3):
            api.advance(200)
            assert figures(create(api, talk(LONG)))[2] > 0
        api.advance(301)
        assert figures(create(api, talk(LONG)))[2] == 0


def test_writes_are_told_apart_by_ttl() -> None:
    system = [words(LONG, cache_control=HOUR)]
    with FakeAPI("ok") as api:
        usage = create(api, talk(LONG), system=system).usage
        api.advance(1000)
        later = create(api, talk(LONG), system=system).usage
    parts = usage.cache_creation
    assert parts.ephemeral_1h_input_tokens > 2000 and parts.ephemeral_5m_input_tokens > 2000
    assert usage.cache_creation_input_tokens == parts.ephemeral_1h_input_tokens + parts.ephemeral_5m_input_tokens
    assert later.cache_read_input_tokens == parts.ephemeral_1h_input_tokens


def test_an_entry_is_readable_only_when_the_first_answer_has_begun() -> None:
    before, after = Gate(), Gate()
    system = [words(LONG, cache_control=MARK)]

    async def main(api: FakeAPI) -> tuple[Any, Any, Any]:
        async with client(api) as sdk:

            async def ask(name: str) -> Any:
                return figures(await sdk.messages.create(**body([user(name)], system=system)))

            async def begin() -> Any:
                async with sdk.messages.stream(**body([user("first")], system=system)) as running:
                    return figures(await running.get_final_message())

            first = asyncio.create_task(begin())
            await before.until_reached()
            beside = await ask("beside")
            before.open()
            await after.until_reached()
            later = await ask("later")
            after.open()
            return await first, beside, later

    def script(request: Any) -> Any:
        if request.last_user_text == "first":
            return hold(before, message("a", after, "b"))
        return "ok"

    with FakeAPI(script) as api:
        first, beside, later = asyncio.run(main(api))
    assert first[1] > 2000 and first[2] == 0
    assert beside[1] > 2000 and beside[2] == 0
    assert later[1] == 0 and later[2] > 2000


def test_warming_with_max_tokens_zero_makes_the_prefix_readable() -> None:
    with FakeAPI("ok") as api:
        create(api, talk(LONG), max_tokens=0)
        assert figures(create(api, talk(LONG)))[2] > 2000
