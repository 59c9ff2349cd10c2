"""Settings files that people already have, read and never written: rules, hooks, environment, servers.

Files, highest first: managed, `--settings` (a path or JSON), `.claude/settings.local.json`, `.claude/settings.json`,
`~/.claude/settings.json`. Of a single value the highest wins; lists and hooks add up. Keys that are not honoured are passed
over, in silence but for those of `permissions`. A file that is no JSON object is an error that names it, and so is a fence that
cannot be read (a deny or ask rule, a hook, a mode, a block-list): it must not get lost. Nor must one whose key is misspelled,
stands in the wrong place, or stands twice, where JSON keeps the last. Any other wrong type is one line and grants nothing.

Trust: what lies inside the project came with it, so its allow rules, hooks, environment, directories and servers count only
when the person trusted it (`trust.py`; the caller says so), and as they were then: a file whose rights have changed since
counts as one that nobody trusts. Its deny and ask rules, and modes that only narrow, count always.
"""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from msgspec import Struct, field

from worker_agent import disk
from worker_agent.config import MODES_STRICTEST_FIRST, is_secret_name, secret_values
from worker_agent.errors import ConfigError
from worker_agent.hooks import FENCING, HookConfig
from worker_agent.redaction import Redactor
from worker_agent.structs import replace
from worker_agent.tools.hook_scripts import script_digests
from worker_agent.tools.permissions import Mode, Policy
from worker_agent.tools.rules import Behavior, RuleError, RuleSet, Source, as_written
from worker_agent.tools.trust import SOURCES, Brought, Trust, repository_root
from worker_agent.words import meant

MAX_BYTES = 1_000_000  # of one file
MANAGED = Path("/etc/claude-code/managed-settings.json")
LOCAL_NAME = "settings.local.json"
_ELSEWHERE = "auto"  # a mode of others that grants; without it more is asked, so it is no fence
_STORED = (
    "permissions", "hooks", "model", "enabledMcpjsonServers", "disabledMcpjsonServers", "enableAllProjectMcpServers",
)  # fmt: skip
_LEFT_OUT = "leftOut"
_FENCES_OF, _WERE = "fencesOf", "were"  # of a snapshot: the file that it is of, the digest of what was left out
_FENCES = ("permissions", "hooks", "disabledMcpjsonServers")
_PERMISSIONS = ("deny", "ask", "allow", "defaultMode", "disableBypassPermissionsMode", "additionalDirectories")
_OF_OTHERS = ("disableAutoMode",)  # of `permissions`, and known to have no meaning here
_SAID_OTHERWISE = {
    "denied": "deny",
    "disallow": "deny",
    "disallowed": "deny",
    "block": "deny",
    "forbid": "deny",
    "mode": "defaultMode",
}
_BLOCK_LISTS = frozenset({"disallowedtools", "deniedtools", "blockedtools"})
_NARROWING = frozenset({Mode.DEFAULT, Mode.PLAN, Mode.DONT_ASK})
_NARROWING_NAMES = (*map(str, _NARROWING), "manual")
_GRANTING = ("hooks", "env", "model", "enabledMcpjsonServers", "enableAllProjectMcpServers")


class Layer(Struct, frozen=True):
    """One file. `base` is what its `/x` patterns hang on; `counts` is False for a project nobody trusts, and for a file
    that is not as it was trusted (`changed`); `left_out` says that the file was a link out of it and is not read."""

    name: str
    base: Path
    data: Mapping[str, Any]
    counts: bool = True
    changed: bool = False
    left_out: bool = False

    @property
    def is_snapshot(self) -> bool:
        """Whether these are the fences of a file as it was (`fences_of`): they hold beside what it says now, and grant nothing."""
        return _FENCES_OF in self.data


