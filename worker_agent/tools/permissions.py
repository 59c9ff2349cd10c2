"""Permissions of one agent: rules, a mode, and what is free by itself.

The order, fixed: deny rule → ask rule → the tool's own check → mode → allow rule → ask. First match wins; specificity is
nothing, so a broad deny has no exceptions. A verdict is a value that names the deciding rule and its file.

What holds without any rule:

- `Read`, `Glob`, `Grep` inside the roots (working directory, added directories, scratchpad) and `TodoWrite` are free, and
  so are `Agent`, `SendMessage`, `TaskStop`. Paths are judged as written and after links are resolved.
- `Bash` is free where the line is harmless by proof: `shell_harmless.py` and `shell_git_harmless.py` know every command,
  every option and every kind of word in it, and each file it names lies inside the roots, in no place of secrets. What is
  not proved asks: an expansion, a loop, a here-document, `xargs`. No list of bad things decides here.
- `acceptEdits` runs edits inside the roots, and of `Bash` the commands `mkdir touch rm mv cp sed` and redirections whose
  targets lie inside; any other command only where the operating system holds it there. Places that grant rights
  (`places.py`) still ask, under an allow rule too, unless it names them (`Edit(.claude/**)`). `plan` only reads. `dontAsk` denies what would ask. `bypassPermissions` runs everything that no
  deny or ask rule speaks about.
- Each `Allow` for `Bash` names how far the command is to be held (`Confine`): `READ_ONLY` where reading allowed it,
  `WORKSPACE` in `acceptEdits`, `GUARD` where a rule, a mode, a hook or a person took the responsibility.
- A worker's rights are at most its parent's: `child` keeps the parent as a ceiling, and the stricter verdict counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct, field
from msgspec.structs import force_setattr

from worker_agent import tool_facts
from worker_agent.structs import replace
from worker_agent.tool_facts import Access, Facts, Specifier
from worker_agent.tools.base import Allow, Ask, Confine, Decision, Deny, Input, Passthrough, Tool, ToolContext
from worker_agent.tools.places import rights_named
from worker_agent.tools.rules import (
    Behavior,
    Kind,
    Places,
    Rule,
    RuleError,
    RuleSet,
    Source,
    inside,
    resolve,
)
from worker_agent.tools.shell_judge import ShellJudge, edit_path_is_protected


class Mode(StrEnum):
    DEFAULT = "default"
    ACCEPT_EDITS = "acceptEdits"
    PLAN = "plan"
    DONT_ASK = "dontAsk"
    BYPASS = "bypassPermissions"

    @classmethod
    def parse(cls, text: str) -> Mode:
        """A mode by its name; `manual` is `default`. Raises `ValueError`."""
        return cls.DEFAULT if text == "manual" else cls(text)


class Verdict(Struct, frozen=True):
    """`decision` is Allow, Deny or Ask. `rule` is the one that decided, None where mode or default did; `source` says
    where it stands (`…/settings.json (permissions.deny[0])`, `mode acceptEdits`, `default`)."""

    decision: Allow | Deny | Ask
    rule: Rule | None
    source: str
    why: str

    @property
    def behavior(self) -> str:
        return {Allow: "allow", Deny: "deny", Ask: "ask"}[type(self.decision)]


_STRICTNESS = {"allow": 0, "ask": 1, "deny": 2}


class Policy(Struct, frozen=True, kw_only=True):
    """Rules and mode of one agent; implements `PermissionPolicy`. `cwd` is the project's directory, the one that path
    patterns hang on; `roots` those the agent may read unasked. `ceiling` is the parent's policy."""

    mode: str = Mode.DEFAULT
    rules: RuleSet = field(default_factory=RuleSet)
    cwd: Path = field(default_factory=Path.cwd)
    roots: tuple[Path, ...] = ()
    home: Path = field(default_factory=Path.home)
    ceiling: Policy | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "mode", Mode.parse(self.mode))

    def in_mode(self, mode: str) -> Policy:
        """The same rules in another mode. Raises `ValueError` for an unknown one."""
        return replace(self, mode=mode)

    async def decide(self, tool: Tool, input: Input, context: ToolContext) -> Decision:
        """Allow, Deny or Ask; see the head of this file."""
        return (await self.verdict(tool, input, context)).decision

    async def verdict(self, tool: Tool, input: Input, context: ToolContext) -> Verdict:
        """What happens to the call, by which rule of which file: the decision of a real call, and of `permissions test`."""
        own = await tool.check_permissions(input, context)
        cwd = context.shell.cwd if context.shell else context.cwd
        held = _holds_workspace(context.sandbox)
        return self.judge(tool.facts, input, own=own, cwd=cwd, roots=context.roots, project=context.cwd, held=held)

    def removes(self, tool_name: str) -> bool:
        """Whether a bare-name deny, of this agent or of one above it, takes the tool out of the model's list."""
        own = any(rule.covers_everything and rule.names(tool_name) for rule in self.rules.deny)
        return own or (self.ceiling is not None and self.ceiling.removes(tool_name))

    def explain(self, tool: str | Facts, input: Input, *, held: bool = False) -> Verdict:
        """The verdict on a call of which the tool itself has no opinion. `held` as in `judge`."""
        return self.judge(tool, input, held=held)

    def denies_path(self, path: Path, tool_name: str = "Read", project: Path | None = None) -> bool:
        """Whether a deny rule forbids this very file: for tools that find files by themselves (`Grep`, `Glob`)."""
        rules = [r for r in self.rules.deny if r.names(tool_name) and _speaks_of_paths(r)]
        places = Places(self.cwd, self.home, self.roots, self._twins(project)) if rules else None
        own = places is not None and any(rule.matches_path(path, places) for rule in rules)
        return own or (self.ceiling is not None and self.ceiling.denies_path(path, tool_name, project))

    def denied_rules(self) -> tuple[Rule, ...]:
        """The deny rules about paths, of this agent and of those above it: what a confinement has to hold."""
        own = tuple(rule for rule in self.rules.deny if rule.kind is Kind.PATH)
        return own + (self.ceiling.denied_rules() if self.ceiling else ())

    def child(self, *, mode: str | None = None, rules: RuleSet | None = None) -> Policy:
        """The policy of an agent below this one. What is not given is as here; nothing given can widen it."""
        return replace(
            self,
            mode=self.mode if mode is None else mode,
            rules=self.rules if rules is None else rules,
            ceiling=self,
        )

    def judge(
        self,
        tool: str | Facts,
        input: Input,
        *,
        own: Decision = Passthrough(),
        cwd: Path | None = None,
        roots: tuple[Path, ...] | None = None,
        project: Path | None = None,
        held: bool = False,
    ) -> Verdict:
        """The verdict: the stricter one of this policy and of those above it. `cwd` is where the agent's shell stands,
        `project` its own copy of the project, `roots` its own roots; each is as the policy has it when not given. `held`:
        the operating system can keep a command inside the working directory."""
        facts = tool_facts.of(tool) if isinstance(tool, str) else tool
        places = Places(self.cwd, self.home, roots or self.roots or (self.cwd,), self._twins(project))
        verdict = self._judge_alone(facts, input, own, cwd or project or self.cwd, places, held)
        if self.ceiling is None:
            return verdict
        above = self.ceiling.judge(facts, input, own=own, cwd=cwd, roots=roots, project=project, held=held)
        return max(verdict, above, key=_strictness)  # of equals this agent's own

    def _twins(self, project: Path | None) -> tuple[Path, ...]:
        return (project,) if project and project != self.cwd else ()

    def _judge_alone(self, facts: Facts, input: Input, own: Decision, cwd: Path, places: Places, held: bool) -> Verdict:
        call = _Call(facts, input, cwd, places, Mode(self.mode), self.rules, held)
        verdict = call.judge(own)
        if self.mode is Mode.DONT_ASK and isinstance(verdict.decision, Ask):
            return replace(verdict, decision=Deny(f"{verdict.why}; mode dontAsk denies what would ask"))
        return verdict


