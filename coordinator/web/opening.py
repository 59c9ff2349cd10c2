"""Opening the page in a browser of this machine.

What a browser is started with, every user of the machine can see in the process table. So it is given no token, but a code that
stands for the token once and for a short time; the page asks for the one with the other.
"""

from __future__ import annotations

import hmac
import secrets
import threading
import time
import webbrowser
from collections.abc import Callable

LIVES = 60.0  # seconds that a code may be used: a browser that has to start first takes some
TEXT_BROWSERS = frozenset({"www-browser", "links", "elinks", "lynx", "w3m"})  # of the terminal, which is taken
NONE = "no browser can be opened here: open the address above in one on this machine"


class Once:
    """Codes for `token`, each good once."""

    def __init__(self, token: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._token = token
        self._clock = clock
        self._lock = threading.Lock()
        self._codes: dict[str, float] = {}  # until when each is good

    def make(self) -> str:
        code = secrets.token_urlsafe(32)
        with self._lock:
            self._codes[code] = self._clock() + LIVES
        return code

    def take(self, code: str) -> str | None:
        """The token; None for a code that is none, was used, or is too old."""
        with self._lock:
            known = next((one for one in self._codes if hmac.compare_digest(one.encode(), code.encode())), None)
            until = self._codes.pop(known) if known is not None else 0.0
        return self._token if known is not None and self._clock() < until else None


def open_browser(url: str) -> bool:
    """Have a browser of the person's show `url`; False where there is none that opens a window. May wait for it."""
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return False
    return getattr(browser, "name", "") not in TEXT_BROWSERS and browser.open(url)