class LoadedSettings(Struct, frozen=True, kw_only=True):
    """All files together. `problems` and `held_back` are lines for the person: what could not be used, and what does not
    count until `coordinator trust`."""

    rules: RuleSet = field(default_factory=RuleSet)
    hooks: HookConfig = field(default_factory=HookConfig)
    default_mode: Mode | None = None
    bypass_disabled: bool = False
    directories: tuple[Path, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()  # values of credentials in the files, known so that they can be redacted
    model: str | None = None
    enabled_servers: frozenset[str] = frozenset()
    disabled_servers: frozenset[str] = frozenset()
    all_project_servers: bool = False
    files: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    held_back: tuple[str, ...] = ()

    def mode(self, asked: str | None = None) -> Mode:
        """The mode that holds: as asked on the command line, else as the files say. Raises `ConfigError`."""
        try:
            mode = Mode.parse(asked) if asked else self.default_mode or Mode.DEFAULT
        except ValueError:
            raise ConfigError(f"there is no permission mode {asked!r}; there are {', '.join(Mode)}") from None
        if mode is Mode.BYPASS and self.bypass_disabled:
            raise ConfigError("bypassPermissions is switched off by a settings file (disableBypassPermissionsMode)")
        return mode

    def policy(
        self, *, cwd: Path, home: Path, mode: str | None = None, allowed: Iterable[str] = (), disallowed: Iterable[str] = (),
        roots: Sequence[Path] = (),
    ) -> Policy:  # fmt: skip
        """The policy of an agent in `cwd`: flags before files. Raises `ConfigError`."""
        rules = RuleSet.from_flags(allowed, disallowed) + self.rules
        every = tuple(dict.fromkeys((cwd, *roots, *self.directories)))
        return Policy(mode=self.mode(mode), rules=rules, cwd=cwd, roots=every, home=home)


def load(
    cwd: Path, *, home: Path, trust: Trust, settings: str | None = None, earlier: Sequence[str] = (), managed: Path = MANAGED,
    sources: Container[str] = SOURCES,
) -> LoadedSettings:  # fmt: skip
    """All settings that hold in `cwd`; `trust` is what the person said of it; `settings` is the value of `--settings`, `earlier` those of the session before it,
    which hold behind it; of files that are no administrator's those of `sources` are read. Raises `ConfigError`."""
    given = [text for text in (settings, *earlier) if text is not None]
    layers = tuple(_layers(cwd, home, trust, given, managed, sources))
    rules, hooks = RuleSet(), HookConfig()
    for layer in layers:
        rules += _rules(layer)
        if layer.counts:
            hooks += _hooks(layer).refusing(beside=hooks) if layer.is_snapshot else _hooks(layer)
    trusted_layers = [layer for layer in layers if layer.counts]
    mode = _mode([layer for layer in layers if not layer.is_snapshot])
    for layer in layers:
        if layer.is_snapshot and (was := _mode([layer])) is not None:
            mode = min(was, mode or Mode.DEFAULT, key=MODES_STRICTEST_FIRST.index)
    return LoadedSettings(
        rules=rules,
        hooks=hooks,
        default_mode=mode,
        bypass_disabled=any(_permissions(layer).get("disableBypassPermissionsMode") is not None for layer in layers),
        directories=_directories(trusted_layers, home),
        env=_env(trusted_layers),
        secrets=tuple(_secrets(layers)),
        model=next((m for layer in trusted_layers if isinstance(m := layer.data.get("model"), str)), None),
        enabled_servers=frozenset(_names(trusted_layers, "enabledMcpjsonServers")),
        disabled_servers=frozenset(_names(layers, "disabledMcpjsonServers")),
        all_project_servers=next(
            (v for layer in trusted_layers if isinstance(v := layer.data.get("enableAllProjectMcpServers"), bool)), False
        ),
        files=tuple(layer.name for layer in layers if not layer.left_out),
        problems=(*rules.problems, *hooks.problems, *(line for layer in layers for line in _wrong_types(layer))),
        held_back=tuple(line for layer in layers if not layer.counts for line in _held_back(layer)),
    )


def to_keep(settings: str) -> str:
    """A value of `--settings` as it may be stored: a path as it is; of JSON what fences and grants, and never the environment
    nor anything that may be a secret. What is missing is named in it (`left_out`). Raises `ConfigError`."""
    if not disk.is_inline(settings):
        return settings
    data = _parsed(settings.encode("utf-8", "replace"), "--settings")
    redact = Redactor((*secret_values(), *_secrets([Layer("--settings", Path(), data)])))
    kept = {key: data[key] for key in _STORED if key in data and not _may_be_secret(data[key], redact)}
    missing = [key for key in ("env", *_STORED) if data.get(key) and key not in kept]
    return orjson.dumps(kept | ({_LEFT_OUT: missing} if missing else {})).decode()


def fences_of(settings: str, cwd: Path) -> str | None:
    """What fences in the file that a value of `--settings` names, as a value that holds beside it when a session is gone on
    with: a person may change the file meanwhile. What may be a secret is left out, and known by its digest. None where the
    value is inline or nothing fences. Raises `ConfigError`."""
    if disk.is_inline(settings):
        return None
    layer = _given(settings, cwd)
    fences = {key: value for key, value in _fences(layer).items() if value}
    if not fences:
        return None
    redact = Redactor((*secret_values(), *_secrets([layer])))
    kept = {key: value for key, value in fences.items() if not _may_be_secret(value, redact)}
    missing = {key: value for key, value in fences.items() if key not in kept}
    left = {_LEFT_OUT: list(missing), _WERE: _digest(missing)} if missing else {}
    return orjson.dumps({_FENCES_OF: settings, **kept, **left}).decode()


def _fences(layer: Layer) -> dict[str, Any]:
    """By the keys of a settings file, what only narrows."""
    permissions = _permissions(layer)
    narrowing = {key: permissions.get(key) for key in ("deny", "ask", "disableBypassPermissionsMode")}
    narrowing["defaultMode"] = mode if (mode := permissions.get("defaultMode")) in _NARROWING_NAMES else None
    hooks = layer.data.get("hooks")
    return {
        "permissions": {key: value for key, value in narrowing.items() if value},
        "hooks": {event: groups for event, groups in hooks.items() if event in FENCING} if isinstance(hooks, Mapping) else {},
        "disabledMcpjsonServers": layer.data.get("disabledMcpjsonServers"),
    }


def _digest(value: Any) -> str:
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()


def left_out(stored: str, cwd: Path) -> tuple[str, ...]:
    """The keys of a value of `--settings` that `to_keep` or `fences_of` left out; not those that its file still says word for
    word. Raises `ConfigError`."""
    if not disk.is_inline(stored):
        return ()
    data = _parsed(stored.encode("utf-8", "replace"), "--settings")
    names = tuple(_names([Layer("--settings", Path(), data)], _LEFT_OUT))
    if names and (file := data.get(_FENCES_OF)):
        now = _fences(_given(file, cwd))
        return () if _digest({name: now.get(name) for name in names}) == data.get(_WERE) else names
    return names


def _may_be_secret(value: Any, redact: Redactor) -> bool:
    text = orjson.dumps(value).decode()
    return redact(text) != text or _has_headers(value)


def _has_headers(value: Any) -> bool:
    """Whether a hook in `value` sends headers: credentials stand there."""
    if isinstance(value, Mapping):
        return bool(value.get("headers")) or any(map(_has_headers, value.values()))
    return isinstance(value, list) and any(map(_has_headers, value))


def _layers(
    cwd: Path, home: Path, trust: Trust, given: Iterable[str], managed: Path, sources: Container[str]
) -> Iterator[Layer]:
    user_base = home / ".claude"
    yield from _file(managed, managed.parent)
    for settings in given:
        yield _given(settings, cwd)
    for path, project in project_files(cwd, home):
        if ("local" if path.name == LOCAL_NAME else "project") not in sources:
            continue
        for layer in _file(path, project, inside=None if trust.trusted else project):
            as_trusted = trust.counts(brought(layer))
            yield replace(layer, counts=trust.trusted and as_trusted, changed=trust.trusted and not as_trusted)
    if "user" in sources:
        yield from _file(user_base / "settings.json", user_base)


def project_files(cwd: Path, home: Path) -> Iterator[tuple[Path, Path]]:
    """The settings files that may come with the repository around `cwd`, each with the directory it is of."""
    for project in dict.fromkeys((cwd, repository_root(cwd))):
        if project.resolve() == home.resolve():
            continue  # the person's own directory: its file is the user's
        for name in (f".claude/{LOCAL_NAME}", ".claude/settings.json"):
            yield project / name, project


def brought(layer: Layer) -> Brought:
    """What a file grants, beside its fences."""
    permissions = _permissions(layer)
    mode = permissions.get("defaultMode")
    rights = {f"permissions.{key}": permissions.get(key) for key in ("allow", "additionalDirectories")}
    rights |= {key: layer.data.get(key) for key in _GRANTING}
    rights["permissions.defaultMode"] = None if mode in _NARROWING_NAMES else mode
    if isinstance(hooks := layer.data.get("hooks"), Mapping) and hooks:
        rights["hook scripts"] = script_digests(HookConfig.parse(hooks), repository_root(layer.base), layer.base)
    rights = {key: value for key, value in rights.items() if value}
    return Brought(Path(layer.name), rights, bool(rights), tuple(_in_words(rights)))


def look(path: Path, project: Path) -> Iterator[Brought]:
    """What the project's file at `path` grants, for a person who is about to trust it; nothing where there is no file."""
    try:
        for layer in _file(path, project):
            yield brought(layer)
    except ConfigError as error:
        yield Brought(path, problem=str(error))


def servers_brought(path: Path, data: Mapping[str, Any]) -> Brought:
    """What a project's `.mcp.json` with this content grants: each server is a program that runs, or a place that is told."""
    servers = data.get("mcpServers")
    named = servers if isinstance(servers, Mapping) else {}
    words = tuple(f"server {name}: {_server_in_words(entry)}" for name, entry in named.items())
    return Brought(path, {"mcpServers": servers} if servers else {}, bool(servers), words)


def look_for_servers(path: Path) -> Iterator[Brought]:
    """What the `.mcp.json` at `path` grants, for a person who is about to trust it; nothing where there is none."""
    try:
        for layer in _file(path, path.parent):
            yield servers_brought(path, layer.data)
    except ConfigError as error:
        yield Brought(path, problem=str(error))


def _server_in_words(entry: Any) -> str:
    if not isinstance(entry, Mapping):
        return str(entry)
    args = entry.get("args")
    return " ".join(map(str, (entry.get("url") or entry.get("command"), *(args if isinstance(args, list) else ()))))


def _in_words(rights: Mapping[str, Any]) -> Iterator[str]:
    for key, value in rights.items():
        match key, value:
            case "hooks", Mapping():
                yield from hooks_in_words(value)
            case "hook scripts", _:
                pass  # they are named with the hooks
            case "env", Mapping():
                yield f"environment {', '.join(map(str, value))}"
            case _, list():
                yield f"{key} {', '.join(map(str, value))}"
            case _:
                yield f"{key} {value}"


def hooks_in_words(hooks: Mapping[str, Any]) -> Iterator[str]:
    """What would run, a piece each: `hook PreToolUse: ./check.sh`."""
    found = HookConfig.parse(hooks)
    for group in found.groups:
        for handler in group.handlers:
            yield f"hook {group.event}{f' {group.matcher}' if group.matcher else ''}: {handler.label}"


def _file(path: Path, base: Path, inside: Path | None = None) -> Iterator[Layer]:
    """The file at `path`; with `inside` a link out of that directory stands for no file, and is named."""
    try:
        content = disk.read_regular(path, limit=MAX_BYTES, inside=inside)
    except (FileNotFoundError, NotADirectoryError):
        return
    except disk.Outside:
        yield Layer(str(path), base, {}, counts=False, left_out=True)
        return
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: it {error.strerror}") from None
    yield Layer(str(path), base, _parsed(content, str(path)))


def _given(settings: str, cwd: Path) -> Layer:
    if (path := disk.named_file(settings, cwd)) is None:
        data = _parsed(settings.encode("utf-8", "replace"), "--settings")
        return Layer(f"{data[_FENCES_OF]}, as it was" if _FENCES_OF in data else "--settings", cwd, data)
    for layer in _file(path, cwd):
        return layer
    raise ConfigError(f"--settings {settings}: there is no such file")


def _parsed(content: bytes, name: str) -> Mapping[str, Any]:
    try:
        content = content.removeprefix(codecs.BOM_UTF8)
        data = orjson.loads(content) if content.strip() else {}
        json.loads(content or b"{}", object_pairs_hook=partial(_each_once, name))
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{name} is no JSON: {error}") from None
    except RecursionError:
        raise ConfigError(f"{name} is nested too deeply") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{name} is no JSON object")
    _check_keys(data, name)
    if not isinstance(data.get("permissions", {}), dict):
        raise ConfigError(f"{name}: `permissions` is no object")
    for behavior in Behavior:
        if not isinstance(data.get("permissions", {}).get(behavior.value, []), list):
            raise ConfigError(f"{name}: `permissions.{behavior}` is no list")
    for key in ("disabledMcpjsonServers",):
        if (value := data.get(key)) is not None and not _is_list_of_strings(value):
            raise ConfigError(f"{name}: `{key}` is no list of strings")
    return data


def _each_once(name: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Raises `ConfigError` for a key that stands in one object twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ConfigError(f"{name}: the key {twice[:100]!r} stands there twice; only one of the two would hold")
    return found


def _check_keys(data: Mapping[str, Any], name: str) -> None:
    """Raises `ConfigError` for a key by which a fence was meant and would not be found."""
    known = (*_FENCES, *_STORED)
    for key in data:
        if key in ("deny", "ask"):
            raise ConfigError(f"{name}: `{key}` stands outside of `permissions`")
        if key.replace("_", "").lower() in _BLOCK_LISTS:
            raise ConfigError(f"{name}: the key {key!r} is none of a settings file; write the rules in `permissions.deny`")
        if (fence := meant(key, known)) is not None:
            raise ConfigError(f"{name}: the key {key[:100]!r} is none; write `{fence}`")
    permissions = data.get("permissions")
    for key in permissions if isinstance(permissions, dict) else ():
        fence = meant(key, (*_PERMISSIONS, *_OF_OTHERS)) or _SAID_OTHERWISE.get(key.lower())
        if fence is not None and fence not in _OF_OTHERS:
            raise ConfigError(f"{name}: the key {key[:100]!r} of `permissions` is none; write `{fence}`")


def _is_list_of_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _wrong_types(layer: Layer) -> Iterator[str]:
    """One line for each value that grants something and has the wrong type; it grants nothing."""
    permissions = _permissions(layer)
    off = permissions.get("disableBypassPermissionsMode")
    wrong = {
        "permissions.additionalDirectories` is no list of strings": (
            permissions.get("additionalDirectories"), _is_list_of_strings,
        ),
        "env` is no object of strings": (layer.data.get("env"), _is_environment),
        "model` is no string": (layer.data.get("model"), lambda value: isinstance(value, str)),
        "enabledMcpjsonServers` is no list of strings": (layer.data.get("enabledMcpjsonServers"), _is_list_of_strings),
        "enableAllProjectMcpServers` is neither true nor false": (
            layer.data.get("enableAllProjectMcpServers"), lambda value: isinstance(value, bool),
        ),
    }  # fmt: skip
    for text, (value, fits) in wrong.items():
        if value is not None and not fits(value):
            yield f"{layer.name}: `{text}; it does not count"
    if unknown := [key for key in permissions if key not in (*_PERMISSIONS, *_OF_OTHERS)]:
        yield f"{layer.name}: passed over in `permissions`: {', '.join(unknown)}"
    if layer.data.get("sandbox"):
        yield f"{layer.name}: `sandbox` is passed over: commands are confined as `--sandbox` says, and by deny rules"
    if permissions.get("defaultMode") == _ELSEWHERE:
        yield f"{layer.name}: the permission mode {_ELSEWHERE!r} is not known here"
    if off is not None and off != "disable":
        yield f'{layer.name}: `permissions.disableBypassPermissionsMode` is not "disable"; taken as if it were'


def _is_environment(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(item, (str, int, float)) for item in value.values())


def _hooks(layer: Layer) -> HookConfig:
    """Raises `ConfigError` for what may have been there to refuse something and cannot be run."""
    data = layer.data.get("hooks")
    if data is not None and not isinstance(data, Mapping):
        raise ConfigError(f"{layer.name}: `hooks` is no object")
    hooks = HookConfig.parse(data, layer.name)
    if hooks.fences:
        raise ConfigError(hooks.fences[0])
    return hooks


def _permissions(layer: Layer) -> Mapping[str, Any]:
    found: Mapping[str, Any] = layer.data.get("permissions", {})
    return found


def _rules(layer: Layer) -> RuleSet:
    found = RuleSet()
    for behavior in Behavior:
        if behavior is Behavior.ALLOW and not layer.counts:
            continue
        source = Source(layer.name, f"permissions.{behavior}", layer.base)
        for number, text in enumerate(_permissions(layer).get(behavior.value, ())):
            if behavior is not Behavior.ALLOW:
                _check_fence(text, behavior, Source(layer.name, f"permissions.{behavior}[{number}]", layer.base))
        found += RuleSet.parse(behavior, _permissions(layer).get(behavior.value, ()), source)
    return found


def _check_fence(text: Any, behavior: Behavior, source: Source) -> None:
    """Raises `ConfigError` for a rule that cannot be read."""
    try:
        as_written(text, source, behavior)
    except RuleError as error:
        raise ConfigError(f"{source}: {error}") from None


def _mode(layers: Sequence[Layer]) -> Mode | None:
    """Raises `ConfigError` for a mode that is not known: it may have been the strictest one."""
    for layer in layers:
        named = _permissions(layer).get("defaultMode")
        if named is None or named == _ELSEWHERE:
            continue
        try:
            mode = Mode.parse(str(named))
        except ValueError:
            raise ConfigError(f"{layer.name}: the permission mode {named!r} is not known here") from None
        if layer.counts or mode in _NARROWING:
            return mode
    return None


def _directories(layers: Sequence[Layer], home: Path) -> tuple[Path, ...]:
    found = []
    for layer in layers:
        texts = _permissions(layer).get("additionalDirectories")
        for text in texts if texts and _is_list_of_strings(texts) else ():
            found.append(home / text[2:] if text.startswith("~/") else layer.base / text)
    return tuple(dict.fromkeys(found))


def _env(layers: Sequence[Layer]) -> dict[str, str]:
    """For tools' processes, so without credentials; the highest file wins."""
    found: dict[str, str] = {}
    for layer in reversed(layers):
        value = layer.data.get("env")
        if isinstance(value, Mapping):
            found |= {str(k): str(v) for k, v in value.items() if not is_secret_name(str(k)) and "\0" not in f"{k}{v}"}
    return found


def _secrets(layers: Sequence[Layer]) -> Iterator[str]:
    for layer in layers:
        value = layer.data.get("env")
        if isinstance(value, Mapping):
            yield from secret_values({str(k): v for k, v in value.items() if isinstance(v, str)})


def _names(layers: Sequence[Layer], key: str) -> Iterator[str]:
    for layer in layers:
        value = layer.data.get(key)
        yield from (name for name in (value if isinstance(value, list) else ()) if isinstance(name, str))


def _held_back(layer: Layer) -> Iterator[str]:
    if layer.left_out:
        yield f"{layer.name} is left out: it is a link out of the project"
    permissions = _permissions(layer)
    held = {
        "allow rules": permissions.get("allow"),
        "directories": permissions.get("additionalDirectories"),
        "mode": (mode := permissions.get("defaultMode")) not in _NARROWING_NAMES and mode,
        "hooks": layer.data.get("hooks"),
        "environment": layer.data.get("env"),
        "servers": layer.data.get("enabledMcpjsonServers") or layer.data.get("enableAllProjectMcpServers"),
        "model": layer.data.get("model"),
    }
    named = [what for what, value in held.items() if value]
    changed = " is not as it was trusted" if layer.changed else ""
    if named:
        yield f"{layer.name}{changed}: {', '.join(named)} do not count until `coordinator trust`"
    elif changed:
        yield f"{layer.name}{changed}; `coordinator trust` says that it may be so"
