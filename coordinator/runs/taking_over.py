"""What a worker changed in its worktree: as a patch, and taken over into the main tree.

1. Looking changes nothing: the patch is made with an index and an object store of its own, and is git's plumbing form,
   which no setting of a person or a repository changes, so that `git apply` takes it byte for byte.
2. Taking over is whole or not at all: after any failure the main tree is what it was, and that is looked at, not hoped.
3. Nothing of the repository runs (`worker_agent/git`). A file of a filter is not stored as it stands in a tree: git would
   have stored something else. What is left out is told to the caller.
4. A commit is signed where the settings ask for it, by the program that the *person's* settings name, within
   `SIGN_TIMEOUT`: a program that waits for a person who is not there ends the attempt.

It raises `Refused`, in words for a person; all of it blocks.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from coordinator.runs.worktrees import top_of
from worker_agent.errors import AgentError, ConfigError
from worker_agent.git import NONE, NOT_INTO, Done, Place, filtered, git_now, left_out, place_of, quoted, settings_of

SIGN_TIMEOUT = 30.0  # seconds for a step that signs: a person at a terminal answers within it
MAX_PATCH = 1024 * 1024 * 1024  # bytes
# Hooks that git would have run on the way.
HOOKS = ("pre-commit", "prepare-commit-msg", "commit-msg", "post-commit", "pre-merge-commit", "post-merge")
_PATCH = (
    "diff-tree", "-r", "-M", "--full-index", "--binary", "-p", "-U3", "--no-color", "--no-ext-diff", "--no-textconv",
    "--no-relative", "--src-prefix=a/", "--dst-prefix=b/", "--submodule=short",
)  # fmt: skip
_STAT = ("diff-tree", "-r", "-M", "--stat", "--no-color", "--no-ext-diff", "--no-textconv", "--no-relative")
_FORM = {"diff.suppressBlankEmpty": "false", "core.quotePath": "true"}
_PROGRAMS = ("gpg.program", "gpg.openpgp.program", "gpg.x509.program", "gpg.ssh.program", "gpg.ssh.defaultkeycommand")


class Refused(AgentError):
    """It cannot be done, and nothing was. The message is one line for a person."""


class Change(Struct, frozen=True):
    """A task's worktree `tree` on `branch`, and the tree `main` that it was made from."""

    tree: Path
    main: Path
    branch: str


class Pushed(Struct, frozen=True):
    """A task's `branch` as it was fetched: it is `commit`, whose objects lie in `objects`; `main` is the tree that it was made from."""

    commit: str
    objects: Path
    main: Path
    branch: str


class Taken(Struct, frozen=True):
    """What git said of the merge, and what was left out, in words."""

    said: str
    left_out: tuple[str, ...]


def change_of(tree: Path, cwd: Path, branch: str) -> Change:
    """The change in the worktree `tree` of the repository around `cwd`. Raises `Refused` if it is not a worktree of it."""
    try:
        main = asyncio.run(top_of(cwd))
    except ConfigError as error:
        raise Refused(str(error)) from None
    own, of_main = place_of(tree), place_of(main)
    if own is None or of_main is None or own.directory != tree.resolve() or own.common != of_main.common:
        raise Refused(f"{tree} is no worktree of the repository at {main} any more")
    return Change(tree, main, branch)


def patch(change: Change, *, stat: bool = False) -> tuple[bytes, tuple[str, ...]]:
    """What changed since the branches parted, committed or not, as `git apply` takes it (or only which files, and how
    much); and what was left out, in words."""
    tree = change.tree
    base = _git(change.main, "merge-base", "HEAD", _head(tree)).text
    with _apart(_place(tree)) as variables:
        now = _tree_as_it_stands(tree, variables)
        names = _git(tree, "diff-tree", "-r", "--name-only", "-z", base, now, variables=variables).names
        form = _STAT if stat else _PATCH
        shown = _git(tree, *form, base, now, "--", settings=_FORM, variables=variables)
    return shown.out, _missing(tree, (), names)


def pushed_of(commit: str, objects: Path, cwd: Path, branch: str) -> Pushed:
    """What was pushed, for the repository around `cwd`. Raises `Refused`."""
    try:
        return Pushed(commit, objects, asyncio.run(top_of(cwd)), branch)
    except ConfigError as error:
        raise Refused(str(error)) from None


def patch_pushed(pushed: Pushed, *, stat: bool = False) -> bytes:
    """As `patch`, of what was pushed."""
    main, variables = pushed.main, {"GIT_ALTERNATE_OBJECT_DIRECTORIES": quoted(pushed.objects)}
    base = _git(main, "merge-base", "HEAD", pushed.commit, variables=variables).text
    return _git(main, *(_STAT if stat else _PATCH), base, pushed.commit, "--", settings=_FORM, variables=variables).out


