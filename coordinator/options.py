"""`RunOptions`: every flag of a run as a value. A field stands here only when the program does what it says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from worker_agent.api.models import named, resolve
from worker_agent.config import DEFAULT_MODEL, MODES_STRICTEST_FIRST, Settings
from worker_agent.structs import replace
from worker_agent.tools.trust import NOTHING, SOURCES, Trust

# What bounds a run by one value: the strictest first; the least number; any check at all.
STRICTEST_FIRST: Mapping[str, tuple[str, ...]] = {
    "permission_mode": MODES_STRICTEST_FIRST,
    "sandbox": ("required", "auto", "off"),
}
SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{3,63}")  # it names directories
EVERY = 1000  # workers at once: no session has more
LIMITS = frozenset({"max_budget_usd", "token_budget", "max_turns", "timeout"})
CHECKS = frozenset({"verify", "json_schema"})


def stricter(name: str, old: Any, new: Any) -> Any:
    """Of two values of one option the one that fences more; `old` where neither does. None is no value."""
    if name in STRICTEST_FIRST and new is not None:
        return new if rank(name, new) < rank(name, old) else old
    if name in LIMITS and old is not None and new is not None:
        return min(old, new)
    return new if old is None else old


def rank(name: str, value: str | None) -> int:
    """Where a value stands among those of its option, the strictest at 0; None is the default."""
    order = STRICTEST_FIRST[name]
    return order.index(value or ("default" if "default" in order else "auto"))


class RunOptions(Struct, frozen=True, kw_only=True):
    """`prompt` None goes on with a resumed session. `resume` is a session's id, a unique beginning or its title.
    `interactive` keeps the session when there is nothing to do, for a person to type into. `timeout` is in seconds from
    the start of the run. `worker_model` None = the coordinator's. `db` names another database (path or URL)."""

    prompt: str | None = None
    cwd: Path = field(default_factory=Path.cwd)
    config: Settings = field(default_factory=Settings.from_env)
    model: str | None = None
    worker_model: str | None = None
    fallback_model: str | None = None
    permission_mode: str | None = None  # None leaves it to the settings files
    allowed_tools: tuple[str, ...] = ()
    disallowed_tools: tuple[str, ...] = ()
    attachments: tuple[Mapping[str, Any], ...] = ()  # blocks that go with the prompt: images, documents; never stored here
    granted: tuple[str, ...] = ()  # rules that allow for this run, of the skill that the prompt names; never stored
    add_dirs: tuple[Path, ...] = ()
    settings: str | None = None  # a settings file, or its JSON, above the others
    earlier_settings: tuple[str, ...] = ()  # those that the session was given before; they hold behind `settings`
    plugin_dirs: tuple[Path, ...] = ()
    mcp_config: tuple[str, ...] = ()  # files of MCP servers, or their JSON
    strict_mcp_config: bool = False  # and no others
    sandbox: str = "auto"  # auto, required, off
    system_prompt: str | None = None
    append_system_prompt: str | None = None
    max_turns: int | None = None
    max_budget_usd: float | None = None
    token_budget: int | None = None
    turn_target: int | None = None  # output tokens that a prompt is to be worked on for, where it names no target itself
    max_workers: int = 8
    backend: str = "local"  # or cluster: workers run where a node takes them
    workspace: str | None = None  # with cluster, how nodes have the project: shared, git; None: git where it is a repository
    remote: str | None = None  # the repository that machines share, with git; None: one is made
    base: str | None = None  # the commit that nodes stand on, once it is known
    carried: Mapping[str, Any] = field(
        default_factory=dict
    )  # what of this machine's files holds on nodes (`cluster/carried.py`)
    timeout: float | None = None
    approval_timeout: float | None = None  # seconds until a call that waits for a person is denied
    wait_approvals: bool = False  # where nobody is at a terminal calls wait to be answered from elsewhere
    json_schema: Mapping[str, Any] | None = None
    verify: str | None = None
    use_coordinator: bool = True
    offline: bool = False
    plan_only: bool = False
    continue_last: bool = False
    resume: str | None = None
    fork_session: bool = False
    session_id: str | None = None
    interactive: bool = False
    agents: Mapping[str, Any] = field(default_factory=dict)  # kinds of worker by name, as in `--agents`; never stored
    sources: frozenset[str] | None = None  # of `user`, `project`, `local` the files that count; None: all
    effort: str | None = None  # of the session's own agent
    watched: bool = False  # a person looks on: one-line summaries of what tools did are worth a call of the small model
    memory_extract: bool = False  # once the session is over, what is worth remembering of it becomes notes in the background
    chat_suggest: bool = False  # in an interactive session, the next prompt is suggested
    trust: Trust = NOTHING  # what of that which repositories bring counts
    db: str | Path | None = None

    @property
    def trusted(self) -> bool:
        """Whether the person trusts the session's directory."""
        return self.trust.trusted

    @property
    def sources_of_settings(self) -> frozenset[str]:
        return SOURCES if self.sources is None else self.sources

    def reads(self, source: str) -> bool:
        """Whether files of `user`, `project` or `local` count."""
        return source in self.sources_of_settings

    def effective(self, of_files: str | None = None) -> Settings:
        """The settings with this run's models in them: as the flags say, else the environment, else the settings files
        (`of_files`). `inherit` and `default` name none."""
        config = self.config
        chosen = named(self.model) or (named(of_files) if self._leaves_the_model_open else None) or config.model
        return replace(
            config,
            loop=replace(config.loop, tool_use_summaries=config.loop.tool_use_summaries and self.watched),
            model=resolve(chosen),
            worker_model=resolve(named(self.worker_model) or named(config.worker_model) or chosen),
            fallback_model=resolve(fallback) if (fallback := self.fallback_model or config.fallback_model) else None,
            small_model=resolve(config.small_model),
        )

    @property
    def _leaves_the_model_open(self) -> bool:
        return not self.config.names_model and self.config.model == DEFAULT_MODEL

    def stored(self) -> dict[str, Any]:
        """What is worth keeping with the session: how it was asked to run."""
        kept = (
            "permission_mode",
            "allowed_tools",
            "disallowed_tools",
            "max_workers",
            "backend",
            "workspace",
            "remote",
            "base",
            "carried",
            "use_coordinator",
            "offline",
            "plan_only",
            "sandbox",
            "strict_mcp_config",
            "append_system_prompt",
            "system_prompt",
            "verify",
            "max_budget_usd",
            "token_budget",
            "turn_target",
            "max_turns",
            "timeout",
            "json_schema",
            "worker_model",
            "fallback_model",
            "wait_approvals",
            "approval_timeout",
        )
        return {name: getattr(self, name) for name in kept} | {
            "mcp_config": self._servers_to_keep(),
            "add_dirs": [str(path) for path in self.add_dirs],
            "plugin_dirs": [str(path) for path in self.plugin_dirs],
            "settings": self._settings_to_keep(),
            "earlier_settings": list(dict.fromkeys((*self._fences_to_keep(self.cwd), *self.earlier_settings))),
        }

    def fenced(self, stored: Mapping[str, Any], cwd: Path | None = None) -> dict[str, Any]:
        """`stored`, of a session in `cwd`, with what this run adds that fences: it holds whenever the session is gone on with.
        What this run widens holds for this run."""
        old = [text for text in (stored.get("settings"), *(stored.get("earlier_settings") or ())) if text]
        now = [*filter(None, [self._settings_to_keep()]), *self.earlier_settings, *self._fences_to_keep(cwd or self.cwd)]
        first, *more = dict.fromkeys([*old, *now]) or [None]
        held = {name: stricter(name, stored.get(name), getattr(self, name)) for name in (*STRICTEST_FIRST, *LIMITS, *CHECKS)}
        return {
            **stored,
            **held,
            "disallowed_tools": list(dict.fromkeys((*(stored.get("disallowed_tools") or ()), *self.disallowed_tools))),
            "plan_only": bool(stored.get("plan_only") or self.plan_only),
            "settings": first,
            "earlier_settings": more,
        }

    def _fences_to_keep(self, cwd: Path) -> list[str]:
        """The fences of the files that `--settings` named, as they are now."""
        from worker_agent.tools.settings_files import fences_of

        given = [text for text in (self.settings, *self.earlier_settings) if text]
        return [fences for text in given if (fences := fences_of(text, cwd)) is not None]

    def _servers_to_keep(self) -> list[str]:
        from worker_agent.mcp.config import to_keep

        return [to_keep(text, self.cwd) for text in self.mcp_config]

    def _settings_to_keep(self) -> str | None:
        from worker_agent.tools.settings_files import to_keep

        return self.settings and to_keep(self.settings)
