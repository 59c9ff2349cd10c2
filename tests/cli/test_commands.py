"""What the command line says of itself, and how it says no."""

from __future__ import annotations

import os
import re
import subprocess

import click
import pytest
from click.testing import CliRunner

from coordinator.cli.commands.sessions import Days
from coordinator.cli.context import Context
from coordinator.cli.failures import MEANINGS
from coordinator.cli.lazy import Entry, load
from coordinator.cli.main import cli
from coordinator.cli.table import COMMANDS
from coordinator.options import RunOptions
from coordinator.views.exit_codes import ExitCode
from tests.architecture.source import ROOT
from tests.cli.program import Program


def commands(entries: dict[str, Entry], prefix: str = "") -> list[tuple[str, Entry]]:
    return [
        found
        for name, entry in entries.items()
        for found in ([(prefix + name, entry)] if not entry.members else commands(dict(entry.members), f"{prefix}{name} "))
    ]


ALL = commands(COMMANDS)


@pytest.mark.parametrize(("name", "entry"), ALL, ids=[name for name, _ in ALL])
def test_every_command_of_the_table_can_be_loaded_and_explains_its_parameters(name: str, entry: Entry) -> None:
    command = load(name, entry)
    assert command.help or command.callback
    options = [option for option in command.params if isinstance(option, click.Option)]
    assert [option.name for option in options if not option.help and not option.hidden] == []


@pytest.mark.parametrize(("name", "entry"), [pair for pair in ALL if pair[1].short_for], ids=lambda value: str(value)[:12])
def test_a_short_form_is_the_same_command(name: str, entry: Entry) -> None:
    assert entry.short_for is not None
    group, member = entry.short_for.split(" ")
    assert COMMANDS[group].members[member].target == entry.target


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["taks"], "did you mean tasks"),
        (["tasks", "lst"], "did you mean list"),
        (["tasks", "lits"], "did you mean list"),
        (["xyzzy"], "coordinator --help"),
        (["tasks"], "needs a command"),
        (["tasks", "list", "--bogus"], "--bogus"),
        (["tasks", "show"], "Missing argument"),
        (["db", "sql"], "Missing argument"),
        (["completion", "cmd.exe"], "cmd.exe"),
        (["run", "hi", "there", "--offline"], 'in quotes: coordinator run "hi there"'),
        (["--offline", "run", "hi"], "`coordinator run --offline …`"),
        (["help", "taks"], "did you mean tasks"),
        (["prune", "--older-than", "7q"], "7 or 7d (days), 12h, 2w"),
        (["--db", "nowhere/coordinator.db", "ps"], "there is no database"),
    ],
)
def test_what_is_mistyped_gets_one_line_and_exit_code_2(typed: list[str], said: str, program: Program) -> None:
    ran = program(*typed)
    assert (ran.code, ran.out) == (ExitCode.USAGE, "")
    assert said in ran.err
    assert ran.err.count("\n") == 1


def test_help_needs_no_database_and_imports_no_command(program: Program) -> None:
    ran = program("--help")
    assert ran.code == 0
    assert "tasks list" in ran.out
    assert not program.home.exists()


def test_an_unforeseen_failure_is_one_line_and_debug_shows_where(program: Program) -> None:
    program.home.mkdir()
    (program.home / "data").write_text("a file where a directory should be")
    ran = program("tasks", "list")
    assert ran.code in (1, 2)
    assert ran.err.count("\n") == 1 and "Traceback" not in ran.err
    assert "Traceback" in program("--debug", "tasks", "list").err
    assert "Traceback" in program("tasks", "list", "--debug").err


def test_a_damaged_database_is_named_and_never_replaced(program: Program) -> None:
    data = program.home / "data"
    data.mkdir(parents=True)
    (data / "coordinator.db").write_bytes(b"no database at all, but long enough to look like one" * 100)
    before = (data / "coordinator.db").read_bytes()
    ran = program("tasks", "list")
    assert ran.code in (1, 2) and ran.err.count("\n") == 1 and "coordinator.db" in ran.err
    assert (data / "coordinator.db").read_bytes() == before


@pytest.mark.parametrize("command", [["show"], ["logs"], ["wait"], ["kill"], ["diff"], ["apply"], ["retry"], ["send", "hello"]])
def test_an_unknown_task_is_exit_code_3(command: list[str], program: Program) -> None:
    ran = program("tasks", command[0], "azzzzzzzz", *command[1:])
    assert (ran.code, ran.out) == (ExitCode.NOT_FOUND, "")
    assert ran.err == "coordinator: no such task 'azzzzzzzz'\n"


@pytest.mark.parametrize("command", [["sessions", "show"], ["sessions", "export"], ["sessions", "rm", "--yes"], ["attach"],
                                     ["sessions", "fork"], ["resume", "--offline"], ["cost", "--session"]])  # fmt: skip
def test_an_unknown_session_is_exit_code_3(command: list[str], program: Program) -> None:
    ran = program(*command, "szzzzzzzz")
    assert (ran.code, ran.out) == (ExitCode.NOT_FOUND, ""), ran.err
    assert "szzzzzzzz" in ran.err and ran.err.count("\n") == 1


def test_an_empty_list_is_no_data_and_a_notice(program: Program) -> None:
    ran = program("tasks", "list")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == "no tasks\n"
    assert program("tasks", "list", "--json").json == []


