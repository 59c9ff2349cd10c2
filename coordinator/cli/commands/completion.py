"""`coordinator completion SHELL`: the script that makes a shell complete commands, flags and ids."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from coordinator.cli.context import Context, pass_cli

VARIABLE = "_COORDINATOR_COMPLETE"
SHELLS = ("bash", "zsh", "fish")


@click.command("completion", help='Print the completion script of a shell. For bash: eval "$(coordinator completion bash)"')
@click.argument("shell", type=click.Choice(SHELLS))
@pass_cli
@click.pass_context
def completion(ctx: click.Context, cli: Context, shell: str) -> None:
    kind = get_completion_class(shell)
    assert kind is not None
    cli.console.line(kind(ctx.find_root().command, {}, "coordinator", VARIABLE).source())
