"""What every command has: the console, the settings, the database; each made when first asked for.

`common_options` adds the flags that stand before or after any command. Settings come from `worker_agent.config`, the only
reader of the environment; click reads the variables of its own flags.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import click

from coordinator.cli.console import Console
from coordinator.cli.failures import Failure
from coordinator.views.exit_codes import ExitCode

if TYPE_CHECKING:
    from coordinator.paths import Paths
    from tasks.db import Database
    from worker_agent.config import Settings

AnyCallable = TypeVar("AnyCallable", bound=Callable[..., Any])


class Context:
    """One per process. `database_url` is what `--db` said, a path or a URL, else None."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self.debug = False
        self.database_url: str | None = None
        self.result_format = ""  # of a run, once its flags are read
        self.session_id = ""  # of a run, once it has one
        self.has_result = False  # a run's result object is printed
        self._database: Database | None = None

    def show_tracebacks(self) -> None:
        self.debug = True

    def use_database(self, place: str) -> None:
        self.database_url = place

    def note_format(self, name: str) -> None:
        self.result_format = name

    def note_session(self, id: str) -> None:
        self.session_id = id

    def note_result(self) -> None:
        self.has_result = True

    @cached_property
    def settings(self) -> Settings:
        from worker_agent.config import Settings

        return Settings.from_env()

    @cached_property
    def paths(self) -> Paths:
        from coordinator.paths import Paths

        return Paths.of(self.settings)

    @property
    def database_place(self) -> str:
        """The path or URL of the database in use."""
        return self.database_url or str(self.paths.database)

    @property
    def database(self) -> Database:
        """The database, upgraded. The first start makes the one in the home directory; another one is made by a run only, so
        that a mistyped path is no empty database. Raises `Failure`."""
        if self._database is None:
            from tasks.db import Database

            if self.database_url:
                _must_exist(self.database_url)
            else:
                self.paths.home.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._database = Database.open(self.database_place)
        return self._database

    def now(self) -> float:
        return time.time()

    def close_database(self) -> None:
        """Give its connections back; the next use opens it again."""
        if self._database is not None:
            self._database.close()
            self._database = None

    def close(self) -> None:
        self.close_database()
        self.console.flush()


def _must_exist(place: str) -> None:
    from tasks.engine import parse_place

    path = parse_place(place).path
    if path is not None and not path.exists():
        raise Failure(
            f"there is no database {path}; --db (COORDINATOR_DATABASE_URL) names one that a run has made",
            ExitCode.USAGE,
        )


pass_cli = click.make_pass_decorator(Context)


def _set_debug(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(Context).show_tracebacks()


def _set_database(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    if value:
        ctx.ensure_object(Context).use_database(value)


def common_options(command: AnyCallable) -> AnyCallable:
    """`--db` and `--debug`, which may stand before or after the command's name."""
    command = click.option(
        "--debug", is_flag=True, envvar="COORDINATOR_DEBUG", expose_value=False, callback=_set_debug, help="Show tracebacks."
    )(command)
    return click.option(
        "--db",
        envvar="COORDINATOR_DATABASE_URL",
        metavar="PATH|URL",
        expose_value=False,
        callback=_set_database,
        help="Another database than the one in the home directory.",
    )(command)
