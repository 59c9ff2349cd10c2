"""How signals and a person reach a running session."""

from __future__ import annotations

from typing import Any

from coordinator.session.session import BY_USER, Session
from tasks.records import TaskRecord
from worker_agent.api.models import resolve
from worker_agent.causes import Cause
from worker_agent.events import Result


class SessionHandle:
    """Call from the session's event loop only."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._parts = parts = session.parts
        self.session_id = parts.store.session_id
        self.cwd = session.record.cwd
        self.model = parts.engine.agent.model
        self.tools = tuple(tool.name for tool in parts.engine.agent.registry)
        self.permission_mode = str(parts.rights.policy.mode)
        self.mcp_servers = tuple(self.mcp_status())

    def interrupt(self) -> None:
        """SIGINT. First: the coordinator's turn ends, workers go on. Again: the workers are stopped, too."""
        self._session.interrupt()

    def terminate(self) -> None:
        """SIGTERM, SIGHUP: no new calls, everything unwound, state kept."""
        self._session.end(Cause.TERMINATED)

    async def send(self, text: str) -> str | None:
        """What a person typed: read at the next step if a turn runs, else it begins one. Why a hook refuses it, if one does."""
        return await self._session.send(text)

    def close(self) -> None:
        """The person leaves an interactive session: it ends when nothing lives any more."""
        self._session.leave()

    def live_tasks(self) -> list[TaskRecord]:
        return self._parts.coordinator.live()

    @property
    def is_in_turn(self) -> bool:
        return self._session.is_in_turn

    @property
    def is_settled(self) -> bool:
        """Whether nothing lives or waits that would begin a turn of itself."""
        return self._session.is_settled

    def result_of_turn(self, result: Result) -> dict[str, Any]:
        """The documented result object as it stands when a turn ends with `result`."""
        return self._session.result_of_turn(result)

    def set_permission_mode(self, mode: str) -> None:
        """From the next call on. Raises `ValueError` for an unknown mode."""
        self._session.set_permission_mode(mode)

    def set_model(self, model: str | None) -> None:
        """From the coordinator's next turn on; None is the model it began with."""
        self._parts.engine.use_model(resolve(model) if model else None)

    def mcp_status(self) -> list[tuple[str, str]]:
        """MCP servers, and how each stands now."""
        mcp = self._parts.mcp
        return [(c.server.name, str(c.state)) for c in mcp.servers.connections] if mcp else []

    async def stop_task(self, task_id: str) -> None:
        """Raises `NotFound`, `Ambiguous`."""
        await self._parts.coordinator.stop(task_id, by=BY_USER)
