"""`tasks diff` and `tasks apply` on a real repository: three-way, whole or not at all, in words when not."""

import subprocess

import pytest

from tests.cli.program import Program
from tests.cli.seed import seeded


class Repository:
    """The session's repository, and one task's worktree beside it on its own branch."""

    def __init__(self, program: Program, tmp_path) -> None:
        self.main, self.tree = program.cwd, tmp_path / "tree"
        self.git("init", "-q", "-b", "main")
        self.write(self.main, "a.txt", "one\ntwo\nthree\n")
        self.git("add", ".")
        self.commit("first")
        self.git("worktree", "add", "-q", "-b", "coordinator/t1", str(self.tree))

    def git(self, *arguments: str, cwd=None) -> str:
        settings = ["-c", "user.name=x", "-c", "user.email=x@example.invalid"]
        done = subprocess.run(["git", *settings, *arguments], cwd=cwd or self.main, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def commit(self, text: str, cwd=None) -> None:
        self.git("commit", "-q", "-am", text, cwd=cwd)

    def write(self, directory, name: str, text: str) -> None:
        (directory / name).write_text(text)

    def state(self) -> tuple[str, str]:
        return self.git("rev-parse", "HEAD"), self.git("status", "--porcelain")


@pytest.fixture
def repository(program: Program, tmp_path) -> Repository:
    return Repository(program, tmp_path)


@pytest.fixture
def task(program: Program, repository: Repository):
    with seeded(program) as seed:
        task = seed.task("change things", worktree=str(repository.tree), branch="coordinator/t1", cwd=str(program.cwd))
        seed.finish(task)
        yield task.id


AUTHOR = {"GIT_AUTHOR_NAME": "x", "GIT_AUTHOR_EMAIL": "x@x", "GIT_COMMITTER_NAME": "x", "GIT_COMMITTER_EMAIL": "x@x"}


def apply(program: Program, task: str):
    return program.here("tasks", "apply", task, **AUTHOR)


def test_a_diff_shows_what_is_committed_and_what_is_not(program, repository, task):
    repository.write(repository.tree, "a.txt", "one\nTWO\nthree\n")
    repository.commit("second", cwd=repository.tree)
    repository.write(repository.tree, "new.txt", "new\n")
    shown = program.here("tasks", "diff", task)
    assert shown.code == 0 and "+TWO" in shown.out and "+new" in shown.out and "\x1b" not in shown.out
    assert "new.txt" in program.here("tasks", "diff", task, "--stat").out


def test_apply_takes_over_what_main_does_not_contradict(program, repository, task):
    repository.write(repository.tree, "new.txt", "new\n")
    repository.write(repository.main, "a.txt", "zero\none\ntwo\nthree\n")
    repository.commit("meanwhile")
    assert apply(program, task).code == 0
    assert (repository.main / "new.txt").read_text() == "new\n"
    assert (repository.main / "a.txt").read_text().startswith("zero")


def test_a_conflict_is_named_and_nothing_is_half_applied(program, repository, task):
    repository.write(repository.tree, "a.txt", "one\nTWO\nthree\n")
    repository.write(repository.tree, "other.txt", "fine\n")
    repository.write(repository.main, "a.txt", "one\n2\nthree\n")
    repository.commit("meanwhile")
    before = repository.state()
    done = apply(program, task)
    assert done.code == 1 and "conflict in a.txt" in done.err and "nothing was applied" in done.err
    assert repository.state() == before and not (repository.main / "other.txt").exists()


def test_commits_at_a_detached_head_are_applied_too(program, repository, task):
    repository.git("checkout", "-q", "--detach", cwd=repository.tree)
    repository.write(repository.tree, "a.txt", "one\nTWO\nthree\n")
    repository.commit("detached", cwd=repository.tree)
    assert "+TWO" in program.here("tasks", "diff", task).out
    assert apply(program, task).code == 0
    assert (repository.main / "a.txt").read_text() == "one\nTWO\nthree\n"


def test_a_head_and_a_branch_that_went_apart_are_left_to_the_person(program, repository, task):
    repository.write(repository.tree, "a.txt", "1\ntwo\nthree\n")
    repository.commit("on the branch", cwd=repository.tree)
    repository.git("checkout", "-q", "--detach", "main", cwd=repository.tree)
    repository.write(repository.tree, "b.txt", "b\n")
    repository.git("add", ".", cwd=repository.tree)
    repository.commit("elsewhere", cwd=repository.tree)
    before = repository.state()
    done = apply(program, task)
    assert done.code == 1 and "does not contain" in done.err and repository.state() == before


def test_changes_in_the_main_tree_are_not_touched(program, repository, task):
    repository.write(repository.tree, "new.txt", "new\n")
    repository.write(repository.main, "a.txt", "mine\n")
    done = apply(program, task)
    assert done.code == 1 and "not committed" in done.err
    assert (repository.main / "a.txt").read_text() == "mine\n"


def test_an_untracked_file_in_the_way_is_named(program, repository, task):
    repository.write(repository.tree, "new.txt", "new\n")
    repository.write(repository.main, "new.txt", "mine\n")
    done = apply(program, task)
    assert done.code == 1 and "new.txt" in done.err
    assert (repository.main / "new.txt").read_text() == "mine\n"


def test_a_task_without_a_worktree_says_so(program, repository):
    with seeded(program) as seed:
        task = seed.task()
        seed.finish(task)
        done = program.here("tasks", "diff", task.id)
    assert done.code == 1 and "has no worktree" in done.err


@pytest.mark.parametrize("command", ["rm", "prune"])
def test_what_a_removed_session_leaves_behind_is_named_with_the_command_that_removes_it(program, repository, command):
    with seeded(program) as seed:
        task = seed.task("change things", worktree=str(repository.tree), branch="coordinator/t1", cwd=str(program.cwd))
        gone = seed.task("nothing", worktree=f"{repository.tree}-gone", branch="coordinator/gone", cwd=str(program.cwd))
        for made in (task, gone):
            seed.finish(made)
        seed.end()
    removing = {"rm": ("sessions", "rm", "--yes", seed.session_id), "prune": ("prune", "--older-than", "0", "--yes")}
    done = program.here(*removing[command])
    assert done.code == 0 and gone.id not in done.err, done
    (line,) = done.err.splitlines()
    assert f"the worktree {repository.tree} and the branch coordinator/t1 of {task.id} stay" in line
    subprocess.run(line.split("to remove: ")[1], shell=True, check=True, capture_output=True)
    assert not repository.tree.exists() and repository.git("branch", "--list") == "* main"
