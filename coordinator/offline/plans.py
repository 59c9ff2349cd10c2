"""Four of the questions: the layout, notes of open work, the tests, and whether cited lines say what is quoted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from coordinator.offline import source
from coordinator.offline.answers import Hits, Listing, counts, files_counted, lines_read, numbered
from coordinator.offline.citations import Citation, code_span
from coordinator.offline.goal import Words
from coordinator.offline.plan import Plan, Steps, glob, grep, read
from coordinator.offline.writing import cited, join, names, spread
from worker_agent.words import counted

LANGUAGES = {
    name: f"*.{extensions[0]}" if len(extensions) == 1 else f"*.{{{','.join(extensions)}}}"
    for name, extensions in source.LANGUAGES.items()
}
MANIFESTS = (
    "pyproject.toml", "setup.cfg", "setup.py", "package.json", "Cargo.toml", "go.mod", "pom.xml", "Makefile", "Gemfile",
)  # fmt: skip

# A note of open work begins a comment, or stands in one with a colon or a name in parentheses behind it. A `#` or `//` in a
# string begins no comment; base64 has no blank before it.
_WORD = r"(?:TODO|FIXME|XXX|HACK)"
_MARK = rf"{_WORD}(?:$|[\s:(\]*,.!?;-])"
_CODE = r"(?:[^\"'`]|\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|`[^`]*`|[<&]\s*'[a-z_]\w*)*?"
_INTRODUCED = r"(?:#+|//+!?|/\*+!?|<!--+|\{#|--)"
NOTES = (
    rf"^(?:{_CODE}[\s;{{}}),\]])?{_INTRODUCED}(?:[\s:@\[(*-]*{_MARK}|[^\"'`]*?[\s(]{_WORD}\s?[:(])"
    rf"|^\s*(?:[*;%]+|[-+>]|\d+\.)[\s\[\]*]*{_MARK}"
    rf"|^\s*\**{_WORD}\**(?:\([\w ,.@-]+\))?:\s"
)
NOTES_SHOWN, NOTES_PARSED = 15, 6

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


def layout() -> Plan:
    globs = [glob(pattern) for pattern in LANGUAGES.values()]
    first = [glob("*"), glob("/*", path="."), glob("/*/*", path=".")]
    answers = [Listing.of(result) for result in (yield [*first, *globs])]
    everything, top, second = answers[:3]
    if not everything.total:
        return "The directory holds no files."
    numbers = {name: found.total for name, found in zip(LANGUAGES, answers[3:], strict=True) if found.total}
    main = max((n for n in numbers if n in source.DEFINITIONS), key=lambda n: numbers[n], default=None)
    described = sorted(name for name in top.files if _base(name) in MANIFESTS or _base(name).lower().startswith("readme"))[:4]
    calls = [read(name, limit=60) for name in described]
    if main:
        calls.append(grep(source.DEFINITIONS[main], glob=LANGUAGES[main], limit=250))
    results = (yield calls) if calls else []
    said = [c for name, result in zip(described, results, strict=False) for c in _describing(name, result)]
    defined = Hits.of(results[-1]) if main else Hits((), 0)
    outermost = [c for hit in defined.hits if hit.text[:1].strip() and (c := hit.cited())]
    ranked = ", ".join(f"{name} {number:,}" for name, number in sorted(numbers.items(), key=lambda pair: (-pair[1], pair[0])))
    return join(
        f"{everything.count()} file{'' if everything.total == 1 else 's'}.",
        f"Languages, by number of files: {ranked or 'none known'}.",
        names("Directories" if second.whole else "Some of its directories", _directories(answers)),
        names("Files at the top", sorted(map(_base, top.files))),
        cited("What the project says of itself", said[:8], f"{len(said)} such lines"),
        cited(f"Definitions in {main}", spread(outermost or defined.citations(), 8), defined.count()) if main else "",
    )


def todo(wanted: Words) -> Plan:
    lines, numbers = yield [grep(NOTES, limit=250), grep(NOTES, mode="count", limit=0)]
    hits, files, all_files = Hits.of(lines), counts(numbers), files_counted(numbers)
    if not hits.total:
        return "No comment begins with TODO, FIXME, XXX or HACK."
    most = f" Most are in: {', '.join(f'{code_span(path)} {count}' for path, count in files[:5])}."
    best = sorted(hits.citations(), key=lambda c: -_relevance(c, wanted))
    shown, strings = yield from _without_strings(spread(best, NOTES_SHOWN + 5))
    shown = sorted(shown[:NOTES_SHOWN], key=lambda c: -_relevance(c, wanted))
    opened = [read(c.path, offset=c.line, limit=4) for c in shown[:4]]
    following = (yield opened) if opened else []
    more = [
        c for start, result in zip(shown, following, strict=False) for c in numbered(start.path, result)[1:2]
        if c.text.startswith(("#", "//", "*")) and c not in shown
    ]  # fmt: skip
    return join(
        f"{hits.count()} line{'' if hits.total == 1 else 's'} in {_files(all_files)} {'looks' if hits.total == 1 else 'look'} like such a note.{most}",
        f"Left out, because inside strings: {counted(strings, 'line')} of those looked at." if strings else "",
        cited("Notes, those with words of the goal first", shown, hits.count()),
        cited("Comments that go on", more, str(len(more))),
    )


def _without_strings(found: Sequence[Citation]) -> Steps[tuple[list[Citation], int]]:
    """`found` without what stands in strings of Python files, as far as these are read, and how many that were."""
    paths = list(dict.fromkeys(c.path for c in found if source.language_of(c.path) == "Python"))[:NOTES_PARSED]
    inside: set[str] = set()
    for start in range(0, len(paths), 2):
        part = paths[start : start + 2]
        for path, answer in zip(part, (yield [read(path) for path in part]), strict=True):
            text = "\n".join(lines_read(answer) or [])
            inside |= {c.key for c in found if c.path == path and text and source.is_comment(path, text, c.line) is False}
    return [c for c in found if c.key not in inside], len(inside)


def tests(wanted: Words) -> Plan:
    first = [glob(pattern) for pattern in _TEST_FILES]
    commands = grep(_TEST_COMMAND, glob=_CONFIGURATION, limit=40)
    *listed, cases, how = yield [*first, grep(_TEST_CASE, mode="count", limit=0), commands]
    listings = [Listing.of(result) for result in listed]
    files = sorted({name for listing in listings for name in listing.files})
    more = "" if all(listing.whole for listing in listings) else "More than "
    by_file, ways = counts(cases), Hits.of(how)
    if not files and not ways.total and not by_file:
        return "No test file is named as such, and no configuration names a way to run tests."
    named = [path for path, _ in by_file if path in files] or files
    chosen = sorted(named, key=lambda path: -sum(word.is_in(path) for word in wanted.words))[:3]
    opened = [grep(_TEST_CASE, path=name, limit=4) for name in chosen]
    results = (yield opened) if opened else []
    seen = [c for result in results for c in Hits.of(result).citations()]
    least = "at least " if files_counted(cases) != str(len(by_file)) else ""
    total = f"{least}{sum(count for _, count in by_file):,}"
    named_so = f"{more}{counted(len(files), 'file')} {'is' if len(files) == 1 else 'are'} named as tests."
    return join(
        f"{named_so} Lines that begin a test case, in all files: {total}." if files else "No file is named as a test.",
        cited("Test cases", seen, total),
        cited("Lines that say how tests are run", spread(ways.citations(), 8), ways.count())
        or "No configuration names a way to run them.",
        "They were not run: this survey only reads.",
    )


def verify(found: Sequence[Citation], at_once: int = 20) -> Plan:
    verdicts: list[str] = []
    for start in range(0, len(found), at_once):
        part = found[start : start + at_once]
        results = yield [read(c.path, offset=c.line, limit=1) for c in part]
        verdicts += [_verdict(c, result) for c, result in zip(part, results, strict=True)]
    held = sum(verdict.startswith("- holds") for verdict in verdicts)
    return "\n".join([f"{counted(len(found), 'cited line')} read again; {held} of them say what is quoted.", "", *verdicts])


def _verdict(citation: Citation, result: str | None) -> str:
    if result is None:
        return f"- fails `{citation.key}`: it could not be read"
    match = re.match(r"\s*(\d+)\t(.*)", result)
    holds = match is not None and int(match[1]) == citation.line and citation.holds(match[2])
    return f"- holds `{citation.key}`" if holds else f"- fails `{citation.key}`: the line says something else"


def verdicts_in(report: str) -> set[str]:
    """The citations (`path:line`) that a verification found to hold."""
    return set(re.findall(r"^- holds `([^`\n]+)`$", report, re.MULTILINE))


# ── small parts ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _relevance(citation: Citation, wanted: Words) -> int:
    return sum(word.is_in(citation.text) or word.is_in(citation.path) for word in wanted.words)


def _files(number: str) -> str:
    return f"{number} file{'' if number == '1' else 's'}"


def _base(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _describing(name: str, result: str | None) -> list[Citation]:
    lines = numbered(name, result)
    if _base(name).lower().startswith("readme"):
        return [c for c in lines if c.text[0] not in "<[!=-~"][:2]
    return [c for c in lines if _DESCRIBES.match(c.text)][:4]


def _directories(listings: Iterable[Listing]) -> list[str]:
    """The first directories of all paths listed. Absolute paths lie outside and say nothing here."""
    return sorted({name.split("/", 1)[0] for listing in listings for name in listing.files if "/" in name.lstrip("/")} - {""})
