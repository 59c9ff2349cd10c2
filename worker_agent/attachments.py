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
5. A file is news when its time or size and then its bytes differ from what the agent knows. Each change is told once.
   The agent's own file tools bring `read_files` up to date, so their changes are none. `read_files` itself is never
   changed here: a file must be read again before it is edited, whatever a notice showed of it.
6. Everything in a message was written by somebody: names are made printable, and tags that could end the reminder or
   pass for another message of the system are defused. Known secrets are taken out.
"""

from __future__ import annotations

import asyncio
import difflib
import hashlib
import os
import re
import stat
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from worker_agent import disk, tool_facts
from worker_agent import messages as m
from worker_agent.config import Clock, SystemClock
from worker_agent.messages import Message
from worker_agent.tool_facts import Facts

T = TypeVar("T")

WATCHED = 100  # files, those last touched
READ_CAP = 64 * 1024  # bytes of a file compared at once; larger ones are compared in a thread
LATE_CAP = 32 * 1024 * 1024  # bytes of a file compared in a thread
THREAD_GRACE = 2.0  # seconds a cancelled prefetch waits for its thread
READ_TOTAL = 512 * 1024  # bytes compared at once between two turns
TEXTS_CAP = 256 * 1024  # characters kept of files last seen, to show what changed in them
DIFF_FILES = 5  # compared line by line between two turns
DIFF_LINES = 60  # shown of one file
DIFF_REACH = 120  # lines between the first and the last change; beyond, comparing would take too long
LINE_CAP = 300  # characters of a line shown
MEMORY_LIMIT = 5  # files told at once
MEMORY_TOTAL = 20  # files told in one conversation
SKILLS_LIMIT = 10  # told at once
INSTRUCTIONS_CAP = 40_000  # characters of one file of instructions
QUERY_PROMPT = 4_000  # characters of the prompt in a search
RECENT = 40  # messages whose tool calls are looked at, and inputs of a search
QUERY_INPUTS = 2_000  # characters of recent tool inputs

_TAGS = re.compile(r"<(?=\s*/?\s*(?:system-reminder|task-notification|tool_use_error)\b)", re.IGNORECASE)
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f\udc80-\udcff]")


class Known(Protocol):
    """What is remembered of a file that was read or written; `digest` is sha256 of its bytes, "" where unknown."""

    mtime_ns: int
    size: int
    digest: str


class Hit(Protocol):
    @property
    def path(self) -> Path: ...
    @property
    def title(self) -> str: ...
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


# ── prefetches ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Prefetch(Generic[T]):
    """One thing at a time that runs in the background, and what it brought. Raising switches it off."""

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self._on_failure = on_failure
        self._task: asyncio.Task[T] | None = None
        self._is_off = False

    @property
    def is_idle(self) -> bool:
        return self._task is None and not self._is_off

    def start(self, work: Coroutine[Any, Any, T]) -> None:
        self._task = asyncio.create_task(work)

    def take(self) -> T | None:
        """What it brought, once; None while it runs."""
        task = self._task
        if task is None or not task.done():
            return None
        self._task = None
        if task.cancelled():
            return None
        if (error := task.exception()) is not None:
            self._is_off = True
            self._on_failure(error)
            return None
        return task.result()

    async def close(self) -> None:
        self._is_off = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
            self.take()


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """`function` in a thread. A cancellation waits for the thread, so that nothing goes on unseen."""
    work = asyncio.get_running_loop().run_in_executor(None, function, *arguments)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait((work,), timeout=THREAD_GRACE)
        raise


# ── files that changed ───────────────────────────────────────────────────────────────────────────────────────────────

_State = tuple[int, int] | str
"""Time (ns) and size of a regular file; anything else in words."""


@dataclass(frozen=True, slots=True)
class Change:
    """What became of a file. `old` and `new` are its text before and now, None where unknown or no text."""

    path: Path
    what: str
    old: str | None = None
    new: str | None = None

    def diff(self) -> list[str]:
        """The changed lines with their neighbours, as a unified diff without its head; [] where that is too long."""
        if self.old is None or self.new is None:
            return []
        before, after = self.old.split("\n"), self.new.split("\n")
        head = _common(before, after)
        tail = _common(before[head:][::-1], after[head:][::-1])
        if max(len(before), len(after)) - head - tail > DIFF_REACH:
            return []
        start, end = max(0, head - 3), max(0, tail - 3)
        lines = list(_hunks(before[start : len(before) - end], after[start : len(after) - end], start))
        return lines if len(lines) <= DIFF_LINES else []


def _common(one: list[str], other: list[str]) -> int:
    """How many lines both begin with."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _hunks(before: list[str], after: list[str], start: int) -> Iterator[str]:
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for group in matcher.get_grouped_opcodes(3):
        (_, i1, _, j1, _), (_, _, i2, _, j2) = group[0], group[-1]
        yield f"@@ -{start + i1 + 1},{i2 - i1} +{start + j1 + 1},{j2 - j1} @@"
        for tag, a1, a2, b1, b2 in group:
            yield from (f"{' ' if tag == 'equal' else '-'}{_cut(line)}" for line in before[a1:a2])
            if tag != "equal":
                yield from (f"+{_cut(line)}" for line in after[b1:b2])


