"""MCP servers as people have configured them, read and never written.

Places, highest first: `--mcp-config` (a path or JSON), local (`~/.claude.json` under `projects`), project (`.mcp.json` of
the working directory, then of the repository's root), user (`~/.claude.json`), plugins. One whole entry wins, nothing is merged.

Rules of this file:

1. What cannot be used becomes a `Problem` that names the file and the server; the others still count. A file that is named
   by a flag and cannot be read is an error.
2. A server of the project comes from other people: it runs when the repository is trusted and its file grants what it did
   when that was said (`Gate.counts`), or when a person approved exactly this entry (`approvals.py`). A settings file may block it (`disabledMcpjsonServers`, always), and narrow what the
   trust covers (`enabledMcpjsonServers` without `enableAllProjectMcpServers`). Nobody's settings let one run that comes
   with an untrusted repository: a name says nothing about what stands behind it.
3. `${VAR}` and `${VAR:-default}` are replaced in `command`, `args`, `env`, `url`, `headers`, `cwd`, when a server is about
   to run and not before; a variable that is not set and has no default stays as it is written, and is named.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
from msgspec import Struct, field

from worker_agent import disk
from worker_agent.errors import ConfigError
from worker_agent.mcp.names import plain
from worker_agent.structs import replace

MAX_BYTES = 1_000_000  # of a file that a project or a flag names
MAX_USER_BYTES = 64_000_000  # of `~/.claude.json`, where others keep a history, too
_BOM = b"\xef\xbb\xbf"
_LEFT_OUT = "leftOut"
PROJECT_FILE = ".mcp.json"
USER_FILE = ".claude.json"
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_KINDS = {"stdio": "stdio", "http": "http", "streamable-http": "http", "sse": "sse"}
_OF_PROGRAM = "sdk"  # it lives in the program that begins a run and names it in --mcp-config
_KNOWN = frozenset({"type", "command", "args", "env", "cwd", "url", "headers", "timeout"})
_IGNORED = frozenset({"name", "description", "alwaysLoad", "disabled", "oauth"})


class Scope(StrEnum):
    """Where an entry stands."""

    FLAG = "flag"
    LOCAL = "local"
    PROJECT = "project"
    USER = "user"
    PLUGIN = "plugin"
    AGENT = "agent"


class Standing(StrEnum):
    """Whether a server may run."""

    READY = "ready"
    DISABLED = "disabled"
    NOT_ENABLED = "not enabled"
    NEEDS_APPROVAL = "needs approval"


class ServerConfig(Struct, frozen=True, kw_only=True):
    """One server. `kind` is `stdio`, `http`, `sse` or `sdk`; `timeout` is that of a call, in seconds (None: the settings');
    `variables` are the values of names that only this entry knows (a plugin's root); `literal`: `${…}` in it is text.
    `data` is a directory that is made before its process starts."""

    name: str
    kind: str
    scope: Scope
    source: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    literal: bool = False
    data: str | None = None
    vouched: bool = True  # False: its file came with a repository, and nobody trusts it as it is now
    standing: Standing = Standing.READY

    @property
    def digest(self) -> str:
        """What a person approves: this very entry, and no other that bears its name."""
        said = [self.kind, self.command, self.args, sorted(self.env.items()), self.cwd, self.url, sorted(self.headers.items())]
        return sha256(orjson.dumps(said)).hexdigest()

    @property
    def target(self) -> str:
        """What is run or reached, as it is written, without what may be a secret."""
        return " ".join((self.command, *self.args)) if self.kind == "stdio" else self.url


class Problem(Struct, frozen=True):
    """Why an entry does not count, or what of it does not; a sentence for a person."""

    source: str
    text: str

    def __str__(self) -> str:
        return f"{self.source}: {self.text}"


class Gate(Struct, frozen=True, kw_only=True):
    """What decides over servers of the project. `counts` tells whether a trusted repository's file, by its path and its
    `mcpServers`, is as it was when it was trusted; `approved` whether a person approved an entry by its digest."""

    trusted: bool = False
    counts: Callable[[Path, Any], bool] = field(default=lambda path, servers: True)
    enabled: Collection[str] = ()
    disabled: Collection[str] = ()
    all_enabled: bool = False
    approved: Callable[[ServerConfig], bool] = field(default=lambda server: False)

    def standing(self, server: ServerConfig) -> Standing:
        if server.scope is not Scope.PROJECT:
            return Standing.READY
        if server.name in self.disabled:
            return Standing.DISABLED
        if self.approved(server):
            return Standing.READY
        if not (self.trusted and server.vouched):
            return Standing.NEEDS_APPROVAL
        narrowed = self.enabled and not self.all_enabled
        return Standing.NOT_ENABLED if narrowed and server.name not in self.enabled else Standing.READY


class Configured(Struct, frozen=True):
    """The servers by name, those that win; `shadowed` are entries of the same name further down."""

    servers: tuple[ServerConfig, ...] = ()
    shadowed: tuple[ServerConfig, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def usable(self) -> tuple[ServerConfig, ...]:
        return tuple(server for server in self.servers if server.standing is Standing.READY)

    @property
    def held_back(self) -> tuple[str, ...]:
        """A line for each server that waits for a person."""
        waiting = [server for server in self.servers if server.standing is Standing.NEEDS_APPROVAL]
        return tuple(
            f"{server.source}: the MCP server {server.name!r} is not started until `coordinator mcp approve {server.name}`"
            " or `coordinator trust`"
            for server in waiting
        )


def load(
    cwd: Path, *, home: Path, root: Path, gate: Gate, given: Sequence[str] = (), only_given: bool = False,
    more: Iterable[ServerConfig] = (),
) -> Configured:  # fmt: skip
    """The servers that hold in `cwd`, whose repository's root is `root`. `given` are values of `--mcp-config`, with
    `only_given` nothing else counts; `more` are those of plugins. Raises `ConfigError`."""
    found: list[ServerConfig] = []
    problems: list[Problem] = []
    for entries, wrong in _places(cwd, home, root, gate, given, only_given):
        found += entries
        problems += wrong
    if not only_given:
        found += more
    return _chosen(found, problems, gate)


def _chosen(found: Sequence[ServerConfig], problems: list[Problem], gate: Gate) -> Configured:
    """Of entries with one name the first; names that a model could not tell apart are a problem of the later one."""
    chosen: dict[str, ServerConfig] = {}
    shadowed: list[ServerConfig] = []
    spelled: dict[str, str] = {}
    for server in found:
        if server.name in chosen:
            shadowed.append(server)
        elif (other := spelled.setdefault(plain(server.name), server.name)) != server.name:
            text = f"the MCP server {server.name!r} is left out: its tools would be named like those of {other!r}"
            problems.append(Problem(server.source, text))
        else:
            chosen[server.name] = replace(server, standing=gate.standing(server))
    return Configured(tuple(chosen.values()), tuple(shadowed), tuple(problems))


Place = tuple[list[ServerConfig], list[Problem]]


def _places(cwd: Path, home: Path, root: Path, gate: Gate, given: Sequence[str], only_given: bool) -> Iterator[Place]:
    for text in given:
        yield _given(text, cwd)
    if only_given:
        return
    user = home / USER_FILE
    data, wrong = _user_data(user)
    yield [], wrong
    projects = data.get("projects")
    for directory in dict.fromkeys((cwd, root)):
        entry = projects.get(str(directory)) if isinstance(projects, Mapping) else None
        if isinstance(entry, Mapping):
            yield entries(entry.get("mcpServers"), Scope.LOCAL, f"{user} ({directory})")
    for directory in dict.fromkeys((cwd, root)):
        if directory != home:
            yield _project(directory / PROJECT_FILE, gate, root)
    yield entries(data.get("mcpServers"), Scope.USER, str(user))


def _project(path: Path, gate: Gate, root: Path) -> Place:
    try:
        content = disk.read_regular(path, limit=MAX_BYTES, inside=None if gate.trusted else root)
    except (FileNotFoundError, NotADirectoryError):
        return [], []
    except disk.Outside:
        return [], [Problem(str(path), "is left out: it is a link out of the project")]
    except OSError as error:
        return [], [Problem(str(path), f"cannot be read: it {error.strerror}")]
    found, problems = _of_file(content, Scope.PROJECT, str(path))
    if found and not gate.counts(path, orjson.loads(content.removeprefix(_BOM))["mcpServers"]):
        found = [replace(server, vouched=False) for server in found]
    return found, problems


def _user_data(path: Path) -> tuple[Mapping[str, Any], list[Problem]]:
    try:
        data = orjson.loads(disk.read_regular(path, limit=MAX_USER_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        return {}, []
    except OSError as error:
        return {}, [Problem(str(path), f"cannot be read: it {error.strerror}")]
    except orjson.JSONDecodeError as error:
        return {}, [Problem(str(path), f"is no JSON: {error}")]
    return (data, []) if isinstance(data, dict) else ({}, [Problem(str(path), "is no JSON object")])


def _given(text: str, cwd: Path) -> Place:
    """Raises `ConfigError`: what a person names must be there."""
    if (path := disk.named_file(text, cwd)) is None:
        source, content = "--mcp-config", text.encode("utf-8", "replace")
    else:
        source = str(path)
        try:
            content = disk.read_regular(path, limit=MAX_BYTES)
        except OSError as error:
            raise ConfigError(f"--mcp-config {text}: it cannot be read ({error.strerror})") from None
    found, problems = _of_file(content, Scope.FLAG, source)
    if problems and not found and _LEFT_OUT not in text:
        raise ConfigError(f"--mcp-config: {problems[0]}")
    return found, problems


def to_keep(text: str, cwd: Path) -> str:
    """A value of `--mcp-config` as it may be stored: a path, made absolute; of JSON, in which secrets may stand, the names."""
    if (path := disk.named_file(text, cwd)) is not None:
        return str(path)
    found, _ = _of_file(text.encode("utf-8", "replace"), Scope.FLAG, "--mcp-config")
    return orjson.dumps({"mcpServers": {}, _LEFT_OUT: [server.name for server in found]}).decode()


def _of_file(content: bytes, scope: Scope, source: str) -> Place:
    try:
        data = orjson.loads(content.removeprefix(_BOM)) if content.strip() else {}
    except orjson.JSONDecodeError as error:
        return [], [Problem(source, f"is no JSON: {error}")]
    if not isinstance(data, Mapping):
        return [], [Problem(source, "is no JSON object")]
    found, problems = entries(data.get("mcpServers", data if scope is Scope.FLAG else None), scope, source)
    if scope is Scope.FLAG and (names := data.get(_LEFT_OUT)):
        text = f"the MCP servers {', '.join(map(str, names))} were given as JSON and not stored; give --mcp-config again to have them"
        problems.append(Problem(source, text))
    return found, problems


def entries(
    data: Any, scope: Scope, source: str, *, named: Callable[[str], str] = lambda name: name,
    variables: Mapping[str, str] | None = None,
) -> Place:  # fmt: skip
    """The servers of one `mcpServers` object. `named` gives what each is called."""
    if data is None:
        return [], []
    if not isinstance(data, Mapping):
        return [], [Problem(source, "`mcpServers` is no object")]
    found: list[ServerConfig] = []
    problems: list[Problem] = []
    for name, entry in data.items():
        try:
            server, notes = _server(named(str(name)), entry, scope, source)
        except ConfigError as error:
            problems.append(Problem(source, f"the MCP server {str(name)!r} is left out: {error}"))
            continue
        found.append(replace(server, variables=variables or {}))
        problems += [Problem(source, f"the MCP server {str(name)!r}: {note}") for note in notes]
    return found, problems


def _server(name: str, entry: Any, scope: Scope, source: str) -> tuple[ServerConfig, list[str]]:
    """Raises `ConfigError` with what is wrong with the entry."""
    if not name.strip():
        raise ConfigError("it has no name")
    if not isinstance(entry, Mapping):
        raise ConfigError("it is no object")
    said = entry.get("type")
    if said is None and "url" in entry:
        raise ConfigError('it has a `url` and no `type`; write "type": "http"')
    kind = _OF_PROGRAM if said == _OF_PROGRAM and scope is Scope.FLAG else _KINDS.get(str(said or "stdio"))
    if kind is None:
        raise ConfigError(f"there is no transport {said!r} here; there are {', '.join(_KINDS)}")
    if "headersHelper" in entry:
        raise ConfigError("`headersHelper` is not supported; write `headers`, with ${VAR} for what is secret")
    config = ServerConfig(
        name=name,
        kind=kind,
        scope=scope,
        source=source,
        command=_text(entry, "command", needed=kind == "stdio"),
        args=tuple(_texts(entry, "args")),
        env=_pairs(entry, "env"),
        cwd=_text(entry, "cwd") or None,
        url=_text(entry, "url", needed=kind in ("http", "sse")),
        headers=_pairs(entry, "headers"),
        timeout=_seconds(entry.get("timeout")),
    )
    unknown = sorted(set(map(str, entry)) - _KNOWN - _IGNORED)
    return config, ([f"passed over: {', '.join(unknown)}"] if unknown else [])


def _text(entry: Mapping[str, Any], key: str, *, needed: bool = False) -> str:
    value = entry.get(key)
    if value is None and not needed:
        return ""
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ConfigError(f"`{key}` is {'missing' if value is None else 'no text'}")
    return value


def _texts(entry: Mapping[str, Any], key: str) -> list[str]:
    value = entry.get(key) or []
    if not isinstance(value, list) or not all(isinstance(item, str) and "\0" not in item for item in value):
        raise ConfigError(f"`{key}` is no list of strings")
    return value


def _pairs(entry: Mapping[str, Any], key: str) -> dict[str, str]:
    value = entry.get(key) or {}
    plain_value = (str, int, float)
    if not isinstance(value, Mapping) or not all(
        isinstance(item, plain_value) and "\0" not in str(item) for item in value.values()
    ):
        raise ConfigError(f"`{key}` is no object of strings")
    return {str(name): (str(item).lower() if isinstance(item, bool) else str(item)) for name, item in value.items()}


def _seconds(value: Any) -> float | None:
    if value is None:
        return None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or value <= 0:
        raise ConfigError("`timeout` is no number of milliseconds above 0")
    return value / 1000


# ── variables ────────────────────────────────────────────────────────────────────────────────────────────────────────


def expanded(server: ServerConfig, variable: Callable[[str], str]) -> tuple[ServerConfig, tuple[str, ...]]:
    """`server` with its variables replaced, and the names of those that are not set. `variable` gives "" for one that is
    not; the entry's own `variables` come first."""
    missing: dict[str, None] = {}
    if server.literal:
        return server, ()

    def value(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        found = server.variables.get(name) or variable(name) or default
        if found is None:
            missing[name] = None
            return match[0]
        return found

    def full(text: str) -> str:
        return _VARIABLE.sub(value, text)

    changed = replace(
        server,
        command=full(server.command),
        args=tuple(map(full, server.args)),
        env={name: full(text) for name, text in server.env.items()},
        cwd=full(server.cwd) if server.cwd else None,
        url=full(server.url),
        headers={name: full(text) for name, text in server.headers.items()},
    )
    return changed, tuple(missing)
