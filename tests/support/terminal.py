"""A real terminal: a tmux server of its own with one window, in which a shell runs."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

PATIENCE = 40.0  # seconds; nothing here is measured


class Terminal:
    """`with Terminal(directory, 80, 24, environment) as terminal:`. A screen is its lines without blanks at their ends."""

    def __init__(self, directory: Path, columns: int, rows: int, environment: Mapping[str, str]) -> None:
        self._socket = directory / "tmux.sock"
        size = ("-x", str(columns), "-y", str(rows))
        # The server's own environment is what a shell in it gets.
        self._environment = {**environment, "TERM": "screen-256color", "LANG": "C.UTF-8"}
        self._tmux("new-session", "-d", *size, "-s", "t", "-c", str(directory), "env PS1='$ ' bash --norc --noprofile")
        self._tmux("set-option", "-g", "status", "off")

    def __enter__(self) -> Terminal:
        self.sees("$")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._tmux("kill-server")

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-S", str(self._socket), "-f", "/dev/null", *arguments]
        return subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=30, check=True).stdout

    def keys(self, *keys: str) -> None:
        """Keys as tmux names them (`Enter`, `C-c`, `M-Enter`, `Left`), anything else as text."""
        for key in keys:
            self._tmux("send-keys", "-t", "t", key)

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-t", "t", "-l", text)

    def run(self, *command: str) -> None:
        self.type(shlex.join(command))
        self.keys("Enter")

    def paste(self, text: str) -> None:
        """As a terminal pastes: in brackets where the program wants them."""
        self._tmux("set-buffer", text)
        self._tmux("paste-buffer", "-p", "-t", "t")

    def resize(self, columns: int, rows: int) -> None:
        self._tmux("resize-window", "-t", "t", "-x", str(columns), "-y", str(rows))

    @property
    def screen(self) -> str:
        return self._lines(self._tmux("capture-pane", "-p", "-t", "t"))

    @property
    def colours(self) -> str:
        """The screen with its escape sequences."""
        return self._tmux("capture-pane", "-p", "-e", "-t", "t")

    @property
    def everything(self) -> str:
        """What scrolled away, and the screen; lines that were folded are whole."""
        return self._lines(self._tmux("capture-pane", "-p", "-J", "-S", "-", "-t", "t"))

    def _lines(self, text: str) -> str:
        return "\n".join(line.rstrip() for line in text.split("\n")).rstrip("\n")

    def until(self, reached: Callable[[str], bool]) -> str:
        """The screen, once it is so."""
        end = time.monotonic() + PATIENCE
        while not reached(screen := self.screen):
            assert time.monotonic() < end, f"it did not come so far:\n{screen}"
            time.sleep(0.05)
        return screen

    def sees(self, text: str) -> str:
        return self.until(lambda screen: text in screen)

    def process(self, name: str) -> int:
        """The process id of a child of the shell whose command line holds `name`."""
        (pane,) = self._tmux("list-panes", "-t", "t", "-F", "#{pane_pid}").split()
        for child in Path(f"/proc/{pane}/task/{pane}/children").read_text().split():
            if name in os.fsdecode(Path(f"/proc/{child}/cmdline").read_bytes()):
                return int(child)
        raise AssertionError(f"the shell runs no {name}")
