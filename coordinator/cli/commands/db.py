"""`coordinator db`: where the database is, its schema, a copy of it, and reading it with SQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from coordinator.cli import render
from coordinator.cli.context import Context, common_options, pass_cli


@click.command("path", help="Print where the database is.")
@common_options
@pass_cli
def path(cli: Context) -> None:
    from tasks.engine import parse_place

    cli.console.line(parse_place(cli.database_place).name if "://" in cli.database_place else cli.database_place)


@click.command("upgrade", help="Bring the schema up to date; every command does so by itself when it starts.")
@common_options
@pass_cli
def upgrade(cli: Context) -> None:
    from tasks.db import HEAD_REVISION

    cli.console.note(f"{cli.database.name} has schema {HEAD_REVISION}")


@click.command("backup", help="Copy the database, with all that is committed, while others use it. Prints the copy's path.")
@click.argument("target", required=False, type=click.Path(dir_okay=False, path_type=Path))
@common_options
@pass_cli
def backup(cli: Context, target: Path | None) -> None:
    database = cli.database
    if target is None and database.path is not None:
        target = database.path.with_name(f"{database.path.name}.backup-{datetime.now():%Y%m%dT%H%M%S}")
    cli.console.line(str(database.backup(target or Path("coordinator.db.backup"))))


@click.command(
    "sql", help="Run one SQL statement that only reads; the views v_sessions, v_tasks, v_cost and v_events are made for it."
)
@click.argument("statement")
@click.option("--json", "as_json", is_flag=True, help="A list of objects instead of a table.")
@common_options
@pass_cli
def sql(cli: Context, statement: str, as_json: bool) -> None:
    names, rows = cli.database.query(statement)
    objects = [_object(names, row) for row in rows]
    if as_json:
        cli.console.json(objects)
    elif objects:
        cli.console.grid(render.table(objects))


def _object(names: Sequence[str], row: Sequence[Any]) -> dict[str, Any]:
    return {name: _plain(value) for name, value in zip(names, row, strict=True)}


def _plain(value: Any) -> Any:
    """A column's value as JSON knows it."""
    if isinstance(value, bytes):
        return value.hex()
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
