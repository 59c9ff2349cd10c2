"""Running the revisions (`migrations/`): the only user of Alembic and of SQLAlchemy, imported only to upgrade."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, create_engine, event
from sqlalchemy.pool import NullPool

from tasks.engine import POSTGRES_LOCK, Place, configured_sqlite
from tasks.errors import DatabaseError

_ALEMBIC = threading.Lock()  # Alembic keeps its context in module globals


@contextmanager
def connected(place: Place, *, create: bool = False) -> Iterator[Connection]:
    """A connection as the revisions want one; it begins transactions with the write lock. `create` may make the file."""
    if place.path is not None:
        make = partial(configured_sqlite, place.path, create=create)
        engine = create_engine("sqlite://", creator=make, poolclass=NullPool)
        begin = "BEGIN IMMEDIATE"
    else:
        engine = create_engine((place.url or "").replace("postgresql://", "postgresql+psycopg://", 1), poolclass=NullPool)
        begin = f"SELECT pg_advisory_xact_lock({POSTGRES_LOCK})"

    @event.listens_for(engine, "begin")
    def lock(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def migrate_sqlite(path: Path, *, create: bool = False) -> None:
    """All revisions that are missing, in one transaction. Foreign keys are off while tables are remade, and checked
    before the commit."""
    with connected(Place(path, None, str(path)), create=create) as connection:
        driver: Any = connection.connection.driver_connection
        driver.execute("PRAGMA foreign_keys=OFF")
        with connection.begin():
            run_alembic(connection)
            broken = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
            if broken is not None:
                raise DatabaseError(f"table {broken[0]} has a row without the row it belongs to")
        driver.execute("PRAGMA foreign_keys=ON")


def migrate_server(place: Place) -> None:
    """The same for a server, whose lock the caller must not hold."""
    with connected(place) as connection, connection.begin():
        run_alembic(connection)


def run_alembic(connection: Connection, revision: str = "head") -> None:
    """Run the revisions up to `revision` inside the transaction of `connection`."""
    with _ALEMBIC, resources.as_file(resources.files("migrations")) as directory:
        config = Config()
        config.set_main_option("script_location", str(directory).replace("%", "%%"))
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
