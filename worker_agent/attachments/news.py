"""News between turns, beside the inbox: instructions beside files just read, memory that may matter, skills found, files
that changed, a new day.

Rules of this file:

1. Nothing waits. `begin` starts the prefetches while the model talks, `take` gives what is ready; what is late comes a
   turn later. At most one search and one discovery run at a time, and `close` ends and awaits them.
2. The order is fixed: instructions → memory files → skills → changed files → the date → what `news` has to tell. Nothing
   found is no message. Instructions come with the very turn in which a file was read: a few small files, looked up at once.
3. Work is bounded and does not grow with the conversation: only messages that are new since the last `begin` are looked
   at (all of them once after a compaction, when they are few), and only the files last touched.
4. What this conversation was told stands in the `data` of the messages that told it. So a resumed agent is not told
   twice, and one whose history was summarised may be told again.
5. A changed file is told of once (`watch.py`).
6. Everything in a message was written by somebody: names are made printable, and tags that could end the reminder or
   pass for another message of the system are defused. Known secrets are taken out.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, date, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from worker_agent import disk, tool_facts
from worker_agent import messages as m
from worker_agent.attachments.prefetch import Prefetch, in_thread
from worker_agent.attachments.watch import WATCHED, Watch
from worker_agent.config import Clock, SystemClock
from worker_agent.messages import Message
from worker_agent.tool_facts import Facts

DIFF_FILES = 5  # compared line by line between two turns
MEMORY_LIMIT = 5  # files told at once
MEMORY_TOTAL = 20  # files told in one conversation
SKILLS_LIMIT = 10  # told at once
INSTRUCTIONS_CAP = 40_000  # characters of one file of instructions
QUERY_PROMPT = 4_000  # characters of the prompt in a search
RECENT = 40  # messages whose tool calls are looked at, and inputs of a search
QUERY_INPUTS = 2_000  # characters of recent tool inputs

_TAGS = re.compile(r"<(?=\s*/?\s*(?:system-reminder|task-notification|tool_use_error)\b)", re.IGNORECASE)
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f\udc80-\udcff]")


class Hit(Protocol):
    @property
    def path(self) -> Path: ...
    @property
    def text(self) -> str: ...
    @property
    def whole(self) -> bool: ...


class Memory(Protocol):
    async def search(self, query_text: str, limit: int, exclude: Collection[Path]) -> Sequence[Hit]:
        """Does its work outside the event loop."""
        ...


class Found(Protocol):
    @property
    def name(self) -> str: ...
    def entry(self) -> str: ...


class Instruction(Protocol):
    @property
    def path(self) -> Path: ...
    @property
    def text(self) -> str: ...


class Instructions(Protocol):
    def near(self, paths: Iterable[Path]) -> Sequence[Instruction]:
        """What is to be known by who works on these files."""
        ...


class Skills(Protocol):
    def near(self, paths: Iterable[Path]) -> Sequence[Found]:
        """Called in a thread."""
        ...


class Attachments:
    """The news of one agent; satisfies the loop's port. `read_files` is the agent's own, `started` when its system
    prompt was made (seconds since the epoch; None: with the first message). `facts` are what is known of a
    tool by its name. `on_failure` hears of a prefetch that raised; that one is then off for good, and the agent goes on
    without. `news` gives what else is to be told, once. `instructions` are those of directories in which files are read."""

    def __init__(
        self, *, cwd: Path, read_files: dict[Path, Any], memory: Memory | None = None, skills: Skills | None = None,
        clock: Clock | None = None, started: float | None = None, redact: Callable[[str], str] = lambda text: text,
        facts: Callable[[str], Facts] = tool_facts.of, on_failure: Callable[[BaseException], None] = lambda error: None,
        news: Callable[[], str | None] = lambda: None, instructions: Instructions | None = None,
    ) -> None:  # fmt: skip
        self._cwd = cwd
        self._facts = facts
        self._clock = clock or SystemClock()
        self._redact, self._news = redact, news
        self._memory, self._skills, self._instructions = memory, skills, instructions
        self._read_files = read_files
        self._instructed = 0  # of read_files that were looked at for instructions
        self._watch = Watch(read_files, on_failure)
        self._started = started
        self._day: date | None = None
        self._last_id: str | None = None
        self._told_memory: set[Path] = set()
        self._told_skills: set[str] = set()
        self._told_instructions: set[Path] = set()
        self._prompt, self._asked = "", ""
        self._inputs: deque[str] = deque(maxlen=RECENT)
        self._touched: dict[Path, None] = {}
        self._search = Prefetch[Sequence[Hit]](on_failure)
        self._discovery = Prefetch[Sequence[Found]](on_failure)

    # ── the loop's port ────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, messages: tuple[Message, ...]) -> None:
        """Look at what is new in the conversation, and start what can run while the model talks."""
        self._look_at(messages)
        self._watch.begin(self._touched)
        if self._memory is not None and self._search.is_idle and len(self._told_memory) < MEMORY_TOTAL:
            self._begin_search(self._memory)
        if self._skills is None:
            self._touched.clear()
        elif self._touched and self._discovery.is_idle:
            self._discovery.start(in_thread(self._skills.near, tuple(self._touched)))
            self._touched.clear()

    def take(self) -> Sequence[Message]:
        """What is ready now. Never waits."""
        more = self._news()
        told = self._message(more, "news") if more else None
        first = (self._instruction_news(), self._memory_news(), self._skill_news())
        news = (*first, self._file_news(), self._date_news(), told)
        return [message for message in news if message is not None]

    async def close(self) -> None:
        """End the prefetches, and wait until they have ended."""
        await asyncio.gather(self._search.close(), self._discovery.close(), self._watch.close())

    # ── what is new in the conversation ────────────────────────────────────────────────────────────────────────────

    def _look_at(self, messages: tuple[Message, ...]) -> None:
        if not messages:
            return
        if self._started is None:
            self._started = messages[0].at
        new = self._new(messages)
        if new:
            self._inputs.clear()
        for number, message in enumerate(new):
            if message.role == "assistant":
                if len(new) - number <= RECENT:
                    self._note_calls(message)
            elif message.kind == "prompt":
                self._prompt = message.text[:QUERY_PROMPT]
            elif message.kind == "attachment":
                self._note_told(message)
        self._last_id = messages[-1].id

    def _new(self, messages: tuple[Message, ...]) -> list[Message]:
        """The messages since the last look, oldest first. All, and nothing told yet, when the last one is gone."""
        new: list[Message] = []
        for message in reversed(messages):
            if message.id == self._last_id:
                break
            new.append(message)
        else:
            self._told_memory.clear()
            self._told_skills.clear()
            self._told_instructions.clear()
            self._instructed = 0
            self._day = _day(self._started or 0.0)
        new.reverse()
        return new

    def _note_calls(self, message: Message) -> None:
        for call in message.tool_uses:
            given, paths = call.get("input"), self._facts(call["name"]).path_fields
            for key, value in given.items() if isinstance(given, dict) else ():
                if not isinstance(value, str):
                    continue
                self._inputs.append(value[:200])
                if key in paths and (path := self._resolved(value)) is not None:
                    self._touched.pop(path, None)
                    self._touched[path] = None
        while len(self._touched) > WATCHED:
            del self._touched[next(iter(self._touched))]

    def _resolved(self, text: str) -> Path | None:
        try:
            return Path(disk.real(os.path.join(self._cwd, os.path.expanduser(text))))
        except (OSError, ValueError):
            return None

    def _note_told(self, message: Message) -> None:
        match message.data.get("source"):
            case "memory":
                self._told_memory |= set(map(Path, message.data.get("files", ())))
            case "skills":
                self._told_skills |= set(message.data.get("names", ()))
            case "instructions":
                self._told_instructions |= set(map(Path, message.data.get("files", ())))
            case "date":
                self._day = date.fromisoformat(message.data["date"])

    # ── instructions, memory and skills ──────────────────────────────────────────────────────────────────────────────────────────

    def _instruction_news(self) -> Message | None:
        new = max(0, len(self._read_files) - self._instructed)
        self._instructed = len(self._read_files)
        if self._instructions is None or not new:
            return None
        paths = list(islice(reversed(self._read_files), new))[::-1]
        found = [file for file in self._instructions.near(paths) if file.path not in self._told_instructions and file.text]
        if not found:
            return None
        self._told_instructions |= {file.path for file in found}
        parts = [f"Contents of {self._shown(file.path)}:\n\n{file.text[:INSTRUCTIONS_CAP]}" for file in found]
        head = "Instructions of the project for files you have just read; follow them where you work on these:"
        files = [m.clean(str(file.path)) for file in found]
        return self._message("\n\n".join([head, *parts]), "instructions", files=files)

    def _begin_search(self, memory: Memory) -> None:
        query = f"{self._prompt}\n{' '.join(self._inputs)[:QUERY_INPUTS]}"
        if query != self._asked and query.strip():
            self._asked = query
            seen = self._told_memory | set(islice(reversed(self._read_files), WATCHED))
            self._search.start(memory.search(query, MEMORY_LIMIT, seen))

    def _memory_news(self) -> Message | None:
        hits = [hit for hit in self._search.take() or () if hit.path not in self._told_memory]
        hits = [hit for hit in hits if hit.path not in self._read_files][: MEMORY_TOTAL - len(self._told_memory)]
        if not hits:
            return None
        self._told_memory |= {hit.path for hit in hits}
        part = " (a part; read the file for the rest)"
        parts = [f"{self._shown(hit.path)}{'' if hit.whole else part}:\n{hit.text}" for hit in hits]
        head = "Notes kept from earlier work that may or may not matter now:"
        return self._message("\n\n".join([head, *parts]), "memory", files=[m.clean(str(hit.path)) for hit in hits])

    def _skill_news(self) -> Message | None:
        found = [skill for skill in self._discovery.take() or () if skill.name not in self._told_skills][:SKILLS_LIMIT]
        if not found:
            return None
        names = [skill.name for skill in found]
        self._told_skills |= set(names)
        head = "The files you work on come with these skills; load one with the tool Skill where it fits:"
        return self._message("\n".join([head, *(skill.entry() for skill in found)]), "skills", names=names)

    # ── files and date ─────────────────────────────────────────────────────────────────────────────────────────────

    def _file_news(self) -> Message | None:
        changes = self._watch.changes()
        if not changes:
            return None
        head = (
            "Files you have read or written were changed since, not by your file tools: by a command, another agent or "
            "a person. Take it as meant unless you know better, and read a file again before you edit it."
        )
        parts = []
        for number, change in enumerate(changes):
            diff = change.diff() if number < DIFF_FILES else []
            parts.append("\n".join([f"{self._shown(change.path)} {change.what}{':' if diff else '.'}", *diff]))
        return self._message("\n\n".join([head, *parts]), "files")

    def _date_news(self) -> Message | None:
        today = _day(self._clock.now())
        if self._day is None or today == self._day:
            return None
        self._day = today
        return self._message(f"The date is now {today.isoformat()}.", "date", date=today.isoformat())

    def _message(self, text: str, source: str, **data: Any) -> Message:
        inert = _TAGS.sub("&lt;", self._redact(text))
        shown = f"<system-reminder>\n{inert}\n</system-reminder>"
        return m.user(shown, kind="attachment", meta=True, at=self._clock.now(), data={"source": source, **data})

    def _shown(self, path: Path) -> str:
        text = str(path.relative_to(self._cwd) if path.is_relative_to(self._cwd) else path)
        return text if text.isprintable() else _UNPRINTABLE.sub(lambda found: f"\\x{ord(found[0]) & 0xFF:02x}", text)


def _day(seconds: float) -> date:
    return datetime.fromtimestamp(seconds, UTC).date()
