"""What each mechanism of confinement really holds, by effect: one suite for all that this machine has, as root and as nobody.

One command a level tries many things and says of each whether it worked; a test is one row of it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from worker_agent.tools.base import Confine
from worker_agent.tools.confinement import AgentConfinement, Confinements, Fence, bubblewrap, native
from worker_agent.tools.confinement.means import Means
from worker_agent.tools.rules import Behavior, Places, Rule, Source

LINUX = sys.platform.startswith("linux")
KERNEL = native.find()[0] if LINUX else None
MEANS: dict[str, Means | None] = {
    "bubblewrap": bubblewrap.find()[0] if LINUX else None,
    "namespaces": KERNEL if KERNEL and KERNEL.namespaces else None,
    "landlock": native.Native(KERNEL.abi, namespaces=False) if KERNEL else None,
}
SYSTEM_PYTHON = "/usr/bin/python3"
NOBODY = 65534
CANNOT_BE_NOBODY = (
    "only root can become nobody" if os.geteuid() != 0
    else f"nobody cannot run {SYSTEM_PYTHON} with the launcher"
    if subprocess.run([SYSTEM_PYTHON, "-c", f"open({str(native.LAUNCHER)!r})"], user=NOBODY, check=False,
                      stderr=subprocess.DEVNULL).returncode else ""
) if os.path.exists(SYSTEM_PYTHON) else "no Python of the system's"  # fmt: skip

# Each row: what is tried. `$OUT` is a process outside, `$PORT` a TCP and UDP port outside.
TRIES = {
    "write inside": "echo 1 > new && mkdir fresh && echo 1 > fresh/f",
    "write below": "echo 1 >> sub/file",
    "write scratch": "echo 1 > $BASE/scratch/f",
    "write memory": "echo 1 > .coordinator/memory/note.md",
    "write temporary": "echo 1 > $TMPDIR/f && cat $TMPDIR/f",
    "commit": "git add sub/file && git -c user.name=x -c user.email=x commit -qm two",
    "end its own": "sleep 60 & kill $!",
    "substitute": "diff <(echo 1) <(echo 1)",
    "null": "echo 1 > /dev/null && head -c1 /dev/urandom",
    "read inside": "grep -q text sub/file",
    "read spill": "grep -q text $BASE/data/spill/result",
    "read home": "grep -q text $BASE/home/tool",
    "own server": "$PYTHON -c 'import socket as s; a=s.create_server((\"127.0.0.1\",0)); s.create_connection(a.getsockname())'",
    "write beside": "echo 1 > $BASE/beside/f",
    "write home": "echo 1 >> $BASE/home/.bashrc",
    "write data": "echo 1 >> $BASE/data/database || echo 1 > $BASE/data/new",
    "write spill": "echo 1 > $BASE/data/spill/new",
    "write there": "touch $BASE/home/tool",
    "move out": "mv sub/file $BASE/beside/",
    "link in": "ln $BASE/home/.bashrc linked && echo 1 >> linked",
    "git hook": "echo 1 > .git/hooks/pre-commit",
    "git config": "git config core.fsmonitor x || echo 1 >> .git/config",
    "git config by another name": "ln .git/config h && echo 1 >> h",
    "git config replaced": "cp .git/config c && mv -f c .git/config",
    "move git": "mv .git away",
    "settings": "echo 1 >> .coordinator/settings.toml",
    "settings replaced": "echo 1 > s && mv -f s .coordinator/settings.toml",
    "move settings": "mv .coordinator away2",
    "tasks": "echo 1 > .vscode/tasks.json || rm -r .vscode",
    "nested git config": "echo 1 >> vendor/x/.git/config",
    "unlinked settings": "rm .envrc && echo 1 > .envrc",
    "read ssh": "grep -q SECRET $BASE/home/.ssh/id",
    "read netrc": "grep -q SECRET $BASE/home/.netrc",
    "read database": "grep -q SECRET $BASE/data/database",
    "read denied": "grep -q SECRET secrets/k",
    "read denied at depth": "grep -q SECRET sub/deep/a.pem",
    "read denied through a link": "ln -s secrets l; grep -q SECRET l/k",
    "read denied by hard link": "ln secrets/k hard && grep -q SECRET hard",
    "read denied moved": "mv secrets open && grep -q SECRET open/k",
    "read denied unmasked": "umount secrets; unshare -Urm umount $PWD/secrets; unshare -Urm sh -c 'umount -l secrets'; grep -q SECRET secrets/k",
    "read denied from outside": "grep -q SECRET /proc/$OUT/root$PWD/secrets/k || grep -q SECRET /proc/$OUT/cwd/secrets/k",
    "edit denied": "echo 1 >> frozen.txt",
    "replace denied": "echo 1 > f && mv -f f frozen.txt",
    "signal": "kill -0 $OUT",
    "environment": "grep -q SECRET /proc/$OUT/environ",
    "tcp": "exec 3<>/dev/tcp/127.0.0.1/$PORT",
    "abstract socket": "$PYTHON -c 'import socket as s; s.socket(s.AF_UNIX).connect(\"\\0\"+\"'$ABSTRACT'\")'",
    "kernel settings": "exec 3>>/proc/sys/kernel/core_pattern",  # opened, never written
    "temporary files of others": "grep -q text /var/tmp/none /tmp/$OTHER",
}  # fmt: skip
WORKS = {
    "write inside", "write below", "write scratch", "write memory", "write temporary", "commit", "end its own", "substitute",
    "null", "read inside", "read spill", "read home", "own server",
}  # fmt: skip
READS = {"write temporary", "end its own", "substitute", "null", "read inside", "read spill", "read home"}
# A person or a rule allowed it: only what deny rules name is held, in whatever way it is tried.
GUARDED = {
    "read denied", "read denied at depth", "read denied through a link", "read denied by hard link", "read denied moved",
    "read denied unmasked", "read denied from outside", "edit denied", "replace denied",
}  # fmt: skip
# Landlock alone gives a working directory with all that is in it, which is why it does not say that it holds WORKSPACE.
NOT_BY_LANDLOCK_ALONE = {
    "git hook", "git config", "git config by another name", "git config replaced", "move git", "settings", "settings replaced",
    "move settings", "tasks", "nested git config", "unlinked settings", *GUARDED, "own server", "environment", "commit", "write there",
}  # fmt: skip


@dataclass
class Box:
    """A project with everything worth stealing or breaking, and processes outside to reach for."""

    means: Means
    base: Path
    nobody: bool
    rows: dict[Confine, dict[str, bool]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    received: bytes = b""

    @property
    def work(self) -> Path:
        return self.base / "work"

    def confinement(self) -> AgentConfinement:
        source = Source("test", base=self.work)
        rules = tuple(
            Rule.parse(text, source, Behavior.DENY) for text in ("Read(./secrets/**)", "Read(**/*.pem)", "Edit(/frozen.txt)")
        )
        return Confinements(
            means=self.means,
            home=self.base / "home",
            aside=self.base / "data/spill/aside",
            writable=(self.base / "scratch",),
            readable=(self.base / "data/spill",),
            private=(self.base / "data",),
        ).of(self.work, (Fence(rules, Places(self.work, self.base / "home", (self.work,))),))

    def run(self, command: str, level: Confine, **environment: str) -> subprocess.CompletedProcess[str]:
        with acting_as(NOBODY if self.nobody else os.geteuid()):  # who cannot look everywhere plans, too
            wrapped = self.confinement().wrap(("bash", "-c", command), self.work, level)
        argv = [SYSTEM_PYTHON if self.nobody and part == sys.executable else part for part in wrapped.argv]
        as_nobody = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if self.nobody else {}
        if self.nobody and (own := wrapped.environment.get("TMPDIR", "/tmp")) != "/tmp":
            os.chown(own, NOBODY, NOBODY)
        try:
            return subprocess.run(
                argv,
                cwd=self.work,
                env={**os.environ, "BASE": str(self.base), **environment, **wrapped.environment},
                pass_fds=wrapped.pass_fds,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
                **as_nobody,  # type: ignore[call-overload]
            )
        finally:
            self.notes += tuple(wrapped.finish()) if wrapped.finish else ()
            wrapped.close()

    def try_all(self, level: Confine) -> None:
        abstract = f"coordinator-test-{os.getpid()}-{level}-{self.means.name}-{self.nobody}".replace(" ", "")
        with (
            tempfile.NamedTemporaryFile("w", dir="/tmp") as other,
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.socket(socket.AF_UNIX) as unix,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
        ):
            other.write("text\n")
            other.flush()
            os.chmod(other.name, 0o644)
            unix.bind(f"\0{abstract}")
            unix.listen()
            port = server.getsockname()[1]
            datagrams.bind(("127.0.0.1", port))
            datagrams.setblocking(False)
            ids = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if self.nobody else {}
            outside = subprocess.Popen(["sleep", "60"], env={"KEY": "SECRET", "PATH": os.environ["PATH"]}, cwd=self.work, **ids)  # type: ignore[call-overload]
            lines = [f"( {command} ) >/dev/null 2>&1 </dev/null && echo '{name}'" for name, command in TRIES.items()]
            lines.append(f"echo out > /dev/udp/127.0.0.1/{port}")
            try:
                done = self.run(
                    "\n".join([*lines, "true"]),
                    level,
                    OUT=str(outside.pid),
                    PORT=str(port),
                    ABSTRACT=abstract,
                    OTHER=os.path.basename(other.name),
                    PYTHON=SYSTEM_PYTHON if os.path.exists(SYSTEM_PYTHON) else sys.executable,
                )
                assert done.returncode == 0, done.stderr
                assert outside.poll() is None
            finally:
                outside.kill()
                outside.wait()
            try:
                self.received = datagrams.recv(10)
            except BlockingIOError:
                self.received = b""
        worked = set(done.stdout.splitlines())
        assert worked <= TRIES.keys(), done.stdout
        self.rows[level] = {name: name in worked for name in TRIES}


@contextmanager
def acting_as(user: int) -> Iterator[None]:
    before = os.geteuid()
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(before)


def build(base: Path) -> None:
    for name in ("work/sub/deep", "work/secrets", "work/.vscode", "work/.coordinator/memory", "work/vendor/x", "beside", "scratch",
                 "home/.ssh", "data/spill"):  # fmt: skip
        (base / name).mkdir(parents=True)
    for name, text in {
        "work/sub/file": "text", "work/sub/deep/a.pem": "SECRET", "work/secrets/k": "SECRET", "work/frozen.txt": "as it is",
        "work/.coordinator/settings.toml": "", "work/.envrc": "", "home/.ssh/id": "SECRET", "home/.netrc": "SECRET",
        "home/.bashrc": "", "home/tool": "text", "data/database": "SECRET", "data/spill/result": "text",
    }.items():  # fmt: skip
        (base / name).write_text(text + "\n")
    for repository in ("work", "work/vendor/x"):
        subprocess.run(["git", "init", "-q", str(base / repository)], check=True)


@pytest.fixture(scope="module", params=[(name, user) for name in MEANS for user in ("as we are", "nobody")], ids=" ".join)
def box(request: pytest.FixtureRequest) -> Iterator[Box]:
    name, user = request.param
    means = MEANS[name]
    if means is None:
        pytest.skip(f"NOT TESTED: this machine has no {name}")
    if user == "nobody" and CANNOT_BE_NOBODY:
        pytest.skip(f"NOT TESTED as nobody: {CANNOT_BE_NOBODY}")
    base = Path(tempfile.mkdtemp(prefix="confinement-", dir="/var/tmp")).resolve()
    try:
        build(base)
        if user == "nobody":
            for path in (base, *base.rglob("*")):
                os.chown(path, NOBODY, NOBODY)
        box = Box(means, base, user == "nobody")
        os.chmod(base, 0o755)
        for level in (
            (Confine.READ_ONLY, Confine.GUARD, Confine.WORKSPACE) if means.masks else (Confine.READ_ONLY, Confine.WORKSPACE)
        ):
            state = Path(f"{base}.kept")
            shutil.copytree(base, state, symlinks=True)
            box.try_all(level)
            if level is not Confine.WORKSPACE:
                shutil.rmtree(base)
                shutil.copytree(state, base, symlinks=True)
                if user == "nobody":
                    for path in (base, *base.rglob("*")):
                        os.chown(path, NOBODY, NOBODY)
            shutil.rmtree(state)
        yield box
    finally:
        shutil.rmtree(base, ignore_errors=True)


def test_read_only_reads_and_nothing_else(box: Box) -> None:
    worked = {name for name, done in box.rows[Confine.READ_ONLY].items() if done}
    assert worked - {"own server"} == READS  # a server of its own, on a loopback of its own, harms nobody


def test_workspace_writes_where_it_works_and_nowhere_else(box: Box) -> None:
    worked = {name for name, done in box.rows[Confine.WORKSPACE].items() if done}
    if box.means.masks:
        assert worked == WORKS
        assert box.received == b""
    else:
        assert worked - NOT_BY_LANDLOCK_ALONE == WORKS - NOT_BY_LANDLOCK_ALONE


def test_guard_holds_what_deny_rules_name_and_nothing_else(box: Box) -> None:
    if not box.means.masks:
        assert not box.confinement().holds(Confine.GUARD)
        return
    worked = {name for name, done in box.rows[Confine.GUARD].items() if done}
    assert not worked & GUARDED
    tried = {
        "write beside",
        "write home",
        "signal",
        "tcp",
        "read ssh",
        "read database",
        "git config",
        "write inside",
        "own server",
    }
    assert tried <= worked


def test_what_it_says_it_holds_is_what_it_holds(box: Box) -> None:
    confinement = box.confinement()
    assert confinement.holds(Confine.READ_ONLY)
    assert confinement.holds(Confine.WORKSPACE) == box.means.masks
    assert (confinement.why_not is None) == box.means.masks


def test_what_appears_where_rights_come_from_does_not_stay(box: Box) -> None:
    box.notes = ()
    box.run(
        "mkdir -p .idea fresh2 && echo 1 > .idea/workspace.xml; echo 1 > .mcp.json; git init -q fresh2; echo 1 > kept",
        Confine.WORKSPACE,
    )
    assert (box.work / "kept").exists()
    assert not (box.work / ".idea").exists() and not (box.work / ".mcp.json").exists()
    assert (box.work / "fresh2/.git/objects").is_dir() and not (box.work / "fresh2/.git/config").exists()
    assert {note.split(" grants rights")[0].removeprefix(f"{box.work}/") for note in box.notes} >= {
        ".idea", ".mcp.json", "fresh2/.git/config", "fresh2/.git/hooks",
    }  # fmt: skip
    assert any(path.name.endswith(".mcp.json") for path in (box.base / "data/spill/aside").iterdir())


def test_a_temporary_directory_goes_with_its_command(box: Box) -> None:
    name = f"left-{os.getpid()}"
    where = box.run(f"echo 1 > $TMPDIR/{name} && echo $TMPDIR", Confine.READ_ONLY).stdout.strip()
    assert where and not (Path(where) / name).exists()


def test_where_the_shell_stands_changes_nothing(box: Box) -> None:
    assert box.run("cd / && touch here; cd sub; touch ../../beside/x; pwd", Confine.WORKSPACE).returncode == 0
    assert not Path("/here").exists() and not (box.base / "beside/x").exists()


def test_an_exit_code_and_a_missing_program_are_as_without(box: Box) -> None:
    assert box.run("exit 7", Confine.READ_ONLY).returncode == 7
    assert box.run("kill -9 $$", Confine.WORKSPACE).returncode in (-9, 137)


def test_the_network_is_there_when_asked_for(box: Box) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        confinements = Confinements(means=box.means, home=box.base / "home", aside=box.base / "a", network=True)
        wrapped = confinements.of(box.work).wrap(
            ("bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{server.getsockname()[1]} && echo connected"),
            box.work,
            Confine.WORKSPACE,
        )
        done = subprocess.run(wrapped.argv, pass_fds=wrapped.pass_fds, capture_output=True, text=True, check=False)
        wrapped.close()
    assert done.stdout == "connected\n", done.stderr
