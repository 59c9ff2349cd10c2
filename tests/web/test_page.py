"""The page in a real browser: what a person sees and does there, with hostile text, by keyboard, through a restart."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tasks import approvals, registry
from tests.cli.program import Program
from tests.cli.seed import HOSTILE, seeded
from tests.cli.test_run_api import start
from tests.integration.scripts import by_turn, coordinator, fleet
from tests.support import browser
from tests.support.fake_api import FakeAPI, Gate, message, text, tool_use
from tests.support.skips import LOUD, needs_chromium
from tests.web.demo import Demo
from tests.web.serving import Serving, browser_that_notes, serving
from tests.web.test_api import asked

pytestmark = needs_chromium
EVIL = f"<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'> {HOSTILE} \u202eevil"
MEBIBYTE = 1024 * 1024


@contextmanager
def opened(serving: Serving, where: str = "#/", *, width: int = 1280, address: str = "", **options: Any) -> Iterator[Any]:
    """A page of the server, with its token, or by another `address`; nothing may go wrong in its console."""
    with browser.chromium() as chromium:
        page = chromium.new_context(viewport={"width": width, "height": 860}, **options).new_page()
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on(
            "console",
            lambda said: wrong.append(said.text) if "Content Security" in said.text or "innerHTML" in said.text else None,
        )
        page.goto(address or f"{serving.url}/#token={serving.token}")
        page.goto(f"{serving.url}/{where}")
        page.wait_for_selector("#link[data-state=live]")
        yield page
        assert wrong == []


def until(condition: Callable[[], Any], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def test_a_person_watches_approves_and_kills_and_hostile_text_is_only_text(program: Program) -> None:
    with seeded(program, goal=EVIL) as seed, serving(program) as page_server:
        worker = seed.task(EVIL, name="evil")
        seed.progress(worker, EVIL)
        seed.say(worker.agent_id, {"type": "text", "text": EVIL}, task_id=worker.id)
        seed.say(worker.agent_id, {"type": "text", "text": "y" * MEBIBYTE}, task_id=worker.id)
        call = asked(seed, f"touch '{EVIL}'", worker)
        with opened(page_server) as page:
            page.wait_for_selector("article.ask")
            assert page.locator("#waiting").inner_text() == "▲ 1 waiting"
            assert "<script>" in page.locator("article.ask pre").inner_text()
            page.get_by_role("button", name="Approve").click()
            page.wait_for_selector("article.ask", state="detached")
            approved = seed.database.read(lambda conn: approvals.by_id(conn, [call]))[0].status
            page.get_by_role("link", name="evil", exact=True).click()
            page.wait_for_selector(".row")
            rows = page.locator(".row .what").all_inner_texts()
            page.locator(".log").focus()
            page.keyboard.press("Home")
            page.keyboard.press("Enter")
            page.wait_for_selector("dialog .message pre")
            whole = page.locator("dialog .message pre").inner_text()
            page.keyboard.press("Escape")
            focused = page.evaluate("document.activeElement.className")
            page.get_by_role("button", name="Kill…").click()
            page.get_by_role("button", name="Cancel").click()
            alive = seed.database.read(lambda conn: registry.get(conn, worker.id).is_live)
            page.get_by_role("button", name="Kill…").click()
            page.get_by_role("button", name="End worker").click()
            until(lambda: not seed.database.read(lambda conn: registry.get(conn, worker.id).is_live))
            page.wait_for_selector(".facts .sign.killed")
            hacked, address = page.evaluate("window.hacked"), page.url
            stored = page.evaluate(
                "[document.querySelectorAll('script, img').length, document.body.textContent.includes('\\u202e'), document.body.textContent.includes('\\x1b')]"
            )
    assert approved == "approved"
    assert any("<script>" in row and "[bold]" in row for row in rows) and "onerror" in whole
    assert focused == "log" and alive
    assert hacked is None and stored == [1, False, False]
    assert page_server.token not in address


@pytest.mark.slow
def test_twenty_workers_live_with_an_approval_a_kill_and_a_restart_of_the_server(program: Program) -> None:
    gate = Gate()
    names = [f"w{n}" for n in range(20)]
    scripts: dict[str, Any] = {f"{name} ": message(text("begun", gate, "done")) for name in names[3:]}
    scripts["w0 "] = by_turn(message(tool_use("Bash", {"command": "touch made"})), "I made it")
    scripts["w1 "] = message(text("stuck", Gate(), "never"))
    scripts["w2 "] = by_turn(message(tool_use("Bash", {"command": "touch elsewhere"})), "I made another")
    with FakeAPI(fleet(coordinator(*(f"{name} go" for name in names), final="all done"), scripts)) as api:
        run = start(program, api, "run", "goal", "--wait-approvals", "--sandbox", "off", "--max-workers", "20")
        try:
            until(lambda: program.here("sessions", "list", "-q").out.strip())
            browser = browser_that_notes(program)
            with serving(program, "--open", COORDINATOR_SERVE_TOKEN="t" * 20, BROWSER=browser) as first:
                port = first.port
                until((program.home / "opened").exists)
                with opened(first, address=(program.home / "opened").read_text().strip()) as page:
                    until(lambda: page.locator("tr[data-id]").count() == 20)
                    asked = page.locator("article.ask", has_text="touch elsewhere")
                    asked.wait_for()
                    (waiting,) = [one for one in program.here("inbox", "--json").json if "elsewhere" in one["shown"]]
                    assert program.here("approve", waiting["id"]).code == 0  # from another terminal
                    asked.wait_for(state="detached")
                    page.locator("article.ask", has_text="touch made").get_by_role("button", name="Approve").click()
                    until(lambda: (program.cwd / "made").exists() and (program.cwd / "elsewhere").exists())
                    # By keyboard: rows move while others end, and a mouse would meet the next one.
                    page.locator("tr[data-id]", has_text="w1 go").get_by_role("link").first.press("Enter")
                    page.get_by_role("button", name="Kill…").click()
                    page.get_by_role("button", name="End worker").click()
                    page.wait_for_selector(".facts .sign.killed")
                    first.process.kill()
                    first.process.wait()
                    page.wait_for_selector("#link[data-state=lost]")
                    page.evaluate("location.hash = '#/'")
                    again = program.start("serve", "--port", str(port), "--json", COORDINATOR_SERVE_TOKEN="t" * 20)
                    try:
                        page.wait_for_selector("#link[data-state=live]")
                        gate.open()
                        until(lambda: page.locator("tr[data-id] .sign.completed").count() == 19)
                        page.wait_for_selector("text=done")
                    finally:
                        again.kill()
                        again.communicate()
            out, err = run.communicate(timeout=60)
        finally:
            run.kill()
            run.communicate()
    assert (run.returncode, out) == (0, "all done\n"), err


@pytest.mark.slow
def test_an_hour_of_events_leaves_the_page_as_small_as_it_was(program: Program) -> None:
    with seeded(program) as seed, serving(program) as page_server:
        worker = seed.task("busy", name="busy")
        with opened(page_server, f"#/session/{seed.session_id}") as page:
            session = page.context.new_cdp_session(page)

            def size() -> tuple[int, int]:
                session.send("HeapProfiler.collectGarbage")
                return page.evaluate("document.querySelectorAll('*').length"), session.send("Runtime.getHeapUsage")["usedSize"]

            def talk(count: int) -> None:
                for n in range(count):
                    seed.say(worker.agent_id, {"type": "text", "text": f"{n} {'z' * 2_000}"}, task_id=worker.id)
                seed.progress(worker, f"after {count}")
                page.wait_for_function(
                    "n => document.querySelector('.log').textContent.includes(n + ' zzz')", arg=str(count - 1)
                )

            talk(3_500)
            elements, heap = size()
            talk(5_000)
            more_elements, more_heap = size()
    assert more_elements <= elements + 50
    assert more_heap < heap + 6 * MEBIBYTE


@pytest.fixture
def demo(program: Program) -> Iterator[Demo]:
    made = Demo(program.home / "data/coordinator.db")
    try:
        made.run()
        yield made
    finally:
        made.close()


@pytest.mark.slow
def test_a_timeline_is_used_by_keys_zoomed_and_says_what_is_left(program: Program, demo: Demo) -> None:
    with serving(program) as page_server, opened(page_server, f"#/session/{demo.session_id}") as page:
        left = page_server(f"/api/sessions/{demo.session_id}/forecast").json
        names = [lane["name"] for lane in page_server(f"/api/sessions/{demo.session_id}/timeline").json]
        page.wait_for_selector(".bars rect")
        fact = page.locator("dl.facts > div", has=page.locator("dt", has_text="Left")).locator("dd").inner_text()

        def said(pattern: str) -> str:
            page.wait_for_function("p => new RegExp(p).test(document.querySelector('#said').textContent)", arg=pattern)
            return str(page.locator("#said").inner_text())

        def drawn() -> int:
            return int(page.locator(".bars rect").count())

        page.locator(".lane-name", has_text="bench").focus()
        stepped = []
        for kind in ("in the queue", "model", "tools: Write"):
            page.keyboard.press("ArrowRight")
            stepped.append(said(f"^{kind}, 0:\\d\\d from"))
        whole = drawn()
        page.keyboard.press("+")
        page.keyboard.press("+")
        closer = said("in sight, from")
        fewer, shown = drawn(), page.locator(".bars rect.here").count()
        page.keyboard.press("Enter")
        until(lambda: page.locator(".row").count() == 4)  # what was stored until it was over
        page.keyboard.press("ArrowDown")
        below = page.evaluate("document.activeElement.textContent")
        page.keyboard.press("0")
        said("all of the time")
        again = drawn()
        # By mouse: what is drawn over on the axis is in sight then.
        box = page.locator(".axis").bounding_box()
        page.mouse.move(box["x"] + 100, box["y"] + 8)
        page.mouse.down()
        page.mouse.move(box["x"] + 200, box["y"] + 8, steps=3)
        page.mouse.up()
        page.wait_for_selector(".pan:not([hidden])")
        part = drawn()
        page.get_by_role("button", name="Show all of the time").click()
        page.wait_for_selector(".pan", state="hidden")
    assert left["workers"] == 3 and left["done"] == 3 and left["waiting"] == 1
    assert re.fullmatch(
        r"\d:\d\d–\d:\d\d, \$0\.\d\d–\$0\.\d\d by 3 that are done.*comes on top\..*1 worker is not in it\.", fact, re.DOTALL
    ), fact
    assert re.match(r"1:0\d in sight", closer) and len(set(stepped)) == 3
    assert fewer < whole == again and shown == 1 and part < whole
    assert names[names.index("bench") + 1] in below


def serious(page: Any, source: str) -> list[Any]:
    """What axe-core holds against what is shown now."""
    page.evaluate(source)
    return [
        (one["id"], [node["html"][:120] for node in one["nodes"]])
        for one in page.evaluate("axe.run()")["violations"]
        if one["impact"] in ("serious", "critical")
    ]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(program: Program, demo: Demo, scheme: str) -> None:
    """On every view, and in every dialog."""
    source = browser.axe()
    if source is None:
        pytest.skip(f"{LOUD} for accessibility: axe-core cannot be installed by npm here")
    other = demo.earlier("An earlier try", 9_000, 1.0)
    session = f"#/session/{demo.session_id}"
    with serving(program) as page_server, opened(page_server, color_scheme=scheme) as page:
        task = page_server("/api/tasks").json[0]["id"]
        tabs = [f"#/task/{task}/{tab}" for tab in ("transcript", "prompt", "result", "files", "usage")]
        views = ["#/", session, f"{session}/replay", *tabs, "#/cost", f"#/compare/{demo.session_id}/{other}"]
        dialogs = [("#/", "Deny…"), (session, "Message…"), (session, "End session…"), (f"#/task/{task}", "Kill…")]
        found = {}
        for where, dialog in [*((view, "") for view in views), *dialogs]:
            page.goto(f"{page_server.url}/{where}")
            page.wait_for_selector("#link[data-state=live]")
            page.wait_for_timeout(300)
            if dialog:
                page.get_by_role("button", name=dialog).click()
                page.wait_for_selector("dialog[open]")
            elif where == session:
                page.get_by_role("button", name="Zoom in").click()
            if wrong := serious(page, source):
                found[f"{where} {dialog}"] = wrong
            if dialog:
                page.keyboard.press("Escape")
    assert found == {}, json.dumps(found, indent=1)


def test_every_text_becomes_a_text_node() -> None:
    """No sink for markup is named anywhere; the policy would stop it, too."""
    for file in (browser.ROOT / "coordinator/web/static").glob("*.js"):
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", file.read_text("utf-8")
        )
