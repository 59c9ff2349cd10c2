"""`coordinator skills`: the skills and command files that hold in a directory, one of them, and what is wrong with files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coordinator.cli import render
from coordinator.cli.context import Context, common_options, pass_cli
from coordinator.cli.directory import trust_of
from coordinator.cli.failures import Failure
from coordinator.cli.run_flags import DIRECTORY, flag
from coordinator.views.exit_codes import ExitCode
from coordinator.views.terminal_text import one_line

if TYPE_CHECKING:
    from worker_agent.skills import Skill, SkillIndex

plugin_dir = flag("--plugin-dir", "plugin_dirs", type=DIRECTORY, multiple=True, help="With the plugin in this directory, too.")
directory = click.option("--cwd", type=DIRECTORY, default=Path("."), help="Another directory.")


@click.command("list", help='List the skills and command files that hold here; `run "/name args"` uses one.')
@click.option("--json", "as_json", is_flag=True, help="A list of objects.")
@plugin_dir
@directory
@common_options
@pass_cli
def list_skills(cli: Context, as_json: bool, plugin_dirs: tuple[Path, ...], cwd: Path) -> None:
    index = _index(cli, cwd, plugin_dirs)
    rows = [_row(skill) for skill in index.discover()]
    if as_json:
        cli.console.json(rows)
    else:
        cli.console.grid(render.skill_grid(rows))
    for problem in index.problems:
        cli.console.note(one_line(f"{problem.file}: {problem.text}", 500))
    if not trust_of(cli, cwd).trusted and (held := _held_back(cwd)):
        cli.console.note(f"not counted until `coordinator trust`: {', '.join(held)}")


@click.command("show", help="Print a skill's text, as an agent gets it without arguments.")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="One object.")
@plugin_dir
@directory
@common_options
@pass_cli
def show(cli: Context, name: str, as_json: bool, plugin_dirs: tuple[Path, ...], cwd: Path) -> None:
    from worker_agent.errors import ConfigError

    index = _index(cli, cwd, plugin_dirs)
    try:
        skill, text = index.get(name), index.load(name)
    except ConfigError as error:
        raise Failure(str(error), ExitCode.NOT_FOUND) from None
    if as_json:
        cli.console.json(_row(skill) | {"text": text})
        return
    for pieces in render.fields(_row(skill).items()):
        cli.console.styled(pieces)
    cli.console.text(f"\n{text}\n")


@click.command("validate", help="Check skills, those of this directory if none is named: files, or directories that hold some.")
@click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path), metavar="[PATH...]")
@directory
@common_options
@pass_cli
def validate(cli: Context, paths: tuple[Path, ...], cwd: Path) -> int:
    code = ExitCode.DONE
    for file in _files(paths) if paths else _places(cwd):
        for word, text in _check(file):
            cli.console.line(f"{file}: {word}: {one_line(text)}")
            code = ExitCode.USAGE if word == "error" else code
    return code


def _index(cli: Context, cwd: Path, plugin_dirs: tuple[Path, ...]) -> SkillIndex:
    from coordinator.agents import plugins
    from coordinator.agents.slash import skill_index
    from worker_agent.tools.trust import repository_root

    here, trust = cwd.absolute(), trust_of(cli, cwd)
    found = plugins.load(repository_root(here), home=Path.home(), data=cli.paths.plugin_data, trust=trust, given=plugin_dirs)
    return skill_index(here, home=Path.home(), trust=trust, found=found)


def _held_back(cwd: Path) -> list[str]:
    from worker_agent.skills import Origin, SkillIndex

    return [s.name for s in SkillIndex(cwd.absolute(), trusted=True).discover() if s.origin is Origin.PROJECT]


def _files(paths: tuple[Path, ...]) -> Iterator[Path]:
    for path in paths:
        yield from sorted(path.rglob("SKILL.md")) if path.is_dir() else [path]


def _places(cwd: Path) -> Iterator[Path]:
    """The files of the project and the person."""
    from worker_agent.skills import files_of

    yield from files_of(cwd.absolute(), Path.home())


def _check(file: Path) -> Iterator[tuple[str, str]]:
    """Faults (`error`: it cannot be used) and departures from the standard (`note`)."""
    from worker_agent.errors import ConfigError
    from worker_agent.skills import HEAD_BYTES, Origin, breach, parse, read

    is_skill = file.name == "SKILL.md"
    called = file.parent.name if is_skill else file.stem
    try:
        text = read(file, HEAD_BYTES)
        skill = parse(text, file, called, Origin.PROJECT)
    except ConfigError as error:
        yield "error", str(error)
        return
    if not skill.description:
        yield "error", "has neither a description nor a first paragraph: nobody would know when to use it"
    if is_skill and (why := breach(text, called)) is not None:
        yield "note", f"departs from the standard: {why}"


def _row(skill: Skill) -> dict[str, Any]:
    return {
        "name": skill.name,
        "description": one_line(skill.description, 1_536),
        "origin": str(skill.origin),
        "argument_hint": skill.fields.get("argument-hint") if isinstance(skill.fields.get("argument-hint"), str) else None,
        "allowed_tools": list(skill.allowed_tools),
        "model_invocable": skill.model_invocable,
        "source": str(skill.file),
    }
