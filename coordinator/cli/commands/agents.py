"""`coordinator agents`: the agent definitions that hold in a directory, and what is wrong with definition files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from coordinator.agents.definitions import AgentDefinition, Agents, Problem, Unusable, definition_files, load, parse, read
from coordinator.cli import render
from coordinator.cli.context import Context, common_options, pass_cli
from coordinator.cli.directory import trust_of
from coordinator.views.exit_codes import ExitCode
from coordinator.views.terminal_text import one_line
from worker_agent.errors import ConfigError
from worker_agent.tools.trust import EVERYTHING

directory_option = click.option(
    "--cwd", type=click.Path(exists=True, file_okay=False, path_type=Path), default=Path("."), help="Another directory."
)


@click.command("list", help="List the agent definitions that hold here, the built-in one included.")
@click.option("--json", "as_json", is_flag=True, help="A list of objects.")
@directory_option
@common_options
@pass_cli
def list_agents(cli: Context, cwd: Path, as_json: bool) -> None:
    trust = trust_of(cli, cwd)
    agents = load(cwd.absolute(), trust=trust, user_dir=Path.home() / ".claude")
    rows = [agent_row(agent) for _, agent in sorted(agents.by_name.items())]
    if as_json:
        cli.console.json(rows)
    else:
        cli.console.grid(render.agent_grid(rows))
    _tell(cli, agents.problems)
    if not trust.trusted and (held := _held_back(cwd, agents)):
        cli.console.note(f"not counted until `coordinator trust`: {', '.join(held)}")


@click.command("validate", help="Check agent definition files, those of this directory if none is named.")
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@directory_option
@common_options
@pass_cli
def validate(cli: Context, files: tuple[Path, ...], cwd: Path) -> int:
    problems = _check(files if files else definition_files(cwd.absolute(), user_dir=Path.home() / ".claude"), bool(files))
    for problem in problems:
        word = "error" if problem.fatal else "note"
        where = f"{problem.source}:{problem.line}" if problem.line else str(problem.source)
        cli.console.line(f"{where}: {word}: {one_line(problem.text)}")
    return ExitCode.USAGE if any(problem.fatal for problem in problems) else ExitCode.DONE


def _check(files: Iterable[Path], named: bool) -> list[Problem]:
    """Every fault of the files; a file without a name is worth a note only where a person `named` it."""
    problems: list[Problem] = []
    for path in files:
        try:
            definition, notes = parse(read(path), path)
        except Unusable as error:
            problems += [Problem(path, text, line=line) for line, text in error.faults]
            continue
        except ConfigError as error:
            problems.append(Problem(path, str(error)))
            continue
        problems += notes
        if definition is None and named:
            problems.append(Problem(path, "has no name: it is read as documentation", fatal=False))
    return problems


def agent_row(agent: AgentDefinition) -> dict[str, object]:
    """A definition as in `agents list --json`."""
    return {
        "name": agent.name,
        "description": agent.description,
        "model": agent.model,
        "tools": list(agent.tools) if agent.tools is not None else None,
        "disallowed_tools": list(agent.disallowed_tools),
        "permission_mode": agent.permission_mode,
        "max_turns": agent.max_turns,
        "isolation": agent.isolation,
        "source": str(agent.source) if agent.source else None,
    }


def _held_back(cwd: Path, agents: Agents) -> list[str]:
    with_repository = load(cwd.absolute(), trust=EVERYTHING, user_dir=Path.home() / ".claude")
    return sorted(name for name, agent in with_repository.by_name.items() if agents.by_name.get(name) != agent)


def _tell(cli: Context, problems: tuple[Problem, ...]) -> None:
    for problem in problems:
        cli.console.note(f"{problem.source}: {one_line(problem.text)}")
