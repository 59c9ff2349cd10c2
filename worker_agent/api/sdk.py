"""The vendor's SDK takes most of a second to import: in a thread, and early, so that other starting goes on meanwhile."""

from __future__ import annotations

import threading


def load() -> None:
    """Import it, or wait until whoever imports it is done. Blocks."""
    import anthropic  # noqa: F401
    import httpx2  # noqa: F401


def begin_to_load() -> None:
    """Import it in a thread of its own; an error is met again, and told, by the first call."""
    threading.Thread(target=_try_to_load, name="sdk-import", daemon=True).start()


def _try_to_load() -> None:
    try:
        load()
    except ImportError:
        return
