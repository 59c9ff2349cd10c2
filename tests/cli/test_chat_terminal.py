"""The chat in a real terminal (tmux), against the fake API: what a person sees and types."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cli.program import Program
from tests.cli.test_run_api import with_api
from tests.integration.scripts import fleet, spawn
from tests.support.fake_api import FakeAPI, Gate, message, text, tool_use
from tests.support.skips import needs_tmux
from tests.support.terminal import Terminal

pytestmark = needs_tmux
AT_REST = "your turn  /help"


@contextmanager
def chat(program: Program, api: FakeAPI, columns: int, rows: int, *arguments: str, **environment: str) -> Iterator[Terminal]:
    """A chat that waits for its first line."""
    whole = program.environment(**with_api(program, api), **environment)
    with Terminal(program.cwd, columns, rows, whole) as terminal:
        terminal.run(*program.command("chat", *arguments))
        terminal.until(lambda screen: "session s" in screen and "your turn" in screen)
        yield terminal


def last(request) -> str:
    """The newest text of a person in the conversation."""
    content = request.messages[-1]["content"]
    return content if isinstance(content, str) else " ".join(block.get("text", "") for block in content)


def test_one_types_while_workers_run_is_asked_by_name_and_nothing_lands_in_the_line(program: Program) -> None:
    lines, reporting = Gate(), Gate()

    def boss(request):
        if "begin" in last(request):
            return message("workers begin", spawn("make it", name="ada"), spawn("read it", name="bob"))
        if "long" in last(request):
            return message(text("a first line\na second line\nand a thi", lines, "rd line\nthe last line"))
        return message(f"read {len(last(request).splitlines())} lines")

    def worker(request):
        if request.turns == 0 and "make it" in request.user_text:
            return message(tool_use("Bash", {"command": "touch made-by-ada; echo $((40+2))"}))
        return message(text("a rep", reporting, "ort"))

    with FakeAPI(fleet(boss, worker)) as api, chat(program, api, 80, 24) as terminal:
        terminal.type("begin")
        terminal.keys("Enter")
        screen = terminal.sees("ada (")
        screen = terminal.until(lambda screen: "y allow once" in screen and "bob" in screen.split("> ")[-1])
        assert re.search(r"▲ ada \(a\w{8}\) asks: Bash touch made-by-ada; echo \$\(\(40\+2\)\)", screen), screen
        assert re.search(r"^▲ ada +asks: Bash touch", screen, re.MULTILINE), screen

        # A sentence is a message, no answer; three pasted lines are one; what an arrow key does is no text.
        terminal.paste("one\ntwo\nthree")
        terminal.keys("Left", "Left")
        terminal.type("X")
        assert "> one\n  two\n  thrXee" in terminal.sees("thrXee")
        terminal.keys("Enter")
        terminal.sees("read 3 lines")
        assert not (program.cwd / "made-by-ada").exists()
        terminal.type("y")
        terminal.keys("Enter")
        terminal.sees("approved: Bash touch")
        terminal.until(lambda _: (program.cwd / "made-by-ada").exists())

        # While an answer is written: the half typed line stays whole, what is sent waits and says so, Escape ends the answer.
        terminal.type("long")
        terminal.keys("Enter")
        terminal.sees("and a thi")
        terminal.type("half a ")
        terminal.type("sentence")
        assert re.search(r"a second line\nand a thi\n> half a sentence\n", terminal.sees("> half a sentence"))
        terminal.keys("Enter")
        terminal.sees("⋯ queued: half a sentence")
        terminal.type("and more")
        lines.open()
        screen = terminal.sees("> half a sentence")
        assert "> and more" in terminal.sees("> and more") and "and a third line\nthe last line" in terminal.everything
        terminal.sees("read 1 lines")

        # 40x10: everything fits, nothing of what was drawn stays behind; and back.
        terminal.resize(40, 10)
        terminal.until(lambda screen: screen.count("> and more") == 1 and all(len(row) <= 40 for row in screen.split("\n")))
        terminal.resize(80, 24)
        screen = terminal.until(lambda screen: "/help  $" in screen and "> and more" in screen)
        assert terminal.everything.count("> and more") == 1 and terminal.everything.count("Esc stops") == 0

        # A command, and one that is none; then Ctrl+C knows that no turn runs.
        terminal.keys("C-u")
        terminal.type("/taks")
        terminal.keys("Enter")
        terminal.sees("no command /taks; did you mean /tasks?")
        terminal.type("/ki")
        terminal.sees("end tasks, with their processes")
        terminal.keys("Escape", "C-u", "C-c")
        terminal.sees("no turn of the coordinator runs, workers go on")
        reporting.open()
        terminal.until(lambda screen: screen.count(" completed ") >= 1 and AT_REST in screen)
        terminal.keys("C-d")
        terminal.sees("goes on with this session\n$")
        terminal.run("stty", "-a")
        assert " icanon" in terminal.sees(" icanon")
    assert len([r for r in api.requests if last(r).startswith("one\ntwo\nthrXee")]) == 1


def test_a_chat_that_ends_in_any_way_leaves_the_terminal_as_it_was(program: Program) -> None:
    """Also: history over sessions, in a file of its owner alone; no colour where none is wanted."""
    begun = Gate()
    with FakeAPI(lambda request: message(text("begun", begun, " and done")), allow_violations=True) as api:
        with chat(program, api, 80, 24, NO_COLOR="1") as terminal:
            for end in ("C-c", "SIGTERM"):
                if end == "SIGTERM":
                    terminal.run(*program.command("chat"))
                    terminal.until(lambda screen: "session s" in screen and AT_REST in screen)
                    terminal.keys("Up")
                    terminal.sees("> tell me more")
                    terminal.keys("C-u")
                terminal.type("tell me more")
                terminal.keys("Enter")
                terminal.sees("Esc stops")
                assert not re.search(r"\x1b\[[\d;]*3[0-8]", terminal.colours)
                if end == "C-c":
                    terminal.keys("C-c", "C-c", "C-c")
                else:
                    os.kill(terminal.process("coordinator"), signal.SIGTERM)
                terminal.until(lambda screen: screen.endswith("\n$"))
                terminal.run("echo", f"left by {end}")
                terminal.sees(f"\nleft by {end}\n$")
                terminal.run("stty", "-a")
                terminal.sees(" icanon")
                terminal.run("clear")
                terminal.until(lambda screen: screen == "$")
        begun.open()
    (file,) = (program.home / "data" / "typed").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.read_text().splitlines() == ['"tell me more"'] * 2


def test_the_next_prompt_that_the_session_suggests_stands_on_the_line_and_tab_takes_it(program: Program) -> None:
    def answers(request):
        return "done" if request.tool_names else "run the tests again"  # what guesses has no tools

    with FakeAPI(answers) as api, chat(program, api, 80, 24, "--chat-suggest") as terminal:
        terminal.type("mend it")
        terminal.keys("Enter")
        terminal.sees("> run the tests again")
        terminal.keys("Tab", "Enter")
        terminal.until(lambda screen: screen.count("\ndone\n") == 2)
        assert "\n> run the tests again\n" in terminal.everything
        assert any(last(request) == "run the tests again" for request in api.requests)
