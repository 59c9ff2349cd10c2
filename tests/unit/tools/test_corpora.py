"""Two corpora of command lines, judged and run for real: what harms never runs unasked, what does not mostly does."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from worker_agent.tools.permissions import Policy
from worker_agent.tools.rules import RuleSet

CORPUS = Path(__file__).parents[2] / "corpus"
SECRET = "TOPSECRET-canary"


def lines(name: str) -> list[str]:
    return [line for line in (CORPUS / name).read_text("utf-8").splitlines() if line and not line.startswith("#")]


@pytest.fixture
def box(tmp_path: Path) -> Path:
    return build(tmp_path)


def build(tmp_path: Path) -> Path:
    """A repository, a secret beside it, links to it, a repository of an attacker inside, settings, a shell's start file."""
    project = tmp_path / "project"
    for name in ("src", "docs", "vendor/x/objects", "vendor/x/refs"):
        (project / name).mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    for path in (tmp_path / "secret", tmp_path / "outside/secret"):
        path.write_text(SECRET + "\n")
    (tmp_path / "data.json").write_text(f'["{SECRET}"]')
    for name in ("a", "b", "README.md", "src/a.py", "docs/a", "src/PWNED"):
        (project / name).write_text("hello world\n")
    (project / "data.json").write_text('{"name": "x", "items": [{"id": 1, "name": "y"}], "scripts": {}}')
    (project / "evil.sh").write_text("touch PWNED\n")
    (project / "evil.sh").chmod(0o755)
    evil = project / "vendor/x"
    (evil / "HEAD").write_text("ref: refs/heads/main\n")
    (evil / "config").write_text(f"[core]\n\tbare = false\n\tworktree = ..\n\tfsmonitor = touch {project}/PWNED; false\n")
    for command in (
        ["init", "-q"],
        ["add", "a", "b", "src/a.py"],
        ["-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "m"],
    ):
        subprocess.run(["git", "-C", str(project), *command], check=True)
    for name in (".claude/settings.json", ".coordinator/settings.toml"):
        (project / name).parent.mkdir()
        (project / name).touch()
    (tmp_path / ".bashrc").touch()
    (project / "ln").symlink_to(tmp_path / "outside")
    (project / "link").symlink_to(tmp_path / "secret")
    return project


def runs_unasked(box: Path, command: str, *allow: str, mode: str = "default") -> bool:
    policy = Policy(mode=mode, rules=RuleSet.from_flags(allow, ()), cwd=box, roots=(box,), home=box.parent)
    return policy.explain("Bash", {"command": command}).behavior == "allow"


def under_rules(name: str) -> list[tuple[str, str]]:
    """Pairs of a rule and a line."""
    found = [tuple(line.split(" :: ", 1)) for line in lines(name)]
    return [(rule, line) for rule, line in found]


def harm(box: Path, command: str) -> bool:
    """Whether the line, really run, makes a file appear or shows the secret."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(box.parent), "GIT_PAGER": "cat"}
    ran = subprocess.run(["bash", "-c", command], cwd=box, env=environment, stdin=subprocess.DEVNULL, capture_output=True)
    appeared = [path for path in (box / "PWNED", box / "vendor/x/PWNED") if os.path.lexists(path)]
    for path in appeared:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    return bool(appeared) or SECRET.encode() in ran.stdout + ran.stderr


@pytest.mark.parametrize("mode", ["default", "plan", "dontAsk"])
def test_no_line_that_harms_runs_unasked(box: Path, mode: str) -> None:
    harmful = lines("harmful.txt")
    assert len(harmful) >= 350
    assert [line for line in harmful if runs_unasked(box, line, mode=mode)] == []


def test_the_harmful_lines_really_harm(box: Path) -> None:
    harmful = lines("harmful.txt")
    tame = [line for line in harmful if not harm(box, line)]
    assert len(tame) <= len(harmful) // 10, tame


def test_most_harmless_lines_run_unasked_and_none_of_them_harms(box: Path) -> None:
    harmless = lines("harmless.txt")
    asked = [line for line in harmless if not runs_unasked(box, line)]
    assert len(asked) <= len(harmless) * 0.05, asked
    assert [line for line in harmless if line not in asked and harm(box, line)] == []


def test_a_wildcard_rule_on_a_reader_covers_its_reading_only(box: Path) -> None:
    harmful = under_rules("rules_harmful.txt")
    assert [pair for pair in harmful if runs_unasked(box, pair[1], pair[0])] == []
    tame = [pair for pair in harmful if not harm(box, pair[1])]
    assert len(tame) <= len(harmful) // 10, tame


def test_a_wildcard_rule_covers_what_it_says_and_spells(box: Path) -> None:
    assert [pair for pair in under_rules("rules_harmless.txt") if not runs_unasked(box, pair[1], pair[0])] == []


# What deny rules fence in `bypassPermissions`, without any confinement: a line that names what is denied, in a way that can be
# read. `{rules}` and lines that a tester got through; each is run first, and does what it says.
FENCED = ("Bash(rm:*)", "Read(secrets/**)", "Edit(kept/**)")
GETS_THROUGH = (
    "script -qc 'rm victim' /dev/null", "./innocent victim", "echo $(<secrets/k)", "source secrets/k", ". secrets/k",
    "xargs -a secrets/k echo", "git grep --no-index TOPSECRET", "git grep TOPSECRET", "curl -s file://$PWD/secrets/k",
    "python3 secrets/k", "sort -o kept/new a", "sort -okept/new a", "split a kept/new", "unlink kept/f", "chmod 000 kept/f",
    "git checkout HEAD -- kept", "git restore kept/f", "tee kept/new < a", "cp a kept/new", "dd if=a of=kept/new",
)  # fmt: skip
STILL_RUNS = (
    "python3 -m compileall -q src", "echo secrets/k", "git log -1", "git commit -qm 'about secrets/k'", "cat a", "grep -r hello src",
    "sort a", "chmod 644 a", "git checkout -q HEAD -- a", "cat kept/f", "python3 kept/f", "git grep hello -- src",
)  # fmt: skip


@pytest.fixture
def fenced(box: Path) -> Path:
    for name, text in (("secrets/k", f"echo {SECRET}\n"), ("kept/f", "hello = 1\n"), ("victim", "")):
        (box / name).parent.mkdir(exist_ok=True)
        (box / name).write_text(text)
    (box / "innocent").symlink_to("/bin/rm")
    subprocess.run(["git", "-C", str(box), "add", "secrets", "kept"], check=True)
    subprocess.run(["git", "-C", str(box), "-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "k"], check=True)
    return box


@pytest.mark.parametrize("line", [*GETS_THROUGH, *STILL_RUNS])
def test_a_deny_rule_sees_what_a_line_names(fenced: Path, line: str) -> None:
    policy = Policy(
        mode="bypassPermissions", rules=RuleSet.from_flags((), FENCED), cwd=fenced, roots=(fenced,), home=fenced.parent
    )
    verdict = policy.explain("Bash", {"command": line}).behavior
    assert (verdict == "allow") == (line in STILL_RUNS)


@pytest.mark.parametrize(
    "line",
    [
        "rm -r .git",
        "rm -rf ./.git",
        "mv .git elsewhere",
        "sh -c 'rm -r .git'",
        "truncate -s0 .git/HEAD",
        "cd .git && rm -r objects",
    ],
)
def test_a_repository_is_not_taken_away_unasked_even_where_commands_are_confined(box: Path, line: str) -> None:
    policy = Policy(mode="acceptEdits", rules=RuleSet.from_flags((), ()), cwd=box, roots=(box,), home=box.parent)
    assert policy.explain("Bash", {"command": line}, held=True).behavior == "ask"
    assert policy.explain("Bash", {"command": "make all && git commit -qam x"}, held=True).behavior == "allow"
