"""The rule grammar, row by row."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker_agent.tools.rules import Behavior, Kind, Places, Rule, RuleError, RuleSet, Source, as_written, literal, split_rules

HERE = Source("test")


def allow(text: str, source: Source = HERE) -> Rule:
    return Rule.parse(text, source)


def deny(text: str, source: Source = HERE) -> Rule:
    return Rule.parse(text, source, Behavior.DENY)


@pytest.fixture
def places(tmp_path: Path) -> Places:
    project = tmp_path / "project"
    (project / "src").mkdir(parents=True)
    (tmp_path / "home").mkdir()
    return Places(project, tmp_path / "home", (project,))


@pytest.mark.parametrize("text", ["Bash", "Bash(*)", "Bash( *)", "Read", "Task", "mcp__srv__tool", "WebFetch"])
def test_a_bare_name_and_a_lone_star_cover_the_whole_tool(text: str) -> None:
    assert allow(text).kind is Kind.WHOLE


@pytest.mark.parametrize(
    "text", ["", "(", "Bash(", "Bash(x", "Bash)", "Bash()", "Bash( )", "a b", "Bash(:*)", "1x", "Edit(!x)", "TodoWrite(x)", "Bash(a\0b)"]
)  # fmt: skip
def test_what_is_no_rule_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(RuleError) as caught:
        allow(text)
    assert repr(text)[1:-1][:10] in str(caught.value)


@pytest.mark.parametrize("text", ["*", "mcp__*", "B*", "mcp__*__x"])
def test_globs_in_tool_names_are_for_deny_and_ask(text: str) -> None:
    with pytest.raises(RuleError):
        allow(text)
    assert deny(text).tool == text


def test_an_allow_rule_takes_a_glob_after_the_server() -> None:
    rule = allow("mcp__db__read_*")
    assert rule.names("mcp__db__read_rows")
    assert not rule.names("mcp__db__write")


def test_a_server_name_covers_all_its_tools() -> None:
    for text in ("mcp__db", "mcp__db__*"):
        assert allow(text).names("mcp__db__read")
        assert not allow(text).names("mcp__dbx__read")
    assert deny("mcp__*").names("mcp__any__thing")
    assert deny("mcp__my__db").names("mcp__my__db__drop")  # a server called `my__db`, or a tool: a fence means both
    assert not allow("mcp__my__db").names("mcp__my__db__drop")
    assert deny("*").names("Bash")


def test_task_is_the_old_name_of_agent() -> None:
    assert allow("Task(reviewer)").names("Agent")
    assert allow("Task(reviewer)").matches_text("reviewer")


def test_edit_covers_the_tools_that_edit_and_read_those_that_read() -> None:
    assert all(allow("Edit").names(tool) for tool in ("Edit", "Write", "NotebookEdit"))
    assert all(allow("Read").names(tool) for tool in ("Read", "Grep", "Glob"))
    assert not allow("Read(x)").names("Edit")
    assert deny("Read(x)").names("Edit")
    assert not deny("Read(x)").names("Bash")


def test_rules_that_are_never_consulted_are_accepted_with_a_warning() -> None:
    rule = deny("Write(src/**)")
    assert rule.kind is Kind.NEVER
    assert "Edit(src/**)" in (rule.warning or "")
    assert RuleSet.parse(Behavior.DENY, ["Glob(x)"], HERE).problems


@pytest.mark.parametrize(
    ("rule", "text", "matches"),
    [
        ("Bash(npm run build)", "npm run build", True), ("Bash(npm run build)", "npm run build x", False),
        ("Bash(ls *)", "ls", True), ("Bash(ls *)", "ls -la", True), ("Bash(ls *)", "lsof", False), ("Bash(ls*)", "lsof", True),
        ("Bash(git:*)", "git log", True), ("Bash(git:*)", "git", True), ("Bash(git:*)", "gitk", False),
        ("Bash(a:b *)", "a:b c", True), ("Bash(a:*b)", "a:xb", True), ("Bash(git * main)", "git push origin main", True),
        ("Bash(* --version)", "node --version", True), ("Bash(a\\*b)", "a*b", True), ("Bash(a\\*b)", "axb", False),
        ("Bash(f(x))", "f(x)", True), ("Bash(a.b)", "axb", False), ("Bash(echo *)", "echo a\nb", True),
    ],
)  # fmt: skip
def test_shell_patterns(rule: str, text: str, matches: bool) -> None:
    assert allow(rule).matches_text(text) is matches


@pytest.mark.parametrize(
    ("rule", "path", "matches"),
    [
        ("Read(x.py)", "x.py", True), ("Read(x.py)", "src/x.py", True), ("Read(./x.py)", "src/x.py", False), ("Read(./x.py)", "x.py", True),
        ("Read(*.py)", "src/a.py", True), ("Read(src/*.py)", "src/a.py", True), ("Read(src/*.py)", "lib/src/a.py", False),
        ("Read(src/**)", "src/deep/a", True), ("Read(src/**)", "lib/src/a", False), ("Read(**/src/**)", "lib/src/a", True),
        ("Read(src)", "src/a", True), ("Read(/src/**)", "src/a", True), ("Read(../other/**)", "../other/a", True),
        ("Read(../other/**)", "other/a", False), ("Read(~/notes)", "../home/notes", True), ("Read(~/**)", "../home/a/b", True),
        ("Read(~)", "../home/a", True), ("Read(//etc/**)", "/etc/passwd", True), ("Read(//etc/**)", "etc/passwd", False),
        ("Read(#x)", "#x", True), ("Read([)", "[", False),
    ],
)  # fmt: skip
def test_path_patterns_as_allow(places: Places, rule: str, path: str, matches: bool) -> None:
    assert allow(rule).matches_path(places.cwd / path, places) is matches


def test_one_segment_is_meant_at_any_depth_when_it_forbids(places: Places) -> None:
    assert deny("Read(src/**)").matches_path(places.cwd / "lib/src/a", places)
    assert not allow("Read(src/**)").matches_path(places.cwd / "lib/src/a", places)


def test_a_leading_slash_hangs_on_the_place_of_the_settings_file(places: Places) -> None:
    user = Source("user", base=places.home / ".claude")
    assert allow("Read(/x)", user).matches_path(places.home / ".claude/x", places)
    assert not allow("Read(/x)", user).matches_path(places.cwd / "x", places)


def test_allow_needs_link_and_target_deny_needs_either(places: Places) -> None:
    secret = places.home / "secret"
    secret.touch()
    link = places.cwd / "src/link"
    link.symlink_to(secret)
    assert not allow("Read(src/**)").matches_path(link, places)
    assert deny("Read(src/**)").matches_path(link, places)
    assert deny("Read(~/secret)").matches_path(link, places)
    assert not allow("Read(~/secret)").matches_path(link, places)


def test_dots_do_not_lead_out_of_an_allowed_place(places: Places) -> None:
    assert not allow("Read(src/**)").matches_path(places.cwd / "src/../../home/secret", places)
    assert deny("Read(~/**)").matches_path(places.cwd / "src/../../home/secret", places)


def test_a_pattern_of_the_project_holds_in_its_worktree(places: Places, tmp_path: Path) -> None:
    twin = tmp_path / "worktree"
    with_twin = Places(places.cwd, places.home, (twin,), (twin,))
    assert deny("Edit(src/**)").matches_path(twin / "src/a", with_twin)
    assert not deny("Edit(//etc/**)").matches_path(twin / "etc/a", with_twin)


@pytest.mark.parametrize(
    ("rule", "host", "matches"),
    [
        ("WebFetch(domain:example.com)", "example.com", True), ("WebFetch(domain:Example.COM)", "EXAMPLE.com", True),
        ("WebFetch(domain:example.com)", "a.example.com", False), ("WebFetch(domain:*.example.com)", "a.b.example.com", True),
        ("WebFetch(domain:*.example.com)", "example.com", False), ("WebFetch(domain:*.example.com)", "evilexample.com", False),
        ("WebFetch(domain:api-*.example.com)", "api-1.example.com", True), ("WebFetch(domain:api-*.example.com)", "api-1.x.example.com", False),
        ("WebFetch(domain:example.com)", "example.com.evil.org", False), ("WebFetch(domain:example.com)", "example.com.", True),
    ],
)  # fmt: skip
def test_domains(rule: str, host: str, matches: bool) -> None:
    assert allow(rule).matches_host(host) is matches


def test_rules_about_a_field_only_forbid() -> None:
    rule = deny("Bash(run_in_background:true)")
    assert rule.kind is Kind.FIELD
    assert rule.matches_field({"run_in_background": True})
    assert not rule.matches_field({"run_in_background": False})
    assert not rule.matches_field({})
    assert deny("Agent(model:opus*)").matches_field({"model": "opus-5"})
    assert deny("mcp__db__query(database:prod*)").matches_field({"database": "prod-1"})
    assert not deny("mcp__db__query(database:prod*)").matches_field({"database": ["prod"]})
    with pytest.raises(RuleError):
        allow("Bash(run_in_background:true)")
    assert deny("Bash(timeout:*)").kind is Kind.SHELL


def test_a_rule_knows_where_it_came_from() -> None:
    found = RuleSet.parse(Behavior.DENY, ["Bash(a)", "Bash(b)"], Source("/p/settings.json", "permissions.deny"))
    assert [str(rule.source) for rule in found.deny] == [
        "/p/settings.json (permissions.deny[0])",
        "/p/settings.json (permissions.deny[1])",
    ]


def test_a_fence_that_cannot_be_read_asks_and_an_allow_rule_that_cannot_be_read_is_left_out() -> None:
    fence = RuleSet.parse(Behavior.DENY, ["Bash(rm *"], Source("file", "permissions.deny"))
    assert [(r.tool, r.behavior, r.kind) for r in fence.ask] == [("Bash", Behavior.ASK, Kind.WHOLE)]
    assert fence.problems
    assert RuleSet.parse(Behavior.DENY, [7], HERE).ask[0].names("Write")
    left_out = RuleSet.parse(Behavior.ALLOW, ["Bash(rm *"], HERE)
    assert not list(left_out) and left_out.problems


def test_flags_are_split_outside_of_brackets() -> None:
    assert split_rules("Bash(git log *), Read Edit(src/**),WebFetch") == ["Bash(git log *)", "Read", "Edit(src/**)", "WebFetch"]
    assert split_rules("Agent(a, b)") == ["Agent(a, b)"]
    assert split_rules("  ") == []


def test_a_flag_that_is_no_rule_is_refused() -> None:
    with pytest.raises(RuleError):
        RuleSet.from_flags(("Bash(git",))
    flags = RuleSet.from_flags(("Read,Grep", "Edit"), ("Bash",))
    assert ([r.text for r in flags.allow], [r.text for r in flags.deny]) == (["Read", "Grep", "Edit"], ["Bash"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bash(rm:*)", "write Bash"), ("BASH", "write Bash"), ("Bsh(rm:*)", "write Bash"), ("read(./k)", "write Read"),
        ("Bsah(rm:*)", "write Bash"), ("Bach(rm:*)", "write Bash"), ("Reda(./k)", "write Read"), ("Edti(src/**)", "write Edit"),
        ("Bash(curl:*),Bash(rm:*)", "2 rules"), ("Bash(curl:*) Bash(rm:*)", "2 rules"), ("Bash(rm:*), Read", "2 rules"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("behavior", [Behavior.DENY, Behavior.ASK])
def test_a_fence_that_would_fit_nothing_is_none(text: str, said: str, behavior: Behavior) -> None:
    with pytest.raises(RuleError, match=said):
        Rule.parse(text, Source("f.json"), behavior)


@pytest.mark.parametrize(
    "text", ["LS", "KillShell", "mcp__bash", "MyTool", "B*", "Bash(echo ) x)", "Bash(git commit -m (a) b)"]
)
def test_a_fence_about_a_tool_that_is_not_here_stands(text: str) -> None:
    assert Rule.parse(text, Source("f.json"), Behavior.DENY).text == text


@pytest.mark.parametrize(
    "text",
    ["Shell", "Shell(rm:*)", "Terminal(command:rm *)", "run_shell_command(rm:*)", "Xyz*", "Bsah(rm:*)", "mcp_db", "MCP__db"],
)
def test_what_a_person_wrote_as_a_fence_names_a_tool_that_there_is(text: str) -> None:
    with pytest.raises(RuleError, match="there is no tool|no such specifier"):
        as_written(text, Source("f.json"), Behavior.DENY)
    with pytest.raises(RuleError):
        RuleSet.from_flags((), (text,))


@pytest.mark.parametrize(
    "text", ["TaskCreate", "Monitor", "PowerShell", "EnterWorktree", "mcp__db", "mcp__db__x(q:1)", "B*", "*", "m*"]
)
def test_a_fence_about_a_tool_of_claude_code_or_of_a_server_stands(text: str) -> None:
    assert as_written(text, Source("f.json"), Behavior.ASK).text == text


@pytest.mark.parametrize("name", ["plain", "a [b] c", "*", "x?y", "a\\b", "!x", "#x", "(1)", "ä"])
@pytest.mark.parametrize("behavior", list(Behavior))
def test_a_rule_about_this_very_path(places: Places, name: str, behavior: Behavior) -> None:
    rule = Rule.parse(f"Edit({literal(places.cwd / name)})", Source("x"), behavior)
    below = Rule.parse(f"Edit({literal(places.cwd / name)}/**)", Source("x"), behavior)
    assert rule.matches_path(places.cwd / name, places) and below.matches_path(places.cwd / name / "f", places)
    assert not rule.matches_path(places.cwd / "another", places) and not below.matches_path(places.cwd / "b" / "f", places)
