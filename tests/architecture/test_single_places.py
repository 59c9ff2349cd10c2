"""What is done in one place only: reading the environment, streaming a model, drawing with rich, broad `except`s of the command line."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

import pytest

from tests.architecture.source import PACKAGES, ROOT, imports, modules, nodes

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


def having(is_one: Callable[[ast.AST], bool], *, below: str = "") -> set[str]:
    """The modules, of those whose name begins with `below`, in which there is a node that `is_one`."""
    return {name for name in modules() if name.startswith(below) and any(is_one(node) for node in nodes(name))}


def reads_environment(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module == "os" and bool({a.name for a in node.names} & {"environ", "getenv"})
    return (
        isinstance(node, ast.Attribute)
        and node.attr in ("environ", "environb", "getenv", "getenvb", "putenv")
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
    )


def test_only_the_settings_read_the_environment() -> None:
    assert having(reads_environment) <= READS_ENVIRONMENT


def streams_a_model(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "stream"
        and len(node.args) == 1  # a model's port takes one request; an HTTP client a method and an address
    )


def test_a_model_is_streamed_in_one_place() -> None:
    assert having(streams_a_model) == {STREAMS_A_MODEL, PASSES_ON, STREAMS_A_SESSION}


def test_a_file_that_others_may_have_made_is_opened_in_one_place() -> None:
    """Not to wait for a FIFO is what every safe opening has in common."""
    assert having(lambda node: isinstance(node, ast.Attribute) and node.attr == "O_NONBLOCK") == {"worker_agent.disk"}


STARTS_PROCESSES = {"create_subprocess_exec", "create_subprocess_shell", "run", "Popen", "call", "check_call", "check_output",
                    "run_shell", "system", "popen"}  # fmt: skip


def starts_git(call: ast.AST) -> bool:
    """Whether a call that starts a process is given `git` as a word of its own, or looks it up to be started."""
    return (
        isinstance(call, ast.Call)
        and (getattr(call.func, "attr", None) or getattr(call.func, "id", "")) in STARTS_PROCESSES
        and any(isinstance(node, ast.Constant) and str(node.value).split(" ")[0] == "git" for node in ast.walk(call))
    )


def looks_git_up(call: ast.AST) -> bool:
    return isinstance(call, ast.Call) and ast.unparse(call.func) == "shutil.which" and "'git'" in ast.unparse(call)


def test_git_is_started_in_one_place() -> None:
    """Anywhere else it would run what a repository names. Outside of the place nobody writes its command line either."""
    assert having(starts_git) == set()  # the place itself starts the program that it found
    assert having(looks_git_up) == {"worker_agent.git.quiet", "coordinator.cli.commands.doctor"}


@pytest.mark.parametrize("source", ["subprocess.run(['git', '-C', d, *more])", "os.system('git status')",
                                    "asyncio.create_subprocess_exec('git', 'log')", "run_shell(('git',), cwd=d)"])  # fmt: skip
def test_a_start_of_git_would_be_seen(source: str) -> None:
    assert any(starts_git(node) for node in ast.walk(ast.parse(source)))


def test_an_error_of_types_is_silenced_only_with_a_reason_behind_it() -> None:
    bare = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if "# type: ignore" in line and not re.search(r"# type: ignore\[[a-z-]+\]  # \w", line)
    ]
    assert bare == []


def test_only_console_and_render_know_rich() -> None:
    assert {name for name in modules() if any(target.split(".")[0] == "rich" for target in imports(name))} <= KNOW_RICH


def test_nothing_heavy_is_imported_when_a_module_is() -> None:
    light = {name for name in modules() if not name.startswith("migrations") and name != "tasks.models"}
    at_start = {name: set(imports(name, at_start_only=True)) for name in light}
    heavy = {(name, target) for name in light - LATE for target in at_start[name] if target.split(".")[0] in HEAVY}
    assert heavy == set()
    assert {name for name in light if LATE & at_start[name]} == set()


def test_prompt_toolkit_is_known_to_the_editor_of_the_chat_and_imported_for_it_alone() -> None:
    chat = "coordinator.cli.chat."
    know = {
        name
        for name in modules()
        if any(target.split(".")[0] == "prompt_toolkit" for target in imports(name, at_start_only=True))
    }
    assert know == {f"{chat}editor", f"{chat}completing", f"{chat}history"}
    users = {name for name in modules() if know & set(imports(name))}
    assert users == {f"{chat}screen"}
    assert [n for n in modules() if f"{chat}screen" in imports(n)] == ["coordinator.cli.commands.chat"]
    assert f"{chat}screen" not in imports("coordinator.cli.commands.chat", at_start_only=True)


def test_the_offline_model_is_imported_only_when_asked_for() -> None:
    outside = [name for name in modules() if not name.startswith("coordinator.offline")]
    users = {name for name in outside if any(target.startswith("coordinator.offline") for target in imports(name))}
    assert users == {"coordinator.app", "coordinator.cli.commands.run", "coordinator.interface.preparing"}
    assert [n for n in users if any(t.startswith("coordinator.offline") for t in imports(n, at_start_only=True))] == []


def catches_everything(node: ast.AST) -> bool:
    return isinstance(node, ast.ExceptHandler) and (
        node.type is None or (isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException"))
    )


def test_only_the_entry_of_the_command_line_catches_everything() -> None:
    assert having(catches_everything, below="coordinator.cli") <= {"coordinator.cli.main"}


def test_every_module_says_what_it_holds() -> None:
    assert [name for name, tree in modules().items() if tree.body and not ast.get_docstring(tree)] == []


OPENING = {"open", "fdopen", "read_bytes", "read_text", "write_bytes", "write_text", "copy", "copy2", "copyfile", "copyfileobj"}


def opened_files(name: str) -> list[tuple[str, str]]:
    """(function, call) of every call in a module that opens a file by another way than a database's."""
    return [
        (function.name, ast.unparse(call))
        for function in nodes(name)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and not ast.unparse(call.func).endswith("Database.open")
        if (call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")) in OPENING
    ]


def test_nothing_opens_the_database_file_but_sqlite() -> None:
    """Closing any other descriptor of the file drops the locks that SQLite holds on it in this process; the next process
    that closes the database then takes the write-ahead log away from under it."""
    names = [name for name in modules() if name.split(".")[0] in ("tasks", "coordinator")]
    opened = [(name, function, call) for name in names for function, call in opened_files(name)]
    in_tasks = [one for one in opened if one[0].split(".")[0] == "tasks"]
    assert [one for one in in_tasks if one[:2] != ("tasks.upgrade", "_file_lock")] == []
    assert [one for one in opened if "database" in one[2].lower() or ".db" in one[2].lower()] == []


MAY_HAVE_DATACLASSES = ("coordinator.interface.", "worker_agent.session.context", "worker_agent.structs")


def test_values_are_structs() -> None:
    """A dataclass is made by compiling code at every start; and two kinds of `replace` would be taken for each other. What
    programs get is made of them (`interface/`): it is imported for programs alone."""
    held = [name for name in modules() if not name.startswith(MAY_HAVE_DATACLASSES)]
    assert [name for name in held if "dataclasses" in set(imports(name))] == []
