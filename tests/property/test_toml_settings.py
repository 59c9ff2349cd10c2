"""Settings in TOML with any value at any key: it is taken as it is meant, or refused in one line that names file and key."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from coordinator.cli.commands.run import options_of
from coordinator.cli.context import Context
from coordinator.cli.failures import Failure
from coordinator.cli.lazy import load
from coordinator.cli.table import COMMANDS
from tasks.errors import NotFound

RUN = load("run", COMMANDS["run"])
NAMES = [one.name for one in RUN.params if isinstance(one, click.Option) and one.expose_value and one.name != "help"]
VALUES = (
    "3", "-1", "2.5", "true", '"x"', '""', "[]", '["a", 1]', "[[1]]", "{a = 1}", "2020-01-01", "nan", "inf", "[{a = 1}]",
    '"\\u0000"',
)  # fmt: skip
NEVER = ("[[1]]", "{a = 1}", "2020-01-01", "nan", "[{a = 1}]", '["a", 1]', '"\\u0000"')  # what no key takes


@pytest.mark.parametrize("name", NAMES)
def test_a_value_is_taken_or_refused_in_one_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COORDINATOR_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for value in VALUES:
        (tmp_path / "config.toml").write_text(f"{name} = {value}\n")
        cli = Context()
        try:
            ctx = RUN.make_context("run", ["goal"], obj=cli)
            with ctx:
                options_of(ctx, cli, "goal", {key: given for key, given in ctx.params.items() if key != "prompt"})
            assert value not in NEVER, (name, value)
        except NotFound:
            assert name == "resume"  # a session's name like any other, and there is none
        except (click.ClickException, Failure) as refused:
            text = refused.format_message() if isinstance(refused, click.ClickException) else str(refused)
            assert "\n" not in text.strip() and (name in text or name.replace("_", "-") in text), (value, text)
