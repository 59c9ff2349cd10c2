from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import socket
from pathlib import Path

import pytest

from worker_agent.tools.builtin.edit import Edit
from worker_agent.tools.builtin.read import Read
from worker_agent.tools.builtin.write import Write

from .support import acall, as_nobody, call, context, refused

PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")


def pdf_with(text: str, pages: int) -> bytes:
    """A PDF written by hand: `pages` pages that each say `text` and their number."""
    objects = ["<< /Type /Catalog /Pages 2 0 R >>"]
    kids = " ".join(f"{4 + 2 * i} 0 R" for i in range(pages))
    objects.append(f"<< /Type /Pages /Kids [{kids}] /Count {pages} >>")
    objects.append("<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
    for i in range(pages):
        stream = f"BT /F1 12 Tf 72 720 Td ({text} {i + 1}) Tj ET" if text else ""
        fonts = "/Resources << /Font << /F1 3 0 R >> >>"
        objects.append(f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] {fonts} /Contents {5 + 2 * i} 0 R >>")
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
    out, places = io.BytesIO(b"%PDF-1.4\n"), []
    out.seek(0, 2)
    for number, body in enumerate(objects, 1):
        places.append(out.tell())
        out.write(f"{number} 0 obj\n{body}\nendobj\n".encode())
    start = out.tell()
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    out.write(f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}".encode())
    out.write(f"trailer << /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF".encode())
    return out.getvalue()


def test_lines_are_numbered_as_ripgrep_counts_them(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("one\r\ntwo\x0bstill two\u2028two\n\nfour".encode())
    assert call(Read(), context(tmp_path), file_path="a.txt") == (
        "     1\tone\n     2\ttwo\x0bstill two\u2028two\n     3\t\n     4\tfour"
    )


def test_offset_and_limit_choose_lines_and_the_answer_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"line {i}\n" for i in range(1, 11)))
    answer = call(Read(), context(tmp_path), file_path=str(tmp_path / "a.txt"), offset=4, limit=2)
    assert answer == "     4\tline 4\n     5\tline 5\n\n[Lines 4–5 of 10. Go on with offset 6.]"
    assert "has 10 lines, so none from line 11" in call(Read(), context(tmp_path), file_path="a.txt", offset=11)


