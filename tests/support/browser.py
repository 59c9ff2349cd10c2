"""A headless Chromium of the machine's, driven by Playwright, and the accessibility rules of axe-core from npm."""

from __future__ import annotations

import fcntl
import importlib.util
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync"
).split()
AXE = "4.10.3"
INSTALLED = ROOT / ".npm"  # ignored by git


def program() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


def why_not() -> str | None:
    """What is missing for a browser here, in words; None if nothing is."""
    if program() is None:
        return "no Chromium is installed (Debian: apt-get install chromium)"
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed (make setup)"
    return None


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser of Playwright's."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program(), args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


def axe() -> str | None:
    """The source of axe-core, installed once; None where npm cannot."""
    file = INSTALLED / "node_modules/axe-core/axe.min.js"
    INSTALLED.mkdir(exist_ok=True)
    with (INSTALLED / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists() and shutil.which("npm"):
            command = [
                "npm",
                "install",
                "--prefix",
                str(INSTALLED),
                "--no-save",
                "--ignore-scripts",
                "--no-audit",
                "--no-fund",
                f"axe-core@{AXE}",
            ]
            subprocess.run(command, capture_output=True, timeout=100, check=False)
    return file.read_text("utf-8") if file.exists() else None
