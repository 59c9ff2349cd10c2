"""`Summaries`: what a model is asked for when one agent's conversation no longer fits, each by the means it has.

By the server's on-demand compaction where thinking is bound; else by the agent's own model on the agent's own prefix, so
that the cache serves it; else, where nothing is cached, by a small model on plain text (`context/collapse.py: means_for`).
A call that summarises never compacts itself, and what it summarises is sent as it was sent before, user context included.
"""

from __future__ import annotations

from collections.abc import Sequence

from worker_agent import events as e
from worker_agent import messages as m
from worker_agent import prompts
from worker_agent.api.client import ModelInfo, ModelRequest
from worker_agent.api.retry import RetrySchedule
from worker_agent.context import autocompact
from worker_agent.context.collapse import Means, Stretch, means_for
from worker_agent.context.tokens import effective_window, estimate
from worker_agent.context.values import Collapse
from worker_agent.context.view import with_user_context, without_thinking
from worker_agent.errors import ErrorKind, ModelError
from worker_agent.loop.agent import Agent
from worker_agent.messages import Message, Usage
from worker_agent.session.plain_text import as_text
from worker_agent.structs import replace

MAX_TRIES = 3
COLLAPSE_OUTPUT = 8_000  # tokens
_TOO_LONG = frozenset({ErrorKind.PROMPT_TOO_LONG, ErrorKind.REQUEST_TOO_LARGE})


class Summaries:
    """Of one agent."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._has_small_model = True

    async def of(self, past: tuple[Message, ...], info: ModelInfo, instructions: str) -> tuple[str | Message, Usage] | None:
        """A summary of `past` in text, or as the server's block in a message; and what it used. None if there is none."""
        if means_for(info) is Means.SERVER and (done := await self._by_server(past, info, instructions)):
            return done
        prompt = prompts.load("compact")
        if instructions:
            prompt += f"\n\nWhat the person asks of this summary: {instructions}"
        asked = m.user(prompt, kind="meta", meta=True)
        as_text = False
        for _ in range(MAX_TRIES):
            try:
                request = self._plain(past, asked, info) if as_text else self.request((*past, asked), info)
                answer = await self._call(request)
            except ModelError as error:
                if error.kind in _TOO_LONG:
                    past = tuple(map(without_thinking, autocompact.drop_oldest(past, _share_too_much(error))))
                elif error.kind is not ErrorKind.INVALID_REQUEST or as_text:
                    return None
                as_text = as_text or error.kind is ErrorKind.INVALID_REQUEST
                if not past:
                    return None
                continue
            if text := answer.text.strip():
                return text, answer.usage or Usage()
            as_text = True  # it called tools instead
        return None

    async def _by_server(
        self, past: tuple[Message, ...], info: ModelInfo, instructions: str, *, spare: bool = False
    ) -> tuple[Message, Usage] | None:
        """The server's compaction of `past`; None where it cannot: the client's own summary takes over."""
        try:
            answer = await self._call(replace(self.request(past, info), compact=instructions), spare=spare)
        except ModelError:
            return None
        block = next((b for b in answer.content if b.get("type") == "compaction" and b.get("content")), None)
        if block is None:
            return None
        return replace(answer, content=(block,), wire=b"", kind="summary", meta=True), answer.usage or Usage()

    def request(self, view: tuple[Message, ...], info: ModelInfo, purpose: str = "summary") -> ModelRequest:
        """A call on the agent's own prefix: the same bytes in front, so that the cache and the signatures hold."""
        return ModelRequest(
            model=info.id,
            max_tokens=min(self._agent.settings.context.summary_reserve, info.max_output),
            system=self._agent.system,
            tools=self._agent.registry.specs(),
            messages=with_user_context(view, self._agent.user_context),
            conversation=self._conversation(purpose, view),
            effort=self._agent.effort,
            single=True,
        )

    def _plain(self, messages: Sequence[Message], asked: Message, info: ModelInfo) -> ModelRequest:
        """A call that knows the messages as plain text only: any endpoint takes it, and thinking has no part in it."""
        room = int(effective_window(info, self._agent.settings.context) * info.chars_per_token * 0.8)
        text = as_text(messages, room) or "(nothing)"
        return ModelRequest(
            model=info.id,
            max_tokens=min(COLLAPSE_OUTPUT, info.max_output),
            system=(),
            tools=(),
            messages=(m.user(text, kind="meta", meta=True), asked),
            conversation=self._conversation("text", messages),
            single=True,
        )

    def _conversation(self, purpose: str, messages: Sequence[Message]) -> str:
        last = messages[-1].id if messages else "nothing"
        return f"{self._agent.tool_context.agent_id}/{purpose}/{last}"

    async def collapse(self, stretch: Stretch, info: ModelInfo) -> Collapse | None:
        """What stands for a stretch, made beside the agent's own turns. Raises `ModelError`."""
        if stretch.means is Means.SERVER:
            done = await self._by_server(stretch.messages, info, "", spare=True)
            return stretch.collapse("", done[0].content[0]) if done else None
        prompt = prompts.load("collapse")
        if stretch.means is Means.PREFIX:
            prompt = f"{_which(stretch)}\n\n{prompt}"
            asked = m.user(prompt, kind="meta", meta=True)
            request = self.request((*stretch.before, *stretch.messages, asked), info, "collapse")
            request = replace(request, max_tokens=min(COLLAPSE_OUTPUT, info.max_output))
            text = (await self._call(request, spare=True)).text.strip()
            return stretch.collapse(text) if text else None
        text = (await self._by_small_model(stretch, m.user(prompt, kind="meta", meta=True), info)).text.strip()
        return stretch.collapse(text) if text else None

    async def _by_small_model(self, stretch: Stretch, asked: Message, info: ModelInfo) -> Message:
        """The small model, or the agent's own where the endpoint has no such model."""
        if self._has_small_model:
            small = await self._agent.client.model_info(self._agent.settings.small_model)
            try:
                return await self._call(self._plain(stretch.messages, asked, small), spare=True)
            except ModelError as error:
                if error.kind is not ErrorKind.NOT_FOUND:
                    raise
                self._has_small_model = False
        return await self._call(self._plain(stretch.messages, asked, info), spare=True)

    async def _call(self, request: ModelRequest, *, spare: bool = False) -> Message:
        """One summarising call with the same schedule as any other; `spare`: beside the agent's own turns."""
        schedule = RetrySchedule(self._agent.settings.retry, self._agent.rng)
        tokens = estimate(request.messages, 4.0)
        return await self._agent.caller().ask(request, tokens, purpose=e.Purpose.SUMMARY, schedule=schedule, spare=spare)


def _share_too_much(error: ModelError) -> float:
    """The share of a prompt to leave out, by what the refusal says of its size."""
    if not error.limit or not error.actual or error.actual <= error.limit:
        return 0.2
    return min(0.9, max(0.2, 1.05 - error.limit / error.actual))


def _which(stretch: Stretch) -> str:
    """Which part of the conversation is meant, where all of it is sent."""
    if not any(message.kind == "answer" for message in stretch.before):
        return "Only your own steps above and their results are meant below, all of them, earlier summaries included."
    return (
        f"Only the latest part of the conversation is meant below: your last {stretch.turns} answers and what their"
        " calls brought. What stands before them stays as it is; leave it out."
    )
