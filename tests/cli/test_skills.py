"""Skills and command files as people have them: `/name args` in a run, and the commands that list, show and check them."""

from __future__ import annotations

import json

import pytest

from tests.cli.program import Program
from tests.cli.test_formats import write
from tests.cli.test_run_api import with_api
from tests.integration.scripts import by_turn
from tests.support.fake_api import FakeAPI, tool_use

COMMIT = """---
description: Commit what is staged
allowed-tools: Bash(git add:*), Bash(touch made), nonsense(
argument-hint: [message]
---
Commit with the message: $ARGUMENTS (first word $0, session ${CLAUDE_SESSION_ID}).
"""
FORK = "---\nname: audit\ndescription: Audits\ncontext: fork\nagent: verifier\n---\nAudit ${CLAUDE_SKILL_DIR}."


@pytest.fixture
def project(program: Program) -> Program:
    (program.cwd / ".git").mkdir()
    write(program, ".claude/commands/commit.md", COMMIT)
    write(program, ".claude/skills/audit/SKILL.md", FORK)
    write(program, ".claude/skills/quiet/SKILL.md", "---\nname: quiet\ndescription: x\nuser-invocable: false\n---\nbody")
    return program


def test_a_name_stands_for_its_file_with_its_arguments_and_its_rules(project: Program) -> None:
    assert project("trust").code == 0
    touch = tool_use("Bash", {"command": "touch made"}, id="t0")
    with FakeAPI(by_turn(touch, "done", "again")) as api:
        ran = project("run", "/commit fix it", "--no-coordinator", "--output-format", "json", **with_api(project, api))
        said = api.requests[0].last_user_text
        assert ran.code == 0 and "no rules, passed over: nonsense(" in ran.err, ran
        id = ran.json["session_id"]
        assert said.startswith("/commit fix it\n\n") and f"message: fix it (first word fix, session {id})." in said
        assert (project.cwd / "made").exists()
        stored = project("sessions", "show", id, "--json").json
        assert "touch made" not in json.dumps(stored.get("options", {}))


def test_a_name_that_is_none_is_refused_before_a_model_is_paid(project: Program) -> None:
    untrusted = project("run", "/commit x", "--offline")
    assert untrusted.code == 2 and "there is no skill 'commit'" in untrusted.err
    assert project("trust").code == 0
    with FakeAPI([]) as api:
        environment = with_api(project, api)
        slip = project("run", "/comit fix", **environment)
        assert slip.code == 2 and "Spelled like it: commit" in slip.err and slip.out == "", slip
        assert project("run", "/quiet", **environment).code == 2
        assert not api.requests


def test_what_begins_with_a_path_is_a_prompt_and_a_fork_asks_for_a_worker(project: Program) -> None:
    assert project("trust").code == 0
    with FakeAPI(by_turn("done")) as api:
        assert project("run", "/tmp is full, why?", "--no-coordinator", **with_api(project, api)).code == 0
    with FakeAPI(by_turn("done")) as api:
        assert project("run", "/audit", **with_api(project, api)).code == 0
        said = api.requests[0].last_user_text
    assert "a worker of its own: start one of the type verifier" in said
    assert f"Audit {project.cwd}/.claude/skills/audit." in said


def test_skills_are_listed_shown_and_checked(project: Program) -> None:
    assert "not counted until `coordinator trust`: audit, commit, quiet" in project("skills", "list").err
    project("trust")
    rows = {row["name"]: row for row in project("skills", "list", "--json").json}
    assert rows.keys() == {"audit", "commit", "quiet"} and rows["commit"]["allowed_tools"][0] == "Bash(git add:*)"
    assert "Commit with the message" in project("skills", "show", "commit").out
    assert project("skills", "show", "nope").code == 3
    write(project, ".claude/skills/Bad name!/SKILL.md", "---\nname: Bad Name\n---\n")
    write(project, ".claude/skills/other/SKILL.md", "---\nname: another\ndescription: x\n---\nbody")
    checked = project("skills", "validate")
    assert checked.code == 2 and "error: has no usable name" in checked.out
    assert "other/SKILL.md: note: departs from the standard: `name` is 'another'" in checked.out
    assert project("skills", "validate", ".claude/skills/audit").code == 0
