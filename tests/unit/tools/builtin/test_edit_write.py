from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import pytest

from worker_agent import disk
from worker_agent.errors import ToolError
from worker_agent.tools.builtin.edit import Edit
from worker_agent.tools.builtin.read import Read
from worker_agent.tools.builtin.write import Write

from .support import acall, as_nobody, call, context, refused


def edit(path: Path, old: str, new: str, **more: object) -> bytes:
    """Read, edit; the bytes afterwards."""
    ctx = context(path.parent)
    call(Read(), ctx, file_path=str(path))
    call(Edit(), ctx, file_path=str(path), old_string=old, new_string=new, **more)
    return path.read_bytes()


def test_an_edit_replaces_one_exact_place_and_shows_it(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\ntwo\nthree\n")
    ctx = context(tmp_path)
    call(Read(), ctx, file_path="a")
    answer = call(Edit(), ctx, file_path="a", old_string="two", new_string="2\n2")
    assert (tmp_path / "a").read_text() == "one\n2\n2\nthree\n"
    assert answer.endswith("     1\tone\n     2\t2\n     3\t2\n     4\tthree")
    call(Edit(), ctx, file_path="a", old_string="one", new_string="1")  # its own change is no foreign one


def test_a_file_that_was_not_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one")
    words = refused(Edit(), context(tmp_path), file_path="a", old_string="one", new_string="1")
    assert "not read yet. Read it first" in words
    assert "not read yet" in refused(Write(), context(tmp_path), file_path="a", content="x")
    assert (tmp_path / "a").read_text() == "one"


def test_of_two_agents_that_read_the_same_file_the_second_to_edit_is_refused_until_it_reads_again(
    tmp_path: Path,
) -> None:
    (tmp_path / "a").write_text("one two\n")
    first, second = context(tmp_path), context(tmp_path)
    for ctx in (first, second):
        call(Read(), ctx, file_path="a")
    call(Edit(), first, file_path="a", old_string="one", new_string="1")
    change = {"file_path": "a", "old_string": "two", "new_string": "2"}
    assert "has changed since you read it" in refused(Edit(), second, **change)
    assert (tmp_path / "a").read_text() == "1 two\n"
    call(Read(), second, file_path="a")
    call(Edit(), second, **change)
    assert (tmp_path / "a").read_text() == "1 2\n"


def test_of_many_agents_that_edit_at_the_same_moment_exactly_one_succeeds(tmp_path: Path) -> None:
    async def scenario() -> list[object]:
        contexts = [context(tmp_path) for _ in range(12)]
        for ctx in contexts:
            await acall(Read(), ctx, file_path="a")
        edits = [
            acall(Edit(), ctx, file_path="a", old_string="start", new_string=f"agent {i:02}") for i, ctx in enumerate(contexts)
        ]
        return await asyncio.gather(*edits, return_exceptions=True)

    for _ in range(10):
        (tmp_path / "a").write_text("start")
        outcomes = asyncio.run(scenario())
        assert sum(isinstance(outcome, ToolError) for outcome in outcomes) == 11
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]


