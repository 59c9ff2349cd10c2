"""The report of a survey: Markdown, with no citation in it but those that were found to hold."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.offline.citations import Citation, code_span, keep
from coordinator.offline.questions import QUESTIONS
from coordinator.offline.writing import recounted
from worker_agent.words import counted

HEADING = "# Survey"
NO_MODEL = (
    "Written by the built-in offline model: no language model read anything here. It lists what searches and files "
    "show; it does not judge, and it changes nothing."
)


def report(
    goal: str, directory: str | None, sections: dict[str, str], cited: Sequence[Citation], held: set[str],
    failure: str | None, unread: int = 0,
) -> str:  # fmt: skip
    """The survey as Markdown, with no citation in it but those that were found to hold."""
    parts = [
        f"{HEADING}{f' of {code_span(directory)}' if directory else ''}",
        f"> {NO_MODEL}",
        f"Goal: {_quoted(goal)}",
    ]
    for name, text in sections.items():
        parts += [f"## {QUESTIONS[name][0]}", recounted(keep(text, held)).strip()]
    parts += ["## Verification", _verification(cited, held, failure)]
    if unread:
        parts.append(f"{counted(unread, 'message')} came while the survey ran. The offline model cannot act on them.")
    return "\n\n".join(parts)


def _verification(cited: Sequence[Citation], held: set[str], failure: str | None) -> str:
    if not cited:
        return "Nothing was cited, so nothing was checked."
    kept = sum(citation.key in held for citation in cited)
    problem = f" ({failure}, so the rest counts as not verified)" if failure else ""
    dropped = f"{len(cited) - kept} did not and were left out{problem}" if kept < len(cited) else "none was left out"
    return f"{counted(len(cited), 'citation')} (`file:line`) checked by reading each line again: {kept} held, {dropped}."


def _quoted(goal: str) -> str:
    return code_span(" ".join(goal.split())[:500] or "(none)")
