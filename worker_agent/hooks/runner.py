"""`HookRunner`: one method an event. All matching handlers of an event run side by side; their answers become one `Verdict`.

One runner an agent (`for_agent` makes a worker's out of its coordinator's). It never objects on its own: without a
handler every method answers at once with an empty verdict. A handler with a condition (`if`) runs on tool events only, and
runs when nobody can say whether its condition holds.
"""

from __future__ import annotations

import asyncio
import shlex
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from worker_agent.errors import ConfigError
from worker_agent.events import HookRan
from worker_agent.hooks.answer import STRING_CAP, BatchVerdict, HookAnswer, StopVerdict, Verdict, answer, combine
from worker_agent.hooks.config import EVENTS, SESSION_END_SECONDS, TOOL_EVENTS, Handler, HookConfig
from worker_agent.hooks.run import Callback, run_handler
from worker_agent.structs import replace

# The names by which hooks know how a model call failed; all others are `unknown`.
_FAILURES = {
    "rate_limit": "rate_limit", "spend_limit": "billing_error", "billing": "billing_error", "budget": "billing_error",
    "authentication": "authentication_failed", "permission": "authentication_failed", "not_found": "model_not_found",
    **dict.fromkeys(("overloaded", "server", "timeout", "connection", "stream_broken", "stream_silent"), "server_error"),
    **dict.fromkeys(("invalid_request", "prompt_too_long", "media_too_large", "request_too_large"), "invalid_request"),
    "max_tokens_too_large": "max_output_tokens",
}  # fmt: skip

Condition = Callable[[str, str, Mapping[str, Any]], bool]
"""Rule text, tool name, input → whether the rule matches. Raising `ConfigError` counts as yes."""


class HookSession(Struct, frozen=True, kw_only=True):
    """What every event says of the agent. `agent_type` is set inside a worker. `environment` is a tool's environment,
    without credentials; `spill_dir` takes the surplus of long strings."""

    session_id: str
    cwd: Path
    project_dir: Path
    transcript_path: Path | None = None  # of the agent a person talks to
    agent_transcript_path: Path | None = None  # of a worker
    permission_mode: str = "default"
    effort: str | None = None
    scratchpad: Path | None = None
    agent_id: str | None = None
    agent_type: str | None = None
    task_id: str | None = None
    prompt_id: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    spill_dir: Path | None = None

    def payload(self) -> dict[str, Any]:
        said = {
            "session_id": self.session_id,
            "prompt_id": self.prompt_id,
            "transcript_path": str(self.transcript_path or ""),
            "cwd": str(self.cwd),
            "permission_mode": self.permission_mode,
            "effort": {"level": self.effort} if self.effort else None,
            "scratchpad_dir": str(self.scratchpad) if self.scratchpad else None,
            "agent_id": self.agent_id if self.agent_type else None,
            "agent_type": self.agent_type,
        }
        return {key: value for key, value in said.items() if value is not None}

    def variables(self) -> dict[str, str]:
        """The environment of a handler."""
        kept = {k: v for k, v in self.environment.items() if not k.startswith("OTEL_")}
        own = {
            "CLAUDE_PROJECT_DIR": str(self.project_dir),
            "COORDINATOR": "1",
            "COORDINATOR_PROJECT_DIR": str(self.project_dir),
            "COORDINATOR_SESSION_ID": self.session_id,
        }
        return kept | own | ({"COORDINATOR_TASK_ID": self.task_id} if self.task_id else {})


