"""What a tool says of itself: one frozen value, which the tool carries as `Tool.facts`.

Whoever must know something of a tool asks its facts, and nobody keeps a table of tool names: the rules (what a specifier is
about, which files a call touches, whether it needs consent), hooks (other names, absolute paths), the context (what can be
had again), the command line (which field a person means). A tool of an MCP server or of one's own declares the same value:

    facts = Facts(name="mcp__notes__search", main_field="query", read_only=True, rerunnable=True)

Rules, matchers and agent files speak of tools before any tool exists, and of some that never will here. So the facts of the
tools with well-known names stand below, each once; `of` finds them by any name. A name that nobody knows gets the
strictest facts: consent needed, effects assumed, result kept.

What depends on the input of a call is a question to the tool itself: `is_read_only`, `is_concurrency_safe`, `activity`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from msgspec import Struct

from worker_agent.words import meant


class Access(StrEnum):
    """What a call does with the files that its path fields name. Rules for `Read` speak of all that read, rules for `Edit`
    of all that edit."""

    NONE = "none"
    READ = "read"
    EDIT = "edit"


class Specifier(StrEnum):
    """What `text` is about in a rule `Tool(text)`. NOTHING: rules about its fields only, or those of its group."""

    NOTHING = "nothing"
    SHELL = "shell"  # a command line
    PATH = "path"  # files, by a pattern as in .gitignore
    DOMAIN = "domain"  # `domain:` and a host
    NAME = "name"  # a name, perhaps with words behind it


class Facts(Struct, frozen=True, kw_only=True):
    """`aliases` mean this very tool wherever tools are named; `elsewhere` are names that other products give it, which only
    agent files may use.

    `main_field` is the input field that a call is about in few words. `path_fields` hold paths; a relative one hangs on the
    directory that the agent stands in. `glob_field` holds a file pattern below the first of them.

    A rule's text is compared with `named_by`, these fields put together, `unnamed` where they are empty; `rule_fields` are
    scalar fields that `Tool(field:value)` may speak about although the tool has a specifier.

    `read_only`: no call has side effects, so that one may be thrown away and made again. `rerunnable`: an old result may be
    cleared, for the same call brings it again or it says nothing that lasts. `consent` False: it runs unless a rule says no."""

    name: str
    aliases: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    main_field: str | None = None
    path_fields: tuple[str, ...] = ()
    glob_field: str | None = None
    access: Access = Access.NONE
    specifier: Specifier = Specifier.NOTHING
    named_by: tuple[str, ...] = ()
    unnamed: str = ""
    rule_fields: frozenset[str] = frozenset()
    read_only: bool = False
    rerunnable: bool = False
    consent: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """All names by which rules, hooks and models mean it."""
        return (self.name, *self.aliases)

    @property
    def rule_field(self) -> str | None:
        """The field that a person means who writes a call as `Tool(text)`: what rules judge it by."""
        return self.path_fields[0] if self.path_fields and self.access is not Access.NONE else self.main_field

    @property
    def group(self) -> str | None:
        """The tool whose rules about paths speak of this one, too."""
        return {Access.READ: READ.name, Access.EDIT: EDIT.name, Access.NONE: None}[self.access]

    def called(self, input: Mapping[str, Any]) -> str:
        """What a rule's name is compared with."""
        return " ".join(str(input[key]) for key in self.named_by if input.get(key)) or self.unnamed


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


AGENT = Facts(
    name="Agent",
    aliases=("Task",),
    main_field="subagent_type",
    specifier=Specifier.NAME,
    named_by=("subagent_type",),
    unnamed="worker",
    rule_fields=_words("description prompt model name isolation run_in_background"),
    consent=False,
)
BASH = Facts(
    name="Bash",
    elsewhere=("run_shell_command", "terminal"),
    main_field="command",
    specifier=Specifier.SHELL,
    rule_fields=_words("description timeout run_in_background dangerouslyDisableSandbox"),
    rerunnable=True,
)
EDIT = Facts(
    name="Edit",
    aliases=("MultiEdit",),
    elsewhere=("replace", "file_editor"),
    main_field="file_path",
    path_fields=("file_path",),
    access=Access.EDIT,
    specifier=Specifier.PATH,
    rule_fields=_words("old_string new_string replace_all"),
    rerunnable=True,
)
GLOB = Facts(
    name="Glob",
    main_field="pattern",
    path_fields=("path",),
    glob_field="pattern",
    access=Access.READ,
    read_only=True,
    rerunnable=True,
)
GREP = Facts(
    name="Grep",
    elsewhere=("grep_search",),
    main_field="pattern",
    path_fields=("path",),
    glob_field="glob",
    access=Access.READ,
    read_only=True,
    rerunnable=True,
)
NOTEBOOK_EDIT = Facts(
    name="NotebookEdit",
    main_field="notebook_path",
    path_fields=("notebook_path",),
    access=Access.EDIT,
)
LIST_MCP_RESOURCES = Facts(name="ListMcpResourcesTool")
READ = Facts(
    name="Read",
    elsewhere=("read_file",),
    main_field="file_path",
    path_fields=("file_path",),
    access=Access.READ,
    specifier=Specifier.PATH,
    rule_fields=_words("offset limit pages"),
    read_only=True,
    rerunnable=True,
)
READ_MCP_RESOURCE = Facts(name="ReadMcpResourceTool", main_field="uri")
AGENT_TYPES = Facts(name="AgentTypes", main_field="query", read_only=True, consent=False)  # it tells, nothing more
SEND_MESSAGE = Facts(name="SendMessage", main_field="to", consent=False)
SKILL = Facts(
    name="Skill",
    main_field="skill",
    specifier=Specifier.NAME,
    named_by=("skill", "args"),
    consent=False,  # it is text that the person or a trusted project wrote
)
TASK_STOP = Facts(name="TaskStop", main_field="task_id", consent=False)
TODO_WRITE = Facts(name="TodoWrite", read_only=True, consent=False)
TOOL_SEARCH = Facts(name="ToolSearch", main_field="query", read_only=True, consent=False)  # it finds, nothing more
WEB_FETCH = Facts(
    name="WebFetch",
    elsewhere=("web_fetch",),
    main_field="url",
    specifier=Specifier.DOMAIN,
    rule_fields=_words("prompt"),
    read_only=True,
    rerunnable=True,
)
WEB_SEARCH = Facts(name="WebSearch", main_field="query", read_only=True, rerunnable=True)  # a model's own, not here
WRITE = Facts(
    name="Write",
    main_field="file_path",
    path_fields=("file_path",),
    access=Access.EDIT,
    rerunnable=True,
)

