"""The questions of a survey, the prompts that put them to workers, and the plan that a prompt asks for.

The words of the goal go along in lines of their own, because the goal itself is shortened in a prompt.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from coordinator.offline.citations import Citation, citations
from coordinator.offline.goal import Words
from coordinator.offline.plan import Plan
from coordinator.offline.plans import layout, tests, todo, verify
from coordinator.offline.words import words
from coordinator.offline.writing import one_line

QUESTIONS = {
    "layout": ("Layout and languages", "How is the directory laid out, and in which languages is it written?"),
    "words": ("Where the goal's words occur", "Where do the words of the goal occur?"),
    "todo": ("Open TODO and FIXME", "Which notes of open work (TODO, FIXME, XXX, HACK) are in the files?"),
    "tests": ("Tests and how they run", "Which tests are there, and how are they run?"),
}
_LISTS = {
    "searched": "The words to look for",
    "common": "Words of the goal that are too common",
    "beyond": "Words of the goal beyond those",
}


def prompt_for(question: str, goal: str, directory: str | None) -> str:
    """The whole prompt of the research worker for `question`; `plan_for` reads it back."""
    title, asks = QUESTIONS[question]
    return (
        f"Survey question: {question}\n\n"
        f"Purpose: a survey of {_place(directory)} for this goal of a person: {one_line(goal)}\n"
        f"Your part of it, {title.lower()}: {asks}\n"
        f"{_written(Words.of(goal))}"
        "Look with Glob, Grep and Read; change nothing and run nothing. Other workers have the other questions.\n"
        "Report in Markdown. Cite each finding as a line of its own, with the file, the line number and what the line "
        "says, in the form: - `path:line` `text`. Another worker will read every cited line again."
    )


def verification_prompt(found: Sequence[Citation], directory: str | None) -> str:
    return (
        f"Survey question: verify\n\nOther workers surveyed {_place(directory)} and cited the lines below. Read each cited line "
        "again and report for each whether it says what is quoted. Change nothing.\n\n" + "\n".join(map(str, found))
    )


def plan_for(prompt: str) -> Plan | None:
    """The plan for a worker's prompt, or None if it holds no survey question."""
    match = re.search(r"^Survey question: (\w+)$", prompt, re.MULTILINE)
    question = match[1] if match else ""
    if question == "verify":
        return verify(citations(prompt))
    if question == "layout":
        return layout()
    plans = {"words": words, "todo": todo, "tests": tests}
    return plans[question](_read(prompt)) if question in plans else None


def _place(directory: str | None) -> str:
    return f"the directory {directory}" if directory else "your working directory"


def _written(wanted: Words) -> str:
    lists = {label: getattr(wanted, name) for name, label in _LISTS.items()}
    return "".join(f"{label}: {' '.join(found)} .\n" for label, found in lists.items() if found)


def _read(prompt: str) -> Words:
    def listed(label: str) -> tuple[str, ...]:
        found = re.search(rf"^{label}: (.*) \.$", prompt, re.MULTILINE)
        return tuple(found[1].split()) if found else ()

    return Words(**{name: listed(label) for name, label in _LISTS.items()})