def _cut(line: str) -> str:
    return line if len(line) <= LINE_CAP else f"{line[:LINE_CAP]} [cut]"


@dataclass(frozen=True, slots=True)
class _Seen:
    """The last look at a file that is not as the agent knows it: `base` is what it knows, `digest` what is there."""

    base: tuple[int, int, str]
    state: _State
    digest: str


class Watch:
    """Compares the files last touched with what the agent knows of them."""

    def __init__(self, read_files: dict[Path, Any], on_failure: Callable[[BaseException], None]) -> None:
        self._read_files = read_files
        self._count = 0  # of read_files that were looked at
        self._order: OrderedDict[Path, None] = OrderedDict()  # latest last
        self._seen: dict[Path, _Seen] = {}
        self._texts: OrderedDict[Path, tuple[str, str]] = OrderedDict()  # digest and text, for diffs
        self._kept = 0  # characters in `_texts`
        self._without_text: dict[Path, None] = {}
        self._snapshots = Prefetch[dict[Path, tuple[str, str]]](on_failure)
        self._digests = Prefetch[list[tuple[Path, _Seen]]](on_failure)

    def begin(self, touched: Iterable[Path]) -> None:
        """Note what was touched, and keep the text of what was read, while it is still as it was read."""
        new = max(0, len(self._read_files) - self._count)
        for path in [*reversed(list(islice(reversed(self._read_files), min(new, WATCHED)))), *touched]:
            if path in self._read_files:
                self._order[path] = None
                self._order.move_to_end(path)
                self._without_text[path] = None
        self._count = len(self._read_files)
        while len(self._order) > WATCHED:
            path, _ = self._order.popitem(last=False)
            self._seen.pop(path, None)
            self._without_text.pop(path, None)
            self._forget_text(path)
        if self._snapshots.is_idle and (wanted := self._wanted()):
            self._snapshots.start(in_thread(_texts_of, wanted))

    def changes(self) -> list[Change]:
        """What differs now from what the agent knows or was told, those last touched first."""
        for path, text in (self._snapshots.take() or {}).items():
            self._keep_text(path, *text)
        found = [self._judged(path, seen, None) for path, seen in self._digests.take() or ()]
        room, late = READ_TOTAL, []
        for path in reversed(self._order):
            if (seen := self._look(path)) is None:
                continue
            if isinstance(seen.state, tuple) and self._needs_bytes(path, seen):
                if (size := seen.state[1]) > min(READ_CAP, room):
                    late.append((path, seen))
                    continue
                room -= size
                found.append(self._compared(path, seen))
            else:
                found.append(self._judged(path, seen, None))
        if late and self._digests.is_idle:
            self._digests.start(in_thread(_digests_of, late))
        return [change for change in found if change is not None]

    async def close(self) -> None:
        await asyncio.gather(self._snapshots.close(), self._digests.close())

    # ── one file ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _look(self, path: Path) -> _Seen | None:
        """Its state, where that is another than the last; without a digest yet."""
        known = self._read_files.get(path)
        if known is None:
            return None
        base = _base(known)
        last = self._seen.get(path)
        if last is not None and last.base != base:  # read or written again since
            del self._seen[path]
            last = None
        before = last.state if last else base[:2]
        state = _state(path)
        if state != before and isinstance(state, tuple) and os.path.realpath(path) != str(path):
            state = "lies behind a link now that leads elsewhere"
        return _Seen(base, state, "") if state != before else None

    def _needs_bytes(self, path: Path, seen: _Seen) -> bool:
        """Whether only its bytes can say if it changed; for a large file another size is enough."""
        _, size, digest = seen.base
        return bool(digest) and (seen.state[1] == size or int(seen.state[1]) <= READ_CAP)

    def _compared(self, path: Path, seen: _Seen) -> Change | None:
        found = _read(path)
        if found is None:
            return self._judged(path, seen, None)
        data, state = found
        return self._judged(path, _Seen(seen.base, state, _digest(data)), _text(data))

    def _judged(self, path: Path, seen: _Seen, text: str | None) -> Change | None:
        known = self._read_files.get(path)
        if known is None or _base(known) != seen.base or path not in self._order:
            return None  # read or written again while it was compared
        last = self._seen.get(path)
        before = last.digest if last else seen.base[2]
        self._seen[path] = seen
        if isinstance(seen.state, str):
            return Change(path, seen.state)
        if seen.digest and seen.digest == before:
            return None  # merely touched
        digest, old = self._texts.get(path, ("", None))
        if text is not None:
            self._keep_text(path, seen.digest, text)
        if seen.digest and seen.digest == seen.base[2]:
            return Change(path, "is again as you last read it")
        return Change(path, "changed", old if digest == before else None, text)

    # ── texts ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _wanted(self) -> list[tuple[Path, str]]:
        """Files whose text is to be kept, with the digest it must have."""
        wanted, room = [], TEXTS_CAP
        for path in reversed(self._without_text):
            known = self._read_files.get(path)
            if known is not None and known.digest and known.size <= min(READ_CAP, room):
                if self._texts.get(path, ("",))[0] != known.digest:
                    wanted.append((path, known.digest))
                    room -= known.size
        self._without_text.clear()
        return wanted[::-1]

    def _keep_text(self, path: Path, digest: str, text: str) -> None:
        self._forget_text(path)
        self._texts[path] = (digest, text)
        self._kept += len(text)
        while self._kept > TEXTS_CAP:
            self._forget_text(next(iter(self._texts)))

    def _forget_text(self, path: Path) -> None:
        _, text = self._texts.pop(path, ("", ""))
        self._kept -= len(text)


