"""ARCHITECTURE.md and CONTRIBUTING.md name nothing that is not there."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.architecture.source import ROOT, modules

PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md")
IN_CODE = re.compile(r"`([^`\n]+)`")
# `app.enter`, `tasks/registry.py: finish`, `Coordinator.unwind`, `session/`, `means_for`, `outbox.py`
PATH = re.compile(r"[\w./-]*[\w-]+(?:\.py|\.md|/)")
NAMED_IN = re.compile(r"([\w./-]+\.py): ([\w.]+)")
ATTRIBUTE = re.compile(r"([A-Za-z_]\w*)\.([A-Za-z_]\w*)")


@cache
def paths() -> frozenset[str]:
    """Every file and folder of the project, each also by every tail of its path."""
    found = {
        path.relative_to(ROOT).as_posix() + ("/" if path.is_dir() else "")
        for top in ("coordinator", "worker_agent", "tasks", "migrations", "tests", "bench", "docs")
        for path in (ROOT / top, *(ROOT / top).rglob("*"))
    } | {path.name for path in ROOT.iterdir()}
    return frozenset(tail for path in found for tail in tails(path))


def tails(path: str) -> list[str]:
    parts = path.rstrip("/").split("/")
    return ["/".join(parts[i:]) + ("/" if path.endswith("/") else "") for i in range(len(parts))]


@cache
def names() -> dict[str, frozenset[str]]:
    """What each class, and each module by its last name, defines or assigns."""
    found: dict[str, set[str]] = {}
    for module, tree in modules().items():
        found.setdefault(module.rsplit(".", 1)[-1], set()).update(defined(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, set()).update(defined(node))
    return {name: frozenset(inside) for name, inside in found.items()}


def defined(tree: ast.Module | ast.ClassDef) -> set[str]:
    found = {getattr(node, "name", "") for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            found.add(node.id if isinstance(node, ast.Name) else node.attr)
    return found


def missing(text: str) -> list[str]:
    wrong = []
    for words in IN_CODE.findall(text):
        if inside := NAMED_IN.fullmatch(words):
            path, name = inside.groups()
            owner, _, member = name.rpartition(".")
            where = owner or path.rsplit("/", 1)[-1].removesuffix(".py")
            if path not in paths() or member not in names().get(where, ()):
                wrong.append(words)
        elif PATH.fullmatch(words):
            wrong += [words] if words not in paths() and not words.startswith(("/", ".")) else []
        elif words not in modules() and words not in paths() and (found := ATTRIBUTE.fullmatch(words)) and found[1] in names():
            wrong += [words] if found[2] not in names()[found[1]] else []
    return wrong


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_is_there(page: str) -> None:
    assert missing((ROOT / page).read_text(encoding="utf-8")) == []


def test_every_file_of_a_part_stands_on_the_page() -> None:
    """A file that nobody finds there is one that the next engineer does not know of."""
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    parts = re.compile(r"coordinator\.(session|agents|runs|other_processes|cluster)\.\w+")
    wanted = {name for name in modules() if parts.fullmatch(name) and modules()[name].body} - {"coordinator.runs.backends"}
    assert sorted(name for name in wanted if f"`{name.rsplit('.', 1)[-1]}.py`" not in page) == []


@pytest.mark.parametrize(
    "words", ["coordinator/nowhere.py", "app.compose_all", "Coordinator.ended", "tasks/registry.py: finished", "elsewhere/"]
)
def test_a_name_of_nothing_would_be_seen(words: str) -> None:
    assert missing(f"see `{words}`") == [words]
