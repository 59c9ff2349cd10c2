"""The memory index: what is found, what is not, what is done with hostile names, files, queries and caches."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Collection
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker_agent import memory
from worker_agent.memory import MemoryHit, MemoryIndex


def write(directory: Path, **files: str) -> None:
    for name, text in files.items():
        path = directory / f"{name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def search(index: MemoryIndex, query: str, limit: int = 5, exclude: Collection[Path] = ()) -> list[MemoryHit]:
    return asyncio.run(index.search(query, limit, exclude))


def names(hits: list[MemoryHit]) -> list[str]:
    return [hit.path.name for hit in hits]


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    directory = tmp_path / "notes"
    write(
        directory,
        deploy="# How we deploy\n\nPush to staging first, then press the blue button.",
        database="---\ntitle: Database rules\n---\nMigrations run under a lock. Staging has its own database.",
        cooking="# Soup\n\nOnions, leeks, potatoes.",
    )
    return directory


@pytest.fixture
def index(notes: Path) -> MemoryIndex:
    return MemoryIndex(notes, refresh_every=0)


def test_the_best_match_comes_first_and_what_does_not_fit_not_at_all(index: MemoryIndex) -> None:
    hits = search(index, "Please deploy the new version to staging")
    assert names(hits) == ["deploy.md"]
    assert hits[0].title == "How we deploy"
    assert hits[0].text.startswith("# How we deploy") and hits[0].whole and hits[0].score > 0


def test_one_common_word_in_the_body_is_no_relevance_but_in_the_title_it_is(index: MemoryIndex) -> None:
    assert names(search(index, "is the staging area of git empty")) == []
    assert names(search(index, "write soup recipe down")) == ["cooking.md"]


def test_a_word_is_found_in_another_form_and_by_file_name(index: MemoryIndex, notes: Path) -> None:
    (notes / "release_train-schedule.md").write_text("Every second Tuesday.")
    assert names(search(index, "deploying")) == ["deploy.md"]
    assert names(search(index, "when does the release train leave")) == ["release_train-schedule.md"]


def test_text_without_spaces_between_words_is_found(index: MemoryIndex, notes: Path) -> None:
    (notes / "jp.md").write_text("デプロイの手順\nステージング環境に送る")
    assert names(search(index, "ステージング環境はどこですか")) == ["jp.md"]


def test_changed_new_and_deleted_files_count_at_the_next_search(index: MemoryIndex, notes: Path) -> None:
    assert names(search(index, "leeks potatoes")) == ["cooking.md"]
    (notes / "cooking.md").write_text("# Bread\n\nFlour, water, salt.")
    (notes / "deploy.md").unlink()
    write(notes, **{"deep/er/garden": "Potatoes and leeks grow slowly"})
    assert names(search(index, "leeks potatoes")) == ["garden.md"]
    assert names(search(index, "flour water")) == ["cooking.md"]
    assert names(search(index, "deploy staging button")) == []


def test_what_was_shown_is_not_offered_again(index: MemoryIndex, notes: Path) -> None:
    hits = search(index, "deploy database staging button", 1)
    rest = search(index, "deploy database staging button", 1, {hits[0].path})
    assert {*names(hits), *names(rest)} == {"deploy.md", "database.md"}


def test_what_is_far_weaker_than_the_best_match_is_left_out_even_when_that_was_shown(tmp_path: Path) -> None:
    for number in range(30):
        write(tmp_path, **{f"other{number}": "wind and weather " * 5 + ("and herons" if number < 15 else "")})
    write(tmp_path, best="# Heron windmill\n\nheron windmill nests")
    index = MemoryIndex(tmp_path)
    assert names(search(index, "heron windmill wind weather nests")) == ["best.md"]
    assert names(search(index, "heron windmill wind weather nests", exclude={tmp_path / "best.md"})) == []
    assert len(search(index, "wind weather")) == 5


def test_a_long_file_is_shown_around_the_match(index: MemoryIndex, notes: Path) -> None:
    lines = [f"line {i} of nothing" for i in range(2_000)]
    lines[1500] = "the zebra crossing lies here"
    (notes / "long.md").write_text("\n".join(lines))
    (hit,) = search(index, "zebra crossing")
    assert not hit.whole and "the zebra crossing" in hit.text and len(hit.text) <= memory.TEXT_CAP
    assert hit.text.startswith("line ")


@pytest.mark.parametrize("query", [
    '" OR 1=1 --', "a* NEAR(b, c)", "title:deploy AND", "^deploy -staging", '"deploy', "deploy'); DROP TABLE docs;--",
    "(((((", "{x y}: z", "NOT NOT", "\x00deploy\x01\x02staging", "\ud800 deploy staging", "*", "", "   ",
    "deploy " * 50_000,
])  # fmt: skip
def test_a_query_is_words_and_never_syntax(index: MemoryIndex, query: str) -> None:
    hits = search(index, query)
    assert set(names(hits)) <= {"deploy.md", "database.md"}
    assert names(search(index, "deploy staging")) == ["deploy.md"]


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=200))
def test_any_query_is_answered(query: str) -> None:
    index = memory._open(None, Path("/nowhere"))
    words = memory._words(query)
    if words:
        index.execute("SELECT count(*) FROM docs WHERE docs MATCH ?", (" OR ".join(words),)).fetchone()
    index.close()


def test_hostile_files_are_passed_over_and_hostile_names_are_found(index: MemoryIndex, notes: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.md"
    secret.write_text("deploy staging password")
    (notes / "link.md").symlink_to(secret)
    (notes / "loop").symlink_to(notes)
    (notes / "gone.md").symlink_to(notes / "nothing")
    os.mkfifo(notes / "pipe.md")
    (notes / "binary.md").write_bytes(b"deploy staging\x00\x01")
    (notes / "empty.md").write_text("")
    (notes / "directory.md").mkdir()
    (notes / ".hidden").mkdir()
    (notes / ".hidden" / "x.md").write_text("deploy staging")
    odd = os.fsencode(notes) + b"/\xff\xfe\n'; DROP.md"
    Path(os.fsdecode(odd)).write_bytes(b"\xff\xfe deploy to staging \xc3\x28")
    hits = search(index, "deploy staging")
    assert {os.fsencode(hit.path) for hit in hits} == {odd, os.fsencode(notes / "deploy.md")}
    assert search(index, "deploy staging") == hits


def test_a_directory_that_does_not_exist_holds_nothing_yet(tmp_path: Path) -> None:
    index = MemoryIndex(tmp_path / "later", refresh_every=0)
    assert search(index, "deploy staging") == []
    write(tmp_path / "later", deploy="deploy to staging")
    assert names(search(index, "deploy staging")) == ["deploy.md"]


def test_the_number_of_files_is_bounded(notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MAX_FILES", 2)
    index = MemoryIndex(notes)
    assert sorted(names(search(index, "deploy staging database onions leeks", 9))) == ["cooking.md", "database.md"]


def test_two_thousand_files_are_indexed_quickly_and_searched_at_once(tmp_path: Path) -> None:
    for number in range(2_000):
        text = " ".join(f"word{(number * 7 + i) % 900}" for i in range(120))
        (tmp_path / f"note{number}.md").write_text(f"# Note {number}\n{text}")
    (tmp_path / "wanted.md").write_text("The heron nests behind the windmill")
    index = MemoryIndex(tmp_path, tmp_path / "cache" / "index.db")
    began = time.perf_counter()
    assert names(search(index, "where does the heron nest, near the windmill?")) == ["wanted.md"]
    first = time.perf_counter() - began
    began = time.perf_counter()
    assert names(search(index, "heron windmill")) == ["wanted.md"]
    assert first < 10 and time.perf_counter() - began < 0.5  # usually 0.6 s and 2 ms
    index.close()


# ── the cache file ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_cache_is_taken_up_again_without_reading_the_files(
    notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "deep" / "index.db"
    first = MemoryIndex(notes, cache)
    assert names(search(first, "deploy staging")) == ["deploy.md"]
    first.close()
    monkeypatch.setattr(memory, "_read", lambda path: pytest.fail(f"read again: {path}"))
    assert names(search(MemoryIndex(notes, cache), "deploy staging")) == ["deploy.md"]
    assert cache.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("content", [b"no database at all" * 500, b"", b"SQLite format 3\x00" + b"\xff" * 4096])
def test_a_damaged_cache_is_made_anew(notes: Path, tmp_path: Path, content: bytes) -> None:
    cache = tmp_path / "index.db"
    cache.write_bytes(content)
    assert names(search(MemoryIndex(notes, cache), "deploy staging")) == ["deploy.md"]
    with sqlite3.connect(cache) as connection:
        assert connection.execute("SELECT count(*) FROM files").fetchone() == (3,)
    connection.close()


def test_the_cache_of_another_directory_does_not_answer_for_this_one(notes: Path, tmp_path: Path) -> None:
    write(tmp_path / "other", garden="deploy roses to staging")
    cache = tmp_path / "index.db"
    search(MemoryIndex(notes, cache), "deploy staging")
    assert names(search(MemoryIndex(tmp_path / "other", cache), "deploy staging")) == ["garden.md"]


def test_where_no_cache_can_be_written_the_index_lives_in_memory(notes: Path) -> None:
    assert names(search(MemoryIndex(notes, Path("/proc/none/index.db")), "deploy staging")) == ["deploy.md"]


def test_two_indexes_share_one_cache(notes: Path, tmp_path: Path) -> None:
    one, other = (MemoryIndex(notes, tmp_path / "index.db", refresh_every=0) for _ in range(2))
    assert names(search(one, "deploy staging")) == names(search(other, "deploy staging")) == ["deploy.md"]
    for number, index in enumerate([one, other, one, other]):
        write(notes, **{f"heron{number}": "the heron nests"})
        assert len(search(index, "heron nest", 9)) == number + 1
    (notes / "heron0.md").unlink()
    assert len(search(one, "heron nest", 9)) == len(search(other, "heron nest", 9)) == 3


def test_a_cache_that_breaks_while_in_use_is_replaced_by_one_in_memory(notes: Path, tmp_path: Path) -> None:
    cache = tmp_path / "index.db"
    index = MemoryIndex(notes, cache, refresh_every=0)
    search(index, "deploy staging")
    with sqlite3.connect(cache) as connection:
        connection.execute("DROP TABLE files")
    connection.close()
    assert names(search(index, "deploy staging")) == ["deploy.md"]


# ── threads ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_cancelled_search_ends_its_work_at_the_next_file(notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, go, read = threading.Event(), threading.Event(), []

    def slow(path: Path) -> str:
        read.append(path.name)
        reached.set()
        assert go.wait(10)
        return "text"

    monkeypatch.setattr(memory, "_read", slow)
    index = MemoryIndex(notes)

    async def main() -> None:
        task = asyncio.create_task(index.search("deploy staging"))
        await asyncio.to_thread(reached.wait, 10)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()  # it waits for its thread
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert read == ["cooking.md"]
    index.close()


def test_a_closed_index_finds_nothing_and_leaves_no_thread(index: MemoryIndex) -> None:
    assert search(index, "deploy staging")
    (thread,) = index._thread._threads
    index.close()
    index.close()
    assert search(index, "deploy staging") == []
    thread.join(10)
    assert not thread.is_alive()
