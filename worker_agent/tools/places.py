"""Places that a write or a read must not reach unasked, whoever asks: one list for the gate and for the confinement.

Rules:

1. A place is judged by its path below the directory that holds it (a root, a home, a repository), after links are
   resolved and as written: either is enough. Upper and lower case count as one: some file systems take them so.
2. `grants_rights`: what is written there runs later, or changes what may run: settings, hooks, agents, git's own files,
   editors' tasks, shell start files. An edit of them asks in every mode but `bypassPermissions`; a confined command
   cannot write them.
3. `holds_secrets`: keys, tokens, password files. A confined command cannot read them.
4. What only becomes text for a model grants nothing (`CLAUDE.md`, `.coordinator/memory`), nor does what a person runs by
   name or only after a push, which asks (`Makefile`, `package.json`, `.github/workflows`), nor `.gitattributes`: it only
   names filters, and what they run stands in git's configuration. `.env` is the project's own: a deny rule names it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

# Directories of these names, at any depth: all that is in them.
RIGHTS_DIRECTORIES = (
    ".git", ".claude", ".coordinator", ".agents", ".vscode", ".idea", ".fleet", ".zed", ".cursor", ".devcontainer",
    ".husky", ".githooks", ".lefthook", ".direnv",
)  # fmt: skip
# Files of these names, at any depth. `.git` as a file names the directory whose hooks and settings hold.
RIGHTS_FILES = (
    ".mcp.json", ".gitmodules", ".gitconfig", ".envrc", ".pre-commit-config.yaml", ".pre-commit-config.yml",
    "lefthook.yml", "lefthook.yaml", ".lefthook.yml", ".huskyrc", ".npmrc", ".yarnrc", ".yarnrc.yml", ".pnpmfile.cjs",
    ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".profile", ".zshrc", ".zshenv",
    ".zprofile", ".zlogin", ".zlogout", ".kshrc", ".cshrc", ".tcshrc", ".login", ".inputrc", ".xprofile", ".xinitrc",
    ".xsession", ".xsessionrc", ".vimrc", ".gvimrc", ".exrc", ".nvimrc", ".nvim.lua", ".emacs", ".dir-locals.el",
    ".gdbinit", ".lldbinit", ".tmux.conf", ".screenrc", ".mise.toml", "mise.toml", ".condarc", ".pythonrc",
    ".psqlrc", ".sqliterc", ".irbrc", ".rprofile", ".curlrc", ".wgetrc",
)  # fmt: skip
# Below the directories above: what is text or data after all, and agents write it.
RIGHTS_EXCEPTIONS = (".coordinator/memory",)
# Below the home directory.
RIGHTS_IN_HOME = (
    ".ssh", ".gnupg", ".config/git", ".config/fish", ".config/systemd", ".config/autostart", ".config/environment.d",
    ".config/direnv", ".config/nushell", ".config/nvim", ".config/coordinator", ".config/plasma-workspace", ".config/mise",
    ".config/pip", ".config/husky", ".local/bin", ".local/share/systemd", ".local/share/applications",
    ".local/share/coordinator", ".local/share/dbus-1", "bin", ".bashrc.d", ".zshrc.d", ".oh-my-zsh", ".oh-my-bash", ".vim",
    ".emacs.d", ".cargo/bin", ".cargo/config", ".cargo/config.toml", ".cargo/env", ".pip", ".nix-profile",
    ".pyenv/shims", ".docker", ".kube", ".aws", "library/launchagents", "library/application support/coordinator",
)  # fmt: skip
# Anywhere: what the system runs by itself.
RIGHTS_OF_THE_SYSTEM = ("/etc", "/var/spool/cron", "/var/spool/at", "/var/spool/anacron", "/library/launchdaemons")
# Of a repository without a working tree, or a directory that `.git` names: what git runs or is told.
_OF_A_GIT_DIRECTORY = ("hooks", "config", "config.worktree", "info", "modules", "worktrees", "commondir", "gitdir")

# Below the home directory: what a command has no business to read.
SECRETS_IN_HOME = (
    ".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".config/gcloud", ".config/gh", ".config/glab-cli",
    ".config/hub", ".config/git/credentials", ".config/op", ".config/containers/auth.json", ".config/rclone",
    ".config/doctl", ".config/heroku", ".config/sops", ".config/age", ".config/anthropic", ".config/openai",
    ".netrc", ".pgpass", ".my.cnf", ".mylogin.cnf", ".npmrc", ".yarnrc.yml", ".pypirc", ".claude.json",
    ".claude/.credentials.json", ".codex/auth.json", ".gemini/oauth_creds.json", ".git-credentials", ".cargo/credentials", ".cargo/credentials.toml", ".gem/credentials",
    ".terraform.d/credentials.tfrc.json", ".terraformrc", ".vault-token", ".password-store", ".boto", ".s3cfg",
    ".oci", ".databrickscfg", ".huggingface", ".cache/huggingface/token", ".local/share/keyrings", ".mozilla",
    ".thunderbird", ".config/google-chrome", ".config/chromium", ".config/bravesoftware", ".bash_history",
    ".zsh_history", ".python_history", ".psql_history", ".mysql_history", ".m2/settings.xml", ".gradle/gradle.properties",
    "library/keychains", "library/application support/google/chrome", "library/application support/firefox",
    ".local/share/coordinator/serve-token", "library/application support/coordinator/serve-token",
)  # fmt: skip
# Anywhere: password files, keys of the machine, what services hand to their own processes.
SECRETS_OF_THE_SYSTEM = (
    "/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/sudoers", "/etc/sudoers.d", "/etc/ssl/private",
    "/etc/security/opasswd", "/etc/krb5.keytab", "/etc/wireguard", "/etc/netplan", "/run/secrets", "/var/run/secrets",
    "/root/.ssh", "/root/.aws", "/root/.gnupg", "/root/.netrc", "/root/.git-credentials", "/root/.config/gcloud",
    "/root/.kube", "/root/.docker",
)  # fmt: skip


def grants_rights(path: Path, roots: Sequence[Path], home: Path) -> bool:
    """Whether what is written at `path` (absolute) runs later, or changes what may run. `roots` are the directories an
    agent works in: their own path is nobody's place, so that one may work in `.claude/worktrees/x`. Never raises."""
    return any(_grants(candidate, _both(roots), _both((home,))) for candidate in _both((path,)))


