"""`Tool`, `ToolContext`, `ToolResult`: what a tool is, what it is given, what it answers.

Two kinds of failure, typed (`errors.py`): a `ToolError` the model can mend, a `TurnOver` that ends the turn. Any other
exception is a bug of the tool; `lifecycle.py`, and only it, turns it into a result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct, field

from worker_agent import tool_facts
from worker_agent.causes import Cause
from worker_agent.config import Clock, SystemClock, ToolSettings
from worker_agent.events import PermissionDenial
from worker_agent.messages import Block
from worker_agent.process import Wrap, Wrapped
from worker_agent.structs import replace
from worker_agent.tool_facts import Facts

Input = Mapping[str, Any]


class Confine(StrEnum):
    """How far the operating system is to hold what a shell command does. Each holds at least what the next one holds.

    READ_ONLY: it ran unasked because it was read and found harmless: it writes nowhere but in a temporary directory of its
    own, has no network, and sees no denied path and no known place of secrets.
    WORKSPACE: it runs unasked because it is held: the same, but it also writes in the working directory, the added
    directories and the scratchpad, never where code or rights come from (`places.py`); no signal to others' processes.
    GUARD: a rule or a person allowed it, or `bypassPermissions` is on: nothing is held but the paths of deny rules."""

    READ_ONLY = "read-only"
    WORKSPACE = "workspace"
    GUARD = "guard"


class Allow(Struct, frozen=True):
    """The call may run, with `updated_input` in place of the model's where a hook or a person changed it. `confine` is how
    far the operating system is to hold a shell command that was allowed for this reason."""

    updated_input: Input | None = None
    reason: str = ""
    confine: Confine = Confine.GUARD


class Deny(Struct, frozen=True):
    """The call must not run; `reason` goes to the model and into the list of denials."""

    reason: str


class Ask(Struct, frozen=True):
    """A person must say; without one it is a denial. `suggestion` is a rule that would allow it for good. `by_rule`:
    an ask rule or the tool itself wants it, so that no hook's "allow" lifts it; False when only the mode asks."""

    reason: str
    suggestion: str | None = None
    by_rule: bool = True


class Passthrough(Struct, frozen=True):
    """This gate has no opinion; the next one decides."""


Decision = Allow | Deny | Ask | Passthrough


class ToolResult(Struct, frozen=True):
    """What a call gives back. `content` is text or a list of blocks (text, image, document). `output_file` is where the
    whole of a shortened output lies. `end_turn` asks the loop to stop after this turn."""

    content: str | Sequence[Block]
    is_error: bool = False
    output_file: Path | None = None
    data: Mapping[str, Any] = field(default_factory=dict)  # for hooks (`tool_response`) and observers


class PermissionPolicy(Protocol):
    """Rules and mode of one agent. See `permissions.py`."""

    @property
    def mode(self) -> str: ...

    def in_mode(self, mode: str) -> PermissionPolicy:
        """The same rules in another mode. Raises `ValueError` for an unknown one."""
        ...

    async def decide(self, tool: Tool, input: Input, context: ToolContext) -> Decision:
        """deny rule → ask rule → the tool's own check → mode → allow rule; `Ask` where a person must say."""
        ...

    def removes(self, tool_name: str) -> bool:
        """Whether a bare-name deny takes the tool out of the model's list."""
        ...

    def denies_path(self, path: Path, tool_name: str = "Read", project: Path | None = None) -> bool:
        """Whether a deny rule forbids this very file: for tools that find files by themselves. `project` is the agent's
        own copy of the project."""
        ...


class Confinement(Protocol):
    """What the operating system holds of one agent's commands. See `confinement/`."""

    def holds(self, level: Confine) -> bool:
        """Whether a command run at `level` really is held as `Confine` says, the deny rules' paths included."""
        ...

    @property
    def why_not(self) -> str | None:
        """A sentence when WORKSPACE cannot be held."""
        ...

    def wrap(self, argv: Sequence[str], cwd: Path, level: Confine) -> Wrapped:
        """The command as it is to be started; what cannot be held is held as far as it can."""
        ...


class Approver(Protocol):
    """A person, where there is one."""

    async def ask(self, tool: Tool, input: Input, ask: Ask, context: ToolContext) -> Allow | Deny: ...


class ToolHooks(Protocol):
    """Hooks around a tool call; see `hooks.py`. Each may raise `TurnOver`."""

    async def pre_tool_use(self, tool_name: str, input: Input, tool_use_id: str) -> PreToolUse: ...

    async def permission_request(self, tool_name: str, input: Input, suggestion: str | None) -> Decision:
        """What hooks say of a call that a person would be asked about, Passthrough where none says anything. `suggestion`
        is a rule that would allow it for good."""
        ...

    async def post_tool_use(
        self, tool_name: str, input: Input, tool_use_id: str, result: ToolResult, duration: float
    ) -> PostToolUse: ...


