"""Plugins: directories that bring skills, agents, hooks and MCP servers together, read as they are and never written.

Two layouts: Agent Plugins 1.0.0 (`plugin.json` at the root, `skills/`, `mcp.json`; strict) and Claude's
(`.claude-plugin/plugin.json` or `.plugin/plugin.json`; `skills/`, `commands/`, `agents/`, `hooks/hooks.json`, `.mcp.json`).

Rules of this file:

1. Places, highest first: `--plugin-dir`, `.agents/plugins` of the repository, `~/.agents/plugins`, those that Claude Code
   installed and the person's settings enable. Of two plugins with one name the first counts.
2. What comes with a repository counts only when it is trusted, and as it was when that was said (`Trust.counts`).
3. Nothing is read from outside of a plugin's root, links followed. What makes a plugin unusable is a reason, and nothing of
   it counts; what makes one part of it unusable leaves out that part.
4. Names: `plugin:skill`, `plugin:agent`, `mcp__plugin_<plugin>_<server>__<tool>`. An agent of a plugin brings no hooks, no
   servers and no permission mode.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
from msgspec import Struct, field

from coordinator.agents import definitions
from coordinator.agents.definitions import AgentDefinition
from worker_agent import disk
from worker_agent.errors import ConfigError
from worker_agent.hooks import HookConfig
from worker_agent.mcp.config import Scope, ServerConfig, entries
from worker_agent.mcp.names import plugin_server
from worker_agent.skills import HEAD_BYTES, breach
from worker_agent.structs import replace
from worker_agent.tools.hook_scripts import script_digests
from worker_agent.tools.trust import Brought, Trust, repository_root

MAX_BYTES = 1_000_000  # of one JSON file
MAX_PLUGINS = 500  # of one place
SCHEMA = "https://agent-plugins.org/schemas/1.0.0/plugin.schema.json"
MCP_SCHEMA = "https://agent-plugins.org/schemas/1.0.0/mcp.schema.json"
STANDARD_MANIFEST = Path("plugin.json")
CLAUDE_MANIFESTS = (Path(".claude-plugin/plugin.json"), Path(".plugin/plugin.json"))
PLACE = Path(".agents/plugins")
INSTALLED = Path(".claude/plugins/installed_plugins.json")
_STANDARD_NAME = re.compile(r"(?!.*(?:--|\.\.))[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TEXTS = ("version", "description", "homepage", "repository", "license")
_STANDARD_FIELDS = frozenset({"$schema", "name", "author", "keywords", "extensions", *_TEXTS})
_CLAUDE_FIELDS = frozenset(
    {"$schema", "name", "displayName", "author", "keywords", "skills", "commands", "agents", "hooks", "mcpServers", *_TEXTS}
)
_VARIANTS = {
    "stdio": frozenset({"type", "command", "args", "env", "cwd"}),
    "streamable-http": frozenset({"type", "url", "headers"}),
    "sse": frozenset({"type", "url", "headers"}),
}
_PLACEHOLDER = re.compile(r"\$\{(PLUGIN_ROOT|PLUGIN_DATA)\}")


class Kind(StrEnum):
    STANDARD = "agent-plugins 1.0.0"
    CLAUDE = "claude"


class Plugin(Struct, frozen=True, kw_only=True):
    """One plugin as it counts. `problems` are sentences about what of it does not. `rights` is what a person trusts."""

    name: str
    root: Path
    kind: Kind
    version: str = ""
    description: str = ""
    agents: tuple[AgentDefinition, ...] = ()
    hooks: HookConfig = HookConfig()
    servers: tuple[ServerConfig, ...] = ()
    rights: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def skills(self) -> tuple[str, ...]:
        """The names of its skills' directories."""
        return tuple(sorted(path.parent.name for path in self.root.glob("skills/*/SKILL.md") if _inside(path, self.root)))

    @property
    def brought(self) -> Brought:
        words = (f"plugin {self.name}", *(f"server {s.name}: {s.target}" for s in self.servers))
        words += tuple(f"hook {g.event}: {h.label}" for g in self.hooks.groups for h in g.handlers)
        rights = dict(self.rights)
        if scripts := script_digests(self.hooks, repository_root(self.root), self.root):
            rights["hook scripts"] = scripts
        return Brought(self.root / _manifest_of(self.root), rights, bool(rights), words)


