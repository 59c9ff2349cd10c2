"""The parts of the chat on a terminal, without one: keys through a pipe, what is drawn for a size, files, history, offers."""

from __future__ import annotations

import asyncio
import io
import stat
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from coordinator.cli.chat import bottom, files
from coordinator.cli.chat.bottom import Bottom, Question
from coordinator.cli.chat.completing import Offering
from coordinator.cli.chat.editor import Editor
from coordinator.cli.chat.files import Files
from coordinator.cli.chat.history import ENTRY, LARGEST, Typed
from coordinator.cli.console import Console
from coordinator.views.terminal_text import columns

ALT_ENTER, PASTE, ESCAPE, TAB = "\x1b\r", "\x1b[200~{}\x1b[201~", "\x1b", "\t"


class Keyboard:
    """An editor whose keys come through a pipe; `lines` are what was entered, `calls` what else was done."""

    def __init__(self, editor: Editor, pipe: Any, lines: list[str], calls: list[str]) -> None:
        self.editor, self.lines, self.calls = editor, lines, calls
        self._pipe = pipe

    async def type(self, text: str, *, lines: int | None = None, calls: int | None = None) -> None:
        """Until so many lines, or calls, are there."""
        self._pipe.send_text(text)
        end = time.monotonic() + 20
        while (lines is not None and len(self.lines) < lines) or (calls is not None and len(self.calls) < calls):
            assert time.monotonic() < end, (self.lines, self.calls)
            await asyncio.sleep(0.01)


@asynccontextmanager
async def keyboard(tmp_path: Path) -> AsyncIterator[Keyboard]:
    lines: list[str] = []
    calls: list[str] = []
    with create_pipe_input() as pipe:
        editor = Editor(
            Console(io.StringIO(), io.StringIO()),
            above=lambda width, height: [],
            below=lambda width, height: [],
            on_line=lambda text, began: lines.append(text),
            on_stop=lambda: calls.append("stop"),
            on_end=lambda: calls.append("end"),
            on_gone=lambda: calls.append("gone"),
            history=Typed(tmp_path / "typed", lambda text: text),
            completer=Offering(Files(tmp_path), dict, lambda kind: {}),
            input=pipe,
            output=DummyOutput(),
        )
        async with editor:
            yield Keyboard(editor, pipe, lines, calls)


def test_what_makes_one_message_and_what_ends_it(tmp_path: Path) -> None:
    long = "\n".join(f"line {i}" for i in range(500))

    async def scenario() -> list[str]:
        async with keyboard(tmp_path) as keys:
            for number, typed in enumerate(
                [
                    "plain\r",
                    f"one{ALT_ENTER}two\r",
                    "one\\\rtwo\r",
                    "one\ntwo\r",  # Ctrl+J
                    PASTE.format("one\r\ntwo\rthree") + "\r",
                    PASTE.format("a whole line\n") + "!\r",
                    f"see {PASTE.format(long)} there\r",
                    "a \\ b\r",
                ],
                start=1,
            ):
                await keys.type(typed, lines=number)
            return keys.lines

    assert asyncio.run(scenario()) == [
        "plain", "one\ntwo", "one\ntwo", "one\ntwo", "one\ntwo\nthree", "a whole line!", f"see {long} there", "a \\ b",
    ]  # fmt: skip


def test_escape_stops_and_control_d_ends_on_an_empty_line_only(tmp_path: Path) -> None:
    async def scenario() -> tuple[list[str], list[str]]:
        async with keyboard(tmp_path) as keys:
            await keys.type(ESCAPE, calls=1)
            await keys.type("ab\x01\x04\r", lines=1)  # at the beginning it takes the next character
            await keys.type("\x04", calls=2)
            return keys.calls, keys.lines

    assert asyncio.run(scenario()) == (["stop", "end"], ["b"])


def test_what_the_session_suggests_stands_on_the_empty_line_and_is_taken_with_tab(tmp_path: Path) -> None:
    async def scenario() -> list[str]:
        async with keyboard(tmp_path) as keys:
            keys.editor.suggest("run the tests")
            await keys.type(f"{TAB}\r", lines=1)
            keys.editor.suggest("run the tests")
            await keys.type("no\r", lines=2)
            await keys.type(f"{TAB}x\r", lines=3)  # it was for that line
            return keys.lines

    assert asyncio.run(scenario())[:2] == ["run the tests", "no"]


# ── what is drawn ────────────────────────────────────────────────────────────────────────────────────────────────────


def task(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "id": f"a{number:08}", "name": f"worker-with-a-long-name-{number}", "agent": "worker", "status": "running", "type": "local_agent",
        "description": "does something", "last_activity": "Bash: \x1b[31mmake\x1b[0m test\nand more", "duration_ms": 61_000, "tool_uses": 3,
        "total_tokens": 31_000, "cost_usd": 0.08, "created_at": f"2026-01-01T00:00:{number:02}.000Z", "error": None,
        "end_reason": None,
    } | fields  # fmt: skip


