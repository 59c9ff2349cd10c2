"""`--sandbox auto|required|off`: shell commands under bubblewrap, where it works.

Inside: the whole file system to read, but credentials' usual places and our own data directory are empty; writes only in
the working directory, the roots, the scratchpad and a `/tmp` of its own; own process and IPC namespaces, so that nothing
outside can be seen or signalled; the network as asked. A wrapper dies with its parent. `auto` without a working bubblewrap
runs unwrapped and says so; `required` refuses.

`Sandbox.wrap` has the shape of `ToolContext.sandbox`: argv and working directory in, argv out.
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
    """`writable` beside the working directory; `hidden` are directories shown empty and files shown as nothing."""

    program: str
    writable: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()
    network: bool = True

    def wrap(self, argv: Sequence[str], cwd: Path) -> list[str]:
        return [self.program, *self._options(cwd), "--chdir", str(cwd), "--", *argv]

    def _options(self, cwd: Path) -> Iterator[str]:
        yield from ("--die-with-parent", "--cap-drop", "ALL", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
        if not self.network:
            yield "--unshare-net"
        yield from ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp")
        writable = [path.resolve() for path in dict.fromkeys((cwd, *self.writable)) if path.is_dir()]
        hidden = [path.resolve() for path in (*map(Path, _SERVICES), *self.hidden) if path.exists()]
        # Outer places first: what is bound later lies over what was bound before.
        for path in sorted({*writable, *hidden}, key=lambda path: len(path.parts)):
            yield from self._place(path, path in writable)
        for path in writable:
            for name in _READ_ONLY_INSIDE:
                if (path / name).exists() and not (path / name).is_symlink():
                    yield from ("--ro-bind", str(path / name), str(path / name))

    def _place(self, path: Path, writable: bool) -> tuple[str, ...]:
        if writable:
            return ("--bind", str(path), str(path))
        return ("--tmpfs", str(path)) if path.is_dir() else ("--ro-bind", "/dev/null", str(path))


def default_hidden(home: Path, *ours: Path) -> tuple[Path, ...]:
    """Credentials' usual places, and `ours`: the data directory with database and transcripts."""
    return (*(home / name for name in _HIDDEN_IN_HOME), *ours)


@dataclass(frozen=True, slots=True)
class SandboxChoice:
    """`wrap` is None where commands run unwrapped; `notice` says in one line what a person should know."""

    wrap: Wrap | None
    notice: str | None = None


def choose(
    mode: SandboxMode | str,
    *,
    writable: Sequence[Path] = (),
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
        return SandboxChoice(Sandbox(program=found, writable=tuple(writable), hidden=tuple(hidden), network=network).wrap)
    if mode is SandboxMode.REQUIRED:
        raise ConfigError(f"--sandbox required: {problem}")
    return SandboxChoice(None, f"no sandbox: {problem}; shell commands run unwrapped")


def _problem(program: str | None) -> str | None:
    if program is None:
        return "bubblewrap (bwrap) is not installed"
    probe = Sandbox(program=program).wrap(("true",), Path("/usr"))
    try:
        done = subprocess.run(probe, capture_output=True, timeout=_PROBE_SECONDS, stdin=subprocess.DEVNULL, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap does not start ({error})"
    first = next(iter(done.stderr.decode("utf-8", "replace").strip().splitlines()), "")
    return None if done.returncode == 0 else f"bubblewrap does not work here ({first or f'exit code {done.returncode}'})"