def _base(known: Known) -> tuple[int, int, str]:
    return known.mtime_ns, known.size, known.digest


def _state(path: Path) -> _State:
    try:
        info = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return "was deleted or moved away"
    except OSError:
        return "can no longer be read"
    if stat.S_ISREG(info.st_mode):
        return info.st_mtime_ns, info.st_size
    kinds = {stat.S_IFDIR: "a directory", stat.S_IFLNK: "a link"}
    return f"was replaced by {kinds.get(stat.S_IFMT(info.st_mode), 'something that is no regular file')}"


def _read(path: Path, cap: int = READ_CAP) -> tuple[bytes, tuple[int, int]] | None:
    """Up to `cap` bytes of a regular file that lies where its path says, and its state; None for anything else."""
    try:
        with disk.open_regular(path, follow=False) as file:
            info = os.fstat(file.fileno())
            return disk.read_up_to(file, cap), (info.st_mtime_ns, info.st_size)
    except OSError:
        return None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _text(data: bytes) -> str | None:
    try:
        return None if b"\x00" in data else data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


def _texts_of(wanted: list[tuple[Path, str]]) -> dict[Path, tuple[str, str]]:
    """The texts of files that still have the digest named. Blocks."""
    found = {}
    for path, digest in wanted:
        if (read := _read(path)) and _digest(read[0]) == digest and (text := _text(read[0])) is not None:
            found[path] = (digest, text)
    return found


def _digests_of(late: list[tuple[Path, _Seen]]) -> list[tuple[Path, _Seen]]:
    """The same with their digests; those that cannot be read without. Blocks."""
    found = []
    for path, seen in late:
        read = _read(path, LATE_CAP)
        found.append((path, _Seen(seen.base, read[1], _digest(read[0])) if read else seen))
    return found
