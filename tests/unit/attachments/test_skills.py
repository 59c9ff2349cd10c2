"""Skills: where they are found, which wins, what their text becomes, and what a repository may not do."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.tools.kit import context_in
from worker_agent import skills
from worker_agent.errors import ConfigError, ToolError
from worker_agent.skills import Origin, SkillIndex
from worker_agent.skills.placeholders import Substitution
from worker_agent.skills.skill import ENTRY_CAP
from worker_agent.tools.builtin.skill import Skill as SkillTool


def skill(place: Path, name: str, body: str = "Body.", **front: Any) -> Path:
    fields = {"name": name, "description": f"{name} in {place.name}"} | front
    keys = {key: key if key == "when_to_use" else key.replace("_", "-") for key in fields}
    head = "\n".join(f"{keys[key]}: {value}" for key, value in fields.items())
    file = place / name / "SKILL.md"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"---\n{head}\n---\n\n{body}\n")
    return file


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    root = tmp_path / "repo"
    (root / ".git").mkdir(parents=True)
    (root / "sub").mkdir()
    return root


def index(repo: Path, **options: Any) -> SkillIndex:
    return SkillIndex(repo / "sub", **{"home": repo.parent / "home", "trusted": True, **options})


def names(found: SkillIndex) -> list[str]:
    return [s.name for s in found.discover()]


# ── discovery ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_personal_wins_over_project_and_the_nearer_level_over_the_farther(repo: Path) -> None:
    home = repo.parent / "home"
    managed = repo.parent / "managed"
    skill(managed, "a", description="managed")
    skill(home / ".agents/skills", "a", description="personal")
    skill(home / ".config/agents/skills", "b", description="personal")
    skill(repo / "sub/.claude/skills", "b", description="project")
    skill(repo / "sub/.agents/skills", "c", description="near")
    skill(repo / ".claude/skills", "c", description="far")
    skill(repo / ".agents/skills", "d", description="second place")
    skill(repo / ".claude/skills", "d", description="first place")
    found = index(repo, managed=managed).discover()
    assert [(s.name, s.description, s.origin) for s in found] == [
        ("a", "managed", Origin.MANAGED),
        ("b", "personal", Origin.PERSONAL),
        ("c", "near", Origin.PROJECT),
        ("d", "first place", Origin.PROJECT),
    ]


def test_nothing_above_the_repository_counts(repo: Path) -> None:
    skill(repo.parent / ".claude/skills", "above")
    assert names(index(repo)) == []


def test_what_comes_with_a_repository_needs_trust(repo: Path) -> None:
    skill(repo / ".claude/skills", "theirs")
    skill(repo / "pkg/.claude/skills", "nested")
    skill(repo.parent / "home/.claude/skills", "mine")
    found = index(repo, trusted=False)
    assert names(found) == ["mine"]
    assert found.near([repo / "pkg" / "x.py"]) == ()
    with pytest.raises(ConfigError, match="no skill 'theirs'"):
        found.load("theirs")


def test_a_legacy_command_is_a_skill_named_like_its_file_behind_the_skills(repo: Path) -> None:
    commands = repo / ".claude/commands"
    commands.mkdir(parents=True)
    (commands / "review.md").write_text("# Review\n\nLook at $ARGUMENTS\nclosely.\n\nThen say.")
    (commands / "both.md").write_text("the command")
    (commands / "notes.txt").write_text("no command")
    skill(repo / ".claude/skills", "both", description="the skill")
    found = index(repo)
    assert [(s.name, s.description) for s in found.discover()] == [
        ("both", "the skill"),
        ("review", "Look at $ARGUMENTS closely."),
    ]
    assert found.load("/review", "this") == "# Review\n\nLook at this\nclosely.\n\nThen say."


def test_a_skill_of_a_plugin_carries_its_name(repo: Path, tmp_path: Path) -> None:
    skill(tmp_path / "plugin/skills", "go", "Root ${CLAUDE_PLUGIN_ROOT}")
    found = index(repo, plugins={"acme": tmp_path / "plugin"})
    assert names(found) == ["acme:go"]
    assert found.load("acme:go") == f"Root {tmp_path / 'plugin'}"


@pytest.mark.parametrize(("directory", "text", "name", "description"), [
    ("right", "---\nname: right\ndescription: D\n---\nB", "right", "D"),
    ("dir", "---\nname: Other Name\ndescription: D\n---\nB", "dir", "D"),
    ("Dir_1.x", "---\ndescription: D\n---\nB", "Dir_1.x", "D"),
    ("My Skill!", "---\nname: my-skill\n---\n\n# Title\n\nFirst\nline.\n\nSecond.", "my-skill", "First line."),
    ("plain", "Just text.", "plain", "Just text."),
    ("colon", "---\nname: colon\ndescription: Use when: always\n---\nB", "colon", "Use when: always"),
    ("crlf", "---\r\nname: crlf\r\ndescription: 'D'\r\n---\r\nB", "crlf", "D"),
    ("bom", "\ufeff---\ndescription: D\n---\nB", "bom", "D"),
    ("list", "---\n- a\n- b\n---\nB", "list", "B"),
    ("typed", "---\ndescription: {a: [1, 2]}\nname: 7\n---\nB", "typed", "B"),
    ("date", "---\ndescription: 2026-99-99\n---\nB", "date", "2026-99-99"),
    ("empty", "", "empty", ""),
    ("headless", "---\n---\nB", "headless", "B"),
])  # fmt: skip
def test_front_matter_falls_back(repo: Path, directory: str, text: str, name: str, description: str) -> None:
    file = repo / ".claude/skills" / directory / "SKILL.md"
    file.parent.mkdir(parents=True)
    file.write_bytes(text.encode())
    assert [(s.name, s.description) for s in index(repo).discover()] == [(name, description)]


def test_fields_are_read_in_each_of_their_forms_and_unknown_ones_kept(repo: Path) -> None:
    skill(repo / ".claude/skills", "a", allowed_tools="Bash(git add *) Read, Grep", arguments="[x, y]", license="MIT")
    skill(repo / ".claude/skills", "b", allowed_tools='["Bash(a b)", Read]', arguments="x y", paths="src/**/*.py, docs")
    a, b = index(repo).discover()
    assert (a.allowed_tools, a.arguments) == (("Bash(git add *)", "Read", "Grep"), ("x", "y"))
    assert a.fields == {"license": "MIT"}
    assert (b.allowed_tools, b.arguments, b.paths) == (("Bash(a b)", "Read"), ("x", "y"), ("src/**/*.py", "docs"))


def test_hostile_files_are_problems_or_nothing_and_cost_little(repo: Path) -> None:
    place = repo / ".claude/skills"
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30))
    fronts = {
        "bomb": f"{bomb}description: *a29\ntools: *a29",
        "deep": f"x: {'[' * 8000}",
        "object": "x: !!python/object:os.system {}",
    }
    for name, front in fronts.items():
        skill(place, name).write_text(f"---\n{front}\n---\nB")
    (place / "!!!").mkdir()
    (place / "!!!" / "SKILL.md").write_text("no usable name")
    (place / "pipe").mkdir()
    os.mkfifo(place / "pipe" / "SKILL.md")
    (place / "loop").symlink_to("loop")
    (place / "dangling").mkdir()
    (place / "dangling" / "SKILL.md").symlink_to("nothing")
    found = index(repo)
    assert names(found) == ["bomb", "deep", "object"]
    assert [(p.file.parent.name, p.text[:18]) for p in found.problems] == [("!!!", "has no usable name")]
    assert "bomb" in found.listing()


# ── the listing ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_listing_has_a_line_a_skill_and_is_capped(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = repo / ".claude/skills"
    skill(place, "a", description="Does\n  a.", when_to_use="For a.")
    skill(place, "b", description="x" * 5_000)
    skill(place, "hidden", disable_model_invocation="true")
    skill(place, "conditional", paths="*.rs")
    found = index(repo)
    first, second = found.listing().split("\n")
    assert first == "- a: Does a. For a."
    assert second == f"- b: {'x' * (ENTRY_CAP - 1)}…"
    monkeypatch.setattr(skills.index, "LISTING_CAP", 40)
    assert index(repo).listing() == "- a: Does a. For a.\n- b"


def test_the_listing_keeps_its_bytes_when_skills_come_up_later(repo: Path) -> None:
    skill(repo / ".claude/skills", "a")
    skill(repo / "pkg/.claude/skills", "later")
    found = index(repo)
    before = found.listing()
    assert [s.name for s in found.near([repo / "pkg/x.py"])] == ["later"]
    assert found.listing() == before
    assert found.load("later") == "Body."


# ── skills next to files ─────────────────────────────────────────────────────────────────────────────────────────────


def test_skills_next_to_a_file_are_found_at_every_level_between_it_and_the_project(repo: Path) -> None:
    skill(repo / "pkg/.claude/skills", "one")
    skill(repo / "pkg/deep/.agents/skills", "two")
    skill(repo / "sub/in/.claude/skills", "three")
    found = index(repo)
    assert [s.name for s in found.near([repo / "pkg/deep/er/x.py"])] == ["two", "one"]
    assert [s.name for s in found.near([repo / "pkg/y.py", repo / "sub/in"])] == ["one", "three"]
    assert found.near([repo / "sub/x.py", repo / "x.py", repo.parent / "y.py", Path("/etc/passwd")]) == ()


def test_a_nested_skill_of_a_known_name_is_called_by_its_directory(repo: Path) -> None:
    for place in (".claude/skills", "pkg/a/.claude/skills", "pkg/b/.claude/skills"):
        skill(repo / place, "deploy", body=f"From {place}")
    found = index(repo)
    assert [s.name for s in found.near([repo / "pkg/a/x", repo / "pkg/b/x"])] == ["pkg/a:deploy", "pkg/b:deploy"]
    assert found.load("pkg/b:deploy") == "From pkg/b/.claude/skills"
    assert found.load("deploy") == "From .claude/skills"


def test_a_repository_inside_a_trusted_one_is_not_trusted_with_it(repo: Path) -> None:
    (repo / "vendor/lib/.git").mkdir(parents=True)
    skill(repo / "vendor/.claude/skills", "ours")
    skill(repo / "vendor/lib/.claude/skills", "theirs")
    skill(repo / "vendor/lib/src/.claude/skills", "theirs-too")
    assert [s.name for s in index(repo).near([repo / "vendor/lib/src/x.c"])] == ["ours"]


def test_a_link_out_of_the_project_brings_no_skills(repo: Path) -> None:
    skill(repo.parent / "outside/.claude/skills", "theirs")
    (repo / "way").symlink_to(repo.parent / "outside")
    assert index(repo).near([repo / "way" / "x"]) == ()


def test_a_skill_with_paths_comes_up_with_a_file_that_fits(repo: Path) -> None:
    skill(repo / ".claude/skills", "rust", paths="src/**/*.rs")
    skill(repo / ".claude/skills", "hidden", paths="*.rs", disable_model_invocation="true")
    found = index(repo)
    assert found.near([repo / "x.rs", repo / "src/a.py"]) == ()
    assert [s.name for s in found.near([repo / "src/deep/a.rs"])] == ["rust"]


# ── placeholders and commands ────────────────────────────────────────────────────────────────────────────────────────


def load(repo: Path, body: str, given: str = "", **front: Any) -> str:
    skill(repo / ".claude/skills", "s", body, **front)
    return index(repo, variables={"CLAUDE_SESSION_ID": "s1"}).load("s", given)


@pytest.mark.parametrize(("body", "arguments", "expected"), [
    ("Do $ARGUMENTS now", "a 'b c'", "Do a 'b c' now"),
    ("$ARGUMENTS[1] $1 $0", "a 'b c'", "b c b c a"),
    ("$0 $5 $ARGUMENTS[7]", "a", "a $5 $ARGUMENTS[7]"),
    ("$first and $second$third", "1 2", "1 and 2$third"),
    ("in ${CLAUDE_SESSION_ID} ${CLAUDE_UNKNOWN} ${HOME}", "", "in s1 ${CLAUDE_UNKNOWN} ${HOME}"),
    ("in ${CLAUDE_SESSION_ID}", "x y", "in s1\n\nARGUMENTS: x y"),
    (r"costs \$1 and \$ARGUMENTS and \$HOME", "x", "costs $1 and $ARGUMENTS and \\$HOME\n\nARGUMENTS: x"),
    ("nothing", "", "nothing"),
    ("nothing", "some", "nothing\n\nARGUMENTS: some"),
    ("$ARGUMENTSX $firstly $10", "a", "$ARGUMENTSX $firstly $10"),
    ("all: $ARGUMENTS.", "", "all: ."),
    ("$0 / $ARGUMENTS", "'$ARGUMENTS $1' ${CLAUDE_SESSION_ID}", "$ARGUMENTS $1 / '$ARGUMENTS $1' ${CLAUDE_SESSION_ID}"),
    ("$0", "it's", "it's"),
    ("$0", r"\g<0>", r"g<0>"),
])  # fmt: skip
def test_placeholders_are_replaced_in_one_pass(repo: Path, body: str, arguments: str, expected: str) -> None:
    assert load(repo, body, arguments, arguments="[first, second, third, 'a|b']") == expected


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60), st.text(max_size=60))
def test_arguments_never_bring_placeholders(body: str, arguments: str) -> None:
    one = skills.Skill(name="s", description="", file=Path("/s/SKILL.md"), origin=Origin.PERSONAL)
    substitution = Substitution(one, f"|{arguments} ${{CLAUDE_SKILL_DIR}}", {})
    plain = body.replace("$", "")
    assert substitution.text(f"{plain} $ARGUMENTS") == f"{plain} |{arguments} ${{CLAUDE_SKILL_DIR}}"


def test_where_the_skill_and_the_project_lie_is_filled_in(repo: Path) -> None:
    assert load(repo, "${CLAUDE_SKILL_DIR} ${CLAUDE_PROJECT_DIR}") == f"{repo / '.claude/skills/s'} {repo}"


def test_without_a_runner_no_command_runs_and_the_text_says_so(repo: Path) -> None:
    text = load(repo, "Now: !`touch /tmp/never` ok")
    assert text.startswith("Now: !`touch /tmp/never` ok\n\n(Commands that this text writes as !`…` were not run.")


def run_with(repo: Path, body: str, arguments: str) -> tuple[str, list[str]]:
    skill(repo / ".claude/skills", "s", body)
    ran: list[str] = []

    async def runner(command: str, of: skills.Skill) -> str:
        ran.append(command)
        return f"[{of.name}: $0 !`evil`]"

    return asyncio.run(index(repo).load_running("s", arguments, runner)), ran


def test_a_runner_gets_the_commands_of_the_file_in_order_and_its_output_is_plain_text(repo: Path) -> None:
    text, ran = run_with(repo, "A !`git log $0` B !`ls` $1", "main x")
    assert ran == ["git log main", "ls"]
    assert text == "A [s: $0 !`evil`] B [s: $0 !`evil`] x"


@pytest.mark.parametrize("arguments", ["$(rm -rf ~)", "a;b", "`id`", "a\nb", "'a|b'", "> x", "a&b", '"', "a\\ b", "~", "*"])
def test_arguments_that_mean_something_to_a_shell_reach_no_command(repo: Path, arguments: str) -> None:
    text, ran = run_with(repo, "!`echo $ARGUMENTS` !`pwd`", arguments)
    assert ran == ["pwd"] and text.startswith("[command not run")


def test_a_command_in_the_arguments_is_text(repo: Path) -> None:
    text, ran = run_with(repo, "Say $ARGUMENTS", "!`id`")
    assert ran == [] and text == "Say !`id`"


# ── the tool ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def call(tool: SkillTool, directory: Path, **input: Any) -> str:
    return str(asyncio.run(tool.call(input, context_in(directory))).content)


def test_the_tool_lists_the_skills_and_answers_with_the_body(repo: Path) -> None:
    file = skill(repo / ".claude/skills", "deploy", "Deploy $0.", allowed_tools="Read")
    tool = SkillTool(index(repo))
    assert tool.description.endswith("Skills here:\n- deploy: deploy in skills")
    assert tool.is_read_only({"skill": "deploy"})
    text = call(tool, repo, skill="deploy", args="now")
    assert text == f"Skill deploy. Paths in it start at {file.parent}\n\nDeploy now."


def test_the_tool_names_near_skills_for_an_unknown_one(repo: Path) -> None:
    skill(repo / ".claude/skills", "deploy-web")
    skill(repo / ".claude/skills", "review")
    tool = SkillTool(index(repo))
    with pytest.raises(ToolError, match=r"^There is no skill 'deploy'. Spelled like it: deploy-web\.$"):
        call(tool, repo, skill="deploy")
    with pytest.raises(ToolError, match=r"There are: deploy-web, review\.$"):
        call(tool, repo, skill="zzz")
    with pytest.raises(ToolError, match="There are no skills here"):
        call(SkillTool(index(repo, trusted=False)), repo, skill="x")


def test_the_tool_refuses_what_is_for_the_person_and_what_went_away(repo: Path) -> None:
    skill(repo / ".claude/skills", "mine", disable_model_invocation="true")
    gone = skill(repo / ".claude/skills", "gone")
    tool = SkillTool(index(repo))
    gone.unlink()
    with pytest.raises(ToolError, match="for the person alone"):
        call(tool, repo, skill="mine")
    with pytest.raises(ToolError, match=r"^SKILL.md cannot be read: No such file or directory\.$"):
        call(tool, repo, skill="gone")


def test_the_tool_runs_commands_only_with_a_runner_and_is_then_no_reader(repo: Path) -> None:
    skill(repo / ".claude/skills", "s", "It is !`date`.", context="fork", agent="Explore")

    async def runner(command: str, of: skills.Skill) -> str:
        return "noon"

    tool = SkillTool(index(repo), runner)
    assert not tool.is_read_only({"skill": "s"})
    text = call(tool, repo, skill="s")
    assert text.endswith("It is noon.") and "worker of its own (type Explore)" in text
