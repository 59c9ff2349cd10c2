"""What comes with a prompt: files named by `@path`, and standard input beside it, also where that is closed or never ends."""

from __future__ import annotations

import base64
import os
import subprocess

from coordinator.cli import attached
from tests.cli.program import Program
from tests.cli.test_formats import write
from tests.cli.test_run_api import with_api
from tests.integration.scripts import by_turn
from tests.support.fake_api import FakeAPI

PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")


def test_files_and_standard_input_go_with_the_prompt(program: Program) -> None:
    write(program, "src/a.py", "print('A')\n```\nnot the end\n")
    (program.cwd / "shot.png").write_bytes(PIXEL)
    (program.cwd / "blob.bin").write_bytes(b"\0\1\2")
    prompt = "Compare @src/a.py, @shot.png and @src. Ask @someone about @no/such.py and @blob.bin"
    with FakeAPI(by_turn("done")) as api:
        ran = program("run", prompt, "--no-coordinator", stdin="from @src/a.py the pipe\n", **with_api(program, api))
        (message,) = (m for m in api.requests[0].body["messages"] if "Compare" in str(m["content"]))
    assert ran.code == 0, ran.err
    text, *media = [block for block in message["content"] if "system-reminder" not in block.get("text", "")]
    assert f"Contents of {program.cwd}/src/a.py:\n````\nprint('A')" in text["text"] and text["text"].count("print('A')") == 1
    assert "holds:\n```\na.py\n```" in text["text"] and "standard input:\n```\nfrom @src/a.py the pipe\n```" in text["text"]
    assert [block["source"]["media_type"] for block in media] == ["image/png"]
    assert "@no/such.py: there is no such file" in ran.err and "someone" not in ran.err
    assert "blob.bin is left out: it is neither text nor an image nor a PDF" in ran.err


def test_a_file_that_is_cut_says_so_and_a_pdf_is_a_document(program: Program) -> None:
    write(program, "long.txt", "x" * (attached.TEXT_CAP + 1))
    (program.cwd / "a.pdf").write_bytes(b"%PDF-1.4\n")
    os.mkfifo(program.cwd / "fifo.txt")
    found = attached.files('see @long.txt and @"a.pdf" and @fifo.txt', program.cwd)
    assert [block["type"] for block in found.blocks] == ["document"]
    assert "its beginning" in found.text and len(found.text) < attached.TEXT_CAP + 1_000
    assert len(found.notes) == 2 and "FIFO" in found.notes[1]


def test_a_link_out_of_the_working_directory_is_left_out_and_named(program: Program) -> None:
    outside = program.cwd.parent / "outside.txt"
    outside.write_text("a secret\n")
    (program.cwd / "link").symlink_to(outside)
    (program.cwd / "up").symlink_to(outside.parent)
    (program.cwd / "real.txt").write_text("inside\n")
    (program.cwd / "alias").symlink_to("real.txt")
    found = attached.files("read @link @up/outside.txt and @alias", program.cwd)
    assert "a secret" not in found.text and "inside" in found.text
    assert [note.split(" is left out: it is a link")[0] for note in found.notes] == ["@link", "@up/outside.txt"]
    assert "a secret" in attached.files(f"read @{outside}", program.cwd).text  # a person's own word


def test_standard_input_that_is_closed_or_never_ends_neither_breaks_nor_holds(program: Program) -> None:
    def run(how: str) -> subprocess.CompletedProcess[str]:
        line = " ".join(program.command("run", "hello", "--offline"))
        return subprocess.run(
            ["bash", "-c", how.format(line)],
            capture_output=True,
            text=True,
            cwd=program.cwd,
            env=program.environment(),
            timeout=50,
        )

    closed = run("{} <&-")
    assert closed.returncode == 0, closed.stderr
    endless = run("yes | {}")
    assert endless.returncode == 0 and "standard input is cut: only its first 400,000 bytes" in endless.stderr, endless.stderr
    reading, writing = os.pipe()  # nobody ever writes, and it is never closed
    silent = subprocess.run(
        program.command("run", "hello", "--offline"),
        stdin=reading, capture_output=True, text=True, cwd=program.cwd, env=program.environment(), timeout=50,
    )  # fmt: skip
    assert silent.returncode == 0 and "nothing comes on standard input: going on without it" in silent.stderr
    os.close(reading)
    os.close(writing)
