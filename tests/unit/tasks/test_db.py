"""Opening, refusing, reading and writing: what `Database` promises, on files as they are found in the world."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tasks import events, registry, sessions, upgrade
from tasks.db import HEAD_REVISION, Database, DatabaseError
from tasks.records import NewTask
from tasks.registry import TaskFilter
from tests.unit.tasks.support import ROOT, Store, open_store, outputs, start_python

COUNT = "import sys; from tasks.db import Database; db = Database.open(sys.argv[1])\n"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """All of this file is about an SQLite file."""
    made = open_store(tmp_path)
    yield made
    made.db.close()


def refusal(path: object) -> str:
    with pytest.raises(DatabaseError) as refused:
        Database.open(str(path))
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_every_connection_has_the_settings(store: Store) -> None:
    def settings(conn: object) -> list[object]:
        names = ("journal_mode", "foreign_keys", "busy_timeout", "synchronous")
        return [conn.value(f"PRAGMA {name}") for name in names]

    assert store.db.read(settings) == store.db.write(settings) == ["wal", 1, 10_000, 1]


def test_a_write_that_raises_leaves_nothing(store: Store) -> None:
    before = store.read(events.last_id)

    def fail(conn: object) -> None:
        events.add(conn, store.session_id, None, "note")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.db.write(fail)
    assert store.read(events.last_id) == before


def test_what_a_read_writes_is_rolled_back(store: Store) -> None:
    before = store.read(events.last_id)
    store.read(events.add, store.session_id, None, "note")
    assert store.read(events.last_id) == before


def test_a_read_sees_one_state_while_others_write(store: Store) -> None:
    def look(conn: object) -> list[int]:
        first = events.last_id(conn)
        store.write(events.add, store.session_id, None, "note")
        return [first, events.last_id(conn)]

    first, second = store.db.read(look)
    assert first == second


def test_a_query_reads_and_cannot_write(store: Store) -> None:
    assert store.db.query("SELECT 1 AS one, 'x' AS x") == (["one", "x"], [(1, "x")])
    assert store.db.query("PRAGMA table_info(events)")[1]
    assert store.db.query("EXPLAIN QUERY PLAN SELECT * FROM v_tasks")[1]
    assert store.db.query("PRAGMA journal_mode")[1] == [("wal",)]
    for sql in ("nonsense", "SELECT 1; DELETE FROM events"):
        with pytest.raises(DatabaseError, match="gave an error"):
            store.db.query(sql)
    store.write(events.add, store.session_id, None, "note")


@pytest.mark.parametrize(
    "sql",
    ["DELETE FROM events", "DROP TABLE events", "INSERT INTO events (id) VALUES (1)", "CREATE TEMP TABLE t (a)", "ANALYZE",
     "ATTACH DATABASE '{made}' AS x", "DETACH x", "PRAGMA journal_mode=DELETE", "PRAGMA wal_checkpoint", "COMMIT", "BEGIN",
     "SAVEPOINT a", "PRAGMA writable_schema=1"],
)  # fmt: skip
def test_a_query_that_would_do_more_than_read_is_refused_in_words(store: Store, tmp_path: Path, sql: str) -> None:
    made = tmp_path / "made.db"
    with pytest.raises(DatabaseError, match="is only read by this command") as refused:
        store.db.query(sql.format(made=made))
    assert refused.value.exit_code == 2 and not made.exists()
    store.write(events.add, store.session_id, None, "note")


def test_a_held_lock_is_waited_for_and_then_said_in_one_sentence(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.db.TRIES", 2)
    with closing(sqlite3.connect(store.db.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        run = []

        def impatient(conn: object) -> None:
            run.append(1)

        store.db.read(lambda conn: None)
        with store.db.pool.connection() as connection:  # the pool gives this connection to the write below
            connection.execute("PRAGMA busy_timeout=20")
        with pytest.raises(DatabaseError, match="is busy: another process holds its write lock"):
            store.db.write(impatient)
        assert run == []
        other.execute("ROLLBACK")
    store.db.write(impatient)
    assert run == [1]


def test_a_full_disk_is_said_and_what_was_stored_stays(store: Store) -> None:
    def fill(conn: object) -> None:
        conn.execute("PRAGMA max_page_count=1")  # not below the present size: no page can be added
        for _ in range(200):
            events.add(conn, store.session_id, None, "note", {"text": "x" * 10_000})

    with pytest.raises(DatabaseError, match="the disk is full"):
        store.db.write(fill)
    assert [event.kind for event in store.read(events.since)] == ["session_created"]
    assert store.db.check() == []


def test_a_backup_holds_all_that_is_committed(store: Store, tmp_path: Path) -> None:
    store.task()
    copy = Database.open(store.db.backup(tmp_path / "copy.db"))
    assert copy.query("SELECT count(*) FROM tasks")[1] == [(1,)]
    copy.close()
    with pytest.raises(DatabaseError, match="no backup could be written to"):
        store.db.backup(tmp_path / "missing" / "copy.db")
    assert not (tmp_path / "missing").exists()


def test_a_missing_file_is_made_with_its_directory_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "store.db"
    Database.open(path).close()
    assert sorted(p.name for p in path.parent.iterdir()) == ["store.db", "store.db.lock"]


@pytest.mark.parametrize("name", ["a b", "100%", "ünï", "q?x=1#y"])
def test_any_name_of_a_file_will_do(tmp_path: Path, name: str) -> None:
    Database.open(tmp_path / name / "store.db").close()
    assert (tmp_path / name / "store.db").is_file()


def test_a_url_of_a_file_is_the_file(tmp_path: Path) -> None:
    db = Database.open(f"sqlite:///{tmp_path}/store.db")
    assert db.path == tmp_path / "store.db"
    db.close()


@pytest.mark.parametrize(("url", "says"), [
    ("sqlite://", "must be a file"),
    ("sqlite:///:memory:", "must be a file"),
    ("mysql://h/d", "is no database we can use"),
    ("://", "cannot be read"),
])  # fmt: skip
def test_a_url_we_cannot_use_is_refused(url: str, says: str) -> None:
    assert says in refusal(url)


def test_an_empty_file_is_refused_and_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.touch()
    assert f"{path} is empty (0 bytes)" in refusal(path)
    assert path.stat().st_size == 0


def test_what_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    for content in (b"hello", b"x" * 10_000):
        path.write_bytes(content)
        assert f"{path} is not an SQLite database" in refusal(path)
        assert path.read_bytes() == content
    assert "is not a file" in refusal(tmp_path)


def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE songs (id)")
    assert "is not one of this program" in refusal(path)
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("songs",)]


@pytest.mark.parametrize("share", [0.02, 0.3, 0.7, 0.99])
def test_a_cut_off_file_is_refused_and_left_alone(store: Store, tmp_path: Path, share: float) -> None:
    for _ in range(50):
        store.task(prompt="x" * 2000)
    whole = store.db.backup(tmp_path / "whole.db").read_bytes()
    path = tmp_path / "cut.db"
    path.write_bytes(whole[: int(len(whole) * share)])
    before = path.read_bytes()
    assert "damaged" in refusal(path) or "not an SQLite database" in refusal(path)
    assert path.read_bytes() == before


def test_damage_found_while_reading_is_one_sentence(store: Store, tmp_path: Path) -> None:
    for _ in range(200):
        store.task(prompt="x" * 2000)
    path = store.db.backup(tmp_path / "whole.db")
    content = bytearray(path.read_bytes())
    content[8192:] = b"\xff" * (len(content) - 8192)
    path.write_bytes(content)
    try:
        db = Database.open(path)
        with pytest.raises(DatabaseError, match="damaged"):
            db.query("SELECT prompt FROM tasks")
        db.close()
    except DatabaseError as refused:
        assert "damaged" in str(refused)


def test_a_log_without_its_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store.db-wal").write_bytes(b"x")
    assert "is missing, but its write-ahead log" in refusal(tmp_path / "store.db")
    assert not (tmp_path / "store.db").exists()


def test_a_file_that_goes_away_while_it_is_open_is_not_made_anew(store: Store) -> None:
    assert store.db.path is not None
    store.db.close()
    for path in store.db.path.parent.iterdir():
        path.unlink()
    with pytest.raises(DatabaseError, match="cannot be opened"):
        store.db.read(events.last_id)
    assert list(store.db.path.parent.iterdir()) == []


def test_a_newer_file_is_refused_and_not_changed(store: Store) -> None:
    store.db.write(lambda conn: conn.execute("UPDATE alembic_version SET version_num = '0999'"))
    store.db.close()
    assert store.db.path is not None
    before = store.db.path.read_bytes()
    said = refusal(store.db.path)
    assert f"{store.db.path} was made by a newer version" in said and "0999" in said
    assert store.db.path.read_bytes() == before
    assert [p.name for p in store.db.path.parent.iterdir() if "backup" in p.name] == []


def test_a_directory_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "cannot be" in refusal(tmp_path / "file" / "store.db")


UNPRIVILEGED = "import os, sys; os.setgid(65534); os.setuid(65534)\n"
TELL = """
from tasks.db import Database, DatabaseError
try:
    db = Database.open(sys.argv[1])
    db.write(lambda conn: conn.execute("UPDATE sessions SET fence = fence"))
