"""Agent definitions: what kinds of worker there are.

1. The built-in `worker`, `explore` (only reads, on the small model) and `verifier` (reads and runs, writes nothing) are always
   there; a definition of the same name from a file stands in its place.
2. Files are Markdown with YAML front matter, in `.claude/agents/**` from the working directory up to the repository
   root (the nearest wins), in the same place of added directories, then under the user's home. The body is the whole
   system prompt.
3. What comes with a repository counts only when that repository is trusted (`Trust`). A file of it whose rights are not as
   they were trusted cannot be used.
4. A file without `name` is documentation and passed over silently. Unknown fields never fail; what makes a definition
   unusable becomes a `Problem` that names the file. No definition from farther off stands in its place: what fenced that
   kind of worker would be gone.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct, field

from worker_agent import disk, front_matter
from worker_agent.errors import ConfigError
from worker_agent.hooks import HookConfig
from worker_agent.tool_facts import as_agent_files_name_it
from worker_agent.tools.hook_scripts import script_digests
from worker_agent.tools.rules import RuleSet
from worker_agent.tools.trust import EVERYTHING, Brought, Trust, repository_root
from worker_agent.words import meant

T = TypeVar("T")
MAX_FILES = 1_000  # of one place
MAX_BYTES = 256 * 1024  # of one file
PLACE = Path(".claude/agents")
RIGHTS = ("tools", "disallowedTools", "permissionMode", "hooks", "mcpServers", "isolation")  # what trust is of
GRANTING = ("permissionMode", "hooks", "mcpServers")  # which of it needs trust of its own
SMALL_MODEL = "small"  # in place of a model: the one for small work, as it is set
WIDE_MODES = ("acceptEdits", "bypassPermissions")
KNOWN_FIELDS = (
    "name", "description", "tools", "disallowedTools", "model", "permissionMode", "maxTurns", "skills", "mcpServers", "hooks",
    "memory", "background", "effort", "isolation", "color", "initialPrompt", "tags",
)  # fmt: skip
_SAID_OTHERWISE = {
    **dict.fromkeys(("deny", "denied", "disallow", "disallowed", "deniedtools", "blockedtools"), "disallowedTools"),
    **dict.fromkeys(("allow", "allowed", "allowedtools", "allowed-tools", "allowed_tools"), "tools"),
}
TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
NAME = re.compile(r"^[a-z0-9][a-z0-9-]*$")
GIVEN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")  # programs choose more freely than the standard of files
PERMISSION_MODES = ("default", "acceptEdits", "plan", "dontAsk", "bypassPermissions")
MODE_ALIASES = {"manual": "default", "auto": "default"}
EFFORTS = ("low", "medium", "high", "xhigh", "max")
_PROSE = re.compile(r"^(name|description)[ \t]*:[ \t]*(?![\"'|>])(\S.*(?:\n[ \t]+.*)*)", re.MULTILINE)


class AgentDefinition(Struct, frozen=True, kw_only=True):
    """One kind of worker. `tools` None = all; `model` None = that of the parent."""

    name: str
    description: str
    prompt: str
    tools: tuple[str, ...] | None = None
    disallowed_tools: tuple[str, ...] = ()  # names; `*` stands for all
    denied: tuple[str, ...] = ()  # deny rules with a specifier: `Bash(git push *)`
    model: str | None = None
    permission_mode: str | None = None
    max_turns: int | None = None
    effort: str | None = None
    isolation: str | None = None
    tags: tuple[str, ...] = ()  # that a node must have to run it
    mcp_servers: tuple[tuple[str, Any], ...] = ()  # (name, entry), None for a server that is configured elsewhere
    hooks: HookConfig = HookConfig()  # only while such an agent runs
    source: Path | None = None  # None = built in
    extra: Mapping[str, Any] = field(default_factory=dict)  # fields nobody here reads


class Problem(Struct, frozen=True):
    """Why a definition was not loaded, or what of it was passed over."""

    source: Path
    text: str
    fatal: bool = True
    name: str | None = None  # of the definition, as far as it is known
    line: int | None = None  # in the file


class Agents(Struct, frozen=True):
    """All definitions by name, and what was wrong with the others; `unusable` says by name why one cannot be used."""

    by_name: Mapping[str, AgentDefinition]
    problems: tuple[Problem, ...] = ()
    unusable: Mapping[str, str] = field(default_factory=dict)

    def get(self, name: str) -> AgentDefinition:
        """Raises `ConfigError` naming the kinds there are."""
        if name in self.by_name:
            return self.by_name[name]
        if name in self.unusable:
            raise ConfigError(f"the agent type {name!r} cannot be used: {self.unusable[name]}")
        raise ConfigError(f"there is no agent type {name!r}; there are: {', '.join(sorted(self.by_name))}")


def prompt_text(name: str) -> str:
    """A prompt file of this package."""
    return resources.files("coordinator").joinpath("prompts", f"{name}.md").read_text(encoding="utf-8").strip()


def builtin() -> dict[str, AgentDefinition]:
    worker = AgentDefinition(
        name="worker",
        description="Researches, implements or verifies one well-described piece of work with the full tool set.",
        prompt=prompt_text("worker"),
    )
    explore = AgentDefinition(
        name="explore",
        description="Finds something out by reading and searching files: fast and cheap, changes nothing, runs nothing.",
        prompt=prompt_text("explore"),
        tools=("Read", "Grep", "Glob"),
        model=SMALL_MODEL,
    )
    verifier = AgentDefinition(
        name="verifier",
        description="Checks finished work with fresh eyes: reads, runs tests and commands, writes no file; reports PASS or FAIL.",
        prompt=prompt_text("verifier"),
        disallowed_tools=("Edit", "Write", "NotebookEdit"),
    )
    return {one.name: one for one in (worker, explore, verifier)}


def load(cwd: Path, *, trust: Trust, add_dirs: Sequence[Path] = (), user_dir: Path | None = None) -> Agents:
    """The definitions that hold for `cwd`. `user_dir` is the directory that holds the user's own `agents/`."""
    places = [(user_dir / "agents", EVERYTHING)] if user_dir else []
    places += [(level / PLACE, trust) for level in (*reversed(_levels(cwd)), *add_dirs) if trust.of(level)]
    found: dict[str, AgentDefinition | Problem] = dict(builtin())
    problems: list[Problem] = []
    for place, its_trust in places:
        for one in _read_directory(place, its_trust):
            if isinstance(one, Problem):
                problems.append(one)
            if one.name and not (isinstance(one, Problem) and not one.fatal):
                found[one.name] = one
    return Agents(
        {name: one for name, one in found.items() if isinstance(one, AgentDefinition)},
        tuple(problems),
        {name: f"{one.source}: {one.text}" for name, one in found.items() if isinstance(one, Problem)},
    )


