"""Where the words of a goal occur: names and lines, the ones that hold most words of the goal first.

1. Each word is counted. 2. The files are found whose names hold words, and the lines that hold two; in the best named
files, and under the rarer names, lines with any word. 3. What was found is ranked, and around the best lines the enclosing
definitions are read. A list says how many of how many it shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from coordinator.offline import source
from coordinator.offline.answers import Hit, Hits, Listing, lines_read
from coordinator.offline.citations import Citation, cite, code_span
from coordinator.offline.goal import MOST, Word, Words, any_of, two_of
from coordinator.offline.plan import Call, Plan, Steps, glob, grep, read
from coordinator.offline.writing import cited, join
from worker_agent.words import counted

BEST = 12  # lines shown of all that hold words
OF_ONE_WORD = 4  # lines shown of one word
OF_ONE_FILE = 3
NAMED = 12  # files and directories shown by their names
IN_A_DIRECTORY = 10  # files shown of one of them
LOOKED_INTO = 8  # files searched because of their names
MOSTLY = 20  # files; words that the paths of so many do not hold are never too common in paths
PAIRED = 8  # words of which lines with two are searched: the rarest
READ_AT_ONCE = 2  # files in one answer: each may have two thousand lines
READ = 6


class _Found(Struct):
    """What the searches found: per word the lines with it and how many paths hold it, and all lines and names seen.
    `unlisted` are the words of which not all names are known, `telling` those that a path can tell something by: the others
    stand in most paths, as `package` does below `site-packages`."""

    words: tuple[Word, ...]
    telling: tuple[Word, ...] = ()
    lines: dict[str, Hits] = field(default_factory=dict)
    named: dict[str, int] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)  # path → how many words it holds
    unlisted: set[str] = field(default_factory=set)
    hits: dict[tuple[str, int], Hit] = field(default_factory=dict)

    def add(self, hits: Hits) -> None:
        self.hits |= {(hit.path, hit.line): hit for hit in hits.hits}

    def note_paths(self, listed: Mapping[Word, Sequence[Listing]], paths: int) -> None:
        """What paths hold each word, of so many `paths` in all; by which words a path can tell something follows from it."""
        most = max(MOSTLY, paths / 2)
        self.telling = tuple(word for word in self.words if sum(listing.total for listing in listed[word]) < most)
        for word in self.telling:
            self.note_names(word, listed[word])

    def note_names(self, word: Word, listings: Sequence[Listing]) -> None:
        self.named[word.text] = sum(listing.total for listing in listings)
        if not all(listing.whole for listing in listings):
            self.unlisted.add(word.text)
        for listing in listings:
            self.add_names(listing.files)

    def add_names(self, paths: Sequence[str]) -> None:
        """Keep the paths that hold a word as a word: a glob also finds it in the middle of another."""
        for path in paths:
            count = sum(word.is_in(path) for word in self.telling)
            if count and "__pycache__/" not in path:
                self.names[path] = count

    def best_names(self) -> list[str]:
        """Paths by how many words they hold; then the rarer words; those whose last part holds one; the shorter way there."""

        def rank(path: str) -> tuple[int, float, int, int, str]:
            base = path.rsplit("/", 1)[-1]
            in_base = sum(word.is_in(base) for word in self.telling)
            return -self.names[path], -self._rarity(path, self.telling), -in_base, path.count("/"), path

        return sorted(self.names, key=rank)

    def ranked(self) -> list[Hit]:
        """The lines that can be cited, best first: how many words line and path hold, then the line; the rarer words; a
        definition before its uses; the shorter way to the file."""

        def rank(hit: Hit) -> tuple[int, int, float, bool, int, str, int]:
            in_line = sum(word.is_in(hit.text) for word in self.words)
            here = [word for word in self.words if word.is_in(hit.text) or (word in self.telling and word.is_in(hit.path))]
            rare = self._rarity(f"{hit.path}\n{hit.text}", here)
            depth = hit.path.count("/")
            return -len(here), -in_line, -rare, not source.defines(hit.path, hit.text), depth, hit.path, hit.line

        return sorted((hit for hit in self.hits.values() if hit.cited()), key=rank)

    def _rarity(self, text: str, words: Sequence[Word]) -> float:
        """How much the `words` in `text` tell: the rarer, the more."""
        return sum(1.0 / (1 + self.lines[word.text].total) for word in words if word.is_in(text))


def words(wanted: Words) -> Plan:
    found = _Found(wanted.words)
    if not found.words:
        return join("The goal has no word that is worth searching for.", _left_out(wanted))
    total = yield from _first_look(found)
    if len(found.words) > 1:
        yield from _where_words_meet(found)
    yield from _in_the_best_named(found)
    ranked = found.ranked()
    best = _spread(ranked, BEST)
    around = yield from _definitions_around(best)
    parts = [_of_one_word(found, ranked, word, best) for word in found.words] if len(found.words) > 1 else []
    return join(_searched(found.words), _left_out(wanted), _names(found), _best(best, total), _around(best, around), *parts)


def _first_look(found: _Found) -> Steps[Hits]:
    """Count each word and note the names that hold it. Returns what holds any of them."""
    calls: list[Call] = []
    for word in found.words:
        calls += [grep(word.pattern, limit=60), glob(f"*{word.glob}*"), glob(f"**/*{word.glob}*/**")]
    *answers, everything, holding = yield [*calls, glob("*"), grep(any_of(found.words), limit=1)]
    listed: dict[Word, list[Listing]] = {}
    for place, word in enumerate(found.words):
        lines, *listings = answers[place * 3 : place * 3 + 3]
        found.lines[word.text] = Hits.of(lines)
        found.add(found.lines[word.text])
        listed[word] = [Listing.of(listing) for listing in listings]
    found.note_paths(listed, Listing.of(everything).total)
    return Hits.of(holding)


def _where_words_meet(found: _Found) -> Steps[None]:
    """Lines with two words; lines with one under a name with another; names with two where there are too many with one."""
    rarest = sorted((w for w in found.words if found.lines[w.text].total), key=lambda w: found.lines[w.text].total)[:PAIRED]
    named = sorted((w for w in found.telling if found.named.get(w.text)), key=lambda w: found.named[w.text])[:3]
    calls = [grep(two_of(rarest), limit=250)] if len(rarest) > 1 else []
    for word in named:
        others = any_of([w for w in rarest if w != word])
        calls += [grep(others, glob=place, limit=60) for place in (f"*{word.glob}*", f"**/*{word.glob}*/**") if others]
    pairs = [
        glob(pattern)
        for a in found.words if a.text in found.unlisted for b in found.words if a != b
        for pattern in (f"*{a.glob}*{b.glob}*", f"**/*{a.glob}*/**/*{b.glob}*", f"**/*{b.glob}*/**/*{a.glob}*")
    ][:PAIRED * 3]  # fmt: skip
    if not calls and not pairs:
        return
    answers = yield [*calls, *pairs]
    for answer in answers[: len(calls)]:
        found.add(Hits.of(answer))
    for answer in answers[len(calls) :]:
        found.add_names(Listing.of(answer).files)


def _in_the_best_named(found: _Found) -> Steps[None]:
    """Lines with any word in the files whose names hold most."""
    best = found.best_names()[:LOOKED_INTO]
    calls = [grep(any_of(found.words), path=path, limit=20) for path in best]
    for answer in (yield calls) if calls else []:
        found.add(Hits.of(answer))


def _definitions_around(best: Sequence[Hit]) -> Steps[dict[Hit, Citation]]:
    """The definition around each of the lines that stand in one."""
    paths = list(dict.fromkeys(hit.path for hit in best if source.can_be_parsed(hit.path)))[:READ]
    around: dict[Hit, Citation] = {}
    for start in range(0, len(paths), READ_AT_ONCE):
        part = paths[start : start + READ_AT_ONCE]
        for path, answer in zip(part, (yield [read(path) for path in part]), strict=True):
            lines = lines_read(answer) or []
            for hit in (hit for hit in best if hit.path == path):
                first = source.enclosing(path, "\n".join(lines), hit.line)
                if first is not None and (citation := cite(path, first, lines[first - 1])):
                    around[hit] = citation
    return around


# ── what is said of it ───────────────────────────────────────────────────────────────────────────────────────────────


def _searched(found: Sequence[Word]) -> str:
    return f"Searched in any case, where a word or a part of a name begins: {', '.join(_shown(word) for word in found)}."


def _shown(word: Word) -> str:
    return code_span(word.text) + (f" (as {code_span(word.stem)}…)" if word.stem.lower() != word.text.lower() else "")


def _left_out(wanted: Words) -> str:
    common = f"Not searched, as nearly every question holds them: {_spans(wanted.common)}." if wanted.common else ""
    beyond = f"Not searched, as there are more than {MOST} others: {_spans(wanted.beyond)}." if wanted.beyond else ""
    return join(common, beyond)


def _spans(found: Sequence[str]) -> str:
    return ", ".join(map(code_span, found))


def _names(found: _Found) -> str:
    """Files by their names; those of which only a directory's name holds a word, by that directory."""
    if not found.names:
        return "No name of a file or directory holds one of the words."
    best = [path for path in found.best_names() if path.isprintable()]
    groups: dict[str, list[str]] = {}
    for path in best:
        groups.setdefault(_named_part(path, found.telling), []).append(path)
    lines = [_group(part, paths, found) for part, paths in list(groups.items())[:NAMED]]
    total = f"{'at least ' if found.unlisted else ''}{len(groups):,}"
    label = f"Files and directories whose path holds words of the goal, {len(lines)} of {total}, those with most words first:"
    return "\n".join([label, "", *lines])


