"""The `/commands` of a chat: the one table of `/help`, completion and dispatch; and what each does.

A command prints to the console and raises what the packages below raise (`StoreError`, `ConfigError`, `Refusal`), or `Unusable`
for words that do not fit it.
"""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, assert_never

from msgspec import Struct

from coordinator.cli import render
from coordinator.cli.commands.agents import agent_row
from coordinator.cli.console import Console
from coordinator.cli.run_flags import MODES
from coordinator.other_processes import answering
from coordinator.session.coordinator import Sent
from coordinator.views import costs, shown
from coordinator.views.terminal_text import one_line
from tasks import approvals, sessions
from worker_agent.api.models import ALIASES, MODELS, resolve
from worker_agent.skills import Skill
from worker_agent.words import counted

if TYPE_CHECKING:
    from coordinator.session.handle import SessionHandle

LISTED = 40  # tasks of a list
SESSIONS = 10  # of a list
INDENT = 26  # columns of a command in the help


class Unusable(Exception):
    """What was typed behind a command does not fit it. The message is one line for a person."""


class Desk(Struct, frozen=True, kw_only=True):
    """What a command works with. `now` is in seconds since the epoch; `switch` leaves for the session of this id."""

    console: Console
    handle: SessionHandle
    now: Callable[[], float]
    leave: Callable[[], None]
    switch: Callable[[str], None]


class Command(Struct, frozen=True):
    """`takes` says what may stand behind it, for completion: `task`, `approval`, `model`, `mode`, `session` or nothing."""

    usage: str
    help: str
    run: Callable[[Desk, str], Awaitable[None]]
    takes: str = ""


# ── tasks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _tasks(desk: Desk, words: str) -> None:
    id, now = desk.handle.session_id, desk.now()
    rows = desk.handle.read(lambda conn: shown.listed_tasks(conn, now, session_id=id, limit=LISTED))
    if rows:
        desk.console.grid(render.task_grid([{**row, "session_id": ""} for row in rows]))
    else:
        desk.console.note("no tasks yet")
    _show_waiting(desk)


def _show_waiting(desk: Desk) -> None:
    for row in _waiting(desk):
        for line in render.approval(row, desk.now()):
            desk.console.styled(line)


def _waiting(desk: Desk) -> list[shown.Shown]:
    """The calls of this session that wait, oldest first."""
    id = desk.handle.session_id
    return desk.handle.read(lambda conn: shown.shown_approvals(conn, approvals.waiting(conn, session_id=id)))


async def _kill(desk: Desk, words: str) -> None:
    if not words:
        raise Unusable("/kill needs the ids or names of tasks (/tasks lists them)")
    for ref in words.split():
        done = await desk.handle.stop_task(ref)
        if not done.ended_now:
            desk.console.note(f"{done.task.id} had ended before: {done.task.status}")
        elif done.survivors:
            desk.console.error(f"{done.task.id} is ended, but these live on: {', '.join(map(one_line, done.survivors))}")
        else:
            desk.console.note(f"{done.task.id} is ended, and its processes are gone")


async def _send(desk: Desk, words: str) -> None:
    ref, _, text = words.partition(" ")
    if not text.strip():
        raise Unusable("/send needs a task and a message: /send ID TEXT (without /send the coordinator reads it)")
    sent = await desk.handle.send_to(ref, text.strip())
    match sent.sent:
        case Sent.QUEUED:
            desk.console.note(f"{sent.task.id} reads it at its next step")
        case Sent.CONTINUED:
            desk.console.note(f"it had ended: {sent.task.id} goes on with its conversation")
        case Sent.KILLED:
            raise Unusable(f"{sent.task.id} was killed; a message does not revive it")
        case _:
            assert_never(sent.sent)


async def _agents(desk: Desk, words: str) -> None:
    found = desk.handle.agents.by_name
    desk.console.grid(render.agent_grid([agent_row(agent) for _, agent in sorted(found.items())]))


# ── this session ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def _compact(desk: Desk, words: str) -> None:
    await desk.handle.send(f"/compact {words}".rstrip())  # when the turn is over; the session tells how it went


async def _cost(desk: Desk, words: str) -> None:
    rows = costs.sums(desk.handle.database, "agent", desk.handle.session_id)
    known = all(row["cost_usd"] is not None for row in rows)
    usd = render.money(sum(row["cost_usd"] for row in rows) if known else None)
    tokens = sum(row[name] or 0 for row in rows for name in render.COST_COLUMNS if name.endswith("_tokens"))
    desk.console.line(f"Cost so far: {usd}; tokens: {tokens:,}.")
    if len(rows) > 1:
        desk.console.grid(render.cost_grid("agent", rows))


async def _model(desk: Desk, words: str) -> None:
    if not words:
        names = ", ".join(f"{short} ({full})" for short, full in ALIASES.items())
        desk.console.line(f"The coordinator's model is {desk.handle.current_model}. Others: {names}, or a full id.")
        return
    desk.handle.set_model(words)
    known = "" if resolve(words) in MODELS else " (not a model this program knows: the endpoint decides)"
    desk.console.note(f"from its next turn on the coordinator uses {one_line(desk.handle.current_model)}{known}")


