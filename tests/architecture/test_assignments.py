"""An object is complete after its making, and only its own class changes it: whoever wants a change asks for it by name.

So nothing is wired together behind a constructor, and who changes a field is found by reading one class.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

import pytest

from tests.architecture.source import modules

# What other people's objects demand, by (module, target): they have no other way to be told.
DEMANDED = {
    ("coordinator.cli.background", "process.returncode"): "how a process that outlives us is told that nobody waits for it",
    ("coordinator.cli.log", "logging.raiseExceptions"): "the standard library's switch for errors inside of logging",
    ("coordinator.cli.log", "threading.excepthook"): "the interpreter's place for what a thread raised",
    ("coordinator.cli.log", "sys.unraisablehook"): "the interpreter's place for what nobody can catch",
    ("coordinator.cli.log", "sys.excepthook"): "the interpreter's place for what nobody caught",
    ("coordinator.cli.early", "sys.(name)"): "streams that the caller closed are replaced before anything writes to them",
    ("tasks.writer", "explained.__cause__"): "an error that is handed over and not raised has its cause from nobody else",
    ("worker_agent.tools.hook_scripts", "lexer.whitespace_split"): "shlex has no argument for it",
    ("worker_agent.api.direct", "self._connector._keepalive_timeout"): "aiohttp has no public way to say it later",
    ("worker_agent.api.direct", "context.trace_request_ctx.reused"): "how a hook of aiohttp answers who began the request",
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def outside(tree: ast.AST) -> list[str]:
    """The targets of assignments to an attribute of what is neither `self` nor made by this class in this very method."""
    return [ast.unparse(target) for scope, target in _targets(tree) if not _is_own(target, scope)]


def _targets(tree: ast.AST, scope: Function | None = None) -> Iterator[tuple[Function | None, ast.Attribute]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            # A function inside of a method speaks of the method's `self`.
            yield from _targets(node, scope if scope is not None and _first(scope) == "self" and not node.args.args else node)
            continue
        if isinstance(node, (ast.Attribute,)) and isinstance(node.ctx, (ast.Store, ast.Del)):
            yield scope, node
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "setattr":
            yield scope, ast.Attribute(node.args[0], f"({ast.unparse(node.args[1])})", ast.Store())
        yield from _targets(node, scope)


def _first(function: Function) -> str:
    return function.args.args[0].arg if function.args.args else ""


def _is_own(target: ast.Attribute, scope: Function | None) -> bool:
    owner = ast.unparse(target.value)
    return owner in ("self", "cls") or (scope is not None and _first(scope) == "cls" and owner in _made_by(scope))


def _made_by(function: Function) -> set[str]:
    """The names of what a class method, or `__new__`, makes of its class."""
    return {
        ast.unparse(node.targets[0])
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if any(isinstance(part, ast.Name) and part.id == "cls" for part in ast.walk(node.value))
    }


@cache
def from_outside() -> frozenset[tuple[str, str]]:
    """(module, target) of everything that is changed from outside of its class."""
    names = [name for name in modules() if not name.startswith("migrations")]
    return frozenset((name, target) for name in names for target in outside(modules()[name]))


def test_an_object_is_changed_by_its_own_class_only() -> None:
    assert from_outside() - DEMANDED.keys() == set()


def test_every_exception_is_still_needed() -> None:
    assert DEMANDED.keys() - from_outside() == set()


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("class A:\n def f(self): self.x = self.y[0] = 1", []),
        ("class A:\n def f(self): self.x.y = 1", ["self.x.y"]),
        ("class A:\n @classmethod\n def f(cls):\n  a = cls()\n  a.x = 1\n  b.x = 1", ["b.x"]),
        ("def f(a): a.x += 1", ["a.x"]),
        ("def f(a): a.x, y = 1, 2", ["a.x"]),
        ("def f(a):\n for a.x in (): pass", ["a.x"]),
        ("def f(a):\n with a as a.x: pass", ["a.x"]),
        ("def f(a): del a.x", ["a.x"]),
        ("def f(a): setattr(a, 'x', 1)", ["a.('x')"]),
        ("class A:\n def f(self):\n  def g():\n   self.x = 1", []),
        ("a.x: int = 1", ["a.x"]),
    ],
)
def test_such_an_assignment_would_be_seen(source: str, found: list[str]) -> None:
    assert outside(ast.parse(source)) == found
