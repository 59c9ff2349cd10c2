"""`--sandbox auto|required|off`: shell commands under bubblewrap, where it works.

Inside: the whole file system to read, but credentials' usual places and our own data directory are empty; writes only in
the agent's working directory, added directories, the scratchpad and a `/tmp` of its own; own process and IPC namespaces, so
that nothing outside can be seen or signalled; the network as asked. A wrapper dies with its parent. `auto` without a working
bubblewrap runs unwrapped and says so; `required` refuses.

What is writable hangs on the agent, never on where its shell stands: `cd /` must not open `/` to the next command.
`Sandbox.of(directory)` has the shape of `ToolContext.sandbox`: argv and the shell's directory in, argv out.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from worker_agent.errors import ConfigError

Wrap = Callable[[Sequence[str], Path], Sequence[str]]

_PROBE_SECONDS = 10.0
# Under the home directory: what a command has no business to read.
_HIDDEN_IN_HOME = (
    ".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".config/gcloud", ".config/gh", ".netrc", ".pgpass", ".npmrc",
    ".pypirc", ".claude.json", ".claude/.credentials.json", ".git-credentials", ".config/git/credentials", ".cargo/credentials.toml",
)  # fmt: skip
# Services that would do outside what cannot be done inside.
_SERVICES = ("/run/user", "/run/dbus", "/run/docker.sock", "/run/containerd", "/run/podman", "/run/snapd.socket")
# Inside a writable directory: what would run later, outside of the sandbox.
_READ_ONLY_INSIDE = (".git/hooks", ".git/config", ".claude", ".mcp.json", ".vscode", ".envrc", ".husky")


class SandboxMode(StrEnum):
    AUTO = "auto"
    REQUIRED = "required"
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """`writable` beside an agent's own directory; `readable` can be seen although it lies in a hidden one; `hidden` are
    directories shown empty and files shown as nothing."""

    program: str
    writable: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()
    network: bool = True

    def of(self, directory: Path) -> Wrap:
        """The wrapper of an agent that works in `directory`."""

        def wrap(argv: Sequence[str], cwd: Path) -> list[str]:
            return [self.program, *self._options(directory), "--chdir", str(cwd), "--", *argv]

        return wrap

    def _options(self, directory: Path) -> Iterator[str]:
        yield from (
            "--die-with-parent",
            "--cap-drop",
            "ALL",
            "--unshare-pid",
            "--unshare-ipc",
            "--unshare-uts",
            "--unshare-cgroup-try",
        )
        if not self.network:
            yield "--unshare-net"
        yield from ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp")
        own = (directory, *_shared_git_directory(directory), *self.writable)
        places = {path.resolve(): "hidden" for path in (*map(Path, _SERVICES), *self.hidden) if path.exists()}
        places |= {path.resolve(): "--ro-bind" for path in self.readable if path.is_dir()}
        places |= {path.resolve(): "--bind" for path in own if path.is_dir()}
        # Outer places first: what is bound later lies over what was bound before.
        for path, how in sorted(places.items(), key=lambda place: len(place[0].parts)):
            yield from (how, str(path), str(path)) if how != "hidden" else _empty(path)
        for path, how in places.items():
            if how == "--bind":
                yield from _kept_from_writing(path)


def _empty(path: Path) -> tuple[str, ...]:
    return ("--tmpfs", str(path)) if path.is_dir() else ("--ro-bind", "/dev/null", str(path))


def _kept_from_writing(directory: Path) -> Iterator[str]:
    """`.git` is bound onto itself, so that it cannot be moved out of the way."""
    git = directory / ".git"
    if git.is_dir() and not git.is_symlink():
        yield from ("--bind", str(git), str(git))
    inside = directory if (directory / "HEAD").is_file() and (directory / "objects").is_dir() else None
    names = (".git", *_READ_ONLY_INSIDE) if git.is_file() else _READ_ONLY_INSIDE
    for path in (*(directory / name for name in names), *((inside / "hooks", inside / "config") if inside else ())):
        if path.exists() and not path.is_symlink():
            yield from ("--ro-bind", str(path), str(path))


def _shared_git_directory(directory: Path) -> tuple[Path, ...]:
    """Where a worktree keeps its objects and branches, beside its own directory: without it nothing can be committed."""
    try:
        text = (directory / ".git").read_text("utf-8")
        own = Path(text.removeprefix("gitdir:").strip())
        shared = own / (own / "commondir").read_text("utf-8").strip()
    except (OSError, ValueError):
        return ()
    is_worktree = text.startswith("gitdir:") and own.is_absolute() and own.parent.name == "worktrees"
    return (shared.resolve(),) if is_worktree and shared.resolve() == own.parent.parent.resolve() else ()


def default_hidden(home: Path, *ours: Path) -> tuple[Path, ...]:
    """Credentials' usual places, and `ours`: the data directory with database and transcripts."""
    return (*(home / name for name in _HIDDEN_IN_HOME), *ours)


@dataclass(frozen=True, slots=True)
class SandboxChoice:
    """`sandbox` is None where commands run unwrapped; `notice` says in one line what a person should know."""

    sandbox: Sandbox | None
    notice: str | None = None


def choose(
    mode: SandboxMode | str,
    *,
    writable: Sequence[Path] = (),
    readable: Sequence[Path] = (),
    hidden: Sequence[Path] = (),
    network: bool = True,
    program: str | None = None,
) -> SandboxChoice:
    """What `--sandbox` comes to on this machine. Raises `ConfigError` when it is required and not to be had."""
    mode = SandboxMode(mode)
    if mode is SandboxMode.OFF:
        return SandboxChoice(None)
    found = program or shutil.which("bwrap")
    problem = _problem(found)
    if problem is None and found is not None:
        places = {"writable": tuple(writable), "readable": tuple(readable), "hidden": tuple(hidden)}
        return SandboxChoice(Sandbox(program=found, network=network, **places))
    if mode is SandboxMode.REQUIRED:
        raise ConfigError(f"--sandbox required: {problem}")
    return SandboxChoice(None, f"no sandbox: {problem}; shell commands run unwrapped")


def _problem(program: str | None) -> str | None:
    if program is None:
        return "bubblewrap (bwrap) is not installed"
    probe = Sandbox(program=program).of(Path("/nonexistent"))(("true",), Path("/usr"))
    try:
        done = subprocess.run(probe, capture_output=True, timeout=_PROBE_SECONDS, stdin=subprocess.DEVNULL, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap does not start ({error})"
    first = next(iter(done.stderr.decode("utf-8", "replace").strip().splitlines()), "")
    return None if done.returncode == 0 else f"bubblewrap does not work here ({first or f'exit code {done.returncode}'})"
