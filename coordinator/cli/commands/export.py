"""`coordinator sessions export`: a session with all its transcripts, for people (Markdown) or programs (JSON: one object,
or one a line: the session with its tasks, then each agent's messages in order, the coordinator's first)."""

from __future__ import annotations

from typing import Any

import click

from coordinator.cli.completing import complete_sessions
from coordinator.cli.context import Context, common_options, pass_cli
from coordinator.cli.lookup import find_session, shown_sessions
from coordinator.views.messages import message_json, parts
from coordinator.views.shown import shown_tasks
from coordinator.views.terminal_text import literal
from tasks import agents, registry, transcripts
from tasks.connection import Connection
from tasks.records import AgentRecord, MessageRecord
from tasks.registry import TaskFilter

HEADINGS = {"text": "said", "tool": "called", "result": "got", "error": "failed", "thinking": "thought"}


@click.command("export", help="Print a session, transcripts included.")
@click.argument("session_id", metavar="ID", shell_complete=complete_sessions)
@click.option(
    "--format", "kind", type=click.Choice(["json", "jsonl", "markdown"]), default="json", show_default=True, help="Form."
)
@common_options
@pass_cli
def export(cli: Context, session_id: str, kind: str) -> None:
    session = find_session(cli, session_id)

    def read(conn: Connection) -> tuple[list[dict[str, Any]], list[tuple[AgentRecord, list[MessageRecord]]]]:
        tasks = registry.list_tasks(conn, TaskFilter(session_id=session.id))
        conversations = [(agent, transcripts.load(conn, agent.id)) for agent in agents.list_agents(conn, session.id)]
        return shown_tasks(conn, tasks, cli.now(), detail=True), conversations

    tasks, conversations = cli.database.read(read)
    (values,) = shown_sessions(cli, [session])
    if kind == "jsonl":
        cli.console.json_line({"type": "session", **values, "tasks": tasks})
        for row in (row for _, rows in conversations for row in rows):
            cli.console.json_line({"type": "message", **message_json(row)})
        return
    if kind == "json":
        told = [
            {"agent_id": agent.id, "name": agent.name, "messages": [message_json(row) for row in rows]}
            for agent, rows in conversations
        ]
        cli.console.json(values | {"tasks": tasks, "transcripts": told})
        return
    cli.console.line(f"# Session {session.id}\n\n{literal(session.goal)}\n")
    for agent, rows in conversations:
        cli.console.line(f"## {agent.name or agent.id}\n")
        for row in rows:
            for part, text in parts(row):
                cli.console.line(f"**{HEADINGS.get(part, part)}**\n\n{literal(text)}\n")
