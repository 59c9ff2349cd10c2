"""Agent definitions: where they come from, which wins, what is refused."""

import asyncio
from pathlib import Path

import pytest

from coordinator.agents import definitions as agents
from coordinator.cli.commands.agents import validate
from coordinator.cli.context import Context
from coordinator.tools import agent_types
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


def test_the_other_built_in_kinds_cannot_write() -> None:
    kinds = agents.load(Path("/"), trust=NOTHING)
    explore, verifier = kinds.get("explore"), kinds.get("verifier")
    assert explore.tools == ("Read", "Grep", "Glob") and explore.model == agents.SMALL_MODEL
    assert verifier.tools is None and {"Edit", "Write", "NotebookEdit"} <= set(verifier.disallowed_tools)


def many(count: int, length: int) -> agents.Agents:
    text = "Use for the deployment of zebras. " + "x" * length
    more = {
        f"kind-{i}": agents.AgentDefinition(
            name=f"kind-{i}", description=text if i == 7 else "y" * length, prompt="p", source=Path("x")
        )
        for i in range(count)
    }
    return agents.Agents({**agents.builtin(), **more})


@pytest.mark.parametrize(
    ("count", "length", "whole"), [(10, 300, True), (40, 800, False), (246, 400, False), (5_000, 10, False)]
)
def test_however_many_kinds_there_are_a_request_tells_of_them_in_short(count: int, length: int, whole: bool) -> None:
    text, is_whole = agent_types.kinds(many(count, length))
    assert is_whole is whole and len(text) <= agent_types.LIST_CAP
    assert "- worker: Researches" in text and "kind-1" in text
    tool = agent_types.AgentTypesTool(many(count, length))
    for query in ("kind-7, nobody", "deploying zebras"):
        found = asyncio.run(tool.call({"query": query}, None))  # type: ignore[arg-type]  # it asks nothing of the context
        assert str(found.content).startswith("kind-7 (tools: all; model: the usual one)\nUse for the deployment"), query


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
    with pytest.raises(ConfigError, match="there are: explore, verifier, worker"):
        agents.load(tmp_path, trust=EVERYTHING).get("wizard")


HEAD = "---\nname: r\ndescription: x\n"


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("front", "tools", "removed", "denied"),
    [
        ("disallowedTools: Bash(git push *)", None, (), ("Bash(git push *)",)),
        ("disallowedTools: BASH", None, ("Bash",), ()),
        ("disallowedTools: '*'", None, ("*",), ()),
        ("disallowedTools: []", None, (), ()),
        ("disallowedTools: Bash, Edit(a,b), terminal", None, ("Bash", "Bash"), ("Edit(a,b)",)),
        ("disallowedTools:\n  - Bash\n  - Write", None, ("Bash", "Write"), ()),
        ("tools: []", (), (), ()),
        ("tools: Read\ncolor: 'red'", ("Read",), (), ()),
    ],
)
def test_a_fence_is_read_in_every_spelling(front: str, tools: object, removed: object, denied: object, newline: str) -> None:
    text = f"\ufeff{HEAD}{front}\n---\nbody".replace("\n", newline)
    definition, _ = agents.parse(text, Path("r.md"))
    assert definition is not None
    assert (definition.tools, definition.disallowed_tools, definition.denied) == (tools, removed, denied)
    assert definition.prompt == "body"


@pytest.mark.parametrize(
    ("front", "line", "why"),
    [
        ("disallowedTools:\n\t- Bash", 5, "no YAML"),
        ("disallowed_tools: Bash", 4, "write disallowedTools"),
        ("disallowed-tools: Bash", 4, "write disallowedTools"),
        ("DisallowedTools: Bash", 4, "write disallowedTools"),
        ("denied: Bash", 4, "write disallowedTools"),
        ("allowed-tools: Read", 4, "write tools"),
        ("permission_mode: plan", 4, "write permissionMode"),
        ("hook: {}", 4, "write hooks"),
        ("disallowedTools: Bash\ndisallowedTools: Read", 5, "twice"),
        ("hooks: {Stop: [], Stop: []}", 4, "twice"),
        ("a: &x [Bash]\ndisallowedTools: *x", 5, "alias"),
        ("disallowedTools: {Bash: true}", 4, "no list"),
        ("disallowedTools: [3]", 4, "no list"),
        ("disallowedTools: Bsah", 4, "no such tool"),
        ("disallowedTools: Bash(git", 4, "bracket"),
        ("hooks: {PreToolUse: x}", 4, "no list `hooks`"),
        ("? [a]\n: b", None, "no YAML"),
        ("- a", None, "no YAML"),
    ],
)
def test_a_fence_that_cannot_be_read_makes_the_agent_unusable(front: str, line: int | None, why: str) -> None:
    with pytest.raises(agents.Unusable, match=why) as refused:
        agents.parse(f"{HEAD}{front}\n---\nbody", Path("r.md"))
    ((where, _),) = refused.value.faults
    assert where == line or line is None


@pytest.mark.parametrize("text", ["---\nName: r\ndescription: x\n---\n", "---\nname: r\nx: y\n", "\n---\nname: r\n---\n"])
def test_what_looks_like_an_agent_is_not_taken_for_documentation(text: str) -> None:
    with pytest.raises(agents.Unusable):
        agents.parse(text, Path("r.md"))


def test_every_fault_is_told_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / ".claude/agents/r.md"
    write(path, f"{HEAD}tools: [3]\nmaxTurns: x\neffort: huge\n---\n")
    code = validate.main(["--cwd", str(tmp_path)], obj=Context(), standalone_mode=False)
    places = [line.split(": ")[:2] for line in capsys.readouterr().out.splitlines()]
    assert (code, places) == (2, [[f"{path}:{number}", "error"] for number in (4, 5, 6)])
