"""The offline model: a deterministic surveyor behind the `ModelClient` port. No network, and no language model.

1. It decides from the request alone. Agent without Grep among the tools: it is the coordinator. A survey question: it
   is a research or verification worker. Anything else with Grep and Read: it surveys by itself.
2. The conversation is its only memory: what to do next follows from what the messages since the goal hold. Equal
   requests give equal answers, ids included.
3. It states only what a tool printed, cites it as `file:line`, and has every citation read again before it reports.
4. It says that it is no language model. It follows no instructions, so nothing it reads can give it any.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator, Generator, Sequence
from dataclasses import dataclass, field

from coordinator.offline import survey
from coordinator.offline.citations import Citation, citations, code_span, keep
from worker_agent.api.client import BlockClosed, Finished, ModelEvent, ModelInfo, ModelRequest, Started, TextPiece
from worker_agent.config import Clock, SystemClock
from worker_agent.errors import ErrorKind, ModelError
from worker_agent.messages import Block, Message, Usage, text_block

MODEL = "offline-surveyor"
HEADING = "# Survey"
CHARS_PER_TOKEN = 4
PIECE = 120  # characters of one piece of text
NO_MODEL = (
    "Written by the built-in offline model: no language model read anything here. It lists what searches and files "
    "show; it does not judge, and it changes nothing."
)
PLAIN = (
    "I am the offline model, no language model: I survey a directory for a goal, and can neither discuss nor change anything."
)


class OfflineClient:
    """`pause` is how long an answer rests between two pieces of text, in seconds."""

    def __init__(self, clock: Clock | None = None, *, pause: float = 0.0) -> None:
        self._clock = clock or SystemClock()
        self._pause = pause

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        answer = answer_to(request)
        prompt = Usage(input=_prompt_tokens(request))
        yield Started(f"msg_{answer.seed[:24]}", MODEL, prompt)
        for piece in (answer.text[i : i + PIECE] for i in range(0, len(answer.text), PIECE)):
            await (self._clock.sleep(self._pause) if self._pause else asyncio.sleep(0))
            yield TextPiece(0, piece)
        blocks = answer.blocks()
        for index, block in enumerate(blocks):
            yield BlockClosed(index, block)
        written = sum(len(json.dumps(block)) for block in blocks) // CHARS_PER_TOKEN
        yield Finished("tool_use" if answer.calls else "end_turn", prompt + Usage(output=max(1, written)))

    async def count_tokens(self, request: ModelRequest) -> int | None:
        return _prompt_tokens(request)

    async def model_info(self, model: str) -> ModelInfo:
        return ModelInfo(id=model, window=200_000, max_output=64_000, cache_control=False)

    def cost(self, model: str, usage: Usage) -> float | None:
        return 0.0

    async def refresh_credentials(self) -> bool:
        return False

    def forget(self, conversation: str) -> None:
        return None

    async def close(self) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model says and asks for. `seed` names the request it answers (hexadecimal)."""

    text: str
    calls: Sequence[survey.Call]
    seed: str

    def blocks(self) -> list[Block]:
        uses = [
            {
                "type": "tool_use",
                "id": f"toolu_{self.seed[:20]}{index:02d}",
                "name": call.name,
                "input": dict(call.input),
            }
            for index, call in enumerate(self.calls)
        ]
        return [text_block(self.text), *uses]


def answer_to(request: ModelRequest) -> Answer:
    """The answer to a request. Raises `ModelError` for what only a language model can do: summaries."""
    helper = "/" in request.conversation or not (request.tools or request.conversation)
    if helper or not any(_is_prompt(message) for message in request.messages):
        raise ModelError(ErrorKind.INVALID_REQUEST, "the offline model writes no summaries")
    tools = {tool.name for tool in request.tools}
    if "Agent" in tools and "Grep" not in tools:
        text, calls = _as_coordinator(request)
    elif {"Glob", "Grep", "Read"} <= tools:
        text, calls = _as_worker(request.messages)
    else:
        text, calls = f"{PLAIN} For that I need the tools Glob, Grep and Read, which I was not given.", []
    if calls and not request.tools_allowed:
        text, calls = (
            "The survey ends here, before it was done: no further call is allowed. Nothing can be reported.",
            [],
        )
    return Answer(text, calls, _seed(request))


def _is_prompt(message: Message) -> bool:
    """Whether a person or a coordinator wrote this; what the program adds as context is `meta`."""
    return message.kind == "prompt" and not message.meta


def _seed(request: ModelRequest) -> str:
    digest = hashlib.sha256(request.model.encode())
    for message in request.messages:
        digest.update(message.role.encode() + message.wire)
    return digest.hexdigest()


