"""What the `hooks` key of a settings file says: handlers by event, matchers, and which of them an event calls.

A matcher that is absent, empty or `*` matches all. One of letters, digits, `_ - , |` and spaces only is a list of exact
names; anything else is a regular expression that may match anywhere. Unknown events are ignored (a misspelled one is a fence
that cannot be read), unknown kinds of
handler are left out with one line in `problems`, and nothing in a file is fatal here. What cannot be read, and what would
have refused tool calls and cannot be run, is named in `fences`, too: who loads the file must not pass over it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from worker_agent import tool_facts
from worker_agent.errors import ConfigError
from worker_agent.structs import replace
from worker_agent.words import meant

# Event → seconds a handler may take by default.
_LONG, _PROMPT = 600.0, 30.0
SESSION_END_SECONDS = 1.5  # shared by all handlers of the event
CALLBACK_SECONDS = 60.0  # a function of the program that began the run, where it says nothing else
EVENTS: Mapping[str, float] = {
    **dict.fromkeys(
        """PreToolUse PermissionRequest PostToolUse PostToolUseFailure PostToolBatch SessionStart SessionEnd Stop
        StopFailure SubagentStart SubagentStop TaskCreated TaskCompleted PreCompact PostCompact Notification""".split(), _LONG,
    ),
    **dict.fromkeys(("UserPromptSubmit", "UserPromptExpansion"), _PROMPT),
}  # fmt: skip
TOOL_EVENTS = frozenset({"PreToolUse", "PermissionRequest", "PostToolUse", "PostToolUseFailure"})
# Events whose handlers may forbid something.
FENCING = frozenset(
    """PreToolUse PermissionRequest UserPromptSubmit UserPromptExpansion PostToolBatch Stop SubagentStop TaskCreated TaskCompleted
    PreCompact""".split()
)
_REFUSING = frozenset({"PreToolUse", "PermissionRequest"})  # a handler left out here is a fence gone
_TYPES_LEFT_OUT = frozenset({"mcp_tool", "prompt", "agent"})
_EXACT = re.compile(r"[A-Za-z0-9_\-,| ]*")


class Handler(Struct, frozen=True):
    """One thing to run. `command` with `args` runs without a shell, `args` None means `sh -c command`; `url` is posted
    to; `callback` names a function of the program that began the run, which `blocks_on_failure` if it fails to answer.
    `condition` is one permission rule; `timeout` in seconds, None = the event's default."""

    command: str | None = None
    args: tuple[str, ...] | None = None
    url: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    allowed_variables: tuple[str, ...] = ()
    condition: str | None = None
    timeout: float | None = None
    in_background: bool = False
    wakes: bool = False
    environment: tuple[tuple[str, str], ...] = ()  # of a command, on top of what every hook gets
    callback: str | None = None
    blocks_on_failure: bool = False
    only_refuses: bool = False  # what it allows or changes does not count

    @property
    def label(self) -> str:
        return self.callback or self.url or " ".join([self.command or "", *(self.args or ())])


class Group(Struct, frozen=True):
    """Handlers of one event under one matcher."""

    event: str
    matcher: str
    handlers: tuple[Handler, ...]

    def matches(self, subject: str) -> bool:
        """Whether the matcher speaks of `subject`: a tool's name, an agent's type, a source. Never raises."""
        pattern = self.matcher.strip()
        if pattern in ("", "*"):
            return True
        names = tool_facts.of(subject).names if self.event in TOOL_EVENTS else (subject,)
        if _EXACT.fullmatch(pattern):
            return bool({name.strip() for name in re.split(r"[|,]", pattern)} & set(names))
        compiled = _compile(pattern)
        return compiled is not None and any(compiled.search(name) for name in names)


def _compile(pattern: str) -> re.Pattern[str] | None:
    """JavaScript's spelling of named groups and of `$` at the very end differs."""
    translated = re.sub(r"\(\?<(?![=!])", "(?P<", pattern)
    translated = re.sub(r"(?<!\\)\$(?=$|\))", r"\\Z", translated)
    try:
        return re.compile(translated, re.ASCII)
    except (re.error, RecursionError, OverflowError):
        return None


