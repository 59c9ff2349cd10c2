"""What holds in a directory: whether it is trusted, and the defaults of its settings files."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from coordinator.cli import config_files, run_flags
from coordinator.cli.context import Context
from coordinator.cli.failures import Failure
from coordinator.views.exit_codes import ExitCode

if TYPE_CHECKING:
    from worker_agent.tools.trust import Trust


def trust_of(cli: Context, cwd: Path, *beside: Path) -> Trust:
    """What counts of the repository around `cwd`, and of those around directories `beside` it."""
    from worker_agent.tools.trust import TrustStore

    return TrustStore(cli.paths.trust).of(cwd.absolute(), *beside)


def user_config(cli: Context) -> Path:
    """The person's own settings file."""
    if cli.settings.home is not None:
        return cli.paths.home / "config.toml"
    import platformdirs

    return Path(platformdirs.user_config_dir("coordinator", appauthor=False)) / "config.toml"


def defaults(cli: Context, cwd: Path, command: click.Command) -> config_files.Defaults:
    """The defaults that settings files give the flags of `command` in `cwd`."""
    options = {str(p.name): p for p in command.params if isinstance(p, click.Option) and p.name and p.expose_value}
    found = config_files.read(user_config(cli), cwd, frozenset(options), lambda: trust_of(cli, cwd), run_flags.settings)
    for name, value in found.values.items():
        if (wanted := _other_than(options[name], value)) is not None:
            raise Failure(f"{found.origins[name]}: {name} must be {wanted}", ExitCode.USAGE)
    return found


def _other_than(option: click.Option, value: Any) -> str | None:
    """What the value of a flag must be in a settings file, None where it is that. click itself reads what people type, and
    takes numbers, lists and tables for text or fails at them."""
    if option.multiple:
        fits, wanted = all("\0" not in one for one in value), "a list of strings"  # `read` has seen that it is one
    elif option.is_flag:
        fits, wanted = isinstance(value, bool), "true or false"
    elif isinstance(option.type, click.types.IntParamType):
        fits, wanted = isinstance(value, int) and not isinstance(value, bool), "a whole number"
    elif isinstance(option.type, click.types.FloatParamType):
        fits, wanted = _is_number(value), "a number"
    elif option.type.name in ("duration", "tokens"):
        fits, wanted = _is_number(value) or _is_text(value), "a number or a string"
    else:
        fits, wanted = _is_text(value), "a string"
    return None if fits else wanted


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value


class ConfiguredCommand(click.Command):
    """A command whose flags get their defaults from settings files, and whose prompt is one argument."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        cli = parent.find_object(Context) if parent else extra.get("obj")
        if cli is not None and not extra.get("resilient_parsing"):
            found = defaults(cli, Path(_directory(args)), self)
            for note in found.notes:
                cli.console.note(note)
            extra["default_map"] = dict(found.values)
            try:
                return super().make_context(info_name, args, parent, **extra)
            except click.BadParameter as error:
                raise _named(error, found) from None
        return super().make_context(info_name, args, parent, **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            if not error.message.startswith("Got unexpected extra argument"):
                raise
            words = " ".join(itertools.takewhile(lambda arg: not arg.startswith("-"), given))[:60]
            hint = f'a prompt of several words stands in quotes: {ctx.command_path} "{words}"'
            raise click.UsageError(hint, ctx) from None


def _named(error: click.BadParameter, found: config_files.Defaults) -> click.BadParameter:
    """The error under the name of what the person wrote: a variable or a file, where it was no flag."""
    name = error.param.name if error.param else None
    source = error.ctx.get_parameter_source(name) if error.ctx and name else None
    if source is ParameterSource.ENVIRONMENT and error.param:
        hint = str(error.param.envvar)
    elif source is ParameterSource.DEFAULT_MAP and name is not None and name in found.origins:
        hint = f"{name} in {found.origins[name]}"
    else:
        return error
    return click.BadParameter(error.message, error.ctx, error.param, hint)


def _directory(args: list[str]) -> str:
    """What `--cwd` says, before the flags are parsed: their defaults depend on it."""
    for i, arg in enumerate(args):
        if arg == "--cwd" and i + 1 < len(args):
            return args[i + 1]
        if arg.startswith("--cwd="):
            return arg.removeprefix("--cwd=")
        if arg == "--":
            break
    return "."