except DatabaseError as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
def test_a_read_only_directory_is_one_sentence(store: Store) -> None:
    assert store.db.path is not None
    store.db.close()
    store.db.path.parent.chmod(0o555)
    for parent in store.db.path.parent.parents:
        if not parent.stat().st_mode & 0o001:  # closed to others: pytest's own, below the directory for temporary files
            assert parent.is_relative_to(tempfile.gettempdir())
            parent.chmod(parent.stat().st_mode | 0o055)
    # The packages are imported before the change of user: the tree may be closed to others.
    imports = "import sys, psutil, sqlite3; from tasks import db, sessions; from tasks.db import Database\n"
    for target in (store.db.path, store.db.path.with_name("new.db")):
        [out] = outputs([start_python(imports + UNPRIVILEGED + TELL, target)])
        assert len(out.splitlines()) == 1 and ("read-only" in out or "Permission denied" in out), out
    assert not store.db.path.with_name("new.db").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a small file system")
def test_a_full_file_system_is_one_sentence_and_the_file_stays_sound(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", small], capture_output=True).returncode:
        pytest.skip("cannot mount")
    try:
        db = Database.open(small / "store.db")
        with pytest.raises(DatabaseError, match="disk"):
            for _ in range(100):
                db.write(lambda conn: conn.execute("CREATE TABLE IF NOT EXISTS x AS SELECT randomblob(100000) AS b"))
                db.write(lambda conn: conn.execute("INSERT INTO x SELECT randomblob(100000)"))
        assert db.check() == []
        db.close()
    finally:
        subprocess.run(["umount", small], check=True)


def test_opening_a_current_file_imports_no_alembic_and_takes_no_lock(store: Store) -> None:
    assert store.db.path is not None
    store.db.path.with_name("store.db.lock").unlink(missing_ok=True)
    code = COUNT + "print([m for m in ('alembic', 'mako', 'psutil', 'worker_agent') if m in sys.modules])"
    assert outputs([start_python(code, store.db.path)]) == ["[]\n"]
    assert not store.db.path.with_name("store.db.lock").exists()


def test_the_constant_is_the_newest_revision() -> None:
    names = sorted(path.name for path in (ROOT / "migrations" / "versions").glob("[0-9]*.py"))
    assert names[-1].startswith(HEAD_REVISION + "_")


READ_MODIFY_WRITE = COUNT + """
def add(conn):
    value = conn.value("SELECT fence FROM sessions")
    conn.execute(f"UPDATE sessions SET fence = {value + 1}")
for _ in range(60):
    db.write(add)
"""  # fmt: skip


@pytest.mark.slow
def test_eight_processes_of_sixty_increments_lose_none(store: Store) -> None:
    outputs([start_python(READ_MODIFY_WRITE, store.db.path) for _ in range(8)])
    assert store.db.query("SELECT fence FROM sessions")[1] == [(480 + store.fence,)]


SIX = """
import sys; sys.stdin.readline(); from tasks.db import Database
Database.open(sys.argv[1]).query("SELECT * FROM v_tasks")
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_six_first_starts_at_once_all_succeed(tmp_path: Path) -> None:
    for number in range(5):
        directory = tmp_path / str(number)
        six = [start_python(SIX, directory / "store.db") for _ in range(6)]
        for process in six:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        outputs(six)
        assert sorted(p.name for p in directory.iterdir() if "-" not in p.name) == ["store.db", "store.db.lock"]


@pytest.mark.slow
def test_a_thousand_tasks_are_listed_quickly_while_eight_processes_write(store: Store) -> None:
    def fill(conn: object) -> None:
        for _ in range(10):
            session = sessions.create(conn, goal="g", cwd="/", model=None, options={})
            for _ in range(100):
                registry.create(conn, NewTask(session_id=session.id, description="d", prompt="p" * 2000))

    store.db.write(fill)
    writers = [start_python(HEAVY, store.db.path, f"s{n}") for n in range(8)]
    for process in writers:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    began = time.monotonic()
    listed = store.read(registry.list_tasks, TaskFilter(texts=False))
    took = time.monotonic() - began
    for process in writers:
        process.kill()
        process.communicate()
    assert len(listed) == 1000
    assert took < 1.0, f"{took:.3f} s"  # 0.02 s on an idle machine


HEAVY = COUNT + """
from tasks import events, sessions
db.write(lambda c: sessions.create(c, id=sys.argv[2], goal="g", cwd="/", model=None, options={}))
print("ready", flush=True)
while True:
    db.write(lambda c: [events.add(c, sys.argv[2], None, "pair", {"text": "x" * 3000}) for _ in range(2)])
"""  # fmt: skip


@pytest.mark.slow
def test_a_kill_in_the_middle_of_heavy_writes_leaves_a_sound_file(tmp_path: Path) -> None:
    for number in range(5):
        process = start_python(HEAVY, tmp_path / f"{number}.db", "s1")
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        with Database.open(tmp_path / f"{number}.db").pool.connection() as connection:
            while connection.value("SELECT count(*) FROM events") < 20 + 30 * number:
                pass
        process.kill()
        process.communicate()
        db = Database.open(tmp_path / f"{number}.db")
        assert db.check() == []
        assert db.query("SELECT count(*) % 2 FROM events WHERE kind = 'pair'")[1] == [(0,)]
        db.close()


def test_a_lock_held_for_too_long_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgrade, "LOCK_WAIT", 0.05)
    with upgrade._file_lock(tmp_path / "store.db"):
        assert "another process has held" in refusal(tmp_path / "store.db")
