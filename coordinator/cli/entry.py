"""Where the command begins: signals and streams first, then where our packages come from, then the imports that take their time.

`tasks` is a name that others use, too. Whatever PYTHONPATH or the current directory holds, our names are ours.
"""

from __future__ import annotations

from typing import NoReturn

from coordinator.cli import early, own_packages


def main() -> NoReturn:
    early.open_streams()
    early.leave_on_signals()
    own_packages.first()
    from coordinator.cli.main import main as command

    command()
