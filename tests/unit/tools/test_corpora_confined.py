"""The corpora again, run for real under the operating system: a hole in the reading harms nothing, a deny rule holds whatever
the command, and no confined command reaches what grants rights."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.tools.test_corpora import SECRET, build, lines, runs_unasked
from worker_agent.tools.base import Confine
from worker_agent.tools.confinement import Confinements, Fence
from worker_agent.tools.confinement.choose import found
from worker_agent.tools.rules import Behavior, Places, Rule, Source

# A part of the lines, and all of them; all in one confined shell, each in a shell of its own.
EVERY = pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
EACH = 'while IFS= read -r -d \'\' line; do timeout -k 1 5 bash -c "$line" </dev/null; cd "$HERE"; done 2>&1'


@pytest.fixture
def project() -> Iterator[Path]:
    """Beside `/tmp`, of which a confined command has one of its own."""
    base = Path(tempfile.mkdtemp(dir="/var/tmp"))
    yield build(base)
    shutil.rmtree(base, ignore_errors=True)


def run_all(project: Path, corpus: list[str], level: Confine, *deny: str) -> bytes:
    """Run the lines at this level and give all their output."""
    means, why_not = found()
    if means is None:
        pytest.skip(why_not)
    rules = tuple(Rule.parse(text, Source("test", base=project), Behavior.DENY) for text in deny)
    home = project.parent
    confinement = Confinements(means=means, home=home, aside=home / "aside").of(
        project, (Fence(rules, Places(project, home, (project,))),)
    )
    if not confinement.holds(level):
        pytest.skip(str(confinement.problem(level)))
    wrapped = confinement.wrap(("bash", "-c", EACH), project, level)
    try:
        environment = {"PATH": os.environ["PATH"], "HOME": str(home), "GIT_PAGER": "cat", "HERE": str(project)}
        return subprocess.run(
            wrapped.argv, cwd=project, env={**environment, **wrapped.environment}, pass_fds=wrapped.pass_fds,
            input="".join(line + "\0" for line in corpus).encode(), stdout=subprocess.PIPE, check=False,
        ).stdout  # fmt: skip
    finally:
        if wrapped.finish:
            wrapped.finish()
        wrapped.close()


def state(*places: Path) -> dict[str, bytes | str]:
    """Every file there is, with its content; where a link leads; the directories."""
    found: dict[str, bytes | str] = {}
    for place in places:
        for directory, _, names in os.walk(place):
            found[directory] = "directory"
            for name in (Path(directory, name) for name in names):
                found[str(name)] = os.readlink(name) if name.is_symlink() else name.read_bytes() if name.is_file() else "other"
    return found


@EVERY
def test_a_harmful_line_held_read_only_changes_nothing(project: Path, step: int) -> None:
    before = state(project.parent)
    run_all(project, lines("harmful.txt")[::step], Confine.READ_ONLY)
    assert state(project.parent) == before


@EVERY
def test_a_deny_rule_holds_whatever_the_command(project: Path, step: int) -> None:
    base = project.parent
    deny = (f"Read(/{base}/secret)", f"Read(/{base}/outside/**)", f"Read(/{base}/data.json)")
    shown = run_all(project, lines("harmful.txt")[::step], Confine.GUARD, *deny)
    assert SECRET.encode() not in shown and b"hello" in shown


def rights(project: Path) -> dict[str, bytes | str]:
    home = project.parent
    found = state(project / ".git/hooks", project / ".claude", project / ".coordinator", home / "outside", home / ".ssh")
    files = (project / ".git/config", project / ".mcp.json", project / "vendor/x/config", home / "secret", home / ".bashrc",
             home / ".profile", home / ".gitconfig", home / "PWNED")  # fmt: skip
    return found | {str(path): path.read_bytes() if path.exists() else "nothing" for path in files}


def test_what_grants_rights_is_out_of_reach_of_a_confined_command(project: Path) -> None:
    before = rights(project)
    run_all(project, lines("rights.txt"), Confine.WORKSPACE)
    assert rights(project) == before


def test_what_grants_rights_asks_in_accept_edits(project: Path) -> None:
    assert [line for line in lines("rights.txt") if runs_unasked(project, line, mode="acceptEdits")] == []
