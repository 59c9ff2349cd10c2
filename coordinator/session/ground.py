"""What a session stands on: read and checked before it is made or taken over, so that a refusal changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from coordinator.agents import definitions, mcp_servers, plugins
from coordinator.options import RunOptions
from coordinator.paths import Paths
from worker_agent import disk
from worker_agent.api.client import ModelClient
from worker_agent.config import Settings, secret_values
from worker_agent.errors import ConfigError
from worker_agent.mcp.config import Configured
from worker_agent.messages import Usage
from worker_agent.redaction import Redactor
from worker_agent.structs import replace
from worker_agent.tools import settings_files
from worker_agent.tools.confinement import Choice, choose
from worker_agent.tools.permissions import Policy
from worker_agent.tools.rules import Behavior, RuleSet, Source, inside, literal, resolve
from worker_agent.tools.trust import repository_root


class Ground(Struct, frozen=True, kw_only=True):
    """What a session stands on, as it was found: files, rules, the means to confine."""

    cwd: Path
    settings: Settings  # with the model of the settings files, where nobody else named one
    paths: Paths
    agents: definitions.Agents
    files: settings_files.LoadedSettings
    policy: Policy
    sandbox: Choice
    servers: Configured
    plugins: plugins.Plugins
    redact: Redactor

    @property
    def problems(self) -> tuple[str, ...]:
        """What was found and is left out, or counts for nothing, in lines for a person."""
        return (
            *(f"{problem.source}: {problem.text}" for problem in self.agents.problems),
            *self.files.problems,
            *self.files.held_back,
            *map(str, self.servers.problems),
            *self.servers.held_back,
            *self.plugins.problems,
        )


def stand_on(options: RunOptions, settings: Settings, cwd: Path, session_id: str, client: ModelClient) -> Ground:
    """Read what a session is made of; nothing is written. Raises `ConfigError` for what makes it impossible."""
    if not cwd.is_dir():
        raise ConfigError(f"the working directory {cwd} is not there")
    paths, home = Paths.of(settings), Path.home()
    files = settings_files.load(
        cwd, home=home, trust=options.trust, settings=options.settings, earlier=options.earlier_settings,
        sources=options.sources_of_settings,
    )  # fmt: skip
    settings = options.effective(files.model)
    _check(options, settings, client)
    brought = plugins.load(
        repository_root(cwd), home=home, data=paths.plugin_data, trust=options.trust, given=options.plugin_dirs
    )
    files = replace(files, hooks=files.hooks + brought.hooks)
    servers = mcp_servers.configured(
        cwd, home=home, paths=paths, trust=options.trust, files=files, given=options.mcp_config,
        only_given=options.strict_mcp_config, plugins=brought.servers,
    )  # fmt: skip
    scratch = paths.scratch(session_id)
    policy = files.policy(
        cwd=cwd,
        home=home,
        mode="plan" if options.plan_only else options.permission_mode,
        allowed=(*options.allowed_tools, *options.granted),
        disallowed=options.disallowed_tools,
        roots=options.add_dirs,
    )
    agents = definitions.load(
        cwd, trust=options.trust, add_dirs=options.add_dirs, user_dir=home / ".claude" if options.reads("user") else None
    )
    agents = definitions.with_given(plugins.with_plugins(agents, brought.found), options.agents, "--agents")
    return Ground(
        cwd=cwd,
        settings=settings,
        paths=paths,
        agents=agents,
        plugins=brought,
        files=files,
        policy=replace(policy, rules=policy.rules + _shared(scratch) + _own_files(options, cwd, policy.roots)),
        sandbox=choose(options.sandbox),
        servers=servers,
        redact=Redactor((*secret_values(), *files.secrets, *mcp_servers.secrets_of(servers.servers))),
    )


def _shared(scratch: Path) -> RuleSet:
    """All agents may write into the scratchpad unasked, but in plan mode."""
    return RuleSet.parse(Behavior.ALLOW, [f"Edit({literal(resolve(scratch))}/**)"], Source("scratchpad"))


def _own_files(options: RunOptions, cwd: Path, roots: Sequence[Path]) -> RuleSet:
    """The files that this run was told to read its rules and servers from are no agent's to write: what stands there holds
    when the session is gone on with."""
    given = [text for text in (options.settings, *options.earlier_settings, *options.mcp_config) if text]
    files = [file for text in given if (file := disk.named_file(text, cwd)) is not None]
    named = dict.fromkeys(literal(one) for file in files if inside(file, roots) for one in (file.absolute(), resolve(file)))
    rules = [f"Edit({path})" for path in named]
    return RuleSet.parse(Behavior.DENY, rules, Source("this run reads its own settings or servers there"))


def _check(options: RunOptions, settings: Settings, client: ModelClient) -> None:
    """What makes a run pointless, before anything is begun. Raises `ConfigError`."""
    for model in (settings.model, settings.worker_model, settings.fallback_model):
        if options.max_budget_usd is not None and model and client.cost(model, Usage(output=1)) is None:
            raise ConfigError(f"the price of {model} is unknown, so --max-budget-usd cannot hold; use --token-budget")
