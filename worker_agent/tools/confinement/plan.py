"""What the operating system is to hold of one command, as a value that every mechanism carries out in its own way.

Steps are taken in order; a later one lies over an earlier one:

1. outermost first: `hide` (shown empty), `show` (read only, also inside a hidden place), `write`;
2. of writable directories: `pin` (a directory that must not be moved) and `freeze` (read only), outermost first;
3. what deny rules name: `freeze`, then `hide`. Nothing shows it again.

What is writable hangs on the agent, never on where its shell stands: `cd /` must not open `/` to the next command.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec import Struct

from worker_agent import git
from worker_agent.tools.base import Confine
from worker_agent.tools.confinement.survey import Denied, Rights
from worker_agent.tools.places import secret_places

# Services that would do outside what cannot be done inside.
SERVICES = (
    "/run/user", "/run/dbus", "/run/docker.sock", "/run/docker", "/run/containerd", "/run/podman", "/run/snapd.socket",
    "/run/snapd-snap.socket", "/run/systemd/private", "/run/systemd/journal", "/run/libvirt", "/run/postgresql",
    "/run/mysqld", "/run/cups", "/run/pcscd", "/run/lxd.socket", "/run/crio", "/var/lib/lxd", "/var/lib/incus", "/run/screen",
)  # fmt: skip
EMPTY = ("/tmp", "/dev/shm")  # own and empty for each command

How = Literal["hide", "show", "write", "pin", "freeze"]


class Step(NamedTuple):
    how: How
    path: str


class Bounds(Struct, frozen=True, kw_only=True):
    """Of one agent. It writes in `directory` and `writable`; `readable` can be seen although it lies in a `private`
    place: our data directory with the database and others' transcripts."""

    directory: Path
    home: Path
    writable: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()
    private: tuple[Path, ...] = ()
    network: bool = False

    def own(self) -> tuple[Path, ...]:
        """Where it writes, links resolved; what is not there is left out."""
        places = (self.directory, *shared_git_directory(self.directory), *self.writable)
        return tuple(dict.fromkeys(path.resolve() for path in places if path.is_dir()))


class Plan(Struct, frozen=True, kw_only=True):
    """For one command. `closed`: writing, network and signals are held, too; else only the steps count (GUARD)."""

    level: Confine
    cwd: str
    steps: tuple[Step, ...]
    writable: tuple[str, ...]
    network: bool

    @property
    def closed(self) -> bool:
        return self.level is not Confine.GUARD

    def paths(self, *hows: How) -> list[str]:
        return [step.path for step in self.steps if step.how in hows]


def plan_for(bounds: Bounds, level: Confine, cwd: Path, rights: Rights, denied: Denied) -> Plan:
    """`rights` and `denied` are what lies there now."""
    own = bounds.own() if level is not Confine.GUARD else ()
    steps: list[Step] = []
    if level is not Confine.GUARD:
        places: dict[str, How] = dict.fromkeys(_hidden(bounds), "hide")
        places |= dict.fromkeys((str(path.resolve()) for path in bounds.readable if path.is_dir()), "show")
        places |= dict.fromkeys(map(str, own), "write" if level is Confine.WORKSPACE else "show")
        steps += (Step(how, path) for path, how in sorted(places.items(), key=lambda place: _depth(place[0])))
    if level is Confine.WORKSPACE:
        steps += _kept(rights)
    steps += (Step("freeze", path) for path in sorted(denied.frozen, key=_depth))
    steps += (Step("hide", path) for path in sorted(denied.hidden, key=_depth))
    return Plan(
        level=level,
        cwd=str(cwd),
        steps=tuple(steps),
        writable=tuple(map(str, own)) if level is Confine.WORKSPACE else (),
        network=bounds.network or level is Confine.GUARD,
    )


def _hidden(bounds: Bounds) -> Iterator[str]:
    for path in (*map(Path, SERVICES), *secret_places(bounds.home), *bounds.private):
        if os.path.exists(path):  # what we may not reach, as `/root/.ssh` is for most, a command of ours may not either
            yield str(path.resolve())


def _kept(rights: Rights) -> list[Step]:
    """A link cannot be kept itself; what it leads to can."""
    pinned: dict[str, How] = {place.path: "pin" for place in rights.pinned}
    frozen: dict[str, How] = {os.path.realpath(place.path): "freeze" for place in rights.frozen}
    both = {path: how for path, how in (pinned | frozen).items() if os.path.exists(path)}
    return [Step(how, path) for path, how in sorted(both.items(), key=lambda place: _depth(place[0]))]


def _depth(path: str) -> tuple[int, str]:
    return path.count("/") if path != "/" else 0, path


def lies_in(path: str, places: Iterable[str]) -> bool:
    return any(path == place or path.startswith(place.rstrip("/") + "/") for place in places)


def shared_git_directory(directory: Path) -> tuple[Path, ...]:
    """Where a worktree keeps its objects and branches, beside its own directory: without it nothing can be committed."""
    if not (directory / ".git").is_file():  # which only a worktree or a submodule has
        return ()
    place = git.place_of(directory)
    is_worktree = place is not None and place.directory.samefile(directory) and place.git.parent == place.common / "worktrees"
    return (place.common,) if place is not None and is_worktree else ()
