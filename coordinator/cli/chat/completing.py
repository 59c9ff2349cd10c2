"""What is offered while a person types: `/commands`, what may stand behind them, `@files`. Nothing here blocks."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from coordinator.cli.chat.commands import COMMANDS
from coordinator.cli.chat.files import Files
from coordinator.views.terminal_text import one_line

_FILE = re.compile(r'(?:^|\s)@(?P<quote>"?)(?P<path>[^\s"]*)$')
_COMMAND = re.compile(r"/(?P<name>[\w:.-]*)$")
_BEHIND = re.compile(r"/(?P<name>[\w:.-]+)\s+(?:\S+\s+)*(?P<word>\S*)$")

Offers = Mapping[str, str]  # words and what is said beside each


class Offering(Completer):
    """`own` gives the person's own commands; `words` what may stand behind a command that takes a kind of word."""

    def __init__(self, files: Files, own: Callable[[], Offers], words: Callable[[str], Offers]) -> None:
        self._files = files
        self._own = own
        self._words = words

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Without files, which take time."""
        text = document.text_before_cursor
        if found := _COMMAND.fullmatch(text):
            commands = {name: command.help for name, command in COMMANDS.items()}
            yield from _offered(found["name"], {**commands, **self._own()})
        elif (found := _BEHIND.fullmatch(text)) and (command := COMMANDS.get(found["name"])) and command.takes:
            yield from _offered(found["word"], self._words(command.takes))

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        found = _FILE.search(document.text_before_cursor)
        if found is None:
            for completion in self.get_completions(document, complete_event):
                yield completion
            return
        for name in await self._files.matching(found["path"]):
            text = f'"{name}"' if any(char.isspace() for char in name) else name
            yield Completion(text, -len(found["quote"] + found["path"]), display=one_line(name))


def _offered(begun: str, offers: Offers) -> Iterable[Completion]:
    """Those that begin so; a word is offered in any case of its letters."""
    for word, help in offers.items():
        if word.lower().startswith(begun.lower()):
            yield Completion(word, -len(begun), display_meta=one_line(help, 60))
