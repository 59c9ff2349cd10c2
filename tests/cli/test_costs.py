"""What a start and a turn cost, counted: modules, statements, what is left in memory. No time is measured here (`bench/` does)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.program import Program
from tests.support.fake_api import FakeAPI, Options, fanout

ROOT = Path(__file__).parents[2]
NEVER = {"anthropic", "sqlalchemy", "alembic", "pydantic", "jsonschema", "yaml", "pypdf", "bs4", "mcp", "psycopg"}
NOT_TO_LOOK = NEVER | {"aiohttp", "httpx2", "asyncio", "ssl", "http", "email", "rich", "psutil", "tree_sitter", "xml"}

LIST_MODULES = """
import json, sys
from coordinator.cli.context import Context
from coordinator.cli.main import invoke
code = invoke(json.loads(sys.argv[1]), Context())
print(json.dumps([code, sorted(name for name in sys.modules)]), file=sys.stderr)
"""
COUNT = """
import gc, json, sys
from coordinator.cli.context import Context
from coordinator.cli.main import invoke
from tasks.connection import Connection
counted, most, real = [0], [0], Connection.execute
def execute(self, sql, /, **values):
    counted[0] += 1
    most[0] = max(most[0], sys.getallocatedblocks())
    return real(self, sql, **values)
Connection.execute = execute
gc.set_threshold(1000)
code = invoke(json.loads(sys.argv[1]), Context())
print(json.dumps([code, counted[0], most[0], sorted(sys.modules)]), file=sys.stderr)
"""


def child(program: Program, code: str, *arguments: str, **environment: str) -> list:
    done = subprocess.run(
        [program.command()[0], "-c", code, json.dumps(arguments)],
        capture_output=True, text=True, cwd=program.cwd, timeout=100,
        env={**program.environment(), "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip
    return json.loads(done.stderr.splitlines()[-1])


@pytest.mark.parametrize(
    ("command", "code", "most"),
    [
        (["--help"], 0, 160),
        (["ps"], 0, 210),
        (["kill", "azz"], 3, 210),
        (["wait", "azz"], 3, 210),
        (["logs", "azz"], 3, 210),
        (["send", "azz", "hi"], 3, 210),
    ],
)
def test_a_short_command_imports_little(command: list[str], code: int, most: int, program: Program) -> None:
    found, modules = child(program, LIST_MODULES, *command)
    assert found == code
    assert {name.split(".")[0] for name in modules} & NOT_TO_LOOK == set()
    assert len(modules) <= most, modules


def test_that_there_is_no_key_is_said_without_the_sdk(program: Program) -> None:
    found, modules = child(program, LIST_MODULES, "run", "goal")
    assert found == 4
    assert {name.split(".")[0] for name in modules} & NEVER == set()


def test_a_run_imports_neither_the_sdk_nor_what_describes_sql_and_a_turn_costs_a_bounded_number_of_statements(
    program: Program,
) -> None:
    (program.cwd / "file.txt").write_text("x = 1  # a line\n" * 1250)
    statements, blocks = [], []
    for turns in (5, 45):
        script = fanout(1, turns, Options(path=str(program.cwd / "file.txt")))
        with FakeAPI(script, allow_violations=True) as api:
            environment = {"ANTHROPIC_BASE_URL": api.base_url, "ANTHROPIC_API_KEY": "test-key"}
            code, counted, most, modules = child(program, COUNT, "run", "go", "--output-format", "json", **environment)
        assert code == 0
        assert {name.split(".")[0] for name in modules} & NEVER == set()
        statements.append(counted)
        blocks.append(most)
    assert (statements[1] - statements[0]) / 40 <= STATEMENTS_A_TURN
    assert (blocks[1] - blocks[0]) / 40 <= BLOCKS_A_TURN


STATEMENTS_A_TURN = 5
BLOCKS_A_TURN = 60  # pieces of memory that a turn leaves in use
