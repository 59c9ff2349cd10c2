"""The gates of one call, each by a fact, and their order."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.unit.tools.kit import NUMBER, Policy, context_in, use
from worker_agent.config import ToolSettings
from worker_agent.errors import ToolError, TurnOver
from worker_agent.events import PermissionDenial
from worker_agent.structs import replace
from worker_agent.tool_facts import Facts
from worker_agent.tools.base import (
    Allow,
    Ask,
    Decision,
    Deny,
    Input,
    Passthrough,
    PostToolUse,
    PreToolUse,
    Tool,
    ToolContext,
    ToolOutcome,
    ToolResult,
)
from worker_agent.tools.lifecycle import NOTHING, agrees, run_call


class Witness(Tool):
    """Writes down what happens to it; `does` is what its call gives back or raises."""

    facts = Facts(name="Witness")
    description = "Sees what happens."
    input_schema: ClassVar[dict[str, Any]] = NUMBER

    def __init__(self, does: Any = "done", *, valid: str | None = None, log: list[Any] | None = None) -> None:
        self.does, self.valid = does, valid
        self.log: list[Any] = [] if log is None else log

    async def validate_input(self, input: Input, context: ToolContext) -> str | None:
        self.log.append(("validate_input", input["n"]))
        return self.valid

    async def call(self, input: Input, context: ToolContext) -> ToolResult:
        self.log.append(("call", input["n"]))
        if isinstance(self.does, BaseException):
            raise self.does
        return self.does if isinstance(self.does, ToolResult) else ToolResult(self.does)


class Hooks:
    def __init__(self, pre: Any = None, post: Any = None, log: list[Any] | None = None, request: Any = None) -> None:
        self.pre, self.post, self.request = pre or PreToolUse(), post or PostToolUse(), request or Passthrough()
        self.log: list[Any] = [] if log is None else log

    async def pre_tool_use(self, tool_name: str, input: Input, tool_use_id: str) -> PreToolUse:
        self.log.append(("pre", tool_name, input, tool_use_id))
        return self._answer(self.pre)

    async def permission_request(self, tool_name: str, input: Input, suggestion: str | None) -> Any:
        return self._answer(self.request)

    async def post_tool_use(
        self, tool_name: str, input: Input, tool_use_id: str, result: ToolResult, duration: float
    ) -> PostToolUse:
        self.log.append(("post", result.content, result.is_error, tool_use_id))
        assert duration >= 0
        return self._answer(self.post)

    def _answer(self, answer: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer


class Person:
    def __init__(self, answer: Allow | Deny) -> None:
        self.answer = answer
        self.asked: list[str] = []

    async def ask(self, tool: Tool, input: Input, ask: Ask, context: ToolContext) -> Allow | Deny:
        self.asked.append(ask.reason)
        return self.answer


def run(
    tool: Tool | None, context: ToolContext, *, invalid: str | None = None, before_call: Any = None, **input: Any
) -> ToolOutcome:
    block = use("tu_1", tool.name if tool else "Nowhere", **(input or {"n": 1}))
    context = context.for_call("tu_1", lambda text: None)
    return asyncio.run(run_call(tool, block, context, invalid, before_call=before_call))


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    return context_in(tmp_path)


def failure(outcome: ToolOutcome) -> str:
    """What the model reads inside the tag."""
    content = outcome.block["content"]
    assert outcome.is_error and outcome.block["is_error"] is True
    assert content.startswith("<tool_use_error>") and content.endswith("</tool_use_error>")
    return content.removeprefix("<tool_use_error>").removesuffix("</tool_use_error>")


# ── the order ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_gates_come_in_the_order_of_the_specification(context: ToolContext) -> None:
    log: list[Any] = []
    tool = Witness(log=log)

    def decide(input: Input) -> Decision:
        log.append(("permissions", input["n"]))
        return Ask("a person must say")

    class Approves(Person):
        async def ask(self, tool: Tool, input: Input, ask: Ask, context: ToolContext) -> Allow | Deny:
            log.append(("person", input["n"]))
            return Allow()

    async def before_call(input: Input, read_only: bool) -> None:
        log.append(("before_call", read_only))

    context.permissions, context.approver, context.hooks = Policy(decide), Approves(Allow()), Hooks(log=log)
    outcome = run(tool, context, before_call=before_call)
    assert log == [
        ("validate_input", 1),
        ("pre", "Witness", {"n": 1}, "tu_1"),
        ("permissions", 1),
        ("person", 1),
        ("before_call", False),
        ("call", 1),
        ("post", "done", False, "tu_1"),
    ]
    assert outcome.block == {"type": "tool_result", "tool_use_id": "tu_1", "content": "done"}
    assert (outcome.name, outcome.is_error, outcome.read_only, outcome.synthetic) == ("Witness", False, False, False)


def test_each_gate_that_refuses_keeps_the_later_ones_from_being_asked(context: ToolContext) -> None:
    log: list[Any] = []

    def decide(input: Input) -> Decision:
        log.append("decide")
        return Deny("no")

    context.hooks, context.permissions = Hooks(log=log), Policy(decide)
    tool = Witness(log=log)
    run(tool, context, invalid="its JSON is cut")
    run(tool, context, wrong=1)
    assert log == []
    tool.valid = "not this"
    run(tool, context)
    assert log == [("validate_input", 1)]
    tool.valid = None
    context.hooks = Hooks(pre=PreToolUse(Deny("hook says no")), log=log)
    run(tool, context)
    assert "decide" not in log
    context.hooks = Hooks(log=log)
    run(tool, context)
    assert log[-1] == "decide" and ("call", 1) not in log


# ── known, whole, fitting ──────────────────────────────────────────────────────────────────────────────────────────


def test_an_unknown_tool_is_named(context: ToolContext) -> None:
    outcome = run(None, context)
    assert "no tool named 'Nowhere'" in failure(outcome) and outcome.read_only


def test_an_input_that_could_not_be_read_never_runs(context: ToolContext) -> None:
    tool = Witness()
    assert failure(run(tool, context, invalid="cut off: send less")) == "cut off: send less" and tool.log == []


@pytest.mark.parametrize(
    ("input", "words"),
    [
        ({"m": 1}, ["`n` is missing: expected integer", "unknown field `m`; the fields are n"]),
        ({"n": "10"}, ['`n`: expected integer, got string "10"']),
        ({"n": True}, ["`n`: expected integer, got boolean true"]),
        ({"n": None}, ["`n`: expected integer, got null"]),
        ({"n": '{"a": 1}'}, ["expected integer, got string", "send the value itself, not a string that holds JSON"]),
        ({"n": [1]}, ["`n`: expected integer, got array"]),
    ],
)
def test_a_misfit_names_field_expectation_and_what_came(context: ToolContext, input: dict[str, Any], words: list[str]) -> None:
    tool = Witness()
    text = failure(run(tool, context, **input))
    assert text.startswith("The input of Witness does not fit its schema:\n")
    assert all(word in text for word in words) and tool.log == []


def test_an_input_that_is_no_object_is_refused_in_words(context: ToolContext) -> None:
    block = {**use("tu_1", "Witness"), "input": ["n"]}
    outcome = asyncio.run(run_call(Witness(), block, context))
    assert "`input`: expected object, got array" in failure(outcome)


def test_what_the_tool_finds_wrong_itself_goes_to_the_model(context: ToolContext) -> None:
    assert failure(run(Witness(valid="n is taken"), context)) == "n is taken"


# ── hooks before the call ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_hook_denies_and_the_denial_is_listed(context: ToolContext) -> None:
    context.hooks = Hooks(pre=PreToolUse(Deny("not on fridays"), context=("look at the calendar",)))
    outcome = run(Witness(), context)
    assert failure(outcome) == "Permission denied: not on fridays"
    assert context.denials == [PermissionDenial("Witness", "tu_1", {"n": 1}, "not on fridays")]
    assert outcome.context == ("look at the calendar",)


def test_an_input_updated_by_a_hook_is_what_runs(context: ToolContext) -> None:
    context.hooks = Hooks(pre=PreToolUse(updated_input={"n": 7}))
    tool = Witness()
    run(tool, context)
    assert tool.log == [("validate_input", 1), ("validate_input", 7), ("call", 7)]
    assert context.permissions.asked == [{"n": 7}]  # type: ignore[attr-defined]


def test_an_input_updated_by_a_hook_passes_schema_and_validation_again(context: ToolContext) -> None:
    context.hooks = Hooks(pre=PreToolUse(updated_input={"n": "seven"}))
    assert 'got string "seven"' in failure(run(Witness(), context))

    class Fussy(Witness):
        async def validate_input(self, input: Input, context: ToolContext) -> str | None:
            return "7 is taken" if input["n"] == 7 else None

    context.hooks = Hooks(pre=PreToolUse(updated_input={"n": 7}))
    assert failure(run(Fussy(), context)) == "7 is taken"


@pytest.mark.parametrize("decision", [Deny("a rule denies"), Ask("an ask rule")])
def test_an_allow_of_a_hook_never_overrides_a_deny_or_ask_rule(context: ToolContext, decision: Decision) -> None:
    context.hooks, context.permissions = Hooks(pre=PreToolUse(Allow())), Policy(decision)
    tool = Witness()
    assert "Permission denied" in failure(run(tool, context)) and ("call", 1) not in tool.log


def test_an_allow_of_a_hook_lifts_what_only_the_mode_asks(context: ToolContext) -> None:
    context.hooks, context.permissions = Hooks(pre=PreToolUse(Allow())), Policy(Ask("the mode", by_rule=False))
    assert not run(Witness(), context).is_error


def test_an_ask_of_a_hook_asks_a_person_although_a_rule_allows(context: ToolContext) -> None:
    context.hooks, context.approver = Hooks(pre=PreToolUse(Ask("sure?"))), Person(Deny("no"))
    assert failure(run(Witness(), context)) == "Permission denied: no"
    assert context.approver.asked == ["sure?"]


@pytest.mark.parametrize(
    ("ask", "said", "runs"),
    [
        (Ask("the mode", by_rule=False), Allow(), True),
        (Ask("the mode", by_rule=False), Allow(updated_input={"n": 7}), True),
        (Ask("the mode", by_rule=False), Deny("never on a Friday"), False),
        (Ask("an ask rule"), Allow(), False),  # a person is asked, and there is none
        (Ask("an ask rule"), Deny("never on a Friday"), False),
    ],
)
def test_a_hook_answers_in_the_persons_place_but_lifts_no_rule(
    context: ToolContext, ask: Ask, said: Decision, runs: bool
) -> None:
    context.hooks, context.permissions = Hooks(request=said), Policy(ask)
    tool = Witness()
    outcome = run(tool, context)
    assert outcome.is_error is not runs
    if runs:
        assert ("call", 7 if isinstance(said, Allow) and said.updated_input else 1) in tool.log
    else:
        (denial,) = context.denials
        assert denial.needs_person is isinstance(said, Allow)


def test_no_hook_is_asked_about_what_a_rule_decides(context: ToolContext) -> None:
    context.hooks, context.permissions = Hooks(request=AssertionError("asked")), Policy(Allow())
    assert not run(Witness(), context).is_error


def test_a_hook_that_ends_the_turn_stops_the_call_and_says_so(context: ToolContext) -> None:
    context.hooks = Hooks(pre=TurnOver("the build is frozen"))
    tool = Witness()
    outcome = run(tool, context)
    assert (failure(outcome), outcome.stop) == ("the build is frozen", "the build is frozen")
    assert ("call", 1) not in tool.log


# ── permissions ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_denial_reaches_the_model_and_the_list(context: ToolContext) -> None:
    context.permissions = Policy(Deny("Bash(rm *) in settings.json"))
    assert failure(run(Witness(), context)) == "Permission denied: Bash(rm *) in settings.json"
    assert [d.reason for d in context.denials] == ["Bash(rm *) in settings.json"]


@pytest.mark.parametrize("decision", [Ask("no rule", suggestion="Witness(n:1)"), Passthrough()])
def test_without_a_person_what_would_ask_is_denied_and_listed(context: ToolContext, decision: Decision) -> None:
    context.permissions = Policy(decision)
    text = failure(run(Witness(), context))
    assert "nobody to ask (no rule" in text and len(context.denials) == 1
    assert ("A rule that would allow it: Witness(n:1)" in text) == isinstance(decision, Ask)


def test_a_person_allows_or_denies(context: ToolContext) -> None:
    context.permissions, context.approver = Policy(Ask("may it?")), Person(Allow())
    assert not run(Witness(), context).is_error and context.approver.asked == ["may it?"]
    context.approver = Person(Deny("rather not"))
    assert failure(run(Witness(), context)) == "Permission denied: rather not"


def test_an_input_updated_by_a_person_passes_schema_and_deny_rules_again(context: ToolContext) -> None:
    context.permissions = Policy(lambda input: Deny("never 13") if input["n"] == 13 else Ask("?"))
    context.approver = Person(Allow({"n": 5}))
    tool = Witness()
    assert not run(tool, context).is_error and tool.log[-1] == ("call", 5)
    context.approver = Person(Allow({"n": 13}))
    assert failure(run(tool, context)) == "Permission denied: never 13"
    context.approver = Person(Allow({"n": "x"}))
    assert "expected integer" in failure(run(tool, context))


# ── before the call ────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_intent_that_cannot_be_recorded_is_no_result_of_the_call(context: ToolContext) -> None:
    class Fenced(Exception):
        pass

    async def before_call(input: Input, read_only: bool) -> None:
        raise Fenced

    tool = Witness()
    with pytest.raises(Fenced):
        run(tool, context, before_call=before_call)
    assert ("call", 1) not in tool.log


def test_the_final_input_decides_whether_a_call_is_read_only(context: ToolContext) -> None:
    class Even(Witness):
        def is_read_only(self, input: Input) -> bool:
            return input["n"] % 2 == 0

    seen: list[bool] = []

    async def before_call(input: Input, read_only: bool) -> None:
        seen.append(read_only)

    context.hooks = Hooks(pre=PreToolUse(updated_input={"n": 2}))
    assert run(Even(), context, before_call=before_call).read_only and seen == [True]


def test_a_question_that_raises_counts_as_no() -> None:
    assert not agrees(lambda input: input["missing"], {})
    assert agrees(lambda input: True, {})


# ── how a call ends ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_tool_error_is_told_in_its_own_words(context: ToolContext) -> None:
    outcome = run(Witness(ToolError("no such file: a.py. Use Glob to find it.")), context)
    assert failure(outcome) == "no such file: a.py. Use Glob to find it." and outcome.stop is None


def test_a_turn_over_of_a_tool_stops_the_turn_after_its_result(context: ToolContext) -> None:
    outcome = run(Witness(TurnOver("the budget is used up", reason="budget")), context)
    assert failure(outcome) == outcome.stop == "the budget is used up"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KeyError("k"), "Witness failed: KeyError: 'k'"),
        (RuntimeError(), "Witness failed: RuntimeError"),
        (ValueError("first line\nsecond line\n  File x"), "Witness failed: ValueError: first line"),
        (ExceptionGroup("many", [ValueError("a")]), "Witness failed: ExceptionGroup: many (1 sub-exception)"),
        (RecursionError("too deep"), "Witness failed: RecursionError: too deep"),
    ],
)
def test_a_bug_of_a_tool_is_one_line_with_its_class_and_no_traceback(
    context: ToolContext, error: Exception, words: str
) -> None:
    assert failure(run(Witness(error), context)) == words


def test_a_failure_reaches_the_hooks_after_the_call(context: ToolContext) -> None:
    context.hooks = Hooks()
    run(Witness(ToolError("broken")), context)
    assert context.hooks.log[-1] == ("post", "broken", True, "tu_1")


def test_a_cancellation_passes(context: ToolContext) -> None:
    with pytest.raises(asyncio.CancelledError):
        run(Witness(asyncio.CancelledError()), context)


def test_a_result_that_is_none_at_all_is_a_bug_in_one_line(context: ToolContext) -> None:
    for content in (None, 5, [{"type": "text", "text": 7}], [None]):
        assert "Witness failed: " in failure(run(Witness(ToolResult(content)), context))  # type: ignore[arg-type]


def test_an_error_a_tool_returns_itself_keeps_its_form(context: ToolContext) -> None:
    outcome = run(Witness(ToolResult("out\n[Exit code 1]", is_error=True)), context)
    expected = {"type": "tool_result", "tool_use_id": "tu_1", "content": "out\n[Exit code 1]", "is_error": True}
    assert outcome.block == expected


# ── hooks after the call ───────────────────────────────────────────────────────────────────────────────────────────


def test_feedback_and_context_of_hooks_stand_beside_the_result(context: ToolContext) -> None:
    context.hooks = Hooks(pre=PreToolUse(context=("before",)), post=PostToolUse(("run the formatter",), ("after",)))
    outcome = run(Witness(), context)
    assert outcome.context == ("before", "run the formatter", "after") and outcome.block["content"] == "done"


def test_a_hook_replaces_the_output(context: ToolContext) -> None:
    context.hooks = Hooks(post=PostToolUse(updated_output="something else"))
    assert run(Witness(), context).block["content"] == "something else"


def test_a_hook_that_breaks_after_the_call_does_not_lose_the_result(context: ToolContext) -> None:
    context.hooks = Hooks(post=RuntimeError("oops"))
    outcome = run(Witness(), context)
    assert outcome.block["content"] == "done" and not outcome.is_error
    assert outcome.context == ("A hook after the call failed: Witness failed: RuntimeError: oops",)


def test_a_hook_that_ends_the_turn_after_the_call_keeps_the_result(context: ToolContext) -> None:
    context.hooks = Hooks(post=TurnOver("enough"))
    outcome = run(Witness(), context)
    assert (outcome.block["content"], outcome.stop, outcome.is_error) == ("done", "enough", False)


# ── the result ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_no_text_can_forge_the_end_of_an_error(context: ToolContext) -> None:
    text = failure(run(Witness(ToolError("a</tool_use_error>b< / Tool_Use_Error >c<tool_use_error>")), context))
    assert "<" not in text and text.count("&lt;") == 3


@pytest.mark.parametrize("content", ["", [], [{"type": "text", "text": ""}]])
def test_an_empty_result_says_so(context: ToolContext, content: Any) -> None:
    assert run(Witness(ToolResult(content)), context).block["content"] == NOTHING


def test_text_that_no_request_can_hold_is_cleaned(context: ToolContext) -> None:
    blocks = [{"type": "text", "text": "a\x00b\ud800"}, {"type": "image", "source": {}}]
    assert run(Witness(ToolResult("a\x00b\ud800c")), context).block["content"] == "a\ufffdb\ufffdc"
    assert run(Witness(ToolResult(blocks)), context).block["content"] == [
        {"type": "text", "text": "a\ufffdb\ufffd"}, {"type": "image", "source": {}}
    ]  # fmt: skip


def test_secrets_are_taken_out_of_results_errors_denials_and_hook_texts(context: ToolContext) -> None:
    context.redact = lambda text: text.replace("hunter22", "***")
    context.hooks = Hooks(post=PostToolUse(context=("hunter22",)))
    outcome = run(Witness("pw hunter22"), context)
    assert (outcome.block["content"], outcome.context) == ("pw ***", ("***",))
    assert failure(run(Witness(ToolError("hunter22")), context)) == "***"
    context.permissions = Policy(Deny("hunter22"))
    assert failure(run(Witness(), context)) == "Permission denied: ***" and context.denials[0].reason == "***"


def test_a_result_over_its_cap_goes_whole_to_a_file_and_the_same_bytes_come_again(context: ToolContext) -> None:
    text = "".join(f"line {n}\n" for n in range(20_000))
    one, two = run(Witness(text), context), run(Witness(text), context)
    path = context.spill_dir / "tu_1.txt"
    assert path.read_text() == text and one.block == two.block
    content = one.block["content"]
    assert str(path) in content and f"{len(text):,} characters" in content and len(content) < 3000
    assert text.startswith(content.partition("\n")[2]) and list(context.spill_dir.iterdir()) == [path]


def test_caps_come_from_the_tool_or_the_settings_and_none_means_no_cap(context: ToolContext) -> None:
    context = replace(context, settings=ToolSettings(result_cap=100))

    class Own(Witness):
        result_cap: int | None = 60_000

    class Free(Witness):
        result_cap: int | None = None

    assert "characters; these are the first" in run(Witness("x" * 101), context).block["content"]
    assert run(Witness("x" * 100), context).block["content"] == "x" * 100
    assert run(Own("x" * 60_000), context).block["content"] == "x" * 60_000
    assert run(Free("x" * 90_000), context).block["content"] == "x" * 90_000


def test_images_stay_when_the_text_beside_them_is_spilled(context: ToolContext) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    content = run(Witness(ToolResult([{"type": "text", "text": "x" * 60_000}, image])), context).block["content"]
    assert [b["type"] for b in content] == ["text", "image"] and len(content[0]["text"]) < 3000


def test_a_file_that_cannot_be_written_is_told(context: ToolContext) -> None:
    context.spill_dir.write_text("a file where a directory should be")
    content = run(Witness("x" * 60_000), context).block["content"]
    assert "could not be written to a file" in content and len(content) < 3000


def test_an_id_that_is_no_plain_word_cannot_leave_the_directory(context: ToolContext) -> None:
    block = use("../../etc/x", "Witness", n=1)
    asyncio.run(run_call(Witness("x" * 60_000), block, context))
    assert len(list(context.spill_dir.iterdir())) == 1
