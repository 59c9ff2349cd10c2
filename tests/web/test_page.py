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
    scripts: dict[str, Any] = {f"{name} ": message(text("begun", gate, "done")) for name in names[2:]}
    scripts["w0 "] = by_turn(message(tool_use("Bash", {"command": "touch made"})), "I made it")
    scripts["w1 "] = message(text("stuck", Gate(), "never"))
    with FakeAPI(fleet(coordinator(*(f"{name} go" for name in names), final="all done"), scripts)) as api:
        run = start(program, api, "run", "goal", "--wait-approvals", "--sandbox", "off", "--max-workers", "20")
        try:
            until(lambda: program("sessions", "list", "-q").out.strip())
            browser = browser_that_notes(program)
            with serving(program, "--open", COORDINATOR_SERVE_TOKEN="t" * 20, BROWSER=browser) as first:
                port = first.port
                until((program.home / "opened").exists)
                with opened(first, address=(program.home / "opened").read_text().strip()) as page:
                    until(lambda: page.locator("tr[data-id]").count() == 20)
                    page.get_by_role("button", name="Approve").click()
                    until(lambda: (program.cwd / "made").exists())
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


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(program: Program, scheme: str) -> None:
    source = browser.axe()
    if source is None:
        pytest.skip(f"{LOUD} for accessibility: axe-core cannot be installed by npm here")
    demo = Demo(program.home / "data/coordinator.db")
    try:
        demo.run()
        other = demo.earlier("An earlier try", 9_000, 1.0)
        with serving(program) as page_server, opened(page_server, color_scheme=scheme) as page:
            task = page_server("/api/tasks").json[0]["id"]
            pages = [
                "#/",
                f"#/session/{demo.session_id}",
                f"#/session/{demo.session_id}/replay",
                f"#/task/{task}",
                f"#/task/{task}/files",
                "#/cost",
                f"#/compare/{demo.session_id}/{other}",
            ]
            found = {}
            for where in pages:
                page.goto(f"{page_server.url}/{where}")
                page.wait_for_selector("#link[data-state=live]")
                page.wait_for_timeout(300)
                page.evaluate(source)
                result = page.evaluate("axe.run()")
                found[where] = [
                    (one["id"], [node["html"][:120] for node in one["nodes"]])
                    for one in result["violations"]
                    if one["impact"] in ("serious", "critical")
                ]
    finally:
        demo.close()
    assert {where: wrong for where, wrong in found.items() if wrong} == {}, json.dumps(found, indent=1)


def test_every_text_becomes_a_text_node() -> None:
    """No sink for markup is named anywhere; the policy would stop it, too."""
    for file in (browser.ROOT / "coordinator/web/static").glob("*.js"):
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", file.read_text("utf-8")
        )