class PreToolUse(Struct, frozen=True):
    """`decision` is Passthrough when no hook decided; `context` is text for the model beside the result."""

    decision: Decision = Passthrough()
    updated_input: Input | None = None
    context: tuple[str, ...] = ()


class PostToolUse(Struct, frozen=True):
    """`feedback` (from exit code 2 or `decision: block`) and `context` go to the model with the result."""

    feedback: tuple[str, ...] = ()
    context: tuple[str, ...] = ()
    updated_output: str | None = None


class NoHooks:
    async def pre_tool_use(self, tool_name: str, input: Input, tool_use_id: str) -> PreToolUse:
        return PreToolUse()

    async def permission_request(self, tool_name: str, input: Input, suggestion: str | None) -> Decision:
        return Passthrough()

    async def post_tool_use(
        self, tool_name: str, input: Input, tool_use_id: str, result: ToolResult, duration: float
    ) -> PostToolUse:
        return PostToolUse()


class ReadFile(Struct, frozen=True):
    """What an agent knows of a file it read or wrote: enough to notice that somebody changed it since."""

    mtime_ns: int
    size: int
    digest: str  # sha256 of the bytes
    partial: bool = False  # only a range was read
    ranges: tuple[tuple[int, int], ...] = ()  # (offset, limit) already shown, for "unchanged" answers
    order: int = 0  # rises with every read; the latest files are read afresh after a compaction


class Fill:
    """How much of an agent's window is used, for tools that would bring much into it. The agent's context says it before
    every call of the model."""

    def __init__(self) -> None:
        self.is_nearly_full = False

    def say(self, *, is_nearly_full: bool) -> None:
        self.is_nearly_full = is_nearly_full


class ShellState(Struct):
    """What lasts between shell calls of one agent."""

    cwd: Path

    def move(self, cwd: Path) -> None:
        self.cwd = cwd


class BackgroundShells(Protocol):
    """Where `Bash` with `run_in_background` puts a command: a `local_bash` task of its own."""

    async def start(self, command: str, cwd: Path, description: str, context: ToolContext, timeout: float) -> Mapping[str, Any]:
        """Answers at once with at least `task_id` and `output_file`. After `timeout` seconds the command is ended."""
        ...


class ToolContext(Struct, kw_only=True):
    """Everything a tool may know and touch. One an agent; the executor gives each call a copy made by `for_call`,
    whose caches (`read_files`, `shell`, `denials`, `fill`) stay the agent's own.

    `roots` are the directories the agent may read unasked (and write in `acceptEdits`): working directory, added
    directories, scratchpad. `spill_dir` takes results over their cap. `environment` is what a process of a tool gets.
    `redact` takes known secrets out of text before anyone sees or stores it."""

    session_id: str
    agent_id: str
    task_id: str | None = None
    cwd: Path
    roots: tuple[Path, ...]
    spill_dir: Path
    scratchpad: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    settings: ToolSettings = field(default_factory=ToolSettings)
    clock: Clock = field(default_factory=SystemClock)
    permissions: PermissionPolicy
    approver: Approver | None = None
    hooks: ToolHooks = field(default_factory=NoHooks)
    background: BackgroundShells | None = None
    sandbox: Confinement | None = None  # None: commands run as they are
    on_process: Callable[[int, float], None] | None = None  # (pid, start time) of every process tree begun
    redact: Callable[[str], str] = field(default=lambda text: text)
    read_files: dict[Path, ReadFile] = field(default_factory=dict)
    shell: ShellState | None = None
    denials: list[PermissionDenial] = field(default_factory=list)
    fill: Fill = field(default_factory=Fill)
    # of one call
    tool_use_id: str = ""
    confine: Confine = Confine.GUARD  # how far the gates want a shell command to be held
    progress: Callable[[str], None] = field(default=lambda text: None)

    def __post_init__(self) -> None:
        if self.shell is None:
            self.shell = ShellState(self.cwd)

    def wrap(self) -> Wrap | None:
        """How a shell command of this call is confined."""
        sandbox, level = self.sandbox, self.confine
        return (lambda argv, cwd: sandbox.wrap(argv, cwd, level)) if sandbox is not None else None

    def set_mode(self, mode: str) -> None:
        """From the next call on. Raises `ValueError` for an unknown mode."""
        self.permissions = self.permissions.in_mode(mode)

    def use_permissions(self, permissions: PermissionPolicy) -> None:
        """From the next call on."""
        self.permissions = permissions

    def add_roots(self, more: Sequence[Path]) -> None:
        """Further directories that the agent may read unasked, from the next call on."""
        self.roots = tuple(dict.fromkeys((*self.roots, *more)))

    def add_environment(self, more: Mapping[str, str]) -> None:
        """For every process that is begun from now on."""
        self.environment = {**self.environment, **more}

    def for_call(self, tool_use_id: str, progress: Callable[[str], None]) -> ToolContext:
        return replace(self, tool_use_id=tool_use_id, progress=progress)


