"""What an agent is told of where it is: memory files in order, imports within bounds, git state, byte-identical."""

import asyncio
import subprocess

from tests.support.hostile import hostile
from worker_agent.context.injected import system_context, user_context
from worker_agent.context.instructions import Instructions


def shown(cwd, home):
    return [file.text for file in Instructions(cwd, home, home / "managed.md").at_start() if "only here" not in file.text]


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_files_come_from_the_widest_to_the_nearest(tmp_path):
    home, project = tmp_path / "home", tmp_path / "repo" / "sub"
    write(home / "managed.md", "managed")
    write(home / ".claude/CLAUDE.md", "mine")
    write(tmp_path / "repo/CLAUDE.md", "repo")
    write(tmp_path / "repo/CLAUDE.local.md", "repo local")
    write(project / ".claude/CLAUDE.md", "sub")
    write(project / "AGENTS.md", "agents")
    assert shown(project, home) == ["managed", "mine", "repo", "repo local", "sub", "agents"]


def test_of_two_files_that_say_the_same_one_is_shown(tmp_path):
    home = tmp_path / "home"
    for name, make in {
        "link": lambda d: (d / "AGENTS.md").symlink_to(d / "CLAUDE.md"),
        "bytes": lambda d: write(d / "AGENTS.md", "text @AGENTS"),
        "import": lambda d: write(d / "AGENTS.md", "text"),
    }.items():
        directory = tmp_path / name
        write(directory / "CLAUDE.md", "see @AGENTS.md" if name == "import" else "text @AGENTS")
        make(directory)
        assert len(shown(directory, home)) == 1, name


def test_imports_are_followed_but_not_in_code_not_out_and_not_for_ever(tmp_path):
    home, project = tmp_path / "home", tmp_path / "repo"
    write(tmp_path / "secret.md", "secret")
    write(project / "docs/a.md", "A and @b.md")
    write(project / "docs/b.md", "B and @a.md")
    write(project / "CLAUDE.md", "Read @docs/a.md, not `@docs/b.md`, not @../secret.md, not me@docs/a.md, @missing.md")
    assert shown(project, home) == [
        "Read A and B and @a.md, not `@docs/b.md`, not @../secret.md, not me@docs/a.md, @missing.md"
    ]


def test_comments_are_taken_out_and_empty_files_left_out(tmp_path):
    write(tmp_path / "r/CLAUDE.md", "<!-- a\nnote -->Text<!-- x -->")
    write(tmp_path / "r/AGENTS.md", "<!-- nothing else -->")
    assert shown(tmp_path / "r", tmp_path / "home") == ["Text"]


def test_a_memory_that_cannot_be_read_is_left_out(tmp_path):
    (tmp_path / "r/CLAUDE.md").mkdir(parents=True)
    write(tmp_path / "r/AGENTS.md", "fine")
    assert shown(tmp_path / "r", tmp_path / "home") == ["fine"]


def test_the_user_context_says_that_it_may_not_matter_and_is_byte_identical(tmp_path):
    write(tmp_path / "CLAUDE.md", "Use tabs.")
    files = Instructions(tmp_path, tmp_path / "home", tmp_path / "none").at_start()
    first, second = user_context(files, 0.0), user_context(files, 0.0)
    assert first.wire == second.wire and first.meta
    assert "may or may not matter" in first.text and "Use tabs." in first.text and "1970-01-01" in first.text
    assert user_context([], 0.0) is None


def test_the_system_context_tells_date_place_and_git_state(tmp_path):
    def git(*arguments):
        subprocess.run(
            ["git", "-c", "user.name=x", "-c", "user.email=x@x", *arguments], cwd=tmp_path, check=True, capture_output=True
        )

    git("init", "-q", "-b", "main")
    assert "without a commit" in asyncio.run(system_context(tmp_path, 0.0, trusted=True))
    write(tmp_path / "a.txt", "a")
    git("add", ".")
    git("commit", "-q", "-m", "First <commit>")
    write(tmp_path / "b.txt", "b")
    text = asyncio.run(system_context(tmp_path, 0.0, trusted=True))
    for part in ("Date: 1970-01-01", f"Working directory: {tmp_path}", "Git branch: main", "?? b.txt", "First <commit>"):
        assert part in text


def test_in_a_directory_that_is_not_trusted_git_is_not_started(tmp_path):
    repository = hostile(tmp_path)
    text = asyncio.run(system_context(repository.top, 0.0, trusted=False))
    assert "Git branch: main" in text and "not trusted" in text and "second" not in text
    repository.touch()
    assert "second" in asyncio.run(system_context(repository.top, 0.0, trusted=True))
    assert repository.sprung() == set()


def test_a_place_without_git_says_so(tmp_path):
    assert "Git: not a repository" in asyncio.run(system_context(tmp_path, 0.0, trusted=True))
