"""Why something that ran was ended from outside: one vocabulary, with its words for the model and for a person.

A `Cause` travels from whoever ends (a person, a kill, a clock, a signal, another process, the database, the money)
to what was ended: the abort signal of an agent, the run of a worker, a shell in the background, the session itself. Its
value is what is stored and shown to programs; decisions are made on the member, never on words.
"""

from __future__ import annotations

from enum import StrEnum


class Cause(StrEnum):
    """What ended it. `by` completes "interrupted …" for the model; `to_person` is a sentence without its full stop."""

    PERSON = "interrupted", "by the user", "the run was interrupted"
    KILLED = "killed", "by a kill of the task", "the task was killed"
    TIMEOUT = "timeout", "by the time limit", "the time limit of the run is reached"
    TERMINATED = "terminated", "by the end of the session", "the run was ended by a signal"
    LOST = "lost", "because another process took the session over", "another process took the session over"
    STORE = "store", "because nothing can be stored any more", "nothing can be stored any more"
    BUDGET = "budget", "by the end of the budget", "the budget is used up"

    by: str
    to_person: str

    def __new__(cls, value: str, by: str, to_person: str) -> Cause:
        member = str.__new__(cls, value)
        member._value_ = value
        member.by, member.to_person = by, to_person
        return member

    @property
    def in_words(self) -> str:
        """What the model reads: who stopped it."""
        return f"interrupted {self.by}"