def definition_files(cwd: Path, *, user_dir: Path) -> list[Path]:
    """All files that `load` would read where everything is trusted."""
    return [path for place in (user_dir / "agents", *(level / PLACE for level in _levels(cwd))) for path in _files(place)]


def look(cwd: Path) -> Iterator[Brought]:
    """What the definitions of the repository around `cwd` grant, for a person who is about to trust it."""
    for level in _levels(cwd):
        for path in _files(level / PLACE):
            try:
                text = read(path)
                definition, _ = parse(text, path)
            except ConfigError as error:
                yield Brought(path, problem=str(error))
                continue
            if definition is not None:
                yield brought(text, definition)


def brought(text: str, definition: AgentDefinition) -> Brought:
    """What a definition may do, and what it may not: one whose fences are gone is not the one that was trusted."""
    front, _ = _front_matter(text)
    rights = {key: front[key] for key in RIGHTS if front.get(key) is not None}
    assert definition.source is not None
    if scripts := script_digests(definition.hooks, repository_root(definition.source.parent)):
        rights["hook scripts"] = scripts
    words = [f"agent {definition.name}"]
    if definition.permission_mode in WIDE_MODES:
        words.append(f"mode {definition.permission_mode}")
    words += [f"hook {group.event}: {handler.label}" for group in definition.hooks.groups for handler in group.handlers]
    return Brought(definition.source, rights, any(_grants(key, front.get(key)) for key in GRANTING), tuple(words))


def _grants(key: str, value: Any) -> bool:
    return bool(value) and (key != "permissionMode" or value in WIDE_MODES)


def _levels(cwd: Path) -> list[Path]:
    """`cwd` and its parents up to the repository root; only `cwd` outside a repository."""
    levels = []
    for level in (cwd, *cwd.parents):
        levels.append(level)
        if (level / ".git").exists():
            return levels
    return [cwd]


