"""Answers to calls that wait for a person, from any process: stored, and seen by the process whose call it is.

The first answer counts; who comes second is told which that was. A rule given with an answer must allow the very call that
is answered: a person who mistyped it would believe in a rule that is none.
"""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from pathlib import Path

from coordinator.other_processes.refusal import Refusal
from coordinator.views.exit_codes import ExitCode
from tasks import approvals, sessions
from tasks.connection import Connection
from tasks.errors import NotFound
from tasks.records import ApprovalRecord, ApprovalStatus

Answered = tuple[ApprovalRecord, bool]  # as it stands now, and whether this was the answer
WORDS = {
    ApprovalStatus.APPROVED: "was approved already",
    ApprovalStatus.TAKEN: "was approved already",
    ApprovalStatus.DENIED: "was denied already",
    ApprovalStatus.WITHDRAWN: "does not wait any more",
    ApprovalStatus.WAITING: "does not wait any more: its task has ended",
}


def approve(conn: Connection, ids: Sequence[str], *, by: str, always: bool = False, rule: str | None = None) -> list[Answered]:
    """Let the calls run: those of `ids`, or without any all that `rule` covers now. With ids `rule`, or with `always` the
    suggested one, holds from now on in the session. Raises `Refusal`, `NotFound`, `Ambiguous`."""
    if rule is not None:
        check_rule(rule)
    found = _found(conn, ids) if ids else _covered(conn, str(rule))
    given = [(record, _rule_for(conn, record, always, rule) if ids else None) for record in found]
    return [approvals.answer(conn, record.id, approve=True, by=by, rule=added) for record, added in given]


def deny(conn: Connection, ids: Sequence[str], *, by: str, why: str | None = None) -> list[Answered]:
    """Refuse the calls; the worker is told `why`. Raises `NotFound`, `Ambiguous`."""
    note = f"{by} said: {why}" if why else None
    return [approvals.answer(conn, one.id, approve=False, by=by, note=note) for one in _found(conn, ids)]


def user() -> str:
    """The account that answers, as it is told to others."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an account without a name
        return "user"


def too_late(record: ApprovalRecord) -> str:
    """What became of a call that somebody else answered, in words."""
    by = f", by {record.answered_by}" if record.answered_by else ""
    return f"{record.id} {WORDS[record.status]}{by}"


def _found(conn: Connection, ids: Sequence[str]) -> list[ApprovalRecord]:
    """Raises `NotFound`, `Ambiguous`."""
    found = {record.id: record for id in ids for record in approvals.resolve(conn, id)}
    return list(found.values())


def _covered(conn: Connection, rule: str) -> list[ApprovalRecord]:
    found = [record for record in approvals.waiting(conn) if _covers(conn, rule, record)]
    if not found:
        raise NotFound(f"nothing waits that {rule} covers")
    return found


def _rule_for(conn: Connection, record: ApprovalRecord, always: bool, rule: str | None) -> str | None:
    """The rule to give with the answer. Raises `Refusal` for one that would not even allow this call."""
    if always and record.suggested_rule is None:
        raise Refusal(f"no rule can be suggested for {record.id}; --match RULE names one", ExitCode.USAGE)
    given = record.suggested_rule if always else rule
    if given is not None and not _covers(conn, given, record):
        raise Refusal(f"{given} does not cover {record.id}: {record.tool}", ExitCode.USAGE)
    return given


def check_rule(text: str) -> None:
    """Raises `Refusal` where it is no rule."""
    from worker_agent.tools.rules import Behavior, Rule, RuleError, Source

    try:
        Rule.parse(text, Source("--match"), Behavior.ALLOW)
    except RuleError as error:
        raise Refusal(f"--match: {error}", ExitCode.USAGE) from None


def _covers(conn: Connection, rule: str, record: ApprovalRecord) -> bool:
    """Whether a run with this allow rule would let the call pass."""
    from coordinator.agents.asking import with_rules
    from worker_agent.tools.permissions import Policy

    cwd = Path(sessions.get(conn, record.session_id).cwd)
    policy = with_rules(Policy(cwd=cwd, roots=(cwd,)), [rule])
    return policy.explain(record.tool, record.input).behavior == "allow"
