"""Agent definitions: where they come from, which wins, what is refused."""

from pathlib import Path

import pytest

from coordinator.agents import definitions as agents
from worker_agent.errors import ConfigError
from worker_agent.tools.trust import EVERYTHING, NOTHING

REVIEWER = """---
name: reviewer
description: Reviews changes
tools: Read, Grep, read_file
disallowedTools: [Bash]
model: haiku
permissionMode: manual
maxTurns: 5
color: red
---
You review.
"""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_worker_is_built_in_and_its_prompt_holds_nothing_that_varies() -> None:
    worker = agents.load(Path("/"), trust=NOTHING).get("worker")
    assert worker.tools is None and worker.prompt.startswith("You are a worker.")


def test_a_file_is_read_field_by_field() -> None:
    definition, problems = agents.parse(REVIEWER, Path("r.md"))
    assert definition == agents.AgentDefinition(
        name="reviewer",
        description="Reviews changes",
        prompt="You review.",
        tools=("Read", "Grep", "Read"),
        disallowed_tools=("Bash",),
        model="haiku",
        permission_mode="default",
        max_turns=5,
        source=Path("r.md"),
        extra={"color": "red"},
    )
    assert problems == []


def test_the_nearest_directory_wins_and_an_untrusted_one_does_not_count(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    home = tmp_path / "home"
    write(home / "agents" / "r.md", REVIEWER.replace("You review", "home"))
    write(tmp_path / ".claude/agents/deep/r.md", REVIEWER.replace("You review", "top"))
    write(inner / ".claude/agents/r.md", REVIEWER.replace("You review", "inner"))
    assert agents.load(inner, trust=EVERYTHING, user_dir=home).get("reviewer").prompt == "inner."
    assert agents.load(tmp_path, trust=EVERYTHING, user_dir=home).get("reviewer").prompt == "top."
    assert agents.load(inner, trust=NOTHING, user_dir=home).get("reviewer").prompt == "home."


def test_a_file_without_a_name_is_documentation(tmp_path: Path) -> None:
    assert agents.parse("# Just text", tmp_path) == (None, [])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("---\nname: A B\ndescription: x\n---\n", "lower case"),
        ("---\nname: ab\n---\n", "no description"),
        ("---\nname: ab\ndescription: x\ntools: ''\n---\n", "tools is empty"),
        ("---\nname: ab\ndescription: x\nmaxTurns: yes\n---\n", "whole number"),
        ("---\nname: ab\ndescription: x\neffort: huge\n---\n", "none of low"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        agents.parse(text, Path("x.md"))


def test_a_bad_file_becomes_a_problem_and_does_not_hide_the_others(tmp_path: Path) -> None:
    write(tmp_path / ".claude/agents/bad.md", "---\nname: ab\n---\n")
    write(tmp_path / ".claude/agents/good.md", REVIEWER)
    (tmp_path / ".claude/agents/binary.md").write_bytes(b"\xff\xfe\x00")
    loaded = agents.load(tmp_path, trust=EVERYTHING)
    assert sorted(p.source.name for p in loaded.problems if p.fatal) == ["bad.md", "binary.md"]
    assert loaded.get("reviewer").source == tmp_path / ".claude/agents/good.md"


def test_a_description_with_a_colon_is_still_read() -> None:
    text = "---\nname: ab\ndescription: Use when: the user asks\n---\nbody"
    definition, _ = agents.parse(text, Path("x.md"))
    assert definition is not None and definition.description == "Use when: the user asks"


def test_an_unknown_type_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there are: worker"):
        agents.load(tmp_path, trust=EVERYTHING).get("wizard")
