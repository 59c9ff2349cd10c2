"""`coordinator mcp`: the MCP servers that hold in a directory, whether they work, and which of an untrusted one may run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coordinator.cli import early, render
from coordinator.cli.context import Context, common_options, pass_cli
from coordinator.cli.directory import trust_of
from coordinator.cli.failures import Failure
from coordinator.cli.run_flags import DIRECTORY, flag
from coordinator.views.exit_codes import ExitCode
from coordinator.views.terminal_text import one_line

if TYPE_CHECKING:
    from worker_agent.mcp.config import Configured, ServerConfig
    from worker_agent.redaction import Redactor

directory_option = click.option("--cwd", type=DIRECTORY, default=Path("."), help="Another directory.")
config_option = flag(
    "--mcp-config", multiple=True, metavar="PATH|JSON", help="With the servers of this file, or its JSON, too."
)
json_option = click.option("--json", "as_json", is_flag=True, help="A list of objects.")


@click.command("list", help="List the MCP servers that hold here, and whether each may run. Starts none.")
@json_option
@config_option
@directory_option
@common_options
@pass_cli
def list_servers(cli: Context, as_json: bool, mcp_config: tuple[str, ...], cwd: Path) -> None:
    found = configured(cli, cwd, mcp_config)
    redact = _redactor(found.servers)
    rows = [row | {"target": redact(row["target"])} for row in map(_row, found.servers)]
    if as_json:
        cli.console.json(rows)
    else:
        cli.console.grid(render.server_grid(rows))
    _tell(cli, found)


@click.command("test", help="Start the servers that may run here, or those that are named, and say what each offers.")
@click.argument("names", nargs=-1, metavar="[NAME…]")
@json_option
@config_option
@directory_option
@common_options
@pass_cli
def test(cli: Context, names: tuple[str, ...], as_json: bool, mcp_config: tuple[str, ...], cwd: Path) -> int:
    found = configured(cli, cwd, mcp_config)
    chosen = [_named(found, name) for name in names] if names else list(found.usable)
    for server in chosen:
        if server not in found.usable:
            raise Failure(f"the MCP server {server.name!r} must not run here: {server.standing}", ExitCode.FAILED)
    early.raise_interrupts()
    rows = asyncio.run(_tried(cli, cwd.absolute(), chosen))
    if as_json:
        cli.console.json(rows)
    else:
        for row in rows:
            _show(cli.console.line, row)
    _tell(cli, found)
    return ExitCode.DONE if all(row["status"] == "connected" for row in rows) else ExitCode.FAILED


@click.command("approve", help="Let one server of an untrusted repository run, as it is configured now.")
@click.argument("name")
@click.option("--revoke", is_flag=True, help="Let it run no more.")
@directory_option
@common_options
@pass_cli
def approve(cli: Context, name: str, revoke: bool, cwd: Path) -> None:
    from worker_agent.mcp.approvals import Approvals
    from worker_agent.mcp.config import Scope
    from worker_agent.tools.trust import repository_root

    approvals, root = Approvals(cli.paths.mcp_approvals), repository_root(cwd.absolute())
    if revoke:
        if not approvals.revoke(root, name):
            raise Failure(f"the MCP server {name!r} was not approved in {root}")
        cli.console.note(f"the MCP server {name!r} is approved no more")
        return
    server = _named(configured(cli, cwd, ()), name)
    if server.scope is not Scope.PROJECT:
        raise Failure(f"the MCP server {name!r} needs no approval: it stands in {server.source}")
    approvals.approve(root, server)
    cli.console.note(f"the MCP server {name!r} may run here: {one_line(server.target, 300)}")


def configured(cli: Context, cwd: Path, given: Sequence[str]) -> Configured:
    from coordinator.agents import mcp_servers
    from worker_agent.tools import settings_files

    here, home, trust = cwd.absolute(), Path.home(), trust_of(cli, cwd)
    files = settings_files.load(here, home=home, trust=trust)
    return mcp_servers.configured(here, home=home, paths=cli.paths, trust=trust, files=files, given=given)


def _named(found: Configured, name: str) -> ServerConfig:
    server = next((server for server in found.servers if server.name == name), None)
    if server is None:
        names = ", ".join(server.name for server in found.servers) or "none"
        raise Failure(f"there is no MCP server {name!r} here; there are: {names}", ExitCode.NOT_FOUND)
    return server


def _redactor(servers: Sequence[ServerConfig]) -> Redactor:
    from coordinator.agents.mcp_servers import secrets_of
    from worker_agent.config import secret_values
    from worker_agent.redaction import Redactor

    return Redactor((*secret_values(), *secrets_of(servers)))


def _row(server: ServerConfig) -> dict[str, Any]:
    return {
        "name": server.name,
        "status": str(server.standing),
        "scope": str(server.scope),
        "type": server.kind,
        "target": server.target,
        "source": server.source,
    }


async def _tried(cli: Context, cwd: Path, servers: Sequence[ServerConfig]) -> list[dict[str, Any]]:
    """Start them side by side, ask each what it offers, end them."""
    import os
    import tempfile

    from worker_agent.config import tool_environment, variable
    from worker_agent.mcp.connection import Connection, Surroundings

    with tempfile.TemporaryDirectory(prefix="coordinator-mcp-") as logs:
        around = Surroundings(
            cwd=cwd,
            environment=tool_environment(),
            marker=f"mcp-test-{os.getpid()}",
            logs=Path(logs),
            settings=cli.settings.mcp,
            variable=variable,
            redact=_redactor(servers),
        )
        connections = [Connection(server, around) for server in servers]
        try:
            await asyncio.gather(*(connection.start() for connection in connections))
            return [_outcome(connection) for connection in connections]
        finally:
            await asyncio.gather(*(connection.close() for connection in connections))


def _outcome(connection: Any) -> dict[str, Any]:
    offer = connection.offer
    return {
        **_row(connection.server),
        "status": str(connection.state),
        "error": connection.problem,
        "version": offer.version,
        "tools": [tool.name for tool in offer.tools],
        "resources": offer.resources,
        "instructions": offer.instructions,
        "problems": list(offer.problems),
    }


def _show(line: Callable[[str], None], row: dict[str, Any]) -> None:
    if row["error"] is not None:
        line(f"{one_line(row['name'])}: {row['status']}: {one_line(row['error'], 500)}")
        return
    count = len(row["tools"])
    line(f"{one_line(row['name'])}: connected to {one_line(row['version']) or 'a server without a name'}, "
         f"{count} {'tool' if count == 1 else 'tools'}")  # fmt: skip
    for name in row["tools"]:
        line(f"  {one_line(name)}")
    for problem in row["problems"]:
        line(f"  {one_line(problem, 500)}")


def _tell(cli: Context, found: Configured) -> None:
    for problem in found.problems:
        cli.console.note(one_line(str(problem), 500))
    for server in found.shadowed:
        cli.console.note(f"{server.source}: {one_line(server.name)!r} does not count: an entry of that name stands above it")
    for line in found.held_back:
        cli.console.note(one_line(line, 500))
