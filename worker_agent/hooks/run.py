"""Start one handler and wait for its end, within its time: a command with JSON on its standard input, or a POST.

Input and output of a command are files, not pipes: a child that outlives the hook and holds its output keeps nobody
waiting. What runs over its time, or is cancelled, is ended with its whole tree. Nothing here raises but cancellation.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from worker_agent.hooks.answer import Ran, fault, objection
from worker_agent.hooks.config import Handler
from worker_agent.process_tree import SHELL_MARKER, end_tree, start_time

OUTPUT_CAP = 1_000_000  # bytes read of each stream
GRACE = 1.0  # seconds between TERM and KILL


Callback = Callable[[str, Mapping[str, Any], str | None], Awaitable[Any]]
"""Calls a function of the program that began the run: its id, what the event says, the call that it is about. What it
answers; raises whatever went wrong."""


async def run_handler(
    handler: Handler,
    payload: Mapping[str, Any],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    timeout: float,
    variable: Callable[[str], str] = lambda name: "",
    callback: Callback | None = None,
) -> Ran:
    """How it ended. `variable` gives what a header may name although it is in no handler's environment."""
    if handler.callback is not None:
        return await _called_back(handler, handler.callback, payload, timeout, callback)
    body = json.dumps(payload, ensure_ascii=False, default=str).encode("utf-8", "replace")
    if handler.url is not None:
        return await _post(handler, body, lambda name: environment.get(name) or variable(name), timeout)
    return await _command(handler, body, cwd, environment, timeout)


async def _called_back(handler: Handler, id: str, payload: Mapping[str, Any], timeout: float, callback: Callback | None) -> Ran:
    event, output = payload["hook_event_name"], None
    try:
        if callback is None:
            raise ConnectionError("the program that it is of is not there")
        async with asyncio.timeout(timeout):
            output = await callback(id, payload, payload.get("tool_use_id"))
        trouble = fault(event, output)
    except TimeoutError:
        trouble = f"gave no answer within {timeout:g} s"
    except Exception as error:
        trouble = f"failed: {error or type(error).__name__}"
    if trouble is None:
        return Ran(handler.label, 0, json.dumps(output, ensure_ascii=False, default=str))
    if handler.blocks_on_failure:
        return Ran(handler.label, 0, json.dumps(objection(event, f"hook {handler.label}: {trouble}")))
    return Ran(handler.label, None, trouble=trouble)


async def _command(handler: Handler, body: bytes, cwd: Path, environment: Mapping[str, str], timeout: float) -> Ran:
    marker, environment = secrets.token_hex(8), {**environment, **dict(handler.environment)}
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        stdin.write(body)
        stdin.seek(0)
        try:
            process = await asyncio.create_subprocess_exec(
                *_argv(handler, environment),
                stdin=stdin, stdout=stdout, stderr=stderr, cwd=cwd, start_new_session=True,
                env={**environment, SHELL_MARKER: marker},
            )  # fmt: skip
        except (OSError, ValueError) as error:
            return Ran(handler.label, None, trouble=f"could not start: {error}")
        began = start_time(process.pid)
        try:
            async with asyncio.timeout(timeout):
                code = await process.wait()
        except TimeoutError:
            await _end(process, began, marker)
            return Ran(handler.label, None, trouble=f"took longer than {timeout:g} s and was ended")
        except asyncio.CancelledError:
            await asyncio.shield(_end(process, began, marker))
            raise
        return Ran(handler.label, code, _head(stdout), _head(stderr))


async def _end(process: asyncio.subprocess.Process, began: float | None, marker: str) -> None:
    await end_tree(process.pid, began, f"{SHELL_MARKER}={marker}", GRACE)
    await process.wait()


def _argv(handler: Handler, environment: Mapping[str, str]) -> Sequence[str]:
    """Without `args` a shell reads the command; with them nothing does, and `${…}` of ours is put in here."""
    if handler.args is None:
        return ("sh", "-c", handler.command or "")
    return [_filled(part, environment) for part in (handler.command or "", *handler.args)]


def _filled(text: str, environment: Mapping[str, str]) -> str:
    return re.sub(
        r"\$\{?((?:CLAUDE|COORDINATOR)_(?:PROJECT_DIR|PLUGIN_ROOT|PLUGIN_DATA))\}?",
        lambda match: environment.get(match[1], match[0]),
        text,
    )


def _head(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(OUTPUT_CAP).decode("utf-8", "replace")


async def _post(handler: Handler, body: bytes, variable: Callable[[str], str], timeout: float) -> Ran:
    import httpx2

    headers = {name: _expanded(value, handler, variable) for name, value in handler.headers}
    try:
        async with asyncio.timeout(timeout), httpx2.AsyncClient(trust_env=False, timeout=None) as client:
            response = await client.post(
                handler.url or "", content=body, headers={"content-type": "application/json", **headers}
            )
            text = response.content[:OUTPUT_CAP].decode("utf-8", "replace")
    except TimeoutError:
        return Ran(handler.label, None, trouble=f"gave no answer within {timeout:g} s")
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
        return Ran(handler.label, None, trouble=f"could not be reached: {type(error).__name__}")
    if not response.is_success:
        return Ran(handler.label, None, trouble=f"answered with status {response.status_code}")
    return Ran(handler.label, 0, text)


def _expanded(value: str, handler: Handler, variable: Callable[[str], str]) -> str:
    """`$NAME` in a header, for the names that the entry lists; any other becomes nothing."""
    allowed = set(handler.allowed_variables)
    return re.sub(r"\$\{?([A-Za-z_]\w*)\}?", lambda match: variable(match[1]) if match[1] in allowed else "", value).strip()
