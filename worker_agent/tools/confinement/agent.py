"""The confinement of one agent: what can be held now, and each of its commands wrapped.

What a level holds depends on what lies there: deny rules are about paths, and a mechanism can only hide what exists. So
`holds` looks (bounded, and kept for `FRESH` seconds), and `wrap` looks again when the command starts. Both may be called
from any thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from worker_agent.process import Wrapped
from worker_agent.structs import replace
from worker_agent.tools.base import Confine
from worker_agent.tools.confinement.aside import set_aside
from worker_agent.tools.confinement.means import Means
from worker_agent.tools.confinement.plan import Bounds, plan_for
from worker_agent.tools.confinement.survey import Denied, DenyWatch, Fence, Rights, RightsWatch, TooMuch

FRESH = 2.0  # seconds for which an answer of `holds` may be given again


class Confinements(Struct, frozen=True, kw_only=True):
    """What the agents of one session have in common. `aside` takes what a command must not leave behind."""

    means: Means
    home: Path
    aside: Path
    writable: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()
    private: tuple[Path, ...] = ()
    network: bool = False
    required: bool = False

    def of(self, directory: Path, fences: Sequence[Fence] = ()) -> AgentConfinement:
        """The confinement of an agent that works in `directory` under these deny rules."""
        bounds = Bounds(
            directory=directory,
            home=self.home,
            writable=self.writable,
            readable=self.readable,
            private=self.private,
            network=self.network,
        )
        return AgentConfinement(self.means, bounds, fences, aside=self.aside, required=self.required)


class AgentConfinement:
    """Implements `base.Confinement`."""

    def __init__(self, means: Means, bounds: Bounds, fences: Sequence[Fence], *, aside: Path, required: bool = False) -> None:
        self._means, self._bounds = means, bounds
        self._aside, self._required = aside, required
        self._denied = DenyWatch(fences)
        self._rights: RightsWatch | None = None
        self._answers: dict[Confine, tuple[float, str | None]] = {}
        self._lock = threading.Lock()

    def holds(self, level: Confine) -> bool:
        """Whether a command run at this level really is held as `Confine` says, deny rules included."""
        return self.problem(level) is None

    @property
    def why_not(self) -> str | None:
        """Why WORKSPACE cannot be held; None if it can."""
        return self.problem(Confine.WORKSPACE)

    def problem(self, level: Confine) -> str | None:
        """Why `level` cannot be held; None if it can."""
        with self._lock:
            due, answer = self._answers.get(level, (0.0, None))
            if due <= time.monotonic():
                answer = self._look(level)
                self._answers[level] = time.monotonic() + FRESH, answer
            return answer

    def _look(self, level: Confine) -> str | None:
        try:
            denied = self._denied.look()
            if level is Confine.WORKSPACE:
                self._watch().look()
        except TooMuch as error:
            return str(error)
        if level is Confine.WORKSPACE and self._means.lacks:
            return self._means.lacks[0]
        if level is Confine.GUARD and not self._means.masks and (denied.hidden or denied.frozen):
            return self._means.lacks[0]
        return None

    def _watch(self) -> RightsWatch:
        if self._rights is None:
            self._rights = RightsWatch(self._bounds.own(), self._bounds.home)
        return self._rights

    def wrap(self, argv: Sequence[str], cwd: Path, level: Confine) -> Wrapped:
        """The command as it is to be started; what `level` asks and cannot be had here is held as far as it can. Raises
        `OSError` if a program cannot be found."""
        level = Confine.WORKSPACE if self._required and level is Confine.GUARD else level
        with self._lock:
            denied, rights = self._denied_now(), self._rights_now() if level is Confine.WORKSPACE else None
        plan = plan_for(self._bounds, level, cwd, rights or Rights(), denied)
        if not plan.closed and not (plan.steps and self._means.masks):
            return Wrapped(tuple(argv))
        wrapped = self._means.wrap(plan, argv)
        return replace(wrapped, finish=lambda: self._afterwards(rights)) if rights is not None else wrapped

    def _denied_now(self) -> Denied:
        try:
            return self._denied.look()
        except TooMuch:
            return Denied()

    def _rights_now(self) -> Rights | None:
        try:
            return self._watch().look()
        except TooMuch:
            return None  # then nothing is set aside afterwards either: what was there before is not known

    def _afterwards(self, before: Rights) -> tuple[str, ...]:
        with self._lock:
            return set_aside(self._watch(), before, self._aside)
