"""OpenTelemetry spans of a session, by the GenAI conventions: `invoke_agent`, `chat` and `execute_tool` of the coordinator and of its
workers, in one trace.

1. An observer like any other: nothing in the loop knows of it. Where no exporter is asked for nothing is imported.
2. A span is made when what it tells of has ended, under an id that follows from whose it is (the session, the task, the call). So a
   child needs no open parent: a worker on another machine, or one that outlived its coordinator, has the right one all the same.
3. The trace is the caller's (`TRACEPARENT`), else it follows from the session. Commands get a `TRACEPARENT` of their agent.
4. Content is left out: names, numbers and ids only, unless `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT` asks for the
   arguments of calls.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from coordinator.observed import Observed, Observer, TaskChanged
from tasks.ids import TaskType
from tasks.records import TaskRecord
from tasks.states import TERMINAL, TaskStatus
from worker_agent.config import Clock, tracing_variables
from worker_agent.events import ModelCalled, Result, ToolFinished, ToolStarted
from worker_agent.messages import canonical

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

_CALLER = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")
_YES = frozenset({"1", "true", "yes", "span_only", "span_and_event"})
MISSING = "traces are asked for (OTEL_…), but the extra is not there: pip install 'coordinator[otel]'"


def is_asked_for() -> bool:
    """Whether the standard variables name somewhere to send spans."""
    have = tracing_variables()
    if have.get("OTEL_SDK_DISABLED", "").lower() == "true" or have.get("OTEL_TRACES_EXPORTER", "").lower() == "none":
        return False
    return any(
        have.get(f"OTEL_{name}") for name in ("TRACES_EXPORTER", "EXPORTER_OTLP_ENDPOINT", "EXPORTER_OTLP_TRACES_ENDPOINT")
    )


def traceparent(session_id: str, task_id: str | None) -> dict[str, str]:
    """The variable for the commands of an agent, {} where nothing is traced."""
    if not is_asked_for():
        return {}
    return {"TRACEPARENT": f"00-{_trace(session_id):032x}-{_span_id(task_id or session_id):016x}-01"}


def _trace(session_id: str) -> int:
    called = _CALLER.fullmatch(tracing_variables().get("TRACEPARENT", ""))
    return int(called[1], 16) if called else int.from_bytes(hashlib.sha256(session_id.encode()).digest()[:16])


def _span_id(whose: str) -> int:
    return int.from_bytes(hashlib.sha256(f"span/{whose}".encode()).digest()[:8])


class _Made(Struct, frozen=True):
    """What a span is made of. Times in seconds since the epoch; `whose` gives its id, None any."""

    name: str
    whose: str | None
    below: str | None  # whose its parent is; None: the caller's
    start: float
    end: float
    attributes: Mapping[str, Any]
    error: str | None = None
    calls_out: bool = False


class Traces:
    """Spans of the sessions that this process drives or works on. Belongs to one event loop."""

    def __init__(self, exporter: SpanExporter, clock: Clock) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

        class Ids(RandomIdGenerator):
            """Gives the id that was laid ready, else a random one."""

            span: int | None = None
            trace: int | None = None

            def generate_span_id(self) -> int:
                return self.span if self.span is not None else super().generate_span_id()

            def generate_trace_id(self) -> int:
                return self.trace if self.trace is not None else super().generate_trace_id()

            def lay_ready(self, span: int | None, trace: int) -> None:
                self.span, self.trace = span, trace

        self._clock = clock
        self._ids = Ids()
        service = {"service.name": "coordinator"}
        resource = Resource.create({} if tracing_variables().get("OTEL_SERVICE_NAME") else service)
        self._provider: TracerProvider = TracerProvider(id_generator=self._ids, resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("coordinator")
        wanted = tracing_variables().get("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "")
        self._has_content = wanted.lower() in _YES
        self._sessions: dict[str, tuple[float, str | None]] = {}  # since when each is seen, and how it failed
        self._asked_by: dict[str, str] = {}
        self._arguments: dict[str, str] = {}

    def observing(self, observer: Observer) -> Observer:
        def both(observed: Observed) -> None:
            observer(observed)
            self._see(observed)

        return both

    def close(self, *, owns: bool) -> None:
        """Make the spans of the sessions (of one that is another process's own none), and send what is not sent. Blocks."""
        now = self._clock.now()
        for session_id, (since, failed) in self._sessions.items() if owns else ():
            attributes = _of_agent(session_id, "coordinator", session_id)
            self._make(session_id, _Made("invoke_agent coordinator", session_id, None, since, now, attributes, failed))
        self._provider.shutdown()

    def _see(self, observed: Observed) -> None:
        session_id, now = observed.session_id, self._clock.now()
        self._sessions.setdefault(session_id, (now, None))
        agent = observed.task_id or session_id
        match observed.event:
            case TaskChanged():
                self._task(observed.event)
            case ToolStarted() if self._has_content:
                self._arguments[observed.event.tool_use_id] = canonical(dict(observed.event.input)).decode()
            case ToolFinished():
                self._make(session_id, self._tool(observed.event, agent, now))
            case ModelCalled():
                self._make(session_id, _call(observed.event, agent, session_id, now))
            case Result() if observed.task_id is None:
                failed = observed.event.reason if observed.event.is_error else None
                self._sessions[session_id] = (self._sessions[session_id][0], failed)

    def _task(self, changed: TaskChanged) -> None:
        task = changed.task
        if changed.asked_by is not None:
            self._asked_by[task.id] = changed.asked_by
        if task.type is TaskType.LOCAL_AGENT and task.status in TERMINAL and task.started_at is not None:
            self._make(task.session_id, self._worker(task, task.ended_at or self._clock.now()))

    def _worker(self, task: TaskRecord, ended_at: float) -> _Made:
        name = task.name or task.definition or "worker"
        attributes = _of_agent(task.session_id, name, task.agent_id) | {"gen_ai.request.model": task.model or ""}
        failed = None if task.status is TaskStatus.COMPLETED else task.error_class or task.end_reason or str(task.status)
        below = self._asked_by.pop(task.id, None) or task.session_id
        return _Made(f"invoke_agent {name}", task.id, below, task.started_at or ended_at, ended_at, attributes, failed)

    def _tool(self, tool: ToolFinished, agent: str, now: float) -> _Made:
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": tool.name,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": tool.tool_use_id,
        }
        if (arguments := self._arguments.pop(tool.tool_use_id, None)) is not None:
            attributes["gen_ai.tool.call.arguments"] = arguments
        failed = "tool_error" if tool.is_error else None
        name = f"execute_tool {tool.name}"
        return _Made(name, tool.tool_use_id, agent, now - tool.duration, now, attributes, failed)

    def _make(self, session_id: str, made: _Made) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode

        trace_id = _trace(session_id)
        self._ids.lay_ready(_span_id(made.whose) if made.whose is not None else None, trace_id)
        span = self._tracer.start_span(
            made.name,
            context=_below(trace_id, made.below),
            kind=SpanKind.CLIENT if made.calls_out else SpanKind.INTERNAL,
            attributes={**made.attributes, **({"error.type": made.error} if made.error else {})},
            start_time=int(made.start * 1e9),
        )
        if made.error:
            span.set_status(Status(StatusCode.ERROR))
        span.end(int(made.end * 1e9))


