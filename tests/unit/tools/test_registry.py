from __future__ import annotations

import pytest

from tests.unit.tools.kit import Held
from worker_agent.tools.registry import ToolRegistry


def registry(*names: str) -> ToolRegistry:
    return ToolRegistry(Held(name=name) for name in names)


def test_the_order_is_the_same_whatever_order_the_tools_came_in() -> None:
    one = registry("Write", "mcp__a__x", "Bash", "Read")
    two = registry("Read", "Write", "mcp__a__x", "Bash")
    assert [t.name for t in one] == [t.name for t in two] == ["Bash", "Read", "Write", "mcp__a__x"]
    assert one.specs() == two.specs() and one.specs() is one.specs()


def test_the_old_name_of_agent_still_finds_it() -> None:
    tools = registry("Agent", "Read")
    assert tools.get("Task") is tools.get("Agent") is not None
    assert "Task" in tools and tools.get("Nothing") is None and len(tools) == 2


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two tools are named Read"):
        registry("Read", "Read")


@pytest.mark.parametrize(
    ("allowed", "left"),
    [
        (None, ["Agent", "Bash", "Read", "mcp__db__get", "mcp__db__put", "mcp__web__get"]),
        (["*"], ["Agent", "Bash", "Read", "mcp__db__get", "mcp__db__put", "mcp__web__get"]),
        ([], []),
        (["Read", "Nothing"], ["Read"]),
        (["Bash(git *)", "Task"], ["Agent", "Bash"]),
        (["mcp__db"], ["mcp__db__get", "mcp__db__put"]),
        (["mcp__db__*"], ["mcp__db__get", "mcp__db__put"]),
        (["mcp__web__get"], ["mcp__web__get"]),
        (["mcp__d"], []),
    ],
)
def test_an_allow_list_narrows(allowed: list[str] | None, left: list[str]) -> None:
    tools = registry("Agent", "Bash", "Read", "mcp__db__get", "mcp__db__put", "mcp__web__get")
    assert [t.name for t in tools.narrowed(allowed)] == left


def test_what_a_policy_removes_is_gone_even_if_allowed() -> None:
    tools = registry("Bash", "Read").narrowed(["Bash", "Read"], lambda name: name == "Bash")
    assert [s.name for s in tools.specs()] == ["Read"]


def test_entries_that_name_no_tool_are_told() -> None:
    assert registry("Bash", "mcp__db__get").unknown(["Bash(ls)", "Bassh", "mcp__db", "mcp__x"]) == ("Bassh", "mcp__x")


def test_the_builtin_set_has_every_tool_with_a_closed_schema_and_a_description() -> None:
    tools = ToolRegistry.builtin([Held(name="mcp__x__y")])
    names = "Bash Edit Glob Grep NotebookEdit Read TodoWrite WebFetch Write mcp__x__y"
    assert [t.name for t in tools] == names.split()
    for spec in tools.specs():
        assert spec.description and spec.input_schema["type"] == "object"
        assert spec.input_schema["additionalProperties"] is False
