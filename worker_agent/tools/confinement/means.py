"""The port to a mechanism of the operating system, and what a wrapped command is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from worker_agent.process import Wrapped
from worker_agent.tools.confinement.plan import Plan


class Means(Protocol):
    """A mechanism that works here: it was tried.

    `masks`: it can take away below what it grants, so that places inside a writable directory can be kept.
    `lacks`: what of a closed plan it does not hold, a sentence each; with one of these WORKSPACE is not held."""

    @property
    def name(self) -> str: ...

    @property
    def masks(self) -> bool: ...

    @property
    def lacks(self) -> tuple[str, ...]: ...

    def describe(self) -> str:
        """What is in force, for a person."""
        ...

    def wrap(self, plan: Plan, argv: Sequence[str]) -> Wrapped:
        """Raises `OSError` if the program cannot be found."""
        ...