_KNOWN = (
    AGENT, AGENT_TYPES, BASH, EDIT, GLOB, GREP, LIST_MCP_RESOURCES, NOTEBOOK_EDIT, READ, READ_MCP_RESOURCE, SEND_MESSAGE, SKILL, TASK_STOP,
    TODO_WRITE, TOOL_SEARCH, WEB_FETCH, WEB_SEARCH, WRITE,
)  # fmt: skip
# Who may ask for them is who may ask for their like: a list of tools need not name them.
AROUND = frozenset({TOOL_SEARCH.name, LIST_MCP_RESOURCES.name, READ_MCP_RESOURCE.name})
OF_WORKERS = frozenset({AGENT.name, AGENT_TYPES.name, SEND_MESSAGE.name, TASK_STOP.name})  # to begin workers and reach them


def others_than(names: Iterable[str]) -> tuple[str, ...]:
    """The tools with well-known names beside those that `names` means. Who may begin workers may reach them."""
    wanted = {of(name).name for name in names} | AROUND
    if AGENT.name in wanted:
        wanted |= OF_WORKERS
    return tuple(sorted(facts.name for facts in _KNOWN if facts.name not in wanted))


# Tools of Claude Code that are not here: to deny one of them is no mistake.
_NOT_HERE = """AskUserQuestion BashOutput Computer CronCreate CronDelete CronList EnterPlanMode EnterWorktree ExitPlanMode ExitWorktree
    KillBash KillShell LS LSP ListMcpResources Monitor NotebookRead PowerShell PushNotification REPL ReadMcpResource RemoteTrigger
    ScheduleWakeup SendUserFile SendUserMessage ShareOnboardingGuide SlashCommand Sleep StructuredOutput TaskCreate TaskGet TaskList
    TaskOutput TaskUpdate TeamCreate TeamDelete TodoRead WaitForMcpServers Workflow""".split()
_BY_NAME = {name: facts for facts in _KNOWN for name in facts.names}
_IN_AGENT_FILES = (
    {name.lower(): name for name in _NOT_HERE}
    | {name.lower(): facts.name for facts in _KNOWN for name in facts.elsewhere}
    | {name.lower(): facts.name for facts in _KNOWN for name in facts.names}
)


def of(name: str) -> Facts:
    """The facts of the tool with this name or alias; those of a tool that nobody knows yet have the name alone."""
    return _BY_NAME.get(name) or Facts(name=name)


def known() -> tuple[Facts, ...]:
    """The facts of all tools with well-known names."""
    return _KNOWN


def meant_by(name: str) -> str | None:
    """The tool that somebody meant who wrote `name` in another case or with a slip of the pen; None where it is known, a
    pattern, a server's, or like none."""
    return None if "*" in name or "__" in name else meant(name, (*_BY_NAME, *_NOT_HERE))


def is_unknown(name: str) -> bool:
    """Whether no tool is called so, here or in Claude Code. A server's tools come with their server; a pattern that fits no
    well-known name is unknown, too."""
    if name.startswith("mcp__"):
        return False
    every = (*_BY_NAME, *_NOT_HERE)
    if "*" in name:
        return not ("mcp__".startswith(name.partition("*")[0]) or any(fnmatchcase(one, name) for one in every))
    return name not in every


def as_agent_files_name_it(name: str) -> str | None:
    """Our name of the tool that an agent file means, whatever its case; None for one that nobody knows."""
    return _IN_AGENT_FILES.get(name.lower())