def test_an_empty_file_is_said_to_be_empty(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    assert call(Read(), context(tmp_path), file_path="a") == "a exists and is empty."


def test_a_very_long_line_is_cut_and_its_length_told(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x" * 5000)
    answer = call(Read(), context(tmp_path), file_path="a")
    assert answer.endswith("[line of 5,000 characters, cut]")
    assert len(answer) < 2100


def test_one_answer_has_at_most_so_many_characters(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x" * 90 + "\n" + "y" * 90 + "\n")
    answer = call(Read(), context(tmp_path, read_bytes=183), file_path="a")
    assert answer.endswith("[Lines 1–1 of 2 (size limit of one answer). Go on with offset 2.]")


def test_the_same_unchanged_lines_read_again_are_answered_in_one_line_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\ntwo\n")
    ctx = context(tmp_path)
    first = call(Read(), ctx, file_path="a")
    again = call(Read(), ctx, file_path="a")
    assert "unchanged" in again and "\n" not in again
    assert call(Read(), ctx, file_path="a") == first
    os.utime(tmp_path / "a", (1, 1))  # a touch changes nothing
    assert "unchanged" in call(Read(), ctx, file_path="a")
    (tmp_path / "a").write_text("one\n2wo\n")
    assert "2wo" in call(Read(), ctx, file_path="a")


def test_other_lines_of_a_file_are_not_unchanged(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\ntwo\n")
    ctx = context(tmp_path)
    call(Read(), ctx, file_path="a", limit=1)
    assert "two" in call(Read(), ctx, file_path="a", offset=2)
    assert ctx.read_files[tmp_path / "a"].partial is False  # the parts add up to the whole


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32", "cp1252", "latin-1"])
def test_text_is_read_in_its_encoding(tmp_path: Path, encoding: str) -> None:
    text = "\ufeffgrün\n" if encoding == "utf-16-be" else "grün\n"
    (tmp_path / "a").write_bytes(text.encode(encoding))
    assert call(Read(), context(tmp_path), file_path="a") == "     1\tgrün"


def test_broken_bytes_in_utf8_are_shown_replaced(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes("grün \N{SNOWMAN} ".encode() + b"\xff end\n")
    answer = call(Read(), context(tmp_path), file_path="a")
    assert answer == "     1\tgrün \N{SNOWMAN} \ufffd end"


@pytest.mark.parametrize(
    ("head", "word"), [(b"\x7fELF\x02\x00\x00", "ELF"), (b"PK\x03\x04\x00", "zip"), (b"a\x00b", "binary data")]
)
def test_a_binary_file_is_refused_in_words(tmp_path: Path, head: bytes, word: str) -> None:
    (tmp_path / "a").write_bytes(head)
    words = refused(Read(), context(tmp_path), file_path="a")
    assert word in words and "Bash" in words


def test_images_come_as_images(tmp_path: Path) -> None:
    (tmp_path / "dot").write_bytes(PNG)
    result = asyncio.run(acall(Read(), context(tmp_path), file_path="dot"))
    source = result.content[1]["source"]  # type: ignore[index]
    assert source == {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PNG).decode()}


def test_an_image_over_the_limit_is_refused_without_reading_it(tmp_path: Path) -> None:
    with open(tmp_path / "big.png", "wb") as file:
        file.write(PNG)
        file.truncate(5 * 1024 * 1024)
    assert "smaller" in refused(Read(), context(tmp_path), file_path="big.png")


def test_an_image_over_the_text_limit_is_shown(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG + bytes(400_000))
    assert "<image>" in call(Read(), context(tmp_path), file_path="a.png")


# ── PDF ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_pdf_is_read_as_text_by_pages(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(pdf_with("Hello page", 30))
    answer = call(Read(), context(tmp_path), file_path="a.pdf", pages="2-3")
    assert "pages 2–3 of 30" in answer
    assert "Hello page 2" in answer and "Hello page 3" in answer and "Hello page 4" not in answer
    assert 'Go on with pages "4-23"' in answer
    assert "Hello page 20" in call(Read(), context(tmp_path), file_path="a.pdf")


def test_a_pdf_without_text_goes_out_as_a_document(tmp_path: Path) -> None:
    (tmp_path / "scan.pdf").write_bytes(pdf_with("", 1))
    answer = call(Read(), context(tmp_path), file_path="scan.pdf")
    assert "without text" in answer and "<document>" in answer


@pytest.mark.parametrize("pages", ["x", "0", "3-1", "1-21", "1,2"])
def test_page_ranges_that_make_no_sense_are_refused(tmp_path: Path, pages: str) -> None:
    (tmp_path / "a.pdf").write_bytes(pdf_with("x", 1))
    assert "page" in refused(Read(), context(tmp_path), file_path="a.pdf", pages=pages)


def test_a_page_that_is_not_there_and_a_broken_pdf_are_said(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(pdf_with("x", 2))
    (tmp_path / "b.pdf").write_bytes(b"%PDF-1.4 nonsense")
    assert "has 2 pages" in refused(Read(), context(tmp_path), file_path="a.pdf", pages="3")
    assert "cannot be read as a PDF" in refused(Read(), context(tmp_path), file_path="b.pdf")


# ── notebooks ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_notebook_is_shown_by_cells_with_outputs_and_pictures(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "id": "intro", "source": ["# Title\n", "text"]},
        {
            "cell_type": "code",
            "source": "1/0",
            "outputs": [
                {"output_type": "stream", "text": ["out\n"]},
                {"output_type": "error", "ename": "ZeroDivisionError", "evalue": "division by zero"},
                {"output_type": "display_data", "data": {"image/png": base64.b64encode(PNG).decode() + "\n"}},
            ],
        },
    ]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells, "nbformat": 4}))
    answer = call(Read(), context(tmp_path), file_path="a.ipynb")
    assert answer == (
        "── intro (markdown) ──\n# Title\ntext\n── cell-1 (code) ──\n1/0\n── output ──\nout\n\n"
        "ZeroDivisionError: division by zero\n\n[picture 1, below]\n<image>"
    )


@pytest.mark.parametrize("content", ["not json", "[]", '{"cells": 3}', '{"cells": [3]}', "[" * 100_000])
def test_a_broken_notebook_is_refused_in_words(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.ipynb").write_text(content)
    assert "no valid notebook" in refused(Read(), context(tmp_path), file_path="a.ipynb")


# ── what is no readable file ─────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_no_file_is_said_and_nothing_hangs(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "dir").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "sock"))
        expected = {
            "fifo": "a FIFO", "dir": "a directory", "loop": "leads back to itself", "sock": "is a device or socket",
            "/dev/zero": "a character device", "missing": "does not exist", "fifo/x": "part of the path is a file",
            "x" * 300: "name is too long",
        }  # fmt: skip
        for name, words in expected.items():
            assert words in refused(Read(), context(tmp_path), file_path=name), name


def test_a_mistyped_name_is_answered_with_what_is_like_it(tmp_path: Path) -> None:
    (tmp_path / "settings.py").touch()
    assert "settings.py" in refused(Read(), context(tmp_path), file_path="setings.py")
    assert "directory does not exist" in refused(Read(), context(tmp_path), file_path="no/such.py")
    assert "NUL" in refused(Read(), context(tmp_path), file_path="a\x00b")


def test_a_file_without_permission_is_said(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "secret").chmod(0)
    tmp_path.chmod(0o755)
    for parent in list(tmp_path.parents)[:3]:
        if parent.name.startswith("pytest"):
            parent.chmod(0o755)
    with as_nobody():
        assert "permission denied" in refused(Read(), context(tmp_path), file_path=str(tmp_path / "secret"))


def test_a_name_that_is_not_utf8_is_written_with_its_bytes(tmp_path: Path) -> None:
    with open(os.fsencode(tmp_path) + b"/caf\xe9\x07", "w") as file:
        file.write("x\n")
    assert call(Read(), context(tmp_path), file_path="caf\\xe9\\x07") == "     1\tx"


def test_proc_files_that_say_they_are_empty_are_read(tmp_path: Path) -> None:
    assert "Name:" in call(Read(), context(tmp_path), file_path="/proc/self/status")


# ── large files ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def gigabyte(tmp_path: Path) -> Path:
    """1 GB that takes no room: 500,000 lines, a hole, nothing after it."""
    path = tmp_path / "big.log"
    with open(path, "wb") as file:
        file.write(b"".join(b"line %d\n" % i for i in range(1, 500_001)))
        file.truncate(1 << 30)
    return path


def test_of_a_gigabyte_only_what_is_wanted_is_read(gigabyte: Path) -> None:
    ctx = context(gigabyte.parent)
    answer = call(Read(), ctx, file_path=str(gigabyte), offset=400_000, limit=2)
    assert answer == "400000\tline 400000\n400001\tline 400001\n\n[Lines 400000–400001. Go on with offset 400002.]"
    assert "unchanged" in call(Read(), ctx, file_path=str(gigabyte), offset=400_000, limit=2)
    assert "up to 33,554,432" in refused(Edit(), ctx, file_path=str(gigabyte), old_string="a", new_string="b")
    assert "Only a part" in refused(Write(), ctx, file_path=str(gigabyte), content="")


def test_a_large_file_ends_where_it_ends(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x\n" * 300_000 + b"last")
    ctx = context(tmp_path)
    assert call(Read(), ctx, file_path="a", offset=300_000) == "300000\tx\n300001\tlast"
    assert "has 300001 lines" in call(Read(), ctx, file_path="a", offset=300_002)
    assert "has 300001 lines" in call(Read(), ctx, file_path="a", offset=400_000)


def test_a_large_file_of_one_line_stays_bounded(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 1_000_000)
    assert call(Read(), context(tmp_path), file_path="a").endswith("[line of 1,000,000 characters, cut]")


def test_large_utf16_is_read_by_lines(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes("zeile ü\n".encode("utf-16-le").join([b"\xff\xfe", *[b""] * 30_000]))
    assert call(Read(), context(tmp_path), file_path="a", offset=20_000, limit=1).startswith(" 20000\tzeile ü\n")


def test_a_large_binary_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(1_000_000))
    assert "no text" in refused(Read(), context(tmp_path), file_path="a")
