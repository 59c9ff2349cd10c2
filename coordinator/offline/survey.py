"""What the offline surveyor looks at: each question is a plan that asks for tool calls and makes a report of it.

A plan is a generator: it yields the calls of one answer, is sent their results in the same order (None for one that
failed or is not there), and returns its report. It keeps nothing between model calls: the conversation is its memory,
and the plan is run from its beginning over the results that the conversation holds. So a survey goes on after a crash
where it stopped, and equal conversations give equal answers.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.offline.citations import Citation, citations, cite, code_span


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    input: Mapping[str, Any]


Results = list[str | None]
Plan = Generator[list[Call], Results, str]

QUESTIONS = {
    "layout": ("Layout and languages", "How is the directory laid out, and in which languages is it written?"),
    "words": ("Where the goal's words occur", "Where do the words of the goal occur?"),
    "todo": ("Open TODO and FIXME", "Which notes of open work (TODO, FIXME, XXX, HACK) are in the files?"),
    "tests": ("Tests and how they run", "Which tests are there, and how are they run?"),
}

LANGUAGES = {
    "Python": "*.{py,pyi}", "JavaScript": "*.{js,mjs,cjs,jsx}", "TypeScript": "*.{ts,tsx,mts}", "Go": "*.go",
    "Rust": "*.rs", "C": "*.{c,h}", "C++": "*.{cc,cpp,cxx,hpp}", "Java": "*.java", "Ruby": "*.rb",
    "Shell": "*.{sh,bash}",
    "HTML and CSS": "*.{html,htm,css}", "Text": "*.{md,rst,txt}",
}  # fmt: skip
MANIFESTS = (
    "pyproject.toml", "setup.cfg", "setup.py", "package.json", "Cargo.toml", "go.mod", "pom.xml", "Makefile", "Gemfile",
)  # fmt: skip
DEFINITION = r"^\s*(?:async def|def|class|func|fn|pub|export|function|module\.exports|public|interface|type|struct)\b"
MARKS = r"\b(TODO|FIXME|XXX|HACK)\b"
_DESCRIBES = re.compile(r'^\s*"?(name|version|description|requires-python|main|module|edition|license)"?\s*[:= ]')
_TEST_COMMAND = (
    r"pytest|unittest|\btox\b|\bnox\b|\"test\"\s*:|^test\w*:|go test|cargo test|npm (run )?test|"
    r"\bjest\b|vitest|mocha|node --test"
)
_TEST_CASE = r"^\s*(?:async )?def test\w*\(|^\s*(?:it|test|describe)\(|^func Test\w+\(|#\[(?:tokio::)?test\]|@Test\b"
_TEST_FILES = (
    "*test*.py",
    "*_test.go",
    "*.{test,spec}.{js,jsx,ts,tsx,mjs,cjs}",
    "*Test.java",
    "{test,tests,spec}/**/*.{js,rs,rb,mjs,ts}",
)
_CONFIGURATION = "{pyproject.toml,setup.cfg,tox.ini,noxfile.py,pytest.ini,package.json,Makefile,justfile,*.yml,*.yaml,README*}"
_STOP_WORDS = frozenset(
    "a about after all also and any are around been before being between both but can could does done each every "
    "find for from give has have here how into just know list look make many more most much must need only other "
    "our out over please report repository repo same say see should show some such survey take tell than that the "
    "their them then there these they this those through under until use used uses using very want was way were what "
    "when where which while who why will with within without work works would you your "
    "aber alle auch auf aus bei bitte das dass dem den der des die diese dieses ein eine einen einer für hat ist "
    "mit nach nicht oder sind und von was welche wie wird wird zeige zum zur über".split()
)


def words_of(goal: str, most: int = 5) -> list[str]:
    """The words of a goal worth searching for, names in code form first, then the longer ones; each once."""
    found = dict.fromkeys(w.strip("_-.") for w in re.findall(r"[^\W\d][\w.-]*", goal))
    words = [w for w in found if len(w) >= 3 and w.isprintable() and w.lower() not in _STOP_WORDS]

    def worth(word: str) -> tuple[bool, int]:
        plain = word.islower() or word.istitle()
        return (plain and not re.search(r"[_.\d]", word), -len(word))

    chosen = sorted(words, key=worth)[:most]
    return [w for w in words if w in chosen]


def prompt_for(question: str, goal: str, directory: str | None) -> str:
    """The whole prompt of the research worker for `question`; `question_of` reads it back."""
    title, asks = QUESTIONS[question]
    place = f"the directory {directory}" if directory else "your working directory"
    words = f"\nThe words to look for: {' '.join(words_of(goal)) or '(none)'}." if question == "words" else ""
    return (
        f"Survey question: {question}\n\n"
        f"Purpose: a survey of {place} for this goal of a person: {_one_line(goal)}\n"
        f"Your part of it, {title.lower()}: {asks}{words}\n"
        "Look with Glob, Grep and Read; change nothing and run nothing. Other workers have the other questions.\n"
        "Report in Markdown. Cite each finding as a line of its own, with the file, the line number and what the line "
        "says, in the form: - `path:line` `text`. Another worker will read every cited line again."
    )


def verification_prompt(cited: Sequence[Citation], directory: str | None) -> str:
    place = f"the directory {directory}" if directory else "your working directory"
    return (
        f"Survey question: verify\n\nOther workers surveyed {place} and cited the lines below. Read each cited line "
        "again and report for each whether it says what is quoted. Change nothing.\n\n" + "\n".join(map(str, cited))
    )


def plan_for(prompt: str) -> Plan | None:
    """The plan for a worker's prompt, or None if it holds no survey question."""
    match = re.search(r"^Survey question: (\w+)$", prompt, re.MULTILINE)
    question = match[1] if match else ""
    if question == "verify":
        return verify(citations(prompt))
    if question == "words":
        listed = re.search(r"^The words to look for: (.*)\.$", prompt, re.MULTILINE)
        return words([w for w in (listed[1] if listed else "").split() if w != "(none)"])
    plans = {"layout": layout, "todo": todo, "tests": tests}
    return plans[question]() if question in plans else None


