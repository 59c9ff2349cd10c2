"""The project's own source as syntax trees, for tests about who may import and read what."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("coordinator", "worker_agent", "tasks", "migrations")


@cache
def modules() -> dict[str, ast.Module]:
    """Dotted name → syntax tree of every module of the four packages. To be asked for inside of tests: every process that
    collects them would parse all of the source else."""
    trees = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            trees[name] = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return trees


@cache
def nodes(name: str) -> tuple[ast.AST, ...]:
    """What `ast.walk` finds in a module, walked once for all tests."""
    return tuple(ast.walk(modules()[name]))


def imports(name: str, *, at_start_only: bool = False) -> Iterator[str]:
    """Every module that `name` imports, typing-only imports and those inside functions included; with `at_start_only`
    only what runs when the module itself is imported."""
    for node in _statements(modules()[name].body) if at_start_only else nodes(name):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(name, node)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names if f"{base}.{alias.name}" in modules())


def _absolute(name: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = name.split(".")[: len(name.split(".")) - node.level + (name in _packages())]
    return ".".join([*package, *([node.module] if node.module else [])])


@cache
def _packages() -> frozenset[str]:
    return frozenset(name for name in modules() if any(other.startswith(name + ".") for other in modules()))


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run at import: not those in functions, not those under `if TYPE_CHECKING`."""
    for node in body:
        yield node
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            yield from _statements(node.orelse)
        elif isinstance(node, (ast.If, ast.Try, ast.With, ast.ClassDef)):
            for part in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(node, part, []))
            for handler in getattr(node, "handlers", []):
                yield from _statements(handler.body)
