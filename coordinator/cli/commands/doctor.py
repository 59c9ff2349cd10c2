"""`coordinator doctor`: one line for each thing this installation needs. It changes nothing, and calls a model with
`--endpoint` only."""

from __future__ import annotations

import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import asdict

from coordinator.cli import render
from coordinator.cli.context import Context, common_options, pass_cli
from coordinator.cli.credentials import credentials_problem
from coordinator.cli.directory import trust_of
from coordinator.cli.failures import Failure, translate
from coordinator.views.exit_codes import ExitCode
from coordinator.views.findings import Finding

if TYPE_CHECKING:
    from tasks.errors import StoreError

LOW_DISK = 512 * 1024 * 1024  # bytes


@click.command(
    "doctor",
    help="Check this installation: program, database, disk, search, git, confinement, credentials. Calls no model without --endpoint.",
)
@click.option("--json", "as_json", is_flag=True, help="A list of objects.")
@click.option("--endpoint", is_flag=True, help="Make three small calls and say what the endpoint can do, and nothing else.")
@click.option("--model", metavar="MODEL", help="With --endpoint: the model to ask.")
@common_options
@pass_cli
def doctor(cli: Context, as_json: bool, endpoint: bool, model: str | None) -> int:
    if model is not None and not endpoint:
        raise Failure("--model goes with --endpoint", ExitCode.USAGE)
    if endpoint:
        from coordinator.cli.endpoint import examined

        return _told(cli, *examined(cli.settings, model), as_json=as_json)
    findings = [finding for check in CHECKS for finding in check(cli)]
    failed = any(finding.state == "problem" for finding in findings)
    return _told(cli, findings, ExitCode.FAILED if failed else ExitCode.DONE, as_json=as_json)


def _told(cli: Context, findings: Sequence[Finding], code: ExitCode, *, as_json: bool) -> ExitCode:
    if as_json:
        cli.console.json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            cli.console.styled(render.finding_line(finding.name, finding.state, finding.text))
    return code


def _program(cli: Context) -> Iterator[Finding]:
    python = ".".join(map(str, sys.version_info[:3]))
    yield Finding(
        "program", "ok", f"coordinator {metadata.version('coordinator')}, Python {python}, SQLite {sqlite3.sqlite_version}"
    )


def _database(cli: Context) -> Iterator[Finding]:
    from tasks.errors import StoreError

    def look() -> Finding:
        wrong = cli.database.check()
        return Finding("database", "problem" if wrong else "ok", wrong[0] if wrong else cli.database.name)

    yield _or_problem("database", look, StoreError)


def _or_problem(name: str, look: Callable[[], Finding], error_class: type[StoreError]) -> Finding:
    try:
        return look()
    except (error_class, OSError, Failure) as error:
        return Finding(name, "problem", translate(error).message)


def _disk(cli: Context) -> Iterator[Finding]:
    place = next((path for path in (cli.paths.home, *cli.paths.home.parents) if path.exists()), None)
    if place is not None:
        free = shutil.disk_usage(place).free
        yield Finding("disk", "ok" if free > LOW_DISK else "note", f"{free / 1024**3:.1f} GiB free at {cli.paths.home}")


def _search(cli: Context) -> Iterator[Finding]:
    from worker_agent.tools.builtin import ripgrep

    found = ripgrep.program()
    yield Finding("ripgrep", "ok" if found else "problem", found or "not found: Grep and Glob cannot work")


def _git(cli: Context) -> Iterator[Finding]:
    found = shutil.which("git")
    yield Finding("git", "ok" if found else "note", found or "not found: worktrees cannot be used")


def _confinement(cli: Context) -> Iterator[Finding]:
    from worker_agent.tools.confinement import found

    means, why_not = found()
    if means is None:
        yield Finding("confinement", "note", f"none: {why_not}; shell commands run unconfined, more of them ask")
    else:
        yield Finding("confinement", "note" if means.lacks else "ok", means.describe())


def _rules(cli: Context) -> Iterator[Finding]:
    """Only what there is to say: files of rules that cannot be used, and rules that can match nothing."""
    from worker_agent.errors import ConfigError
    from worker_agent.tools import settings_files
    from worker_agent.tools.idle_rules import idle
    from worker_agent.tools.rules import Places

    here, home = Path.cwd(), Path.home()
    try:
        loaded = settings_files.load(here, home=home, trust=trust_of(cli, here))
    except ConfigError as error:
        yield Finding("rules", "problem", str(error))
        return
    for line in (*loaded.problems, *idle(loaded.rules, Places(here, home, (here,)))):
        yield Finding("rules", "note", line)


def _credentials(cli: Context) -> Iterator[Finding]:
    problem = credentials_problem()
    yield Finding("credentials", "note" if problem else "ok", problem or "found")


def _postgres(cli: Context) -> Iterator[Finding]:
    if "://" in cli.database_place and not cli.database_place.startswith("sqlite") and util.find_spec("psycopg") is None:
        yield Finding("postgresql", "problem", "the driver is missing: pip install 'coordinator[postgres]'")


CHECKS = (_program, _postgres, _database, _disk, _search, _git, _confinement, _rules, _credentials)
