"""Compaction where a session has workers, a database and a command line: live tasks, export, resume, by hand, the cache
of a fan-out."""

import asyncio
import re

import orjson
from click.testing import CliRunner

from coordinator.agents.journal import from_record
from coordinator.app import compact_session
from tasks import outbox, registry, sessions, transcripts
from tests.integration.harness import Bench
from tests.support.fake_api import FakeAPI, compaction, message, text, tool_use
from worker_agent.api.anthropic_client import AnthropicClient
from worker_agent.config import ContextSettings
from worker_agent.events import Result
from worker_agent.structs import replace
from worker_agent.tools.trust import EVERYTHING


def is_summary(request):
    return "/summary/" in request.conversation


def rows(bench, agent_id):
    database = bench.database()
    try:
        return [from_record(row) for row in database.read(lambda conn: transcripts.load(conn, agent_id))]
    finally:
        database.close()


def test_of_twenty_workers_on_one_prefix_one_writes_the_cache_and_nineteen_read_it(tmp_path):
    bench = Bench(tmp_path)
    (bench.work / ".claude" / "agents").mkdir(parents=True)
    (bench.work / ".claude" / "agents" / "long.md").write_text(
        "---\nname: long\ndescription: knows much\n---\n" + "This is line of the long prompt. " * 2_500
    )

    def script(request):
        if "Agent" in request.tool_names:
            done = len(re.findall("<task-id>", request.user_text))
            if request.turns == 0:
                asked = {"prompt": "do your part", "subagent_type": "long"}
                return message(*(tool_use("Agent", {"description": f"part {n}", **asked}) for n in range(20)))
            return text("all done" if done >= 20 else "waiting")
        return text("my report")

    with FakeAPI(script) as api:
        outcome = bench.run(api, max_workers=20, trust=EVERYTHING)
    assert outcome.exit_code == 0
    workers = [request for request in api.requests if "Agent" not in request.tool_names]
    usages = [request.usage for request in workers]
    assert len(usages) == 20
    assert sum(usage["cache_creation_input_tokens"] > 19_000 for usage in usages) == 1
    assert sum(usage["cache_read_input_tokens"] > 19_000 for usage in usages) == 19


def test_what_lives_and_what_is_not_announced_is_listed_after_a_compaction_and_what_was_announced_is_not(tmp_path):
    """C3: a1 runs, a2 has ended and waits to be told, a3 was told."""
    bench = Bench(tmp_path)
    spawned = []

    def script(request):
        if is_summary(request):
            return text("SUMMARY")
        return text("noted")

    with FakeAPI(script) as api:
        api.allow_prefix_change()
        first = bench.run(api, "remember the goal")
        database = bench.database()

        def plant(conn):
            session = sessions.get(conn, first.session_id)
            for name in ("a1", "a2", "a3"):
                task = registry.create(
                    conn,
                    registry.NewTask(
                        session_id=session.id,
                        type="local_agent",
                        parent_id=session.id,
                        definition="worker",
                        description=f"{name} counts",
                        prompt=name,
                        name=name,
                        model=session.model,
                        cwd=session.cwd,
                    ),
                )
                spawned.append(task.id)

        database.write(plant)
        a1, a2, a3 = spawned
        for ended in (a2, a3):
            database.write(lambda conn, id=ended: registry.kill(conn, id, by="test", notify=True, end_reason="test"))
        told = outbox.notification_id(a3)
        database.write(lambda conn: outbox.consume(conn, first.session_id, [told], 1))
        database.close()
        options = bench.options(None, resume=first.session_id)

        async def by_hand():
            client = AnthropicClient(settings=options.effective(), base_url=api.base_url, api_key="test")
            try:
                return await compact_session(options, "keep the goal", lambda observed: None, client=client)
            finally:
                await client.close()

        result = asyncio.run(by_hand())
    assert result.text == "The conversation was summarised."
    listed = [row.text for row in rows(bench, first.session_id) if row.data.get("source") == "live_tasks"]
    assert len(listed) == 1 and a1 in listed[0] and a2 in listed[0] and "a1 counts" in listed[0] and a3 not in listed[0]
    asked = [request for request in api.requests if is_summary(request)]
    assert asked[0].body["compaction"]["instructions"] == "keep the goal"  # the server means; this one has none
    assert "keep the goal" in asked[1].last_user_text


def test_any_number_of_compactions_leaves_the_whole_transcript_and_the_same_view_after_resume(tmp_path):
    bench = Bench(tmp_path)
    (bench.work / "long.txt").write_text("\n".join(f"line {n} of the file" for n in range(1_000)))

    turns = 0

    def script(request):
        nonlocal turns
        if is_summary(request) or "/collapse/" in request.conversation:
            return text("SUMMARY of the work")
        turns += 1
        if turns % 13 == 0:
            return text("done")
        return message(f"turn {turns}", tool_use("Read", {"file_path": str(bench.work / "long.txt"), "offset": turns}))

    config = replace(bench.options().config, context=ContextSettings(window=30_000))
    with FakeAPI(script, windows={"claude-sonnet-5": 40_000}) as api:
        api.allow_prefix_change()
        common = {"use_coordinator": False, "model": "claude-sonnet-5", "config": config}
        first = bench.run(api, "prompt one", **common)
        before = [request for request in api.requests if request.conversation == first.session_id][-1]
        bench.run(api, "prompt two", resume=first.session_id, **common)
    own = [request for request in api.requests if request.conversation == first.session_id]
    after = own[own.index(before) + 1]
    kept = [orjson.dumps(_bare(one)) for one in before.messages]
    assert [orjson.dumps(_bare(one)) for one in after.messages][: len(kept)] == kept
    stored = rows(bench, first.session_id)
    assert sum(row.kind in ("boundary", "view") for row in stored) >= 1
    asked = [call["id"] for row in stored for call in row.tool_uses]
    answered = [block["tool_use_id"] for row in stored for block in row.tool_results]
    assert len(asked) >= 24 and asked == answered


def _bare(value):
    if isinstance(value, dict):
        return {key: _bare(inner) for key, inner in value.items() if key != "cache_control"}
    return [_bare(inner) for inner in value] if isinstance(value, list) else value


def test_the_command_refuses_a_session_that_is_not_there(tmp_path, monkeypatch):
    from coordinator.cli.context import Context
    from coordinator.cli.main import cli

    monkeypatch.setenv("COORDINATOR_HOME", str(tmp_path))
    outcome = CliRunner().invoke(cli, ["sessions", "compact", "nothing"], obj=Context())
    assert outcome.exit_code != 0


def test_a_person_in_a_chat_can_have_the_conversation_summarised(tmp_path):
    bench = Bench(tmp_path)
    said = []

    def on_event(observed):
        if isinstance(observed.event, Result) and observed.task_id is None:
            said.append(observed.event.text)
            if len(said) == 1:
                asyncio.get_running_loop().create_task(bench.handle.send("/compact the numbers"))
            else:
                bench.handle.close()

    bench.on_event = on_event

    def script(request):
        return compaction("SUMMARY") if request.body.get("compaction") else text("hello")

    with FakeAPI(script) as api:
        bench.run(api, "hi", interactive=True)
    assert said == ["hello", "The conversation was summarised."]
    assert [request.body.get("compaction") for request in api.requests] == [
        None,
        {"type": "summarize", "instructions": "the numbers"},
    ]