FULL = Bottom(
    said="a line that is being written, wide 宽字 and \x1b[2Jhostile " * 9,
    queued=("first\nwith two lines", "second", "third", "fourth"),
    question=Question(id="q1", who="ada (a1)", tool="Bash", shown="rm -rf build\nmore", rule="Bash(rm:*)", total=3),
    tasks=[task(i, **({"needs_approval": "q1", "asks": "asks: Bash rm"} if i == 9 else {})) for i in range(20)],
    doing="Bash: make\x07",
    since=75.0,
    cost=0.5,
    facts=("claude-sonnet-5-5", "default", "s123456789"),
)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 10), (200, 60), (20, 8), (3, 3)])
def test_what_stands_around_the_line_leaves_room_for_it(width: int, height: int) -> None:
    drawn = [*bottom.above(FULL, width, height), *bottom.below(FULL, width, height)]
    texts = ["".join(piece.text for piece in line) for line in drawn]
    assert len(drawn) + max(1, height // 3) <= height or height < 8
    assert all(columns(text) <= width for text in texts) or width < 20, texts
    assert not any("\x1b" in text or "\x07" in text or "\n" in text for text in texts)


def test_who_waits_for_a_person_stands_first_and_the_rest_is_counted() -> None:
    lines = ["".join(piece.text for piece in line) for line in bottom.below(FULL, 80, 24)]
    assert lines[0].startswith("▲ worker-with…") and "asks: Bash rm" in lines[0] and lines[0].endswith("1:01    31k    $0.08")
    assert lines[-2].strip() == "17 running  /tasks"
    assert lines[-1].startswith("● Bash: make 1:15  1 waiting, 19 running  Esc stops  $0.50  claude-sonnet-5-5")
    above = ["".join(piece.text for piece in line) for line in bottom.above(FULL, 80, 24)]
    assert above[3:5] == ["⋯ queued: first with two lines", "⋯ queued: second"] and above[5] == "⋯ 2 more queued"
    assert above[6] == "▲ ada (a1) asks (1 of 3): Bash rm -rf build more"
    assert above[7] == "  y allow once · n deny · a always: Bash(rm:*) · anything else is a message"


# ── files, offers, history ───────────────────────────────────────────────────────────────────────────────────────────


def test_files_of_a_repository_are_those_git_does_not_ignore_best_matches_first(tmp_path: Path) -> None:
    for name in ("src/client.py", "src/api/old_client.py", "client/notes.txt", "build/client.o", "with space.md", "new.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / ".gitignore").write_text("build/\n")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    subprocess.run(["git", "-C", str(tmp_path), "add", "src"], check=True)

    async def offered(text: str) -> list[tuple[str, int]]:
        offering = Offering(Files(tmp_path), dict, lambda kind: {})
        found = offering.get_completions_async(Document(text), CompleteEvent())
        return [(one.text, one.start_position) async for one in found]

    assert asyncio.run(offered("look at @Client")) == [
        ("src/client.py", -6), ("client/notes.txt", -6), ("src/api/old_client.py", -6),
    ]  # fmt: skip
    assert asyncio.run(offered("@with")) == [('"with space.md"', -4)]
    assert asyncio.run(offered('@"wi')) == [('"with space.md"', -3)]
    assert asyncio.run(offered("mail me@home")) == []


def test_without_git_a_bounded_walk_finds_what_is_near(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("top.txt", "a/mid.txt", "a/b/deep.txt", ".hidden/no.txt", "node_modules/no.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "round").symlink_to(tmp_path)
    assert sorted(asyncio.run(files.listed(tmp_path))) == ["a/b/deep.txt", "a/mid.txt", "round", "top.txt"]
    monkeypatch.setattr(files, "LONGEST_WALK", 7)
    assert asyncio.run(files.listed(tmp_path)) == ["round", "top.txt", "a/mid.txt"]


def test_commands_and_what_stands_behind_them_are_offered() -> None:
    words = {"task": {"a1": "x", "b2": "y"}, "model": {"opus": ""}}
    offering = Offering(Files(Path()), lambda: {"greet": "hello", "team:do": ""}, lambda kind: words.get(kind, {}))

    def offered(text: str) -> list[str]:
        return [one.text for one in offering.get_completions(Document(text), CompleteEvent())]

    assert offered("/k") == ["kill"] and "greet" in offered("/") and offered("/team:") == ["team:do"]
    assert offered("/kill ") == ["a1", "b2"] and offered("/kill a1 b") == ["b2"] and offered("/model o") == ["opus"]
    assert offered("/cost ") == [] and offered("say /k") == [] and offered("/nothing x") == []


def test_history_is_private_without_secrets_and_bounded(tmp_path: Path) -> None:
    path = tmp_path / "typed" / "p.jsonl"
    one, other = (Typed(path, lambda text: text.replace("s3cret", "***")) for _ in range(2))
    one.store_string("first\nwith two lines")
    other.store_string("the s3cret")
    one.store_string("x" * (ENTRY + 1))
    with path.open("a") as file:
        file.write('"cut by a full di\n[1]\n')
    assert list(Typed(path, str).load_history_strings()) == ["the ***", "first\nwith two lines"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    for i in range(LARGEST // 10_000 + 1):
        one.store_string(f"{i}" + "y" * 10_000)
    assert path.stat().st_size <= LARGEST and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert next(iter(Typed(path, str).load_history_strings())).startswith(f"{LARGEST // 10_000}y")