async def _permissions(desk: Desk, words: str) -> None:
    handle = desk.handle
    if words:
        if words not in MODES:
            raise Unusable(f"no permission mode {words!r}: {', '.join(MODES)}")
        handle.set_permission_mode(words)
        desk.console.note(f"permission mode {words}, for the coordinator from now on and for workers that begin from now on")
        return
    desk.console.line(f"Permission mode {handle.policy.mode}. Others: {', '.join(MODES)}.")
    rules = handle.policy.rules
    for behavior, found in (("deny", rules.deny), ("ask", rules.ask), ("allow", rules.allow)):
        for rule in found:
            desk.console.line(f"  {behavior:<6} {one_line(rule.text)}  ({rule.source})")
    for text in handle.read(lambda conn: approvals.granted(conn, handle.session_id)):
        desk.console.line(f"  {'allow':<6} {one_line(text)}  (given with an answer)")


# ── questions ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _approve(desk: Desk, words: str) -> None:
    refs = [word for word in words.split() if word != "--always"]
    for ref in refs or [_oldest(desk)]:
        _tell(desk, await desk.handle.answer(ref, approve=True, always="--always" in words.split()), "approved")


async def _deny(desk: Desk, words: str) -> None:
    first, _, rest = words.partition(" ")
    waits = {name for row in _waiting(desk) for name in (row["id"], row["task_id"])}
    ref, why = (first, rest.strip()) if first in waits else (_oldest(desk), words)
    _tell(desk, await desk.handle.answer(ref, approve=False, why=why or None), "denied")


def _oldest(desk: Desk) -> str:
    waiting = _waiting(desk)
    if not waiting:
        raise Unusable("nothing waits for you")
    return str(waiting[0]["id"])


def _tell(desk: Desk, answers: Sequence[answering.Answered], done: str) -> None:
    for record, is_first in answers:
        if is_first:
            desk.console.note(f"{record.id} {done}: {record.tool} {one_line(record.shown, 80)}")
        else:
            desk.console.error(answering.too_late(record))


# ── other sessions, help, leaving ────────────────────────────────────────────────────────────────────────────────────


async def _resume(desk: Desk, words: str) -> None:
    if words:
        session = desk.handle.read(lambda conn: sessions.resolve(conn, words))
        if session.id == desk.handle.session_id:
            raise Unusable(f"{session.id} is this session")
        if live := desk.handle.live_tasks():
            raise Unusable(f"{counted(len(live), 'task')} still at work here: /kill ends them, /quit waits for them")
        desk.switch(session.id)
        return
    here = [one for one in desk.handle.read(sessions.list_sessions) if one.cwd == str(desk.handle.cwd)]
    others = [one for one in here if one.id != desk.handle.session_id][:SESSIONS]
    if not others:
        desk.console.note("no other session of this directory")
        return
    desk.console.grid(render.session_grid(shown.shown_sessions(desk.handle.database, others, desk.now())))
    desk.console.note("/resume ID goes on with one")


async def _help(desk: Desk, words: str) -> None:
    for name, command in COMMANDS.items():
        desk.console.line(f"  {f'/{name} {command.usage}':<{INDENT}}  {command.help}")
    own = own_commands(desk.handle.skills.discover())
    if own:
        desk.console.line(f"Your own: {', '.join(f'/{name}' for name in own)} (`coordinator skills list` says more)")
    desk.console.line("Anything else is a message to the coordinator; @path attaches a file.")


async def _quit(desk: Desk, words: str) -> None:
    desk.leave()


COMMANDS: Mapping[str, Command] = {
    "tasks": Command("", "the tasks of this session, and what waits for you", _tasks),
    "kill": Command("ID…", "end tasks, with their processes", _kill, "task"),
    "send": Command("ID TEXT", "a message to a worker", _send, "task"),
    "approve": Command("[ID] [--always]", "let a waiting call run; the oldest without ID", _approve, "approval"),
    "deny": Command("[ID] [WHY]", "refuse a waiting call, and say why", _deny, "approval"),
    "compact": Command("[WHAT]", "summarise the conversation; WHAT is to be kept", _compact),
    "cost": Command("", "what this session has cost", _cost),
    "model": Command("[NAME]", "show or change the coordinator's model", _model, "model"),
    "permissions": Command("[MODE]", "show the rules, or change the mode", _permissions, "mode"),
    "agents": Command("", "the kinds of worker there are", _agents),
    "resume": Command("[ID]", "list other sessions here, or go on with one", _resume, "session"),
    "help": Command("", "this list", _help),
    "quit": Command("", "leave; workers that still run are waited for", _quit),
    "exit": Command("", "the same", _quit),
}


def own_commands(skills: Sequence[Skill]) -> dict[str, str]:
    """What a person can call by `/name`, with its description."""
    callable_ = (skill for skill in skills if skill.fields.get("user-invocable") not in (False, "false"))
    return {skill.name: one_line(skill.description) for skill in callable_ if skill.name not in COMMANDS}


def unknown(name: str, own: Sequence[str]) -> str:
    """What to say of `/name`, which is none."""
    near = difflib.get_close_matches(name, [*COMMANDS, *own], n=3, cutoff=0.5)
    if near:
        return f"no command /{name}; did you mean {' or '.join(f'/{one}' for one in near)}?"
    return f"no command /{name}; /help lists them (a message begins otherwise than with /)"
