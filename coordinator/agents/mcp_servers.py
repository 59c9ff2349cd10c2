"""Which MCP servers a session has, and the credentials in what is configured: read before a session is made, started later."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from coordinator.paths import Paths
from worker_agent.config import secret_values, variable
from worker_agent.mcp.approvals import Approvals
from worker_agent.mcp.config import Configured, Gate, ServerConfig, expanded, load
from worker_agent.tools.settings_files import LoadedSettings, servers_brought
from worker_agent.tools.trust import Trust, repository_root


def configured(
    cwd: Path, *, home: Path, paths: Paths, trust: Trust, files: LoadedSettings, given: Sequence[str] = (),
    only_given: bool = False, plugins: Iterable[ServerConfig] = (),
) -> Configured:  # fmt: skip
    """The servers that hold in `cwd`. Raises `ConfigError`."""
    root = repository_root(cwd)
    approvals = Approvals(paths.mcp_approvals)
    gate = Gate(
        trusted=trust.trusted,
        counts=lambda path, servers: trust.counts(servers_brought(path, {"mcpServers": servers})),
        enabled=files.enabled_servers,
        disabled=files.disabled_servers,
        all_enabled=files.all_project_servers,
        approved=lambda server: approvals.holds(root, server),
    )
    return load(cwd, home=home, root=root, gate=gate, given=given, only_given=only_given, more=plugins)


def secrets_of(servers: Iterable[ServerConfig]) -> Iterator[str]:
    """The credentials in the configurations of servers: variables by their names, and what headers carry."""
    for server in servers:
        full, _ = expanded(server, variable)
        yield from secret_values(full.env)
        yield from secret_values({"ANTHROPIC_CUSTOM_HEADERS": "\n".join(f"{k}: {v}" for k, v in full.headers.items())})