class Tool:
    """A tool: subclass it, declare its facts, its description and its schema (on the class, or on the instance for a tool
    that is found when running), implement `call`. Names and input fields are Claude's, so that existing rules and hooks
    match. Instances are stateless towards agents: all state is in the context."""

    facts: Facts  # what everybody else may know of it; see `tool_facts.py`
    description: str  # identical bytes for every agent of one definition
    input_schema: Mapping[str, Any]  # a JSON schema of type object, `additionalProperties: False`
    result_cap: int | None = 50_000  # characters; None = the tool limits itself
    deferred: bool = False  # told to a model only once the conversation references it

    @property
    def name(self) -> str:
        return self.facts.name

    def is_read_only(self, input: Input) -> bool:
        """Whether this very call has no side effects: it may be thrown away and run again."""
        return self.facts.read_only

    def is_concurrency_safe(self, input: Input) -> bool:
        """Whether this very call may run beside others. Raising counts as no."""
        return self.is_read_only(input)

    async def validate_input(self, input: Input, context: ToolContext) -> str | None:
        """What is wrong with an input that fits the schema, in words for the model; None if nothing."""
        return None

    async def check_permissions(self, input: Input, context: ToolContext) -> Decision:
        """The tool's own opinion, between the ask rules and the mode."""
        return Passthrough()

    async def call(self, input: Input, context: ToolContext) -> ToolResult:
        """Run. Raises `ToolError` for what the model can mend. On cancellation everything begun is ended first."""
        raise NotImplementedError

    def activity(self, input: Input) -> str:
        """What the call does, in a few words for a person: `Grep "import " src`."""
        detail = input.get(self.facts.main_field) if self.facts.main_field else None
        return f"{self.name} {detail}" if detail else self.name


class FactsAlone(Tool):
    """A tool that is not here, of which only its facts are known: to be judged by, not to be called."""

    def __init__(self, name: str) -> None:
        self.facts = tool_facts.of(name)


class ToolOutcome(Struct, frozen=True):
    """How one `tool_use` ended: the block for the model, and what observers and the loop want to know.
    `context` is text that hooks want beside the result; `stop` ends the turn (`hook_stopped`) after the results."""

    tool_use_id: str
    name: str
    block: Block
    is_error: bool
    duration: float
    read_only: bool
    context: tuple[str, ...] = ()
    stop: str | None = None
    synthetic: bool = False  # it did not run: interrupted, discarded, cut


class Interrupted(Exception):
    """Raised by `AbortSignal.guard` in place of the cancellation it caused."""


class AbortSignal:
    """A wish to stop, with its reason. Set once; the first reason stays. Belongs to one event loop."""

    def __init__(self) -> None:
        self.reason: Cause | None = None
        self._waiting: set[asyncio.Task[Any]] = set()

    def set(self, reason: Cause) -> None:
        if self.reason is None:
            self.reason = reason
            for task in self._waiting:
                task.cancel()

    @property
    def is_set(self) -> bool:
        return self.reason is not None

    def guard(self) -> Guard:
        """What is awaited inside is cancelled when the signal is set, and `Interrupted` raised in its place. A
        cancellation that comes from elsewhere passes as it is."""
        return Guard(self)


class Guard:
    """One wait under an `AbortSignal`. A class, for it stands around every event of a stream."""

    __slots__ = ("_signal", "_task")

    def __init__(self, signal: AbortSignal) -> None:
        self._signal = signal

    async def __aenter__(self) -> None:
        if self._signal.is_set:
            raise Interrupted(self._signal.reason)
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._signal._waiting.add(task)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._signal._waiting.discard(self._task)
        # `uncancel` says how many others want this task to end: only our own wish becomes `Interrupted`.
        if isinstance(error, asyncio.CancelledError) and self._signal.is_set and self._task.uncancel() == 0:
            raise Interrupted(self._signal.reason) from None


RecordIntent = Callable[[str], Awaitable[None]]
"""Called with a `tool_use_id` before a call with side effects starts; returns when the block is on disk."""
