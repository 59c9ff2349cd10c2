"""`/name args` typed by a person: the skill or command file of that name becomes the prompt.

A name that is none is refused with what it may have been meant for, before a model is paid. `/compact`, `/cost` and `/help`
are commands of the session itself; what begins with a path (`/tmp/x`, `/etc is full`) stays a prompt.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from coordinator.agents import plugins
from coordinator.options import RunOptions
from coordinator.paths import Paths
from tasks.ids import new_session_id
from worker_agent.errors import ConfigError
from worker_agent.session.commands import parse_command
from worker_agent.skills import Skill, SkillIndex
from worker_agent.structs import replace
from worker_agent.tools.trust import repository_root

if TYPE_CHECKING:
    from tasks.records import SessionRecord
    from worker_agent.tools.trust import Trust

_CALL = re.compile(r"\s*/(?P<name>[A-Za-z0-9][\w:.-]*)(?:\s+(?P<arguments>.*?))?\s*", re.DOTALL)


class Expanded(Struct, frozen=True):
    """What a person's `/name args` stands for. `tools` are rules that hold without asking for this prompt; `passed_over`
    are those of the file that are no rules."""

    prompt: str
    skill: Skill
    tools: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()


def skill_index(
    cwd: Path, *, home: Path | None, trust: Trust, found: plugins.Plugins, session_id: str | None = None,
    only: Collection[str] | None = None,
) -> SkillIndex:  # fmt: skip
    """The skills that hold in `cwd`, those of the plugins `found` there included; a model may use those named in `only`."""
    variables = {"CLAUDE_SESSION_ID": session_id} if session_id else {}
    return SkillIndex(
        cwd, home=home, trusted=trust.of(cwd), plugins=found.roots, strict=found.strict, variables=variables, only=only
    )


def called(text: str) -> tuple[str, str] | None:
    """Name and arguments of `/name args`; None where `text` has not that form. A path such as `/etc` has it, too."""
    call = _CALL.fullmatch(text)
    return None if call is None else (call["name"], call["arguments"] or "")


def expand(text: str, index: SkillIndex) -> Expanded | None:
    """What `text` stands for; None where it is a prompt, or a command of the session. Raises `ConfigError` for a name that is
    none. Reads the disk."""
    call = _CALL.fullmatch(text)
    if call is None or parse_command(text) is not None or Path("/", call["name"]).exists():
        return None
    try:
        skill = index.get(call["name"])
    except ConfigError as error:
        raise ConfigError(f"{error} `coordinator skills list` lists them; begin a prompt otherwise than with /.") from None
    if skill.fields.get("user-invocable") in (False, "false"):
        raise ConfigError(f"the skill {skill.name!r} is for the model alone (user-invocable: false)")
    body = index.load(skill.name, call["arguments"] or "")
    tools, passed_over = _rules(skill)
    return Expanded(f"{text.strip()}\n\n{_head(skill)}\n\n{body}", skill, tools, passed_over)


def _head(skill: Skill) -> str:
    head = (
        f"This stands for the skill {skill.name}, whose text follows; do what it says. Paths in it start at {skill.directory}."
    )
    if skill.fields.get("context") == "fork":
        agent = skill.fields.get("agent")
        kind = f" of the type {agent}" if isinstance(agent, str) else ""
        head += (
            f" It asks to be done by a worker of its own: start one{kind} with the whole text below as its prompt, and answer"
            " with its report. Without the tool for that, do it yourself."
        )
    return head


def _rules(skill: Skill) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of what a skill wants to use unasked the entries that are rules, and those that are none."""
    from worker_agent.tools.rules import RuleSet

    good: list[str] = []
    bad: list[str] = []
    for entry in skill.allowed_tools:
        try:
            problems = RuleSet.from_flags((entry,)).problems
        except ConfigError:
            problems = (entry,)
        (bad if problems else good).append(entry)
    return tuple(good), tuple(bad)


def with_skill(options: RunOptions, earlier: SessionRecord | None) -> tuple[RunOptions, Expanded | None]:
    """The options of a run whose prompt may be `/name args`; `earlier` is the session that it goes on with. Raises
    `ConfigError`."""
    if not options.prompt or _CALL.fullmatch(options.prompt) is None:
        return options, None
    home, cwd = Path.home(), Path(earlier.cwd) if earlier else options.cwd
    id = earlier.id if earlier and not options.fork_session else options.session_id or new_session_id()
    data = Paths.of(options.config).plugin_data
    found = plugins.load(repository_root(cwd), home=home, data=data, trust=options.trust, given=options.plugin_dirs)
    own = home if options.reads("user") else None
    expanded = expand(options.prompt, skill_index(cwd, home=own, trust=options.trust, found=found, session_id=id))
    if expanded is None:
        return options, None
    named = options.session_id if earlier and not options.fork_session else id
    return replace(options, prompt=expanded.prompt, granted=expanded.tools, session_id=named), expanded
