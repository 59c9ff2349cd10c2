"""Another agent works through us: the real command behind the SDK's own client."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.program import Program

NAMES = ["inbox", "kill", "list_runs", "list_tasks", "logs", "send", "show", "start_run", "wait"]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    (tmp_path / "work" / "below").mkdir(parents=True)
    (tmp_path / "work" / "a.py").write_text("def hello():\n    return 1\n")
    return Program(tmp_path / "home", tmp_path / "work")


def served(program: Program, flags: tuple[str, ...], body: Callable[[Any], Awaitable[None]]) -> None:
    """`body` with a client of `mcp-serve`."""
    from mcp import Client, StdioServerParameters, stdio_client

    command, *arguments = program.command("mcp-serve", *flags)

    async def main() -> None:
        parameters = StdioServerParameters(command=command, args=arguments, env=program.environment(), cwd=program.cwd)
        async with Client(stdio_client(parameters, errlog=errors)) as client:
            await body(client)

    with open(os.devnull, "w") as errors:
        asyncio.run(main())


async def ask(client: Any, tool: str, **arguments: Any) -> tuple[bool, str]:
    answer = await client.call_tool(tool, arguments)
    return answer.is_error, "".join(part.text for part in answer.content)


def test_an_agent_starts_a_run_waits_for_it_and_reads_what_came_of_it(program: Program) -> None:
    async def body(client: Any) -> None:
        assert sorted(tool.name for tool in (await client.list_tools()).tools) == NAMES
        assert "`start_run`" in client.instructions
        failed, text = await ask(client, "start_run", goal="What is hello?")
        assert not failed, text
        run = json.loads(text)["run"]
        failed, text = await ask(client, "wait", ids=[run], timeout_seconds=50)
        assert [(row["id"], row["state"]) for row in json.loads(text)] == [(run, "completed")]
        _, text = await ask(client, "show", id=run)
        (shown,) = json.loads(text)
        assert shown["is_error"] is False and "Survey of" in shown["result"] and len(shown["tasks"]) > 1
        _, text = await ask(client, "list_tasks", run=run)
        tasks = json.loads(text)
        assert {task["state"] for task in tasks} == {"completed"}
        _, text = await ask(client, "show", id=tasks[0]["id"])
        assert json.loads(text)[0]["result"]
        assert (await ask(client, "logs", id=tasks[0]["id"]))[1]
        assert [row["id"] for row in json.loads((await ask(client, "list_runs"))[1])] == [run]
        assert json.loads((await ask(client, "inbox"))[1]) == []

        for directory in ("..", "/", "gone"):
            failed, text = await ask(client, "start_run", goal="x", directory=directory)
            assert failed and "is no directory in" in text
        for tool, arguments in (("show", {"id": "zzzz"}), ("kill", {"ids": ["--all"]}), ("wait", {"ids": []})):
            failed, text = await ask(client, tool, **arguments)
            assert failed and "Traceback" not in text
        assert (await ask(client, "start_run", goal="-"))[0]

    served(program, ("--", "--offline"), body)


def test_who_may_answer_for_a_person_and_what_runs_may_do_is_said_on_the_command_line(program: Program) -> None:
    async def body(client: Any) -> None:
        assert {"approve", "deny"} <= {tool.name for tool in (await client.list_tools()).tools}

    served(program, ("--may-approve",), body)
    for flags, why in ((("--no-such",), "no such option"), (("--resume", "x"), "resume is decided for each run")):
        ran = program("mcp-serve", "--", *flags)
        assert (ran.code, ran.out) == (2, "") and why in ran.err.lower(), ran.err
