"""How signals and a person reach a running session."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from coordinator.agents import slash
from coordinator.agents.asking import AT_TERMINAL
from coordinator.agents.definitions import Agents
from coordinator.agents.inbox import FROM_USER
from coordinator.other_processes import answering
from coordinator.session.coordinator import SendOutcome, StopOutcome
from coordinator.session.interruption import Interruption
from coordinator.session.session import Session
from coordinator.session.wrapping_up import BY_USER
from tasks import ledger
from tasks.connection import Connection
from tasks.db import Database
from tasks.records import TaskRecord
from worker_agent.api.models import info_for, resolve
from worker_agent.causes import Cause
from worker_agent.events import Result
from worker_agent.messages import Block
from worker_agent.session.commands import parse_command
from worker_agent.skills import SkillIndex
from worker_agent.tools.permissions import Policy

if TYPE_CHECKING:
    from worker_agent.mcp.connection import Connection as ToServer

T = TypeVar("T")


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
        self.plugins = parts.plugins

    def spent(self) -> tuple[float | None, int]:
        """What the session has used by now: USD, None where a price is unknown, and output tokens. From any thread."""
        store = self._parts.store
        used = store.read(lambda conn: ledger.total(conn, session_id=store.session_id))
        return used.cost_usd, used.output_tokens

    def interrupt(self) -> Interruption:
        """SIGINT. First: the coordinator's turn ends, workers go on. Again: the workers are stopped, too. A third in a row
        is for the caller."""
        return self._session.interrupt()

    def stop_turn(self) -> bool:
        """End the coordinator's turn, and nothing else; False where none runs. No interrupt of a row."""
        return self._session.stop_turn()

    def forget_interrupts(self) -> None:
        """The person goes on: the next interrupt is a first one."""
        self._session.forget_interrupts()

    def terminate(self) -> None:
        """SIGTERM, SIGHUP: no new calls, everything unwound, state kept."""
        self._session.end(Cause.TERMINATED)

    async def send(self, text: str) -> str | None:
        """What a person typed: read at the next step if a turn runs, else it begins one. Why a hook refuses it, if one does."""
        return await self._session.send(text)

    async def send_to(self, ref: str, text: str) -> SendOutcome:
        """A person's message to the worker that `ref` names. Raises `NotFound`, `Ambiguous`, `ConfigError`."""
        return await self._parts.coordinator.send(ref, text, sender=FROM_USER)

    async def answer(
        self, ref: str, *, approve: bool, always: bool = False, why: str | None = None
    ) -> list[answering.Answered]:
        """The person's word about the calls that `ref` names, as `approve` and `deny` give it from elsewhere. Raises
        `Refusal`, `NotFound`, `Ambiguous`."""
        why = self._parts.redact(why) if why else None

        def say(conn: Connection) -> list[answering.Answered]:
            if approve:
                return answering.approve(conn, [ref], by=AT_TERMINAL, always=always)
            return answering.deny(conn, [ref], by=AT_TERMINAL, why=why)

        answers = await self._parts.store.write(say)
        self._parts.nudge()
        return answers

    def read(self, job: Callable[[Connection], T]) -> T:
        """What `job` finds in the store. Raises `DatabaseError`."""
        return self._parts.store.read(job)

    @property
    def database(self) -> Database:
        """To read from."""
        return self._parts.store.database

    @property
    def agents(self) -> Agents:
        """The kinds of worker there are."""
        return self._parts.engines.agents

    @property
    def skills(self) -> SkillIndex:
        skills = self._parts.engines.skills
        assert skills is not None, "a session is put together with them"
        return skills

    @property
    def policy(self) -> Policy:
        """What the session's own agent may do now."""
        return self._parts.rights.policy

    def redact(self, text: str) -> str:
        """`text` without known secrets."""
        return self._parts.redact(text)

    async def prompt(self, text: str, blocks: Sequence[Block] = ()) -> str | None:
        """A turn of its own for what a program says. Why a hook refuses it, if one does."""
        return await self._session.prompt(text, blocks)

    def is_command(self, text: str) -> bool:
        """Whether it is one of the session's own: /compact, /cost, /help."""
        return parse_command(text) is not None

    def commands(self) -> list[tuple[str, str]]:
        """The skills that a person starts by `/name`, with what each is for."""
        return [(skill.name, skill.description) for skill in self.skills.discover()]

    def agent_types(self) -> list[tuple[str, str]]:
        """The kinds of worker, with what each is for."""
        return [(one.name, one.description) for _, one in sorted(self.agents.by_name.items())]

    def expand(self, text: str) -> str:
        """`text`, or where it is `/name args` that skill's. Reads the disk. Raises `ConfigError` for a name that is none."""
        expanded = slash.expand(text, self.skills)
        return expanded.prompt if expanded else text

    def close(self) -> None:
        """The person leaves an interactive session: it ends when nothing lives any more."""
        self._session.leave()

    async def drop(self) -> None:
        """What was asked for is not wanted any more: nothing of it runs when this returns; the next prompt goes on."""
        await self._session.drop()

    async def abandon(self) -> None:
        """The same, and the session ends; `resume` goes on with it."""
        await self._session.drop()
        self._session.end(Cause.PERSON)

    def live_tasks(self) -> list[TaskRecord]:
        return self._parts.coordinator.live()

    @property
    def is_in_turn(self) -> bool:
        return self._session.is_in_turn

    @property
    def commands_begun(self) -> int:
        """For how many prompts of a program, and commands, a turn was begun."""
        return self._session.commands_begun

    @property
    def is_ending(self) -> bool:
        """Whether something has ended the session from outside: its result comes from its end."""
        return self._session.is_ending

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

    def update_permissions(self, updates: Sequence[Mapping[str, Any]]) -> None:
        """As hooks and programs give them; all of them or, with `ConfigError`, none."""
        self._session.update_permissions(updates)

    def mcp_connections(self) -> Sequence[ToServer]:
        return self._parts.mcp.servers.connections if self._parts.mcp else ()

    def context_usage(self) -> tuple[int, int]:
        """Tokens of the newest prompt and its answer, and the size of the window."""
        engine = self._parts.engine
        used = next((one.usage.total for one in reversed(engine.messages) if one.usage), 0)
        return used, info_for(engine.model).window

    def mcp_status(self) -> list[tuple[str, str]]:
        """MCP servers, and how each stands now."""
        return [(connection.server.name, str(connection.state)) for connection in self.mcp_connections()]

    @property
    def current_model(self) -> str:
        """The model of the coordinator's next turn."""
        return self._parts.engine.agent.model

    async def stop_task(self, task_id: str) -> StopOutcome:
        """Raises `NotFound`, `Ambiguous`."""
        return await self._parts.coordinator.stop(task_id, by=BY_USER)
