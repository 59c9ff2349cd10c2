"""`coordinator config`: the settings in force with their origin, and where files lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from coordinator.cli import render
from coordinator.cli.commands.run import run
from coordinator.cli.context import Context, common_options, pass_cli
from coordinator.cli.directory import defaults, user_config

NOT_SETTINGS = frozenset({"prompt", "resume", "continue_last", "fork_session", "session_id", "background", "cwd"})


@click.command("list", help="List settings of `run` with their values here, and where each comes from.")
@click.option("--json", "as_json", is_flag=True, help="A list of objects.")
@common_options
@pass_cli
def list_config(cli: Context, as_json: bool) -> None:
    found = defaults(cli, Path.cwd(), run)
    with run.make_context("run", [], parent=None, obj=cli, default_map=dict(found.values)) as ctx:
        rows = [_row(ctx, option, found.origins) for option in run.params if _is_setting(option)]
    if as_json:
        cli.console.json(rows)
    else:
        cli.console.grid(render.table([row | {"value": _words(row["value"])} for row in rows]))


def _is_setting(option: click.Parameter) -> bool:
    return isinstance(option, click.Option) and bool(option.expose_value) and option.name not in NOT_SETTINGS


def _row(ctx: click.Context, option: click.Parameter, origins: Any) -> dict[str, Any]:
    assert option.name is not None
    source = ctx.get_parameter_source(option.name)
    value = ctx.params.get(option.name)
    match source:
        case ParameterSource.ENVIRONMENT:
            origin = str(option.envvar)
        case ParameterSource.DEFAULT_MAP:
            origin = str(origins.get(option.name, "settings file"))
        case _:
            origin = "default"
    plain = value if isinstance(value, (str, int, float, bool, type(None))) else [str(item) for item in value]
    return {"name": option.name, "value": plain, "origin": origin}


def _words(value: Any) -> str:
    return " ".join(value) if isinstance(value, list) else "" if value is None else str(value)


@click.command("path", help="Print where files lie, one kind a line.")
@click.option("--json", "as_json", is_flag=True, help="One object.")
@common_options
@pass_cli
def path(cli: Context, as_json: bool) -> None:
    from coordinator.cli.config_files import PROJECT_FILES

    places = {
        "home": str(cli.paths.home),
        "database": cli.database_place if "://" not in cli.database_place else "(another database: `coordinator db path`)",
        "logs": str(cli.paths.logs),
        "trust": str(cli.paths.trust),
        "user_config": str(user_config(cli)),
        "project_config": str(Path.cwd() / PROJECT_FILES[0]),
        "local_config": str(Path.cwd() / PROJECT_FILES[1]),
    }
    if as_json:
        cli.console.json(places)
    else:
        for line in render.fields(places.items()):
            cli.console.styled(line)
