"""`chat.suggest`: while a person is asked for a prompt, the small model guesses it, in the background.

Nobody waits for the guess and nobody is told when it fails. It is for the moment it was made in: with the next turn it is
dropped, made or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from worker_agent.errors import ModelError
from worker_agent.events import PromptSuggested
from worker_agent.session.asides import Asides
from worker_agent.session.engine import QueryEngine


class Suggestions:
    """Of one session; `tell` is called with what an observer sees."""

    def __init__(self, engine: QueryEngine, tell: Callable[[PromptSuggested], None]) -> None:
        self._engine = engine
        self._tell = tell
        self._guess: asyncio.Task[None] | None = None
        self._after = ""  # the id of the answer that a prompt was suggested after

    def person_is_asked(self) -> None:
        """Nothing is left to do: the next word is the person's."""
        last = self._engine.messages[-1] if self._engine.messages else None
        if last is None or last.kind != "answer" or last.id == self._after:
            return
        self.drop()
        self._after = last.id
        self._guess = asyncio.create_task(self._suggest(), name="suggestion")

    def drop(self) -> None:
        """The moment is over."""
        if self._guess is not None:
            self._guess.cancel()
            self._guess = None

    async def close(self) -> None:
        """End what still asks."""
        guess = self._guess
        self.drop()
        if guess is not None:
            await asyncio.wait((guess,))

    async def _suggest(self) -> None:
        agent = self._engine.agent
        asides = Asides(caller=agent.caller(), small=agent.settings.small_model, own=agent.model)
        try:
            text = await asides.next_prompt(self._engine.messages)
        except ModelError:
            return
        if text is not None:
            self._tell(PromptSuggested(text))
