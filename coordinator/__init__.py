"""Runs worker agents as tracked tasks; `docs/python.md` says how a program uses it, and what of this is stable.

    from coordinator import Coordinator, tool

Names are imported when they are first asked for: `import coordinator` alone costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coordinator.interface.client import Coordinator as Coordinator
    from coordinator.interface.client import ask as ask
    from coordinator.interface.client import run as run
    from coordinator.interface.client import stream as stream
    from coordinator.interface.consent import Allow as Allow
    from coordinator.interface.consent import Deny as Deny
    from coordinator.interface.consent import PermissionRequest as PermissionRequest
    from coordinator.interface.errors import Closed as Closed
    from coordinator.interface.errors import ConfigurationError as ConfigurationError
    from coordinator.interface.errors import CoordinatorError as CoordinatorError
    from coordinator.interface.errors import InUse as InUse
    from coordinator.interface.errors import NotAuthenticated as NotAuthenticated
    from coordinator.interface.errors import NotFound as NotFound
    from coordinator.interface.errors import StoreError as StoreError
    from coordinator.interface.events import Answer as Answer
    from coordinator.interface.events import Event as Event
    from coordinator.interface.events import Notice as Notice
    from coordinator.interface.events import TaskChanged as TaskChanged
    from coordinator.interface.events import TextDelta as TextDelta
    from coordinator.interface.events import ThinkingDelta as ThinkingDelta
    from coordinator.interface.events import ToolFinished as ToolFinished
    from coordinator.interface.events import ToolStarted as ToolStarted
    from coordinator.interface.functions import FunctionTool as FunctionTool
    from coordinator.interface.functions import ToolCall as ToolCall
    from coordinator.interface.functions import tool as tool
    from coordinator.interface.results import Denial as Denial
    from coordinator.interface.results import Result as Result
    from coordinator.interface.results import RunFailed as RunFailed
    from coordinator.interface.results import Task as Task
    from coordinator.interface.results import Usage as Usage

_HOMES = {
    "client": ("Coordinator", "ask", "run", "stream"),
    "consent": ("Allow", "Deny", "PermissionRequest"),
    "errors": (
        "Closed", "ConfigurationError", "CoordinatorError", "InUse", "NotAuthenticated", "NotFound", "StoreError",
    ),
    "events": (
        "Answer", "Event", "Notice", "TaskChanged", "TextDelta", "ThinkingDelta", "ToolFinished", "ToolStarted",
    ),
    "functions": ("FunctionTool", "ToolCall", "tool"),
    "results": ("Denial", "Result", "RunFailed", "Task", "Usage"),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if (home := _HOME_OF.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.interface.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
