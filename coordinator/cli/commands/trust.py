"""`coordinator trust`: what a repository brings counts only after a person said so, for that directory and for what its
files grant now. What begins to count is listed, file by file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from coordinator.cli.context import Context, common_options, pass_cli
from coordinator.cli.failures import Failure
from coordinator.views.terminal_text import one_line

if TYPE_CHECKING:
    from worker_agent.tools.trust import Brought

MAX_LINE = 500  # columns


@click.command(
    "trust",
    help="Let a repository's own allow rules, hooks, agents and settings count, as they are now. Deny rules always do.",
)
@click.argument("directory", default=".", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--dry-run", is_flag=True, help="Only say what would count.")
@click.option("--revoke", is_flag=True, help="Trust it no more.")
@click.option("--list", "show", is_flag=True, help="Print the trusted directories.")
@common_options
@pass_cli
def trust(cli: Context, directory: Path, dry_run: bool, revoke: bool, show: bool) -> None:
    from worker_agent.tools.trust import TrustStore, repository_root

    store = TrustStore(cli.paths.trust)
    if show:
        cli.console.text("".join(f"{path}\n" for path in store.trusted()))
    elif revoke:
        if not store.revoke(directory):
            raise Failure(f"{repository_root(directory)} was not trusted")
        cli.console.note(f"{repository_root(directory)} is trusted no more")
    else:
        found = list(brought(directory.absolute()))
        for line in (line for one in found for line in _lines(one)):
            cli.console.note(line)
        if dry_run:
            return
        cli.paths.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        cli.console.note(f"{store.trust(directory, found)} is trusted")


def brought(directory: Path) -> Iterator[Brought]:
    """Every file that grants something in `directory`, as it is now."""
    from coordinator.agents import definitions as agents
    from coordinator.agents import plugins
    from coordinator.cli import config_files
    from worker_agent.tools import settings_files
    from worker_agent.tools.trust import repository_root

    yield from config_files.look(directory)
    for path, project in settings_files.project_files(directory, Path.home()):
        yield from settings_files.look(path, project)
    yield from agents.look(directory)
    yield from plugins.look(repository_root(directory))
    for project in dict.fromkeys((directory, repository_root(directory))):
        yield from settings_files.look_for_servers(project / ".mcp.json")


def _lines(one: Brought) -> Iterator[str]:
    """A file that grants something, and under it what, a line each; a file that cannot be used, with the reason."""
    if one.problem:
        yield one_line(f"{one.path} cannot be used: {one.problem.removeprefix(str(one.path)).lstrip(': ')}", MAX_LINE)
    elif one.grants:
        yield one_line(str(one.path), MAX_LINE)
        yield from (f"  {one_line(piece, MAX_LINE)}" for piece in one.words)
