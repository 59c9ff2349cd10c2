"""`coordinator node`: take workers of any session on this machine; `coordinator nodes`: see which machines do, and steer them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import uuid
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coordinator.agents.definitions import TAG
from coordinator.cli import continuing
from coordinator.cli.context import Context, common_options, pass_cli
from coordinator.cli.directory import trust_of
from coordinator.cli.run_flags import Duration
from coordinator.options import RunOptions
from coordinator.views.exit_codes import ExitCode
from tasks import nodes as rows
from tasks.nodes import NewNode, NodeRecord
from worker_agent.structs import replace

if TYPE_CHECKING:
    from coordinator.session.parts import Parts
    from tasks.records import SessionRecord

NICE = 10  # by how much the commands of workers are nicer than a node, which says that it lives
MOST_TAGS = 8  # a node listens for every choice of them
NOT_OF_A_NODE = frozenset({"backend", "max_workers", "timeout", "verify", "json_schema", "settings"})


def _tags(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[str, ...]:
    tags = tuple(sorted({tag.strip() for tag in (value or "").split(",")} - {""}))
    if (bad := next((tag for tag in tags if not TAG.fullmatch(tag)), None)) is not None:
        raise click.BadParameter(f"{bad!r} is no tag: letters, digits, - and _")
    if len(tags) > MOST_TAGS:
        raise click.BadParameter(f"at most {MOST_TAGS} tags")
    return tags


@click.command("node", help="Take workers of any session with the same database, until SIGTERM. Needs PostgreSQL.")
@click.option("--slots", type=click.IntRange(min=1), default=8, show_default=True, help="Workers that run here at once.")
@click.option("--tags", metavar="A,B", callback=_tags, help="What it has, for workers that ask for it: docker,gpu.")
@click.option("--name", metavar="NAME", help="What it is called; the machine's name without one.")
@click.option(
    "--drain-timeout",
    type=Duration(),
    default="5m",
    show_default=True,
    metavar="TIME",
    help="How long turns have to end after SIGTERM; at once after a second one.",
)
@common_options
@pass_cli
def node(cli: Context, slots: int, tags: tuple[str, ...], name: str | None, drain_timeout: float) -> int:
    own = NewNode(
        name=name or socket.gethostname(),
        holder=uuid.uuid4().hex,
        host=socket.gethostname(),
        pid=os.getpid(),
        version=metadata.version("coordinator"),
        slots=slots,
        tags=tags,
    )
    return asyncio.run(_serve(cli, own, drain_timeout))


async def _serve(cli: Context, own: NewNode, drain: float) -> int:
    from coordinator.cluster.engine import Engine
    from coordinator.cluster.node import Node

    async def enter(record: SessionRecord, stack: AsyncExitStack) -> Parts:
        from coordinator import app
        from coordinator.cluster import carried, workspace

        options = replace(_options(cli, record), max_workers=own.slots)
        if options.workspace == workspace.GIT:
            place = await workspace.ground(options, record.id, cli.paths)
            options = replace(options, cwd=place, trust=carried.trust(options.carried, place))
        return await app.enter(options, cli.database, record, lambda seen: None, stack, own.holder)

    serving = Node(cli.database, Engine(cli.database), own, enter, cli.console.note, drain)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, serving.end)
    is_own = await serving.serve(
        lambda: cli.console.note(f"node {own.name} takes up to {own.slots} workers; SIGTERM drains it")
    )
    return ExitCode.DONE if is_own else ExitCode.FAILED


def _options(cli: Context, record: SessionRecord) -> RunOptions:
    """The session's own options, on this machine: its rules travel with it; its secrets do not, nor what this machine trusts."""
    from coordinator.cluster import carried

    known = set(RunOptions.__struct_fields__) - NOT_OF_A_NODE
    stored = {**record.options, "model": record.model}
    values: dict[str, Any] = {
        name: continuing.value(name, stored[name]) for name in known if stored.get(name) not in (None, [], ())
    }
    settings = [text for text in (stored.get("settings"), *(stored.get("earlier_settings") or ())) if text]
    brought = stored.get("carried") or {}
    values["earlier_settings"] = (*settings, *carried.settings(brought))
    values["permission_mode"] = brought.get("mode") or values.get("permission_mode")
    cwd, tools = Path(record.cwd), cli.settings.tools
    config = replace(
        cli.settings, tools=replace(tools, command_nice=NICE if tools.command_nice is None else tools.command_nice)
    )
    return RunOptions(**{**values, "cwd": cwd, "config": config, "trust": trust_of(cli, cwd)})


# ── nodes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@click.command("list", help="List the machines that take workers.")
@click.option("--json", "as_json", is_flag=True, help="A list of objects.")
@common_options
@pass_cli
def list_nodes(cli: Context, as_json: bool) -> None:
    found = cli.database.read(rows.list_nodes)
    if as_json:
        cli.console.json([_shown(one) for one in found])
        return
    for one in found:
        cli.console.line(
            f"{one.name}  {one.status}  {len(one.running)} of {one.slots} slots  {','.join(one.tags)}  {one.version}"
        )
    if not found:
        cli.console.note("no machine takes workers; `coordinator node` begins one")


@click.command("show", help="Show one machine with what runs on it.")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="One object.")
@common_options
@pass_cli
def show(cli: Context, name: str, as_json: bool) -> None:
    one = cli.database.read(lambda conn: rows.get(conn, name))
    shown = _shown(one) | {"tasks": list(one.running), "host": one.host, "pid": one.pid, "load": one.load, "memory": one.memory}
    if as_json:
        cli.console.json(shown)
        return
    for key, value in shown.items():
        cli.console.line(f"{key}: {', '.join(value) if isinstance(value, list) else value}")


@click.command("drain", help="Have a machine start nothing new, give back what it runs, and end.")
@click.argument("name")
@common_options
@pass_cli
def drain(cli: Context, name: str) -> None:
    cli.database.write(lambda conn: rows.drain(conn, name))


@click.command("rm", help="Forget a machine that is dead.")
@click.argument("name")
@common_options
@pass_cli
def remove(cli: Context, name: str) -> None:
    cli.database.write(lambda conn: rows.remove(conn, name))


def _shown(one: NodeRecord) -> dict[str, Any]:
    return {
        "name": one.name,
        "status": str(one.status),
        "tags": list(one.tags),
        "slots": one.slots,
        "running": len(one.running),
        "version": one.version,
        "heartbeat_at": datetime.fromtimestamp(one.heartbeat_at, UTC).isoformat().replace("+00:00", "Z"),
    }