# ── the plans ────────────────────────────────────────────────────────────────────────────────────────────────────────


def layout() -> Plan:
    globs = [Call("Glob", {"pattern": pattern}) for pattern in LANGUAGES.values()]
    first = [_glob("*"), _glob("/*", path="."), _glob("/*/*", path=".")]
    answers = [Listing.of(result) for result in (yield [*first, *globs])]
    everything, top, second = answers[:3]
    if not everything.total:
        return "The directory holds no files."
    counts = {name: found.total for name, found in zip(LANGUAGES, answers[3:], strict=True) if found.total}
    main = max((n for n in counts if n != "Text"), key=lambda n: counts[n], default=None)
    described = [name for name in top.files if _base(name) in MANIFESTS or _base(name).lower().startswith("readme")][:4]
    calls = [_read(name, limit=60) for name in sorted(described)]
    if main:
        calls.append(_grep(DEFINITION, glob=LANGUAGES[main], limit=40))
    results = (yield calls) if calls else []
    said = [c for name, result in zip(sorted(described), results, strict=False) for c in _describing(name, result)]
    defined = Hits.of(results[-1]) if main else Hits((), 0)
    return _join(
        f"{everything.count()} files.",
        f"Languages, by number of files: {', '.join(f'{n} {c}' for n, c in _ranked(counts)) or 'none known'}.",
        _names("Directories" if second.whole else "Some of its directories", _directories(answers)),
        _names("Files at the top", sorted(map(_base, top.files))),
        _cited("What the project says of itself:", said),
        _cited(f"Definitions in {main} ({defined.count()}), for example:", _spread(defined.citations(), 8)) if main else "",
    )


def words(wanted: Sequence[str]) -> Plan:
    if not wanted:
        return "The goal has no word that is worth searching for."
    answers = yield [
        _grep(rf"\b{_escape(word)}" if word[0].isalnum() else _escape(word), limit=30, **{"-i": True}) for word in wanted
    ]
    found = {word: Hits.of(answer) for word, answer in zip(wanted, answers, strict=True)}
    chosen = {word: _spread(hits.citations(), 6) for word, hits in found.items()}
    indented = [hit for hits in found.values() for hit in hits.indented()][:4]
    around = (yield [_before(hit) for hit in indented]) if indented else []
    within = [_definition(hit.path, result) for hit, result in zip(indented, around, strict=True)]
    parts = [
        _cited(f"{code_span(word)} stands in {hits.count()} lines:", chosen[word]) if hits.total
        else f"{code_span(word)} occurs nowhere." for word, hits in found.items()
    ]  # fmt: skip
    return _join(*parts, _cited("The definitions around some of these lines:", [c for c in within if c]))


def todo() -> Plan:
    lines, counted = yield [_grep(MARKS, limit=60), _grep(MARKS, mode="count", limit=0)]
    hits, files, all_files = Hits.of(lines), _counts(counted), _files_counted(counted)
    if not hits.total:
        return "No line holds TODO, FIXME, XXX or HACK."
    shown = _spread(hits.citations(), 15)
    opened = [_read(c.path, offset=c.line, limit=4) for c in shown[:4]]
    following = (yield opened) if opened else []
    more = [
        c for start, result in zip(shown, following, strict=False) for c in _numbered(start.path, result)[1:2]
        if c.text.startswith(("#", "//", "*"))
    ]  # fmt: skip
    most = ", ".join(f"{code_span(path)} {count}" for path, count in files[:5])
    return _join(
        f"{hits.count()} lines in {all_files} files hold such a note. Most are in: {most}.",
        _cited("", shown),
        _cited("Comments that go on:", [c for c in more if c not in shown]),
    )


