"""The table: ids, aliases, prices with their days and tiers."""

from __future__ import annotations

from datetime import date

import pytest

from worker_agent.api import models
from worker_agent.messages import Usage

TODAY = date(2026, 12, 1)
MILLION = 1_000_000


def test_every_model_of_the_table_has_a_price_and_every_price_a_model():
    assert set(models.MODELS) == set(models.TARIFFS)


@pytest.mark.parametrize("alias", models.ALIASES)
def test_an_alias_names_a_model_of_the_table(alias):
    assert models.info_for(alias.upper()).id == models.ALIASES[alias]
    assert models.info_for(alias).known


def test_an_id_with_its_day_is_the_model_it_belongs_to():
    info = models.info_for("claude-haiku-4-5-20251001")
    assert (info.id, info.window, info.known) == ("claude-haiku-4-5-20251001", 200_000, True)
    assert models.cost("claude-haiku-4-5-20251001", Usage(input=MILLION), TODAY) == 1.0


def test_a_model_nobody_knows_gets_a_careful_guess_and_no_price():
    info = models.info_for("qwen3")
    assert (info.window, info.max_output, info.known, info.cache_control) == (200_000, 32_000, False, False)
    assert models.cost("qwen3", Usage(input=5), TODAY) is None


def test_all_five_prices_count():
    usage = Usage(input=MILLION, cache_write_5m=MILLION, cache_write_1h=MILLION, cache_read=MILLION, output=MILLION)
    assert models.cost("claude-opus-5-5", usage, TODAY) == pytest.approx(4 + 5 + 8 + 0.20 + 20)


def test_a_price_holds_from_its_day_on():
    usage = Usage(cache_read=MILLION)
    assert models.cost("sonnet", usage, date(2026, 10, 6)) == pytest.approx(0.20)
    assert models.cost("sonnet", usage, date(2026, 10, 7)) == pytest.approx(0.10)


def test_haiku_costs_more_for_every_token_of_a_call_with_a_long_prompt():
    assert models.cost("haiku", Usage(cache_read=100_000, output=MILLION), TODAY) == pytest.approx(0.001 + 0.50)
    assert models.cost("haiku", Usage(cache_read=100_001, output=MILLION), TODAY) == pytest.approx(0.00500005 + 2.50)


def test_the_models_endpoint_describes_what_no_table_knows():
    supported = {"supported": True}
    answer = {
        "max_input_tokens": 2_000_000,
        "max_tokens": 256_000,
        "capabilities": {
            "thinking": {"supported": True, "types": {"adaptive": supported}},
            "effort": supported,
            "context_management": supported,
            "compaction": {"supported": False},
        },
    }
    info = models.from_endpoint("claude-opus-6", answer)
    assert (info.window, info.max_output, info.known) == (2_000_000, 256_000, True)
    assert (info.adaptive_thinking, info.effort, info.server_editing, info.server_compaction) == (
        True,
        True,
        True,
        False,
    )


def test_an_endpoint_that_names_only_a_size_gives_only_that():
    info = models.from_endpoint("llama", {"max_model_len": 8192})
    assert (info.window, info.max_output, info.known, info.cache_control) == (8192, 8192, False, False)
    assert models.from_endpoint("llama", {"max_input_tokens": None}) == models.guess("llama")


def test_the_mark_of_a_long_window_is_no_part_of_a_models_name():
    assert models.resolve("sonnet[1m]") == models.ALIASES["sonnet"]
    assert models.resolve(" claude-opus-5-5 [1M] ") == "claude-opus-5-5"
    assert models.resolve("other[2m]") == "other[2m]"
