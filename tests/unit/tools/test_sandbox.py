"""The sandbox as commands inside it meet it."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from worker_agent.errors import ConfigError
from worker_agent.tools.sandbox import SandboxChoice, choose, default_hidden

AVAILABLE = choose("auto")
needs_bwrap = pytest.mark.skipif(AVAILABLE.sandbox is None, reason=AVAILABLE.notice or "")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work/.git/hooks").mkdir(parents=True)
    (tmp_path / "scratch").mkdir()
    (tmp_path / "home/.ssh").mkdir(parents=True)
    (tmp_path / "home/.ssh/id").write_text("key")
    (tmp_path / "home/.netrc").write_text("password")
    return tmp_path / "work"


def inside(work: Path, command: str, network: bool = True, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    home = work.parent / "home"
    choice = choose("required", writable=[work.parent / "scratch"], hidden=default_hidden(home), network=network)
    assert choice.sandbox is not None
    argv = choice.sandbox.of(work)(["bash", "-c", command], cwd or work)
    return subprocess.run(argv, capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL, check=False)


def test_off_wraps_nothing_and_says_nothing() -> None:
    assert choose("off") == SandboxChoice(None)


def test_without_bubblewrap_auto_says_so_and_required_refuses(tmp_path: Path) -> None:
    missing = str(tmp_path / "bwrap")
    choice = choose("auto", program=missing)
    assert choice.sandbox is None and "run unwrapped" in (choice.notice or "")
    with pytest.raises(ConfigError, match="--sandbox required"):
        choose("required", program=missing)


def test_a_bubblewrap_that_does_not_work_here_is_as_none(tmp_path: Path) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'No permissions to create namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    assert "No permissions" in (choose("auto", program=str(broken)).notice or "")


@needs_bwrap
def test_writes_reach_the_working_directory_and_the_scratchpad_only(work: Path) -> None:
    done = inside(
        work,
        f"echo 1 > a; echo 2 > {work.parent}/scratch/b; echo 3 > {work.parent}/c; echo 4 > /etc/d; echo 5 > /tmp/e && cat /tmp/e",
    )
    assert (work / "a").read_text() == "1\n"
    assert (work.parent / "scratch/b").read_text() == "2\n"
    assert not (work.parent / "c").exists() and not Path("/etc/d").exists() and not Path("/tmp/e").exists()
    assert done.stdout == "5\n"


@needs_bwrap
def test_it_starts_in_the_working_directory_and_hands_on_the_exit_code(work: Path) -> None:
    done = inside(work, "pwd; exit 7")
    assert (done.stdout.strip(), done.returncode) == (str(work), 7)


@needs_bwrap
def test_nothing_outside_can_be_seen_or_ended(work: Path) -> None:
    marker = subprocess.Popen(["sleep", "60"])
    try:
        done = inside(
            work, f"kill -9 {marker.pid}; kill -9 {os.getpid()}; ls -d /proc/{marker.pid}; pkill -9 sleep; kill -9 -1; true"
        )
        assert "No such" in done.stderr
        assert marker.poll() is None
    finally:
        marker.kill()
        marker.wait()


@needs_bwrap
def test_credentials_places_are_empty(work: Path) -> None:
    home = work.parent / "home"
    done = inside(work, f"ls -A {home}/.ssh; cat {home}/.netrc")
    assert done.stdout == ""


@needs_bwrap
def test_where_the_shell_stands_changes_nothing(work: Path) -> None:
    home = work.parent / "home"
    assert inside(work, "pwd; touch here", cwd=home).stdout == f"{home}\n"
    assert not (home / "here").exists()
    (work / "src").mkdir()
    inside(work, "touch ../beside", cwd=work / "src")
    assert (work / "beside").exists()


@needs_bwrap
def test_a_place_to_read_inside_a_hidden_one_can_be_read_and_not_written(work: Path) -> None:
    data = work.parent / "data"
    (data / "spill").mkdir(parents=True)
    (data / "spill/result").write_text("long")
    (data / "database").write_text("secret")
    sandbox = choose("required", readable=[data / "spill"], hidden=[data]).sandbox
    assert sandbox is not None
    argv = sandbox.of(work)(["sh", "-c", f"cat {data}/spill/result {data}/database; touch {data}/spill/new"], work)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL, check=False)
    assert done.stdout == "long" and not (data / "spill/new").exists()


@needs_bwrap
def test_a_worktree_can_be_committed_in_and_its_repository_gets_no_hooks(tmp_path: Path) -> None:
    main, tree = tmp_path / "main", tmp_path / "tree"
    git = f"git -C {main} -c user.name=x -c user.email=x"
    setup = f"git init -q {main} && {git} commit -q --allow-empty -m one && {git} worktree add -q {tree}"
    subprocess.run(["sh", "-c", setup], check=True, capture_output=True)
    commit = "touch a && git add a && git -c user.name=x -c user.email=x commit -qm two && git log --format=%s"
    done = inside(
        tree, f"{commit}; echo x > {main}/.git/hooks/pre-commit; echo x >> {main}/.git/config; echo x > .git; touch {main}/b"
    )
    assert done.stdout == "two\none\n", done.stderr
    assert not (main / ".git/hooks/pre-commit").exists() and not (main / "b").exists()
    assert "x" not in (main / ".git/config").read_text().splitlines() and (tree / ".git").read_text().startswith("gitdir:")


@needs_bwrap
def test_what_would_run_later_outside_cannot_be_placed(work: Path) -> None:
    inside(work, "echo x > .git/hooks/pre-commit; touch .git/index; mv .git old; mkdir .git && echo x > .git/hooks/pre-commit")
    assert not (work / ".git/hooks/pre-commit").exists()
    assert (work / ".git/index").exists()


@needs_bwrap
def test_file_systems_cannot_be_remounted(work: Path) -> None:
    inside(work, "mount -o remount,rw / ; umount /tmp; touch /etc/remounted")
    assert not Path("/etc/remounted").exists()


@needs_bwrap
def test_the_network_is_there_only_when_asked_for(work: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=lambda: server.accept()[0].close(), daemon=True).start()
        port = server.getsockname()[1]
        connect = f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo connected"
        assert inside(work, connect, network=False).stdout == ""
        assert inside(work, connect).stdout == "connected\n"


@needs_bwrap
def test_a_sandbox_dies_with_its_parent(work: Path) -> None:
    choice = choose("required")
    assert choice.sandbox is not None
    assert "--die-with-parent" in choice.sandbox.of(work)(["true"], work)
