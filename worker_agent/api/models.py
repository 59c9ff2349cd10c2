"""What each model can do and what it costs: windows, caps, capabilities, prices with the day they began.

Rules of this file:

1. The table is what this program was written against; the models endpoint fills in for models it does not know.
2. All five prices are stored for each tier and day: a cache read is no fixed share of the input price.
3. Unknown is said, never guessed into money: a model without a price costs `None`.
4. A capability that is uncertain is off: a request without it still works.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from typing import Any

from msgspec import Struct

from worker_agent.api.client import ModelInfo, Price
from worker_agent.messages import Usage
from worker_agent.structs import replace

ALIASES = {
    "sonnet": "claude-sonnet-5-5",
    "opus": "claude-opus-5-5",
    "haiku": "claude-haiku-5-5",
    "fable": "claude-fable-5-2",
}

GUESSED_WINDOW = 200_000
GUESSED_MAX_OUTPUT = 32_000

_MILLION = 1_000_000
# The tokenizer since Opus 4.7 makes about 30 % more tokens of the same text than the one before.
_NEW_TOKENIZER = 3.1
_OLD_TOKENIZER = 4.0


def _modern(id: str, *, binds: bool) -> ModelInfo:
    """A model of the 1M/128K generation that thinks adaptively and compacts on the server."""
    return ModelInfo(
        id=id,
        window=_MILLION,
        max_output=128_000,
        chars_per_token=_NEW_TOKENIZER,
        binds_thinking=binds,
        server_compaction=True,
        server_editing=True,
        adaptive_thinking=True,
        effort=True,
        tool_search=True,
    )


def _small_window(id: str) -> ModelInfo:
    """A 200K/64K model of the generation before adaptive thinking and on-demand compaction."""
    return ModelInfo(id=id, window=200_000, max_output=64_000, server_editing=True, tool_search=True)


MODELS: Mapping[str, ModelInfo] = {
    info.id: info
    for info in (
        _modern("claude-fable-5-2", binds=True),
        _modern("claude-fable-5-1", binds=True),
        _modern("claude-fable-5", binds=False),
        _modern("claude-mythos-5-2", binds=True),
        _modern("claude-mythos-5-1", binds=True),
        _modern("claude-mythos-5", binds=False),
        _modern("claude-opus-5-5", binds=True),
        _modern("claude-opus-5", binds=False),
        _modern("claude-opus-4-8", binds=False),
        _modern("claude-opus-4-7", binds=False),
        replace(_modern("claude-opus-4-6", binds=False), chars_per_token=_OLD_TOKENIZER),
        _small_window("claude-opus-4-5"),
        _modern("claude-sonnet-5-5", binds=True),
        _modern("claude-sonnet-5", binds=False),
        replace(_modern("claude-sonnet-4-6", binds=False), chars_per_token=_OLD_TOKENIZER),
        _modern("claude-haiku-5-5", binds=True),
        _small_window("claude-haiku-4-5"),
    )
}


class Tariff(Struct, frozen=True):
    """A price from a day on, for prompts of at most `max_prompt` tokens (None = any)."""

    since: date
    price: Price
    max_prompt: int | None = None


def _price(input: float, output: float, read: float) -> Price:
    """Writes are 1.25 and 2 times the input price on every model; reads are not a fixed share."""
    return Price(input=input, output=output, write_5m=input * 1.25, write_1h=input * 2, read=read)


_EVER = date(2020, 1, 1)
_FABLE = (Tariff(_EVER, _price(10, 50, 1.00)),)
_FABLE_1 = (Tariff(_EVER, _price(10, 50, 0.25)),)
_FABLE_2 = (Tariff(_EVER, _price(8, 40, 0.20)),)
_OPUS = (Tariff(_EVER, _price(5, 25, 0.50)),)

# Newest first within a model, and among tariffs of one day the smaller tier first: the first that fits holds.
TARIFFS: Mapping[str, tuple[Tariff, ...]] = {
    "claude-fable-5-2": _FABLE_2,
    "claude-fable-5-1": _FABLE_1,
    "claude-fable-5": _FABLE,
    "claude-mythos-5-2": _FABLE_2,
    "claude-mythos-5-1": _FABLE_1,
    "claude-mythos-5": _FABLE,
    "claude-opus-5-5": (Tariff(_EVER, _price(4, 20, 0.20)),),
    "claude-opus-5": _OPUS,
    "claude-opus-4-8": _OPUS,
    "claude-opus-4-7": _OPUS,
    "claude-opus-4-6": _OPUS,
    "claude-opus-4-5": _OPUS,
    "claude-sonnet-5-5": (Tariff(date(2026, 10, 7), _price(2, 10, 0.10)), Tariff(_EVER, _price(2, 10, 0.20))),
    "claude-sonnet-5": (Tariff(_EVER, _price(2, 10, 0.20)),),
    "claude-sonnet-4-6": (Tariff(_EVER, _price(3, 15, 0.30)),),
    "claude-haiku-5-5": (
        Tariff(_EVER, _price(0.10, 0.50, 0.01), max_prompt=100_000),
        Tariff(_EVER, _price(0.50, 2.50, 0.05)),
    ),
    "claude-haiku-4-5": (Tariff(_EVER, _price(1, 5, 0.10)),),
}

_DATED = re.compile(r"-20\d{6}$")
_LONG_WINDOW = re.compile(r"\s*\[1m\]$", re.IGNORECASE)


def resolve(model: str) -> str:
    """The id behind an alias (`sonnet`, `opus`, `haiku`, `fable`); any other name as it is. `[1m]` behind a name, by which
    other programs ask for the long window, is left out: a model has its own window here."""
    name = _LONG_WINDOW.sub("", model.strip())
    return ALIASES.get(name.lower(), name)


def named(model: str | None) -> str | None:
    """A model that somebody chose; None where they left it to whoever stands above them."""
    return None if model is None or model.strip().lower() in ("", "inherit", "default") else model


def _family(model: str) -> str:
    """The table's key for an id: aliases resolved, the release day cut off."""
    return _DATED.sub("", resolve(model))