def take_over_pushed(pushed: Pushed, *, sign: bool = True) -> Taken:
    """Take what was pushed into the main repository, as its branch, and merge that as `take_over` does."""
    main = pushed.main
    before = _state(main)
    if before[1]:
        raise Refused(f"{main} has changes that are not committed; commit or stash them first{_only_filtered(main)}")
    signing = _signing(main) if sign else None
    variables = {"GIT_ALLOW_PROTOCOL": "file"}
    source = str(pushed.objects.parent.parent)
    _git(main, "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", source, pushed.commit, variables=variables)
    _git(main, "update-ref", f"refs/heads/{pushed.branch}", pushed.commit)
    said = _merge(main, pushed.branch, signing, before)
    names = _git(main, "diff-tree", "-r", "--name-only", "-z", before[0], "HEAD").names
    return Taken(said, _missing(main, HOOKS, names))


def take_over(change: Change, message: str, *, sign: bool = True) -> Taken:
    """Commit what is not committed in the worktree, with `message`, and merge its branch into what is checked out in the
    main tree. `sign`: sign where the settings ask for it."""
    main = change.main
    before = _state(main)
    if before[1]:
        raise Refused(f"{main} has changes that are not committed; commit or stash them first{_only_filtered(main)}")
    signing = _signing(main) if sign else None
    _commit(change, message, signing)
    said = _merge(main, _wanted(change), signing, before)
    names = _git(main, "diff-tree", "-r", "--name-only", "-z", before[0], "HEAD").names
    return Taken(said, _missing(main, HOOKS, names))


# ── the worktree ─────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _apart(place: Place) -> Iterator[dict[str, str]]:
    """Variables for an index and an object store beside the repository's; gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="coordinator-diff-") as made:
        objects = Path(made) / "objects"
        objects.mkdir()
        yield {
            "GIT_INDEX_FILE": str(_copied_index(place, Path(made))),
            "GIT_OBJECT_DIRECTORY": str(objects),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": quoted(place.common / "objects"),
        }


def _copied_index(place: Place, directory: Path) -> Path:
    copy = directory / "index"
    if (place.git / "index").is_file():
        shutil.copy2(place.git / "index", copy)  # with its time: by it git knows which files it must look into
    return copy


def _tree_as_it_stands(tree: Path, variables: Mapping[str, str]) -> str:
    """The tree object of all files that are not ignored, as they stand there; written with the index that `variables` name."""
    if unmerged := _unmerged(tree, variables):
        raise Refused(f"a merge in {tree} is not finished: {', '.join(unmerged[:20])}")
    _git(tree, "add", "--all", settings={"core.safecrlf": "false", "advice.addEmbeddedRepo": "false"}, variables=variables)
    return _git(tree, "write-tree", variables=variables).text


def _commit(change: Change, message: str, signing: Mapping[str, str] | None) -> None:
    """Commit what is not committed. The worktree's own index and branch move last, when the commit is there."""
    tree, place = change.tree, _place(change.tree)
    with tempfile.TemporaryDirectory(prefix="coordinator-apply-") as made:
        variables = {"GIT_INDEX_FILE": str(_copied_index(place, Path(made)))}
        now, head = _tree_as_it_stands(tree, variables), _head(tree)
    merged = git_now(tree, "rev-parse", "--verify", "--quiet", "MERGE_HEAD").text
    if now == _git(tree, "rev-parse", "HEAD^{tree}").text and not merged:
        return
    _refuse_filtered(tree, _git(tree, "diff-tree", "-r", "--name-only", "--diff-filter=d", "-z", head, now).names)
    parents = [word for parent in (head, merged) if parent for word in ("-p", parent)]
    done = _signed(tree, signing, "commit-tree", *parents, "-m", message, now)
    if done.code:
        raise Refused(f"nothing was applied. {_why(done, signing)}")
    _git(tree, "reset", "--quiet", done.text)


def _refuse_filtered(tree: Path, names: Sequence[str]) -> None:
    """Files of a filter cannot be committed without running it: their content would stand where a pointer belongs."""
    for name, files in _filtered(tree, names).items():
        raise Refused(
            f"{', '.join(files[:5])}{' …' if len(files) > 5 else ''}: changed, not committed, and of the filter {name!r}, which"
            f" is a program of the repository and is not run here; nothing was applied. Commit it yourself:"
            f" git -C {tree} add --all && git -C {tree} commit"
        )


def _wanted(change: Change) -> str:
    """What is to be merged: the task's branch, or where the worktree stands when the worker left the branch behind."""
    tree, branch, head = change.tree, change.branch, _head(change.tree)
    if git_now(tree, "merge-base", "--is-ancestor", head, branch).code == 0:
        return branch
    if git_now(tree, "merge-base", "--is-ancestor", branch, head).code == 0:
        return head
    raise Refused(
        f"the worktree stands at {head[:12]}, which its branch {branch} does not contain, nor the other way round;"
        f" nothing was applied. Merge what you want by hand: git merge {branch}, git merge {head[:12]}"
    )


# ── the main tree ────────────────────────────────────────────────────────────────────────────────────────────────────


