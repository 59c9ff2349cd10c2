"""What a skill is, and how it is read out of the beginning of its file.

No file is trusted to be short, regular or YAML: what cannot be read as YAML is read line by line, and what cannot be used
becomes a `Problem`. The names of fields are Claude Code's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from worker_agent import front_matter
from worker_agent.errors import ConfigError

ENTRY_CAP = 1_536  # characters of description and when_to_use of one skill

_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_DIRECTORY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class Origin(StrEnum):
    MANAGED = "managed"
    PERSONAL = "personal"
    PROJECT = "project"
    NESTED = "nested"  # next to files that were read
    PLUGIN = "plugin"


class Skill(Struct, frozen=True, kw_only=True):
    """What is known of a skill before it is used. `file` holds its text; `fields` are the front matter's other ones."""

    name: str
    description: str
    file: Path
    origin: Origin
    when_to_use: str = ""
    arguments: tuple[str, ...] = ()  # names of positional arguments
    allowed_tools: tuple[str, ...] = ()  # wants to use these unasked
    paths: tuple[str, ...] = ()  # offered only once a file that fits was touched
    model_invocable: bool = True
    plugin_root: Path | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def directory(self) -> Path:
        return self.file.parent

    def entry(self) -> str:
        """One line for a listing."""
        text = " ".join(f"{self.description} {self.when_to_use}".split())
        text = text if len(text) <= ENTRY_CAP else text[: ENTRY_CAP - 1] + "…"
        return f"- {self.name}: {text}" if text else f"- {self.name}"


class Problem(Struct, frozen=True):
    """Why a file is no skill, in words for a person."""

    file: Path
    text: str


def parse(text: str, file: Path, called: str, origin: Origin) -> Skill:
    """A skill out of the beginning of its file; `called` is the name of its directory, or of a command's file. Raises
    `ConfigError` for one that has no usable name."""
    block, body = front_matter.split(text)
    front = fields(block)
    paths = _strings(front.pop("paths", None), r",")
    return Skill(
        name=_name(_text(front.pop("name", None)), called),
        description=_text(front.pop("description", None))[: ENTRY_CAP + 1] or _first_paragraph(body),
        when_to_use=_text(front.pop("when_to_use", None))[: ENTRY_CAP + 1],
        file=file,
        origin=origin,
        arguments=_strings(front.pop("arguments", None), r"[\s,]+"),
        allowed_tools=_strings(front.pop("allowed-tools", None), r"[\s,]+(?![^(]*\))"),
        paths=tuple(p for p in paths if _is_pattern(p)),
        model_invocable=front.pop("disable-model-invocation", False) not in (True, "true"),
        fields=front,
    )


def breach(text: str, directory: str) -> str | None:
    """What of the standard for skills (agentskills.io) a file breaks, None if nothing: for those who promise to hold it.
    `directory` is the name of the one that it lies in."""
    front = fields(front_matter.split(text)[0])
    name, description = front.get("name"), front.get("description")
    if not isinstance(name, str) or len(name) > 64 or not _NAME.fullmatch(name):
        return "`name` is not 1 to 64 of a-z 0-9 -, without a hyphen at its ends or two in a row"
    if name != directory:
        return f"`name` is {name!r} and its directory {directory!r}"
    if not isinstance(description, str) or not 1 <= len(description.strip()) <= 1024:
        return "`description` has not 1 to 1,024 characters"
    if not isinstance(front.get("compatibility", ""), str) or len(front.get("compatibility", "")) > 500:
        return "`compatibility` has more than 500 characters, or is no text"
    if not isinstance(front.get("metadata", {}), Mapping):
        return "`metadata` is no map"
    return None


def fields(block: str | None) -> dict[str, Any]:
    """The fields of a front matter. A value with a colon in it is common and is no YAML: such a block is read line by
    line."""
    if block is None:
        return {}
    import yaml

    try:
        found = yaml.safe_load(block)
    except (yaml.YAMLError, ValueError, RecursionError):
        lines = (re.fullmatch(r"([A-Za-z_-]+):[ \t]*(.*?)[ \t]*", line) for line in block.splitlines())
        return {line[1]: line[2].strip("\"'") for line in lines if line}
    return {str(key): value for key, value in found.items()} if isinstance(found, dict) else {}


def _name(declared: str, called: str) -> str:
    if _DIRECTORY_NAME.fullmatch(called):
        return called
    if len(declared) <= 64 and _NAME.fullmatch(declared):
        return declared
    raise ConfigError("has no usable name: letters, digits and hyphens, 64 at most")


def _text(value: Any) -> str:
    """A scalar as text. Nothing else: a few bytes of YAML can stand for gigabytes."""
    return str(value).strip() if isinstance(value, (str, int, float)) else ""


def _strings(value: Any, separator: str) -> tuple[str, ...]:
    parts = re.split(separator, value) if isinstance(value, str) else value
    return tuple(filter(None, map(_text, parts[:100]))) if isinstance(parts, list) else ()


def _is_pattern(text: str) -> bool:
    from pathspec import GitIgnoreSpec

    try:
        GitIgnoreSpec.from_lines([text])
    except ValueError:
        return False
    return True


def _first_paragraph(body: str) -> str:
    for paragraph in re.split(r"\n\s*\n", body.strip()):
        text = " ".join(line for line in paragraph.split("\n") if not line.startswith("#")).strip()
        if text:
            return text[: ENTRY_CAP + 1]
    return ""
