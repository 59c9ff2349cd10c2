"""The README's tables are the program's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from coordinator.cli.failures import MEANINGS
from coordinator.cli.lazy import Entry
from coordinator.cli.table import COMMANDS
from tests.architecture.source import ROOT
from tests.cli.program import Program

README = (ROOT / "README.md").read_text(encoding="utf-8")


def rows(entries: Mapping[str, Entry], prefix: str = "coordinator ") -> Iterator[str]:
    for name, entry in entries.items():
        if entry.members:
            yield from rows(entry.members, f"{prefix}{name} ")
        elif not entry.short_for:
            yield f"| `{prefix}{name}` | {entry.help} |"


def test_the_table_of_commands_is_the_programs_own() -> None:
    table = README.split("## Commands\n\n")[1].split("\n\n")[0].splitlines()
    assert table[2:] == list(rows(COMMANDS))


def test_the_table_of_exit_codes_is_the_programs_own() -> None:
    table = README.split("## Exit codes\n\n")[1].split("\n\n")[0].splitlines()
    assert table[2:] == [f"| {int(code)} | {meaning} |" for code, meaning in MEANINGS.items()]


def test_help_lists_the_same_commands_with_the_same_words(program: Program) -> None:
    for group, entries in [((), COMMANDS), *(((name,), entry.members) for name, entry in COMMANDS.items() if entry.members)]:
        shown = " ".join(program(*group, "--help").out.split())
        for name, entry in entries.items():
            if not entry.short_for:
                assert f"{name} {entry.help}" in shown


def test_every_short_form_is_named() -> None:
    for name, entry in COMMANDS.items():
        assert not entry.short_for or f"`{name}`" in README
