from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.views.terminal_text import columns, cut, escape_json, literal, one_line

ANY_TEXT = st.text(alphabet=st.characters(codec=None, exclude_categories=()), max_size=60) | st.text(
    alphabet="\x1b[]0;m\x07\x9b\x9d\\PX^_ \r\n\tA\u202e", max_size=40
)


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b31mred", "red"),
        ("a\x08b\x7f", "ab"),
        ("one\r\ntwo\rthree", "one\ntwo\nthree"),
        ("\u202eevil\u2066", "evil"),
        ("[bold]literal[/bold] :smile:", "[bold]literal[/bold] :smile:"),
        ("\x1bP1$tq\x1b\\x", "x"),
        ("tab\tstop", "tab stop"),
        ("\ud800lone", "lone"),
    ],
)
def test_terminal_control_is_taken_out_and_everything_else_stays(written: str, shown: str) -> None:
    assert literal(written) == shown


@given(ANY_TEXT)
def test_nothing_that_a_terminal_acts_on_passes(text: str) -> None:
    assert not any(char != "\n" and (ord(char) < 32 or 0x7F <= ord(char) < 0xA0) for char in literal(text))
    assert "\n" not in one_line(text)
    literal(text).encode()


@given(ANY_TEXT, st.integers(0, 30))
def test_a_cut_text_is_never_wider_than_asked(text: str, width: int) -> None:
    assert columns(cut(literal(text), width)) <= max(width, 0)


@given(ANY_TEXT)
def test_what_is_literal_stays_as_it_is(text: str) -> None:
    assert literal(literal(text)) == literal(text)


def test_wide_characters_take_two_columns_and_marks_none() -> None:
    assert (columns("日本"), columns("e\u0301"), cut("日本語", 5)) == (4, 1, "日本…")


@given(ANY_TEXT)
def test_json_on_a_terminal_holds_no_control_and_reads_back_the_same(text: str) -> None:
    written = escape_json(json.dumps({"text": text}, ensure_ascii=False))
    assert not any(ord(char) < 32 or 0x7F <= ord(char) < 0xA0 for char in written)
    assert json.loads(written) == {"text": text}
