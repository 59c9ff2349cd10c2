from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from tasks import models, outbox, registry, upgrade
from tasks.db import HEAD_REVISION, Database, DatabaseError
from tasks.migrating import connected
from tests.migrations import head
from tests.migrations.support import ROWS_0001, dump, make_file, upgraded

MIGRATIONS = Path(__file__).parents[2] / "migrations"


def script() -> ScriptDirectory:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return ScriptDirectory.from_config(config)


def test_there_is_one_head_and_the_constant_names_it() -> None:
    assert script().get_heads() == [HEAD_REVISION]


def test_revisions_are_numbered_in_a_row() -> None:
    numbers = [revision.revision for revision in reversed(list(script().walk_revisions()))]
    assert numbers == [f"{n:04}" for n in range(1, len(numbers) + 1)]


def test_a_new_file_is_what_the_revisions_make(tmp_path: Path) -> None:
    """Word for word, rows and pragmas too. When it fails: `python -m tests.migrations.head`."""
    Database.open(tmp_path / "store.db").close()
    head.migrated(tmp_path / "migrated.db")
    assert head.schema(tmp_path / "store.db") == head.schema(tmp_path / "migrated.db")
    assert head.FILE.read_text() == head.script()
    for question in ("SELECT * FROM alembic_version", "PRAGMA journal_mode", "PRAGMA page_size", "PRAGMA encoding",
                     "PRAGMA auto_vacuum", "PRAGMA user_version", "PRAGMA application_id"):  # fmt: skip
        with closing(sqlite3.connect(tmp_path / "store.db")) as new, closing(sqlite3.connect(tmp_path / "migrated.db")) as old:
            assert new.execute(question).fetchall() == old.execute(question).fetchall(), question


def test_a_new_file_is_made_without_alembic(tmp_path: Path) -> None:
    code = f"import sys\nfrom tasks.db import Database\nDatabase.open({str(tmp_path / 'a.db')!r}).close()\nprint('alembic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=MIGRATIONS.parent)
    assert done.stdout == "False\n", done.stderr


def test_the_schema_is_what_the_models_say(tmp_path: Path) -> None:
    db = Database.open(tmp_path / "store.db")
    with connected(db.place) as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, models.metadata) == []
    db.close()


def test_constraints_are_what_the_models_say(tmp_path: Path) -> None:
    """What the comparison above leaves out: checks, foreign keys' actions, ids that are never used twice."""
    from sqlalchemy import create_engine

    migrated = Database.open(tmp_path / "store.db")
    made = create_engine(f"sqlite:///{tmp_path}/made.db")
    models.metadata.create_all(made)
    with made.connect() as connection:
        ours = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
    _, theirs = migrated.query("SELECT name, sql FROM sqlite_master WHERE type = 'table' AND name <> 'alembic_version'")
    assert {name: parts(sql) for name, sql in ours if sql} == {name: parts(sql) for name, sql in theirs if sql}
    made.dispose()
    migrated.close()


def parts(sql: str) -> set[str]:
    """The definitions of a CREATE TABLE, whatever their order and spacing: what a later revision adds stands behind the
    last one, on its line."""
    inside = sql[sql.index("(") + 1 : sql.rindex(")")]
    return {" ".join(part.split()) for part in re.split(r",(?![^()]*\))", inside)}


def test_a_file_of_the_first_revision_opens_with_its_rows(tmp_path: Path) -> None:
    db = upgraded(tmp_path, "0001", ROWS_0001)
    assert db.read(lambda conn: registry.get(conn, "a00000001")).result == "ü"
    assert [d.task_id for d in db.read(lambda conn: outbox.waiting(conn, "s00000001"))] == ["a00000001"]
    db.close()


def test_a_task_of_the_first_revision_was_denied_nothing_and_may_be_told_so_now(tmp_path: Path) -> None:
    db = upgraded(tmp_path, "0001", ROWS_0001)
    assert db.read(lambda conn: registry.get(conn, "a00000001")).denied is None
    (delivery,) = db.read(lambda conn: outbox.waiting(conn, "s00000001"))
    assert "<denied>" not in delivery.body
    db.close()


