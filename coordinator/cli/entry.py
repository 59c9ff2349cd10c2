"""Where the command begins: signals and streams first, then the imports that take their time."""

from __future__ import annotations

from typing import NoReturn

from coordinator.cli import early


def main() -> NoReturn:
    early.open_streams()
    early.leave_on_signals()
    from coordinator.cli.main import main as command

    command()
