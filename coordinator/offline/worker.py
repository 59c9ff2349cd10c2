"""One agent with the tools in its own hands: a research or verification worker, or a whole survey alone.

What to do next follows from the messages since the task that is being worked at.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from msgspec import Struct, field

from coordinator.offline.citations import citations
from coordinator.offline.conversation import PLAIN, is_prompt, text_of
from coordinator.offline.plan import Call, Plan, Results, together
from coordinator.offline.plans import verdicts_in, verify
from coordinator.offline.questions import QUESTIONS, plan_for, prompt_for
from coordinator.offline.report import report
from worker_agent.messages import Block, Message


class _Run(Struct):
    """The messages since the task that is being worked at: `rounds` are the calls asked for so far with their results.
    `report` is the final answer, if it was given; `after` is the last message that came behind it."""

    task: Message
    rounds: list[list[Block]] = field(default_factory=list)
    results: dict[str, str | None] = field(default_factory=dict)
    report: str | None = None
    after: Message | None = None

    def follow(self, message: Message) -> None:
        """Take in the next message."""
        if message.role == "assistant":
            if message.tool_uses:
                self.rounds.append(message.tool_uses)
            elif message.text and self.report is None:
                self.report = message.text
            return
        self.results |= {r["tool_use_id"]: None if r.get("is_error") else text_of(r) for r in message.tool_results}
        if not message.tool_results:
            self.after = message

    def replay(self, calls: Sequence[Call], number: int) -> Results:
        """The results of one round, matched by what was asked for, so that a gap in the history shifts nothing."""
        asked = {_key(use["name"], use["input"]): use["id"] for use in self.rounds[number]}
        return [self.results.get(asked.get(_key(call.name, call.input), "")) for call in calls]


def _key(name: str, input: object) -> str:
    return name + json.dumps(input, sort_keys=True)


def as_worker(messages: Sequence[Message]) -> tuple[str, Sequence[Call]]:
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
        if (is_prompt(message) or message.kind == "attachment") and _is_task(message, run):
            run = _Run(message)
        elif run is not None:
            run.follow(message)
    assert run is not None  # the first prompt is always a task
    return run


def _is_task(message: Message, run: _Run | None) -> bool:
    """A survey question always is; a person's prompt is if no survey runs and the one before was no worker's."""
    if plan_for(message.text) is not None:
        return True
    if not is_prompt(message):
        return False
    return run is None or (run.report is not None and plan_for(run.task.text) is None)


def _next(plan: Plan, run: _Run) -> tuple[Sequence[Call], str | None]:
    """Run `plan` over what the conversation holds: the calls it wants next, or its report."""
    try:
        calls = next(plan)
        for number in range(len(run.rounds)):
            calls = plan.send(run.replay(calls, number))
    except StopIteration as end:
        return [], end.value
    return calls, None


def _plan(task: Message) -> Plan:
    return plan_for(task.text) or _alone(task.text)


def _alone(goal: str) -> Plan:
    """The whole survey by one agent: all questions side by side, then every citation read again."""
    plans = {name: plan for name in QUESTIONS if (plan := plan_for(prompt_for(name, goal, None)))}
    reports = yield from together(plans)
    cited = citations("\n".join(reports.values()))
    verdicts = (yield from verify(cited)) if cited else ""
    return report(goal, None, reports, cited, verdicts_in(verdicts), None)


def _said(calls: Sequence[Call]) -> str:
    names = [call.name for call in calls]
    return ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))