def _read_directory(place: Path, trust: Trust) -> Iterator[AgentDefinition | Problem]:
    for path in _files(place):
        text = ""
        try:
            text = read(path)
            definition, notes = parse(text, path)
        except ConfigError as error:
            yield Problem(path, str(error), name=_presumed_name(text, path))
            continue
        yield from notes
        if definition is None:
            continue
        if trust.counts(brought(text, definition)):
            yield definition
        else:
            yield Problem(path, "is not as it was trusted; it does not count until `coordinator trust`", name=definition.name)


def _presumed_name(text: str, path: Path) -> str:
    """The name of a definition that cannot be read: as a line of it says, else as its file is called."""
    line = re.search(r"^name[ \t]*:[ \t]*[\"']?([a-z0-9][a-z0-9-]*)", text, re.MULTILINE)
    return line[1] if line else path.stem


def _files(place: Path) -> list[Path]:
    """All Markdown files below `place`, in linked directories too, each directory once."""
    found: list[Path] = []
    seen: set[str] = set()
    for directory, below, names in os.walk(place, followlinks=True):
        seen.add(os.path.realpath(directory))
        below[:] = [name for name in below if os.path.realpath(os.path.join(directory, name)) not in seen]
        found += [Path(directory, name) for name in names if name.endswith(".md")]
        if len(found) > MAX_FILES:
            break
    return sorted(found)[:MAX_FILES]


