"""`coordinator cost`: what was spent. One row a model response lies in the view `v_cost`; this sums it."""

from __future__ import annotations

import click

from coordinator.cli import render
from coordinator.cli.context import Context, common_options, pass_cli
from coordinator.cli.lookup import find_session

KEYS = {"session": "session_id", "task": "task_id", "agent": "agent_id", "model": "model", "day": "day", "purpose": "purpose"}


@click.command("cost", help="What was spent: tokens and USD. A sum that holds an unknown price is shown as unknown.")
@click.option("--by", type=click.Choice(list(KEYS)), default="session", show_default=True, help="What to sum over.")
@click.option("--session", metavar="ID", help="Only this session.")
@click.option("--json", "as_json", is_flag=True, help="A list of objects.")
@common_options
@pass_cli
def cost(cli: Context, by: str, session: str | None, as_json: bool) -> None:
    where = f"WHERE session_id = '{find_session(cli, session).id}'" if session else ""
    names, rows = cli.database.query(_statement(KEYS[by], by, where))
    objects = [dict(zip(names, row, strict=True)) for row in rows]
    if as_json:
        cli.console.json(objects)
    elif objects:
        cli.console.grid(render.cost_grid(by, objects))
    else:
        cli.console.note("nothing was spent")


def _statement(key: str, name: str, where: str) -> str:
    return f"""
        SELECT {key} AS {name}, count(*) AS calls, sum(input_tokens) AS input_tokens,
               sum(cache_write_5m_tokens + cache_write_1h_tokens) AS cache_write_tokens,
               sum(cache_read_tokens) AS cache_read_tokens, sum(output_tokens) AS output_tokens,
               CASE WHEN count(*) = count(cost_usd) THEN sum(cost_usd) END AS cost_usd
        FROM v_cost {where} GROUP BY {key} ORDER BY max(at) DESC"""