def _below(trace_id: int, parent: str | None) -> Any:
    """The context of the parent; of the caller's where there is none of ours."""
    from opentelemetry import context, trace

    called = _CALLER.fullmatch(tracing_variables().get("TRACEPARENT", ""))
    if parent is None and called is None:
        return context.Context()
    span_id = _span_id(parent) if parent is not None else int(called[2], 16) if called else 0
    above = trace.SpanContext(
        trace_id, span_id, is_remote=parent is None, trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED)
    )
    return trace.set_span_in_context(trace.NonRecordingSpan(above), context.Context())


def _of_agent(session_id: str, name: str, agent_id: str) -> dict[str, Any]:
    return {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.agent.name": name,
        "gen_ai.agent.id": agent_id,
        "gen_ai.conversation.id": session_id,
    }


def _call(call: ModelCalled, agent: str, session_id: str, now: float) -> _Made:
    usage = call.usage
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.conversation.id": session_id,
        "gen_ai.request.model": call.model,
        "gen_ai.usage.input_tokens": usage.prompt,
        "gen_ai.usage.output_tokens": usage.output,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_5m + usage.cache_write_1h,
        **({"gen_ai.response.id": call.response_id} if call.response_id else {}),
    }
    return _Made(f"chat {call.model}", None, agent, now - call.duration, now, attributes, call.error, calls_out=True)


def traces(clock: Clock) -> Traces:
    """Raises `ImportError` where the extra is missing. Imports it: 0.2 s."""
    return Traces(_exporter(), clock)


def _exporter() -> SpanExporter:
    if tracing_variables().get("OTEL_TRACES_EXPORTER", "").lower() == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter(out=sys.stderr, formatter=lambda span: span.to_json(indent=None) + "\n")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()
