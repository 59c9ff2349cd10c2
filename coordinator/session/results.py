"""How a session ended: stored, and as the documented result object with its exit code.

A session whose work is over is ended; one that was cut short keeps its tasks as they stand and gives its lease back,
so that `resume` can go on. Then its live tasks are shown as `interrupted`: nobody runs them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from coordinator.other_processes import lease
from coordinator.runs.held_directory import gone
from coordinator.store import Store
from coordinator.views import failure
from coordinator.views.ends import End, exit_code, subtype
from coordinator.views.exit_codes import ExitCode
from coordinator.views.values import task_json
from tasks import ledger, registry, sessions
from tasks.errors import DatabaseError, Fenced
from tasks.ledger import Totals
from tasks.records import TaskRecord
from tasks.registry import TaskFilter
from worker_agent.api.models import info_for
from worker_agent.causes import Cause
from worker_agent.events import PermissionDenial, Result
from worker_agent.loop.reasons import TerminalReason
from worker_agent.redaction import Redact
from worker_agent.structs import replace

ABORTED = frozenset({TerminalReason.ABORTED_STREAMING, TerminalReason.ABORTED_TOOLS})


class Closing(Struct, frozen=True, kw_only=True):
    """`ending` names what cut the session short, None if it came to its own end; `live` are the tasks that still ran;
    `over_budget` those of this run that the budget ended; `unverified` says how the last verification failed, if it did.
    `lost_directory` names the working directory of a single agent if it went while it worked. `not_stored` says why nothing more could be stored; `is_stored` that the end is stored already. `duration` in
    seconds."""

    session_id: str
    result: Result | None
    ending: Cause | None
    live: tuple[str, ...]
    over_budget: tuple[str, ...]
    unverified: str | None
    duration: float
    turns: int
    in_turn: bool
    lost_directory: str | None = None
    not_stored: DatabaseError | None = None
    is_stored: bool = False

    @property
    def reason(self) -> str:
        if self.ending is Cause.TIMEOUT and self.live and not self.in_turn:
            return End.LIVE_WORKERS
        if self.ending is Cause.PERSON and self.result and self.result.reason in ABORTED:
            return self.result.reason
        if self.ending is not None:
            return self.ending
        if self.not_stored is not None:
            return Cause.STORE
        if self.lost_directory is not None and not (self.result and self.result.is_error):
            return End.DIRECTORY_GONE
        if self.unverified:
            return End.UNVERIFIED
        if self.over_budget and not (self.result and self.result.is_error):
            return End.BUDGET
        return self.result.reason if self.result else End.COMPLETED

    @property
    def ends_session(self) -> bool:
        """Whether it came to its own end, with nothing left for `resume` to go on with."""
        return self.is_stored or (self.ending is None and not self.live)

    @property
    def is_error(self) -> bool:
        return self.reason != End.COMPLETED or bool(self.result and self.result.is_error)

    @property
    def errors(self) -> list[str]:
        found = [self.ending.to_person] if self.ending is not None and self.ending is not Cause.STORE else []
        if self.not_stored is not None:
            found.append(failure.not_stored(self.not_stored, self.session_id))
        if self.result and not (self.ending and self.result.reason in ABORTED):
            found += filter(None, [failure.in_words(self.result, self.session_id)])
        if self.lost_directory is not None:
            found.append(gone(self.lost_directory, "agent"))
        if self.unverified:
            found.append(self.unverified)
        if self.over_budget:
            found.append(f"tasks that the budget ended before they were done: {', '.join(self.over_budget)}")
        if self.live:
            found.append(f"tasks that still ran: {', '.join(self.live)}")
        if self.ending in (Cause.PERSON, Cause.TERMINATED) and self.not_stored is None:
            found.append(failure.to_go_on(self.session_id))
        return found


def over_budget(store: Store) -> tuple[str, ...]:
    """The tasks of the session that ended because of the budget and were not continued."""
    try:
        tasks = store.read(lambda conn: registry.list_tasks(conn, TaskFilter(session_id=store.session_id, texts=False)))
    except DatabaseError:
        return ()  # the session ends by that
    newest = {task.agent_id: task for task in sorted(tasks, key=lambda task: task.created_at)}
    return tuple(task.id for task in newest.values() if task.end_reason == End.BUDGET)


async def conclude(
    store: Store, redact: Redact, denials: Sequence[PermissionDenial], closing: Closing
) -> tuple[ExitCode, dict[str, Any]]:
    """Store the end and make the result object; `denials` are those of workers."""
    await _store_end(store, closing)
    if store.failure is not None:
        closing = replace(closing, not_stored=store.failure)
    code = exit_code(
        closing.reason, is_error=closing.is_error, error_kind=closing.result.error_kind if closing.result else None
    )
    if code is ExitCode.DONE and any(denial.needs_person for denial in _all_denials(denials, closing)):
        code = ExitCode.NEEDS_PERSON  # done as far as it could be without anybody to ask
    return code, result_object(store, redact, denials, closing)


def _all_denials(of_workers: Sequence[PermissionDenial], closing: Closing) -> list[PermissionDenial]:
    return [*(closing.result.denials if closing.result else ()), *of_workers]


async def _store_end(store: Store, closing: Closing) -> None:
    if closing.ending is Cause.LOST or closing.is_stored:
        return
    try:
        if closing.ends_session:
            await store.write(lambda conn: sessions.end(conn, store.session_id, store.fence, reason=closing.reason))
        else:
            await lease.release(store)
    except (Fenced, DatabaseError):
        return


def result_object(store: Store, redact: Redact, denials: Sequence[PermissionDenial], closing: Closing) -> dict[str, Any]:
    """The object that `run --output-format json` prints."""
    result, now = closing.result, store.clock.now()
    tasks, total, by_model = _stored(store)
    value = {
        "type": "result",
        "subtype": subtype(closing.reason, is_error=closing.is_error),
        "is_error": closing.is_error,
        "session_id": store.session_id,
        "result": redact(result.text) if result else "",
        "terminal_reason": closing.reason,
        "stop_reason": result.stop_reason if result else None,
        "num_turns": closing.turns,
        "duration_ms": round(closing.duration * 1000),
        "duration_api_ms": round(result.duration_api * 1000) if result else 0,
        "total_cost_usd": total.cost_usd,
        "usage": _usage(total),
        "model_usage": {totals.key: _usage(totals) | {"cost_usd": totals.cost_usd} for totals in by_model},
        "modelUsage": {totals.key: _model_usage(totals) for totals in by_model},
        "permission_denials": _denials(_all_denials(denials, closing)),
        "tasks": [task_json(task, registry.shown_status(task, session_owner_gone=True), now) for task in tasks],
    }
    if closing.errors:
        value["errors"] = [redact(error) for error in closing.errors]
    if result is not None and result.structured is not None:
        value["structured_output"] = result.structured
    return value


def _stored(store: Store) -> tuple[list[TaskRecord], Totals, list[Totals]]:
    """The tasks, and what they used: nothing where the store cannot even be read."""
    try:
        return store.read(
            lambda conn: (
                registry.list_tasks(conn, TaskFilter(session_id=store.session_id)),
                ledger.total(conn, session_id=store.session_id),
                ledger.sums(conn, "model", session_id=store.session_id),
            )
        )
    except DatabaseError:
        return [], Totals(), []


def _usage(totals: Totals) -> dict[str, int]:
    return {
        "input_tokens": totals.input_tokens,
        "cache_creation_input_tokens": totals.cache_write_5m_tokens + totals.cache_write_1h_tokens,
        "cache_read_input_tokens": totals.cache_read_tokens,
        "output_tokens": totals.output_tokens,
    }


def _model_usage(totals: Totals) -> dict[str, Any]:
    """The same under the names that programs for Claude Code read."""
    model = info_for(totals.key)
    return {
        "inputTokens": totals.input_tokens,
        "outputTokens": totals.output_tokens,
        "cacheReadInputTokens": totals.cache_read_tokens,
        "cacheCreationInputTokens": totals.cache_write_5m_tokens + totals.cache_write_1h_tokens,
        "webSearchRequests": 0,
        "costUSD": totals.cost_usd,
        "contextWindow": model.window,
        "maxOutputTokens": model.max_output,
    }


def _denials(denials: Sequence[PermissionDenial]) -> list[Mapping[str, Any]]:
    return [
        {"tool_name": d.tool_name, "tool_use_id": d.tool_use_id, "tool_input": dict(d.tool_input), "reason": d.reason}
        for d in denials
    ]
