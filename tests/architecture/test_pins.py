"""`constraints.txt` pins everything that a set-up installs, and nothing that contradicts `pyproject.toml`."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib import metadata

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.architecture.source import ROOT

DEBIAN_PYTHON = "3.11.2"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def pins() -> dict[str, str]:
    lines = (line.split("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines())
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines if line)}


def declared() -> list[Requirement]:
    extras = PROJECT["project"].get("optional-dependencies", {}).values()
    groups = PROJECT["dependency-groups"].values()
    listed = [*PROJECT["build-system"]["requires"], *PROJECT["project"]["dependencies"]]
    return [Requirement(text) for text in [*listed, *(text for group in [*extras, *groups] for text in group)]]


def needed() -> set[str]:
    """Everything reachable from what `pyproject.toml` names, as far as it is installed here."""
    todo, seen = [(r.name, frozenset(r.extras)) for r in declared()], set()
    while todo:
        name, extras = todo.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            requires = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # an extra that is not installed here
        for requirement in map(Requirement, requires):
            if any(requirement.marker is None or requirement.marker.evaluate({"extra": extra}) for extra in extras or {""}):
                todo.append((requirement.name, frozenset(requirement.extras)))
    return {canonicalize_name(name) for name, _ in seen}


def test_every_package_a_set_up_installs_is_pinned_once_and_exactly() -> None:
    assert needed() - pins().keys() == set()


def test_no_pin_is_left_over_from_a_dependency_that_went() -> None:
    binary_part = {"psycopg-binary", "pip"}
    assert pins().keys() - needed() - binary_part == set()


def test_every_pin_satisfies_what_the_project_declares() -> None:
    wrong = [str(r) for r in declared() if pins()[canonicalize_name(r.name)] not in r.specifier]
    assert wrong == []


def test_every_pinned_package_runs_on_the_python_that_debian_has() -> None:
    wrong = []
    for name, version in pins().items():
        try:
            found = metadata.metadata(name)
        except metadata.PackageNotFoundError:
            continue
        if found["Version"] == version and DEBIAN_PYTHON not in SpecifierSet(found["Requires-Python"] or ""):
            wrong.append(f"{name}=={version} wants Python {found['Requires-Python']}")
    assert wrong == []


def test_the_running_environment_has_what_is_pinned() -> None:
    wrong = {}
    for name, version in pins().items():
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if installed != version:
            wrong[name] = (installed, version)
    # Build tools are brought by whoever made the environment; they do not change what runs.
    assert {name: both for name, both in wrong.items() if name not in ("setuptools", "pip")} == {}, sys.prefix


def test_the_constraints_are_plain_pins() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)] == []
    assert lines == sorted(lines, key=str.lower)
