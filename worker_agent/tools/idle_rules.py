"""Rules that can match nothing: a fence or a permission that its writer believes in and that is not there.

Only what is certain is told. A tool of an MCP server may come with its server, an agent or a skill with its file: their names
are not judged.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator

from worker_agent import tool_facts
from worker_agent.tools.rules import WILD, Kind, Places, Rule, RuleSet
from worker_agent.tools.shell_parser import Unparsable, parse_cached
from worker_agent.words import meant

HINT = 0.6  # a hint may be wrong where a fence that stops a run may not: how like a name must be, of 1
_HOST = re.compile(r"[\w.*-]+", re.ASCII)


def idle(rules: RuleSet, places: Places) -> tuple[str, ...]:
    """A line for each rule that can match nothing: the rule, where it stands, why, and what to write where that is known."""
    every = (*rules.deny, *rules.ask, *rules.allow)
    return tuple(f"{rule.text!r} in {rule.source} matches nothing: {why}" for rule in every for why in _why(rule, places))


def _why(rule: Rule, places: Places) -> Iterator[str]:
    """At most one reason. `Rule.warning` has told of those that are never consulted."""
    match rule.kind:
        case Kind.SHELL:
            yield from _about_shell(rule)
        case Kind.PATH:
            yield from _about_path(rule, places)
        case Kind.DOMAIN if not _HOST.fullmatch(host := (rule.specifier or "").partition(":")[2].strip()):
            yield f"{host!r} is no host name; write WebFetch(domain:example.com)"
        case Kind.WHOLE | Kind.FIELD:
            yield from _about_tool(rule.tool)
        case _:
            pass


def _about_tool(tool: str) -> Iterator[str]:
    if tool.startswith("mcp__") or "*" in tool or tool_facts.as_agent_files_name_it(tool) is not None:
        return
    near = meant(tool, (name for facts in tool_facts.known() for name in facts.names), close=HINT)
    yield f"no tool is called {tool}" + (f"; did you mean {near}?" if near else "")


def _about_shell(rule: Rule) -> Iterator[str]:
    """A line is judged part by part, and redirections by rules of their own: a text of several parts is none of them."""
    text = rule.alternatives[-1].replace(WILD, "*")
    parsed = parse_cached(text)
    if isinstance(parsed, Unparsable):
        return
    own = [part for part in parsed if not part.carried]
    if any(rule.matches_text(part.raw) for part in own):
        return
    if len(own) > 1 and all(part.words for part in own):
        yield "each part of a line is judged by itself; write a rule for each: " + " ".join(f"Bash({p.raw})" for p in own)
    elif any(part.redirects for part in own):
        yield "a redirection is judged as an edit of its file; leave it out, and write Edit(that file)"


def _about_path(rule: Rule, places: Places) -> Iterator[str]:
    """`/home/x` hangs on where its file stands; whoever wrote it thought of the root."""
    text = rule.specifier or ""
    first = text.split("/")[1] if text.startswith("/") and not text.startswith("//") else ""
    if not first or re.search(r"[*?\[\]\\]", first):
        return
    base = rule.source.base or places.cwd
    if not os.path.lexists(base / first) and os.path.isdir("/" + first):
        yield f"it means {base / first}, which is not there; from the root it is {rule.tool}(/{text})"
