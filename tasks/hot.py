"""Statements of hot paths: described once in Core, compiled once a dialect, then handed straight to the driver.

Core's own execution costs 15–20 µs a statement, the statement itself 2–5 µs. Every message of every agent goes through
four of them, so the difference is the larger part of what remembering costs. Bound values go through the column types
as always (cleaning, JSON); results are raw, so a hot statement returns numbers only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Connection, Dialect, Table, bindparam, exc, insert
from sqlalchemy.sql import ClauseElement
from sqlalchemy.sql.compiler import SQLCompiler

Processor = Callable[[Any], Any]


class Hot:
    """`run(conn, name=value, …)` executes the statement with its named parameters in the connection's transaction."""

    def __init__(self, statement: ClauseElement) -> None:
        self._statement = statement
        self._prepared: dict[str, _Prepared] = {}

    def run(self, conn: Connection, **values: Any) -> Any:
        """The driver's cursor. Raises what Core raises."""
        dialect = conn.dialect
        prepared = self._prepared.get(dialect.name)
        if prepared is None:
            prepared = self._prepared[dialect.name] = _Prepared(self._statement, dialect)
        driver: Any = conn.connection.driver_connection
        try:
            return driver.execute(prepared.sql, prepared.bind(values))
        except dialect.loaded_dbapi.Error as error:
            raise exc.DBAPIError.instance(prepared.sql, None, error, dialect.loaded_dbapi.Error, dialect=dialect) from error

    def number(self, conn: Connection, **values: Any) -> int | None:
        """The first column of the first row; None without one."""
        row = self.run(conn, **values).fetchone()
        return None if row is None else row[0]


class _Prepared:
    """SQL in the driver's style, and how its parameters are bound."""

    def __init__(self, statement: ClauseElement, dialect: Dialect) -> None:
        compiled = statement.compile(dialect=dialect)
        assert isinstance(compiled, SQLCompiler)
        self.sql = str(compiled)
        self._order: list[str] | None = compiled.positiontup if compiled.positional else None
        names = compiled.bind_names
        found = {name: _processor(bind.type, dialect) for bind, name in names.items()}
        processors = {name: process for name, process in found.items() if process is not None}
        given = {name for bind, name in names.items() if bind.required}
        self._fixed = {name: processors[name](value) if name in processors else value
                       for name, value in compiled.params.items() if name not in given}  # fmt: skip
        self._processors = {name: process for name, process in processors.items() if name in given}

    def bind(self, values: Mapping[str, Any]) -> Any:
        bound = {**self._fixed, **values}
        for name, process in self._processors.items():
            bound[name] = process(bound[name])
        return bound if self._order is None else [bound[name] for name in self._order]


def _processor(type: Any, dialect: Dialect) -> Processor | None:
    found: Processor | None = type.dialect_impl(dialect).bind_processor(dialect)
    return found


def insert_all(table: Table, without: str | None = None) -> Hot:
    """An insert of every column, `without` the one that the database numbers."""
    return Hot(insert(table).inline().values({c.name: bindparam(c.name, type_=c.type) for c in table.c if c.name != without}))
