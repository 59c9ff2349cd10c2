"""System and user context of an agent, and the plain view of its conversation.

The system context is the last block of the system prompt: all that varies between agents of one definition stands
there, behind the cache mark. Both texts are made once per conversation and stay byte-identical.
"""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from worker_agent.config import tool_environment

MEMORY_FILES = ("CLAUDE.md", "AGENTS.md")
MEMORY_CAP = 40_000  # characters of one file
GIT_TIMEOUT = 5.0  # seconds
GIT_LINES = 40


def system_context(cwd: Path, now: float, *, scratchpad: Path | None = None) -> str:
    """Date, directory, platform, scratchpad and git state."""
    lines = [
        "# Environment",
        f"Date: {datetime.fromtimestamp(now, UTC).date().isoformat()}",
        f"Working directory: {cwd}",
        f"Platform: {platform.system()} {platform.release()}",
    ]
    if scratchpad:
        lines.append(f"Scratchpad, shared by all agents of this session: {scratchpad}")
    return "\n".join([*lines, *_git_state(cwd)])


def news(system: str, cwd: Path, now: float) -> str | None:
    """What of `system`, made when a conversation began, does not hold any more; None if all of it does."""
    day = datetime.fromtimestamp(now, UTC).date().isoformat()
    lines = [f"Working directory: {cwd}", f"Date: {day}"]
    changed = [line for line in lines if line not in system.splitlines()]
    return (
        f"<system-reminder>\nChanged since the beginning: {'; '.join(changed)}\n</system-reminder>" if changed else None
    )


def _git_state(cwd: Path) -> list[str]:
    said = _git(cwd, "status", "--short", "--branch")
    if said is None:
        return ["Git repository: no"]
    branch, *status = said.splitlines()
    more = [f"… and {len(status) - GIT_LINES} more"] if len(status) > GIT_LINES else []
    log = (_git(cwd, "log", "--oneline", "-5") or "none yet").splitlines()
    head = f"Git branch: {branch.removeprefix('## ')}"
    return [head, "Git status:", *(status[:GIT_LINES] or ["clean"]), *more, "Last commits:", *log]


def _git(cwd: Path, *arguments: str) -> str | None:
    """Output of a git command that changes nothing; None where there is none."""
    try:
        done = subprocess.run(
            ["git", "-C", str(cwd), "--no-optional-locks", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GIT_TIMEOUT,
            env=tool_environment(),
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").rstrip()


def user_context(cwd: Path) -> str | None:
    """Project memory as the text of one message in front of the conversation; None where there is none."""
    parts = [f"Contents of {path}:\n\n{text}" for path, text in _memory(cwd)]
    if not parts:
        return None
    return (
        "<system-reminder>\nInstructions of this project. They may or may not matter for the task at hand.\n\n"
        + "\n\n".join(parts)
        + "\n</system-reminder>"
    )


def _memory(cwd: Path) -> list[tuple[Path, str]]:
    """The memory files from the repository root down to `cwd`, the same text once."""
    levels = [cwd, *cwd.parents]
    top = next((i for i, level in enumerate(levels) if (level / ".git").exists()), 0)
    found: dict[str, Path] = {}
    for level in reversed(levels[: top + 1]):
        for name in MEMORY_FILES:
            try:
                text = (level / name).read_text(encoding="utf-8", errors="replace")[:MEMORY_CAP].strip()
            except OSError:
                continue
            if text:
                found.setdefault(text, level / name)
    return [(path, text) for text, path in found.items()]
