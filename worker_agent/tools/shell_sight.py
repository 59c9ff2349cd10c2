"""What a command that was not asked about may see: files inside the roots that no rule and no secret place speaks about."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from worker_agent.tools.rules import Kind, Places, Rule, inside, resolve

MAX_FILES = 10_000  # looked at in one tree


class Sight(Struct, frozen=True):
    """`fences` are the deny and ask rules that speak about reading paths, of this agent and of those above it.
    `everywhere`: which files are read is not asked, only how."""

    places: Places
    fences: tuple[Rule, ...] = ()
    everywhere: bool = False

    @classmethod
    def of(cls, places: Places, rules: tuple[Rule, ...]) -> Sight:
        return cls(places, tuple(r for r in rules if r.names("Read") and r.kind in (Kind.PATH, Kind.WHOLE)))

    @classmethod
    def anywhere(cls) -> Sight:
        return cls(Places(Path("/"), Path("/"), (Path("/"),)), everywhere=True)

    def inside(self, path: Path) -> bool:
        return self.everywhere or inside(path, self.places.roots)

    def file(self, path: Path) -> str | None:
        """Why this file or directory may not be read unasked."""
        if self.everywhere:
            return None
        if "\0" in str(path) or not self.inside(path):
            return f"{path} lies outside the working directories"
        if secret_place(path, self.places.home):
            return f"{path} is a place of secrets"
        rule = next((rule for rule in self.fences if rule.matches_path(path, self.places)), None)
        return f"{rule.text} speaks about {path}" if rule else None

    def tree(self, path: Path, *, follow: bool, names: bool = False) -> str | None:
        """The same for all that lies below; `follow`: the reader follows links; `names`: it shows
        names only."""
        if self.everywhere:
            return None
        if inside(self.places.home, [path]):
            return f"the home directory lies below {path}"
        if names or (not self.fences and not follow):
            return None
        for number, found in enumerate(_below(resolve(path))):
            if number >= MAX_FILES:
                return f"{path} holds more files than can be looked at"
            if follow and found.is_symlink() and not self.inside(found):
                return f"{found} leads outside the working directories"
            rule = next((rule for rule in self.fences if rule.matches_as_written(found, self.places)), None)
            if rule:
                return f"{rule.text} speaks about {found}"
            if follow and found.is_symlink() and (problem := self.file(found)):
                return problem
        return None


def _below(directory: Path) -> Iterator[Path]:
    for place, directories, names in os.walk(directory):
        for name in (*directories, *names):
            yield Path(place, name)


def secret_place(path: Path, home: Path) -> bool:
    from worker_agent.tools import places

    return bool(places.holds_secrets(path, home))
