"""How a shell command is held by the operating system. `choose` finds what this machine has, `Confinements.of` makes the
confinement of one agent; `base.Confine` says what each level means, `plan.py` what a mechanism is told, and `means.py` is
the port: bubblewrap, Landlock with namespaces (`native.py`), macOS' `sandbox-exec`.
"""

from __future__ import annotations

from worker_agent.tools.confinement.agent import AgentConfinement, Confinements
from worker_agent.tools.confinement.choose import Choice, SandboxMode, choose, found
from worker_agent.tools.confinement.survey import Fence

__all__ = ["AgentConfinement", "Choice", "Confinements", "Fence", "SandboxMode", "choose", "found"]
