"""Commands that keep a core busy for long take turns: builds, tests, compilers. As many run at once as there are cores.

Agents mostly wait, so many of them fit on a machine; what they build does not. Which command is one of these is guessed by its
words: a wrong guess costs a wait, never a refusal. The time limit of a command begins when its turn does. Commands in the
background take no turns: a server would never give its own back.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import lru_cache
from weakref import WeakKeyDictionary

PROGRAMS = frozenset(
    """ant bazel buck buildah bun c++ cargo cc clang clang++ cmake ctest docker dotnet esbuild ffmpeg g++ gcc go gradle gradlew
    hypothesis javac jest ld ldd lerna make meson mix mocha msbuild mvn mvnw mypy ninja node-gyp npm npx nox nx pip pnpm podman
    pylint pyright pytest rspec rustc sbt scons stack swift tox tsc turbo uv vite vitest webpack xcodebuild yarn""".split()
)
_WORDS = re.compile(r"[\w.+/-]+")
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[int, asyncio.Semaphore]] = WeakKeyDictionary()


@lru_cache(maxsize=512)
def is_heavy(command: str) -> bool:
    return any(word.rpartition("/")[2] in PROGRAMS for word in _WORDS.findall(command))


@asynccontextmanager
async def turn(command: str, most: int | None, waits: Callable[[str], object]) -> AsyncIterator[None]:
    """Around one command; at most `most` heavy ones at once in this process, None for as many as cores. `waits` is told why,
    if it has to."""
    if not is_heavy(command):
        yield
        return
    most = most or os.cpu_count() or 1
    loop = asyncio.get_running_loop()
    known = _turns.get(loop)
    if known is None or known[0] != most:
        known = _turns[loop] = (most, asyncio.Semaphore(most))
    if known[1].locked():
        waits(f"waits for its turn: {most} commands that build or test run")
    async with known[1]:
        yield
