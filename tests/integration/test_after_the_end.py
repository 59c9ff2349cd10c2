"""What is done beside a session: notes of one that has ended (`memory.extract`), the next prompt (`chat.suggest`)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from coordinator.app import remember_session
from coordinator.session.remembering import REMEMBERED, Remembered
from tasks import events, ledger
from tests.integration.harness import Bench
from tests.integration.scripts import coordinator, fleet
from tests.support.agent import engine
from tests.support.fake_api import FakeAPI, Gate, Request, http_error, message, text
from worker_agent.api.anthropic_client import AnthropicClient
from worker_agent.errors import ConfigError, ErrorKind, ModelError
from worker_agent.events import Notice, PromptSuggested, Result
from worker_agent.messages import assistant, user
from worker_agent.session.asides import Asides
from worker_agent.structs import replace

SMALL = "claude-haiku-5-5"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def notes(*pairs: tuple[str, str]) -> str:
    return json.dumps({"notes": [{"title": title, "text": said} for title, said in pairs]})


def beside(work: Callable[[Request], Any], small: Any) -> Callable[[Request], Any]:
    """`small` is what the small model answers, or makes its answer of the request."""

    def script(request: Request) -> Any:
        if request.model == SMALL:
            return small(request) if callable(small) else text(small)
        return work(request)

    return script


def remember(bench: Bench, api: FakeAPI, session_id: str, **changes: Any) -> Remembered:
    async def main() -> Remembered:
        options = bench.options(None, resume=session_id, **changes)
        client = AnthropicClient(settings=options.effective(), base_url=api.base_url, api_key="test")
        try:
            return await remember_session(options, client=client)
        finally:
            await client.close()

    return asyncio.run(main())


def asked(api: FakeAPI) -> list[Request]:
    return [request for request in api.requests if request.model == SMALL]


def test_what_was_said_and_reported_becomes_notes_and_the_next_look_begins_behind_it(bench: Bench) -> None:
    answers = iter([notes(("Reviews are in French", "The person wants reviews in French.")), notes()])
    work = fleet(coordinator("look at it", final="it is done"), message("the port is 5433"))
    with FakeAPI(beside(work, lambda request: text(next(answers)))) as api:
        id = bench.run(api, "write reviews in French").session_id
        (written,) = remember(bench, api, id).written
        first = asked(api)[0].user_text
        again = bench.run(api, "and the second part", resume=id, session_id=None)
        assert again.session_id == id and remember(bench, api, id).written == ()
        second = asked(api)[1].user_text
        assert remember(bench, api, id).why == "nothing was said since the last look" and len(asked(api)) == 2
    assert written == bench.work / ".coordinator" / "memory" / "reviews-are-in-french.md"
    assert f"session: {id}\n" in written.read_text()
    for said in ("[person] write reviews in French", "[report] ", "the port is 5433", "[agent] it is done", "(none)"):
        assert said in first, said
    assert "write reviews in French" not in second and "[person] and the second part" in second
    assert "- Reviews are in French" in second
    with closing(bench.database()) as database:
        looks = database.read(lambda conn: events.of_kind(conn, id, REMEMBERED))
        booked = database.read(lambda conn: conn.rows("SELECT model, session_id FROM model_calls WHERE purpose = 'memory'"))
    assert [look.data["notes"] for look in looks] == [["reviews-are-in-french.md"], []]
    assert [tuple(row) for row in booked] == [(SMALL, id)] * 2


def test_a_look_that_died_before_it_was_stored_is_done_again_and_changes_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*args: Any) -> None:
        raise OSError(28, "No space left on device", "x")

    with FakeAPI(beside(fleet(lambda request: message("done"), "report"), notes(("A rule", "one")))) as api:
        id = bench.run(api).session_id
        with monkeypatch.context() as patched, pytest.raises(OSError, match="No space"):
            patched.setattr(events, "add", dies)
            remember(bench, api, id)
        note = bench.work / ".coordinator" / "memory" / "a-rule.md"
        before = (note.read_bytes(), note.stat().st_ino)
        assert remember(bench, api, id).written == () and (note.read_bytes(), note.stat().st_ino) == before
        assert len(asked(api)) == 2 and "- A rule" in asked(api)[1].user_text


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"permission_mode": "plan"}, "only to plan"),
        ({"plan_only": True}, "only to plan"),
        ({"offline": True}, "offline model"),
    ],
)
def test_a_session_that_must_change_nothing_leaves_no_notes(bench: Bench, changes: dict[str, Any], refused: str) -> None:
    with FakeAPI(beside(fleet(lambda request: message("done"), "report"), notes(("x", "y")))) as api:
        id = bench.run(api).session_id
        with pytest.raises(ConfigError, match=refused):
            remember(bench, api, id, **changes)
        assert asked(api) == [] and not (bench.work / ".coordinator").exists()


def test_a_session_that_goes_on_and_a_link_out_of_the_project_are_refused(bench: Bench, tmp_path: Path) -> None:
    with FakeAPI(beside(fleet(lambda request: message("done"), "report"), notes(("x", "y")))) as api:
        id = bench.run(api).session_id
        with closing(bench.database()) as database:
            database.write(lambda conn: conn.execute("UPDATE sessions SET status = 'open', ended_at = NULL"))
            with pytest.raises(ConfigError, match="has not ended"):
                remember(bench, api, id)
            database.write(lambda conn: conn.execute("UPDATE sessions SET status = 'ended', ended_at = 1"))
        (bench.work / ".coordinator").mkdir()
        (bench.work / ".coordinator" / "memory").symlink_to(tmp_path)
        with pytest.raises(ConfigError, match="a link out of the project"):
            remember(bench, api, id)
        assert asked(api) == [] and not list(tmp_path.glob("*.md"))


def test_notes_take_only_what_the_budget_leaves_and_an_answer_that_is_none_is_said(bench: Bench) -> None:
    with FakeAPI(beside(fleet(lambda request: message("done"), "report"), "I will remember that!")) as api:
        id = bench.run(api).session_id
        with pytest.raises(ModelError) as refused:
            remember(bench, api, id, token_budget=10)
        assert refused.value.kind is ErrorKind.BUDGET and asked(api) == []
        assert remember(bench, api, id) == Remembered(why="the model's answer cannot be read as notes")
        with closing(bench.database()) as database:
            assert database.read(lambda conn: events.of_kind(conn, id, REMEMBERED)) == []
            assert database.read(lambda conn: ledger.total(conn, session_id=id)).calls == 2


def test_an_endpoint_without_the_small_model_answers_with_the_agents_own(bench: Bench) -> None:
    def work(request: Request) -> Any:
        return text(notes(("A rule", "one"))) if "notes of a project" in request.system_text else message("done")

    with FakeAPI(beside(work, lambda request: http_error(404)), allow_violations=True) as api:
        assert [path.name for path in remember(bench, api, bench.run(api).session_id).written] == ["a-rule.md"]


# ── the next prompt ──────────────────────────────────────────────────────────────────────────────────────────────────


def talk(bench: Bench, api: FakeAPI, on_event: Callable[[Any], None], **changes: Any) -> list[Any]:
    """A person's session; what was observed of it."""
    bench.on_event = lambda observed: on_event(observed.event)
    bench.run(api, "first", interactive=True, **changes)
    return [observed.event for observed in bench.seen]


