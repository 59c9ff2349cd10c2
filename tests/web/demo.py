"""Sessions as they look in use, made through the store's own functions at times of their own: for pictures and for looking."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import orjson

from tasks import approvals, leases, ledger, registry, sessions, transcripts
from tasks.connection import Connection
from tasks.db import Database
from tasks.records import Ended, MessageRecord, NewApproval, NewTask, TaskRecord
from tasks.states import TaskStatus

GOAL = "Find why imports are slow at start-up, fix it without changing what the command prints, and prove it with a benchmark"
# Name, kind, what it is for, when it is asked for and begins (seconds), its turns: (model, tool) seconds and the call; its end.
Turn = tuple[float, float, str, dict[str, Any]]
WORKERS: tuple[tuple[str, str, str, float, float, tuple[Turn, ...], str | None], ...] = (
    ("imports", "explore", "Which modules are imported at start", 6, 7, (
        (9, 4, "Bash", {"command": "python -X importtime -c 'import app'"}), (14, 2, "Grep", {"pattern": "^import|^from", "path": "src"}),
        (22, 3, "Read", {"file_path": "src/app/cli.py"}), (26, 0, "", {})), "completed"),
    ("history", "explore", "Since which commit it is slow", 6, 8, (
        (7, 11, "Bash", {"command": "git bisect run scripts/start_time.sh"}), (18, 31, "Bash", {"command": "git bisect run scripts/start_time.sh"}),
        (12, 0, "", {})), "completed"),
    ("bench", "worker", "A benchmark of the start", 6, 8, (
        (16, 3, "Write", {"file_path": "bench/start.py", "content": "import time"}), (11, 24, "Bash", {"command": "python bench/start.py --runs 50"}),
        (19, 2, "Edit", {"file_path": "bench/start.py", "old_string": "50", "new_string": "200"}), (14, 0, "", {})), "completed"),
    ("lazy", "worker", "Import the SDK when it is first needed", 104, 148, (
        (18, 2, "Read", {"file_path": "src/app/client.py"}), (24, 1, "Edit", {"file_path": "src/app/client.py", "old_string": "a", "new_string": "b"}),
        (15, 17, "Bash", {"command": "pytest -q tests/test_client.py"}), (21, 3, "Edit", {"file_path": "src/app/cli.py", "old_string": "a", "new_string": "b"}),
        (17, 0, "Bash", {"command": "pytest -q"})), None),
    ("entry", "worker", "Split the entry point from the commands", 104, 106, (
        (21, 3, "Grep", {"pattern": "entry_points", "path": "."}), (26, 2, "Edit", {"file_path": "pyproject.toml", "old_string": "a", "new_string": "b"}),
        (19, 0, "Bash", {"command": "pip install -e ."})), None),
    ("docs", "worker", "Say in the docs how imports are kept lazy", 118, 140, (
        (24, 2, "Read", {"file_path": "docs/architecture.md"}), (16, 0, "", {})), "failed"),
    ("review", "reviewer", "Read the change with fresh eyes", 196, 0, (), None),
)  # fmt: skip
LENGTH = 214.0  # seconds


class Demo:
    """One live session in `path`; the clock of the store is moved through it. Close it when the picture is taken."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.begin = time.time() - LENGTH
        self.at = self.begin
        self.database = Database.open(path, clock=lambda: self.at)
        self.session_id, self.fence = self.database.write(self._open)
        self.told = 0

    def close(self) -> None:
        self.database.close()

    def _open(self, conn: Connection) -> tuple[str, int]:
        options = {"max_budget_usd": 4.0}
        made = sessions.create(conn, goal=GOAL, cwd="/home/ada/app", model="claude-opus-5-5", options=options)
        return made.id, leases.acquire(conn, made.id, leases.this_owner(), time.time(), ttl=3_600.0)

    def earlier(self, goal: str, ago: float, cost: float, reason: str = "completed") -> str:
        """A session that ended before this one began."""
        before, self.at = self.at, self.begin - ago

        def make(conn: Connection) -> tuple[str, int]:
            made = sessions.create(conn, goal=goal, cwd="/home/ada/app", model="claude-opus-5-5", options={})
            return made.id, leases.acquire(conn, made.id, leases.this_owner(), self.at, ttl=10.0)

        id, fence = self.database.write(make)
        self.at += 340
        self.database.write(lambda conn: sessions.end(conn, id, fence, reason=reason))
        self._book(id, None, 400_000, cost, of=id)
        self.at = before
        return id

    def say(
        self, agent_id: str, at: float, role: str, kind: str, blocks: list[dict[str, Any]], task_id: str | None = None
    ) -> None:
        row = MessageRecord(
            id=os.urandom(8).hex(),
            role=role,
            kind=kind,
            content=orjson.dumps(blocks).decode(),
            at=self.begin + at,
            task_id=task_id,
        )
        self.database.write(
            lambda conn: transcripts.append(conn, agent_id, [row], session_id=self.session_id, fence=self.fence)
        )

    def _book(self, agent_id: str, task_id: str | None, read: int, cost: float, of: str | None = None) -> None:
        self.database.write(
            lambda conn: ledger.book(
                conn, response_id=os.urandom(8).hex(), session_id=of or self.session_id, agent_id=agent_id, task_id=task_id, model="claude-opus-5-5",
                input_tokens=read // 30, cache_write_5m_tokens=read // 12, cache_read_tokens=read, output_tokens=read // 60, cost_usd=cost,
            )
        )  # fmt: skip

    def run(self) -> None:
        own = self.session_id
        self.say(own, 0, "user", "prompt", [{"type": "text", "text": GOAL}])
        for at, words, calls in (
            (5.5, "Three things must be known first; three workers look.", 3),
            (103, "The SDK is imported by every command: 0.9 s of 1.1 s. Two changes, and the page that says so.", 3),
            (195, "A reviewer reads the whole.", 1),
        ):
            blocks = [{"type": "tool_use", "id": os.urandom(4).hex(), "name": "Agent", "input": {}} for _ in range(calls)]
            self.say(own, at, "assistant", "answer", [{"type": "text", "text": words}, *blocks])
            self.say(
                own,
                at + 0.5,
                "user",
                "tool_results",
                [{"type": "tool_result", "tool_use_id": b["id"], "content": "started"} for b in blocks],
            )
            self.say(own, at + 6, "assistant", "answer", [{"type": "text", "text": "I wait for their reports."}])
            if at < 195:
                self.say(
                    own, {5.5: 92.0, 103: 188.0}[at], "user", "attachment", [{"type": "text", "text": "A worker reports."}]
                )
        for worker in WORKERS:
            self._work(*worker)
        self._book(own, None, 210_000, 0.31)

    def _work(
        self, name: str, kind: str, what: str, asked: float, begun: float, turns: tuple[Turn, ...], end: str | None
    ) -> None:
        self.at = self.begin + asked
        new = NewTask(session_id=self.session_id, description=what, prompt=f"{what}. Report what you find, with file and line.", name=name, definition=kind,
                      parent_id=self.session_id, model="claude-sonnet-5-5", cwd="/home/ada/app")  # fmt: skip
        task = self.database.write(lambda conn: registry.create(conn, new))
        if not begun:
            return
        self.at = at = self.begin + begun
        self.database.write(lambda conn: registry.claim(conn, task.id, owner=leases.this_owner(), fence=self.fence))
        at = begun
        self.say(task.id, at, "user", "prompt", [{"type": "text", "text": new.prompt}], task.id)
        for n, (model, tool, call, input) in enumerate(turns):
            at += model
            if at > LENGTH:
                break
            id = os.urandom(4).hex()
            words = [{"type": "text", "text": f"{what}: step {n + 1}."}]
            called = [{"type": "tool_use", "id": id, "name": call, "input": input}] if call else []
            self.say(task.id, at, "assistant", "answer", [*words, *called], task.id)
            if call and n == len(turns) - 1:
                self._wait(task, call, input, id, at)
            elif call:
                at += tool
                self.say(
                    task.id,
                    at,
                    "user",
                    "tool_results",
                    [
                        {
                            "type": "tool_result",
                            "tool_use_id": id,
                            "content": "import time: 912 ms  app.client\nimport time: 41 ms  app.cli",
                        }
                    ],
                    task.id,
                )
            self.at = self.begin + min(at, LENGTH - 2)
            self._progress(task, n + 1, f"{call}: {next(iter(input.values()))}" if call else "writes its report")
            self._book(task.id, task.id, 38_000 * (n + 1), 0.041 * (n + 1))
        if end:
            self.at = self.begin + at
            failed = end == "failed"
            ended = Ended(status=TaskStatus(end), result=None if failed else "The SDK is imported at module level in `src/app/client.py:3`; every command pays for it.",
                          end_reason="max_turns" if failed else "completed", error="the turn limit is reached: 2 turns" if failed else None,
                          error_class="max_turns" if failed else None, retryable=False if failed else None)  # fmt: skip
            self.database.write(lambda conn: registry.finish(conn, task.id, 1, ended))

    def _progress(self, task: TaskRecord, n: int, doing: str) -> None:
        self.database.write(
            lambda conn: registry.progress(
                conn, task.id, attempt=1, tool_uses=n, input_tokens=41_000 * n, output_tokens=700 * n, cost_usd=0.041 * n * (n + 1) / 2,
                activities=[doing], model="claude-sonnet-5-5",
            )
        )  # fmt: skip

    def _wait(self, task: TaskRecord, call: str, input: dict[str, Any], id: str, at: float) -> None:
        if call != "Bash" or task.name != "entry":
            return
        self.at = self.begin + at
        new = NewApproval(
            session_id=self.session_id, agent_id=task.id, task_id=task.id, fence=self.fence, tool_use_id=id, tool=call, input=input, digest=id,
            shown=str(input["command"]), reason="no rule allows it, and it writes outside of the working directory", suggested_rule="Bash(pip install:*)",
        )  # fmt: skip
        self.database.write(lambda conn: approvals.ask(conn, new))
