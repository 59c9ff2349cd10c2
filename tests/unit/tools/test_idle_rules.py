"""Rules that can match nothing are named, with why; those that may match something are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker_agent.tools.idle_rules import idle
from worker_agent.tools.rules import Places, RuleSet


def told(text: str, project: Path) -> tuple[str, ...]:
    rules = RuleSet.from_flags((), [text])
    assert rules.problems == () and rules.deny
    return idle(rules, Places(project, project.parent, (project,)))


@pytest.mark.parametrize(
    ("text", "why"),
    [("WebFetch(domain:https://x.org/)", "no host name"),
     ("Bash(cd x && rm *)", "Bash(cd x) Bash(rm *)"), ("Bash(ls | sh)", "each part"), ("Bash(a; b)", "each part"),
     ("Bash(ls > f)", "a redirection"), ("Edit(/usr/x)", "it is Edit(//usr/x)"), ("Read(/etc/**)", "it is Read(//etc/**)")],
)  # fmt: skip
def test_what_can_match_nothing_is_named(text: str, why: str, tmp_path: Path) -> None:
    (line,) = told(text, tmp_path)
    assert line.startswith(f"{text!r} in --disallowed-tools matches nothing: ") and why in line


@pytest.mark.parametrize(("text", "why"), [("Bsah", "did you mean Bash?"), ("Zzz", "no tool is called Zzz")])
def test_an_allow_rule_about_no_tool_is_named(text: str, why: str, tmp_path: Path) -> None:
    """As a deny or ask rule it stops the run: a fence must fit something."""
    (line,) = idle(RuleSet.from_flags([text]), Places(tmp_path, tmp_path.parent, (tmp_path,)))
    assert line.startswith(f"{text!r} in --allowed-tools matches nothing: ") and why in line


@pytest.mark.parametrize(
    "text",
    ["Bash", "Bash(rm *)", "Bash(FOO=1 make)", "Bash(sh -c 'a; b')", "Bash(echo $(ls))", "Bash(git push:*)",
     "Edit(/src/**)", "Edit(/nowhere/**)", "Edit(//etc/x)", "Edit(~/x)", "Read(./x)", "Read(*.pem)", "WebFetch(domain:*.x.org)",
     "mcp__nosuch", "mcp__nosuch__tool", "*", "mcp__*", "KillShell", "Task", "Task(x)", "Agent(nosuch)", "Skill(nosuch)",
     "TaskStop", "Bash(run_in_background:true)"],
)  # fmt: skip
def test_what_may_match_is_not(text: str, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    assert told(text, tmp_path) == ()
