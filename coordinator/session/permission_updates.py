"""Updates of permissions as programs and hooks for Claude Code give them, applied to a session while it runs.

    {type: addRules | replaceRules | removeRules, rules: [{toolName, ruleContent?}], behavior, destination}
    {type: setMode, mode} · {type: addDirectories | removeDirectories, directories}

1. Whatever their `destination`, they hold as long as this process drives the session: settings files are read here and
   never written.
2. A rule that fences holds for every agent that lives, from its next call on; one that allows stands below all that fence.
   What is replaced or removed are rules that came this way, never those of files and flags.
3. All of them or none: what cannot be read changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coordinator.session.parts import Parts
from worker_agent.errors import ConfigError
from worker_agent.structs import replace
from worker_agent.tools.permissions import Mode, Policy
from worker_agent.tools.rules import Behavior, Rule, RuleSet, Source, as_written

GIVEN = Source("the program that drives the session")


def apply(parts: Parts, updates: Sequence[Mapping[str, Any]]) -> None:
    """Raises `ConfigError` for what cannot be done; then nothing was."""
    for change in [_read(parts, update) for update in updates]:
        change()


def set_mode(parts: Parts, mode: str) -> None:
    """From the next call of the session's own agent on, and for all that begin afterwards. Raises `ValueError` for an
    unknown mode."""
    parts.rights.set_mode(mode)
    parts.engine.agent.tool_context.set_mode(mode)


def _read(parts: Parts, update: Mapping[str, Any]) -> Callable[[], None]:
    try:
        match update["type"]:
            case "addRules" | "replaceRules" | "removeRules" as kind:
                behavior, texts = Behavior(update["behavior"]), [_text(rule) for rule in update["rules"]]
                for text in texts:
                    as_written(text, GIVEN, behavior)
                return lambda: _rules(parts, kind, behavior, texts)
            case "setMode":
                mode = Mode.parse(update["mode"])
                return lambda: set_mode(parts, mode)
            case "addDirectories":
                directories = tuple(Path(path).expanduser().absolute() for path in update["directories"])
                return lambda: _widen(parts, directories)
            case other:
                raise ConfigError(f"there is no update of permissions {other!r} here")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"an update of permissions cannot be read: {error!r}") from None


def _text(rule: Mapping[str, Any]) -> str:
    content = rule.get("ruleContent")
    return f"{rule['toolName']}({content})" if content else str(rule["toolName"])


def _rules(parts: Parts, kind: str, behavior: Behavior, texts: Sequence[str]) -> None:
    if kind != "addRules":
        _change(parts, lambda policy: _without(policy, behavior, texts if kind == "removeRules" else None))
        if behavior is Behavior.ALLOW:
            parts.questions.take_back(texts if kind == "removeRules" else None)
    if kind == "removeRules":
        return
    added = RuleSet.parse(behavior, texts, GIVEN)
    parts.rights.change(lambda policy: _with(policy, added))
    if behavior is Behavior.ALLOW:
        parts.questions.give(texts)
    else:
        parts.engines.change_permissions(lambda policy: _with(policy, added))


def _change(parts: Parts, change: Callable[[Policy], Policy]) -> None:
    parts.rights.change(change)
    parts.engines.change_permissions(change)


def _with(policy: Policy, added: RuleSet) -> Policy:
    return replace(policy, rules=policy.rules + added)


def _without(policy: Policy, behavior: Behavior, texts: Sequence[str] | None) -> Policy:
    """`policy` and those above it without the rules that came this way; `texts` None: without any."""

    def stays(rule: Rule) -> bool:
        return rule.source.name != GIVEN.name or (texts is not None and rule.text not in texts)

    kept = tuple(rule for rule in getattr(policy.rules, behavior.value) if stays(rule))
    above = None if policy.ceiling is None else _without(policy.ceiling, behavior, texts)
    return replace(policy, rules=replace(policy.rules, **{behavior.value: kept}), ceiling=above)


def _widen(parts: Parts, directories: tuple[Path, ...]) -> None:
    parts.rights.change(lambda policy: replace(policy, roots=tuple(dict.fromkeys((*policy.roots, *directories)))))
    parts.engine.agent.tool_context.add_roots(directories)
