"""`coordinator trust`: what a repository brings counts only after a person said so, once, for that directory."""

from __future__ import annotations

from pathlib import Path

import click

from coordinator.cli.context import Context, common_options, pass_cli
from coordinator.cli.failures import Failure


@click.command("trust", help="Let a repository's own allow rules, hooks, agents and settings count. Deny rules always do.")
@click.argument("directory", default=".", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--revoke", is_flag=True, help="Trust it no more.")
@click.option("--list", "show", is_flag=True, help="Print the trusted directories.")
@common_options
@pass_cli
def trust(cli: Context, directory: Path, revoke: bool, show: bool) -> None:
    from worker_agent.tools.trust import TrustStore, repository_root

    store = TrustStore(cli.paths.trust)
    if show:
        cli.console.text("".join(f"{path}\n" for path in store.trusted()))
    elif revoke:
        if not store.revoke(directory):
            raise Failure(f"{repository_root(directory)} was not trusted")
        cli.console.note(f"{repository_root(directory)} is trusted no more")
    else:
        cli.paths.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        cli.console.note(f"{store.trust(directory)} is trusted")
