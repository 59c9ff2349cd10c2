"""A command tree as a table: names, help and where each command lives, without importing any of them.

1. `--help` and completion of names read the table only; a command's module is imported when the command runs.
2. `help` in a command's place is its `--help`: `help run` is `run --help`.
3. A mistyped name suggests the nearest one. Text with a space in it is no name: it is a prompt for `chat`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import click


class Entry(NamedTuple):
    """One command. `target` is `module:attribute` below `coordinator.cli.commands`; a group has `members` instead."""

    help: str
    target: str = ""
    members: Mapping[str, Entry] = MappingProxyType({})
    short_for: str | None = None


class LazyGroup(click.Group):
    """A group over a table of entries. `fallback` names the member that gets a prompt typed in a command's place."""

    def __init__(self, *args: Any, entries: Mapping[str, Entry], fallback: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.entries = entries
        self.fallback = fallback

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self.entries.get(cmd_name)
        return None if entry is None else load(cmd_name, entry)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in self.entries:
            return super().resolve_command(ctx, args)
        if self.fallback and (any(c.isspace() for c in name) or not name):
            return self.fallback, self.get_command(ctx, self.fallback), args
        raise click.UsageError(unknown(name, list(self.entries), ctx), ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        whole = [(name, entry.help) for name, entry in self.entries.items() if not entry.short_for]
        short = [(name, f"short for `{e.short_for}`") for name, e in self.entries.items() if e.short_for]
        for title, rows in (("Commands", whole), ("Short forms", short)):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def load(name: str, entry: Entry) -> click.Command:
    """The command itself: a nested group of the table, or the object its module holds."""
    if entry.members:
        return LazyGroup(name=name, help=entry.help, entries=entry.members, no_args_is_help=False, invoke_without_command=True,
                         callback=_needs_member)  # fmt: skip
    module, _, attribute = entry.target.partition(":")
    command = getattr(importlib.import_module(f"coordinator.cli.commands.{module}"), attribute)
    assert isinstance(command, click.Command)
    return command


@click.pass_context
def _needs_member(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None:
        assert isinstance(ctx.command, LazyGroup)
        raise click.UsageError(f"{ctx.command_path} needs a command: {', '.join(ctx.command.entries)}", ctx)


def unknown(name: str, known: Sequence[str], ctx: click.Context) -> str:
    """What to say about a name that is no command."""
    import difflib

    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"see `{ctx.command_path} --help`"
    return f"no command {name!r}; {hint}"
