"""`coordinator mcp-serve`: runs and tasks as MCP tools on standard input and output, for another agent."""

from __future__ import annotations

from pathlib import Path

import click

from coordinator.cli.context import Context, common_options, pass_cli
from coordinator.cli.run_flags import DIRECTORY

NOT_FOR_ALL = ("resume", "continue_last", "fork_session", "session_id", "background", "output_format", "print_only", "cwd")


@click.command(
    "mcp-serve",
    help="Serve runs and tasks as MCP tools over standard input and output. Flags of `run` behind -- hold for every run "
    "that is started: coordinator mcp-serve -- --permission-mode acceptEdits --max-budget-usd 5",
)
@click.option("--may-approve", is_flag=True, help="Let the caller answer calls that wait for a person, too.")
@click.option("--cwd", type=DIRECTORY, default=Path("."), help="Runs work in this directory or below.")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[-- RUN FLAGS...]")
@common_options
@click.pass_context
@pass_cli
def mcp_serve(cli: Context, ctx: click.Context, may_approve: bool, cwd: Path, flags: tuple[str, ...]) -> None:
    from coordinator.cli.serving import Commands, server

    _check(ctx, flags)
    commands = Commands(cwd.absolute(), cli.paths.logs, flags, cli.database_url)
    server(commands, may_approve=may_approve).run("stdio")


def _check(ctx: click.Context, flags: tuple[str, ...]) -> None:
    """Flags that are wrong are said now, not to an agent later. Raises `click.UsageError`."""
    from coordinator.cli.commands.run import run

    with run.make_context("run", [*flags, "--", "goal"], parent=ctx) as parsed:
        for name in NOT_FOR_ALL:
            if parsed.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
                raise click.UsageError(f"{name.replace('_', ' ')} is decided for each run", ctx)
