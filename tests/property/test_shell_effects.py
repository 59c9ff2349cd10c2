"""Lines built from the shell's grammar and our own tables, judged, and what runs unasked really run: no file appears or
changes, no secret is shown. One shell runs all the lines of an example."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.tools.test_corpora import SECRET, build
from tests.unit.tools.test_corpora_confined import state
from worker_agent.tools.permissions import Policy
from worker_agent.tools.rules import RuleSet
from worker_agent.tools.shell_git_harmless import VERBS
from worker_agent.tools.shell_harmless import COMMANDS, Spec

SPECIAL = ("echo", "printf", "test", "[", "sed", "awk", "find", "type", "cd")
LINES = 40  # of one example
EACH = "while IFS= read -r -d '' line; do timeout -k 1 5 bash -c \"$line\" </dev/null; done 2>&1"

# ── words ────────────────────────────────────────────────────────────────────────────────────────────────────────────

tame = st.sampled_from(
    ["a", "b", "src", "docs", ".", "src/a.py", "*.md", "s*", "'a'", '"b"', "{a,b}", "hello", "5", "HEAD", "1,2p", "-- a", "./a"]
)
wild = st.sampled_from(
    ["link", "ln", "ln/secret", "../secret", "~/secret", "l*", "ln*/s*", "{a,../secret}", "src/../../secret", "denied/k", "d*/k", "*",
     "*/*", "HEAD:denied/k", "PWNED", "-", "--", "$x", '"$x"', "$HOME/secret", "$(touch PWNED)", '"$(cat ../secret)"', "`cat ../secret`",
     "<(cat ../secret)", "$((1))", "$'PWNED'", "\\a", "a\\ b", "'w PWNED'", "'s/h/x/w PWNED'", "'1e touch PWNED'", "'r ../secret'",
     "'{print > \"PWNED\"}'", "'BEGIN{system(\"touch PWNED\")}'", "-o", "-oPWNED", "--output=PWNED", "--outp=PWNED", "-O", "-i", "-n",
     "-exec", "touch", ";", "\\;", "+", "-fprint", "-fls", "-delete", "-v", "'a[$(touch PWNED)]'", "%n", "-f", "--file=../secret",
     "-f../secret", "-L", "-R", "-r", "--no-index", "--pre=./evil.sh", "--ext-diff", "--textconv", "--files0-from=link", "../", "..",
     "-C", "-T", "-I", "=", "!", "]", "vendor/x", "-name", "-newer", "~", "~+/../secret", "\u00a0", "\r", "é", "[a-b]", "a#b", "#"]
)  # fmt: skip
operand = st.one_of(tame, tame, tame, wild)


def options_of(spec: Spec) -> st.SearchStrategy[str]:
    """What the table knows, in bundles and cut short too."""
    values = st.sampled_from(["1", "a", "PWNED", "../secret", "x*", "'h e'"])
    found = [st.just("-n")]
    if spec.flags:
        found.append(st.text(st.sampled_from(sorted(spec.flags)), min_size=1, max_size=3).map("-{}".format))
    if spec.valued:
        found.append(st.builds("-{}{}{}".format, st.sampled_from(sorted(spec.valued)), st.sampled_from(["", " "]), values))
    if spec.long:
        found.append(st.sampled_from(sorted(spec.long)))
        found.append(
            st.builds(lambda name, cut: name[: max(4, len(name) - cut)], st.sampled_from(sorted(spec.long)), st.integers(0, 4))
        )
    if spec.long_valued:
        found.append(st.builds("{}{}{}".format, st.sampled_from(sorted(spec.long_valued)), st.sampled_from(["=", " "]), values))
    return st.one_of(found)


def of_command(name: str) -> st.SearchStrategy[str]:
    words = st.lists(st.one_of(options_of(COMMANDS[name]), operand, operand), max_size=4)
    return words.map(lambda found: " ".join([name, *found]))


def of_git(name: str) -> st.SearchStrategy[str]:
    known = sorted(VERBS[name].options) or ["--all"]
    words = st.lists(st.one_of(st.sampled_from(known), st.sampled_from(known), operand), max_size=4)
    return st.builds("git{} {}".format, st.sampled_from(["", "", " --no-pager", " -C src", " -C vendor/x", " -c a.b=c"]),
                     words.map(lambda found: " ".join([name, *found])))  # fmt: skip


scripts = st.sampled_from(
    ["-n 1p", "-n '/h/p'", "'s/h/x/'", "'{print $1}'", "-name a", ". -name 'a*'", "%s", "-f a", "a = b", "a = b ]"]
)
special = st.builds(
    "{} {} {}".format, st.sampled_from(SPECIAL), st.one_of(scripts, operand), st.lists(operand, max_size=3).map(" ".join)
)
commands = [*map(of_command, COMMANDS), *map(of_git, VERBS), special, special, special, st.just("touch PWNED")]
simple = st.sampled_from(commands).flatmap(lambda command: command)

redirect = st.sampled_from(
    ["", "", "", "", " 2>&1", " > /dev/null", " < a", " > PWNED", " >> PWNED", " &> PWNED", " >| PWNED", " < ../secret", " < link",
     " <<< a", " 2>PWNED", " <> PWNED", " >&PWNED"]
)  # fmt: skip
guise = st.sampled_from(
    ["{}", "{}", "{}", "{}", "{}", "{}", "( {} )", "{{ {}; }}", "for i in a; do {}; done", "if {}; then :; fi", "! {}", "X=1 {}",
     "cd src && {}", "cd ln && {}", "cd vendor/x; {}", "cd .. && {}", "timeout 5 {}", "command {}", "echo $({})", "eval '{}'", "{} &",
     "cat <<E\n$({})\nE", "time {}", "{} # x", "f() {{ {}; }}; f", "echo a | xargs {}", "x=--output=PWNED; {}", "GIT_PAGER=x {}"]
)  # fmt: skip
part = st.builds(lambda line, where, around: around.format(line + where), simple, redirect, guise)
line = st.lists(part, min_size=1, max_size=3).flatmap(
    lambda parts: st.sampled_from([" | ", " && ", "; ", " || ", "\n"]).map(lambda between: between.join(parts))
)
examples = st.lists(line, min_size=LINES, max_size=LINES)

# ── judged and run ───────────────────────────────────────────────────────────────────────────────────────────────────

SMALL = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), database=None)
LARGE = settings(SMALL, max_examples=300)
READERS = tuple(f"Bash({name} *)" for name in (*COMMANDS, *SPECIAL, *(f"git {verb}" for verb in VERBS)))


CHANGED = "\0changed"  # no line prints it


class Box:
    """The box of the corpora with one more secret inside, made anew when a line changed it."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self._make()

    def _make(self) -> None:
        self.project = build(self.base)
        (self.project / "denied").mkdir()
        (self.project / "denied/k").write_text(SECRET + "\n")
        for words in (["add", "denied"], ["-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "k"]):
            subprocess.run(["git", "-C", str(self.project), *words], check=True)
        self.before = state(self.base)

    def policy(self, allow: tuple[str, ...], deny: tuple[str, ...]) -> Policy:
        rules = RuleSet.from_flags(allow, deny)
        return Policy(rules=rules, cwd=self.project, roots=(self.project,), home=self.base)

    def unasked(self, lines: list[str], policy: Policy) -> list[str]:
        return [one for one in lines if policy.explain("Bash", {"command": one}).behavior == "allow"]

    def run(self, lines: list[str]) -> str:
        """What the lines show; `CHANGED` if they changed anything."""
        ran = subprocess.run(
            ["bash", "-c", EACH], cwd=self.project, input="".join(one + "\0" for one in lines).encode(),
            env={"PATH": os.environ["PATH"], "HOME": str(self.base), "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C.UTF-8"},
            stdout=subprocess.PIPE, check=False,
        )  # fmt: skip
        if state(self.base) == self.before:
            return ran.stdout.decode("utf-8", "replace")
        shutil.rmtree(self.base)
        self.base.mkdir()
        self._make()
        return CHANGED

    def harmed_by(self, lines: list[str], forbidden: tuple[str, ...]) -> list[str]:
        """The lines among these that do harm, if any does."""
        if not lines or not any(word in self.run(lines) for word in forbidden):
            return []
        return [one for one in lines if any(word in self.run([one]) for word in forbidden)] or lines


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Box:
    return Box(tmp_path_factory.mktemp("effects"))


def check(box: Box, lines: list[str]) -> None:
    """Under no rule but one that denies a file inside, and under wildcard rules for every reader (which may read anywhere)."""
    fenced = box.policy((), ("Read(denied/**)",))
    assert box.harmed_by(box.unasked(lines, fenced), (CHANGED, SECRET)) == []
    assert box.harmed_by(box.unasked(lines, box.policy(READERS, ())), (CHANGED,)) == []


@SMALL
@given(examples)
def test_what_runs_unasked_harms_nothing(box: Box, lines: list[str]) -> None:
    check(box, lines)


@pytest.mark.slow
@LARGE
@given(examples)
def test_what_runs_unasked_harms_nothing_at_length(box: Box, lines: list[str]) -> None:
    check(box, lines)