class Plugins(Struct, frozen=True):
    """Those that count, and sentences about the others."""

    found: tuple[Plugin, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def roots(self) -> dict[str, Path]:
        return {plugin.name: plugin.root for plugin in self.found}

    @property
    def strict(self) -> frozenset[str]:
        """Those whose skills must hold the standard."""
        return frozenset(plugin.name for plugin in self.found if plugin.kind is Kind.STANDARD)

    @property
    def hooks(self) -> HookConfig:
        return sum((plugin.hooks for plugin in self.found), HookConfig())

    @property
    def servers(self) -> list[ServerConfig]:
        return [server for plugin in self.found for server in plugin.servers]

    @property
    def agents(self) -> dict[str, AgentDefinition]:
        return {agent.name: agent for plugin in self.found for agent in plugin.agents}


def load(root: Path, *, home: Path, data: Path, trust: Trust, given: Sequence[Path] = ()) -> Plugins:
    """The plugins that hold in the repository at `root`; `data` is where each gets a directory to keep things in. Raises
    `ConfigError` for one that a flag names and that cannot be used."""
    found: dict[str, Plugin] = {}
    problems: list[str] = []
    for place in given:
        plugin = read(place, data)
        _take(found, problems, plugin)
    for place in _in(root / PLACE) if root != home else ():
        _try(found, problems, place, data, trust)
    for place in (*_in(home / PLACE), *_installed(home)):
        _try(found, problems, place, data, None)
    more = [f"plugin {plugin.name}: {text}" for plugin in found.values() for text in plugin.problems]
    return Plugins(tuple(found.values()), (*problems, *more))


def look(root: Path) -> Iterator[Brought]:
    """What each plugin of a repository grants, for a person who is about to trust it."""
    for place in _in(root / PLACE):
        try:
            yield read(place, root).brought
        except ConfigError as error:
            yield Brought(place, problem=str(error))


def _try(found: dict[str, Plugin], problems: list[str], place: Path, data: Path, trust: Trust | None) -> None:
    """Take a plugin in; one of the repository (`trust`) only as far as that is trusted."""
    if trust is not None and not trust.trusted:
        problems.append(f"{place}: the plugin does not count until `coordinator trust`")
        return
    try:
        plugin = read(place, data)
    except ConfigError as error:
        problems.append(f"{place}: the plugin is left out: {error}")
        return
    if trust is not None and not trust.counts(plugin.brought):
        problems.append(f"{place}: the plugin is not as it was trusted; it does not count until `coordinator trust`")
    else:
        _take(found, problems, plugin)


def _take(found: dict[str, Plugin], problems: list[str], plugin: Plugin) -> None:
    if (other := found.setdefault(plugin.name, plugin)) is not plugin:
        problems.append(f"{plugin.root}: the plugin is left out: {other.root} has the name {plugin.name!r}, too")


def _in(place: Path) -> list[Path]:
    try:
        below = sorted(path for path in place.iterdir() if path.is_dir())[:MAX_PLUGINS]
    except OSError:
        return []
    return [path for path in below if any((path / name).exists() for name in (STANDARD_MANIFEST, *CLAUDE_MANIFESTS))]


def _installed(home: Path) -> list[Path]:
    """The plugins that Claude Code installed and the person's settings enable."""
    listed, settings = _person_json(home / INSTALLED), _person_json(home / ".claude" / "settings.json")
    enabled, plugins = settings.get("enabledPlugins"), listed.get("plugins")
    if not isinstance(enabled, Mapping) or not isinstance(plugins, Mapping):
        return []
    found = []
    for name, installs in sorted(plugins.items()):
        for install in installs if isinstance(installs, list) else [installs]:
            path = install.get("installPath") if isinstance(install, Mapping) else None
            if enabled.get(name) is True and isinstance(path, str) and Path(path).is_dir():
                found.append(Path(path))
                break
    return found


def _person_json(path: Path) -> Mapping[str, Any]:
    try:
        data = orjson.loads(disk.read_regular(path, limit=MAX_BYTES))
    except (OSError, orjson.JSONDecodeError):
        return {}
    return data if isinstance(data, dict) else {}


# ── one plugin ───────────────────────────────────────────────────────────────────────────────────────────────────────


def read(place: Path, data: Path) -> Plugin:
    """The plugin at `place`. Raises `ConfigError` for one that cannot be used."""
    root = place.resolve()
    manifest = _json(root / _manifest_of(root), root)
    if _manifest_of(root) == STANDARD_MANIFEST:
        return _standard(root, manifest, data)
    return _claude(root, manifest, data)


def _manifest_of(root: Path) -> Path:
    """Raises `ConfigError` where there is none."""
    for name in (STANDARD_MANIFEST, *CLAUDE_MANIFESTS):
        if (root / name).exists():
            return name
    raise ConfigError(f"it has no manifest: neither {STANDARD_MANIFEST} nor {CLAUDE_MANIFESTS[0]}")


def _json(path: Path, root: Path) -> dict[str, Any]:
    """Raises `ConfigError`."""
    name = path.relative_to(root)
    try:
        data = orjson.loads(disk.read_regular(path, limit=MAX_BYTES, inside=root).removeprefix(b"\xef\xbb\xbf"))
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: it {error.strerror}") from None
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{name} is no JSON: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{name} is no JSON object")
    return data


def _inside(path: Path, root: Path) -> bool:
    return path.resolve().is_relative_to(root)


def _standard(root: Path, manifest: dict[str, Any], data: Path) -> Plugin:
    """Agent Plugins 1.0.0, sections 5 to 7. Raises `ConfigError`."""
    problems = [f"plugin.json: unknown field {key!r}" for key in manifest if key not in _STANDARD_FIELDS]
    if manifest.get("$schema") != SCHEMA:
        raise ConfigError(f"plugin.json: `$schema` is {manifest.get('$schema')!r}; supported is {SCHEMA}")
    name = manifest.get("name")
    if not isinstance(name, str) or len(name) > 64 or not _STANDARD_NAME.fullmatch(name):
        raise ConfigError(f"plugin.json: `name` {name!r}: 1 to 64 of a-z 0-9 - . that begin and end with a letter or digit")
    for key in _TEXTS:
        if not isinstance(manifest.get(key, ""), str):
            raise ConfigError(f"plugin.json: `{key}` is no string")
    keywords, author = manifest.get("keywords", []), manifest.get("author", {})
    if not isinstance(keywords, list) or not all(isinstance(word, str) for word in keywords):
        raise ConfigError("plugin.json: `keywords` is no list of strings")
    if not isinstance(author, dict) or author.keys() - {"name", "email", "url"} or not all(map(_is_text, author.values())):
        raise ConfigError("plugin.json: `author` may hold the strings name, email and url, and nothing else")
    if not isinstance(manifest.get("extensions", {}), dict):
        problems.append("plugin.json: `extensions` is no object and is passed over")
    if (root / "skills").exists() and not (_inside(root / "skills", root) and (root / "skills").is_dir()):
        problems.append("skills is no directory of the plugin")
    problems += _breaches(root)
    servers, wrong, said = _standard_servers(root, name, data / name)
    return Plugin(
        name=name, root=root, kind=Kind.STANDARD, version=manifest.get("version", ""), description=manifest.get("description", ""),
        servers=servers, rights={"mcpServers": said} if said else {}, problems=(*problems, *wrong),
    )  # fmt: skip


def _breaches(root: Path) -> Iterator[str]:
    """The skills that do not hold the standard, which are not loaded."""
    for path in sorted(root.glob("skills/*/SKILL.md")):
        try:
            text = disk.read_beginning(path, limit=HEAD_BYTES, inside=root).decode("utf-8", "replace")
            why = breach(text, path.parent.name)
        except OSError as error:
            why = f"it {error.strerror}"
        if why is not None:
            yield f"{path.relative_to(root)} is left out: {why}"


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _standard_servers(root: Path, plugin: str, data: Path) -> tuple[tuple[ServerConfig, ...], list[str], Any]:
    """Section 7.2: the servers, what is wrong with others, and what the file says."""
    if not (root / "mcp.json").exists():
        return (), [], None
    try:
        config = _json(root / "mcp.json", root)
        if config.get("$schema") != MCP_SCHEMA:
            raise ConfigError(f"mcp.json: `$schema` is {config.get('$schema')!r}; supported is {MCP_SCHEMA}")
        if config.keys() != {"$schema", "mcpServers"} or not isinstance(config["mcpServers"], dict):
            raise ConfigError("mcp.json: it must hold `$schema` and the object `mcpServers`, and nothing else")
    except ConfigError as error:
        return (), [str(error)], None
    found: list[ServerConfig] = []
    problems: list[str] = []
    for name, entry in config["mcpServers"].items():
        try:
            found.append(_standard_server(name, entry, root, plugin, data))
        except ConfigError as error:
            problems.append(f"mcp.json: the server {name!r} is left out: {error}")
    return tuple(found), problems, config["mcpServers"]


def _standard_server(name: str, entry: Any, root: Path, plugin: str, data: Path) -> ServerConfig:
    """Raises `ConfigError`."""
    kind = entry.get("type") if isinstance(entry, dict) else None
    if not isinstance(kind, str) or kind not in _VARIANTS:
        raise ConfigError(f"its `type` is none of {', '.join(_VARIANTS)}")
    if unknown := entry.keys() - _VARIANTS[kind]:
        raise ConfigError(f"unknown field {', '.join(sorted(unknown))}")
    if not all(map(_is_text, (entry.get("env") or entry.get("headers") or {}).values())):
        raise ConfigError("a value is no string")
    ((server,), problems) = _entry(name, entry, str(root / "mcp.json"), plugin)
    if problems:
        raise ConfigError(problems[0])
    if kind != "stdio":
        _check_address(server)
        return replace(server, literal=True)
    if {"PLUGIN_ROOT", "PLUGIN_DATA"} & server.env.keys():
        raise ConfigError("its `env` sets PLUGIN_ROOT or PLUGIN_DATA")
    values = {"PLUGIN_ROOT": str(root), "PLUGIN_DATA": str(data)}

    def full(text: str) -> str:
        return _PLACEHOLDER.sub(lambda match: values[match[1]], text)

    return replace(
        server,
        command=_own_program(server.command, root),
        args=tuple(map(full, server.args)),
        env={key: full(text) for key, text in server.env.items()} | values,
        cwd=_own_directory(server.cwd, root, data, full),
        data=str(data),
        literal=True,
    )


def _entry(name: str, entry: Any, source: str, plugin: str) -> tuple[tuple[ServerConfig, ...], list[str]]:
    found, problems = entries({name: entry}, Scope.PLUGIN, source, named=lambda own: plugin_server(plugin, own))
    if not found:
        raise ConfigError(problems[0].text.partition("is left out: ")[2] if problems else "it cannot be read")
    return tuple(found), [problem.text for problem in problems]


def _own_program(command: str, root: Path) -> str:
    if "/" not in command:
        return command
    path = root / command
    if not command.startswith("./") or not _inside(path, root):
        raise ConfigError(f"its `command` {command!r} is neither a bare name nor a path ./… inside the plugin")
    return str(path)


def _own_directory(cwd: str | None, root: Path, data: Path, full: Any) -> str:
    if cwd is None:
        return str(root)
    if cwd.startswith("./") or re.match(r"\$\{PLUGIN_ROOT\}(/|$)", cwd):
        base, path = root, root / full(cwd)
    elif re.match(r"\$\{PLUGIN_DATA\}(/|$)", cwd):
        base, path = data.resolve(), Path(full(cwd))
    else:
        raise ConfigError(f"its `cwd` {cwd!r} begins with none of ./, ${{PLUGIN_ROOT}}, ${{PLUGIN_DATA}}")
    if not _inside(path, base):
        raise ConfigError(f"its `cwd` {cwd!r} leads out of its directory")
    return str(path)


def _check_address(server: ServerConfig) -> None:
    """Section 7.2.1: absolute, without a user, and over TLS unless it stays on this machine. Raises `ConfigError`."""
    try:
        parts = urlsplit(server.url)
        host = parts.hostname or ""
    except ValueError:
        raise ConfigError(f"its `url` {server.url!r} is no address") from None
    local = host in ("localhost", "::1") or re.fullmatch(r"127\.\d+\.\d+\.\d+", host)
    if (
        not host
        or parts.username is not None
        or parts.fragment
        or not (parts.scheme == "https" or (parts.scheme == "http" and local))
    ):
        raise ConfigError(f"its `url` {server.url!r} is no https address without user and fragment")
    if len({name.lower() for name in server.headers}) != len(server.headers):
        raise ConfigError("a header stands twice")


def _claude(root: Path, manifest: dict[str, Any], data: Path) -> Plugin:
    """Raises `ConfigError`."""
    name = manifest.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"plugin.json: `name` {name!r}: letters, digits, - . _, at most 64")
    values = {"CLAUDE_PLUGIN_ROOT": str(root), "CLAUDE_PLUGIN_DATA": str(data / name)}
    ignored = sorted(manifest.keys() - _CLAUDE_FIELDS)
    problems = [f"passed over: {', '.join(ignored)}"] if ignored else []
    problems += [
        f"`{key}` in the manifest is passed over; {key}/ is read" for key in ("skills", "commands") if manifest.get(key)
    ]
    said_hooks = _part(root, manifest.get("hooks"), "hooks/hooks.json")
    said_hooks = said_hooks.get("hooks", said_hooks) if said_hooks is not None else None
    hooks = HookConfig.parse(said_hooks, f"plugin {name}")
    if hooks.fences:
        raise ConfigError(hooks.fences[0].removeprefix(f"plugin {name}: "))
    said_servers = _part(root, manifest.get("mcpServers"), ".mcp.json")
    said_servers = said_servers.get("mcpServers", said_servers) if said_servers is not None else None
    servers, wrong = entries(
        said_servers, Scope.PLUGIN, f"plugin {name}", named=lambda own: plugin_server(name, own), variables=values
    )
    servers = [replace(server, env={**server.env, **values}, data=values["CLAUDE_PLUGIN_DATA"]) for server in servers]
    agents, faults = _agents(root, name, manifest.get("agents"))
    rights = {"hooks": said_hooks, "mcpServers": said_servers}
    return Plugin(
        name=name,
        root=root,
        kind=Kind.CLAUDE,
        version=str(manifest.get("version") or ""),
        description=str(manifest.get("description") or ""),
        agents=agents,
        hooks=hooks.in_environment(values),
        servers=tuple(servers),
        rights={key: value for key, value in rights.items() if value},
        problems=(*problems, *hooks.problems, *(problem.text for problem in wrong), *faults),
    )


