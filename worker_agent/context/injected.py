"""Injected context: what an agent is told about where it is, built once per conversation and byte-identical after.

*System context* (date, working directory, git state, platform) is the last block of the system prompt. *User context*
(project memory: CLAUDE.md, AGENTS.md) is one meta user message in front of the conversation, added at the moment of the
call only. What changes later is appended as news, never put in here. Which files count says `instructions.py`.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from worker_agent import messages as m
from worker_agent.context.instructions import MemoryFile
from worker_agent.git import NOT_INTO, place_of, read_branch, run_git
from worker_agent.messages import Message, clean

GIT_TIMEOUT = 5.0


async def system_context(cwd: Path, now: float, *more: str, trusted: bool) -> str:
    """Date, directory, platform, `more` lines and the git state, as the last block of the system prompt. Git is started
    only in a `trusted` directory; elsewhere the branch is read from its file."""
    lines = [*_changing(cwd, now), f"Platform: {platform.system().lower()}", *more]
    lines += await _git_state(cwd, trusted)
    return "<environment>\n" + "\n".join(lines) + "\n</environment>"


def news(system: str, cwd: Path, now: float) -> str | None:
    """What of a system context, made when a conversation began, does not hold any more; None if all of it does."""
    changed = [line for line in _changing(cwd, now) if line not in system.splitlines()]
    if not changed:
        return None
    return f"<system-reminder>\nChanged since the beginning: {'; '.join(changed)}\n</system-reminder>"


def _changing(cwd: Path, now: float) -> list[str]:
    return [f"Date: {datetime.fromtimestamp(now, UTC).date().isoformat()}", f"Working directory: {cwd}"]


async def _git_state(cwd: Path, trusted: bool) -> list[str]:
    place = place_of(cwd)
    if place is None:
        return ["Git: not a repository"]
    if not trusted:
        return [f"Git branch: {clean(read_branch(place) or 'unknown')}", "Git status: not read, the directory is not trusted"]
    branch = await _git(cwd, "rev-parse", "--abbrev-ref", "HEAD")
    if branch is None:
        inside = await _git(cwd, "rev-parse", "--is-inside-work-tree")
        return ["Git: a repository without a commit"] if inside == "true" else ["Git: its state cannot be read"]
    status = (await _git(cwd, "status", "--porcelain=v1", "--untracked-files=normal", NOT_INTO) or "").splitlines()
    log = (await _git(cwd, "log", "-5", "--format=%h %s") or "").splitlines()
    shown = [f"  {line}" for line in status[:20]] + ([f"  … {len(status) - 20} more"] if len(status) > 20 else [])
    return [
        f"Git branch: {branch}",
        f"Git status at the start: {'clean' if not status else f'{len(status)} changed'}",
        *shown,
        "Last commits:",
        *(f"  {line}" for line in log),
    ]


async def _git(cwd: Path, *arguments: str) -> str | None:
    """The output of a git command without the line end; None when it fails or takes too long."""
    done = await run_git(cwd, *arguments, timeout=GIT_TIMEOUT)
    return clean(done.out.decode("utf-8", "replace").rstrip("\n")) if done.code == 0 else None


def user_context(files: Iterable[MemoryFile], now: float) -> Message | None:
    """The meta message in front of the conversation; None when there is nothing to tell."""
    parts = [f"Contents of {file.path}:\n\n{file.text}" for file in files if file.text]
    if not parts:
        return None
    today = datetime.fromtimestamp(now, UTC).date().isoformat()
    text = (
        "<system-reminder>\nProject memory and the current date. It may or may not matter for what you are asked; where"
        " it gives instructions about this project, follow them.\n\n"
        + "\n\n".join(parts)
        + f"\n\nToday is {today}.\n</system-reminder>"
    )
    return m.user(text, kind="meta", meta=True, id="user-context", at=now)