def _prompt_tokens(request: ModelRequest) -> int:
    tools = sum(len(t.name) + len(t.description) + len(json.dumps(t.input_schema)) for t in request.tools)
    size = tools + sum(map(len, request.system)) + sum(len(message.wire) for message in request.messages)
    return max(1, size // CHARS_PER_TOKEN)


# ── one agent with the tools in its own hands ────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _Run:
    """The messages since the task that is being worked at: `rounds` are the calls asked for so far with their results.
    `report` is the final answer, if it was given; `after` is the last message that came behind it."""

    task: Message
    rounds: list[list[Block]] = field(default_factory=list)
    results: dict[str, str | None] = field(default_factory=dict)
    report: str | None = None
    after: Message | None = None

    def replay(self, calls: Sequence[survey.Call], number: int) -> survey.Results:
        """The results of one round, matched by what was asked for, so that a gap in the history shifts nothing."""
        asked = {_key(use["name"], use["input"]): use["id"] for use in self.rounds[number]}
        return [self.results.get(asked.get(_key(call.name, call.input), "")) for call in calls]


def _key(name: str, input: object) -> str:
    return name + json.dumps(input, sort_keys=True)


def _as_worker(messages: Sequence[Message]) -> tuple[str, Sequence[survey.Call]]:
    run = _read_run(messages)
    if run.report is not None:
        # A stop hook or the loop wants another last word: it must not take the report's place.
        again = run.after is not None and run.after.kind == "meta"
        return (run.report if again else f"{PLAIN} My report stands as it is."), []
    calls, report = _next(_plan(run.task), run)
    if report is not None:
        return report, []
    return f"Step {len(run.rounds) + 1}: {_said(calls)}.", calls


def _read_run(messages: Sequence[Message]) -> _Run:
    run: _Run | None = None
    for message in messages:
        if (_is_prompt(message) or message.kind == "attachment") and _is_task(message, run):
            run = _Run(message)
        elif run is not None:
            _follow(run, message)
    assert run is not None  # the first prompt is always a task
    return run


def _is_task(message: Message, run: _Run | None) -> bool:
    """A survey question always is; a person's prompt is if no survey runs and the one before was no worker's."""
    if survey.plan_for(message.text) is not None:
        return True
    if not _is_prompt(message):
        return False
    return run is None or (run.report is not None and survey.plan_for(run.task.text) is None)


def _follow(run: _Run, message: Message) -> None:
    if message.role == "assistant":
        if message.tool_uses:
            run.rounds.append(message.tool_uses)
        elif message.text and run.report is None:
            run.report = message.text
        return
    run.results |= {r["tool_use_id"]: None if r.get("is_error") else _text_of(r) for r in message.tool_results}
    if not message.tool_results:
        run.after = message


def _text_of(block: Block) -> str:
    content = block.get("content") or ""
    return content if isinstance(content, str) else "".join(b.get("text", "") for b in content if b.get("type") == "text")


def _next(plan: survey.Plan, run: _Run) -> tuple[Sequence[survey.Call], str | None]:
    """Run `plan` over what the conversation holds: the calls it wants next, or its report."""
    try:
        calls = next(plan)
        for number in range(len(run.rounds)):
            calls = plan.send(run.replay(calls, number))
    except StopIteration as end:
        return [], end.value
    return calls, None


def _plan(task: Message) -> survey.Plan:
    return survey.plan_for(task.text) or _alone(task.text)


def _alone(goal: str) -> Generator[list[survey.Call], survey.Results, str]:
    """The whole survey by one agent: all questions side by side, then every citation read again."""
    plans = {name: survey.plan_for(survey.prompt_for(name, goal, None)) for name in survey.QUESTIONS}
    reports = yield from survey.together({name: plan for name, plan in plans.items() if plan})
    cited = citations("\n".join(reports.values()))
    verdicts = (yield from survey.verify(cited)) if cited else ""
    return _report(goal, None, reports, cited, survey.verdicts_in(verdicts), None)


def _said(calls: Sequence[survey.Call]) -> str:
    names = [call.name for call in calls]
    return ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))


# ── the coordinator ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _Survey:
    """What a coordinator's conversation holds of the survey under way. Tasks are known by the description they were
    started with; `tasks` maps it to a task id, or to None if the start failed."""

    goal: str
    tasks: dict[str, str | None] = field(default_factory=dict)
    prompts: dict[str, str] = field(default_factory=dict)
    done: bool = False
    unread: int = 0  # messages of a person that came while it ran


@dataclass(frozen=True, slots=True)
class _End:
    """How a worker ended, as its notification says."""

    status: str
    result: str


VERIFICATION = "Verify cited lines"


def _as_coordinator(request: ModelRequest) -> tuple[str, Sequence[survey.Call]]:
    current, ends = _read_survey(request.messages)
    directory = _directory(request)
    if current is None or current.done:
        return f"{PLAIN} The report above stands. Give me a new goal for a new survey.", []
    if not current.tasks:
        return _start(current.goal, directory)
    waiting = [d for d, task in current.tasks.items() if task is not None and task not in ends]
    if waiting:
        return f"Waiting for {len(waiting)} of {len(current.tasks)} workers: {', '.join(waiting).lower()}.", []
    return _go_on(current, ends, directory)


def _start(goal: str, directory: str | None) -> tuple[str, Sequence[survey.Call]]:
    calls = [
        survey.Call("Agent", {"description": title, "prompt": survey.prompt_for(question, goal, directory)})
        for question, (title, _) in survey.QUESTIONS.items()
    ]
    return f"I have no language model. I survey the directory with {len(calls)} workers side by side.", calls