def test_when_nothing_is_left_to_do_the_next_prompt_is_suggested(bench: Bench) -> None:
    def on_event(event: Any) -> None:
        if isinstance(event, PromptSuggested):
            assert bench.handle is not None
            bench.handle.close()

    work = fleet(coordinator("look", final="fixed; the tests were not run"), "report")
    with FakeAPI(beside(work, '"run the tests\x07 again"')) as api:
        seen = talk(bench, api, on_event, chat_suggest=True)
        (request,) = asked(api)
    (suggested,) = [event for event in seen if isinstance(event, PromptSuggested)]
    assert suggested.text == "run the tests  again"
    assert "[agent] fixed; the tests were not run" in request.user_text
    assert seen.index(suggested) > max(i for i, event in enumerate(seen) if isinstance(event, Result))
    with closing(bench.database()) as database:
        assert database.read(lambda conn: conn.value("SELECT count(*) FROM model_calls WHERE purpose = 'suggestion'")) == 1


def test_a_guess_that_comes_after_the_person_has_typed_is_dropped(bench: Bench) -> None:
    gate = Gate()
    sending: list[asyncio.Task[Any]] = []

    def small(request: Request) -> Any:
        return message(text("stale", gate)) if "[person] second" not in request.user_text else text("fresh")

    def on_event(event: Any) -> None:
        assert bench.handle is not None
        if isinstance(event, Result) and not sending:
            sending.append(asyncio.ensure_future(type_when_asked(bench.handle)))
        elif isinstance(event, PromptSuggested):
            bench.handle.close()

    async def type_when_asked(handle: Any) -> None:
        await api.until_requests(2)
        await handle.send("second")

    with FakeAPI(beside(fleet(lambda request: message("done"), "report"), small)) as api:
        seen = talk(bench, api, on_event, chat_suggest=True)
        gate.open()
        asked(api)[0].wait_ended()
        assert asked(api)[0].aborted
    assert [event.text for event in seen if isinstance(event, PromptSuggested)] == ["fresh"]


@pytest.mark.parametrize("answer", ["NOTHING", "nothing.", "one\ntwo", "x" * 200, "  \n", '"\'"'])
def test_what_is_no_line_to_type_is_no_suggestion(answer: str, tmp_path: Path) -> None:
    async def main(api: FakeAPI) -> str | None:
        agent = engine(api, tmp_path).agent
        try:
            return await Asides(caller=agent.caller(), small=SMALL, own=SMALL).next_prompt([user("first"), assistant("done")])
        finally:
            await agent.client.close()

    with FakeAPI(text(answer)) as api:
        assert asyncio.run(main(api)) is None and len(api.requests) == 1


def test_a_guess_that_fails_is_silent_and_the_next_one_is_made(bench: Bench) -> None:
    def small(request: Request) -> Any:
        return text("fresh") if "[person] second" in request.user_text else http_error(500)

    async def second() -> None:
        await api.until_requests(2)
        await asyncio.to_thread(asked(api)[0].wait_ended)
        assert bench.handle is not None
        await bench.handle.send("second")

    sending: list[asyncio.Task[Any]] = []

    def on_event(event: Any) -> None:
        if isinstance(event, Result) and not sending:
            sending.append(asyncio.ensure_future(second()))
        elif isinstance(event, PromptSuggested):
            assert bench.handle is not None
            bench.handle.close()

    with FakeAPI(beside(fleet(lambda request: message("done"), "report"), small), allow_violations=True) as api:
        seen = talk(bench, api, on_event, chat_suggest=True)
    assert [event.text for event in seen if isinstance(event, PromptSuggested)] == ["fresh"]
    assert not [event for event in seen if isinstance(event, Notice)]


def test_nothing_is_asked_unless_it_is_set(bench: Bench) -> None:
    def on_event(event: Any) -> None:
        if isinstance(event, Result):
            assert bench.handle is not None
            bench.handle.close()

    with FakeAPI(beside(fleet(lambda request: message("done"), "report"), "never")) as api:
        talk(bench, api, on_event)
        assert asked(api) == [] and replace(bench.options()).memory_extract is False
