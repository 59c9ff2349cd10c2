"""What a person types, on a real terminal: only what comes after a question answers it."""

from __future__ import annotations

import asyncio
import os
import pty

import pytest

from coordinator.cli.person import Person


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch):
    """The end of a terminal at which one types; its other end is stdin."""
    master, slave = pty.openpty()
    with open(slave) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        yield master
    os.close(master)


async def asked(person: Person) -> asyncio.Task[str | None]:
    """A question that is put as the approver puts it, and waits."""
    person.forget_what_was_typed()
    question = asyncio.ensure_future(person.answer())
    await asyncio.sleep(0)
    return question


def test_what_was_typed_before_a_question_and_the_rest_of_a_paste_answer_nothing(keyboard: int) -> None:
    async def scenario() -> list[str | None]:
        person = Person()
        os.write(keyboard, b"y\ny")
        answers = []
        for typed in (b"no\ny\ny\ny", b"second\n"):
            question = await asked(person)
            os.write(keyboard, typed)
            answers.append(await asyncio.wait_for(question, 10))
        person.close()
        return answers

    assert asyncio.run(scenario()) == ["no", "second"]


def test_lines_of_a_pipe_are_all_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"first\n")
    os.close(writer)
    with open(reader) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert asyncio.run(Person().answer()) == "first"
