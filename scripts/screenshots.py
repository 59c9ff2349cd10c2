"""Make the pictures of the README: `.venv/bin/python -m scripts.screenshots`.

Each shows the program itself over a session that the tests' demo makes; nothing in it is drawn by hand. It needs a Chromium of
the machine (Debian: apt-get install chromium).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.cli.program import Program
from tests.support import browser
from tests.web.demo import Demo
from tests.web.serving import serving

IMAGES = Path(__file__).resolve().parent.parent / "docs/images"
SIZE = {"width": 1200, "height": 760}


def page(target: Path) -> None:
    """The page of a session with its timeline."""
    with tempfile.TemporaryDirectory(prefix="coordinator-picture-") as made:
        program = Program(Path(made) / "home", Path(made))
        demo = Demo(program.home / "data/coordinator.db")
        try:
            demo.run()
            with serving(program) as server, browser.chromium() as chromium:
                shown = chromium.new_context(viewport=SIZE, color_scheme="light").new_page()
                shown.goto(f"{server.url}/#token={server.token}")
                shown.goto(f"{server.url}/#/session/{demo.session_id}")
                shown.wait_for_selector(".bars rect")
                shown.wait_for_selector(".row")
                shown.wait_for_function("document.querySelector('.row .who').textContent.length < 12")
                shown.wait_for_timeout(500)
                target.parent.mkdir(parents=True, exist_ok=True)
                shown.screenshot(path=target)
        finally:
            demo.close()


def main() -> None:
    if (missing := browser.why_not()) is not None:
        sys.exit(f"screenshots: {missing}")
    page(IMAGES / "page.png")


if __name__ == "__main__":
    main()
