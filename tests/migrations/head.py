"""What the revisions make of a new file, as SQL: `python -m tests.migrations.head` writes `migrations/head.sql`."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from tasks.migrating import migrate_sqlite

FILE = Path(__file__).parents[2] / "migrations" / "head.sql"
HEADER = "-- Written by `python -m tests.migrations.head` out of the revisions; a test holds it against them.\n"


def migrated(path: Path) -> None:
    """A new file at `path`, made by all revisions."""
    migrate_sqlite(path, create=True)


def schema(path: Path) -> list[tuple[str, str, str]]:
    """(type, name, text) of all that is defined in a file, in the order it was made."""
    with closing(sqlite3.connect(path)) as driver:
        return driver.execute(
            "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' ORDER BY rowid"
        ).fetchall()


def script() -> str:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "head.db"
        migrated(path)
        with closing(sqlite3.connect(path)) as driver:
            ((revision,),) = driver.execute("SELECT version_num FROM alembic_version").fetchall()
        statements = [f"{sql};\n" for _, _, sql in schema(path)]
    return "".join((HEADER, *statements, f"INSERT INTO alembic_version VALUES ('{revision}');\n"))


if __name__ == "__main__":
    FILE.write_text(script())