def test_a_touch_is_no_change(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one")
    ctx = context(tmp_path)
    call(Read(), ctx, file_path="a")
    os.utime(tmp_path / "a", (1, 1))
    call(Edit(), ctx, file_path="a", old_string="one", new_string="1")


def test_a_file_that_vanished_is_said(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one")
    ctx = context(tmp_path)
    call(Read(), ctx, file_path="a")
    (tmp_path / "a").unlink()
    assert "does not exist" in refused(Edit(), ctx, file_path="a", old_string="one", new_string="1")


@pytest.mark.parametrize(
    ("old", "words"),
    [
        ("gone", "was not found"),
        ("x = 1\n    y = 2", "Lines 1–2 differ from it only in white space"),
        ("x = 1\nz", "first line is line 1"),
        ("=", "2 times"),
        ("  ", "2 times"),
        ("", "old_string is empty"),
        ("x\n", "same"),
    ],
)
def test_what_cannot_be_replaced_is_refused_with_what_to_do(tmp_path: Path, old: str, words: str) -> None:
    (tmp_path / "a").write_text("x = 1\ny   = 2\n")
    ctx = context(tmp_path)
    call(Read(), ctx, file_path="a")
    new = "x\n" if words == "same" else "new"
    assert words in refused(Edit(), ctx, file_path="a", old_string=old, new_string=new)
    assert (tmp_path / "a").read_text() == "x = 1\ny   = 2\n"


def test_replace_all_replaces_all(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a b a b")
    assert edit(tmp_path / "a", "a", "aa", replace_all=True) == b"aa b aa b"


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"a\r\nb\r\nc\r\n", "a\nb", "1\n2\n3", b"1\r\n2\r\n3\r\nc\r\n"),
        (b"a\rb\rc", "a\nb", "1\n2", b"1\r2\rc"),
        (b"a\r\nb\nc\r\n", "b\nc", "1\n2", b"a\r\n1\n2\r\n"),
        (b"a\r\nb\nc\r\n", "a\nb", "1\n2", b"1\r\n2\nc\r\n"),
        (b"a\nb\n", "a\r\nb", "1\r\n2", b"1\n2\n"),
        (b"\xef\xbb\xbfa\r\n", "a", "\u00fc", b"\xef\xbb\xbf\xc3\xbc\r\n"),
        ("\ufeffa\n".encode("utf-16-le"), "a", "b\nc", "\ufeffb\nc\n".encode("utf-16-le")),
        (b"gr\xfcn a", "a", "sch\u00f6n", b"gr\xfcn sch\xf6n"),
        ("grün ".encode() + b"\xff a", "a", "ö", "grün ".encode() + b"\xff \xc3\xb6"),
    ],
)
def test_line_ends_encoding_and_mark_are_kept(tmp_path: Path, before: bytes, old: str, new: str, after: bytes) -> None:
    (tmp_path / "a").write_bytes(before)
    assert edit(tmp_path / "a", old, new) == after


@pytest.mark.parametrize("new", ["\u2192", "\ud800", "\x00"])
def test_a_character_that_the_file_cannot_hold_is_refused(tmp_path: Path, new: str) -> None:
    (tmp_path / "a").write_bytes(b"gr\xfcn a")
    ctx = context(tmp_path)
    call(Read(), ctx, file_path="a")
    refused(Edit(), ctx, file_path="a", old_string="a", new_string=new)
    assert (tmp_path / "a").read_bytes() == b"gr\xfcn a"