def _speaks_of_paths(rule: Rule) -> bool:
    return rule.kind in (Kind.PATH, Kind.WHOLE)


class _Call(Struct, frozen=True):
    """One call before one policy: the gates in their order."""

    facts: Facts
    input: Mapping[str, Any]
    cwd: Path
    places: Places
    mode: Mode
    rules: RuleSet
    held: bool

    def judge(self, own: Decision) -> Verdict:
        for rule in self._speaking(self.rules.deny):
            if self._matches(rule):
                return _denied(rule, f"{rule.text} denies it")
        shell = self._shell() if self.facts.specifier is Specifier.SHELL else None
        if shell and (hit := shell.denied()):
            return _denied(*hit)
        for rule in self._speaking(self.rules.ask):
            if self._matches(rule):
                return _asked(rule, f"{rule.text} asks")
        if shell and (found := shell.asked()):
            return _asked(found[0], found[1])
        return self._own(own) or self._by_mode(shell, own) or self._by_rule(shell) or self._otherwise(shell, own)

    # rules that can be asked without the shell grammar

    def _speaking(self, rules: tuple[Rule, ...]) -> Iterator[Rule]:
        return (rule for rule in rules if rule.names(self.facts) and rule.kind is not Kind.NEVER)

    def _matches(self, rule: Rule) -> bool:
        match rule.kind:
            case Kind.WHOLE:
                return True
            case Kind.FIELD:
                return rule.matches_field(self.input)
            case Kind.DOMAIN:
                return rule.matches_host(self._host())
            case Kind.NAME:
                return rule.matches_text(self.facts.called(self.input))
            case Kind.PATH:
                targets = list(self._paths())
                every = all if rule.behavior is Behavior.ALLOW else any
                return bool(targets) and every(rule.matches_path(path, self.places) for path in targets)
            case Kind.SHELL | Kind.NEVER:
                return False

    def _paths(self) -> Iterator[Path]:
        """The files or directories a file tool is about, absolute."""
        for name in self.facts.path_fields:
            yield self._absolute(self.input.get(name) or ".")
        pattern = str(self.input.get(self.facts.glob_field) or "") if self.facts.glob_field else ""
        if prefix := _literal_prefix(pattern):
            yield self._absolute(self.input.get(self.facts.path_fields[0]) or ".") / prefix

    def _host(self) -> str:
        """The host of the address in the main field, "" where there is none."""
        try:
            return urlsplit(str(self.input.get(self.facts.main_field or "") or "")).hostname or ""
        except ValueError:
            return ""

    def _command(self) -> str:
        return str(self.input.get(self.facts.main_field or "") or "")

    def _absolute(self, text: Any) -> Path:
        """As the tools resolve it: `~` is home, the rest hangs on the directory the agent stands in."""
        raw = str(text).replace("\0", "\ufffd")
        if raw == "~" or raw.startswith("~/"):
            return self.places.home / raw[2:]
        return self.cwd / raw

    def _shell(self) -> ShellJudge:
        return ShellJudge(self._command(), self.cwd, self.places, self.rules)

    # the other gates

    def _own(self, own: Decision) -> Verdict | None:
        match own:
            case Deny(reason):
                return Verdict(own, None, f"the tool {self.facts.name}", reason)
            case Allow():
                return Verdict(own, None, f"the tool {self.facts.name}", own.reason or "the tool allows it")
            case Ask() | Passthrough():
                return None

    def _by_mode(self, shell: ShellJudge | None, own: Decision) -> Verdict | None:
        source = f"mode {self.mode}"
        if self.mode is Mode.BYPASS:
            return _allowed(None, source, "everything runs that no rule speaks about")
        asks = own.reason if isinstance(own, Ask) else None
        if not self.facts.consent and not asks:
            return _allowed(None, "default", f"{self.facts.name} runs by itself")
        if self._reads_inside(shell) and not asks:
            return _allowed(None, "default", "it only reads inside the working directories", Confine.READ_ONLY)
        if self.mode is Mode.PLAN and not self.facts.read_only:
            return Verdict(Deny("in plan mode nothing is changed"), None, source, "in plan mode nothing is changed")
        if self.mode is Mode.ACCEPT_EDITS and not asks:
            return self._accepted(shell, source)
        return None

    def _reads_inside(self, shell: ShellJudge | None) -> bool:
        if shell:
            return shell.free()
        return self._reads() and all(inside(path, self.places.roots) for path in self._paths())

    def _reads(self) -> bool:
        """Whether it reads files and does nothing else, and which ones is known."""
        return self.facts.access is Access.READ and self.facts.read_only and bool(self.facts.path_fields)

    def _accepted(self, shell: ShellJudge | None, source: str) -> Verdict | None:
        if shell:
            if shell.acceptable():
                return _allowed(None, source, "it edits inside the working directories", Confine.WORKSPACE)
            if self.held and shell.held():
                return _allowed(None, source, "the operating system keeps it inside", Confine.WORKSPACE)
            return None
        if self.facts.access is not Access.EDIT or not self.facts.path_fields:
            return None
        if all(self._is_free_to_edit(path) for path in self._paths()):
            return _allowed(None, source, "it edits inside the working directories")
        return None

    def _is_free_to_edit(self, path: Path) -> bool:
        return inside(path, self.places.roots) and not self._protected(path)

    def _protected(self, path: Path) -> bool:
        return edit_path_is_protected(path, self.places.roots, self.places.home)

    def _by_rule(self, shell: ShellJudge | None) -> Verdict | None:
        if shell and (rule := shell.allowed()):
            return _allowed(rule, str(rule.source), f"{rule.text} allows it")
        for rule in self._speaking(self.rules.allow):
            if not shell and self._matches(rule) and self._means_rights(rule):
                return _allowed(rule, str(rule.source), f"{rule.text} allows it")
        return None

    def _means_rights(self, rule: Rule) -> bool:
        """Whether an allow rule was written about what the call edits: what grants rights is to be named in it."""
        if self.facts.access is not Access.EDIT:
            return True
        places = self.places
        return all(rule.says(rights_named(path, places.roots, places.home)) for path in self._paths())

    def _otherwise(self, shell: ShellJudge | None, own: Decision) -> Verdict:
        if isinstance(own, Ask):
            return Verdict(own, None, f"the tool {self.facts.name}", own.reason)
        why = shell.why_not() if shell else self._why_not()
        return Verdict(Ask(why, self._suggestion(shell), by_rule=False), None, "default", why)

    def _helps(self, text: str) -> bool:
        try:
            rule = Rule.parse(text, Source("suggestion"), Behavior.ALLOW)
        except RuleError:
            return False
        rules = replace(self.rules, allow=(*self.rules.allow, rule))
        return ShellJudge(self._command(), self.cwd, self.places, rules).allowed() is not None

    def _why_not(self) -> str:
        if self._reads():
            return f"{resolve(next(self._paths()))} lies outside the working directories"
        if self.facts.access is Access.EDIT and (found := next(filter(self._protected, self._paths()), None)) is not None:
            return f"{found} grants rights, and no rule names it"
        return f"no rule allows {self.facts.name}"

    def _suggestion(self, shell: ShellJudge | None) -> str | None:
        """A rule that would allow just this for good; for a command it was tried first."""
        if shell:
            return next(filter(self._helps, shell.suggestions()), None)
        if self.facts.specifier is Specifier.DOMAIN and (host := self._host()):
            return f"{self.facts.name}(domain:{host})"
        if self.facts.group and self.facts.path_fields:
            return f"{self.facts.group}(/{resolve(next(self._paths()))})"
        return self.facts.name