class HookConfig(Struct, frozen=True):
    """Groups of all files, in order; `problems` says what was left out, `fences` which of it may have refused something."""

    groups: tuple[Group, ...] = ()
    problems: tuple[str, ...] = ()
    fences: tuple[str, ...] = ()

    @classmethod
    def parse(cls, data: Any, source: str = "settings") -> HookConfig:
        """Out of the value of a `hooks` key: event → list of `{matcher, hooks: [...]}`. Never raises."""
        if not isinstance(data, Mapping):
            wrong = (f"{source}: `hooks` is no object",) if data else ()
            return cls(problems=wrong, fences=wrong)
        found = _Lines([], [])
        found.fences.extend(_misspelled(data, source))
        groups = [group for event, value in data.items() if event in EVENTS for group in _groups(event, value, source, found)]
        problems = tuple(dict.fromkeys((*found.fences, *found.left_out)))
        return cls(tuple(groups), problems, tuple(dict.fromkeys(found.fences)))

    @classmethod
    def of_callbacks(cls, data: Any) -> HookConfig:
        """Out of what a program says of its own functions: event → list of `{matcher, hookCallbackIds, timeout,
        onFailure}`. Raises `ConfigError` for what would never be called, which a program takes for a fence."""
        groups = []
        for event, entries in (data or {}).items():
            if event not in EVENTS:
                raise ConfigError(f"there is no hook event {event!r} here; there are {', '.join(EVENTS)}")
            for entry in entries or ():
                matcher = entry.get("matcher") or ""
                if not _EXACT.fullmatch(matcher) and matcher != "*" and _compile(matcher) is None:
                    raise ConfigError(f"the matcher {matcher!r} of {event} is no regular expression")
                handlers = (
                    Handler(
                        callback=str(id),
                        timeout=_seconds(entry.get("timeout")) or CALLBACK_SECONDS,
                        blocks_on_failure=entry.get("onFailure", "continue") != "continue",
                    )
                    for id in entry["hookCallbackIds"]
                )
                groups.append(Group(event, matcher, tuple(handlers)))
        return cls(tuple(groups))

    def __add__(self, other: HookConfig) -> HookConfig:
        problems, fences = self.problems + other.problems, self.fences + other.fences
        return HookConfig(self.groups + other.groups, tuple(dict.fromkeys(problems)), tuple(dict.fromkeys(fences)))

    def refusing(self, beside: HookConfig) -> HookConfig:
        """The same hooks, of which only what they forbid counts; those that stand in `beside` are left out."""
        there = {(group.event, group.matcher, handler) for group in beside.groups for handler in group.handlers}
        groups = (
            replace(
                group,
                handlers=tuple(
                    replace(handler, only_refuses=True)
                    for handler in group.handlers
                    if (group.event, group.matcher, handler) not in there
                ),
            )
            for group in self.groups
        )
        return replace(self, groups=tuple(group for group in groups if group.handlers))

    def in_environment(self, environment: Mapping[str, str]) -> HookConfig:
        """The same hooks, whose commands get these variables, too."""
        own = tuple(environment.items())
        groups = (
            replace(group, handlers=tuple(replace(handler, environment=own) for handler in group.handlers))
            for group in self.groups
        )
        return replace(self, groups=tuple(groups))

    def handlers(self, event: str, subject: str = "") -> tuple[Handler, ...]:
        """Those that the event calls, an identical one once."""
        found = (h for group in self.groups if group.event == event and group.matches(subject) for h in group.handlers)
        return tuple(dict.fromkeys(found))


class _Lines(Struct, frozen=True):
    """What was found while reading: what may have refused something, and what only is not called."""

    fences: list[str]
    left_out: list[str]


def _groups(event: str, value: Any, source: str, found: _Lines) -> Iterator[Group]:
    for entry in value if isinstance(value, list) else [value]:
        if not isinstance(entry, Mapping) or not isinstance(entry.get("hooks"), list):
            found.fences.append(f"{source}: an entry of {event} has no list `hooks`")
            continue
        matcher = entry.get("matcher") or ""
        if not isinstance(matcher, str) or (not _EXACT.fullmatch(matcher) and matcher != "*" and _compile(matcher) is None):
            found.fences.append(f"{source}: the matcher {matcher!r} of {event} is no regular expression")
            continue
        if event in _REFUSING and (tool := _misspelled_tool(matcher)):
            found.fences.append(f"{source}: the matcher {matcher!r} of {event} names no tool; write {tool}")
        yield Group(event, matcher, tuple(_handlers(event, entry["hooks"], source, found)))


def _misspelled(data: Mapping[Any, Any], source: str) -> Iterator[str]:
    for event in data:
        if (name := meant(str(event), EVENTS)) is not None:
            yield f"{source}: there is no event {str(event)[:100]!r} for hooks; write {name}"


def _misspelled_tool(matcher: str) -> str | None:
    """The tool that was meant by a name in a list of exact names which is none."""
    names = [name.strip() for name in re.split(r"[|,]", matcher)] if _EXACT.fullmatch(matcher) else []
    return next(filter(None, map(tool_facts.meant_by, names)), None)


def _handlers(event: str, entries: Iterable[Any], source: str, found: _Lines) -> Iterator[Handler]:
    for entry in entries:
        kind = entry.get("type") if isinstance(entry, Mapping) else None
        if kind in _TYPES_LEFT_OUT:
            if event in _REFUSING:
                found.fences.append(
                    f"{source}: a hook of {event} has type {kind!r}, which is not supported; it may refuse calls"
                )
            else:
                found.left_out.append(f"{source}: hooks of type {kind!r} are left out")
        elif (wrong := _wrong_field(entry)) is not None:
            found.fences.append(f"{source}: `{wrong}` of a hook of {event} has the wrong type")
        elif kind == "command" and isinstance(entry.get("command"), str) and entry["command"].strip():
            yield _handler(entry, command=entry["command"])
        elif kind == "http" and str(entry.get("url", "")).startswith(("http://", "https://")):
            yield _handler(entry, url=entry["url"])
        else:
            found.fences.append(f"{source}: a hook of {event} is neither a command nor a URL")


def _wrong_field(entry: Any) -> str | None:
    """The first field without which a handler would not run as it was meant to."""
    if not isinstance(entry, Mapping):
        return None
    kinds = {"args": list, "headers": Mapping, "if": str, "async": bool, "asyncRewake": bool, "allowedEnvVars": list}
    return next((key for key, kind in kinds.items() if entry.get(key) is not None and not isinstance(entry[key], kind)), None)


def _seconds(value: Any) -> float | None:
    """A positive number; anything else says nothing."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0 else None


def _handler(entry: Mapping[str, Any], **what: Any) -> Handler:
    args, headers = entry.get("args"), entry.get("headers")
    return Handler(
        **what,
        args=tuple(map(str, args)) if isinstance(args, list) else None,
        headers=tuple((str(k), str(v)) for k, v in headers.items()) if isinstance(headers, Mapping) else (),
        allowed_variables=tuple(map(str, entry.get("allowedEnvVars") or ())),
        condition=entry["if"] if isinstance(entry.get("if"), str) else None,
        timeout=_seconds(entry.get("timeout")),
        in_background=entry.get("async") is True or entry.get("asyncRewake") is True,
        wakes=entry.get("asyncRewake") is True,
    )
