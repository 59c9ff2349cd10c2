"""Asking a person, wherever they are: at this terminal, or at any other that reaches the database.

1. A question is stored before anybody is asked. It is answered once: by the person at this terminal, by `approve` or `deny`
   elsewhere, or by the end of its time; whoever comes second is told.
2. What was approved runs once: the call takes its approval in the transaction that lets it go on.
3. While a call waits its worker gives its slot up, and the clock of `--timeout` stands where nothing else runs.
4. A rule that a person gave with an answer holds for the session from then on, for what waits already, too. It stands
   below deny and ask rules, as every allow rule does.
5. A run that ends while its call waits leaves the question standing if it can go on later; else it takes it back.
"""

from __future__ import annotations

import asyncio
import difflib
import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from coordinator.observed import CallWaits
from coordinator.store import Store
from tasks import approvals
from tasks.connection import Connection
from tasks.records import ApprovalRecord, ApprovalStatus, NewApproval
from worker_agent import disk
from worker_agent.messages import canonical, clean
from worker_agent.redaction import in_json
from worker_agent.structs import replace
from worker_agent.tools.base import Allow, Approver, Ask, Deny, Input, Tool, ToolContext
from worker_agent.tools.permissions import Policy
from worker_agent.tools.rules import Behavior, RuleSet, Source

AT_TERMINAL = "the person at the terminal"
BY_RULE = "a rule that was given meanwhile"
NOBODY = "nobody"
MAX_SHOWN = 20_000  # characters of a call
MAX_READ = 1_000_000  # bytes of a file that a call writes anew
BY_PERSON = Source("a person's answer")


class Lending(Protocol):
    """Who holds a slot for a task and can do without it for a while; see `slots.py`."""

    def lent(self, key: str | None) -> AbstractAsyncContextManager[None]: ...


class Questions:
    """The open questions of this process's session. Belongs to one event loop. `limit` is in seconds."""

    def __init__(
        self,
        store: Store,
        *,
        slots: Lending,
        person: Approver | None = None,
        limit: float | None = None,
        on_waiting: Callable[[CallWaits], None] = lambda waits: None,
    ) -> None:
        self._store = store
        self._slots = slots
        self._person = person
        self._limit = limit
        self._on_waiting = on_waiting
        self._open: dict[str, asyncio.Future[ApprovalRecord]] = {}
        self._goes_on_later = False
        self._stored_rules = store.read(lambda conn: approvals.granted(conn, store.session_id))
        self._given_rules: list[str] = []  # by the program that drives the session, for as long as it does
        self._new_rules: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    @property
    def waiting(self) -> int:
        """How many calls wait for a person."""
        return len(self._open)

    @property
    def _rules(self) -> list[str]:
        return [*self._stored_rules, *self._given_rules]

    def give(self, rules: Sequence[str]) -> None:
        """Further rules that hold as long as this process drives the session, for what waits already, too."""
        self._given_rules = [*self._given_rules, *rules]
        self._tell_of_new_rules()

    def take_back(self, rules: Sequence[str] | None) -> None:
        """Of what was given these rules; None: all."""
        self._given_rules = [] if rules is None else [rule for rule in self._given_rules if rule not in rules]

    def _tell_of_new_rules(self) -> None:
        self._new_rules.set_result(None)
        self._new_rules = asyncio.get_running_loop().create_future()

    def keep(self) -> None:
        """The session ends but can be resumed: what waits stays, to be answered until then."""
        self._goes_on_later = True

    def look(self) -> None:
        """Something was committed elsewhere: hand on what was answered."""
        if not self._open:
            return
        rules, records = self._store.read(self._read)
        for record in records:
            if record.status is not ApprovalStatus.WAITING:
                self._settle(record)
        if rules != self._stored_rules:
            self._stored_rules = rules
            self._tell_of_new_rules()

    def _read(self, conn: Connection) -> tuple[list[str], list[ApprovalRecord]]:
        return approvals.granted(conn, self._store.session_id), approvals.by_id(conn, tuple(self._open))

    # ── one question ───────────────────────────────────────────────────────────────────────────────────────────────

    async def ask(
        self, tool: Tool, input: Input, ask: Ask, context: ToolContext, *, announce: Callable[[], Awaitable[object]]
    ) -> Allow | Deny:
        """As `Approver.ask`; `announce` is called where somebody has to be asked."""
        call = _Call(tool, input, ask, context, announce)
        if (allowed := await call.allowed_by(self._rules)) is not None:
            return allowed
        store = self._store
        record = await store.write(lambda conn: approvals.ask(conn, call.question(store.session_id, store.fence)))
        if record.status is ApprovalStatus.WAITING:
            record = await self._wait(call, record)
        return await self._decided(record, call.answered_with)

    async def _wait(self, call: _Call, record: ApprovalRecord) -> ApprovalRecord:
        id, store = record.id, self._store
        self._open[id] = asyncio.get_running_loop().create_future()
        self._on_waiting(CallWaits(record, is_over=False))
        announced = asyncio.ensure_future(call.announce())
        beside: list[asyncio.Future[Any]] = [announced]
        if self._person is not None:
            beside.append(asyncio.create_task(self._ask_here(self._person, call, id)))
        try:
            async with self._slots.lent(call.context.task_id):
                answer = await self._answer(call, id)
            await announced  # a hook that was begun runs to its end, however quickly the person answers
            return answer
        except asyncio.CancelledError:
            if not self._goes_on_later:
                store.submit(lambda conn: approvals.withdraw(conn, id, store.fence))
            raise
        finally:
            del self._open[id]
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            self._on_waiting(CallWaits(record, is_over=True))

    async def _answer(self, call: _Call, id: str) -> ApprovalRecord:
        answered = self._open[id]
        try:
            async with asyncio.timeout(self._limit):
                while True:
                    waits: set[asyncio.Future[Any]] = {answered, self._new_rules}
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                    if answered.done():
                        return answered.result()
                    if await call.allowed_by(self._rules):
                        return await self._say(id, approve=True, by=BY_RULE)
        except TimeoutError:
            return await self._say(id, approve=False, by=NOBODY, note=f"nobody answered within {self._limit:g} seconds")

    async def _ask_here(self, person: Approver, call: _Call, id: str) -> None:
        """Ask the person at the terminal: what they say is one answer among those that may come from anywhere."""
        said = await person.ask(call.tool, call.input, call.ask, call.context)
        note = said.reason if isinstance(said, Deny) else None
        if isinstance(said, Allow):
            call.take(said.updated_input)
        self._settle(await self._say(id, approve=isinstance(said, Allow), by=AT_TERMINAL, note=note))

    async def _say(self, id: str, *, approve: bool, by: str, note: str | None = None) -> ApprovalRecord:
        record, _ = await self._store.write(lambda conn: approvals.answer(conn, id, approve=approve, by=by, note=note))
        return record

    def _settle(self, record: ApprovalRecord) -> None:
        answered = self._open.get(record.id)
        if answered is not None and not answered.done():
            answered.set_result(record)

    async def _decided(self, record: ApprovalRecord, updated_input: Input | None) -> Allow | Deny:
        match record.status:
            case ApprovalStatus.APPROVED:
                if await self._store.write(lambda conn: approvals.take(conn, record.id, self._store.fence)):
                    changed = updated_input if record.answered_by == AT_TERMINAL else None
                    return Allow(changed, reason=f"{record.answered_by} allowed it")
                return Deny("its approval was used already")
            case ApprovalStatus.DENIED:
                return Deny(record.note or f"{record.answered_by} said no")
            case _:
                return Deny("the question was taken back")


