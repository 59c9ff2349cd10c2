"""Frozen values are msgspec's structs: made, compared and replaced in C, and without code that is compiled for every class when
its module is imported, as a dataclass is. This is `replace` for them: the type checker holds the changes against the fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import replace  # mypy knows the fields of a struct by it, msgspec's own takes anything
else:
    from msgspec.structs import replace

__all__ = ["replace"]
