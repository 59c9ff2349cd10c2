"""The environment in which our git runs nothing of a repository.

Switched off by fixed settings: hooks, fsmonitor, pagers, editors, helpers, signing, transports and lazy fetching. What a
repository names itself (a filter, a diff or merge driver, a hook of the configuration) is switched off by its name: the
configuration is listed first, which runs nothing, in the same directory, so that conditional includes count as they will.

Settings travel in `GIT_CONFIG_COUNT` (git 2.31): they beat every file, and reach the processes that git starts, also in
submodules. `safe.bareRepository` is known from git 2.38 on, `GIT_NO_LAZY_FETCH` from 2.39.4: before that the transports
that are not allowed do the same. Names of a submodule's own configuration are not listed: git must not enter one, and
does not where only commits are compared (`ignoreSubmodules = dirty`).
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from worker_agent.config import tool_environment
from worker_agent.errors import ConfigError

LIST_TIMEOUT = 5.0  # seconds to list a configuration
MAX_LIST = 4 * 1024 * 1024  # bytes of it

NOT_INTO = "--ignore-submodules=dirty"  # for `status` and `diff`: a submodule's commit counts, git is not started in it

# Of the caller's variables: who commits, and whose settings of a person count. Nothing that names a repository.
KEPT = frozenset(
    """GIT_AUTHOR_NAME GIT_AUTHOR_EMAIL GIT_COMMITTER_NAME GIT_COMMITTER_EMAIL
    GIT_CONFIG_GLOBAL GIT_CONFIG_SYSTEM GIT_CONFIG_NOSYSTEM""".split()
)
_VARIABLES = {
    "GIT_ALLOW_PROTOCOL": "",  # none: also what an `ext::` address, `uploadpack` or an ssh command would run
    "GIT_ASKPASS": "",
    "GIT_EDITOR": "true",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PAGER": "cat",
    "GIT_SEQUENCE_EDITOR": "true",
    "GIT_TERMINAL_PROMPT": "0",
}
_SETTINGS = {
    "commit.gpgSign": "false",
    "core.askPass": "",
    "core.editor": "true",
    "core.fsmonitor": "",  # empty is off in every version; before 2.36 `false` was the name of a program
    "core.hooksPath": "/dev/null",
    "core.pager": "cat",
    "core.sshCommand": "false",
    "credential.helper": "",
    "diff.ignoreSubmodules": "dirty",
    "diff.submodule": "short",
    "gc.auto": "0",
    "gpg.openpgp.program": "false",
    "gpg.program": "false",
    "gpg.ssh.program": "false",
    "gpg.x509.program": "false",
    "log.showSignature": "false",
    "maintenance.auto": "false",
    "merge.verifySignatures": "false",
    "rerere.enabled": "false",
    "safe.bareRepository": "explicit",
    "sequence.editor": "true",
    "status.submoduleSummary": "false",
    "submodule.recurse": "false",
    "tag.gpgSign": "false",
}
# An external diff cannot be set to none, only to another program: this one gives what git itself would, without its head.
_PLAIN_DIFF = """f() { diff -u --label "a/$1" --label "b/$1" -- "$2" "$5"; :; }; f"""
# What is switched off where it is set: a pattern of the key as git lists it (section and last part in small letters), and
# the value. A merge driver that fails is a conflict, an empty one would take one side for the merge.
_BY_NAME = tuple(
    (re.compile(pattern, re.DOTALL), value)
    for pattern, value in (
        (r"filter\..*\.(clean|smudge|process)", ""),
        (r"filter\..*\.required", "false"),
        (r"diff\.external", _PLAIN_DIFF),
        (r"diff\..*\.command", _PLAIN_DIFF),
        (r"diff\..*\.textconv", "cat"),
        (r"diff\..*\.cachetextconv", "false"),
        (r"merge\..*\.driver", "false"),
        (r"branch\..*\.mergeoptions", ""),
        (r"submodule\..*\.ignore", "dirty"),
        (r"submodule\..*\.update", "none"),
        (r"pager\..*", "false"),
        (r"alias\..*", ""),
        (r"credential\..*\.helper", ""),
        (r"gpg\..*\.(program|defaultkeycommand)", "false"),
        (r"remote\..*\.(uploadpack|receivepack)", "false"),
        (r"(difftool|mergetool|browser|man)\..*\.cmd", "false"),
        (r"trailer\..*\.(cmd|command)", "true"),
        (r"core\.alternaterefscommand", "true"),
        (r"interactive\.difffilter", "cat"),
    )
)
_HOOK = re.compile(r"(hook\..*)\.[^.]*", re.DOTALL)  # hooks of the configuration, from git 2.54 on
_FILTER = re.compile(r"filter\.(.*)\.(clean|smudge|process|required)", re.DOTALL)


def own_environment(settings: Iterable[str], more: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """The whole environment of our own git, for a repository that sets `settings`; `more` are further variables.
    Directories of `PATH` that are not absolute lie in the repository, and are left out."""
    kept = {name: value for name, value in tool_environment().items() if not name.startswith("GIT_") or name in KEPT}
    path = os.pathsep.join(part for part in kept.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(part))
    return {**kept, "PATH": path, **_quiet(settings), **more}


def filters(settings: Mapping[str, str]) -> frozenset[str]:
    """The names of the filters that are configured."""
    found = (_FILTER.fullmatch(key) for key in settings)
    return frozenset(match[1] for match in found if match)


def settings_of(directory: Path, *arguments: str) -> dict[str, str]:
    """Every setting that counts for git in `directory`, last value, section and last part of a key in small letters.
    `arguments` narrow it (`--global`). Runs nothing. Raises `ConfigError`."""
    environment = own_environment(())
    listed = _listed([program(environment), "-C", str(directory), "config", "-z", "--list", *arguments], environment)
    given = len(_SETTINGS) if not arguments else 0  # our own, from the environment, are listed last
    entries = [os.fsdecode(entry).partition("\n") for entry in listed.split(b"\0")[:-1]]
    return {key: value if line_end else "true" for key, line_end, value in entries[: len(entries) - given]}


def program(environment: Mapping[str, str]) -> str:
    """The absolute path of git. Raises `ConfigError`."""
    found = shutil.which("git", path=environment["PATH"])
    if not found:
        raise ConfigError("git is not installed, or not on PATH")
    return found


def _listed(argv: list[str], environment: Mapping[str, str]) -> bytes:
    """Its output. It starts nothing itself, so that ending it is enough; a file that never ends, or a FIFO that it
    includes, meets the bound."""
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise ConfigError(f"git cannot be started: {error.strerror}") from None
    bound = threading.Timer(LIST_TIMEOUT, process.kill)
    bound.start()
    try:
        with process:
            assert process.stdout is not None
            output = process.stdout.read(MAX_LIST + 1)
            if len(output) > MAX_LIST:
                process.kill()
    finally:
        bound.cancel()
    if process.returncode == -signal.SIGKILL:
        raise ConfigError(f"git's configuration cannot be listed within {LIST_TIMEOUT:.0f} s and {MAX_LIST:,} bytes")
    if process.returncode:
        raise ConfigError("git's configuration cannot be read")
    return output


def _quiet(settings: Iterable[str]) -> dict[str, str]:
    """The variables that switch off what is fixed, and what of `settings` (keys) names a program."""
    off = dict(_SETTINGS)
    for key in settings:
        off.update((key, value) for pattern, value in _BY_NAME if pattern.fullmatch(key))
        if hook := _HOOK.fullmatch(key):
            off[f"{hook[1]}.enabled"] = "false"
        if named := _FILTER.fullmatch(key):
            off[f"filter.{named[1]}.required"] = "false"
    pairs: dict[str, str] = {}
    for number, (key, value) in enumerate(off.items()):
        pairs |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return {**_VARIABLES, "SSH_ASKPASS": "", "GIT_CONFIG_COUNT": str(len(off)), **pairs}
