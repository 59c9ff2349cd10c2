"""What a session consists of, each part complete when it is made (`composition.py`).

Who runs it adds only what is done about what happens: its owner (`session.py`), a node that has part in it
(`cluster/node.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from coordinator.agents.asking import Questions
from coordinator.agents.budget import AgentBudget
from coordinator.agents.engines import EngineFactory
from coordinator.agents.inbox import TaskInbox
from coordinator.agents.journal import History
from coordinator.agents.rights import Rights
from coordinator.observed import Observer
from coordinator.runs.backends.base import Backend
from coordinator.runs.processes import Processes
from coordinator.session.coordinator import Coordinator
from coordinator.session.time_limit import TimeLimit
from coordinator.store import Store
from coordinator.wakes import Wakes
from worker_agent.causes import Cause
from worker_agent.events import PermissionDenial
from worker_agent.hooks import HookRunner
from worker_agent.memory import MemoryIndex
from worker_agent.session.engine import QueryEngine

if TYPE_CHECKING:
    from coordinator.agents.mcp_tools import McpTools


class Parts(Struct, frozen=True, kw_only=True):
    """`engine`, `history`, `inbox`, `budget` and `processes` are of the session's own agent; `denials` is what was denied to
    workers so far; `plugins` are their names and directories; `problems` are lines for a person about what was found and left out."""

    store: Store
    wakes: Wakes
    observer: Observer
    redact: Callable[[str], str]
    hooks: HookRunner
    rights: Rights
    questions: Questions
    time_limit: TimeLimit
    engines: EngineFactory
    engine: QueryEngine
    history: History
    inbox: TaskInbox
    budget: AgentBudget
    processes: Processes
    coordinator: Coordinator
    backend: Backend
    denials: list[PermissionDenial]
    memory: MemoryIndex | None
    mcp: McpTools | None
    plugins: tuple[tuple[str, str], ...]
    problems: tuple[str, ...]

    def nudge(self) -> None:
        """Something may have come for anybody: each looks for itself."""
        for task_id in self.backend.running():
            self.backend.nudge(task_id)
        self.inbox.nudge()
        self.questions.look()
        self.wakes.others()
        self.wakes.ready.set()

    async def let_engine_go(self) -> None:
        """No turn of the session's own agent comes any more."""
        self.budget.close()
        await self.engine.close()
        if self.memory is not None:
            self.memory.close()

    async def leave(self) -> None:
        """Give up what was opened to have part in the session, and leave it as it stands."""
        await self.backend.close(Cause.TERMINATED)
        await self.let_engine_go()
        await self.hooks.close()