def test_permissions_are_kept_and_a_new_file_gets_what_the_umask_says(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("a")
    (tmp_path / "run.sh").chmod(0o751)
    edit(tmp_path / "run.sh", "a", "b")
    assert stat.S_IMODE((tmp_path / "run.sh").stat().st_mode) == 0o751
    mask = os.umask(0o027)
    try:
        call(Write(), context(tmp_path), file_path="new", content="x")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


def test_a_link_inside_is_followed_and_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("a")
    (tmp_path / "link").symlink_to("real")
    edit(tmp_path / "link", "a", "b")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "b"


@pytest.mark.parametrize("way", ["file", "directory", "dangling"])
def test_a_link_that_leads_outside_is_not_followed(tmp_path: Path, way: str) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    (outside / "a").write_text("a")
    (inside / "link").symlink_to({"file": outside / "a", "directory": outside, "dangling": outside / "new"}[way])
    name = "link/a" if way == "directory" else "link"
    ctx = context(inside)
    if way != "dangling":
        call(Read(), ctx, file_path=name)
        assert "leads outside" in refused(Edit(), ctx, file_path=name, old_string="a", new_string="b")
    assert "leads outside" in refused(Write(), ctx, file_path=name, content="b")
    assert (outside / "a").read_text() == "a"
    assert not (outside / "new").exists()


def test_roots_that_are_links_themselves_are_no_way_out(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "alias").symlink_to("real")
    call(Write(), context(tmp_path / "alias"), file_path="new", content="x")
    assert (tmp_path / "real" / "new").read_text() == "x"


def test_write_makes_directories_and_replaces_only_what_was_read_whole(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    assert call(Write(), ctx, file_path="deep/er/a.txt", content="one\ntwo") == "Created deep/er/a.txt: 2 lines, 7 bytes."
    assert call(Write(), ctx, file_path="deep/er/a.txt", content="") == "Replaced deep/er/a.txt: 0 lines, 0 bytes."
    (tmp_path / "b").write_text("1\n2\n3\n")
    call(Read(), ctx, file_path="b", limit=1)
    assert "Only a part" in refused(Write(), ctx, file_path="b", content="x")
    call(Read(), ctx, file_path="b", offset=2)
    call(Write(), ctx, file_path="b", content="x")


def test_write_keeps_the_style_of_what_it_replaces(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    ctx = context(tmp_path)
    call(Read(), ctx, file_path="a")
    call(Write(), ctx, file_path="a", content="1\n2\n")
    assert (tmp_path / "a").read_bytes() == b"\xef\xbb\xbf1\r\n2\r\n"


def test_what_is_no_file_cannot_be_written(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "dir").mkdir()
    (tmp_path / "file").touch()
    assert "a FIFO" in refused(Write(), context(tmp_path), file_path="fifo", content="x")
    assert "a directory" in refused(Write(), context(tmp_path), file_path="dir", content="x")
    assert "not a directory" in refused(Write(), context(tmp_path), file_path="file/x", content="x")
    refused(Write(), context(tmp_path), file_path="/dev/full", content="x")


def test_a_directory_without_permission_is_said_and_leaves_nothing_behind(tmp_path: Path) -> None:
    closed = Path(f"/tmp/closed-{os.getpid()}")
    closed.mkdir(0o755)
    try:
        (closed / "a").write_text("one")
        if os.geteuid():  # whose own they are: what root's are to nobody
            (closed / "a").chmod(0o444)
            closed.chmod(0o555)
        ctx = context(closed)
        call(Read(), ctx, file_path="a")
        with as_nobody():
            assert "permission denied" in refused(Edit(), ctx, file_path="a", old_string="one", new_string="1")
            assert "permission denied" in refused(Write(), ctx, file_path="new", content="x")
        assert [entry.name for entry in closed.iterdir()] == ["a"]
        assert (closed / "a").read_text() == "one"
    finally:
        closed.chmod(0o755)
        (closed / "a").unlink(missing_ok=True)
        closed.rmdir()


def test_a_write_that_fails_half_way_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: object, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "a").write_text("one")
    ctx = context(tmp_path)
    call(Read(), ctx, file_path="a")
    monkeypatch.setattr(disk, "write_all", full)
    assert "no space is left" in refused(Write(), ctx, file_path="a", content="two")
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("a", "one")]


def test_a_cancelled_edit_is_over_when_the_cancel_returns(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one")

    async def scenario() -> None:
        ctx = context(tmp_path)
        await acall(Read(), ctx, file_path="a")
        task = asyncio.create_task(acall(Edit(), ctx, file_path="a", old_string="one", new_string="1"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        settled = (tmp_path / "a").read_text()
        assert settled in ("one", "1")
        assert [entry.name for entry in tmp_path.iterdir()] == ["a"]

    asyncio.run(scenario())


def test_a_file_with_another_name_says_that_the_other_keeps_the_old_text(tmp_path: Path) -> None:
    """Writing through would change what lies outside of every root; saying nothing would leave two texts unnoticed."""
    (tmp_path / "a").write_text("one")
    os.link(tmp_path / "a", tmp_path / "b")
    ctx = context(tmp_path)
    call(Read(), ctx, file_path="a")
    said = call(Edit(), ctx, file_path="a", old_string="one", new_string="two")
    assert "The file had 1 other name (hard links). Only a was changed" in said
    assert [(tmp_path / name).read_text() for name in "ab"] == ["two", "one"]
    assert "hard link" not in call(Write(), ctx, file_path="a", content="three")
