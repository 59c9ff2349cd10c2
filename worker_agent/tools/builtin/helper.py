"""Short programs that a tool runs beside itself: bounded in time and output, and gone when the call is.

Hostile input can make a parser loop or eat memory for ever. A thread could not be ended then; a process can.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

STDERR_CAP = 16 * 1024


class Finished(Struct, frozen=True):
    """`cut`: the output limit was reached and the program ended. `timed_out`: it was ended by the time limit; `stdout`
    is what it had written by then. `exit_code` is None if it was ended by us."""

    exit_code: int | None
    stdout: bytes
    stderr: str
    cut: bool = False
    timed_out: bool = False


async def run(
    argv: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    timeout: float,
    cap: int,
    stdin: bytes | None = None,
) -> Finished:
    """Run `argv` with at most `cap` bytes of output kept. On cancellation the program is killed first. Raises `OSError`
    if it cannot be started."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        cwd=cwd,
        env=dict(environment),
        stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stderr is not None
    out, err = bytearray(), bytearray()
    tasks = [
        asyncio.ensure_future(_collect(process.stdout, out, cap)),
        asyncio.ensure_future(_collect(process.stderr, err, STDERR_CAP, drain=True)),
    ]
    if stdin is not None:
        tasks.append(asyncio.ensure_future(_feed(process, stdin)))
    try:
        _, late = await asyncio.wait(tasks[:1], timeout=timeout)
        cut = len(out) > cap
        exit_code = None if late or cut else await asyncio.wait_for(process.wait(), 5)
        if exit_code is not None:
            await asyncio.wait(tasks, timeout=1)
    except TimeoutError:
        exit_code = None
    finally:
        await _end(process, tasks)
    return Finished(exit_code, bytes(out[:cap]), bytes(err).decode("utf-8", "replace"), cut, bool(late))


async def _collect(stream: asyncio.StreamReader, into: bytearray, cap: int, drain: bool = False) -> None:
    while chunk := await stream.read(65_536):
        if len(into) <= cap:
            into += chunk
        if len(into) > cap and not drain:
            return


async def _feed(process: asyncio.subprocess.Process, data: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError):
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()


async def _end(process: asyncio.subprocess.Process, tasks: Sequence[asyncio.Future[None]]) -> None:
    for task in tasks:
        task.cancel()
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    waiting: list[asyncio.Future[Any]] = [*tasks, asyncio.ensure_future(process.wait())]
    await asyncio.wait(waiting, timeout=2)
    transport = getattr(process, "_transport", None)  # closes the pipes now, not when the garbage collector comes
    if transport is not None:
        transport.close()