def _part(root: Path, said: Any, default: str) -> dict[str, Any] | None:
    """What a manifest says itself, or a file of the plugin; None where there is neither. Raises `ConfigError`."""
    if isinstance(said, dict):
        return said
    if said is None:
        return _json(root / default, root) if (root / default).exists() else None
    if not isinstance(said, str):
        raise ConfigError(f"plugin.json: what stands in place of {default} is neither a path nor an object")
    return _json(_own(root, said), root)


def _own(root: Path, text: str) -> Path:
    path = (root / text).resolve()
    if not path.is_relative_to(root):
        raise ConfigError(f"plugin.json: {text!r} leads out of the plugin")
    return path


def _agents(root: Path, plugin: str, said: Any) -> tuple[tuple[AgentDefinition, ...], list[str]]:
    """The agents, named after the plugin and the directory they lie in, and what is wrong with others. Raises `ConfigError`."""
    places = [root / "agents", *(_own(root, text) for text in ([said] if isinstance(said, str) else said or ()))]
    found: dict[str, AgentDefinition] = {}
    problems: list[str] = []
    for place in places:
        for path in [place] if place.suffix == ".md" else sorted(place.rglob("*.md")):
            if not _inside(path, root):
                problems.append(f"{path.relative_to(root)} is left out: it is a link out of the plugin")
                continue
            try:
                definition, _ = definitions.parse(definitions.read(path), path)
            except ConfigError as error:
                problems.append(f"{path.relative_to(root)} is left out: {error}")
                continue
            if definition is not None:
                between = path.parent.relative_to(place).parts if path != place else ()
                name = ":".join((plugin, *between, definition.name))
                found[name] = replace(definition, name=name, hooks=HookConfig(), mcp_servers=(), permission_mode=None)
    return tuple(found.values()), problems


def with_plugins(agents: definitions.Agents, plugins: Iterable[Plugin]) -> definitions.Agents:
    """`agents` and those of plugins, whose names no file of a person can have."""
    return replace(agents, by_name={**agents.by_name, **{agent.name: agent for p in plugins for agent in p.agents}})
