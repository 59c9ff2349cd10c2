"""A secret of the environment that people and models type: what runs has it, what is stored, shown or sent has not."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.program import Program
from tests.cli.test_run_api import with_api
from tests.integration.scripts import by_turn, coordinator, fleet, spawn
from tests.support.fake_api import FakeAPI, message, text, thinking, tool_use

SECRET = "tok-9f8e7d6c5b4a3210"
PLACE = "eu-north-7-region"
CONTROL = "\x1b]0;owned\x07\x1b[31mred\x9b32m"
MAY = ("--permission-mode", "bypassPermissions")


def files_with(home: Path, part: str) -> list[str]:
    return [str(path) for path in home.rglob("*") if path.is_file() and part.encode() in path.read_bytes()]


def typing(request: object) -> object:
    """A worker that thinks of the secret, says it in pieces, runs it, and asks for a command in the background with it."""
    run = f"printf %s {SECRET} > raw.txt"
    later = {"command": f"echo {SECRET}", "run_in_background": True, "description": f"shows {SECRET}"}
    return by_turn(
        message(
            thinking(f"it is {SECRET}"),
            text("I use tok-9f8e", "7d6c5b", f"4a3210 in {PLACE}"),
            tool_use("Bash", {"command": run}),
        ),
        message(thinking("and on"), text("once more"), tool_use("Bash", later)),
        message(thinking("done"), f"{CONTROL} used {SECRET} in {PLACE}"),
    )(request)


def test_what_a_model_types_runs_and_is_stored_shown_and_sent_without_the_secret(program: Program) -> None:
    boss = coordinator(spawn(f"use {SECRET} now", name="user"), final=f"it was {SECRET} in {PLACE}, {CONTROL}")
    environment = {"SERVICE_TOKEN": SECRET, "AWS_REGION": PLACE}
    with FakeAPI(fleet(boss, typing)) as api:
        environment |= with_api(program, api)
        ran = program.here("run", f"the key is {SECRET}", "--output-format", "stream-json", *MAY, **environment)
        assert ran.code == 0, ran.err
        session = ran.lines[-1]["session_id"]
        again = program.here("run", "-r", session, f"and {SECRET} again", *MAY, **environment)
        assert again.code == 0, again.err
        sent = [request.raw.decode() for request in api.requests]
    assert (program.cwd / "raw.txt").read_text() == SECRET
    assert files_with(program.home, SECRET) == []
    assert (
        SECRET not in ran.out + ran.err + again.out + again.err and f"it was [redacted] in {PLACE}" in ran.lines[-1]["result"]
    )
    assert not any(SECRET in body for body in sent)
    assert any("I use [redacted] in" in body for body in sent) and any("printf %s [redacted]" in body for body in sent)
    shown = [
        program.here(*command, **environment).out
        for command in (("sessions", "export", session), ("logs", session), ("ps", "--all", "--json"))
    ]
    assert all(SECRET not in text for text in shown) and PLACE in shown[0]
    assert [
        path
        for path in files_with(program.home / "data", "\x1b") + files_with(program.home / "data", "\x9b")
        if path.endswith(".md")
    ] == []
    (task,) = [task for task in json.loads(shown[2]) if task["type"] == "local_agent"]
    assert task["name"] == "user"


def test_a_message_from_another_terminal_is_stored_without_the_secret(program: Program) -> None:
    with FakeAPI(fleet(coordinator("one"), "report")) as api:
        environment = with_api(program, api) | {"SERVICE_TOKEN": SECRET}
        ran = program.here("run", "goal", "--output-format", "json", **environment)
        sent = program.here("send", ran.json["tasks"][0]["id"], f"use {SECRET}", **environment)
    assert sent.code == 0, sent.err
    assert files_with(program.home, SECRET) == []