def info_for(model: str) -> ModelInfo:
    """What `model` can do; for one the table does not know a careful guess with `known=False`."""
    id = resolve(model)
    known = MODELS.get(id) or MODELS.get(_family(id))
    if known is None:
        return guess(id)
    return known if known.id == id else replace(known, id=id)


def guess(id: str, window: int | None = None, max_output: int | None = None) -> ModelInfo:
    """A model nobody described: no betas, no cache marks, sizes that most endpoints can serve."""
    window = window or GUESSED_WINDOW
    return ModelInfo(
        id=id,
        window=window,
        max_output=min(max_output or GUESSED_MAX_OUTPUT, window),
        cache_control=False,
        known=False,
    )


def from_endpoint(id: str, answer: Mapping[str, Any]) -> ModelInfo:
    """What the models endpoint says of a model that no table knows. Without sizes it is a guess still.

    A newer model of the vendor (it lists `capabilities`) is taken to bind its thinking, as all since 5.5 do."""
    meta = answer.get("meta")
    named = [answer.get(name) for name in ("max_input_tokens", "max_model_len", "context_length")]
    sizes = (_positive(value) for value in (*named, meta.get("n_ctx") if isinstance(meta, Mapping) else None))
    window = next((size for size in sizes if size), None)
    guessed = guess(id, window, _positive(answer.get("max_tokens")))
    abilities = answer.get("capabilities")
    if not isinstance(abilities, Mapping) or window is None:
        return guessed
    return replace(
        guessed,
        chars_per_token=_NEW_TOKENIZER,
        binds_thinking=_supported(abilities, "thinking"),
        server_compaction=_supported(abilities, "compaction"),
        server_editing=_supported(abilities, "context_management"),
        adaptive_thinking=_supported(abilities, "thinking", "types", "adaptive"),
        effort=_supported(abilities, "effort"),
        tool_search=_supported(abilities, "server_tools", "tool_search"),
        cache_control=True,
        known=True,
    )


def in_list(id: str, answer: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What the list of models says of `id`; a server of one model serves it under every name. None: nothing."""
    data = answer.get("data")
    entries = [entry for entry in data if isinstance(entry, Mapping)] if isinstance(data, list) else []
    named = [entry for entry in entries if entry.get("id") == id]
    return named[0] if named else entries[0] if len(entries) == 1 else None


def _positive(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _supported(abilities: Any, *path: str) -> bool:
    for name in path:
        abilities = abilities.get(name) if isinstance(abilities, Mapping) else None
    return isinstance(abilities, Mapping) and abilities.get("supported") is True


def price_of(model: str, prompt_tokens: int, on: date) -> Price | None:
    """The price for one call with `prompt_tokens` of prompt (cache reads and writes included) on that day."""
    tariffs = TARIFFS.get(_family(model), ())
    for tariff in tariffs:
        if tariff.since <= on and (tariff.max_prompt is None or prompt_tokens <= tariff.max_prompt):
            return tariff.price
    return None


def cost(model: str, usage: Usage, on: date) -> float | None:
    """USD for the usage of *one* call on `model`; None when its price is unknown, and for an answer that used nothing: its
    endpoint does not count.

    One call, because the tier of some models depends on the size of its prompt: sums of calls must be sums of costs."""
    price = price_of(model, usage.prompt, on)
    if price is None or not usage.total:
        return None
    tokens = (
        usage.input * price.input
        + usage.output * price.output
        + usage.cache_write_5m * price.write_5m
        + usage.cache_write_1h * price.write_1h
        + usage.cache_read * price.read
    )
    return tokens / _MILLION
