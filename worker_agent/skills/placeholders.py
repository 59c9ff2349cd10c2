"""The placeholders of a skill's text, and the commands in it.

1. Placeholders are replaced in one pass over the file's own text: nothing in an argument or in the output of a command is
   ever taken for a placeholder or a command.
2. A command never gets arguments that mean something to a shell.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from worker_agent.skills.skill import Skill

COMMAND = re.compile(r"!`([^`\n]+)`")

_SHELL_SAFE = re.compile(r"[\w@%+=:,./ -]*")


class Substitution:
    """Replaces the placeholders of one use of a skill, and remembers whether there was one for the arguments."""

    def __init__(self, skill: Skill, arguments: str, variables: Mapping[str, str]) -> None:
        self.arguments = arguments.strip()
        self.positional = _words(self.arguments)
        self.named = dict(zip(skill.arguments, self.positional, strict=False))
        self.variables = {**variables, "CLAUDE_SKILL_DIR": str(skill.directory)}
        if skill.plugin_root is not None:
            self.variables["CLAUDE_PLUGIN_ROOT"] = str(skill.plugin_root)
        names = "|".join(map(re.escape, sorted(filter(str.isidentifier, skill.arguments), key=len, reverse=True)))
        self.pattern = re.compile(
            r"(?P<escape>\\)?\$(?:ARGUMENTS\[(?P<index>\d{1,4})\]|(?P<all>ARGUMENTS)\b|(?P<number>\d{1,4})\b"
            r"|\{(?P<variable>CLAUDE_[A-Z_]+)\}" + (rf"|(?P<name>{names})\b" if names else "|(?P<name>(?!))") + ")"
        )
        self.used = False

    def text(self, body: str) -> str:
        return self.finished(self.replaced(body))

    def finished(self, text: str) -> str:
        return text if self.used or not self.arguments else f"{text}\n\nARGUMENTS: {self.arguments}"

    def replaced(self, text: str) -> str:
        return self.pattern.sub(lambda match: self._value(match), text)

    def command(self, text: str) -> str | None:
        """A command with its placeholders replaced; None if an argument would be more than words to a shell."""
        values = [self._value(match) for match in self.pattern.finditer(text) if not match["escape"]]
        return self.replaced(text) if all(map(_SHELL_SAFE.fullmatch, values)) else None

    def _value(self, match: re.Match[str]) -> str:
        if match["escape"]:
            return match[0][1:]
        if match["variable"]:
            return self.variables.get(match["variable"], match[0])
        self.used = True
        if match["all"]:
            return self.arguments
        if match["name"]:
            return self.named.get(match["name"], match[0])
        index = int(match["index"] or match["number"])
        return self.positional[index] if index < len(self.positional) else match[0]  # as Claude: left as it is written


def _words(arguments: str) -> list[str]:
    """Words as a shell would see them, quotes taken off; plain words where the quotes do not fit."""
    try:
        return shlex.split(arguments)
    except ValueError:
        return arguments.split()
