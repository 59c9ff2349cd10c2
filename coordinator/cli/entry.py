"""Where the command begins: signals and streams first, then where our packages come from, then the imports that take their time.

`tasks` is a name that others use, too. Whatever PYTHONPATH or the current directory holds, our names are ours. Windows has neither
the signals nor the processes that all of this is about: it is refused before anything asks for them.
"""

from __future__ import annotations

import sys
from typing import NoReturn

WINDOWS = "coordinator: Windows itself is not supported; run it inside WSL (https://aka.ms/wsl)\n"


def main() -> NoReturn:
    if sys.platform == "win32":
        sys.stderr.write(WINDOWS)
        raise SystemExit(2)
    from coordinator.cli import early, own_packages

    early.open_streams()
    early.leave_on_signals()
    own_packages.first()
    from coordinator.cli.main import main as command

    command()