def _named_part(path: str, words: Sequence[Word]) -> str:
    """The beginning of `path` up to the last part whose name holds a word; a directory ends with a slash."""
    parts = path.split("/")
    last = max((place for place, part in enumerate(parts) if any(word.is_in(part) for word in words)), default=len(parts) - 1)
    return path if last == len(parts) - 1 else "/".join(parts[: last + 1]) + "/"


def _group(part: str, paths: Sequence[str], found: _Found) -> str:
    words = f"{found.names[paths[0]]} of {counted(len(found.words), 'word')}"
    if not part.endswith("/"):
        return f"- {code_span(part)} ({words})"
    inside = [path.removeprefix(part) for path in sorted(paths)]
    shown = f"{min(len(inside), IN_A_DIRECTORY)} of {counted(len(inside), 'file')}"
    return f"- {code_span(part)} ({words}; {shown}): {_spans(inside[:IN_A_DIRECTORY])}"


def _best(best: Sequence[Hit], total: Hits) -> str:
    return cited("Lines that hold, with their path, most words of the goal", [hit.cited() for hit in best], total.count())


def _of_one_word(found: _Found, ranked: Sequence[Hit], word: Word, best: Sequence[Hit]) -> str:
    lines = found.lines[word.text]
    if not lines.total:
        return f"{code_span(word.text)} occurs in no line."
    holding = [hit for hit in ranked if word.is_in(hit.text)]
    more = _spread([hit for hit in holding if hit not in best], OF_ONE_WORD)
    above = sum(hit in best for hit in holding)
    already = f" besides {above} above" if above else ""
    label = f"Lines with {code_span(word.text)}{already}"
    return cited(label, [hit.cited() for hit in more], lines.count()) or f"{label}: all {lines.count()} are listed."


def _around(best: Sequence[Hit], around: Mapping[Hit, Citation]) -> str:
    definitions = list(dict.fromkeys(around[hit] for hit in best if hit in around))
    label = f"Definitions that enclose {len(around)} of these {len(best)} lines"
    return cited(label, definitions, str(len(definitions)))


def _spread(found: Sequence[Hit], most: int) -> list[Hit]:
    """The first `most` of them, at most `OF_ONE_FILE` of one file as long as there are others."""
    seen: dict[str, int] = {}
    first: list[Hit] = []
    later: list[Hit] = []
    for hit in found:
        seen[hit.path] = seen.get(hit.path, 0) + 1
        (first if seen[hit.path] <= OF_ONE_FILE else later).append(hit)
    return (first + later)[:most]
