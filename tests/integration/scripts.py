"""Scripts for sessions: a coordinator that spawns, waits for notifications and concludes, and workers by their
prompt."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from tests.support.fake_api import Request, message, tool_use
from tests.support.fake_api.scripts import as_script

TASK_ID = re.compile(r"<task-id>([^<]+)</task-id>")


def spawn(prompt: str, **fields: Any) -> Any:
    return tool_use("Agent", {"description": f"do {prompt}"[:40], "prompt": prompt, **fields})


def notified(request: Request) -> list[str]:
    """Task ids of the notifications the conversation holds, in order, each as often as it is there."""
    return TASK_ID.findall(request.user_text)


def coordinator(*prompts: str | Any, final: Any = "all is done") -> Callable[[Request], Any]:
    """Spawns one worker for each prompt in one answer, waits for all, answers `final`."""
    calls = [spawn(p) if isinstance(p, str) else p for p in prompts]

    def script(request: Request) -> Any:
        if request.turns == 0:
            return message("starting", *calls)
        if len(set(notified(request))) < len(calls):
            return message("waiting")
        return as_script(final)(request)

    return script


def fleet(boss: Any, workers: Mapping[str, Any] | Any = "report") -> Callable[[Request], Any]:
    """`boss` answers the agent that has the tool `Agent`; workers answer by what their prompt begins with."""
    scripts = {k: as_script(v) for k, v in workers.items()} if isinstance(workers, Mapping) else {"": as_script(workers)}
    leading = as_script(boss)

    def script(request: Request) -> Any:
        if "Agent" in request.tool_names:
            return leading(request)
        opening = first_prompt(request)
        return next(s for start, s in scripts.items() if opening.startswith(start))(request)

    return script


def first_prompt(request: Request) -> str:
    content = request.messages[0]["content"]
    texts = [content] if isinstance(content, str) else [b["text"] for b in content if b["type"] == "text"]
    return next(text for text in texts if not text.startswith("<system-reminder>"))


def by_turn(*answers: Any) -> Callable[[Request], Any]:
    """The answer by how many turns the conversation has had: repeats safely after a crash."""
    scripts = [as_script(a) for a in answers]
    return lambda request: scripts[min(request.turns, len(scripts) - 1)](request)
