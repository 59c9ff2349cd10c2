"""Which places grant rights and which hold secrets: as written, through links, in any case."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker_agent.tools.places import grants_rights, holds_secrets

RIGHTS = (
    ".git/hooks/pre-commit", ".git/config", ".git/config.worktree", ".git", ".git/info/attributes", ".GIT/config",
    "vendor/x/.git/hooks/post-checkout", ".gitmodules", ".claude/settings.json", ".claude/agents/a.md", ".Claude/x",
    ".coordinator/settings.toml", ".coordinator/hooks/x", ".agents/skills/x/SKILL.md", ".mcp.json", ".vscode/tasks.json",
    ".idea/workspace.xml", ".husky/pre-commit", ".githooks/pre-push", ".envrc", "sub/.envrc", ".pre-commit-config.yaml",
    ".npmrc", ".bashrc", ".coordinator/memory/../settings.toml",
)  # fmt: skip
TEXT = (
    "src/app.py", "CLAUDE.md", ".gitignore", ".gitattributes", ".github/workflows/ci.yml", "Makefile", "package.json", ".env",
    "git/hooks/x", "docs/.github/x", ".coordinator/memory/note.md", "hooks/pre-commit", "config",
)  # fmt: skip
HOME_RIGHTS = (
    ".bashrc", ".profile", ".zshenv", ".ssh/authorized_keys", ".ssh/config", ".config/git/config", ".config/fish/config.fish",
    ".config/systemd/user/x.service", ".config/autostart/x.desktop", ".gitconfig", ".npmrc", ".local/bin/ls",
    ".config/coordinator/config.toml", ".claude/settings.json",
)  # fmt: skip
SECRETS = (
    ".ssh/id_ed25519", ".ssh", ".aws/credentials", ".netrc", ".npmrc", ".pypirc", ".config/gcloud/x", ".git-credentials",
    ".claude/.credentials.json", ".claude.json", ".codex/auth.json", ".gemini/oauth_creds.json", ".docker/config.json", ".SSH/id_rsa", "x/../.ssh/id_rsa",
)  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home/work").mkdir(parents=True)
    return tmp_path / "home"


@pytest.mark.parametrize("name", RIGHTS)
def test_what_runs_later_or_says_what_may_run_grants_rights(home: Path, name: str) -> None:
    work = home / "work"
    assert grants_rights(work / name, (work,), home)
    assert grants_rights(Path("/elsewhere") / name, (work,), home)


@pytest.mark.parametrize("name", TEXT)
def test_text_and_what_a_person_runs_by_name_grant_nothing(home: Path, name: str) -> None:
    assert not grants_rights(home / "work" / name, (home / "work",), home)


@pytest.mark.parametrize("name", HOME_RIGHTS)
def test_start_files_and_settings_of_the_home_directory_grant_rights(home: Path, name: str) -> None:
    assert grants_rights(home / name, (home / "work",), home)
    assert grants_rights(home / name, (home,), home)  # also for an agent that works in the home directory itself


def test_a_root_below_such_a_place_is_free_itself(home: Path) -> None:
    root = home / "work/.claude/worktrees/x"
    assert not grants_rights(root / "src/a.py", (home / "work", root), home)
    assert grants_rights(root / ".claude/settings.json", (home / "work", root), home)


def test_a_link_leads_to_what_it_leads_to(home: Path) -> None:
    work = home / "work"
    (work / ".git").mkdir()
    (work / "plain").symlink_to(".git")
    (work / ".envrc").symlink_to("text")
    (home / "away").symlink_to(home / ".ssh")
    assert grants_rights(work / "plain/config", (work,), home)
    assert grants_rights(work / ".envrc", (work,), home)  # by its name, though it leads to a text
    assert holds_secrets(home / "away/id_rsa", home)


def test_a_repository_by_another_name_has_hooks_and_settings_too(home: Path) -> None:
    work = home / "work"
    for name in ("bare/objects", "bare/refs", "bare/hooks"):
        (work / name).mkdir(parents=True)
    (work / "bare/HEAD").write_text("ref: refs/heads/main\n")
    assert grants_rights(work / "bare/hooks/post-merge", (work,), home)
    assert grants_rights(work / "bare/config", (work,), home)
    assert not grants_rights(work / "bare/objects/ab/cd", (work,), home)


def test_the_systems_own_start_files_grant_rights(home: Path) -> None:
    for path in ("/etc/profile.d/x.sh", "/etc/cron.d/x", "/var/spool/cron/root"):
        assert grants_rights(Path(path), (home / "work",), home)


@pytest.mark.parametrize("name", SECRETS)
def test_known_places_of_secrets_are_known(home: Path, name: str) -> None:
    assert holds_secrets(home / name, home)


def test_other_places_hold_no_secrets(home: Path) -> None:
    assert not any(holds_secrets(home / name, home) for name in ("work/.env", "work/.ssh/x", ".config/nvim/init.lua", ".sshx"))
    assert holds_secrets(Path("/etc/shadow"), home) and not holds_secrets(Path("/etc/passwd"), home)


def test_a_worktree_below_the_data_directory_is_free_itself(home: Path) -> None:
    root = home / ".local/share/coordinator/worktrees/s/w"
    assert not grants_rights(root / "src/a.py", (root,), home)
    assert grants_rights(root / ".envrc", (root,), home) and grants_rights(root.parents[2] / "trust.json", (root,), home)
