"""Completion of ids: newest first, with a description. A completion that cannot be answered answers nothing.

Shells wait for it, so the database is opened only as it is: no upgrade, no start-up of anything else.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from coordinator.cli.context import Context
from coordinator.views.terminal_text import one_line

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

LIMIT = 50


def complete_tasks(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _complete(ctx, "SELECT id, description FROM tasks WHERE id LIKE ? ORDER BY created_at DESC LIMIT ?", incomplete)


def complete_sessions(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _complete(ctx, "SELECT id, goal FROM sessions WHERE id LIKE ? ORDER BY updated_at DESC LIMIT ?", incomplete)


def complete_approvals(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    waiting = "SELECT id, tool || ' ' || shown FROM approvals WHERE status = 'waiting' AND id LIKE ? ORDER BY asked_at LIMIT ?"
    return _complete(ctx, waiting, incomplete)


def _complete(ctx: click.Context, statement: str, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    path = Path(ctx.ensure_object(Context).database_place)
    if (not incomplete.isalnum() and incomplete) or not path.is_file():
        return []
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=0.05)) as driver:
            rows = driver.execute(statement, (f"{incomplete}%", LIMIT)).fetchall()
    except sqlite3.Error:
        return []
    return [CompletionItem(id, help=one_line(words or "", 60)) for id, words in rows]
