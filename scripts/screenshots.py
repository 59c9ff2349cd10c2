"""Make the pictures of the README: `.venv/bin/python -m scripts.screenshots`.

Each shows the program itself over a session that the tests' demo makes; nothing in it is drawn by hand. The page needs a Chromium
of the machine (Debian: apt-get install chromium).
"""

from __future__ import annotations

import io
import re
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

from coordinator.cli import tree
from coordinator.views import reading
from tasks import sessions
from tests.cli.program import Program
from tests.support import browser
from tests.web.demo import Demo
from tests.web.serving import serving

IMAGES = Path(__file__).resolve().parent.parent / "docs/images"
SIZE = {"width": 1200, "height": 760}
COLUMNS, LINES = 100, 24


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


def live_tree(target: Path) -> None:
    """A frame of the live tree, as `run` draws it on a terminal of 100 columns."""
    with tempfile.TemporaryDirectory(prefix="coordinator-picture-") as made:
        demo = Demo(Path(made) / "coordinator.db")
        try:
            demo.run()
            tasks = demo.database.read(lambda conn: reading.session_tasks(conn, demo.session_id, time.time()))
            record = demo.database.read(lambda conn: sessions.get(conn, demo.session_id))
            money = demo.database.read(lambda conn: reading.money(conn, record))
        finally:
            demo.close()
    counts, rows = tree.in_scene(tasks, LINES)
    spent = tree.Spent(money["cost_usd"], money["output_tokens"], money["budget_usd"])
    head = "session sdemo1234  model claude-opus-5-5  permission acceptEdits"
    scene = tree.Scene(head=head, counts=counts, rows=rows, spent=spent, said="I wait for their reports.")
    paper = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line in tree.scene_lines(scene, COLUMNS, LINES):
        paper.print(Text.assemble(*line), soft_wrap=True)
    title = 'coordinator run "find why imports are slow, fix it, prove it"'
    picture = paper.export_svg(title=title, unique_id="tree")
    target.write_text(re.sub(r"@font-face \{[^}]*\}\s*", "", picture))  # a picture asks nothing of other hosts


def main() -> None:
    live_tree(IMAGES / "tree.svg")
    if (missing := browser.why_not()) is not None:
        sys.exit(f"screenshots: {missing}")
    page(IMAGES / "page.png")


if __name__ == "__main__":
    main()
