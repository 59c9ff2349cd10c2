"""Verdicts on whole command lines: one row a command, under rules that allow `git`, `npm run build` and deny `rm`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from worker_agent.tools.permissions import Policy
from worker_agent.tools.rules import RuleSet

ALLOW = ("Bash(git *)", "Bash(npm run build)", "Bash(python -m pytest:*)")
DENY = ("Bash(rm *)",)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project/src").mkdir(parents=True)
    for name in ("objects", "refs"):
        (tmp_path / "project/.git" / name).mkdir(parents=True)
    (tmp_path / "project/.git/HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / "project/src/a.py").touch()
    (tmp_path / "secret").write_text("s")
    (tmp_path / "project/link").symlink_to(tmp_path / "secret")
    return tmp_path / "project"


def verdict(project: Path, command: str, allow=ALLOW, deny=DENY, mode: str = "default") -> str:
    policy = Policy(mode=mode, rules=RuleSet.from_flags(allow, deny), cwd=project, roots=(project,), home=project.parent)
    return policy.explain("Bash", {"command": command}).behavior


DENIED = [
    "rm", "rm p", "ls; rm p", "ls;rm p", "ls && rm p", "ls || rm p", "ls | rm p", "ls |& rm p", "ls & rm p", "ls\nrm p",
    "\n\nrm p", "# a comment\nrm p", "ls \\\n; rm p", "r\\\nm p", "git log\nrm -rf p",
    # quoting
    "'rm' p", '"rm" p', 'r""m p', "r'm' p", r"\rm p", r"r\m p", "$'rm' p", r"$'\x72m' p", r"$'\162\155' p", '$"rm" p',
    "/bin/rm p", "../../bin/rm p", "{rm,-rf,p}", "ls; {rm,p}",
    # inside other things
    "echo $(rm p)", "echo `rm p`", 'echo "$(rm p)"', 'echo "a `rm p` b"', "X=$(rm p) git log", "X=$(rm p)", "export X=$(rm p)",
    "cat <(rm p)", "tee >(rm p)", "echo ${x:-$(rm p)}", "echo ${x/$(rm p)/}", "echo $((a[$(rm p)]))", "echo $[$(rm p)]",
    "cat <<EOF\n$(rm p)\nEOF", "cat <<EOF\n`rm p`\nEOF", "cat <<-EOF\n\t$(rm p)\n\tEOF", 'cat <<< "$(rm p)"',
    "cat <<EOF | rm p\nx\nEOF", "cat <<'EOF' && rm p\nx\nEOF", "cat <<EOF\nx\nEOF\nrm p", "[[ -n $(rm p) ]]", "(( $(rm p) ))",
    "a=($(rm p))", "a[$(rm p)]=1", "git log > $(rm p)", "git log < <(rm p)",
    # bodies
    "(rm p)", "{ rm p; }", "if true; then rm p; fi", "if rm p; then :; fi", "while rm p; do :; done", "until false; do rm p; done",
    "for i in a; do rm p; done", "for i in $(rm p); do :; done", "for ((;;)); do rm p; done", "select x in a; do rm p; done",
    "case x in x) rm p;; esac", "case $(rm p) in x) :;; esac", "f() { rm p; }; f", "function f { rm p; }", "f() ( rm p )",
    "! rm p", "time rm p", "time -p rm p", "time { rm p; }", "coproc rm p", "coproc N { rm p; }", "time if true; then rm p; fi",
    # redirections beside the words
    "> out rm p", "rm > out p", "rm p 2>&1", "2>/dev/null rm p", "rm p &> out", "rm p >| out",
    # wrappers and carriers
    "command rm p", "command -p rm p", "builtin rm p", "exec rm p", "nohup rm p", "timeout 5 rm p", "timeout -k 1 -s KILL 5 rm p",
    "timeout --signal=KILL 5 rm p", "nice -n 5 rm p", "stdbuf -oL rm p", "nice timeout 5 rm p", "xargs rm", "echo p | xargs rm",
    "xargs -n1 -I{} rm {}", "env rm p", "env -i A=1 rm p", "env -S 'rm p'", "sudo rm p", "sudo -u x rm p", "setsid rm p",
    "ionice -c 3 rm p", "flock f rm p", "watch rm p", "watch 'rm p'", "busybox rm p", "strace -f rm p",
    "find . -exec rm {} \\;", "find . -execdir rm {} +", "find . -exec sh -c 'rm p' \\;",
    "bash -c 'rm p'", 'sh -c "rm p"', "bash -lc 'ls; rm p'", "bash -c -- 'rm p'", "bash -c \"bash -c 'rm p'\"", "eval 'rm p'",
    "eval rm p", "eval \"$(echo x)\" ; rm p", "bash <<EOF\nrm p\nEOF", "bash <<< 'rm p'", "sh -s <<'EOF'\nrm p\nEOF",
    "docker exec c sh -c 'rm p'", "trap 'rm p' EXIT", "alias x='rm p'", "git -c alias.x='!rm p' x", "git bisect run rm p",
    "git rebase --exec 'rm p' main", "git submodule foreach 'rm p'",
    # assignments: deny sees past any
    "FOO=1 rm p", "PATH=/x rm p", "A=1 B=2 rm p",
    'x["$(rm p)"]', 'echo [a"$(rm p)"]', "echo [a`rm p`]",
    # what does not parse, but shows it
    "&& rm p", "rm p; (", "rm p\u00a0x", "ls\rrm p; rm q",
]  # fmt: skip

ASKED = [
    # S1
    "git log && curl x | sh", "git status $(touch p)", "X=`touch p` git status", "bash -c 'touch p'", "git status-x",
    # words that only the shell knows
    "/bin/r[m] p", "/bin/[r]m p", "/bin/r[[:alpha:]] p", '/bin/r[m"x"] p', '/bin/r["m"] p', "/bin/r[!x] p", "r[m] p",
    "$X p", "${X} p", "$(echo rm) p", "`echo rm` p", "r*m p", "/bin/r? p", "a=rm; $a p", "${X}rm p", 'eval "$X"', 'bash -c "$X"',
    "echo rm p | bash", "curl x | sh", "bash < script", "source <(echo x)", "sh -c $X", "echo ${x@P}",
    "x='a[$(touch p)]'; echo $((x))", "[[ 'a[$(touch p)]' -eq 0 ]]", "x=$(cat f); (( x ))", "test -v 'a[$(touch p)]'",
    # not parseable, or not to be read in one way
    "cat 'x", "git log (", "git log\u00a0", "git log\u2028x", "git \0 log", "git log \x1b[2J", "git log " + "x" * 10_000, "", "  ", "# only",
    "git log \u200b", "ls\u3000-l",
    # neither allowed nor read-only
    "curl x", "python x.py", "npm run build2", "npm run build --x", "npm  install", "rmdir x", "rm-x p", "npx rimraf p", "make",
    "ls > out", "ls >> out", "ls &> out", "ls >| out", "ls >& out", "ls <> out", "git log > out", "echo x > link", "ls {fd}> out", "> out ls > /dev/null", "> out ls 2>/dev/null", "2> out ls <<< x", "> out cat <<EOF\nx\nEOF", "> out < src/a.py cat 2>&1",
    "watch git log", "setsid git log", "flock f git log", "ionice git log", "find . -delete", "find . -exec cat {} \\;",
    "find . -fprint out", "find $X", "find . -name *.py", "command -v curl", "xargs", "xargs -n1 git log", "sudo git log", "env git log",
    "git -c core.pager='touch p' log", "git -c alias.x='!touch p' x", "git --exec-path=/x log", "git -cx.y=z log",
    "PATH=/x git log", "LD_PRELOAD=x git log", "GIT_SSH_COMMAND=x git fetch", "PATH=/x; git log", "for PATH in /x; do git log; done",
    "BASH_ENV=x ls", "http_proxy=x ls", "IFS=x; ls",
    # outside the roots
    "cat ../secret", "cat link", "cat /etc/passwd", "cat ~/secret", "cat < ../secret", "cd .. && cat secret", "cd / && ls",
    "cat src/../../secret", "grep -f ../secret x", "grep --file=../secret x", "head -c5 ../secret", "diff a ../secret", "cat *",
    "cat $X", 'cat "$(git log)"', "cd $X && cat y", "cd src && cat ../../secret", "while true; do cd ..; cat x; done", "cd",
    "for f in ../secret; do cat $f; done", "find / -name x", "ls ~root", "cat {a,../secret}",
]  # fmt: skip
# Harmless perhaps, but not by proof: expansions, loops, here-documents, what another command hands over.
ASKED += [
    "echo $HOME", "find src -type f | xargs grep x", "grep -rl x src | head -5 | xargs wc -l", "x=1; echo $((x + 1))", "d=src; ls $d",
    "i=0; while (( i < 3 )); do echo $i; i=$((i+1)); done", "for f in src/*.py; do cat \"$f\"; done", "[[ -f src/a.py ]] && cat src/a.py",
    "case x in x) ls;; esac", "cat <<EOF\nhi $HOME\nEOF", "cat <<'EOF'\n$(rm p)\nEOF", "echo a{1..3}", "cat <<< hi",
]  # fmt: skip

ALLOWED = [
    "git log", "git push --force", "git commit -m 'a; rm p'", 'git commit -m "x && rm p"', "git commit -m \"$(cat src/a.py)\"",
    "git log | head -5", "git log && git status", "git log; git diff", "git log & git diff", "git log\ngit status", "git  log",
    "git -C src log", "git --no-pager log", "git -c user.name=x commit", "LANG=C git log", "LC_ALL=C TZ=UTC git log",
    "timeout 5 git log", "nice -n 5 nohup git log", "time git log", "xargs git add", "command git log", "git log 2>&1", "git log 2>/dev/null",
    "git log \\\n --oneline", "git commit -F - <<'EOF'\nrm p\nEOF", "npm run build", "npm  run build", "npm run build 2>&1 | tail -5",
    "python -m pytest", "python -m pytest -q tests", "(git log)", "{ git log; }", "if git diff --quiet; then echo same; fi",
    "for i in 1 2; do git log -$i; done", "f() { git log; }; f", "! git diff --quiet", "git log # rm p", "# rm p\ngit log",
    # read-only by itself
    "ls", "ls -la src", "ls *.py", "cat src/a.py", "echo hi", "echo rm p", "echo 'rm p; $(rm q)'", "pwd", "wc -l src/*.py",
    "head -n 5 src/a.py", "grep -rn 'x' src", "grep -E '/usr/bin' src/a.py", "find . -name '*.py'",
    "which python", "diff src/a.py b", "stat src", "du -sh .", "cd src", "cd src && ls", "cat < src/a.py", "ls > /dev/null 2>&1",
 "[ -d src ] || echo none",  "cat {src/a.py,b}", "ls -- -x", "true && false", "echo \"it's\"", "echo '#' x",
    "echo é", "git log -- 'ü b'",
]  # fmt: skip


@pytest.mark.parametrize("command", DENIED)
def test_a_command_that_runs_a_denied_one_in_any_guise_is_denied(project: Path, command: str) -> None:
    assert verdict(project, command) == "deny"


@pytest.mark.parametrize("command", ASKED)
def test_a_command_that_no_rule_covers_or_nobody_can_read_asks(project: Path, command: str) -> None:
    assert verdict(project, command) == "ask"


@pytest.mark.parametrize("command", ALLOWED)
def test_a_command_whose_every_part_is_allowed_or_read_only_runs(project: Path, command: str) -> None:
    assert verdict(project, command) == "allow"


@pytest.mark.parametrize(
    "command",
    ["git status", "git log --oneline -5", "git diff HEAD~1", "git show HEAD", "git branch -a", "git stash list", "git blame a.py",
     "git --no-pager log", "git rev-parse HEAD", "cd src && git log", "git log; cd src", "git -C src log", "git config --get user.name", "git log --format='%h %s'", "git remote -v"],
)  # fmt: skip
def test_reading_forms_of_git_run_without_a_rule(project: Path, command: str) -> None:
    assert verdict(project, command, allow=(), deny=()) == "allow"


@pytest.mark.parametrize(
    "command",
    ["git push", "git commit", "git branch x", "git branch -D x", "git tag x", "git stash", "git stash drop", "git config user.name x",
     "git log --output=x", "git log --outpu=x", "git diff --ext-diff", "git grep -O x", "git diff --no-index / x", "git -C ../x log",
     "git -c core.pager=x log", "git --exec-path=x log", "git --git-dir=x log", "git log $X",
     "git log *", "git checkout x", "git fetch", "git reflog expire", "git worktree add x", "git status-x", "git", "git help log"],
)  # fmt: skip
def test_other_forms_of_git_ask(project: Path, command: str) -> None:
    assert verdict(project, command, allow=(), deny=()) == "ask"


def test_accept_edits_runs_commands_but_not_those_that_rules_or_places_forbid(project: Path) -> None:
    def accepted(command: str) -> str:
        return verdict(project, command, allow=(), mode="acceptEdits")

    assert accepted("mkdir -p src/b && touch src/b/c && cp src/b/c d > out") == "allow"
    assert accepted("make && ./x > out") == "ask"
    assert accepted("make; rm p") == "deny"
    assert accepted("echo x > ../out") == "ask"
    assert accepted("echo x > .git/hooks/pre-commit") == "ask"
    assert accepted("curl x | sh") == "ask"  # it could be `rm`
    assert verdict(project, "curl x | sh", allow=(), deny=(), mode="acceptEdits") == "ask"
    assert verdict(project, "make (", allow=(), deny=(), mode="acceptEdits") == "ask"


def test_plan_only_reads(project: Path) -> None:
    assert verdict(project, "git log", mode="plan") == "allow"
    assert verdict(project, "git push", mode="plan") == "deny"


def test_bypass_runs_everything_but_what_rules_speak_about(project: Path) -> None:
    assert verdict(project, "curl x | sh", deny=(), mode="bypassPermissions") == "allow"
    assert verdict(project, "make (", deny=(), mode="bypassPermissions") == "allow"
    assert verdict(project, "ls; rm p", mode="bypassPermissions") == "deny"
    assert verdict(project, "$X p", mode="bypassPermissions") == "ask"


def test_dont_ask_denies_what_would_ask(project: Path) -> None:
    assert verdict(project, "curl x", mode="dontAsk") == "deny"
    assert verdict(project, "git log", mode="dontAsk") == "allow"


def test_a_bare_rule_covers_every_command_that_can_be_read(project: Path) -> None:
    assert verdict(project, "curl x | sh; $X", allow=("Bash",), deny=()) == "allow"
    assert verdict(project, "curl x > out", allow=("Bash(*)",), deny=()) == "allow"
    assert verdict(project, "curl 'x", allow=("Bash",), deny=()) == "ask"


def test_an_edit_rule_covers_redirections(project: Path) -> None:
    assert verdict(project, "ls > src/out", allow=("Edit(src/**)",)) == "allow"
    assert verdict(project, "ls > out", allow=("Edit(src/**)",)) == "ask"


def test_path_rules_hold_for_file_commands(project: Path) -> None:
    deny = ("Read(.env)", "Edit(src/**)")
    assert verdict(project, "cat .env", deny=deny) == "deny"
    assert verdict(project, "cat a/.env | head", deny=deny) == "deny"
    assert verdict(project, "echo x > src/a.py", deny=deny) == "deny"
    assert verdict(project, "cd src && echo x > a.py", deny=deny) == "deny"
    assert verdict(project, "rm src/a.py", deny=deny) == "deny"
    assert verdict(project, "cat src/a.py", deny=deny) == "allow"


@pytest.mark.parametrize(
    ("command", "expected"),
    [("cat .e*", "deny"), ("cat ./.e*v", "deny"), ("cat s*/.e*", "deny"), ("cat <.e*", "deny"), ("bash -c 'cat .e*'", "deny"),
     ("shopt -s dotglob; cat *", "deny"), ("cat .[e]nv", "ask"), ("find . -type f | xargs cat", "ask"), ("for f in .e*; do cat $f; done", "deny"),
     ("for f in *; do cat $f; done", "ask"), ("grep -rn x .", "ask"), ("grep -R x", "ask"), ("diff -r . x", "ask"),
     ("cat [a-z]*", "ask"), ("cat s* x", "allow"), ("grep -n x d* x", "allow"), ("grep -rn x docs", "allow"), ("ls -Ra", "allow"), ("find . -name '.e*'", "allow")],
)  # fmt: skip
def test_a_pattern_or_a_search_is_judged_by_the_files_it_would_read(project: Path, command: str, expected: str) -> None:
    for name in (".env", "src/.env", "docs/a", "x"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).touch()
    assert verdict(project, command, deny=("Read(.env)",)) == expected


def test_word_boundaries_and_wildcards_are_as_documented(project: Path) -> None:
    for rule in ("Bash(ls *)", "Bash(ls:*)"):
        assert verdict(project, "ls -la > /dev/null; lsof", allow=(rule,)) == "ask"
    assert verdict(project, "lsof", allow=("Bash(ls*)",)) == "allow"
    assert verdict(project, "make all --quiet", allow=("Bash(make * --quiet)",)) == "allow"
    assert verdict(project, "make --version", allow=("Bash(* --version)",)) == "allow"
    assert verdict(project, "npm:x y", allow=("Bash(npm:x *)",)) == "allow"
    assert verdict(project, "watch git log", allow=("Bash(watch git log)",)) == "allow"
    assert verdict(project, "git lfs pull", allow=("Bash(git lfs *)",)) == "allow"


@pytest.mark.parametrize(
    ("command", "behavior"),
    [("export A=1", "allow"), ('export A="$HOME/x" B', "allow"), ("export -p", "allow"), ("cd . && export A=1", "allow"),
     ("export A=$(touch p)", "ask"), ("export A=1 > p", "ask"), ("export A=1; make", "ask"), ("declare A=1", "ask"),
     # a program found by its name may be another one afterwards, or do something else
     ("export PATH=. && ls", "ask"), ("export A=1; cat a", "ask"), ("export LD_PRELOAD=./x; git log", "ask")],
)  # fmt: skip
def test_a_rule_of_a_builtin_that_the_grammar_has_as_a_keyword(project: Path, command: str, behavior: str) -> None:
    assert verdict(project, command, allow=("Bash(export:*)",)) == behavior
    assert verdict(project, command, allow=("Bash",), deny=("Bash(export:*)", "Bash(declare *)")) == "deny"


@pytest.mark.parametrize(
    ("rule", "covered", "asked"),
    [("tar *", ["tar xzf a.tgz -C out", "tar cf a.tar src --exclude=x"],
      ["tar xf a --checkpoint=1 --checkpoint-action=exec='touch p'", "tar xf a --to-c=p", "tar -I ./p -xf a", "tar xIf ./p a",
       "tar xf a $X", "tar xf a --*", "tar xf a -F p"]),
     ("git push *", ["git push origin main", "git push -u origin main", "git push --force-with-lease"],
      ["git push --receive-pack=p . main", "git push --rec p . main", "git push --exec=p . main"]),
     ("git fetch *", ["git fetch --all --prune"], ["git fetch --upload-pack=p .", "git fetch --upl=p ."]),
     ("git *", ["git push origin main", "git clone x y", "git init"],
      ["git difftool -y -x p HEAD", "git difftool --extcmd=p", "git clone -c a.b=p x", "git clone -u p x", "git archive --exec=p --remote=."]),
     ("rsync *", ["rsync -avz --delete a b"], ["rsync -e ./p a b", "rsync -avze ./p a b", "rsync --rsh=./p a b"]),
     ("tar xf * --checkpoint-action*", ["tar xf a --checkpoint-action=exec=x"], ["tar xf a --to-command=p --checkpoint-action=x"]),
     ("ssh *", ["ssh host ls"], ["ssh -o ProxyCommand=./p host"])],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_wildcard_covers_no_program_that_an_option_names(
    project: Path, rule: str, covered: list[str], asked: list[str]
) -> None:
    assert [c for c in covered if verdict(project, c, allow=(f"Bash({rule})",), deny=()) != "allow"] == []
    assert [c for c in asked if verdict(project, c, allow=(f"Bash({rule})",), deny=()) != "ask"] == []


@pytest.mark.parametrize(
    "command",
    ["git push", "git push origin main", "git -C x push", "git --no-pager push -f", "git -c a.b=c push", "/usr/bin/git -C x push",
     "cd x && git push", "git {push,origin}", "git 'push'", "FOO=1 git push", "git --git-dir=x push"],
)  # fmt: skip
def test_a_fence_on_a_verb_of_git_sees_past_its_own_options(project: Path, command: str) -> None:
    assert verdict(project, command, allow=("Bash(git *)",), deny=("Bash(git push *)",)) == "deny"


def test_a_word_that_may_become_the_denied_verb_asks(project: Path) -> None:
    for command in ("git $X", "g=push; git $g", "git p*"):
        assert verdict(project, command, allow=("Bash(git *)",), deny=("Bash(git push *)",)) == "ask", command
    assert verdict(project, 'git commit -m "$X"', allow=("Bash(git *)",), deny=("Bash(git push *)",)) == "allow"


def test_no_depth_of_wrappers_hides_a_denied_command(project: Path) -> None:
    for depth in (10, 1000):
        hidden = "env " * depth + "rm p"
        assert verdict(project, hidden, mode="bypassPermissions") in ("deny", "ask")
    nested = "rm p"
    for _ in range(8):
        nested = "bash -c " + "'" + nested.replace("'", "'\\''") + "'"
    assert verdict(project, nested, mode="bypassPermissions") in ("deny", "ask")


@pytest.mark.parametrize("name", [".git", ".git/config", ".git/commondir"])
def test_a_repository_whose_settings_are_no_regular_files_is_not_waited_for(project: Path, name: str) -> None:
    (project / ".git/config").write_text("[core]\n\tbare = false\n")
    assert verdict(project, "git status", allow=()) == "allow"
    if name == ".git":
        shutil.rmtree(project / name)
    (project / name).unlink(missing_ok=True)
    os.mkfifo(project / name)
    assert verdict(project, "git status", allow=()) == ("allow" if name.endswith("commondir") else "ask")


def test_the_reason_names_the_part_that_asks(project: Path) -> None:
    def why(command: str) -> str:
        policy = Policy(rules=RuleSet.from_flags(ALLOW, DENY), cwd=project, roots=(project,), home=project.parent)
        return policy.explain("Bash", {"command": command}).why

    assert why("git log; curl x") == "no rule allows `curl x`"
    assert "lies outside the working directories" in why("cat ../secret")
    assert why("git log --output=x").startswith(
        "Bash(git *) does not cover `git log --output=x`, and it is not free: the option"
    )
    assert why("ls > out") == "no rule allows writing to out"
    assert why("ls; rm p") == "Bash(rm *) denies `rm p`"
    assert "could be what Bash(rm *) is about" in why("$X p")
    assert "U+00A0" in why("git\u00a0log")


def test_characters_outside_ascii_are_parts_of_words_and_nothing_else(project: Path) -> None:
    assert verdict(project, "echo 𝒳 日本語 🙂 && git log --author=Zoë") == "allow"
    assert verdict(project, "é=1 git log") == "ask"  # to bash a command of this name
    assert verdict(project, "echo é; rm 🙂") == "deny"
    assert verdict(project, "cat <<é\n$(rm p)\né\n") == "deny"
    for code in range(0x10000, 0x110000, 0x1333):
        assert verdict(project, f"echo {chr(code)}`u{{{chr(code)}rm p") in ("ask", "deny")