def rights_named(path: Path, roots: Sequence[Path], home: Path) -> frozenset[str]:
    """By which names `path` (absolute) grants rights, in small letters: `.claude` of `x/.claude/agents/a.md`. None where it
    grants none. A rule that says such a name was written about it. Never raises."""
    every, homes = _both(roots), _both((home,))
    ways = ([PurePath(candidate), *PurePath(candidate).parents][::-1] for candidate in _both((path,)))
    found = (next((place for place in way if _grants(str(place), every, homes)), None) for way in ways)
    return frozenset(place.name.casefold() for place in found if place is not None)


def holds_secrets(path: Path, home: Path) -> bool:
    """Whether `path` (absolute) is, or lies in, a known place of keys, tokens or passwords. Never raises."""
    for candidate in _both((path,)):
        if _within(candidate, SECRETS_OF_THE_SYSTEM):
            return True
        if any(_within(part, SECRETS_IN_HOME) for part in _below(candidate, _both((home,)))):
            return True
    return False


def names_a_right(parts: Iterable[str]) -> bool:
    """Whether these components of a path, below a root, are a place that grants rights at any depth."""
    folded = [part.casefold() for part in parts]
    for index, name in enumerate(folded):
        if name in _DIRECTORIES or name in _FILES:
            rest = "/".join(folded[index:])
            return not _within(rest, RIGHTS_EXCEPTIONS)
    return False


def secret_places(home: Path) -> tuple[Path, ...]:
    """The known places of secrets, whether they exist or not."""
    return (*(home / name for name in SECRETS_IN_HOME), *map(Path, SECRETS_OF_THE_SYSTEM))


def is_git_directory(path: Path) -> bool:
    """Whether git takes `path` itself for a repository, whatever its name is."""
    return (path / "HEAD").is_file() and (path / "objects").is_dir() and (path / "refs").is_dir()


_DIRECTORIES, _FILES = frozenset(RIGHTS_DIRECTORIES), frozenset(RIGHTS_FILES)


def _grants(path: str, roots: Sequence[str], homes: Sequence[str]) -> bool:
    # The innermost root: the scratchpad and worktrees may lie below the data directory, or below `.claude`.
    root = max((root for root in roots if _inside(path, root)), key=len, default=None)
    places = (f"{home.rstrip('/')}/{name}" for home in homes for name in RIGHTS_IN_HOME)
    if any(_inside(path, place) and (root is None or not _inside(root, place)) for place in places):
        return True
    if root is None:
        return _within(path, RIGHTS_OF_THE_SYSTEM) or names_a_right(PurePath(path).parts)
    below = PurePath(path).parts[len(PurePath(root).parts) :]
    return names_a_right(below) or _in_a_git_directory(Path(root), below)


def _in_a_git_directory(root: Path, below: Sequence[str]) -> bool:
    """Whether the path is one of git's own files in a repository that is not called `.git`."""
    for index, name in enumerate(below):
        if name.casefold() in _OF_A_GIT_DIRECTORY and is_git_directory(root.joinpath(*below[:index])):
            return True
    return False


def _both(paths: Iterable[Path]) -> tuple[str, ...]:
    """As written and with links resolved."""
    found: dict[str, None] = {}
    for path in paths:
        found[os.path.normpath(path)] = None
        try:
            found[os.path.realpath(path)] = None
        except (OSError, ValueError):
            continue
    return tuple(found)


def _inside(path: str, directory: str) -> bool:
    return f"{path}/".casefold().startswith(f"{directory.rstrip('/')}/".casefold())


def _below(path: str, directories: Iterable[str]) -> list[str]:
    """The path below each of the directories that hold it."""
    return [
        path[len(directory.rstrip("/")) + 1 :] for directory in directories if _inside(path, directory) and path != directory
    ]


def _within(path: str, places: Iterable[str]) -> bool:
    return any(_inside(path, place) for place in places)
