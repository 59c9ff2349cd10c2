"""`coordinator serve`: the page. A viewer, no supervisor: ending it ends nothing else."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from coordinator.cli import early
from coordinator.cli.context import Context, common_options, pass_cli
from coordinator.cli.failures import Failure
from coordinator.views.exit_codes import ExitCode

if TYPE_CHECKING:
    import socket

PORT = 8420
MISSING = "the page needs the package {name}: pip install 'coordinator[web]'"


@click.command("serve", help="Serve a page to watch and steer all sessions from a browser of this machine. Ctrl+C ends it.")
@click.option("--port", type=click.IntRange(0, 65_535), default=PORT, show_default=True, envvar="COORDINATOR_SERVE_PORT",
              help="On loopback; 0 takes a free one.")  # fmt: skip
@click.option("--token", envvar="COORDINATOR_SERVE_TOKEN", metavar="TEXT",
              help="Lets the page change something; without it one is made and kept in the home directory.")  # fmt: skip
@click.option("--open", "opens", is_flag=True, help="Show it in a browser of this machine, too.")
@click.option("--json", "as_json", is_flag=True, help="One line when it listens: an object with url and token.")
@common_options
@pass_cli
def serve(cli: Context, port: int, token: str | None, opens: bool, as_json: bool) -> int:
    try:
        from coordinator.web import server
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in ("starlette", "uvicorn"):
            raise Failure(MISSING.format(name=error.name), ExitCode.USAGE) from None
        raise
    from coordinator.web.opening import Once
    from coordinator.web.token import LEAST, token_in

    if token is not None and (len(token) < LEAST or not token.isascii() or any(map(str.isspace, token))):
        raise Failure(f"--token: at least {LEAST} letters, digits and signs, without blanks", ExitCode.USAGE)
    database = cli.database
    secret = token or token_in(cli.paths.home)
    once = Once(secret)
    with _bound(server.bind, port) as listening:
        early.raise_interrupts()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"

        def listens() -> None:
            _say(cli, url, secret, as_json)
            if opens:  # beside it: some browsers are waited for
                threading.Thread(target=_open, args=(cli, f"{url}/#code={once.make()}"), name="browser", daemon=True).start()

        try:
            asyncio.run(server.serve(database, cli.paths, listening, secret, once, listens))
        except KeyboardInterrupt:
            return ExitCode.DONE
    return ExitCode.DONE


def _bound(bind: Callable[[int], socket.socket], port: int) -> socket.socket:
    """Raises `Failure`."""
    try:
        return bind(port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise Failure(f"port {port} is taken; --port takes another one, and --port 0 one that is free") from None
        if error.errno in (errno.EACCES, errno.EPERM):
            raise Failure(f"port {port} is not for everybody; --port takes another one", ExitCode.USAGE) from None
        raise


def _say(cli: Context, url: str, token: str, as_json: bool) -> None:
    if as_json:
        cli.console.json_line({"url": url, "token": token})
    else:
        cli.console.line(f"{url}/#token={token}")
        cli.console.note("who has this address can read and steer all sessions; Ctrl+C ends the page, and no session")


def _open(cli: Context, url: str) -> None:
    from coordinator.web.opening import NONE, open_browser

    if not open_browser(url):
        cli.console.note(NONE)
