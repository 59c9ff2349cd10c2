import math

import orjson
from hypothesis import given
from hypothesis import strategies as st

from tasks.text import clean, dump_json

ANY_TEXT = st.text(st.characters(codec=None))
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | ANY_TEXT | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXT | st.integers(), inner) | st.tuples(inner),
    max_leaves=8,
)


@given(ANY_TEXT)
def test_cleaned_text_can_be_stored_and_is_cleaned_once(text: str) -> None:
    cleaned = clean(text)
    assert "\x00" not in cleaned
    cleaned.encode()
    assert clean(cleaned) == cleaned


@given(st.text().filter(lambda text: "\x00" not in text))
def test_sound_text_is_left_alone(text: str) -> None:
    assert clean(text) == text


def test_what_cannot_be_stored_is_replaced() -> None:
    assert clean("a\x00b\ud83dc\udc80") == "a\ufffdb\ufffdc\ufffd"
    assert clean("\ud83d\ude00") == "😀"


@given(ANY_JSON)
def test_whatever_it_is_becomes_json(value: object) -> None:
    orjson.loads(dump_json(value))


def test_json_that_is_sound_comes_back() -> None:
    value = {"a": [1, 2.5, None, True, "ü"], "b": {}}
    assert orjson.loads(dump_json(value)) == value
    assert orjson.loads(dump_json({"big": 2**70, "odd": {1}, "nan": math.nan})) == {
        "big": str(2**70),
        "odd": [1],
        "nan": None,
    }