def _go_on(current: _Survey, ends: dict[str, _End], directory: str | None) -> tuple[str, Sequence[survey.Call]]:
    """All that was started has ended: have the citations verified, or report."""
    sections = {name: _section(current, ends, title) for name, (title, _) in survey.QUESTIONS.items()}
    cited = citations("\n".join(sections.values()))
    if cited and VERIFICATION not in current.tasks:
        prompt = survey.verification_prompt(cited, directory)
        said = f"All reports are here. A fresh worker reads the {len(cited)} cited lines again."
        return said, [survey.Call("Agent", {"description": VERIFICATION, "prompt": prompt})]
    end = ends.get(current.tasks.get(VERIFICATION) or "")
    held = survey.verdicts_in(end.result) if end else set()
    failure = None if end and end.status == "completed" else f"the verification worker {end.status if end else 'did not start'}"
    return _report(current.goal, directory, sections, cited, held, failure if cited else None, current.unread), []


def _section(current: _Survey, ends: dict[str, _End], title: str) -> str:
    end = ends.get(current.tasks.get(title) or "")
    if end is None:
        return "The worker could not be started."
    if end.status != "completed":
        partial = f" What it had written:\n\n{end.result}" if end.result.strip() else ""
        return f"The worker {end.status} before it was done.{partial}"
    return end.result


def _read_survey(messages: Sequence[Message]) -> tuple[_Survey | None, dict[str, _End]]:
    current: _Survey | None = None
    ends: dict[str, _End] = {}
    for message in messages:
        if message.role == "assistant":
            if current is not None:
                _note_answer(current, message)
            continue
        if _is_prompt(message):
            if current is None or current.done:
                current = _Survey(message.text)
            else:
                current.unread += 1
        ends |= _notifications(message)
        if current is not None:
            _note_started(current, message)
    return current, ends


def _note_answer(current: _Survey, message: Message) -> None:
    for use in message.tool_uses:
        if use["name"] == "Agent":
            current.prompts[use["id"]] = use["input"].get("description", "")
    current.done = current.done or (not message.tool_uses and message.text.startswith(HEADING))


def _note_started(current: _Survey, message: Message) -> None:
    for result in message.tool_results:
        if description := current.prompts.get(result["tool_use_id"]):
            found = re.search(r'"task_id":\s*"([^"]+)"', _text_of(result))
            current.tasks[description] = found[1] if found and not result.get("is_error") else None


def _notifications(message: Message) -> dict[str, _End]:
    """The ends of tasks that a message tells of. What workers wrote is escaped, so an element is one element."""
    if message.kind != "attachment" or "<task-notification>" not in message.text:
        return {}
    from xml.etree import ElementTree

    found = {}
    for element in re.findall(r"<task-notification>.*?</task-notification>", message.text, re.DOTALL):
        try:
            root = ElementTree.fromstring(element)
        except ElementTree.ParseError:
            continue  # not from the system: its elements always parse
        found[root.findtext("task-id", "")] = _End(root.findtext("status", ""), root.findtext("result", "") or "")
    return found


def _directory(request: ModelRequest) -> str | None:
    """The working directory, if the context names it."""
    texts = [*request.system, *(m.text for m in request.messages if m.meta)]
    pattern = re.compile(r"^\W*(?:working directory|cwd)\W*[:=]\s*`?([^`\n]+?)`?\s*$", re.IGNORECASE | re.MULTILINE)
    return next((match[1] for text in texts if (match := pattern.search(text))), None)


# ── the report ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _report(
    goal: str, directory: str | None, sections: dict[str, str], cited: Sequence[Citation], held: set[str],
    failure: str | None, unread: int = 0,
) -> str:  # fmt: skip
    """The survey as Markdown, with no citation in it but those that were found to hold."""
    parts = [
        f"{HEADING}{f' of {code_span(directory)}' if directory else ''}",
        f"> {NO_MODEL}",
        f"Goal: {_quoted(goal)}",
    ]
    for name, text in sections.items():
        parts += [f"## {survey.QUESTIONS[name][0]}", keep(text, held).strip()]
    parts += ["## Verification", _verification(cited, held, failure)]
    if unread:
        parts.append(f"{unread} messages came while the survey ran. The offline model cannot act on them.")
    return "\n\n".join(parts)


def _verification(cited: Sequence[Citation], held: set[str], failure: str | None) -> str:
    if not cited:
        return "Nothing was cited, so nothing was checked."
    kept = sum(citation.key in held for citation in cited)
    problem = f" ({failure}, so the rest counts as not verified)" if failure else ""
    dropped = f"{len(cited) - kept} did not and were left out{problem}" if kept < len(cited) else "none was left out"
    return f"{len(cited)} citations (`file:line`) were checked by reading each line again: {kept} held, {dropped}."


def _quoted(goal: str) -> str:
    return code_span(" ".join(goal.split())[:500] or "(none)")
