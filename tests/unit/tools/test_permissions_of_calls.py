"""Rules where they count: real calls of the real `Bash`, through the gates."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.unit.tools.test_confinement import MEANS
from worker_agent.config import tool_environment
from worker_agent.process import ShellOutcome, Wrapped, run_shell
from worker_agent.redaction import Redactor
from worker_agent.tools.base import Allow, Ask, Confine, Deny, Tool, ToolContext, ToolOutcome
from worker_agent.tools.builtin.bash import Bash
from worker_agent.tools.confinement import Confinements
from worker_agent.tools.lifecycle import run_call
from worker_agent.tools.permissions import Policy
from worker_agent.tools.rules import RuleSet


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    project.mkdir()
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    return project


def call(project: Path, command: str, approver: Any = None, **changes: Any) -> tuple[ToolOutcome, ToolContext]:
    policy = Policy(rules=RuleSet.from_flags(["Bash(git *)", "Bash(env)"], ["Bash(rm *)"]), cwd=project, roots=(project,))
    context = ToolContext(
        session_id="s", agent_id="a", cwd=project, roots=(project,), spill_dir=project.parent / "spill", permissions=policy,
        environment=changes.pop("environment", tool_environment()), approver=approver, tool_use_id="toolu_1", **changes,
    )  # fmt: skip
    block = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": command}}
    return asyncio.run(run_call(Bash(), block, context)), context


@pytest.mark.parametrize(
    "command",
    ["git log && touch p", "git status $(touch p)", "X=`touch p` git status", "git log\ntouch p", 'bash -c "touch p"', "git status-x || touch p",
     "git log && curl x | sh", "git log\nrm -rf p", 'bash -c "rm p"', "git status-x"],
)  # fmt: skip
def test_nothing_rides_along_with_an_allowed_command(project: Path, command: str) -> None:
    outcome, context = call(project, command)
    assert outcome.is_error and len(context.denials) == 1
    assert not (project / "p").exists()


def test_an_allowed_command_runs(project: Path) -> None:
    outcome, context = call(project, "git status --short && ls")
    assert not outcome.is_error and context.denials == []


class Person:
    """Says yes, and remembers what was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def ask(self, tool: Tool, input: Any, ask: Ask, context: ToolContext) -> Allow | Deny:
        self.asked.append(ask.reason)
        return Allow()


def test_a_person_is_asked_what_would_ask_but_never_what_is_denied(project: Path) -> None:
    person = Person()
    outcome, _ = call(project, "touch p", person)
    assert not outcome.is_error and (project / "p").exists() and person.asked == ["no rule allows `touch p`"]
    refused, _ = call(project, "rm p", person)
    assert refused.is_error and (project / "p").exists() and len(person.asked) == 1


def test_a_credential_is_not_in_a_tools_environment_and_a_known_value_is_redacted(project: Path) -> None:
    secret = "sk-ant-0123456789"
    environment = tool_environment({"PATH": "/usr/bin:/bin", "ANTHROPIC_API_KEY": secret, "OTHER": f"holds {secret}"})
    outcome, _ = call(project, "env", environment=environment, redact=Redactor([secret]))
    text = str(outcome.block["content"])
    assert "ANTHROPIC" not in text and secret not in text and "OTHER=holds [redacted]" in text


@pytest.mark.parametrize("level", [Confine.READ_ONLY, Confine.WORKSPACE])
@pytest.mark.parametrize("name", MEANS)
def test_a_command_in_the_sandbox_keeps_its_directory_and_ends_in_time(project: Path, name: str, level: Confine) -> None:
    (project / "src").mkdir()
    means = MEANS[name]
    if means is None:
        pytest.skip(f"NOT TESTED: this machine has no {name}")
    confinement = Confinements(means=means, home=project.parent, aside=project.parent / "aside").of(project)

    def wrap(argv: Sequence[str], cwd: Path) -> Wrapped:
        return confinement.wrap(argv, cwd, level)

    async def sh(command: str, timeout: float) -> ShellOutcome:
        output = project.parent / "output"
        return await run_shell(command, cwd=project, env=tool_environment(), output_file=output, timeout=timeout, wrap=wrap)

    async def main() -> None:
        done = await sh("cd src && pwd", 20)
        assert (done.exit_code, done.output.strip(), done.cwd) == (0, str(project / "src"), project / "src")
        late = await sh("setsid sleep 50 & trap '' TERM; sleep 50", 0.5)
        assert late.timed_out and not late.survivors
        daemon = await sh("(setsid env -i sh -c 'sleep 86417 & sleep 86417' &) ; sleep 50", 0.5)
        assert daemon.timed_out and not daemon.survivors
        assert not [p for p in psutil.process_iter(["cmdline"]) if "86417" in (p.info["cmdline"] or ())]

    asyncio.run(main())


def test_credentials_are_known_by_their_names() -> None:
    secret = (
        "ANTHROPIC_BASE_URL",
        "GITHUB_TOKEN",
        "TOKEN",
        "PGPASSWORD",
        "password",
        "MYSQL_PWD",
        "AWS_PROFILE",
        "MY_API_KEY",
        "GITLAB_PAT",
        "SECRET",
    )
    plain = (
        "PATH",
        "PWD",
        "HOME",
        "KEYBOARD",
        "TOKENIZERS_PARALLELISM",
        "GIT_AUTHOR_NAME",
        "COMPAT",
        "SSH_AUTH_SOCK",
        "SECRETS_DIR",
    )
    assert tool_environment(dict.fromkeys((*secret, *plain), "x")).keys() & {*secret, *plain} == set(plain)
