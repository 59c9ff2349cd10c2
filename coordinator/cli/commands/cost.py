"""`coordinator cost`: what was spent. One row a model response lies in the view `v_cost`; this sums it."""

from __future__ import annotations

import click

from coordinator.cli import render
from coordinator.cli.context import Context, common_options, pass_cli
from coordinator.cli.lookup import find_session
from coordinator.views.costs import KEYS, sums


@click.command("cost", help="What was spent: tokens and USD. A sum that holds an unknown price is shown as unknown.")
@click.option("--by", type=click.Choice(list(KEYS)), default="session", show_default=True, help="What to sum over.")
@click.option("--session", metavar="ID", help="Only this session.")
@click.option("--json", "as_json", is_flag=True, help="A list of objects.")
@common_options
@pass_cli
def cost(cli: Context, by: str, session: str | None, as_json: bool) -> None:
    objects = sums(cli.database, by, find_session(cli, session).id if session else None)
    if as_json:
        cli.console.json(objects)
    elif objects:
        cli.console.grid(render.cost_grid(by, objects))
    else:
        cli.console.note("nothing was spent")