def _merge(main: Path, wanted: str, signing: Mapping[str, str] | None, before: tuple[str, str]) -> str:
    """Three-way, whole or not at all; what git said. Raises `Refused` that names the files in conflict."""
    options = ("-s", "ort", "--no-edit", "--no-autostash", "--no-verify-signatures", "--no-overwrite-ignore", "--no-verify")
    done = _signed(main, signing, "merge", *options, wanted)
    if done.code == 0:
        return done.out.decode("utf-8", "surrogateescape")
    conflicts = _unmerged(main)
    git_now(main, "merge", "--abort")
    if (now := _state(main)) != before:
        raise Refused(
            f"git merge failed, and {main} could not be put back as it was ({now[0][:12]}, {len(now[1].splitlines())} files changed):"
            f" git -C {main} reset --merge {before[0][:12]} does. {_why(done, signing)}"
        )
    if conflicts:
        names = ", ".join(conflicts[:20]) + (" …" if len(conflicts) > 20 else "")
        raise Refused(f"conflict in {names}; nothing was applied{_own_drivers(main)}. To merge by hand: git merge {wanted}")
    raise Refused(f"nothing was applied. {_why(done, signing)}")


def _state(main: Path) -> tuple[str, str]:
    """The commit that is checked out, and what of its files is changed."""
    return _head(main), _git(main, "status", "--porcelain", "--untracked-files=no", NOT_INTO).text


def _own_drivers(main: Path) -> str:
    own = [
        key.split(".", 1)[1].rsplit(".", 1)[0]
        for key in settings_of(main)
        if key.startswith("merge.") and key.endswith(".driver")
    ]
    return f" (merge drivers of the repository were not run: {', '.join(own)})" if own else ""


def _only_filtered(main: Path) -> str:
    """A hint where files may look changed only because their filter was not run."""
    marked = _filtered(main, _git(main, "diff-index", "--name-only", "-z", NOT_INTO, "HEAD").names)
    return f". Files of the filter {', '.join(marked)} may only look so: run git status there once" if marked else ""


# ── signing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _signing(main: Path) -> Mapping[str, str] | None:
    """None where no signature is asked for; else the settings that make git sign with the person's own program."""
    settings = settings_of(main)
    if settings.get("commit.gpgsign", "false").lower() not in ("true", "yes", "on", "1"):
        return None
    own: dict[str, str] = {}
    for scope in ("--system", "--global"):
        own |= _settings_in(main, scope)
    foreign = [key for key in _PROGRAMS if settings.get(key) != own.get(key)]
    if foreign:
        raise Refused(
            f"nothing was applied: commits are to be signed (commit.gpgSign), and the program for it is named by the repository"
            f" ({foreign[0]}), whose programs are not run here. Name it in your own settings (git config --global), or use --no-sign"
        )
    return {"gpg.program": "gpg", "gpg.openpgp.program": own.get("gpg.program", "gpg"), "gpg.x509.program": "gpgsm",
            "gpg.ssh.program": "ssh-keygen", **{key: own[key] for key in _PROGRAMS if key in own}}  # fmt: skip


def _settings_in(main: Path, scope: str) -> dict[str, str]:
    try:
        return settings_of(main, scope, "--includes")
    except ConfigError:  # there is no such file
        return {}


def _signed(directory: Path, signing: Mapping[str, str] | None, verb: str, *arguments: str) -> Done:
    if signing is None:
        return git_now(directory, verb, *arguments)
    return git_now(directory, verb, "-S", *arguments, settings=signing, timeout=SIGN_TIMEOUT)


def _why(done: Done, signing: Mapping[str, str] | None) -> str:
    if signing is None:
        return f"git: {done.words}"
    hint = (
        "Commits are signed here (commit.gpgSign): unlock the key first (by signing something at a terminal), or use --no-sign"
    )
    if done.timed_out:
        return f"Signing did not end within {SIGN_TIMEOUT:.0f} s; it waits for a person, perhaps for a passphrase. {hint}"
    return f"git: {done.words}. {hint}"


# ── one call ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _git(
    directory: Path, verb: str, *arguments: str, settings: Mapping[str, str] = NONE, variables: Mapping[str, str] = NONE
) -> Done:
    """A call that must succeed. Raises `Refused` with git's own words."""
    done = git_now(directory, verb, *arguments, max_output=MAX_PATCH, settings=settings, variables=variables)
    if done.code:
        raise Refused(f"git {verb}: {done.words}")
    return done


def _head(tree: Path) -> str:
    return _git(tree, "rev-parse", "--verify", "HEAD^{commit}").text


def _place(tree: Path) -> Place:
    place = place_of(tree)
    if place is None:
        raise Refused(f"{tree} is in no repository any more")
    return place


def _unmerged(tree: Path, variables: Mapping[str, str] = NONE) -> list[str]:
    """The names of the files in conflict."""
    entries = _git(tree, "ls-files", "--unmerged", "-z", variables=variables).names
    return sorted({entry.partition("\t")[2] for entry in entries})


def _filtered(tree: Path, names: Sequence[str]) -> dict[str, list[str]]:
    return asyncio.run(filtered(tree, names))


def _missing(tree: Path, hooks: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    return asyncio.run(left_out(tree, hooks, names))
