"""What is done in one place only: reading the environment, streaming a model, drawing with rich, broad `except`s of the command line."""

from __future__ import annotations

import ast
import re

import pytest

from tests.architecture.source import PACKAGES, ROOT, imports, modules

NAMES = sorted(modules())
KNOW_RICH = {"coordinator.cli.console", "coordinator.cli.render"}
STREAMS_A_MODEL = "worker_agent.api.call"
PASSES_ON = "worker_agent.api.redacting"  # a client around a client
STREAMS_A_SESSION = "coordinator.interface.client"  # its events, no model's
READS_ENVIRONMENT = {"worker_agent.config"}
LATE = {
    "worker_agent.api.direct",
    "worker_agent.api.sdk_transport",
    "tasks.migrating",
    "coordinator.web.server",
}  # imported inside functions only
HEAVY = ("anthropic", "alembic", "sqlalchemy", "jsonschema", "pypdf", "markdownify", "tree_sitter", "tree_sitter_bash", "aiohttp", "httpx2",
         "pydantic", "rich", "psycopg", "bs4", "mcp", "mcp_types", "starlette", "uvicorn")  # fmt: skip


def reads_environment(tree: ast.Module) -> bool:
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in ("environ", "environb", "getenv", "getenvb", "putenv")
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
        for node in ast.walk(tree)
    ) or any(
        isinstance(node, ast.ImportFrom) and node.module == "os" and {a.name for a in node.names} & {"environ", "getenv"}
        for node in ast.walk(tree)
    )


@pytest.mark.parametrize("name", NAMES)
def test_only_the_settings_read_the_environment(name: str) -> None:
    assert name in READS_ENVIRONMENT or not reads_environment(modules()[name])


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_streamed_in_one_place(name: str) -> None:
    streamed = [
        node.lineno
        for node in ast.walk(modules()[name])
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "stream"
        and len(node.args) == 1  # a model's port takes one request; an HTTP client a method and an address
    ]
    assert bool(streamed) == (name in (STREAMS_A_MODEL, PASSES_ON, STREAMS_A_SESSION))


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_others_may_have_made_is_opened_in_one_place(name: str) -> None:
    """Not to wait for a FIFO is what every safe opening has in common."""
    waits_not = any(isinstance(node, ast.Attribute) and node.attr == "O_NONBLOCK" for node in ast.walk(modules()[name]))
    assert waits_not == (name == "worker_agent.disk")


STARTS_PROCESSES = {"create_subprocess_exec", "create_subprocess_shell", "run", "Popen", "call", "check_call", "check_output",
                    "run_shell", "system", "popen"}  # fmt: skip


def starts_git(tree: ast.Module) -> bool:
    """Whether a call that starts a process is given `git` as a word of its own, or looks it up to be started."""
    return any(
        (getattr(call.func, "attr", None) or getattr(call.func, "id", "")) in STARTS_PROCESSES
        and any(isinstance(node, ast.Constant) and str(node.value).split(" ")[0] == "git" for node in ast.walk(call))
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
    )


@pytest.mark.parametrize("name", NAMES)
def test_git_is_started_in_one_place(name: str) -> None:
    """Anywhere else it would run what a repository names. Outside of the place nobody writes its command line either."""
    assert not starts_git(modules()[name])  # the place itself starts the program that it found
    looked_up = [
        call.lineno
        for call in ast.walk(modules()[name])
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "shutil.which" and "'git'" in ast.unparse(call)
    ]
    assert bool(looked_up) == (name in ("worker_agent.git.quiet", "coordinator.cli.commands.doctor"))


@pytest.mark.parametrize("source", ["subprocess.run(['git', '-C', d, *more])", "os.system('git status')",
                                    "asyncio.create_subprocess_exec('git', 'log')", "run_shell(('git',), cwd=d)"])  # fmt: skip
def test_a_start_of_git_would_be_seen(source: str) -> None:
    assert starts_git(ast.parse(source))


def test_an_error_of_types_is_silenced_only_with_a_reason_behind_it() -> None:
    bare = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if "# type: ignore" in line and not re.search(r"# type: ignore\[[a-z-]+\]  # \w", line)
    ]
    assert bare == []


@pytest.mark.parametrize("name", NAMES)
def test_only_console_and_render_know_rich(name: str) -> None:
    assert name in KNOW_RICH or not any(target.split(".")[0] == "rich" for target in imports(name))


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("migrations") and name != "tasks.models"])
def test_nothing_heavy_is_imported_when_a_module_is(name: str) -> None:
    at_start = list(imports(name, at_start_only=True))
    assert name in LATE or [target for target in at_start if target.split(".")[0] in HEAVY] == []
    assert not LATE & set(at_start)


def test_prompt_toolkit_is_known_to_the_editor_of_the_chat_and_imported_for_it_alone() -> None:
    chat = "coordinator.cli.chat."
    know = {
        name for name in NAMES if any(target.split(".")[0] == "prompt_toolkit" for target in imports(name, at_start_only=True))
    }
    assert know == {f"{chat}editor", f"{chat}completing", f"{chat}history"}
    users = {name for name in NAMES if know & set(imports(name))}
    assert users == {f"{chat}screen"}
    assert [n for n in NAMES if f"{chat}screen" in imports(n)] == ["coordinator.cli.commands.chat"]
    assert f"{chat}screen" not in imports("coordinator.cli.commands.chat", at_start_only=True)


def test_the_offline_model_is_imported_only_when_asked_for() -> None:
    outside = [name for name in NAMES if not name.startswith("coordinator.offline")]
    users = {name for name in outside if any(target.startswith("coordinator.offline") for target in imports(name))}
    assert users == {"coordinator.app", "coordinator.cli.commands.run", "coordinator.interface.preparing"}
    assert [n for n in users if any(t.startswith("coordinator.offline") for t in imports(n, at_start_only=True))] == []


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("coordinator.cli")])
def test_only_the_entry_of_the_command_line_catches_everything(name: str) -> None:
    broad = [
        handler.lineno
        for handler in ast.walk(modules()[name])
        if isinstance(handler, ast.ExceptHandler)
        and (handler.type is None or (isinstance(handler.type, ast.Name) and handler.type.id in ("Exception", "BaseException")))
    ]
    assert name == "coordinator.cli.main" or broad == []


@pytest.mark.parametrize("name", NAMES)
def test_every_module_says_what_it_holds(name: str) -> None:
    tree = modules()[name]
    assert not tree.body or ast.get_docstring(tree)


OPENING = {"open", "fdopen", "read_bytes", "read_text", "write_bytes", "write_text", "copy", "copy2", "copyfile", "copyfileobj"}


def opened_files(tree: ast.Module) -> list[tuple[str, str]]:
    """(function, call) of every call that opens a file by another way than a database's."""
    return [
        (function.name, ast.unparse(call))
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and not ast.unparse(call.func).endswith("Database.open")
        if (call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")) in OPENING
    ]


@pytest.mark.parametrize("name", [name for name in NAMES if name.split(".")[0] in ("tasks", "coordinator")])
def test_nothing_opens_the_database_file_but_sqlite(name: str) -> None:
    """Closing any other descriptor of the file drops the locks that SQLite holds on it in this process; the next process
    that closes the database then takes the write-ahead log away from under it."""
    opened = opened_files(modules()[name])
    if name.split(".")[0] == "tasks":
        assert [call for function, call in opened if (name, function) != ("tasks.upgrade", "_file_lock")] == []
    assert [call for _, call in opened if "database" in call.lower() or ".db" in call.lower()] == []
