"""`coordinator chat` line by line: commands, the person's own, names that are none; what a sentence is to a question."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from coordinator.cli.approval import TerminalApprover
from coordinator.cli.chat.commands import COMMANDS
from coordinator.cli.console import Console
from coordinator.cli.person import Person
from coordinator.cli.run_views import PlainView
from tests.cli.program import Program
from tests.cli.test_person import keyboard
from tests.cli.test_run_api import with_api
from tests.support.fake_api import FakeAPI
from tests.unit.tools.kit import context_in
from worker_agent.tools.base import Allow, Ask, Deny
from worker_agent.tools.builtin.bash import Bash

__all__ = ["keyboard"]


def own_command(program: Program, name: str, text: str) -> None:
    directory = program.home / ".claude" / "commands"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name}.md").write_text(text)


def test_commands_are_answered_without_the_model_and_what_is_none_is_told(program: Program) -> None:
    """One chat shows them all: nothing of it may reach a model."""
    own_command(program, "greet", "Say hello to $ARGUMENTS.")
    lines = ["/help", "/cost", "/compact", "/taks", "/frobnicate it", "/kill", "/kill nobody", "/send x", "/send nobody hi",
             "/model", "/model opus", "/permissions", "/permissions plan", "/permissions foo", "/agents", "/tasks", "/resume",
             "/approve", "/deny", "/resume nobody", "/deny nobody because"]  # fmt: skip
    with FakeAPI() as api:
        ran = program("chat", stdin="\n".join(lines), **with_api(program, api))
        assert api.requests == []
    assert ran.code == 0, ran.err
    for name, command in COMMANDS.items():
        assert f"  /{name} {command.usage}".rstrip() in ran.out
    assert "Your own: /greet" in ran.out
    assert "Cost so far: $0.00; tokens: 0." in ran.out
    assert "There was nothing to summarise." in ran.out
    assert "The coordinator's model is claude-" in ran.out
    assert "Permission mode default." in ran.out and "verifier" in ran.out
    assert [line.removeprefix("coordinator: ") for line in ran.err.splitlines()[2:]] == [
        "no command /taks; did you mean /tasks?",
        "no command /frobnicate; /help lists them (a message begins otherwise than with /)",
        "/kill needs the ids or names of tasks (/tasks lists them)",
        "no such task 'nobody'",
        "/send needs a task and a message: /send ID TEXT (without /send the coordinator reads it)",
        "no such task 'nobody'",
        "from its next turn on the coordinator uses claude-opus-5-5",
        "permission mode plan, for the coordinator from now on and for workers that begin from now on",
        "no permission mode 'foo': default, acceptEdits, plan, dontAsk, bypassPermissions",
        "no tasks yet",
        "no other session of this directory",
        "nothing waits for you",
        "nothing waits for you",
        "no session 'nobody'",
        "nothing waits for you",
    ]


def test_messages_own_commands_files_and_paths_reach_the_model_as_what_they_stand_for(program: Program) -> None:
    own_command(program, "greet", "Say hello to $ARGUMENTS.")
    (program.cwd / "notes.txt").write_text("forty-two")
    with FakeAPI(["one", "two", "three"]) as api:
        ran = program(
            "chat", "/greet the team", stdin="what does @notes.txt say\n/tmp is full\n", **with_api(program, api)
        )  # fmt: skip
        said = api.requests[-1].user_text
    assert ran.code == 0, ran.err
    assert "Say hello to the team." in said and "forty-two" in said and "/tmp is full" in said


def test_a_chat_goes_on_with_another_session(program: Program) -> None:
    with FakeAPI(["the first answer", "the second answer"]) as api:
        program("chat", stdin="remember the blue door\n", **with_api(program, api))
        id = program.here("sessions", "list", "-q").out.strip()
        ran = program("chat", stdin=f"/resume\n/resume {id}\nand now?\n", **with_api(program, api))
        assert "remember the blue door" in api.requests[-1].user_text
    assert ran.code == 0, ran.err
    assert id in ran.out and "the second answer" in ran.out and f"session {id}" in ran.err


@pytest.mark.parametrize(("typed", "expected", "passed"), [("y\n", Allow, []), ("No\n", Deny, []),
                                                            ("use make instead\n\nyes\n", Allow, ["use make instead"])])  # fmt: skip
def test_a_sentence_is_no_answer_to_a_question_in_a_chat(
    keyboard: int, capsys: pytest.CaptureFixture[str], tmp_path: Path, typed: str, expected: type, passed: list[str]
) -> None:
    lines: list[str] = []
    console = Console()

    async def scenario() -> Any:
        person = Person(lines.append)
        approver = TerminalApprover(
            console, person, PlainView(console), called=lambda task_id: "ada (a1)", pass_on=lines.append
        )  # fmt: skip
        asked = asyncio.ensure_future(
            approver.ask(Bash(), {"command": "make"}, Ask("it is not known", None), context_in(tmp_path))
        )
        await asyncio.sleep(0)
        os.write(keyboard, typed.encode())
        said = await asyncio.wait_for(asked, 20)
        person.close()
        return said

    said = asyncio.run(scenario())
    assert isinstance(said, expected) and lines == passed
    assert "ada (a1): Bash make" in capsys.readouterr().err
