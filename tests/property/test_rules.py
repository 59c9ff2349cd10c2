"""Rules and the shell grammar under random input: own errors only, and no guise of a command escapes."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from worker_agent.tools.permissions import Policy
from worker_agent.tools.rules import WILD, Behavior, Places, Rule, RuleError, RuleSet, Source, overlap
from worker_agent.tools.shell_harmless import changes_nothing
from worker_agent.tools.shell_parser import Unparsable, parse

PLACES = Places(Path("/project"), Path("/home/x"), (Path("/project"),))
RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=200)

rule_pieces = st.sampled_from(
    ["Bash", "Read", "Edit", "WebFetch", "Agent", "mcp__s__t", "mcp__s__*", "*", "(", ")", ":", ":*", " *", "*", "**", "/", "//", "~/", "./",
     "../", "!", "#", "[", "]", "{", "\\", "domain:", "run_in_background:true", "a.b", " ", "é", "\n", "\0", "x"]
)  # fmt: skip


@RELAXED
@given(st.one_of(st.text(), st.lists(rule_pieces).map("".join)), st.sampled_from(Behavior), st.text(max_size=30))
def test_any_text_is_a_rule_that_answers_or_a_rule_error(text: str, behavior: Behavior, subject: str) -> None:
    try:
        rule = Rule.parse(text, Source("test"), behavior)
    except RuleError:
        return
    rule.names("Bash")
    rule.matches_text(subject)
    rule.may_match(subject + WILD)
    rule.matches_host(subject)
    rule.matches_field({"x": subject})
    rule.matches_path(Path("/project") / subject.replace("\0", ""), PLACES)


@RELAXED
@given(st.lists(st.one_of(st.text(), st.none(), st.integers(), rule_pieces)))
def test_a_list_of_anything_loads_and_no_unreadable_fence_gets_lost(texts: list) -> None:
    found = RuleSet.parse(Behavior.DENY, texts, Source("file", "permissions.deny"))
    assert len(found.deny) + len(found.ask) == len(texts)


pattern = st.lists(st.sampled_from(["a", "b", " ", WILD]), max_size=8).map("".join)


@RELAXED
@given(pattern, st.text("ab ", max_size=8))
def test_overlap_with_a_plain_text_is_matching(left: str, text: str) -> None:
    import re

    assert overlap(left, text) == bool(re.fullmatch(".*".join(map(re.escape, left.split(WILD))), text))


@RELAXED
@given(pattern, pattern)
def test_overlap_does_not_depend_on_the_order(left: str, right: str) -> None:
    assert overlap(left, right) == overlap(right, left)


@RELAXED
@given(st.one_of(st.text(max_size=200), st.text("rm -f;|&()<>'\"$`\\\n{}[]!#*?=x", max_size=60)))
@example("(" * 6000)
@example("$(" * 3000)
@example("{a,b}" * 1500)
@example("\\\n" * 4000)
@example("'" + "x" * 9000)
def test_parsing_any_text_never_raises(text: str) -> None:
    parsed = parse(text)
    commands = parsed.commands if isinstance(parsed, Unparsable) else parsed
    assert all(isinstance(command.raw, str) for command in commands)
    changes_nothing(text)


# ── compound commands out of simple ones ─────────────────────────────────────────────────────────────────────────────

simple = st.sampled_from(
    ["zap p", "zap", "'zap' p", "z\\ap p", "$'zap' p", "/bin/zap p", "ls", "echo x", "git log", "foo a b", "foo 'a b'", "X=1 zap p", "foo > /dev/null",
     "zap p 2>&1", "> /dev/null zap p", "timeout 5 zap p", "env A=1 zap p", "bash -c 'zap p'", "eval 'zap p'", "cat <<< x", "{zap,p}"]
)  # fmt: skip


def _wrapped(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    two = st.tuples(inner, inner)
    return st.one_of(
        two.flatmap(
            lambda ab: st.sampled_from([";", "&&", "||", "|", "|&", "\n", "& ", " ; ", "\n\n"]).map(
                lambda o: f"{ab[0]}{o}{ab[1]}"
            )
        ),
        inner.map(lambda a: f"( {a} )"),
        inner.map(lambda a: f"{{ {a}; }}"),
        inner.map(lambda a: f"! ( {a} )"),
        inner.map(lambda a: f"if {a}; then :; fi"),
        inner.map(lambda a: f"if true; then {a}\nelse :; fi"),
        inner.map(lambda a: f"while false || {a}; do break; done"),
        inner.map(lambda a: f"for i in 1; do {a}\ndone"),
        inner.map(lambda a: f"case x in x) {a} ;; esac"),
        inner.map(lambda a: f"echo $( {a} )"),
        inner.map(lambda a: f'echo "a $( {a} ) b"'),
        inner.map(lambda a: f"X=$( {a} )"),
        inner.map(lambda a: f"cat < <( {a} )"),
        inner.map(lambda a: f"f() {{ {a}\n}}; f"),
        inner.map(lambda a: f"# comment\n{a}"),
        inner.map(lambda a: f"time {{ {a}\n}}"),
    )


compound = st.recursive(simple, _wrapped, max_leaves=6)
POLICY = Policy(
    rules=RuleSet.from_flags(("Bash(foo *)", "Bash(git *)"), ("Bash(zap *)",)), cwd=Path("/project"), roots=(Path("/project"),),
    home=Path("/home/x"),
)  # fmt: skip

EVERYTHING_BUT_ZAP = Policy(mode="bypassPermissions", rules=POLICY.rules, cwd=Path("/project"), home=Path("/home/x"))


def verdict(command: str) -> str:
    return POLICY.explain("Bash", {"command": command}).behavior


@RELAXED
@given(compound)
def test_one_denied_part_denies_the_whole(command: str) -> None:
    if "zap" in command.replace("\\", "").replace("z'", "z"):
        assert verdict(command) == "deny", command


@RELAXED
@given(compound)
def test_a_compound_is_denied_if_a_part_that_the_grammar_finds_is(command: str) -> None:
    parsed = parse(command)
    commands = parsed.commands if isinstance(parsed, Unparsable) else parsed
    if any(verdict(part.raw) == "deny" for part in commands if part.raw):
        assert verdict(command) == "deny"


additions = st.one_of(
    st.text(max_size=20),
    st.text("'\"`$(){}[];|&<>\\\n#!*= \t", max_size=6),
    st.sampled_from(
        ["; ls", " && ls", " | cat", " #", "'", '"', "`", "$(", ")", "\\", "\n", " <<EOF\n", " < x", " 2>&1", "\0", "\u00a0"]
    ),
)


@settings(RELAXED, max_examples=400)
@given(simple.filter(lambda c: "zap" in c), additions, st.booleans())
def test_adding_text_never_turns_a_denied_command_into_an_allowed_one_that_still_runs_it(
    command: str, text: str, before: bool
) -> None:
    whole = f"{text}{command}" if before else f"{command}{text}"
    if verdict(whole) == "allow":
        assert "zap" not in _really_run(whole), whole


# ── the grammar against bash itself ──────────────────────────────────────────────────────────────────────────────────

BASH = shutil.which("bash")
_ORACLE = """
PATH=/nonexistent; command_not_found_handle() { printf '%s\\0' "$1" >> "$LOG"; return 0; }
"""


def _really_run(command: str) -> list[str]:
    """The names of programs that bash looks for when it runs `command` where there are none. Commands that would wait,
    or write elsewhere, find nothing to do it with."""
    if BASH is None or "\0" in command:
        return []
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory, "log")
        log.touch()
        work = Path(directory, "work")
        work.mkdir()
        environment = {"LOG": str(log), "HOME": str(work), "BASH_ENV": ""}
        script = Path(directory, "script")
        script.write_text(_ORACLE + "export -f command_not_found_handle\n" + command, encoding="utf-8", errors="replace")
        subprocess.run(
            [BASH, "--norc", str(script)], cwd=work, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False
        )  # fmt: skip
        assert "zap" not in os.listdir(work), command
        return [os.path.basename(name) for name in log.read_text("utf-8", "replace").split("\0") if name]


@pytest.mark.skipif(BASH is None, reason="bash is not installed")
def test_the_oracle_sees_what_bash_runs() -> None:
    assert _really_run("x=zap; $x p; echo $(foo); 'a\nb'")[:3] == ["zap", "foo", "a\nb"]


pieces = st.lists(
    st.sampled_from(
        ["zap", " zap p ", "foo", " ", "\n", ";", "|", "&&", "||", "&", "(", ")", "{ ", " }", "'", '"', "`", "$(", "$((", "))", "<(", "${x:-", "}",
         "<<EOF\n", "\nEOF\n", "<<'E'\n", "\nE\n", "<<<", "> o ", "< o ", "2>&1 ", "\\", "\\\n", "#", "!", "if ", "; then ", "; fi", "while ",
         "; do ", "; done", "case x in x) ", ";; esac", "X=1 ", "$x", "$'", "x", "[[ ", " ]]", "f() ", "eval ", "echo ", "time ", "{a,b}", "*"]
    ), max_size=14,
).map("".join)  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(BASH is None, reason="bash is not installed")
@settings(deadline=None, max_examples=1500, suppress_health_check=list(HealthCheck))
@given(st.one_of(pieces, compound))
def test_what_bash_really_runs_is_found_by_the_grammar_or_the_whole_asks(command: str) -> None:
    if EVERYTHING_BUT_ZAP.explain("Bash", {"command": command}).behavior == "allow":
        assert "zap" not in _really_run(command), command


free_pieces = st.lists(
    st.sampled_from(
        ["ls ", "cat x ", "echo ", "git log ", "cd . ", "zap", " ", "\n", ";", "|", "&&", "&", "(", ")", "{ ", "; }", "'", '"', "`", "$(", "$((", "))",
         "<(", ">(", "${x:-", "${x:=", "${x@P}", "${x:", "}", "x=", "x='a[$(zap)]' ", "x=$(cat y) ", "$x", "[[ ", " -eq 1 ]]", "[[ -v ", " ]]", "((x))", "(( ",
         "x[", "]=1", "<<EOF\n", "\nEOF\n", "<<'E'\n", "\nE\n", "<<<", "> zap ", ">> zap", "2>/dev/null ", "2>&1 ", "< x ", "\\", "\\\n", "#",
         "for x in ", "; do ", "; done", "if ", "; then ", "; fi", "case x in x) ", ";; esac", "f() { ", "; f", "$'", "{a,zap}", "*", "test ", "-v ", "time "]
    ), max_size=12,
).map("".join)  # fmt: skip
READ_ONLY = {"ls", "cat", "git", "head", "tail", "grep", "find", "wc", "which", "diff", "stat", "du", "time"}


@pytest.mark.slow
@pytest.mark.skipif(BASH is None, reason="bash is not installed")
@settings(deadline=None, max_examples=1500, suppress_health_check=list(HealthCheck))
@given(free_pieces)
def test_what_is_free_runs_only_commands_of_the_table_and_writes_nothing(command: str) -> None:
    nothing_allowed = Policy(cwd=Path("/project"), roots=(Path("/project"),), home=Path("/home/x"))
    if nothing_allowed.explain("Bash", {"command": command}).behavior == "allow":
        assert set(_really_run(command)) <= READ_ONLY, command
