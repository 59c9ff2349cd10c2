"""`coordinator permissions test`: which rule of which file decides a call, without making it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coordinator.cli import render
from coordinator.cli.context import Context, common_options, pass_cli
from coordinator.cli.directory import trust_of
from coordinator.cli.failures import Failure
from coordinator.cli.run_flags import DIRECTORY, MODES, Names, flag, together
from coordinator.views.exit_codes import ExitCode

if TYPE_CHECKING:
    from worker_agent.tools.base import Input, Tool
    from worker_agent.tools.confinement import AgentConfinement
    from worker_agent.tools.permissions import Policy, Verdict

CALL = re.compile(r"(?P<tool>[A-Za-z_][\w*-]*)(?:\((?P<input>.*)\))?", re.DOTALL)


@click.command(
    "test",
    help='Say what happens to a call such as "Bash(git push)" or "Edit(src/x.py)": allow, ask or deny, and by which rule.',
)
@click.argument("call")
@click.option("--permission-mode", "mode", type=click.Choice(MODES), help="As in this mode.")
@flag(
    "--allowed-tools",
    "--allowedTools",
    "allowed_tools",
    type=Names(),
    multiple=True,
    callback=together,
    metavar="RULES",
    help="With these rules, too.",
)
@flag(
    "--disallowed-tools",
    "--disallowedTools",
    "disallowed_tools",
    type=Names(),
    multiple=True,
    callback=together,
    metavar="RULES",
    help="With these denials, too.",
)
@flag("--settings", metavar="PATH|JSON", help="With this settings file, or its JSON, above the others.")
@flag("--add-dir", "add_dirs", type=DIRECTORY, multiple=True, help="With this directory, too; repeatable.")
@flag("--sandbox", type=click.Choice(("auto", "required", "off")), default="auto", help="As with this sandbox.")
@click.option("--json", "as_json", is_flag=True, help="One object.")
@common_options
@pass_cli
def test(
    cli: Context, call: str, mode: str | None, allowed_tools: tuple[str, ...], disallowed_tools: tuple[str, ...],
    settings: str | None, add_dirs: tuple[Path, ...], sandbox: str, as_json: bool,
) -> None:  # fmt: skip
    from worker_agent.tools import settings_files
    from worker_agent.tools.idle_rules import idle
    from worker_agent.tools.rules import Places

    tool, given = read_call(call)
    here, home = Path.cwd(), Path.home()
    loaded = settings_files.load(here, home=home, trust=trust_of(cli, here), settings=settings)
    for line in (*loaded.problems, *loaded.held_back):
        cli.console.note(line)
    policy = loaded.policy(
        cwd=here, home=home, mode=mode, allowed=allowed_tools, disallowed=disallowed_tools,
        roots=[directory.absolute() for directory in add_dirs],
    )  # fmt: skip
    for line in idle(policy.rules, Places(policy.cwd, policy.home, policy.roots)):
        cli.console.note(line)
    held = confinement(cli, sandbox, policy)
    verdict = asyncio.run(preview(policy, tool, given, held))
    values = {
        "decision": verdict.behavior,
        "rule": str(verdict.rule.text) if verdict.rule else None,
        "source": verdict.source,
        "why": verdict.why,
        "confined": confined(tool, verdict, held),
    }
    if as_json:
        cli.console.json(values)
    else:
        for pieces in render.fields(values.items()):
            cli.console.styled(pieces)


async def preview(policy: Policy, tool: Tool, given: Input, held: AgentConfinement | None) -> Verdict:
    """What the real call would be told, by the object that tells it."""
    from worker_agent.tools.base import ToolContext

    context = ToolContext(
        session_id="", agent_id="", cwd=policy.cwd, roots=policy.roots, spill_dir=policy.cwd, permissions=policy, sandbox=held
    )
    return await policy.verdict(tool, given, context)


def confinement(cli: Context, sandbox: str, policy: Policy) -> AgentConfinement | None:
    """What would hold the commands of a run in this directory; None where nothing would."""
    from worker_agent.tools.confinement import Confinements, Fence, choose
    from worker_agent.tools.rules import Places

    choice = choose(sandbox)
    if choice.means is None:
        return None
    home = cli.paths.home
    session = Confinements(
        means=choice.means, home=policy.home, aside=home / "set-aside", writable=policy.roots, private=(home,),
        network=cli.settings.tools.sandbox_network, required=choice.required,
    )  # fmt: skip
    return session.of(policy.cwd, (Fence(policy.denied_rules(), Places(policy.cwd, policy.home, policy.roots)),))


def confined(tool: Tool, verdict: Verdict, held: AgentConfinement | None) -> str | None:
    """How far the operating system would hold the command, in words; None where it holds nothing."""
    from worker_agent.tool_facts import Specifier
    from worker_agent.tools.base import Allow

    if tool.facts.specifier is not Specifier.SHELL or held is None or not isinstance(verdict.decision, Allow):
        return None
    return str(verdict.decision.confine) if held.holds(verdict.decision.confine) else None


def read_call(call: str) -> tuple[Tool, dict[str, Any]]:
    """`Tool(text)` as a tool and its input. A tool that only a run has (of a server, of the coordinator) is judged by its
    facts. Raises `Failure`."""
    found = CALL.fullmatch(call.strip())
    if not found:
        raise Failure(f'{call!r} is no call: write it as "Bash(git push)"', ExitCode.USAGE)
    from worker_agent.tools.base import FactsAlone
    from worker_agent.tools.registry import ToolRegistry

    tool = ToolRegistry.builtin().get(found["tool"]) or FactsAlone(found["tool"])
    field, text = tool.facts.rule_field, found["input"]
    return tool, {} if text is None or field is None else {field: text}
