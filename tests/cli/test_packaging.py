"""A wheel built from the tree works elsewhere, migrations and prompts included; set-up is one command that does not repeat."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.architecture.source import PACKAGES, ROOT
from tests.cli.program import Program

BUILD = "import sys\nfrom setuptools import build_meta\nprint(build_meta.build_wheel(sys.argv[1]))"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built without a network from a copy of the tree."""
    tree, target = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    for name in (*PACKAGES, "pyproject.toml", "README.md"):
        source = ROOT / name
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, tree / name, ignore=ignore) if source.is_dir() else shutil.copy(source, tree)
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BUILD, str(target)], cwd=tree, check=True, capture_output=True, timeout=120
    )
    (built,) = target.glob("*.whl")
    return built


@pytest.mark.slow
def test_the_wheel_holds_every_module_and_data_file_and_nothing_of_the_tests(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    kept = {".py", ".md", ".mako", ".html", ".js", ".css"}
    wanted = {
        str(path.relative_to(ROOT)) for package in PACKAGES for path in (ROOT / package).rglob("*") if path.suffix in kept
    }
    assert wanted - names == set()
    assert {name.split("/")[0] for name in names} - {*PACKAGES} == {next(n.split("/")[0] for n in names if "dist-info" in n)}


@pytest.mark.slow
def test_the_installed_wheel_makes_its_database_and_surveys(wheel: Path, program: Program, tmp_path: Path) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    (program.cwd / "a.py").write_text("def area():\n    return 1\n")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            program.command(*arguments), capture_output=True, text=True, cwd=program.cwd, timeout=60,
            env=program.environment(PYTHONPATH=str(site)),
        )  # fmt: skip

    where = subprocess.run(
        [sys.executable, "-c", "import coordinator; print(coordinator.__file__)"], capture_output=True, text=True, cwd=program.cwd,
        env=program.environment(PYTHONPATH=str(site)), timeout=60,
    )  # fmt: skip
    assert where.stdout.startswith(str(site))
    done = run("run", "--offline", "where is area")
    assert done.returncode == 0, done.stderr
    assert "a.py:1" in done.stdout
    assert run("db", "upgrade").returncode == 0


@pytest.mark.slow
def test_make_sets_up_only_when_what_it_depends_on_changed(tmp_path: Path) -> None:
    """A stand-in for the set-up script counts how often it runs."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/bootstrap.py").write_text(
        "import pathlib, sys\npathlib.Path(sys.argv[2]).parent.mkdir(exist_ok=True)\npathlib.Path(sys.argv[2]).touch()\nprint('set up')\n"
    )

    def make() -> int:
        return subprocess.run(["make", "setup"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout.count(
            "set up"
        )

    assert [make(), make()] == [1, 0]
    stamp = (tmp_path / ".venv/.set-up").stat().st_mtime_ns
    os.utime(tmp_path / "constraints.txt", ns=(stamp + 10**9, stamp + 10**9))
    assert make() == 1


@pytest.mark.slow
def test_make_run_passes_any_goal_literally(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/bootstrap.py").touch()
    binary = tmp_path / ".venv/bin/coordinator"
    binary.parent.mkdir(parents=True)
    binary.write_text('#!/bin/sh\nfor argument; do printf "%s\\n" "$argument"; done\n')
    binary.chmod(0o755)
    (tmp_path / ".venv/.set-up").touch()
    goal = 'it\'s "quoted" $HOME `id` $(id) -- -x'
    done = subprocess.run(["make", "run", f"GOAL={goal}", "DIR=a b"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["run", "--offline", "--cwd", "a b", "--", goal]
