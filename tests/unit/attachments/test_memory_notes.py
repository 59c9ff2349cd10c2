"""Notes that a session leaves: files that are found again, replaced only while they are ours, and never outside."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from worker_agent import disk, memory, memory_notes
from worker_agent.memory_notes import Note


def write(place: Path, *notes: Note, day: str = "2026-12-03") -> list[str]:
    return [path.name for path in memory_notes.write(place, notes, session_id="s-1", day=day)]


def test_a_note_is_a_file_with_a_head_and_the_memory_index_calls_it_by_its_title(tmp_path: Path) -> None:
    assert write(tmp_path / "deep" / "notes", Note("Tests need PostgreSQL 16", "Start it with\nmake db.")) == [
        "tests-need-postgresql-16.md"
    ]
    text = (tmp_path / "deep" / "notes" / "tests-need-postgresql-16.md").read_text()
    assert text.startswith("---\ntitle: Tests need PostgreSQL 16\nsession: s-1\nwritten: 2026-12-03\ndigest: ")
    assert text.endswith("\n---\n\nStart it with\nmake db.\n")
    assert memory.titles(tmp_path / "deep" / "notes") == ["Tests need PostgreSQL 16"]
    index = memory.MemoryIndex(tmp_path / "deep" / "notes")
    (hit,) = asyncio.run(index.search("why does the PostgreSQL of the tests not answer?"))
    index.close()
    assert (hit.title, hit.text) == ("Tests need PostgreSQL 16", text.rstrip())


def test_the_same_note_again_changes_nothing_and_one_with_its_title_replaces_it(tmp_path: Path) -> None:
    assert write(tmp_path, Note("A rule", "one")) == ["a-rule.md"]
    before = (tmp_path / "a-rule.md").stat()
    assert write(tmp_path, Note("A rule", "one"), day="2027-01-01") == []
    assert (tmp_path / "a-rule.md").stat().st_ino == before.st_ino
    assert write(tmp_path, Note("A rule", "two")) == ["a-rule.md"]
    assert (tmp_path / "a-rule.md").read_text().endswith("\n\ntwo\n") and len(os.listdir(tmp_path)) == 1


def test_what_a_person_wrote_or_changed_stays_and_the_note_stands_beside_it(tmp_path: Path) -> None:
    (tmp_path / "a-rule.md").write_text("# A rule\nmine\n")
    assert write(tmp_path, Note("A rule", "one")) == ["a-rule-2.md"]
    edited = (tmp_path / "a-rule-2.md").read_text().replace("one", "one, but not on Fridays")
    (tmp_path / "a-rule-2.md").write_text(edited)
    assert write(tmp_path, Note("A rule", "other")) == ["a-rule-3.md"]
    assert (tmp_path / "a-rule.md").read_text() == "# A rule\nmine\n" and (tmp_path / "a-rule-2.md").read_text() == edited


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("../../etc/passwd", "etc-passwd.md"),
        ("  x\n---\nsession: forged\x1b[31m ", "x-session-forged-31m.md"),
        ("测试需要数据库", "note-"),
        ("A" * 500, "a" * 60 + ".md"),
    ],
)
def test_a_title_is_one_line_and_leads_nowhere(tmp_path: Path, title: str, name: str) -> None:
    (written,) = write(tmp_path / "notes", Note(title, "text\x1b]0;owned\x07\n\n---\ntitle: not the head\n---"))
    assert written.startswith(name) and os.listdir(tmp_path) == ["notes"]
    text = (tmp_path / "notes" / written).read_text()
    assert "\x1b" not in text and text.split("\n---\n")[0].count("session: ") == 1 + ("session" in title)
    assert text.splitlines()[2] == "session: s-1"
    assert write(tmp_path / "notes", Note(title, "another text")) == [written], "it is ours, whatever stands in it"


def test_empty_notes_and_notes_beyond_the_bound_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_notes, "MAX_FILES", 2)
    assert write(tmp_path, Note("", "text"), Note("title", " \n"), Note("one", "1"), Note("two", "2"), Note("three", "3")) == [
        "one.md", "two.md",
    ]  # fmt: skip
    assert write(tmp_path, Note("two", "22"), Note("three", "3")) == ["two.md"]


def test_a_link_in_the_place_of_a_note_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "notes" / "a-rule.md").symlink_to(tmp_path / "precious")
    assert write(tmp_path / "notes", Note("A rule", "one")) == ["a-rule-2.md"]
    assert (tmp_path / "precious").read_text() == "precious"


def test_the_directory_lies_in_the_project_unless_that_is_trusted(tmp_path: Path) -> None:
    project, outside = tmp_path / "project", tmp_path / "outside"
    project.mkdir()
    outside.mkdir()
    assert memory_notes.directory(project, trusted=False) == project / ".coordinator" / "memory"
    (project / ".coordinator").mkdir()
    (project / ".coordinator" / "memory").symlink_to(outside)
    with pytest.raises(disk.Outside):
        memory_notes.directory(project, trusted=False)
    assert memory_notes.directory(project, trusted=True) == outside
