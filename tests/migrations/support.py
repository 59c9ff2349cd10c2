"""An older file with rows in it, for the test that every revision owes: `upgraded(directory, "0001", rows)`."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from tasks.db import Database
from tasks.engine import parse_place
from tasks.migrating import connected, run_alembic

Rows = Mapping[str, Sequence[Mapping[str, Any]]]  # table → rows

ROWS_0001: Rows = {
    "sessions": [
        {
            "id": "s00000001",
            "goal": "g",
            "cwd": "/",
            "status": "open",
            "options": "{}",
            "created_at": 1.0,
            "updated_at": 1.0,
            "fence": 3,
        }
    ],
    "agents": [
        {"id": "s00000001", "session_id": "s00000001", "is_coordinator": 1, "created_at": 1.0, "next_seq": 1},
        {
            "id": "a00000001",
            "session_id": "s00000001",
            "name": "scout",
            "is_coordinator": 0,
            "created_at": 1.0,
            "next_seq": 0,
        },
    ],
    "tasks": [
        {
            "id": "a00000001",
            "agent_id": "a00000001",
            "session_id": "s00000001",
            "type": "local_agent",
            "status": "completed",
            "description": "d",
            "prompt": "p",
            "background": 1,
            "created_at": 1.0,
            "ended_at": 2.0,
            "notified": 0,
            "attempt": 1,
            "tool_uses": 0,
            "input_tokens": 0,
            "output_tokens": 0,
            "cache_read_tokens": 0,
            "cache_write_tokens": 0,
            "activities": "[]",
            "result": "ü",
        }
    ],
    "messages": [
        {
            "agent_id": "s00000001",
            "seq": 0,
            "id": "m1",
            "role": "user",
            "kind": "prompt",
            "meta": 0,
            "content": "[]",
            "extra": "{}",
            "at": 1.0,
        }
    ],
    "steps": [{"agent_id": "a00000001", "message_id": "m2", "kind": "answer", "part": "", "content": "[]", "at": 1.0}],
    "events": [{"session_id": "s00000001", "task_id": "a00000001", "kind": "task_completed", "data": "{}", "at": 2.0}],
    "deliveries": [
        {
            "id": "na00000001",
            "session_id": "s00000001",
            "agent_id": "s00000001",
            "kind": "notification",
            "task_id": "a00000001",
            "status": "waiting",
            "created_at": 2.0,
        }
    ],
    "model_calls": [
        {
            "response_id": "r1",
            "session_id": "s00000001",
            "agent_id": "a00000001",
            "model": "m",
            "purpose": "turn",
            "input_tokens": 1,
            "cache_write_5m_tokens": 0,
            "cache_write_1h_tokens": 0,
            "cache_read_tokens": 0,
            "output_tokens": 1,
            "cost_usd": 0.5,
            "at": 1.0,
        }
    ],
    "processes": [{"pid": 5, "started_at": 1.0, "host": "h", "session_id": "s00000001", "marker": "m", "added_at": 1.0}],
}


def make_file(path: Path, revision: str, rows: Rows) -> Path:
    """A database of an older revision that holds `rows`."""
    with connected(parse_place(path), create=True) as connection, connection.begin():
        run_alembic(connection, revision)
        for table, of_table in rows.items():
            for row in of_table:
                columns, marks = ", ".join(row), ", ".join("?" for _ in row)
                connection.exec_driver_sql(f"INSERT INTO {table} ({columns}) VALUES ({marks})", tuple(row.values()))
    return path


def upgraded(directory: Path, revision: str, rows: Rows) -> Database:
    """The same file, opened by this program: upgraded, every row of before still there."""
    db = Database.open(make_file(directory / "store.db", revision, rows))
    for table, of_table in rows.items():
        assert db.query(f"SELECT count(*) FROM {table}")[1] == [(len(of_table),)], table
    return db


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())