def tests() -> Plan:
    first = [Call("Glob", {"pattern": pattern}) for pattern in _TEST_FILES]
    commands = _grep(_TEST_COMMAND, glob=_CONFIGURATION, limit=40)
    *listed, cases, how = yield [*first, _grep(_TEST_CASE, mode="count", limit=0), commands]
    listings = [Listing.of(result) for result in listed]
    files = sorted({name for listing in listings for name in listing.files})
    more = "" if all(listing.whole for listing in listings) else "More than "
    counted, ways = _counts(cases), Hits.of(how)
    chosen = [path for path, _ in counted if path in files][:3] or files[:3]
    opened = [_grep(_TEST_CASE, path=name, limit=4) for name in chosen]
    results = (yield opened) if opened else []
    seen = [c for result in results for c in Hits.of(result).citations()]
    cases_total = sum(count for _, count in counted)
    if not files and not ways.total and not counted:
        return "No test file is named as such, and no configuration names a way to run tests."
    return _join(
        f"{more}{len(files)} files are named as tests. Lines that begin a test case, in all files: "
        f"{'at least ' if _files_counted(cases) != str(len(counted)) else ''}{cases_total}." if files
        else "No file is named as a test.",
        _cited("Some of the test cases:", seen),
        _cited("Lines that say how tests are run:", _spread(ways.citations(), 8)) if ways.total
        else "No configuration names a way to run them.",
        "They were not run: this survey only reads.",
    )  # fmt: skip


def verify(cited: Sequence[Citation], at_once: int = 20) -> Plan:
    verdicts: list[str] = []
    for start in range(0, len(cited), at_once):
        part = cited[start : start + at_once]
        results = yield [_read(c.path, offset=c.line, limit=1) for c in part]
        verdicts += [_verdict(c, result) for c, result in zip(part, results, strict=True)]
    held = sum(verdict.startswith("- holds") for verdict in verdicts)
    return "\n".join([f"{len(cited)} cited lines were read again; {held} hold.", "", *verdicts])


def _verdict(cited: Citation, result: str | None) -> str:
    if result is None:
        return f"- fails `{cited.key}`: it could not be read"
    match = re.match(r"\s*(\d+)\t(.*)", result)
    holds = bool(match) and int(match[1]) == cited.line and cited.holds(match[2])
    return f"- holds `{cited.key}`" if holds else f"- fails `{cited.key}`: the line says something else"


def verdicts_in(report: str) -> set[str]:
    """The citations (`path:line`) that a verification found to hold."""
    return set(re.findall(r"^- holds `([^`\n]+)`$", report, re.MULTILINE))


def together(plans: Mapping[str, Plan]) -> Generator[list[Call], Results, dict[str, str]]:
    """Run several plans side by side: the calls of one round go out in one answer. Returns their reports."""
    reports: dict[str, str] = {}
    waiting: dict[str, list[Call]] = {}
    for name, plan in plans.items():
        _advance(name, plan, None, waiting, reports)
    while waiting:
        results = yield [call for calls in waiting.values() for call in calls]
        for name, calls in list(waiting.items()):
            mine, results = results[: len(calls)], results[len(calls) :]
            _advance(name, plans[name], mine, waiting, reports)
    return reports


def _advance(name: str, plan: Plan, results: Results | None, waiting: dict[str, list[Call]], reports: dict[str, str]) -> None:
    try:
        waiting[name] = next(plan) if results is None else plan.send(results)
    except StopIteration as end:
        reports[name] = end.value
        waiting.pop(name, None)


# ── what the tools answered ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Listing:
    """An answer of Glob."""

    files: tuple[str, ...]
    total: int
    open_end: bool = False

    @property
    def whole(self) -> bool:
        return self.total == len(self.files) and not self.open_end

    @classmethod
    def of(cls, result: str | None) -> Listing:
        lines = (result or "No file").split("\n")
        notes = [line for line in lines if line.startswith("[") and line.endswith("]")]
        if lines[0].startswith("No file") or any("git ignores" in note for note in notes):
            return cls((), 0)
        files = tuple(line for line in lines if line and line not in notes)
        more = next((int(m[1].replace(",", "")) for note in notes if (m := re.match(r"\[([\d,]+) more", note))), 0)
        return cls(files, len(files) + more, any("names were looked at" in note for note in notes))

    def count(self) -> str:
        return f"{'More than ' if self.open_end else ''}{self.total:,}"


