"""OpenTelemetry spans of a real run: one trace over coordinator and workers, each span below the right one."""

from __future__ import annotations

import json
from typing import Any

from coordinator.views.exit_codes import ExitCode
from tests.cli.program import Program, Ran
from tests.integration.scripts import coordinator, fleet, spawn
from tests.support.fake_api import FakeAPI, Request, message, tool_use

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SECRET_WORDS = "the goal that nobody must read"


def worker(request: Request) -> Any:
    return message("done") if request.turns else message(tool_use("Bash", {"command": "echo trace=$TRACEPARENT"}))


def run(program: Program, **environment: str) -> tuple[Ran, FakeAPI]:
    boss = coordinator(spawn("one", name="ada"), final="all done")
    with FakeAPI(fleet(boss, worker)) as api:
        ran = program.here(
            "run", SECRET_WORDS, "--permission-mode", "bypassPermissions", "--output-format", "json",
            ANTHROPIC_BASE_URL=api.base_url, ANTHROPIC_API_KEY="sk-0123456789abcdef",
            COORDINATOR_LOOP_TOOL_USE_SUMMARIES="0", **environment,
        )  # fmt: skip
    assert ran.code == ExitCode.DONE, ran.err
    return ran, api


def spans_of(ran: Ran) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ran.err.splitlines() if line.startswith('{"name"')]


def test_one_trace_with_right_parents_and_without_content(program: Program) -> None:
    ran, api = run(program, OTEL_TRACES_EXPORTER="console", TRACEPARENT=CALLER)
    spans = spans_of(ran)
    by_id = {span["context"]["span_id"]: span for span in spans}
    assert {span["context"]["trace_id"] for span in spans} == {f"0x{CALLER[3:35]}"} and len(by_id) == len(spans)

    def above(span: dict[str, Any]) -> str:
        return by_id[span["parent_id"]]["name"] if span["parent_id"] in by_id else span["parent_id"]

    family = sorted({(span["name"], above(span)) for span in spans})
    model = "claude-sonnet-5-5"
    assert family == sorted(
        {
            ("invoke_agent coordinator", f"0x{CALLER[36:52]}"),
            (f"chat {model}", "invoke_agent coordinator"),
            ("execute_tool Agent", "invoke_agent coordinator"),
            ("invoke_agent ada", "execute_tool Agent"),
            (f"chat {model}", "invoke_agent ada"),
            ("execute_tool Bash", "invoke_agent ada"),
        }
    )
    assert SECRET_WORDS not in ran.err and "echo" not in ran.err
    chat = next(span["attributes"] for span in spans if span["name"].startswith("chat"))
    assert chat["gen_ai.operation.name"] == "chat" and chat["gen_ai.usage.input_tokens"] > 0
    assert chat["gen_ai.conversation.id"] == ran.json["session_id"]
    ada = next(span["context"]["span_id"] for span in spans if span["name"] == "invoke_agent ada")
    (seen,) = {text for request in api.requests for text in request.tool_results.values() if "trace=" in text}
    assert f"trace=00-{CALLER[3:35]}-{ada[2:]}-01" in seen


def test_without_a_caller_the_session_begins_the_trace_and_arguments_come_when_asked_for(program: Program) -> None:
    ran, _ = run(
        program, OTEL_TRACES_EXPORTER="console", OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT="true"
    )  # fmt: skip
    spans = spans_of(ran)
    assert [span["name"] for span in spans if span["parent_id"] is None] == ["invoke_agent coordinator"]
    assert len({span["context"]["trace_id"] for span in spans}) == 1
    arguments = [span["attributes"].get("gen_ai.tool.call.arguments") for span in spans if span["name"] == "execute_tool Bash"]
    assert arguments == ['{"command":"echo trace=$TRACEPARENT"}']


def test_nothing_is_traced_unasked(program: Program) -> None:
    ran, api = run(program, TRACEPARENT=CALLER, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9", OTEL_SDK_DISABLED="true")
    assert spans_of(ran) == []
    (seen,) = {text for request in api.requests for text in request.tool_results.values() if "trace=" in text}
    assert f"trace={CALLER}" in seen  # the caller's own, as of any other variable
