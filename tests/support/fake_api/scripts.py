"""Scripts: which answer a request gets.

A script is a callable `script(request)` that gives a reply (or a block, a string, or an awaitable of these). A list is
consumed one answer a request; a single reply answers every request; None answers "ok". The combinators below are
scripts too, and take whatever `as_script` takes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from tests.support.fake_api.request import Request
from tests.support.fake_api.wire import as_reply

Script = Callable[[Request], Any]
Predicate = Callable[[Request], bool]


class ScriptExhausted(AssertionError):
    """More requests came than the script has answers."""


def as_script(value: Any) -> Script:
    """Any of the forms of the module docstring, as a callable."""
    if value is None:
        value = "ok"
    if isinstance(value, list):
        return _Once(value)
    if callable(value):
        return value
    reply = as_reply(value)
    return lambda request: reply


class _Once:
    """The answers of a list, one a request, whatever the conversation."""

    def __init__(self, answers: Iterable[Any]) -> None:
        self._answers = [as_script(a) for a in answers]
        self._next = 0

    def __call__(self, request: Request) -> Any:
        if self._next >= len(self._answers):
            raise ScriptExhausted(f"all {len(self._answers)} answers are used up")
        self._next += 1
        return self._answers[self._next - 1](request)


def sequence(*answers: Any, repeat_last: bool = False) -> Script:
    """The answers in order, for each conversation anew."""
    scripts = [as_script(a) for a in answers]
    places: dict[str, int] = {}

    def script(request: Request) -> Any:
        place = places.get(request.conversation, 0)
        if place >= len(scripts):
            if not repeat_last:
                raise ScriptExhausted(f"conversation {request.conversation}: all {len(scripts)} answers are used up")
            place = len(scripts) - 1
        places[request.conversation] = place + 1
        return scripts[place](request)

    return script


def after(count: int, then: Any, *, first: Any = None) -> Script:
    """`first` for the first `count` requests, `then` for all later ones."""
    early, late = as_script(first), as_script(then)
    seen = 0

    def script(request: Request) -> Any:
        nonlocal seen
        seen += 1
        return (early if seen <= count else late)(request)

    return script


def route(*rules: tuple[Predicate, Any], default: Any = None) -> Script:
    """The script of the first rule whose predicate accepts the request. Without `default` no match is a fault."""
    scripts = [(predicate, as_script(script)) for predicate, script in rules]
    fallback = None if default is None else as_script(default)

    def script(request: Request) -> Any:
        for predicate, chosen in scripts:
            if predicate(request):
                return chosen(request)
        if fallback is None:
            raise ScriptExhausted(f"no rule accepts request {request.number}: {request.last_user_text[:200]!r}")
        return fallback(request)

    return script


def system_has(part: str) -> Predicate:
    return lambda request: part in request.system_text


def user_has(part: str) -> Predicate:
    """The last user message contains `part` in one of its text blocks."""
    return lambda request: part in request.last_user_text


def user_matches(pattern: str) -> Predicate:
    compiled = re.compile(pattern)
    return lambda request: compiled.search(request.last_user_text) is not None


def opened_with(part: str) -> Predicate:
    """The first user message contains `part`: which agent is it?"""
    return lambda request: part in str(request.messages[0].get("content"))


def model_is(*names: str) -> Predicate:
    return lambda request: request.model in names


def has_tool(name: str) -> Predicate:
    return lambda request: name in request.tool_names


def turns_are(count: int) -> Predicate:
    """The conversation has `count` assistant messages."""
    return lambda request: request.turns == count
