"""A run that cannot begin: a program that reads its output gets the result object all the same."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.cli.console import Console
from coordinator.cli.context import Context
from coordinator.cli.main import invoke
from coordinator.views.exit_codes import ExitCode
from tests.cli.program import Program

REFUSED = {
    ("run", "hi", "--max-turns", "abc"): ExitCode.USAGE,
    ("run", "hi", "--no-such-flag"): ExitCode.USAGE,
    ("run",): ExitCode.USAGE,
    ("run", "hi", "--json-schema", '{"type": 3}'): ExitCode.USAGE,
    ("-p", "hi", "--model", "haiku"): ExitCode.NOT_AUTHENTICATED,
    ("run", "hi", "-r", "s12345"): ExitCode.NOT_FOUND,
    ("resume", "s12345"): ExitCode.NOT_FOUND,
}


@pytest.fixture
def at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COORDINATOR_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    with open("/dev/null", encoding="utf-8") as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        yield


def run(*words: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    context = Context(Console(out, err))
    code = invoke(words, context)
    context.close()
    return code, out.getvalue(), err.getvalue()


@pytest.mark.parametrize("form", ["json", "stream-json"])
@pytest.mark.usefixtures("at_home")
def test_what_refuses_a_run_is_told_in_a_result_object_too(form: str) -> None:
    for words, expected in REFUSED.items():
        code, out, err = run(*words, "--output-format", form)
        value = json.loads(out)
        assert (code, value["type"], value["terminal_reason"]) == (expected, "result", "not_started"), (words, err)
        assert err == f"coordinator: {value['errors'][0]}\n", words


@pytest.mark.usefixtures("at_home")
def test_the_format_may_come_from_a_variable_and_text_is_no_object(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("run", "hi", "--no-such-flag")[1] == ""
    assert run("ps", "--output-format", "json")[1] == ""
    assert run("run", "--no-such-flag", "--", "--output-format", "json")[1] == ""
    monkeypatch.setenv("COORDINATOR_OUTPUT_FORMAT", "json")
    for words in (("run", "hi", "--no-such-flag"), ("run", "hi", "--max-turns", "0"), ("run", "hi")):
        assert json.loads(run(*words)[1])["is_error"]


def test_an_object_is_printed_once(program: Program) -> None:
    ran = program("run", "--offline", "--output-format", "json", "--settings", "/nonexistent.json", "hi")
    assert (ran.code, ran.json["errors"]) == (ExitCode.USAGE, ["--settings /nonexistent.json: there is no such file"])
    ran = program("run", "--offline", "--output-format", "json", "hi")
    assert ran.json["subtype"] == "success" and len(ran.lines) == 1