def test_listing_tasks_imports_neither_the_sdk_nor_migrations_nor_rich(program: Program) -> None:
    program("db", "upgrade")
    code = (
        "import sys\nfrom coordinator.cli.main import invoke\nfrom coordinator.cli.context import Context\n"
        "assert invoke(['tasks', 'list'], Context()) == 0\n"
        "heavy = ['anthropic', 'alembic', 'rich', 'aiohttp', 'jsonschema', 'pydantic', 'httpx2', 'tree_sitter', 'yaml']\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [program.command()[0], "-c", code], capture_output=True, text=True, cwd=ROOT, env=program.environment(), timeout=50
    )
    assert done.stdout == "[]\n", done.stderr


def test_completion_answers_with_commands_flags_and_nothing_else(program: Program) -> None:
    asked = {"_COORDINATOR_COMPLETE": "bash_complete", "COMP_WORDS": "coordinator ta", "COMP_CWORD": "1"}
    ran = program(**asked)
    assert ran.out == "plain,tasks\n"
    assert not program.home.exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_the_program(shell: str, program: Program) -> None:
    assert "_COORDINATOR_COMPLETE" in program("completion", shell).out


def test_the_version_is_the_packages_own(program: Program) -> None:
    versions = [program(word).out for word in ("--version", "-V", "version")]
    assert re.fullmatch(r"coordinator \d+\.\d+\.\d+\S*\n", versions[0]) and set(versions) == {versions[0]}


def test_help_in_a_commands_place_is_that_commands_help() -> None:
    runner = CliRunner()
    for asked, same in (
        (["help"], ["--help"]),
        (["help", "run"], ["run", "--help"]),
        (["help", "tasks", "list"], ["tasks", "list", "--help"]),
        (["tasks", "help", "list"], ["tasks", "list", "--help"]),
        (["--offline", "--help"], ["chat", "--help"]),
    ):
        assert runner.invoke(cli, asked, obj=Context()).output == runner.invoke(cli, same, obj=Context()).output != ""


def test_a_mistyped_database_is_not_made(program: Program) -> None:
    (program.cwd / "typo").mkdir()
    for command in (["sessions", "list"], ["kill", "--all"], ["prune", "--yes"]):
        assert program("--db", "typo/x.db", *command).code == ExitCode.USAGE
    assert list((program.cwd / "typo").iterdir()) == []


@pytest.mark.parametrize(
    ("said", "days"), [("7", 7), ("7d", 7), ("12h", 0.5), ("2w", 14), ("0", 0), ("90m", 0.0625), ("1.5", 1.5), (30, 30)]
)
def test_a_time_since_the_end_has_units(said: str | int, days: float) -> None:
    assert Days().convert(said, None, None) == days


def test_our_packages_come_first_whatever_else_has_their_names(program: Program) -> None:
    for name in ("tasks", "worker_agent", "migrations"):
        (program.cwd / name).mkdir()
        (program.cwd / name / "__init__.py").write_text("raise RuntimeError('theirs')\n")
    ran = program("run", "--offline", "theirs", PYTHONPATH=".")
    assert ran.code == ExitCode.DONE and "tasks/__init__.py:1" in ran.out
    ran = program("ps", "--all", PYTHONPATH=".")
    assert (ran.code, ran.out.count("completed")) == (ExitCode.DONE, 5)
    assert "`coordinator ps --all`" in program("tasks", "list").err, "they have ended: where they are is said"


def test_every_option_of_a_run_is_a_flag_with_a_variable_of_its_own() -> None:
    params = [param for name in ("chat", "run") for param in load(name, COMMANDS[name]).params]
    flags = {param.name: param for param in params if isinstance(param, click.Option)}
    not_flags = {
        "prompt",
        "config",
        "interactive",
        "trust",
        "watched",
        "earlier_settings",
        "base",
        "carried",
        "granted",
        "attachments",
    }
    assert set(RunOptions.__struct_fields__) - not_flags - flags.keys() == set()
    # A hidden flag is another program's word, taken or refused when it is said: nobody sets it by a variable.
    variables = [flag.envvar for name, flag in flags.items() if name != "help" and not flag.hidden]
    assert all(str(name).startswith("COORDINATOR_") for name in variables)
    assert len(set(variables)) == len(variables)


def test_every_exit_code_has_a_meaning() -> None:
    assert set(MEANINGS) == set(ExitCode)


def test_a_prompt_in_a_commands_place_is_for_chat() -> None:
    with cli.make_context("coordinator", ["fix the tests"], obj=Context()) as ctx:
        name, _, rest = cli.resolve_command(ctx, ["fix the tests"])
    assert (name, rest) == ("chat", ["fix the tests"])


def test_a_closed_pipe_is_quiet(program: Program) -> None:
    program("db", "upgrade")
    read, write = os.pipe()
    os.close(read)
    with subprocess.Popen(
        program.command("db", "sql", "SELECT 1 AS one"),
        stdout=write,
        stderr=subprocess.PIPE,
        env=program.environment(),
        cwd=program.cwd,
    ) as process:
        os.close(write)
        _, err = process.communicate(timeout=50)
    assert (process.returncode, err) == (0, b"")
