"""`disk.py` on a real file system: what it opens, what it refuses and by which name, and how it replaces."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

import pytest

from worker_agent import disk

LIMIT = 100


LINKS = (
    "to-file", "to-absolute", "to-link", "sub/up", "out", "out-absolute", "out-directory", "out-directory/file", "out-and-in", "round",
    "hidden-out", "to-directory", "to-directory/file",
)  # fmt: skip


def links(inside: Path, outside: Path) -> dict[str, str | Path]:
    return {
        "to-file": "sub/file", "to-absolute": inside / "sub/file", "to-link": "to-file", "sub/up": "../plain",
        "out": "../secret", "out-absolute": outside / "secret", "out-directory": "../other", "out-and-in": "../in/plain",
        "round": "round", "hidden-out": "sub/../../secret", "to-directory": "sub",
    }  # fmt: skip


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A directory `in` beside a secret, with links of every kind."""
    inside = tmp_path / "in"
    (inside / "sub").mkdir(parents=True)
    (inside / "sub/file").write_text("mine")
    (inside / "plain").write_text("plain")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").write_text("secret")
    for name, target in links(inside, tmp_path).items():
        (inside / name).symlink_to(target)
    (tmp_path / "alias").symlink_to("in")
    return inside


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plain", "plain"), ("sub/file", "mine"), ("to-file", "mine"), ("to-absolute", "mine"), ("to-link", "mine"),
        ("sub/up", "plain"), ("to-directory/file", "mine"), ("to-directory/../plain", "plain"), ("./sub/./file", "mine"),
    ],
)  # fmt: skip
def test_what_lies_inside_is_read_through_links_that_stay_there(tree: Path, name: str, text: str) -> None:
    assert disk.read_regular(tree / name, limit=LIMIT, inside=tree) == text.encode()
    alias = tree.parent / "alias"
    assert disk.read_regular(alias / name, limit=LIMIT, inside=alias) == text.encode()
    assert disk.read_regular(tree / name, limit=LIMIT, inside=alias.resolve()) == text.encode()


@pytest.mark.parametrize(
    "name", ["out", "out-absolute", "out-directory/file", "out-and-in", "hidden-out", "../secret", "sub/../../secret"]
)
def test_what_leads_out_is_refused_by_name_and_read_without_a_fence(tree: Path, name: str) -> None:
    assert disk.read_regular(tree / name, limit=LIMIT) in (b"secret", b"plain")
    with pytest.raises(disk.Outside) as refused:
        disk.read_regular(tree / name, limit=LIMIT, inside=tree)
    assert (refused.value.strerror, refused.value.filename) == (f"leads out of {tree}", str(tree / name))


@pytest.mark.parametrize(
    ("name", "code"),
    [("none", errno.ENOENT), ("plain/below", errno.ENOTDIR), ("round", errno.ELOOP), ("sub/none", errno.ENOENT)],
)
def test_what_is_not_there_says_so_with_and_without_a_fence(tree: Path, name: str, code: int) -> None:
    for inside in (None, tree):
        with pytest.raises(OSError) as failed:
            disk.read_regular(tree / name, limit=LIMIT, inside=inside)
        assert failed.value.errno == code


def test_nothing_but_a_regular_file_is_opened_and_nobody_waits_for_a_writer(tree: Path) -> None:
    os.mkfifo(tree / "fifo")
    (tree / "to-fifo").symlink_to("fifo")
    for inside in (None, tree):
        for name, words in (("fifo", "is a FIFO (named pipe), no regular file"), ("sub", "is a directory, no regular file")):
            with pytest.raises(disk.NotRegular) as refused:
                disk.open_regular(tree / name, inside=inside)
            assert refused.value.strerror == words
        with pytest.raises(disk.NotRegular):
            disk.open_regular(tree / "to-fifo", inside=inside)
    with pytest.raises(disk.NotRegular):
        disk.open_regular(tree, inside=tree)
    with pytest.raises(disk.NotRegular):
        disk.open_regular(Path("/dev/null"))