def _denied(rule: Rule, why: str) -> Verdict:
    return Verdict(Deny(f"{why} ({rule.source})"), rule, str(rule.source), why)


def _asked(rule: Rule | None, why: str) -> Verdict:
    return Verdict(Ask(why), rule, str(rule.source) if rule else "shell grammar", why)


def _allowed(rule: Rule | None, source: str, why: str, confine: Confine = Confine.GUARD) -> Verdict:
    return Verdict(Allow(reason=why, confine=confine), rule, source, why)


def _strictness(verdict: Verdict) -> tuple[int, int]:
    """Of two allowing verdicts the one that holds the command more."""
    held = verdict.decision.confine if isinstance(verdict.decision, Allow) else Confine.GUARD
    return _STRICTNESS[verdict.behavior], (Confine.GUARD, Confine.WORKSPACE, Confine.READ_ONLY).index(held)


def _holds_workspace(confinement: object) -> bool:
    holds = getattr(confinement, "holds", None)
    return bool(callable(holds) and holds(Confine.WORKSPACE))


def _literal_prefix(pattern: str) -> str:
    """The directories of a file pattern before its first wildcard; `..` anywhere is kept as far as it goes."""
    parts = []
    for part in pattern.split("/"):
        if any(char in part for char in "*?[{") and part != "..":
            break
        parts.append(part)
    return "/".join(parts)
