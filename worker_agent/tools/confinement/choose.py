"""`--sandbox auto|required|off`: which mechanism holds shell commands on this machine.

Each is tried by effect, once in a process, and only when somebody asks. `auto` takes bubblewrap, else what the kernel gives
by itself, else none, and says so; `required` refuses unless everything that WORKSPACE promises can be held.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache

from msgspec import Struct

from worker_agent.errors import ConfigError
from worker_agent.tools.confinement import bubblewrap, native, seatbelt
from worker_agent.tools.confinement.means import Means


class SandboxMode(StrEnum):
    AUTO = "auto"
    REQUIRED = "required"
    OFF = "off"


class Choice(Struct, frozen=True):
    """`means` is None where commands run as they are; `notice` says in one line what a person should know. `required`:
    no command may run with less than WORKSPACE."""

    means: Means | None
    notice: str | None = None
    required: bool = False


def choose(mode: SandboxMode | str) -> Choice:
    """What `--sandbox` comes to on this machine. Raises `ConfigError` when it is required and not to be had."""
    mode = SandboxMode(mode)
    if mode is SandboxMode.OFF:
        return Choice(None)
    means, why_not = found()
    required = mode is SandboxMode.REQUIRED
    if means is None:
        if required:
            raise ConfigError(f"--sandbox required: {why_not}")
        return Choice(None, f"no sandbox: {why_not}; shell commands run unconfined, and ask where a confined one would not")
    if required and means.lacks:
        raise ConfigError(f"--sandbox required: {means.lacks[0]}")
    return Choice(means, required=required)


@cache
def found() -> tuple[Means | None, str]:
    """The best mechanism that works here, and why there is none."""
    wrapper, no_wrapper = bubblewrap.find()
    if wrapper is not None:
        return wrapper, ""
    seat, _ = seatbelt.find()
    if seat is not None:
        return seat, ""
    kernel, no_kernel = native.find()
    return (kernel, "") if kernel is not None else (None, f"{no_wrapper}, and {no_kernel}")
