"""Pages of a PDF as text, extracted in a process of its own (see `helper.py`)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from msgspec import Struct

from worker_agent.errors import ToolError
from worker_agent.tools.base import ToolContext
from worker_agent.tools.builtin import helper
from worker_agent.tools.files import Target
from worker_agent.words import counted

SCRIPT = Path(__file__).with_name("pdf_script.py")
TIMEOUT = 60.0  # seconds
OUTPUT_CAP = 8 * 1024 * 1024


class Pages(Struct, frozen=True):
    """`texts` are those of pages `first`, `first + 1`, …; `total` is the number of pages of the document."""

    first: int
    texts: tuple[str, ...]
    total: int

    def as_text(self, target: Target, cap: int) -> str:
        """At most about `cap` characters; says what is left out."""
        last = self.first + len(self.texts) - 1
        parts = [f"{target.shown}: pages {self.first}–{last} of {self.total}, text only (layout and pictures are lost)."]
        for number, text in enumerate(self.texts, self.first):
            parts.append(f"── page {number} ──\n{text.strip()}")
        whole = "\n\n".join(parts)
        if len(whole) > cap:
            whole = f"{whole[:cap]}\n\n[Cut at {cap:,} characters. Ask for fewer pages.]"
        elif last < self.total:
            whole += f'\n\n[Go on with pages "{last + 1}-{min(last + 20, self.total)}".]'
        return whole


async def pages(target: Target, first: int, last: int, context: ToolContext) -> Pages:
    argv = [sys.executable, "-I", str(SCRIPT), str(target.real), str(first), str(last)]
    try:
        done = await helper.run(argv, cwd=context.cwd, environment=context.environment, timeout=TIMEOUT, cap=OUTPUT_CAP)
    except OSError as error:
        raise ToolError(f"{target.shown}: the PDF reader could not be started ({error.strerror}).") from None
    if done.timed_out or done.cut:
        raise ToolError(f"{target.shown}: reading these pages takes too long or gives too much. Ask for fewer pages.")
    if done.exit_code != 0:
        reason = done.stderr.strip().splitlines()[-1:] or ["unknown reason"]
        raise ToolError(f"{target.shown} cannot be read as a PDF: {reason[0][:300]}")
    answer = json.loads(done.stdout)
    if not answer["texts"]:
        raise ToolError(f"{target.shown} has {counted(answer['total'], 'page')}; there is no page {first}.")
    return Pages(first, tuple(answer["texts"]), answer["total"])
