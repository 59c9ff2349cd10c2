"""Small parts of a report in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from coordinator.offline.citations import Citation, code_span


def join(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)


def one_line(text: str, most: int = 500) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[:most] + " …"


def cited(label: str, found: Iterable[Citation | None], of: str) -> str:
    """A list of citations, each once, under `label` and how many of how many they are; nothing for none."""
    lines = list(dict.fromkeys(str(citation) for citation in found if citation is not None))
    return "\n".join([f"{label}, {len(lines):,} of {of}:", "", *lines]) if lines else ""


def recounted(text: str) -> str:
    """`text` with the number of each list as long as the list is now; the label of one that is empty goes."""

    def counted_again(match: re.Match[str]) -> str:
        label, of, listed = match.groups()
        number = listed.count("\n- ") + listed.startswith("- ")
        return f"{label}, {number:,} of {of}:\n\n{listed}" if number else ""

    return re.sub(r"^(.*), [\d,]+ of ([^\n]*):\n\n((?:- [^\n]*(?:\n|$))*)", counted_again, text, flags=re.MULTILINE)


def names(label: str, found: Sequence[str], most: int = 20) -> str:
    if not found:
        return ""
    shown = f" ({most} of {len(found):,})" if len(found) > most else ""
    return f"{label}{shown}: {', '.join(map(code_span, found[:most]))}."


def spread(found: Sequence[Citation], most: int) -> list[Citation]:
    """Up to `most` of them, from as many files as possible, in their order."""
    rank: dict[str, int] = {}
    ranked = []
    for place, citation in enumerate(found):
        rank[citation.path] = rank.get(citation.path, 0) + 1
        ranked.append((rank[citation.path], place))
    return [found[place] for place in sorted(place for _, place in sorted(ranked)[:most])]