class HookRunner(Struct):
    """`on_notice` shows a line to the person; `on_wake` gives an agent (None: the one a person talks to) what an
    `asyncRewake` handler said; `background_tasks` lists what lives below an agent; `variable` gives what a header of an
    `http` handler names; `redact` takes known secrets out of what handlers say; `callback` calls the functions of the
    program that began the run; `on_run` hears, with the task of the agent, when a handler begins and how it ends."""

    config: HookConfig
    session: HookSession
    condition: Condition | None = None
    on_notice: Callable[[str], None] = field(default=lambda text: None)
    on_wake: Callable[[str | None, str], None] = field(default=lambda agent_id, text: None)
    background_tasks: Callable[[str | None], Sequence[Mapping[str, Any]]] = field(default=lambda agent_id: ())
    variable: Callable[[str], str] = field(default=lambda name: "")
    redact: Callable[[str], str] = field(default=lambda text: text)
    callback: Callback | None = None
    on_run: Callable[[str | None, HookRan], None] | None = None
    _background: set[asyncio.Task[None]] = field(default_factory=set)

    def for_agent(self, own: HookConfig = HookConfig(), **changes: Any) -> HookRunner:
        """The runner of another agent of the session: `agent_id`, `agent_type`, `task_id`, `cwd`, …, with hooks of its
        `own` besides those of all."""
        return replace(self, config=self.config + own, session=replace(self.session, **changes))

    async def close(self) -> None:
        """End what still runs in the background."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    # the events

    async def pre_tool_use(self, tool_name: str, input: Mapping[str, Any], tool_use_id: str) -> Verdict:
        return await self._fire("PreToolUse", tool_name, tool_name=tool_name, tool_input=input, tool_use_id=tool_use_id)

    async def permission_request(
        self, tool_name: str, input: Mapping[str, Any], suggestions: Sequence[Mapping[str, Any]]
    ) -> Verdict:
        """A person would be asked: `decision` allow or deny answers for them, None leaves it to them. `stop` where a hook
        denies and ends the turn. `suggestions` are updates of permissions that would allow it."""
        fields = {"tool_name": tool_name, "tool_input": input, "permission_suggestions": list(suggestions)}
        return await self._fire("PermissionRequest", tool_name, **fields)

    async def post_tool_use(
        self,
        tool_name: str,
        input: Mapping[str, Any],
        tool_use_id: str,
        response: Any,
        duration: float,
        error: str | None = None,
    ) -> Verdict:
        """`PostToolUseFailure` when `error` is given, else `PostToolUse`; `duration` in seconds."""
        common = {
            "tool_name": tool_name, "tool_input": input, "tool_use_id": tool_use_id, "duration_ms": round(duration * 1000),
        }  # fmt: skip
        if error is not None:
            return await self._fire("PostToolUseFailure", tool_name, **common, error=error, tool_response=response)
        return await self._fire("PostToolUse", tool_name, **common, tool_response=response)

    async def post_tool_batch(self, calls: Callable[[], Sequence[Mapping[str, Any]]]) -> BatchVerdict:
        """All calls of one answer have their results; `calls` makes the list of them, which is asked for only where a hook
        is to see it."""
        if not self.config.handlers("PostToolBatch"):
            return BatchVerdict()
        verdict = await self._fire("PostToolBatch", tool_calls=list(calls()))
        return BatchVerdict(verdict.stop or "; ".join(verdict.blocking) or None, verdict.context)

    async def stop_failure(self, kind: str, message: str, last_message: str) -> None:
        """A turn ended by an error of the API; `kind` is one of `ErrorKind`. Nothing that hooks say changes it."""
        fields = {"error": _FAILURES.get(kind, "unknown"), "error_details": message, "last_assistant_message": last_message}
        await self._fire("StopFailure", fields["error"], **fields)

    async def user_prompt_submit(self, prompt: str) -> Verdict:
        """`blocking` erases the prompt; `context` goes with it."""
        return await self._fire("UserPromptSubmit", prompt=prompt)

    async def session_start(self, source: str) -> Verdict:
        """`source`: startup, resume, clear, compact or fork."""
        if not self.config.handlers("SessionStart", source):
            return Verdict()
        with tempfile.TemporaryDirectory(prefix="coordinator-hook-") as directory:
            path = Path(directory, "environment")
            path.touch(mode=0o600)
            verdict = await self._fire("SessionStart", source, {"CLAUDE_ENV_FILE": str(path)}, source=source)
            return replace(verdict, environment=_exports(path))

    async def session_end(self, reason: str) -> Verdict:
        return await self._fire("SessionEnd", reason, reason=reason)

    async def stop(self, last_message: str, stop_hook_active: bool) -> StopVerdict:
        """`Stop` for the agent a person talks to, `SubagentStop` for a worker."""
        event, subject = ("Stop", "") if self.session.agent_type is None else ("SubagentStop", self.session.agent_type)
        if not self.config.handlers(event, subject):
            return StopVerdict()  # before anybody looks what lives below
        said: dict[str, Any] = {
            "stop_hook_active": stop_hook_active,
            "last_assistant_message": last_message,
            "background_tasks": list(self.background_tasks(self.session.task_id)),
        }
        if event == "Stop":
            verdict = await self._fire(event, subject, **said, session_crons=[])
        else:
            path = str(self.session.agent_transcript_path or "")
            verdict = await self._fire(event, subject, **said, agent_transcript_path=path)
        return StopVerdict((*verdict.blocking, *verdict.context), verdict.stop)

    async def subagent_start(self, agent_type: str, agent_id: str) -> Verdict:
        """`context` goes to the worker with its prompt."""
        return await self._fire("SubagentStart", agent_type, agent_id=agent_id, agent_type=agent_type)

    async def task_created(self, task_id: str, subject: str, description: str = "", teammate: str | None = None) -> Verdict:
        """`blocking`: the task must not come to be."""
        return await self._fire("TaskCreated", **_task(task_id, subject, description, teammate))

    async def task_completed(self, task_id: str, subject: str, description: str = "", teammate: str | None = None) -> Verdict:
        """`blocking`: the task is not complete; the worker goes back to work with the reasons."""
        return await self._fire("TaskCompleted", **_task(task_id, subject, description, teammate))

    async def pre_compact(self, trigger: str, instructions: str = "") -> Verdict:
        """`trigger`: manual or auto. `blocking`: the compaction must not run."""
        return await self._fire("PreCompact", trigger, trigger=trigger, custom_instructions=instructions)

    async def post_compact(self, trigger: str, summary: str = "") -> Verdict:
        return await self._fire("PostCompact", trigger, trigger=trigger, compact_summary=summary)

    async def notification(self, kind: str, message: str) -> Verdict:
        """`kind`: permission_prompt, agent_needs_input, agent_completed, …"""
        return await self._fire("Notification", kind, message=message, notification_type=kind)

    # one event

    async def _fire(
        self, event: str, subject: str = "", variables: Mapping[str, str] | None = None, /, **fields: Any
    ) -> Verdict:
        handlers = [h for h in self.config.handlers(event, subject) if self._applies(h, event, fields)]
        if not handlers:
            return Verdict()
        payload = {**self.session.payload(), "hook_event_name": event, **{k: v for k, v in fields.items() if v is not None}}
        environment = self.session.variables() | dict(variables or {})
        waited = [self._run(h, event, subject, payload, environment) for h in handlers if not h.in_background]
        for handler in handlers:
            if handler.in_background:
                self._start(handler, event, subject, payload, environment)
        verdict = combine(await self._together(event, waited))
        for notice in verdict.notices:
            self.on_notice(notice)
        return verdict

    async def _together(self, event: str, waited: list[Any]) -> list[HookAnswer]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in waited]
        return [task.result() for task in tasks]

    def _applies(self, handler: Handler, event: str, fields: Mapping[str, Any]) -> bool:
        if handler.condition is None:
            return True
        if event not in TOOL_EVENTS:
            return False
        if self.condition is None:
            return True
        try:
            return self.condition(handler.condition, fields["tool_name"], fields["tool_input"])
        except ConfigError:
            return True  # not a rule: better once too often than never

    async def _run(
        self, handler: Handler, event: str, subject: str, payload: Mapping[str, Any], environment: Mapping[str, str]
    ) -> HookAnswer:
        timeout = EVENTS[event] if handler.timeout is None else handler.timeout
        if event == "SessionEnd":
            timeout = min(timeout, SESSION_END_SECONDS)
        cwd = self.session.cwd if self.session.cwd.is_dir() else self.session.project_dir
        told = HookRan(uuid.uuid4().hex, event, subject)
        self._tell(told)
        ran = await run_handler(
            handler, payload, cwd=cwd, environment=environment, timeout=timeout, variable=self.variable, callback=self.callback
        )
        stdout, stderr = (self.redact(text)[:STRING_CAP] for text in (ran.stdout, ran.trouble or ran.stderr))
        self._tell(replace(told, ended=True, code=ran.code, stdout=stdout, stderr=stderr))
        said = answer(event, ran, self._spill)
        return said.refusing if handler.only_refuses else said

    def _tell(self, ran: HookRan) -> None:
        if self.on_run is not None:
            self.on_run(self.session.task_id, ran)

    def _start(
        self, handler: Handler, event: str, subject: str, payload: Mapping[str, Any], environment: Mapping[str, str]
    ) -> None:
        async def run() -> None:
            said = await self._run(handler, event, subject, payload, environment)
            if handler.wakes and said.block:
                self.on_wake(self.session.agent_id, said.block)

        task = asyncio.create_task(run())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _spill(self, text: str) -> str:
        """At most `STRING_CAP` characters; the whole of a longer text lies in a file that the rest names."""
        text = self.redact(text)
        if len(text) <= STRING_CAP:
            return text
        if self.session.spill_dir is None:
            return text[:STRING_CAP] + f"… ({len(text)} characters in all)"
        self.session.spill_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=self.session.spill_dir, prefix="hook-", suffix=".txt", delete=False, encoding="utf-8", errors="replace"
        ) as file:
            file.write(text)
        return text[:STRING_CAP] + f"… ({len(text)} characters in all, the whole in {file.name})"


def _task(task_id: str, subject: str, description: str, teammate: str | None) -> dict[str, Any]:
    return {"task_id": task_id, "task_subject": subject, "task_description": description, "teammate_name": teammate}


def _exports(path: Path) -> dict[str, str]:
    """`export NAME=value` lines, as a SessionStart hook writes them."""
    found = {}
    for line in path.read_text("utf-8", "replace").splitlines():
        try:
            parts = shlex.split(line, comments=True)
        except ValueError:
            continue
        for part in parts[1:] if parts[:1] == ["export"] else parts:
            name, equals, value = part.partition("=")
            if equals and name.isidentifier():
                found[name] = value
    return found
