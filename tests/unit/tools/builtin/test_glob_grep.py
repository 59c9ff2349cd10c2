from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from worker_agent.errors import ToolError
from worker_agent.tools.builtin import helper, ripgrep
from worker_agent.tools.builtin.glob import Glob
from worker_agent.tools.builtin.grep import Grep
from worker_agent.tools.permissions import Policy
from worker_agent.tools.rules import RuleSet

from .support import acall, as_nobody, call, context, refused


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Files with rising times of change, in a git repository that ignores `build`."""
    names = ["a.py", "src/b.py", "src/deep/c.py", "src/d.js", "build/e.py", ".hidden.py", "tests/test_b.py"]
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("build\n")
    for age, name in enumerate(names):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"import os\n# {name}\nclass Here:\n    pass\n")
        os.utime(path, (1000 + age, 1000 + age))
    return tmp_path


# ── Glob ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("*.py", None, ["tests/test_b.py", ".hidden.py", "src/deep/c.py", "src/b.py", "a.py"]),
        ("**/*.py", None, ["tests/test_b.py", ".hidden.py", "src/deep/c.py", "src/b.py", "a.py"]),
        ("src/**/*.py", None, ["src/deep/c.py", "src/b.py"]),
        ("src/*.py", None, ["src/b.py"]),
        ("*.{js,md}", None, ["src/d.js"]),
        ("/*.py", ".", [".hidden.py", "a.py"]),
        ("./src/*.js", None, ["src/d.js"]),
        ("**/deep/*", None, ["src/deep/c.py"]),
        ("b.py", "src", ["src/b.py"]),
        ("t*", None, ["tests/test_b.py"]),
        ("build/*.py", None, ["build/e.py"]),
    ],
)
def test_globs_find_files_newest_first(tree: Path, pattern: str, path: str | None, expected: list[str]) -> None:
    where = {} if path is None else {"path": path}
    assert call(Glob(), context(tree), pattern=pattern, **where).split("\n") == expected


def test_an_absolute_glob_searches_there(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = context(tmp_path_factory.mktemp("cwd"))
    assert call(Glob(), elsewhere, pattern=f"{tree}/src/**/*.py").split("\n") == [
        f"{tree}/src/deep/c.py", f"{tree}/src/b.py",
    ]  # fmt: skip


def test_what_git_ignores_is_listed_only_if_nothing_else_matches(tree: Path) -> None:
    assert call(Glob(), context(tree), pattern="e.py") == "build/e.py\n[Only files that git ignores match.]"
    assert "build" not in call(Glob(), context(tree), pattern="*")


def test_nothing_found_is_said(tree: Path) -> None:
    assert call(Glob(), context(tree), pattern="*.rs") == f"No file in {tree} matches *.rs."


def test_at_most_a_hundred_files_are_shown_the_newest(tmp_path: Path) -> None:
    for i in range(130):
        (tmp_path / f"{i:03}").touch()
        os.utime(tmp_path / f"{i:03}", (i, i))
    lines = call(Glob(), context(tmp_path), pattern="*").split("\n")
    assert lines[:2] == ["129", "128"]
    assert lines[-1] == "[30 more, older than these. Use a narrower pattern or path.]"


def test_odd_names_are_shown_so_that_they_can_be_read(tmp_path: Path) -> None:
    for name in (b"caf\xe9", b"new\nline", "grün".encode()):
        with open(os.path.join(os.fsencode(tmp_path), name), "w") as file:
            file.write("here\n")
    assert sorted(call(Glob(), context(tmp_path), pattern="*").split("\n")) == ["caf\\xe9", "grün", "new\\x0aline"]
    found = call(Grep(), context(tmp_path), pattern="here", output_mode="content").split("\n")
    assert sorted(found) == ["caf\\xe9:1:here", "grün:1:here", "new\\x0aline:1:here"]


def test_a_directory_without_permission_is_told_beside_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o755)
        # The program beside the interpreter may lie where nobody may enter: a repository in somebody's closed folder.
        copy = Path(shutil.copy2(str(ripgrep.program()), place))
        monkeypatch.setattr(ripgrep, "program", lambda: str(copy))
        tree = place / "tree"
        (tree / "no").mkdir(parents=True)
        (tree / "a.py").write_text("x\n")
        (tree / "no").chmod(0)
        with as_nobody():
            for tool, input in ((Glob(), {"pattern": "*.py"}), (Grep(), {"pattern": "x"})):
                answer = call(tool, context(tree), **input)
                assert answer.startswith("a.py\n[Not everything could be read: no: Permission denied")
        (tree / "no").chmod(0o755)


@pytest.mark.parametrize("tool", [Glob(), Grep()])
def test_only_a_directory_or_file_is_searched(tmp_path: Path, tool: Glob | Grep) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert "a FIFO" in refused(tool, context(tmp_path), pattern="x", path="fifo")
    assert "does not exist" in refused(tool, context(tmp_path), pattern="x", path="missing")


def test_a_fifo_in_the_tree_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "a").write_text("x\n")
    assert call(Grep(), context(tmp_path), pattern="x") == "a"


# ── Grep ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_files_with_matches_is_the_usual_mode_newest_first(tree: Path) -> None:
    assert call(Grep(), context(tree), pattern="class Here", glob="*.py").split("\n")[:2] == [
        "tests/test_b.py",
        ".hidden.py",
    ]


def test_content_has_paths_and_line_numbers_sorted_by_path(tree: Path) -> None:
    answer = call(Grep(), context(tree), pattern="^# ", output_mode="content", path="src")
    assert answer == "src/b.py:2:# src/b.py\nsrc/d.js:2:# src/d.js\nsrc/deep/c.py:2:# src/deep/c.py"


def test_lines_around_a_match_are_marked_by_dashes(tree: Path) -> None:
    answer = call(Grep(), context(tree), pattern="class", output_mode="content", path="a.py", **{"-C": 1})
    assert answer == "a.py-2-# a.py\na.py:3:class Here:\na.py-4-    pass"
    assert call(Grep(), context(tree), pattern="class", output_mode="content", path="a.py", **{"-B": 1, "-n": False})


def test_counts_are_of_lines(tree: Path) -> None:
    assert call(Grep(), context(tree), pattern="s", output_mode="count", path="src/b.py") == "src/b.py:4"


@pytest.mark.parametrize(
    ("input", "expected"),
    [
        ({"pattern": "CLASS", "-i": True}, True),
        ({"pattern": "CLASS"}, False),
        ({"pattern": "os\n# a", "multiline": True}, True),
        ({"pattern": "import.*class", "multiline": True}, True),
        ({"pattern": "import", "type": "py"}, True),
        ({"pattern": "import", "type": "js"}, False),
        ({"pattern": "import", "glob": "*.js, *.ts"}, False),
        ({"pattern": "import", "glob": "*.{py,js}"}, True),
        ({"pattern": "import", "glob": "!*.py"}, False),
        ({"pattern": r"(?<=class )Here"}, True),
        ({"pattern": "-pattern-that-looks-like-a-flag"}, False),
    ],
)
def test_the_modes_of_ripgrep_work(tree: Path, input: dict[str, object], expected: bool) -> None:
    answer = call(Grep(), context(tree), **input)
    assert ("a.py" in answer) == expected


@pytest.mark.parametrize(("input", "words"), [({"pattern": "("}, "unclosed"), ({"pattern": "x", "type": "nope"}, "nope")])
def test_what_ripgrep_refuses_is_said_in_its_words(tree: Path, input: dict[str, str], words: str) -> None:
    assert words in refused(Grep(), context(tree), **input)


def test_an_answer_is_bounded_by_lines_and_by_characters(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x\n" * 1000)
    shown = call(Grep(), context(tmp_path), pattern="x", output_mode="content").split("\n")
    assert len(shown) == 251 and shown[-1].startswith("[250 of 1,000 lines shown.")
    assert call(Grep(), context(tmp_path), pattern="x", output_mode="content", head_limit=3).count("\n") == 3
    assert call(Grep(), context(tmp_path), pattern="x", output_mode="content", head_limit=0).count("\n") == 999
    small = context(tmp_path, result_cap=100)
    assert len(call(Grep(), small, pattern="x", output_mode="content", head_limit=0)) < 250


def test_long_lines_and_binary_files_do_not_flood(tmp_path: Path) -> None:
    (tmp_path / "long").write_text("x" * 100_000)
    (tmp_path / "binary").write_bytes(b"x\x00" * 50_000)
    (tmp_path / "latin").write_bytes(b"x gr\xfcn\n")
    answer = call(Grep(), context(tmp_path), pattern="x", output_mode="content")
    assert len(answer) < 1500
    assert "latin:1:x gr\ufffdn" in answer
    assert "binary" not in answer.replace("binary file matches", "") or len(answer) < 1500


def test_the_search_ends_when_the_output_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from worker_agent.tools.builtin import grep

    monkeypatch.setattr(grep, "OUTPUT_CAP", 1000)
    (tmp_path / "a").write_text("x\n" * 100_000)
    assert "of at least" in call(Grep(), context(tmp_path), pattern="x", output_mode="content")


def test_a_search_that_takes_too_long_ends_with_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "rg"
    fake.write_text("#!/bin/sh\nprintf 'a\\0'\nexec sleep 60\n")
    fake.chmod(0o755)
    monkeypatch.setattr(ripgrep, "program", lambda: str(fake))
    monkeypatch.setattr(ripgrep, "TIMEOUT", 0.3)
    assert "ended after" in call(Grep(), context(tmp_path), pattern="x")


def test_without_ripgrep_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ripgrep, "program", lambda: None)
    assert "not installed" in refused(Grep(), context(tmp_path), pattern="x")


def test_a_cancelled_search_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "rg"
    fake.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid.new\nmv {tmp_path}/pid.new {tmp_path}/pid\nexec sleep 60\n")
    fake.chmod(0o755)
    monkeypatch.setattr(ripgrep, "program", lambda: str(fake))

    async def scenario() -> int:
        task = asyncio.create_task(acall(Grep(), context(tmp_path), pattern="x"))
        while not (tmp_path / "pid").exists():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return int((tmp_path / "pid").read_text())

    pid = asyncio.run(scenario())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_helper_is_fed_and_its_exit_code_told(tmp_path: Path) -> None:
    async def run(*argv: str, **more: object) -> helper.Finished:
        options = {"timeout": 5, "cap": 100} | more
        environment = {"PATH": os.environ["PATH"]}
        return await helper.run(argv, cwd=tmp_path, environment=environment, **options)  # type: ignore[arg-type]

    assert asyncio.run(run("cat", stdin=b"hello")) == helper.Finished(0, b"hello", "")
    assert asyncio.run(run("sh", "-c", "echo no >&2; exit 3")).exit_code == 3
    endless = asyncio.run(run("yes"))
    assert endless.cut and endless.exit_code is None and len(endless.stdout) == 100
    assert asyncio.run(run("sleep", "60", timeout=0.1)).timed_out
    unread = asyncio.run(run("true", stdin=b"x" * 10_000_000))
    assert unread.exit_code == 0


def test_a_directory_that_cannot_be_entered_is_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        with pytest.raises(ToolError):
            target = ripgrep.files.Target(tmp_path / "gone", tmp_path / "gone", "gone")
            await ripgrep.search(["--files"], target, context(tmp_path / "gone"), 100)

    monkeypatch.setattr(ripgrep, "program", lambda: str(tmp_path / "no-such-program"))
    asyncio.run(scenario())


@pytest.mark.parametrize("deny", ["Read(.env)", "Read(/secrets/**)", "Read(//**/secrets/*)"])
def test_a_search_tells_nothing_of_files_that_a_rule_keeps_from_being_read(tmp_path: Path, deny: str) -> None:
    for name in ("a.py", "sub/.env", "secrets/key.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("needle\n")
    tree = context(tmp_path)
    tree.permissions = Policy(rules=RuleSet.from_flags((), (deny,)), cwd=tmp_path, roots=(tmp_path,))
    hidden = {".env"} if deny == "Read(.env)" else {"key.txt"}
    for mode in ("content", "count", "files_with_matches"):
        found = call(Grep(), tree, pattern="needle", output_mode=mode)
        assert {name for name in ("a.py", ".env", "key.txt") if name not in found} == hidden, mode
    found = call(Glob(), tree, pattern="**/*")
    assert {name for name in ("a.py", ".env", "key.txt") if name not in found} == hidden


# ── names with brackets, colons, blanks ──────────────────────────────────────────────────────────────────────────────

ODD = ["app/[id]/page.tsx", "app/i/page.tsx", "app/[id].tsx", "app/d.tsx", "docs/My Notes/one.md", "docs/My", "a:b.py", "x y.md",
       "app/[...slug]/deep/page.tsx", "app/s/deep/page.tsx"]  # fmt: skip


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    for name in ODD:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("needle\n")
        os.utime(path, (1000, 1000))
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("app/[id]/page.tsx", ["app/[id]/page.tsx"]),
        ("app/[id]/*.tsx", ["app/[id]/page.tsx"]),
        ("app/[...slug]/**/*.tsx", ["app/[...slug]/deep/page.tsx"]),
        ("**/[id]/page.tsx", ["app/[id]/page.tsx", "app/i/page.tsx"]),
        ("[id].tsx", ["app/[id].tsx", "app/d.tsx"]),
        ("app/[a-z].tsx", ["app/d.tsx"]),
        ("app/[id].tsx", ["app/[id].tsx"]),
        ("docs/My Notes/*.md", ["docs/My Notes/one.md"]),
        ("a:b.py", ["a:b.py"]),
        ("*:*", ["a:b.py"]),
        ("x y.md", ["x y.md"]),
    ],
)  # fmt: skip
def test_a_glob_finds_the_file_that_is_there(odd: Path, pattern: str, expected: list[str]) -> None:
    assert call(Glob(), context(odd), pattern=pattern).split("\n") == expected
    if not pattern.startswith(("*", "[", "a:", "x")):
        assert call(Glob(), context(odd), pattern=f"{odd}/{pattern}").split("\n") == expected


@pytest.mark.parametrize(
    ("glob", "expected"),
    [
        ("docs/My Notes/*.md", ["docs/My Notes/one.md"]),
        ("docs/My Notes/*.md,*.py", ["a:b.py", "docs/My Notes/one.md"]),
        ("*.md *.py", ["a:b.py", "docs/My Notes/one.md", "x y.md"]),
        ("x y.md", ["x y.md"]),
        ("app/[id]/*.tsx", ["app/[id]/page.tsx"]),
        ("a:b.py", ["a:b.py"]),
    ],
)  # fmt: skip
def test_a_search_looks_into_the_file_that_is_there(odd: Path, glob: str, expected: list[str]) -> None:
    assert sorted(call(Grep(), context(odd), pattern="needle", glob=glob).split("\n")) == expected
    assert call(Grep(), context(odd), pattern="needle", path="app/[id]/page.tsx") == "app/[id]/page.tsx"