def test_a_socket_is_an_error_too(tree: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tree / "socket"))
        with pytest.raises(OSError):
            disk.open_regular(tree / "socket", inside=tree)


def test_where_no_link_is_followed_none_on_the_way_is_either(tree: Path) -> None:
    real = tree.resolve()
    with disk.open_regular(real / "sub/file", follow=False) as file:
        assert file.read() == b"mine"
    for name in ("to-file", "to-directory/file"):
        with pytest.raises(OSError) as refused:
            disk.open_regular(real / name, follow=False)
        assert refused.value.errno == errno.ELOOP


def test_a_directory_swapped_for_a_link_while_it_is_read_never_leads_out(tree: Path) -> None:
    """A process swaps `sub` for a link outwards and back as fast as it can; not one of many readings leaves."""
    (tree / "away").symlink_to("../other")
    pid = os.fork()
    if not pid:
        while True:
            os.rename(tree / "sub", tree / "kept")
            os.rename(tree / "away", tree / "sub")
            os.rename(tree / "sub", tree / "away")
            os.rename(tree / "kept", tree / "sub")
    seen: set[str] = set()
    try:
        for _ in range(4000):
            try:
                seen.add(disk.read_regular(tree / "sub/file", limit=LIMIT, inside=tree).decode())
            except disk.Outside:
                seen.add("refused")
            except OSError:
                seen.add("gone")
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    assert "secret" not in seen and "mine" in seen


def test_a_limit_is_a_refusal_or_a_cut(tree: Path) -> None:
    (tree / "exact").write_bytes(b"x" * LIMIT)
    (tree / "over").write_bytes(b"x" * (LIMIT + 1))
    assert len(disk.read_regular(tree / "exact", limit=LIMIT)) == LIMIT
    with pytest.raises(disk.TooLarge) as refused:
        disk.read_regular(tree / "over", limit=LIMIT)
    assert (refused.value.size, refused.value.strerror) == (LIMIT + 1, "has more than 100 bytes")
    assert len(disk.read_beginning(tree / "over", limit=LIMIT, inside=tree)) == LIMIT
    assert disk.read_regular(Path("/proc/self/stat"), limit=10_000).startswith(str(os.getpid()).encode())


def test_no_descriptor_stays_open_after_any_of_it(tree: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for name in os.listdir(tree):
        for inside in (None, tree):
            try:
                disk.read_regular(tree / name / "file", limit=1, inside=inside)
                disk.read_regular(tree / name, limit=1, inside=inside)
            except OSError:
                pass
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_replaced_file_keeps_its_mode_and_a_failed_one_leaves_nothing(tree: Path) -> None:
    file = tree / "plain"
    file.chmod(0o640)
    old = file.stat()
    info = disk.replace(file, b"new", like=old)
    assert (file.read_bytes(), stat.S_IMODE(info.st_mode), info.st_ino != old.st_ino) == (b"new", 0o640, True)
    disk.replace(tree / "fresh", b"f", mode=0o600)
    assert stat.S_IMODE((tree / "fresh").stat().st_mode) == 0o600
    names = sorted(os.listdir(tree))
    with pytest.raises(OSError):
        disk.replace(tree / "sub", b"new")
    assert sorted(os.listdir(tree)) == names


@pytest.mark.parametrize(
    "name", [*LINKS, "", ".", "sub/..", "missing", "missing/../plain", "sub/missing/deeper", "plain/", "/"]
)
def test_where_a_path_leads_is_what_following_each_name_says(name: str, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree)
    for path in (name, f"{tree}/{name}", f"{tree}/../alias/{name}"):
        assert disk.real(path) == os.path.realpath(path)
        assert disk.real(Path(path)) == os.path.realpath(Path(path))


def test_a_file_that_ends_as_the_kernel_marks_deleted_ones_keeps_its_name(tree: Path) -> None:
    (tree / "kept (deleted)").touch()
    assert disk.real(tree / "kept (deleted)") == os.path.realpath(tree / "kept (deleted)")
