"""Edit on any text in any encoding with any line ends."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from worker_agent.errors import ToolError
from worker_agent.tools import files
from worker_agent.tools.builtin.edit import _Edit, find

TARGET = files.Target(Path("/a"), Path("/a"), "a")
LETTERS = st.sampled_from("ab \n")
PIECES = st.text(LETTERS, min_size=1, max_size=8)
ENCODINGS = {
    "utf-8": "ü→", "utf-8-sig": "ü→", "utf-16-le": "ü→", "utf-16-be": "ü→", "utf-32-le": "ü→",
    "cp1252": "ü", "latin-1": "ü\x81",
}  # fmt: skip
MARKS = {"utf-16-le": b"\xff\xfe", "utf-16-be": b"\xfe\xff", "utf-32-le": b"\xff\xfe\x00\x00"}


def encoded(text: str, encoding: str) -> bytes:
    return MARKS.get(encoding, b"") + text.encode(encoding)


def apply(data: bytes, old: str, new: str, everywhere: bool = False) -> bytes:
    return _Edit(TARGET, old, new, everywhere).apply(data)


@given(st.binary(max_size=200) | st.text(max_size=80).map(lambda text: text.encode("utf-8", "replace")))
def test_whatever_is_taken_for_text_is_written_back_byte_for_byte(data: bytes) -> None:
    text = files.decode(data)
    if text is not None:
        assert text.encode() == data


@given(PIECES, PIECES, PIECES, PIECES, st.sampled_from(sorted(ENCODINGS)), st.sampled_from(["\n", "\r\n", "\r"]))
def test_replacing_and_replacing_back_gives_the_same_bytes(
    head: str, old: str, tail: str, new: str, encoding: str, newline: str
) -> None:
    """With one kind of line end in what stays, as in nearly every file."""
    kept = ENCODINGS[encoding] + "\n"
    text = (kept + head + old + tail + "\n" + kept).replace("\n", newline)
    data = encoded(text, encoding)
    before = files.decode(data)
    assert before is not None and before.text == text
    assume(old != new and len(find(before, old)) == 1)
    changed = apply(data, old, new)
    after = files.decode(changed)
    assert after is not None
    assume(len(find(after, new)) == 1)
    assert apply(changed, new, old) == data


@given(st.text(st.sampled_from("ab\r\nü"), max_size=30), st.text(st.sampled_from("ab\r\n"), min_size=1, max_size=4),
       st.text(st.sampled_from("xy\r\nü→\x00\ud800"), max_size=4), st.booleans())  # fmt: skip
@settings(max_examples=300)
def test_lines_that_are_not_replaced_keep_their_bytes(text: str, old: str, new: str, everywhere: bool) -> None:
    data = text.encode()
    try:
        changed = apply(data, old, new, everywhere)
    except ToolError:
        return
    source = files.decode(data)
    assert source is not None
    (start, _), (_, stop) = find(source, old)[0], find(source, old)[-1]
    assert changed.startswith(source.text[:start].encode())
    assert changed.endswith(source.text[stop:].encode())


@given(st.binary(max_size=60), st.text(max_size=4), st.text(max_size=4), st.booleans())
@settings(max_examples=150, deadline=None)
def test_what_is_refused_leaves_the_file_as_it_was(data: bytes, old: str, new: str, everywhere: bool) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "a")
        path.write_bytes(data)
        target = files.Target(path, path, "a")
        known = files.remembered(path.stat(), data)
        edit = _Edit(target, old or "x", new, everywhere)
        try:
            written, _ = files.change(target, known, edit.apply)
        except ToolError:
            assert path.read_bytes() == data
        else:
            assert path.read_bytes() == written
        assert [entry.name for entry in Path(directory).iterdir()] == ["a"]