@dataclass(frozen=True, slots=True)
class Hit:
    path: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Hits:
    """An answer of Grep in content mode. `open_end`: there are more than `total`."""

    hits: tuple[Hit, ...]
    total: int
    open_end: bool = False

    @classmethod
    def of(cls, result: str | None) -> Hits:
        lines = (result or "").split("\n")
        matches = (re.match(r"(.+?):(\d+):(.*)", line) for line in lines)
        hits = tuple(Hit(m[1], int(m[2]), m[3]) for m in matches if m)
        note = re.match(r"\[[\d,]+ of (at least )?([\d,]+) lines shown", lines[-1])
        total = int(note[2].replace(",", "")) if note else len(hits)
        return cls(hits, total, bool(note and note[1]))

    def count(self) -> str:
        return f"{'at least ' if self.open_end else ''}{self.total:,}"

    def citations(self) -> list[Citation]:
        return [c for hit in self.hits if (c := cite(hit.path, hit.line, hit.text))]

    def indented(self) -> list[Hit]:
        """One hit a file that stands inside of something."""
        first = {hit.path: hit for hit in reversed(self.hits) if hit.line > 1 and hit.text[:1] in (" ", "\t")}
        return [first[path] for path in sorted(first)]


def _counts(result: str | None) -> list[tuple[str, int]]:
    """An answer of Grep in count mode, the highest first."""
    matches = (re.fullmatch(r"(.+):(\d+)", line) for line in (result or "").split("\n"))
    return sorted(((m[1], int(m[2])) for m in matches if m), key=lambda pair: (-pair[1], pair[0]))


def _files_counted(result: str | None) -> str:
    """How many files an answer of Grep in count mode is about, the ones it left out included."""
    note = re.search(r"^\[[\d,]+ of (at least )?([\d,]+) files shown", result or "", re.MULTILINE)
    return f"{note[1] or ''}{note[2]}" if note else str(len(_counts(result)))


def _numbered(path: str, result: str | None) -> list[Citation]:
    """The lines of an answer of Read, as far as they can be cited."""
    lines = (re.fullmatch(r"\s*(\d+)\t(.*)", line) for line in (result or "").split("\n"))
    return [c for m in lines if m and (c := cite(path, int(m[1]), m[2]))]


def _describing(name: str, result: str | None) -> list[Citation]:
    lines = _numbered(name, result)
    if _base(name).lower().startswith("readme"):
        return [c for c in lines if c.text[0] not in "<[!=-~"][:2]
    return [c for c in lines if _DESCRIBES.match(c.text)][:4]


def _definition(path: str, result: str | None) -> Citation | None:
    """The last definition in a piece of a file."""
    return next((c for c in reversed(_numbered(path, result)) if re.match(DEFINITION, c.text)), None)


# ── small parts ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _glob(pattern: str, **more: Any) -> Call:
    return Call("Glob", {"pattern": pattern, **more})


def _read(path: str, **more: int) -> Call:
    return Call("Read", {"file_path": path, **more})


def _grep(pattern: str, *, mode: str = "content", limit: int = 30, **more: Any) -> Call:
    return Call("Grep", {"pattern": pattern, "output_mode": mode, "head_limit": limit, **more})


def _before(hit: Hit) -> Call:
    start = max(1, hit.line - 60)
    return _read(hit.path, offset=start, limit=max(1, hit.line - start))


def _escape(word: str) -> str:
    return re.sub(r"([^\w])", r"\\\1", word)


def _one_line(text: str, most: int = 500) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[:most] + " …"


def _base(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _directories(listings: Iterable[Listing]) -> list[str]:
    """The first directories of all paths listed. Absolute paths lie outside and say nothing here."""
    return sorted({name.split("/", 1)[0] for listing in listings for name in listing.files if "/" in name.lstrip("/")} - {""})


def _ranked(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))


def _spread(found: Sequence[Citation], most: int) -> list[Citation]:
    """Up to `most` of them, from as many files as possible, in their order."""
    rank: dict[str, int] = {}
    ranked = []
    for place, citation in enumerate(found):
        rank[citation.path] = rank.get(citation.path, 0) + 1
        ranked.append((rank[citation.path], place))
    return [found[place] for place in sorted(place for _, place in sorted(ranked)[:most])]


def _names(label: str, names: Sequence[str], most: int = 20) -> str:
    if not names:
        return ""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{label}: {', '.join(map(code_span, names[:most]))}{more}."


def _cited(label: str, found: Iterable[Citation]) -> str:
    lines = [str(citation) for citation in found]
    return "\n".join([*([label, ""] if label else []), *lines]) if lines else ""


def _join(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)