def read(path: Path) -> str:
    """The text of a definition file. Raises `ConfigError`."""
    try:
        return disk.read_regular(path, limit=MAX_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot be read: it {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError("cannot be read: it is no UTF-8 text") from None


class Unusable(ConfigError):
    """A definition that cannot be used. `faults` says why, each with the number of its line in the file (None: no one line)."""

    def __init__(self, faults: Sequence[tuple[int | None, str]]) -> None:
        super().__init__("; ".join(text for _, text in faults))
        self.faults = tuple(faults)


def parse(text: str, source: Path) -> tuple[AgentDefinition | None, list[Problem]]:
    """The definition in a file's text, None for documentation. Raises `Unusable`."""
    front, body = _front_matter(text)
    if front.get("name") is None:
        if (slip := next((key for key in front if meant(str(key), KNOWN_FIELDS) == "name"), None)) is not None:
            raise Unusable([(None, f"there is no field {slip!r}; write name")])
        return None, []
    name = str(front.pop("name"))
    fields = _Fields(name, text, front)
    if not NAME.match(name):
        fields.fault("name", f"name {name!r}: lower case letters, digits and hyphens only")
    return _definition(fields, body, source)


def given(data: Mapping[str, Any], source: str) -> tuple[dict[str, AgentDefinition], list[Problem]]:
    """The definitions that a person or a program gives with a run: by name, the fields of a file's front matter and its text
    as `prompt`. Raises `Unusable`, `ConfigError`."""
    found: dict[str, AgentDefinition] = {}
    problems: list[Problem] = []
    for name, entry in data.items():
        if not isinstance(entry, Mapping) or not isinstance(entry.get("prompt"), str):
            raise ConfigError(f"{source}: the agent {name!r} has no text `prompt`")
        if not GIVEN_NAME.fullmatch(name):
            raise ConfigError(f"{source}: the agent name {name!r}: letters, digits, - and _ only")
        front = {key: value for key, value in entry.items() if key != "prompt"}
        found[name], notes = _definition(_Fields(name, "", front), entry["prompt"], Path(source))
        problems += notes
    return found, problems


def _definition(fields: _Fields, body: str, source: Path) -> tuple[AgentDefinition, list[Problem]]:
    """Raises `Unusable`."""
    name, front = fields.name, fields.front
    for key in front:
        if (fence := _SAID_OTHERWISE.get(str(key).lower()) or meant(str(key), KNOWN_FIELDS)) is not None:
            fields.fault(str(key), f"agent {name!r}: there is no field {key!r}; write {fence}")
    description = front.pop("description", None)
    if not isinstance(description, (str, int, float)) or not str(description).strip():
        fields.fault("description", f"agent {name!r} has no description")
    model = front.pop("model", None)
    listed = front.get("tools")
    tools = fields.read("tools", partial(_names, name, "tools"))
    if tools == () and listed != []:  # `[]` says that it has none; a blank says nothing
        fields.fault("tools", f"agent {name!r}: its list of tools is empty")
    removed, denied = fields.read("disallowedTools", partial(_fence, name)) or ((), ())
    hooks = fields.read("hooks", partial(_hooks, name, str(source))) or HookConfig()
    definition = AgentDefinition(
        name=name,
        description=str(description).strip(),
        prompt=body.strip() or prompt_text("worker"),
        tools=tools,
        disallowed_tools=removed,
        denied=denied,
        model=None if model in (None, "inherit") else str(model),
        permission_mode=fields.read("permissionMode", partial(_mode, name)),
        max_turns=fields.read("maxTurns", partial(_positive, name, "maxTurns")),
        effort=fields.read("effort", lambda value: _choice(name, "effort", value, EFFORTS)),
        isolation=fields.read("isolation", lambda value: _choice(name, "isolation", value, ("worktree",))),
        tags=fields.read("tags", partial(_tags, name)) or (),
        mcp_servers=fields.read("mcpServers", partial(_servers, name)) or (),
        hooks=hooks,
        source=source,
        extra=front,
    )
    if fields.faults:
        raise Unusable(fields.faults)
    ignored = sorted(map(str, front.keys() - {"color", "background"}))
    notes = [Problem(source, f"passed over: {', '.join(ignored)}", fatal=False)] if ignored else []
    notes += [Problem(source, text, fatal=False) for text in hooks.problems]
    return definition, notes


def with_given(agents: Agents, data: Mapping[str, Any], source: str) -> Agents:
    """`agents`, in which those of `data` stand above all others. Raises `ConfigError`."""
    found, problems = given(data, source)
    unusable = {name: why for name, why in agents.unusable.items() if name not in found}
    return Agents({**agents.by_name, **found}, (*agents.problems, *problems), unusable)


def _tags(name: str, value: Any) -> tuple[str, ...]:
    """Names of what a node must have. Raises `ConfigError`."""
    found = tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else tuple(value or ())
    if not all(isinstance(tag, str) and TAG.fullmatch(tag) for tag in found):
        raise ConfigError(f"agent {name!r}: tags are a list of words of letters, digits, - and _")
    return found


class _Fields(Struct, frozen=True):
    """The front matter of one definition while it is read: every fault is kept, so that a person sees them all at once."""

    name: str
    text: str
    front: dict[str, Any]
    faults: list[tuple[int | None, str]] = field(default_factory=list)

    def read(self, key: str, reader: Callable[[Any], T]) -> T | None:
        """What `reader` makes of the field, None where it cannot be read."""
        try:
            return reader(self.front.pop(key, None))
        except ConfigError as error:
            self.fault(key, str(error))
            return None

    def fault(self, key: str, text: str) -> None:
        found = re.search(rf"^[\"']?{re.escape(key)}[\"']?[ \t]*:", self.text, re.MULTILINE)
        self.faults.append((self.text.count("\n", 0, found.start()) + 1 if found else None, text))


def _hooks(agent: str, source: str, value: Any) -> HookConfig:
    """Raises `ConfigError` for what may have been there to refuse something and cannot be run."""
    hooks = HookConfig.parse(_as_subagent(value), source)
    if hooks.fences:
        raise ConfigError(f"agent {agent!r}: {hooks.fences[0].removeprefix(f'{source}: ')}")
    return hooks


def _as_subagent(hooks: Any) -> Any:
    """In an agent's file `Stop` means the end of that agent."""
    if not isinstance(hooks, Mapping) or "Stop" not in hooks:
        return hooks
    return {"SubagentStop" if event == "Stop" else event: groups for event, groups in hooks.items()}


def _front_matter(text: str) -> tuple[dict[str, Any], str]:
    """The fields of a file, and its body. Raises `Unusable`."""
    import yaml

    block, body = front_matter.split(text)
    if block is None:
        if re.match(r"\s*---[ \t]*\r?\n(?:.*\n)*?name[ \t]*:", text.removeprefix("\ufeff")):
            raise Unusable([(1, "its front matter must begin in the first line with --- and end with a line ---")])
        return {}, text
    try:
        try:
            front = _load_once(block)
        except yaml.YAMLError:
            # Descriptions with a colon in them are common and are no YAML: they are quoted, and all other fields stay whole.
            front = _load_once(_PROSE.sub(_quoted, block))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        why = getattr(error, "problem", None) or str(error).splitlines()[0]
        line = None if mark is None else mark.line + 2
        raise Unusable([(line, f"its front matter is no YAML: {why}")]) from None
    if front is not None and not isinstance(front, dict):
        raise Unusable([(1, "its front matter holds no fields")])
    return front or {}, body


def _load_once(block: str) -> Any:
    """The YAML in `block`. Raises `yaml.YAMLError`, also for a key that stands twice, of which the last would hold, and for
    aliases, by which a few bytes stand for any number."""
    import yaml

    class Once(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.events.AliasEvent):
                event = self.peek_event()  # type: ignore[no-untyped-call]  # the stubs say no types of it
                raise yaml.composer.ComposerError(None, None, "an alias is not read here", event.start_mark)
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [key for key, _ in node.value if isinstance(key.value, str)]
            for i, key in enumerate(keys):
                if any(key.value == earlier.value for earlier in keys[:i]):
                    wrong = f"{key.value!r} stands there twice"
                    raise yaml.constructor.ConstructorError(None, None, wrong, key.start_mark)
            return super().construct_mapping(node, deep)

    return yaml.load(block, Once)


def _quoted(match: re.Match[str]) -> str:
    return f"{match[1]}: {json.dumps(' '.join(match[2].split()))}"


def _listed(agent: str, key: str, value: Any) -> list[str]:
    """The entries of a comma string or a list. Raises `ConfigError` for anything else."""
    parts = re.split(r",(?![^(]*\))", value) if isinstance(value, str) else value
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise ConfigError(f"agent {agent!r}: {key} is no list of tool names")
    return [part.strip() for part in parts if part.strip()]


def _names(agent: str, key: str, value: Any) -> tuple[str, ...] | None:
    """Tool names; None where nothing is said or `*` allows all, none for an empty list. Raises `ConfigError`."""
    if value is None:
        return None
    names = _listed(agent, key, value)
    return None if "*" in names else tuple(_tool(name) or name for name in names)


def _fence(agent: str, value: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The tools that are taken away, and the deny rules with a specifier. Raises `ConfigError` for a name nobody knows:
    what was meant to be denied must not be allowed."""
    removed, denied = [], []
    for entry in _listed(agent, "disallowedTools", value) if value is not None else ():
        head, bracket, rest = entry.partition("(")
        tool = "*" if entry == "*" else _tool(head.strip())
        if tool is None:
            raise ConfigError(f"agent {agent!r}: disallowedTools names {entry!r}, and there is no such tool")
        if bracket:
            RuleSet.from_flags((), (f"{tool}({rest}",))
            denied.append(f"{tool}({rest}")
        else:
            removed.append(tool)
    return tuple(removed), tuple(denied)


def _tool(name: str) -> str | None:
    """The name as we write it, whatever its case; None for one that nobody knows."""
    return name if name.startswith("mcp__") else as_agent_files_name_it(name)


def _servers(agent: str, value: Any) -> tuple[tuple[str, Any], ...]:
    """The MCP servers of a list of names and `{name: entry}`, or of one mapping. Raises `ConfigError`."""
    found: list[tuple[str, Any]] = []
    for item in [value] if isinstance(value, Mapping) else value or ():
        if isinstance(item, Mapping):
            found += [(str(name), entry) for name, entry in item.items()]
        elif isinstance(item, str):
            found.append((item, None))
        else:
            raise ConfigError(f"agent {agent!r}: mcpServers is no list of names and entries")
    return tuple(found)


def _mode(agent: str, value: Any) -> str | None:
    return _choice(agent, "permissionMode", MODE_ALIASES.get(value, value), PERMISSION_MODES)


def _choice(agent: str, key: str, value: Any, choices: Sequence[str]) -> str | None:
    if value is not None and value not in choices:
        raise ConfigError(f"agent {agent!r}: {key} {value!r} is none of {', '.join(choices)}")
    return None if value is None else str(value)


def _positive(agent: str, key: str, value: Any) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise ConfigError(f"agent {agent!r}: {key} must be a whole number above 0")
    return value
