"""Tools out of typed functions: the schema comes from the annotations, the description from the docstring.

    @tool
    async def weather(city: str, days: Annotated[int, "how many days ahead"] = 1) -> str:
        "The weather in a city."

1. What a function cannot be called with is refused when the session is entered, by its name: no annotation, `*args`, no docstring.
2. pydantic makes the schema and the arguments: whatever it knows can be annotated (dataclasses, models, enums, dates).
   What a model gives that does not fit goes back to the model.
3. A plain function runs in a thread, and cannot be ended from outside; what takes long is better a coroutine function, which is cancelled.
4. What it returns is the result: text as it is, anything else as JSON. What it raises is told to the model, in one line.
5. The program that gives the tool answers for it: calls run unasked, unless `ask=True`. Deny and ask rules hold.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, NotRequired, ParamSpec, TypeVar, get_args, get_origin, get_type_hints, overload

from coordinator.interface.errors import ConfigurationError
from worker_agent.errors import ToolError
from worker_agent.tool_facts import Facts
from worker_agent.tools.base import Input, Tool, ToolContext, ToolResult

P = ParamSpec("P")
R = TypeVar("R")
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
MAX_FAULTS = 5


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call, for a function that has a parameter of this type: `task_id` is the worker's that calls (None: the agent that the
    program talks to), `progress` shows a line to whoever looks on."""

    id: str
    session_id: str
    task_id: str | None
    progress: Callable[[str], None]


@dataclass(frozen=True)
class FunctionTool(Generic[P, R]):
    """A function that is a tool; called, it is the function. `read_only`: no call has effects, so that calls may run side by side
    and be made again. `ask`: each call needs consent, unless a rule allows it."""

    function: Callable[P, R]
    name: str
    description: str
    read_only: bool = False
    ask: bool = False

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)


@overload
def tool(function: Callable[P, R], /) -> FunctionTool[P, R]: ...


@overload
def tool(
    *, name: str | None = None, description: str | None = None, read_only: bool = False, ask: bool = False
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...


def tool(
    function: Callable[..., Any] | None = None, /, *, name: str | None = None, description: str | None = None,
    read_only: bool = False, ask: bool = False,
) -> Any:  # fmt: skip
    """Make a function a tool; see `FunctionTool`. Name and description are the function's, where none are given."""

    def made(function: Callable[P, R]) -> FunctionTool[P, R]:
        words = description or inspect.getdoc(function) or ""
        return FunctionTool(function, name or str(getattr(function, "__name__", "")), words, read_only, ask)

    return made if function is None else made(function)


def compiled(given: Sequence[FunctionTool[..., Any] | Callable[..., Any]]) -> tuple[Tool, ...]:
    """The tools as a session has them. Raises `ConfigurationError`."""
    tools = tuple(_Function(one if isinstance(one, FunctionTool) else tool(one)) for one in given)
    names = [one.name for one in tools]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(f"two tools are named {twice[0]!r}; give one of them another name")
    return tools


class _Function(Tool):
    """`FunctionTool` as a tool of ours. Raises `ConfigurationError`."""

    def __init__(self, given: FunctionTool[..., Any]) -> None:
        from worker_agent.tools.registry import ToolRegistry

        name = given.name
        if not NAME.fullmatch(name):
            raise ConfigurationError(
                f"a tool cannot be named {name!r}: letters, digits, - and _, a letter first; name=… gives one"
            )
        if name in ToolRegistry.builtin() or Facts(name=name) != _known(name):
            raise ConfigurationError(f"the tool {name!r} has the name of one that is built in; name=… gives another")
        if not given.description.strip():
            raise ConfigurationError(
                f"the tool {name!r} has no docstring, and no description=…: a model must know what it is for"
            )
        self._function = given.function
        self._arguments, self._call_parameter = _arguments(given)
        self.description = given.description.strip()
        self.input_schema = self._arguments.json_schema()
        first = next((key for key, one in self.input_schema.get("properties", {}).items() if one.get("type") == "string"), None)
        self.facts = Facts(name=name, main_field=first, read_only=given.read_only, consent=given.ask)

    async def call(self, input: Input, context: ToolContext) -> ToolResult:
        import pydantic

        try:
            arguments = self._arguments.validate_python(dict(input))
        except pydantic.ValidationError as error:
            faults = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:MAX_FAULTS]]
            raise ToolError(f"The input of {self.name} does not fit: {'; '.join(faults)}") from None
        if self._call_parameter is not None:
            call = ToolCall(context.tool_use_id, context.session_id, context.task_id, context.progress)
            arguments = {**arguments, self._call_parameter: call}
        if inspect.iscoroutinefunction(self._function):
            value = await self._function(**arguments)
        else:
            value = await asyncio.to_thread(self._function, **arguments)
        return ToolResult(_as_text(value))


def _known(name: str) -> Facts:
    from worker_agent import tool_facts

    return tool_facts.of(name)


def _arguments(given: FunctionTool[..., Any]) -> tuple[Any, str | None]:
    """A `TypeAdapter` of what the function takes by name, and its parameter of the type `ToolCall`. A parameter with a default
    may be left out; then the function's own default holds."""
    import pydantic
    from typing_extensions import TypedDict

    try:
        hints = get_type_hints(given.function, include_extras=True)
        parameters = inspect.signature(given.function).parameters.values()
    except (NameError, TypeError, ValueError) as error:
        raise ConfigurationError(f"the tool {given.name!r} cannot be read: {error}") from None
    fields: dict[str, Any] = {}
    call_parameter = None
    for one in parameters:
        if one.kind not in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
            raise ConfigurationError(f"the tool {given.name!r} takes {one}: a model gives arguments by name")
        if one.name not in hints:
            raise ConfigurationError(f"the tool {given.name!r} says no type of {one.name!r}; annotate it")
        if hints[one.name] is ToolCall:
            call_parameter = one.name
        else:
            fields[one.name] = _field(hints[one.name], one.default)
    taken: Any = TypedDict(given.name, fields)  # type: ignore[misc]  # mypy knows only those whose fields are written out
    try:
        adapter = pydantic.TypeAdapter(pydantic.with_config(pydantic.ConfigDict(extra="forbid"))(taken))
        adapter.json_schema()
    except pydantic.errors.PydanticUserError as error:
        raise ConfigurationError(f"the tool {given.name!r}: {str(error).splitlines()[0]}") from None
    return adapter, call_parameter


def _field(hint: Any, default: Any) -> Any:
    """The type of one argument: words in `Annotated` become its description, a plain default is told."""
    from pydantic import Field

    if get_origin(hint) is Annotated:
        kind, *more = get_args(hint)
        words = " ".join(one for one in more if isinstance(one, str))
        hint = Annotated[
            kind, *(one for one in more if not isinstance(one, str)), *([Field(description=words)] if words else ())
        ]
    if default is inspect.Parameter.empty:
        return hint
    if isinstance(default, (str, int, float, bool)):
        hint = Annotated[hint, Field(json_schema_extra={"default": default})]
    return NotRequired[hint]


def _as_text(value: Any) -> str:
    if isinstance(value, str) or value is None:
        return value or ""
    from pydantic_core import to_json

    return to_json(value, fallback=str).decode()
