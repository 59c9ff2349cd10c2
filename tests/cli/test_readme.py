"""The README's tables are the program's own."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping

import pytest

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


@pytest.mark.slow
def test_the_files_that_are_shown_are_right(program: Program) -> None:
    """An agent, a skill, settings with a rule and a hook, flags of a project: as a reader would copy them."""
    agent, skill = re.findall(r"```markdown\n(.*?)```", README, re.DOTALL)
    (settings,) = re.findall(r"```json\n(.*?)```", README, re.DOTALL)
    (flags,) = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    for path, text in {
        program.home / ".claude/agents/reviewer.md": agent,
        program.home / ".claude/skills/release-notes/SKILL.md": skill,
        program.home / ".claude/settings.json": settings,
        program.cwd / ".coordinator/settings.toml": flags,
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = {kind: [one["name"] for one in program(kind, "list", "--json").json] for kind in ("agents", "skills")}
    checked = [program(kind, "validate") for kind in ("agents", "skills")]
    ruled = program("permissions", "test", "Bash(npm run test:unit)")
    listed = program("config", "list").out
    assert "reviewer" in found["agents"] and "release-notes" in found["skills"]
    assert [done.code for done in checked] == [0, 0], checked
    assert ruled.code == 0 and "npm run test" in ruled.out, ruled
    assert json.loads(settings)["hooks"] and all(name in listed for name in tomllib.loads(flags)), listed