@pytest.fixture
def next_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes this program one revision newer: `next_revision("op.execute(…)")` adds it after the real head."""
    package = tmp_path / "next" / "migrations"
    shutil.copytree(MIGRATIONS, package, ignore=shutil.ignore_patterns("__pycache__"))

    def add(body: str) -> str:
        number = f"{int(HEAD_REVISION) + 1:04}"
        source = (
            f"import sqlalchemy as sa\nfrom alembic import op\nrevision = {number!r}\n"
            f"down_revision = {HEAD_REVISION!r}\nbranch_labels = depends_on = None\n"
            f"def upgrade() -> None:\n    {body}\n"
        )
        (package / "versions" / f"{number}_next.py").write_text(source)
        monkeypatch.setattr(upgrade, "HEAD_REVISION", number)
        monkeypatch.setattr("importlib.resources.files", lambda name: package)
        return number

    return add


def old_file(tmp_path: Path) -> Path:
    return make_file(tmp_path / "store.db", HEAD_REVISION, ROWS_0001)


def test_an_older_file_is_backed_up_and_upgraded(tmp_path: Path, next_revision) -> None:
    path = old_file(tmp_path)
    before = dump(path)
    number = next_revision('op.add_column("sessions", sa.Column("colour", sa.Text()))')
    db = Database.open(path, clock=lambda: 1_800_000_000.5)
    assert db.query("SELECT version_num FROM alembic_version")[1] == [(number,)]
    assert db.query("SELECT id, colour FROM sessions")[1] == [("s00000001", None)]
    db.close()
    backup = tmp_path / f"store.db.backup-{HEAD_REVISION}-20270115T080000.500000Z"
    assert dump(backup) == before


def test_a_revision_may_remake_a_table_that_others_refer_to(tmp_path: Path, next_revision) -> None:
    path = old_file(tmp_path)
    remake = [
        "CREATE TABLE t2 AS SELECT * FROM sessions",
        "DELETE FROM sessions",
        "INSERT INTO sessions SELECT * FROM t2",
    ]
    next_revision("; ".join(f"op.execute({statement!r})" for statement in remake))
    db = Database.open(path)
    assert db.query("SELECT (SELECT count(*) FROM tasks), (SELECT count(*) FROM messages)")[1] == [(1, 1)]
    db.close()


@pytest.mark.parametrize(("body", "says"), [
    ('op.execute("DROP TABLE deliveries"); raise RuntimeError("half-way")', "half-way"),
    ('op.execute("DROP TABLE deliveries"); op.execute("SELECT * FROM nowhere")', "no such table: nowhere"),
    ('op.execute("DELETE FROM sessions")', "without the row it belongs to"),
])  # fmt: skip
def test_a_revision_that_fails_half_way_changes_nothing_and_names_the_backup(
    tmp_path: Path, next_revision, body: str, says: str
) -> None:
    path = old_file(tmp_path)
    before = dump(path)
    next_revision(body)
    with pytest.raises(DatabaseError) as refused:
        Database.open(path)
    [backup] = tmp_path.glob("store.db.backup-*")
    assert says in str(refused.value) and str(backup) in str(refused.value) and "\n" not in str(refused.value)
    assert dump(path) == dump(backup) == before


def test_without_room_for_a_backup_nothing_is_upgraded(tmp_path: Path, next_revision, monkeypatch: pytest.MonkeyPatch) -> None:
    path = old_file(tmp_path)
    before = dump(path)
    next_revision("pass")
    monkeypatch.setattr(upgrade, "_backup_name", lambda path, revision, now: tmp_path / "missing" / "copy")
    with pytest.raises(DatabaseError, match="no backup .* so it was not upgraded"):
        Database.open(path)
    assert dump(path) == before


def test_an_older_program_refuses_the_upgraded_file(tmp_path: Path, next_revision, monkeypatch: pytest.MonkeyPatch) -> None:
    path = old_file(tmp_path)
    next_revision("pass")
    Database.open(path).close()
    monkeypatch.setattr(upgrade, "HEAD_REVISION", HEAD_REVISION)
    with pytest.raises(DatabaseError, match="newer version"):
        Database.open(path)


def test_a_revision_imports_nothing_of_ours() -> None:
    for path in (MIGRATIONS / "versions").glob("[0-9]*.py"):
        source = path.read_text()
        assert not any(
            f"{verb} {package}" in source for verb in ("import", "from") for package in ("tasks", "coordinator", "worker_agent")
        )


def test_the_environment_refuses_to_run_by_itself() -> None:
    from alembic import command

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with pytest.raises(SystemExit, match="when a database is opened"):
        command.upgrade(config, "head")
    assert "alembic" in sys.modules
