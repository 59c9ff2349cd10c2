"""The order of the gates, the modes, what is free, and a worker's ceiling."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from worker_agent import tool_facts
from worker_agent.tools.base import Allow, Ask, Decision, Deny, Passthrough, Tool, ToolContext
from worker_agent.tools.permissions import Mode, Policy
from worker_agent.tools.rules import Behavior, RuleSet, Source
from worker_agent.tools.settings_files import LoadedSettings


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project/src").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    return tmp_path / "project"


def rules(**texts: list[str]) -> RuleSet:
    found = RuleSet()
    for behavior, values in texts.items():
        found += RuleSet.parse(Behavior(behavior), values, Source("settings.json", f"permissions.{behavior}"))
    return found


def policy(project: Path, mode: str = "default", **texts: list[str]) -> Policy:
    return Policy(mode=mode, rules=rules(**texts), cwd=project, roots=(project,), home=project.parent)


def says(policy: Policy, tool: str, **input: Any) -> str:
    return policy.explain(tool, input).behavior


class Opinionated(Tool):
    facts = tool_facts.EDIT

    def __init__(self, opinion: Decision) -> None:
        self.opinion = opinion

    async def check_permissions(self, input: Any, context: ToolContext) -> Decision:
        return self.opinion


def decide(policy: Policy, opinion: Decision, **input: Any) -> Decision:
    context = ToolContext(
        session_id="s", agent_id="a", cwd=policy.cwd, roots=policy.roots, spill_dir=policy.cwd, permissions=policy
    )
    return asyncio.run(policy.decide(Opinionated(opinion), {"file_path": "src/a", **input}, context))


def test_deny_comes_before_ask_before_allow_whatever_is_more_specific(project: Path) -> None:
    every = policy(project, deny=["Edit(src/**)"], ask=["Edit"], allow=["Edit(src/a.py)", "Edit(b.py)"])
    assert says(every, "Edit", file_path="src/a.py") == "deny"
    assert says(every, "Edit", file_path="b.py") == "ask"
    assert says(policy(project, allow=["Edit(b.py)"]), "Edit", file_path="b.py") == "allow"
    assert says(policy(project), "Edit", file_path="b.py") == "ask"


def test_a_verdict_names_the_deciding_rule_and_its_file(project: Path) -> None:
    verdict = policy(project, deny=["Bash(ls *)", "Bash(rm *)"]).explain("Bash", {"command": "make; rm p"})
    assert (verdict.behavior, verdict.rule and verdict.rule.text) == ("deny", "Bash(rm *)")
    assert verdict.source == "settings.json (permissions.deny[1])"
    assert policy(project, "acceptEdits").explain("Edit", {"file_path": "a"}).source == "mode acceptEdits"
    assert policy(project).explain("Edit", {"file_path": "a"}).source == "default"


def test_the_tools_own_check_stands_between_ask_rules_and_mode(project: Path) -> None:
    assert decide(policy(project, ask=["Edit"]), Allow()) == Ask("Edit asks")
    assert isinstance(decide(policy(project), Allow()), Allow)
    assert decide(policy(project, "bypassPermissions"), Deny("never")) == Deny("never")
    assert decide(policy(project, "acceptEdits"), Ask("sure?")) == Ask("sure?")
    assert isinstance(decide(policy(project, allow=["Edit"]), Ask("sure?")), Allow)
    assert isinstance(decide(policy(project, "acceptEdits"), Passthrough()), Allow)


def test_only_what_mode_and_default_ask_can_be_lifted_by_a_hook(project: Path) -> None:
    by_default = policy(project).explain("Edit", {"file_path": "a"}).decision
    by_rule = policy(project, ask=["Edit"]).explain("Edit", {"file_path": "a"}).decision
    assert isinstance(by_default, Ask) and not by_default.by_rule
    assert isinstance(by_rule, Ask) and by_rule.by_rule


def test_reading_inside_the_roots_is_free_and_outside_asks(project: Path) -> None:
    (project / "link").symlink_to(project.parent / "outside")
    default = policy(project)
    assert says(default, "Read", file_path=str(project / "src/a")) == "allow"
    assert says(default, "Read", file_path="src/a") == "allow"
    assert says(default, "Glob", pattern="**/*.py") == "allow"
    assert says(default, "Grep", pattern="x", path="src") == "allow"
    for path in ("../outside/a", "link/a", "/etc/passwd", "~/x"):
        assert says(default, "Read", file_path=path) == "ask", path
    assert says(default, "Glob", pattern="../outside/*") == "ask"
    assert says(default, "Glob", pattern="*", path="link") == "ask"
    assert says(default, "Grep", pattern="x", path="/etc") == "ask"


def test_tools_of_the_coordinator_and_the_list_run_by_themselves_unless_denied(project: Path) -> None:
    for tool in ("Agent", "SendMessage", "TaskStop", "TodoWrite"):
        assert says(policy(project), tool) == "allow"
        assert says(policy(project, deny=[tool]), tool) == "deny"
    assert says(policy(project, deny=["Agent(reviewer)"]), "Agent", subagent_type="reviewer") == "deny"
    assert says(policy(project, deny=["Agent(reviewer)"]), "Agent", subagent_type="worker") == "allow"
    assert says(policy(project, deny=["Agent(worker)"]), "Task") == "deny"


@pytest.mark.parametrize(
    ("mode", "read", "edit", "edit_outside", "bash", "fetch"),
    [
        ("default", "allow", "ask", "ask", "ask", "ask"),
        ("acceptEdits", "allow", "allow", "ask", "ask", "ask"),
        ("plan", "allow", "deny", "deny", "deny", "ask"),
        ("dontAsk", "allow", "deny", "deny", "deny", "deny"),
        ("bypassPermissions", "allow", "allow", "allow", "allow", "allow"),
    ],
)
def test_modes(project: Path, mode: str, read: str, edit: str, edit_outside: str, bash: str, fetch: str) -> None:
    one = policy(project, mode)
    assert says(one, "Read", file_path="a") == read
    assert says(one, "Write", file_path="a") == edit
    assert says(one, "Write", file_path="../outside/a") == edit_outside
    assert says(one, "Bash", command="make") == bash
    assert says(one, "WebFetch", url="https://example.com") == fetch


def test_manual_is_another_name_of_default() -> None:
    assert Policy(mode="manual").mode is Mode.DEFAULT
    with pytest.raises(ValueError):
        Policy(mode="whatever")


def test_accepted_edits_do_not_reach_what_runs_code_later(project: Path) -> None:
    one = policy(project, "acceptEdits")
    for path in (".git/hooks/pre-commit", ".claude/settings.json", "src/.vscode/tasks.json", ".mcp.json"):
        assert says(one, "Write", file_path=path) == "ask", path
    assert says(one, "Write", file_path=".github/x.yml") == "allow"


def test_accepted_edits_do_not_follow_a_link_outside(project: Path) -> None:
    (project / "link").symlink_to(project.parent / "outside")
    assert says(policy(project, "acceptEdits"), "Write", file_path="link/a") == "ask"


def test_a_read_deny_blocks_edits_and_searches_of_the_place(project: Path) -> None:
    one = policy(project, "acceptEdits", deny=["Read(secrets/**)", "Read(.env)"])
    assert says(one, "Read", file_path="secrets/a") == "deny"
    assert says(one, "Edit", file_path="secrets/a") == "deny"
    assert says(one, "Write", file_path="src/.env") == "deny"
    assert says(one, "Grep", pattern="x", path="secrets") == "deny"
    assert says(one, "Glob", pattern="secrets/*") == "deny"
    assert says(one, "Grep", pattern="x") == "allow"
    assert one.denies_path(project / "secrets/a")
    assert not one.denies_path(project / "src/a")


def test_domains_and_fields(project: Path) -> None:
    one = policy(
        project, allow=["WebFetch(domain:example.com)"], deny=["WebFetch(domain:*.evil.org)", "Bash(run_in_background:true)"]
    )
    assert says(one, "WebFetch", url="https://EXAMPLE.com/x") == "allow"
    assert says(one, "WebFetch", url="https://example.com@a.evil.org/") == "deny"
    assert says(one, "WebFetch", url="https://example.com.evil.com/") == "ask"
    assert says(one, "WebFetch", url="http://[bad") == "ask"
    assert says(one, "Bash", command="ls", run_in_background=True) == "deny"
    assert says(one, "Bash", command="ls", run_in_background=False) == "allow"


def test_servers_tools_ask_until_a_rule_allows_them(project: Path) -> None:
    one = policy(project, allow=["mcp__db__read_*"], deny=["mcp__db__drop"])
    assert [says(one, f"mcp__db__{tool}") for tool in ("read_x", "write", "drop")] == ["allow", "ask", "deny"]


def test_a_bare_deny_removes_the_tool_and_a_scoped_one_leaves_it(project: Path) -> None:
    one = policy(project, deny=["WebFetch", "Bash(rm *)", "mcp__db", "Edit(src/**)"])
    removed = [tool for tool in ("WebFetch", "Bash", "mcp__db__read", "Edit", "Read") if one.removes(tool)]
    assert removed == ["WebFetch", "mcp__db__read"]
    assert policy(project, deny=["*"]).removes("Bash")
    assert policy(project, deny=["Bash(*)"]).removes("Bash")


def test_a_child_never_has_more_rights_than_its_parent(project: Path) -> None:
    parent = policy(project, "default", deny=["Bash(rm *)", "WebFetch"], allow=["Bash(make *)"])
    child = parent.child(mode="bypassPermissions", rules=rules(allow=["Bash", "Edit", "WebFetch"]))
    assert says(child, "Bash", command="rm p") == "deny"
    assert says(child, "Bash", command="make all") == "allow"
    assert says(child, "Bash", command="curl x") == "ask"
    assert says(child, "Edit", file_path="a") == "ask"
    assert child.removes("WebFetch")
    narrowed = parent.child(rules=rules(deny=["Bash(make *)"]))
    assert says(narrowed, "Bash", command="make all") == "deny"
    assert says(parent.child(), "Bash", command="make all") == "allow"
    assert says(parent.child(mode="plan"), "Bash", command="make all") == "deny"
    assert says(policy(project, "plan").child(mode="acceptEdits"), "Edit", file_path="a") == "deny"


def test_a_worker_in_a_worktree_has_its_own_roots_and_the_projects_rules(project: Path) -> None:
    worktree = project.parent / "worktree"
    (worktree / "src").mkdir(parents=True)
    parent = policy(project, "acceptEdits", deny=["Edit(src/**)"], allow=[])
    verdict = parent.child().judge
    roots = (worktree,)
    inside = {"roots": roots, "project": worktree, "cwd": worktree}
    assert verdict("Write", {"file_path": "a"}, **inside).behavior == "allow"
    assert verdict("Write", {"file_path": "src/a"}, **inside).behavior == "deny"
    assert verdict("Write", {"file_path": str(project / "a")}, **inside).behavior == "ask"


def test_relative_paths_hang_on_the_directory_where_the_shell_stands(project: Path) -> None:
    one = policy(project)
    assert one.judge("Bash", {"command": "cat ../a"}, cwd=project / "src").behavior == "allow"
    assert one.judge("Bash", {"command": "cat ../a"}, cwd=project).behavior == "ask"


def test_a_refusal_suggests_a_rule_that_would_allow_just_this(project: Path) -> None:
    for tool, input in (
        ("Bash", {"command": "make all"}),
        ("WebFetch", {"url": "https://example.com/x"}),
        ("Edit", {"file_path": "src/a"}),
        ("Read", {"file_path": "../outside/a"}),
        ("Bash", {"command": "echo a*b > /dev/null; true"}),
    ):
        decision = policy(project).explain(tool, input).decision
        if isinstance(decision, Ask) and decision.suggestion:
            assert says(policy(project, allow=[decision.suggestion]), tool, **input) == "allow", decision.suggestion


def test_odd_inputs_get_a_verdict_and_never_an_exception(project: Path) -> None:
    one = policy(project, deny=["Read(x)", "Edit(y)", "WebFetch(domain:z)", "Bash(rm *)", "Agent(a)"])
    for tool in ("Read", "Edit", "Write", "NotebookEdit", "Glob", "Grep", "WebFetch", "Bash", "Agent", "Skill", "mcp__a__b"):
        for value in (None, 1, "", "\0", "~", "~nobody/x", "a" * 5000, ["x"], {"a": 1}):
            fields = ("file_path", "notebook_path", "path", "pattern", "glob", "url", "command", "subagent_type", "skill")
            one.explain(tool, dict.fromkeys(fields, value))


@pytest.mark.parametrize("tool", ["Edit", "Write", "Read", "Grep", "Glob", "Bash"])
def test_a_fence_names_the_file_of_that_very_name_and_an_allowance_does_not(tmp_path: Path, tool: str) -> None:
    """`[id]` is a class of letters to a pattern, and a directory to people: a fence means both, an allow rule the pattern."""
    for name in ("[id]", "i", "x"):
        (tmp_path / "app" / name).mkdir(parents=True)
        (tmp_path / "app" / name / "page.tsx").write_text("x")

    def behavior(name: str, **rules: list[str]) -> str:
        policy = LoadedSettings().policy(cwd=tmp_path, home=tmp_path / "home", **rules)
        path = f"app/{name}/page.tsx"
        call = {
            "Bash": {"command": f"cat '{path}'"}, "Grep": {"pattern": "x", "path": path}, "Glob": {"pattern": "*", "path": path},
        }.get(tool, {"file_path": path})  # fmt: skip
        return policy.explain(tool, call).behavior

    group = "Edit" if tool in ("Edit", "Write") else "Read"
    rule = f"{group}(app/[id]/page.tsx)"
    assert [behavior(name, disallowed=[rule]) == "deny" for name in ("[id]", "i", "x")] == [True, True, False]
    if group == "Edit":
        assert [behavior(name, allowed=[rule]) for name in ("[id]", "i", "x")] == ["ask", "allow", "ask"]


@pytest.mark.parametrize("rule", ["Edit", "Edit(**)", "Edit(./**)", "Edit(src/**)", "Write(*)"])
@pytest.mark.parametrize(
    "name",
    [".claude/settings.json", "src/.git/hooks/pre-commit", "src/.envrc", ".mcp.json", "src/.claude/agents/a.md", ".bashrc"],
)
def test_what_grants_rights_asks_under_a_rule_that_does_not_name_it(project: Path, rule: str, name: str) -> None:
    judged = policy(project, allow=[rule])
    assert says(judged, "Write", file_path=name) == "ask"
    assert says(judged, "Write", file_path="src/a.py") == "allow"
    suggestion = judged.explain("Write", {"file_path": name}).decision
    assert isinstance(suggestion, Ask) and suggestion.suggestion
    assert says(policy(project, allow=[rule, suggestion.suggestion]), "Write", file_path=name) == "allow"


def test_a_rule_that_names_what_grants_rights_allows_it(project: Path) -> None:
    judged = policy(project, allow=["Edit(.claude/**)", "Edit(~/.bashrc)"])
    assert says(judged, "Edit", file_path=".claude/settings.json") == says(judged, "Edit", file_path="~/.bashrc") == "allow"
    assert says(judged, "Edit", file_path=".git/config") == "ask"


@pytest.mark.parametrize("rule", ["Edit(**)", "Edit(*)", "Write(*)", "Write(**)"])
def test_a_pattern_without_a_root_allows_nothing_outside(project: Path, rule: str) -> None:
    judged = policy(project, allow=[rule])
    assert says(judged, "Write", file_path="deep/down/n") == "allow"
    assert says(judged, "Write", file_path="../n") == says(judged, "Write", file_path="~/n") == "ask"
    assert policy(project, deny=[rule]).removes("Write")
