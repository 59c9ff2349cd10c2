"""`coordinator plugins`: the plugins that hold in a directory, what each brings, and what is wrong with one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coordinator.cli import render
from coordinator.cli.context import Context, common_options, pass_cli
from coordinator.cli.directory import trust_of
from coordinator.cli.run_flags import DIRECTORY, flag
from coordinator.views.exit_codes import ExitCode
from coordinator.views.terminal_text import one_line

if TYPE_CHECKING:
    from coordinator.agents.plugins import Plugin


@click.command("list", help="List the plugins that hold here, with what each brings.")
@click.option("--json", "as_json", is_flag=True, help="A list of objects.")
@flag("--plugin-dir", "plugin_dirs", type=DIRECTORY, multiple=True, help="With the plugin in this directory, too.")
@click.option("--cwd", type=DIRECTORY, default=Path("."), help="Another directory.")
@common_options
@pass_cli
def list_plugins(cli: Context, as_json: bool, plugin_dirs: tuple[Path, ...], cwd: Path) -> None:
    from coordinator.agents import plugins
    from worker_agent.tools.trust import repository_root

    root, trust = repository_root(cwd.absolute()), trust_of(cli, cwd)
    found = plugins.load(root, home=Path.home(), data=cli.paths.plugin_data, trust=trust, given=plugin_dirs)
    rows = [_row(plugin) for plugin in found.found]
    if as_json:
        cli.console.json(rows)
    else:
        cli.console.grid(render.plugin_grid(rows))
    for problem in found.problems:
        cli.console.note(one_line(problem, 500))


@click.command("validate", help="Check the plugins in these directories; exits with 1 if one cannot be used or a part of it.")
@click.argument("directories", nargs=-1, required=True, type=DIRECTORY, metavar="DIR...")
@common_options
@pass_cli
def validate(cli: Context, directories: tuple[Path, ...]) -> int:
    from coordinator.agents import plugins
    from worker_agent.errors import ConfigError

    code = ExitCode.DONE
    for directory in directories:
        try:
            problems = plugins.read(directory, cli.paths.plugin_data).problems
        except ConfigError as error:
            problems = (str(error),)
        for problem in problems:
            cli.console.line(f"{directory}: {one_line(problem, 500)}")
        code = ExitCode.FAILED if problems else code
    return code


def _row(plugin: Plugin) -> dict[str, Any]:
    return {
        "name": plugin.name,
        "version": plugin.version,
        "description": plugin.description,
        "layout": str(plugin.kind),
        "source": str(plugin.root),
        "skills": list(plugin.skills),
        "agents": [agent.name for agent in plugin.agents],
        "hooks": sorted({group.event for group in plugin.hooks.groups}),
        "mcp_servers": [server.name for server in plugin.servers],
        "problems": list(plugin.problems),
    }
