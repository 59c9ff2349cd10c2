from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys

import pytest

from coordinator.cli.console import Console
from coordinator.cli.render import Piece


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_styles_are_not_seen_in_a_pipe() -> None:
    out = io.StringIO()
    Console(out, io.StringIO()).styled((Piece("id", "bold red"), Piece("  "), Piece("text")))
    assert out.getvalue() == "id  text\n"


def test_json_is_one_line_in_a_pipe_and_indented_for_a_person() -> None:
    pipe, terminal = io.StringIO(), Terminal()
    Console(pipe, io.StringIO()).json([{"a": "ü\x9b"}])
    Console(terminal, io.StringIO()).json([{"a": "ü\x9b"}])
    assert pipe.getvalue() == '[{"a": "ü\\u009b"}]\n'
    assert terminal.getvalue().count("\n") == 5
    assert json.loads(terminal.getvalue()) == [{"a": "ü\x9b"}]


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
)
def test_json_can_be_read_whatever_the_encoding_of_stdout(environment: dict[str, str]) -> None:
    written = r"c.json({'a': '\xe9 \u20ac \U0001f600'}); c.json_line('\xe9'); c.line('\xe9')"
    program = f"from coordinator.cli.console import Console; c = Console(); {written}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env={**os.environ, **environment})
    whole, line, text = done.stdout.split(b"\n", 2)
    assert done.returncode == 0 and (json.loads(whole), json.loads(line)) == ({"a": "é € 😀"}, "é")
    assert text.strip() in (b"\\xe9", b"\xe9")


def test_a_closed_pipe_is_quiet_and_remembered() -> None:
    read, write = os.pipe()
    os.close(read)
    out = os.fdopen(write, "w")
    console = Console(out, io.StringIO())
    console.line("x" * 100_000)
    console.line("more")
    console.flush()
    assert console.closed
    out.close()


SHOW = """
from coordinator.cli.console import Console
from coordinator.cli.render import Piece
Console().styled((Piece("[red]id[/red] :smile:", "bold red"),))
"""


def on_a_terminal(program: str, **environment: str) -> bytes:
    """What `program` writes when its stdout is a terminal."""
    master, slave = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "TERM")}
    with subprocess.Popen([sys.executable, "-c", program], stdout=slave, env={**kept, "TERM": "xterm", **environment}):
        os.close(slave)
        written = b""
        while piece := _read(master):
            written += piece
    os.close(master)
    return written


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:
        return b""


def test_a_terminal_gets_colour_but_no_markup_is_read() -> None:
    written = on_a_terminal(SHOW)
    assert b"\x1b[" in written
    assert b"[red]id[/red] :smile:" in written


def test_no_color_and_dumb_terminals_get_no_escape_code() -> None:
    assert b"\x1b" not in on_a_terminal(SHOW, NO_COLOR="1")
    assert b"\x1b" not in on_a_terminal(SHOW, TERM="dumb")


def test_a_notice_stands_above_what_is_drawn_in_place_and_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    screen = Terminal()
    console = Console(screen, screen)
    with console.region() as region:
        region.draw([(Piece("the tree"),)])
        console.note("interrupted [bold]once[/bold]")
        inside = screen.getvalue()
    console.note("after it")
    assert "interrupted [bold]once[/bold]" in inside and screen.getvalue().endswith("after it\n")
