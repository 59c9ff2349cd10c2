"""Our packages come from where this one does, whatever else of their names lies on the path."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

NAMES = frozenset({"coordinator", "worker_agent", "tasks", "migrations"})
ROOT = str(Path(__file__).resolve().parents[2])


class OwnPackages:
    """A finder for our own names. All others are left to the finders behind it, in their usual order."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [ROOT], target) if path is None and name in NAMES else None


def first() -> None:
    """From here on our names mean our packages."""
    sys.meta_path.insert(0, OwnPackages)
