"""The words of a goal: each is searched or named as left out, and found where a word or a part of a name begins."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.offline.goal import MOST, Word, Words
from coordinator.offline.questions import _read, prompt_for


@pytest.mark.parametrize(
    ("goal", "expected"),
    [
        ("Where does the `parse_date` function retry?", Words(("parse_date", "function", "retry"), ("Where", "does", "the"))),
        ("What is this? Show me all of it.", Words((), ("What", "is", "this", "Show", "me", "all", "of", "it"))),
        ("the db, io and C++ of __init__.py; error 404", Words(("db", "io", "C++", "__init__.py", "error", "404"), ("the", "and", "of"))),
        ("Retry retry RETRY", Words(("Retry",))),
        ("", Words()),
    ],
)  # fmt: skip
def test_every_word_is_searched_or_left_out_by_name(goal: str, expected: Words) -> None:
    assert Words.of(goal) == expected


def test_of_very_many_words_those_in_code_form_and_the_first_are_searched() -> None:
    words = Words.of(" ".join(f"word{chr(97 + i)}" for i in range(20)) + " max_retries")
    assert len(words.searched) == MOST and "max_retries" in words.searched and "worda" in words.searched
    assert words.beyond == ("wordp", "wordq", "wordr", "words", "wordt")


@given(st.text())
def test_no_word_is_dropped_and_a_prompt_carries_all_of_them(goal: str) -> None:
    words = Words.of(goal)
    named = {word.lower() for word in (*words.searched, *words.common, *words.beyond)}
    found = {word.rstrip("-.").lower() for word in re.findall(r"\w[\w.+#-]*", goal) if word.isprintable()}
    assert named == found
    assert _read(prompt_for("words", goal, None)) == words


@pytest.mark.parametrize(
    ("word", "found", "not_found"),
    [
        ("retries", ["retry", "max_retries", "RetryPolicy", "doRetry", "MAX_RETRY", "retried"], ["country", "reset"]),
        ("parses", ["yaml.parse", "YAMLParser", "parsing", "_parse2"], ["sparse", "par"]),
        ("count", ["count", "token_count", "tokenCount", "counted"], ["account", "discount"]),
        ("YAML", ["yaml", "SafeYAMLLoader", "load_yaml", "yaml/loader.py"], ["yam"]),
        ("db", ["db", "db_path", "open_db", "myDb", "DB"], ["dbus", "adb", "feedback"]),
        ("parse_date", ["parse_date", "_parse_date2"], ["parse date"]),
        ("C++", ["in C++", "c++"], ["C", "cc"]),
        ("über", ["Über"], ["uber"]),
    ],
)
def test_a_word_is_found_where_a_word_or_a_part_of_a_name_begins(word: str, found: list[str], not_found: list[str]) -> None:
    assert [text for text in found if not Word(word).is_in(text)] == []
    assert [text for text in not_found if Word(word).is_in(text)] == []