class _Call(Struct):
    """A call that needs a person's word. `answered_with` is the input that who is asked here wants in place of its own."""

    tool: Tool
    input: Input
    ask: Ask
    context: ToolContext
    announce: Callable[[], Awaitable[object]]
    answered_with: Input | None = None

    def take(self, updated_input: Input | None) -> None:
        self.answered_with = updated_input

    async def allowed_by(self, rules: Sequence[str]) -> Allow | None:
        """Whether rules that a person gave allow it, as if they stood in the settings."""
        policy = self.context.permissions
        if not rules or not isinstance(policy, Policy):
            return None
        decision = await with_rules(policy, rules).decide(self.tool, self.input, self.context)
        return decision if isinstance(decision, Allow) else None

    def question(self, session_id: str, fence: int) -> NewApproval:
        redact = self.context.redact
        return NewApproval(
            session_id=session_id,
            agent_id=self.context.agent_id,
            task_id=self.context.task_id,
            fence=fence,
            tool_use_id=self.context.tool_use_id,
            tool=self.tool.name,
            input=in_json(self.input, redact),
            digest=hashlib.sha256(canonical(dict(self.input))).hexdigest(),
            shown=redact(shown(self.tool, self.input, self.context)),
            reason=redact(self.ask.reason),
            suggested_rule=self.ask.suggestion,
        )


def with_rules(policy: Policy, rules: Sequence[str]) -> Policy:
    """`policy` and those above it, with further allow rules."""
    added = RuleSet.parse(Behavior.ALLOW, rules, BY_PERSON)
    above = None if policy.ceiling is None else with_rules(policy.ceiling, rules)
    return replace(policy, rules=policy.rules + added, ceiling=above)


def shown(tool: Tool, input: Input, context: ToolContext) -> str:
    """A call in full, as a person wants to judge it: the command, the diff of an edit, the address."""
    path = input.get("file_path")
    if isinstance(path, str) and {"old_string", "new_string"} <= input.keys():
        text = _diff(path, str(input["old_string"]), str(input["new_string"]))
    elif isinstance(path, str) and isinstance(input.get("content"), str):
        text = _diff(path, _content(context.cwd / path), input["content"])
    else:
        field = tool.facts.main_field
        main = input.get(field) if field else None
        rest = {name: value for name, value in input.items() if name != field}
        text = main if isinstance(main, str) else json.dumps(dict(input), ensure_ascii=False, indent=1)
        if isinstance(main, str) and rest:
            text += f"\n{json.dumps(rest, ensure_ascii=False)}"
    text = clean(text)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}\n[cut: {len(text):,} characters]"


def _diff(path: str, old: str, new: str) -> str:
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), path, path, lineterm="")
    return "\n".join(lines) or f"{path}: no change"


def _content(path: Path) -> str:
    """The text that is there now; empty where there is none, or none to be shown."""
    try:
        return disk.read_regular(path, limit=MAX_READ).decode(errors="replace")
    except (OSError, ValueError):
        return ""
