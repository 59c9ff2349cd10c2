"""One budget for the whole tree of agents: held before a call, settled after it.

1. Before each call an agent holds the most the call can cost: its prompt, all of it uncached, and its output cap. So
   the sum of what is spent, held and kept back never passes the limit, however many agents call at once.
2. For each agent a *report* is kept back: its prompt and at most `REPORT_TOKENS` of output. So the end of the budget
   still delivers what was found. One that waits for its first call has its report kept back, too.
3. What does not fit now may fit when others settle for less, or end and free what was kept back for them: the call
   waits for them, also while they run tools. When nobody is left who could give anything back (all others wait
   themselves, or idle like a coordinator between its turns), who waited longest gets what is left: the call with a
   smaller output cap beside its report, else the report itself as its last call. If no one's report fits, who came
   last is refused (`ErrorKind.BUDGET`). A coordinator comes after its workers: its report is to hold theirs.
4. At 80 % each agent is told, once.
5. Where other processes work on the same session, this one spends of a *share* that is set apart for it (`Shares`), and asks for
   more when that is used up: not once for each call. What it does not need it gives back. So the limit holds over all of them, and rule 3
   counts them all: nothing is refused while another process may give something back.

Two currencies, each with its own limit: USD, and output tokens. Unlimited means that nothing is held.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from bisect import bisect_left
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from worker_agent.api.client import ModelRequest
from worker_agent.errors import ErrorKind, ModelError
from worker_agent.messages import Usage

NOTICE_SHARE = 0.8
SLICES = 20  # of a limit: what a process asks for beside what it needs now
ASK_AGAIN = 0.5  # seconds after a share could not grow, unless something was written meanwhile
REPORT_TOKENS = 2048  # of output: what is kept back for a report, and the least that a call is worth
Price = Callable[[str, Usage], float | None]


class Amount(Struct, frozen=True):
    usd: float = 0.0
    tokens: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.usd + other.usd, self.tokens + other.tokens)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.usd - other.usd, self.tokens - other.tokens)

    def within(self, limit: Limit) -> bool:
        # Sums of prices are binary fractions: a billionth of a dollar is no overdraft.
        fits_usd = limit.usd is None or self.usd <= limit.usd + 1e-9
        return fits_usd and (limit.tokens is None or self.tokens <= limit.tokens)


class Limit(Struct, frozen=True):
    usd: float | None = None
    tokens: int | None = None

    @property
    def is_set(self) -> bool:
        return self.usd is not None or self.tokens is not None

    def share(self, amount: Amount) -> float:
        """The larger share of the two limits that `amount` is."""
        shares = [amount.usd / self.usd if self.usd else 1.0] if self.usd is not None else []
        shares += [amount.tokens / self.tokens if self.tokens else 1.0] if self.tokens is not None else []
        return max(shares, default=0.0)


class Granted(Struct, frozen=True):
    """What a process may spend from here on; what all have spent; whether another may give some of its share back."""

    share: Amount
    total: Amount
    others_busy: bool


class Shares(Protocol):
    """What is set apart for this process of a budget that others spend, too."""

    def take(self, wanted: Amount, busy: bool) -> Granted:
        """Have a share of `wanted`, or as much as there is. Blocks for one transaction."""
        ...

    def keep(self, amount: Amount, busy: bool) -> None:
        """Have a share of only `amount` from now on; without waiting."""
        ...


class _Wish(Struct, kw_only=True, eq=False):
    """A call that waits to be granted. `whole` is what it may cost as asked, `report` a report in its place."""

    agent: AgentBudget
    request: ModelRequest
    prompt_tokens: int
    whole: Amount
    report_cap: int
    report: Amount
    granted: asyncio.Future[CallBudget]


class _Grant(Struct, frozen=True):
    """What may be held now: `cap` None is the output cap that was asked for."""

    amount: Amount
    cap: int | None = None
    last: bool = False


class TreeBudget:
    """The account. `spent` is what is settled, `held` what calls under way may still cost. Belongs to one loop."""

    def __init__(
        self,
        price: Price,
        limit: Limit,
        *,
        spent: Amount = Amount(),
        shares: Shares | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """With `shares` what was `spent` before is known there."""
        self._shares = shares if limit.is_set else None
        self._now = now
        self._share = Amount()  # may be spent from here on, of it what is held
        self._elsewhere = Amount()  # spent by others, as far as known
        self._others_busy = False
        self._was_busy = False
        self._asks_again = 0.0
        self.limit = limit
        self.spent = spent
        self.held = Amount()
        self._price = price
        self._under_way = 0
        self._kept_back: dict[AgentBudget, Amount] = {}
        self._kept = Amount()  # their sum
        self._waiting: list[_Wish] = []

    def agent(self, *, idles: bool = False) -> AgentBudget:
        """The budget port of one agent; `close` it when its run ends. `idles`: between its calls nobody waits for what
        it keeps back, because it may itself wait for the others."""
        return AgentBudget(self, idles)

    def amount(self, model: str, usage: Usage) -> Amount:
        if self.limit.usd is None:
            return Amount(0.0, usage.output)
        price = self._price(model, usage)
        if price is None:
            raise ModelError(ErrorKind.BUDGET, f"the price of {model} is unknown, so a budget in USD cannot hold")
        return Amount(price, usage.output)

    def worst_case(self, model: str, prompt_tokens: int, output: int) -> Amount:
        plain = self.amount(model, Usage(input=prompt_tokens, output=output))
        written = self.amount(model, Usage(cache_write_5m=prompt_tokens, output=output))
        return max(plain, written, key=lambda amount: amount.usd)

    async def hold(self, agent: AgentBudget, request: ModelRequest, prompt_tokens: int) -> CallBudget:
        """Hold what the call may cost at most, waiting for it if need be. Raises `ModelError` of kind BUDGET."""
        cap = min(request.max_tokens, REPORT_TOKENS)
        wish = _Wish(
            agent=agent,
            request=request,
            prompt_tokens=prompt_tokens,
            whole=self.worst_case(request.model, prompt_tokens, request.max_tokens),
            report_cap=cap,
            report=self.worst_case(request.model, prompt_tokens, cap),
            granted=asyncio.get_running_loop().create_future(),
        )
        if self._fits(agent, wish.report):
            self._keep_back(agent, wish.report)
        agent.note_need(wish.whole + wish.report)
        self._waiting.append(wish)
        self._serve()
        try:
            return await wish.granted
        except asyncio.CancelledError:
            self._withdraw(wish)
            raise

    def spare(self, request: ModelRequest, prompt_tokens: int) -> CallBudget:
        """Hold what nobody else needs, or raise `ModelError` of kind BUDGET at once."""
        whole = self.worst_case(request.model, prompt_tokens, request.max_tokens)
        if self._waiting or not self._may_spend(self.held + self._kept + whole):
            raise ModelError(ErrorKind.BUDGET, self._refusal())
        self.held += whole
        self._under_way += 1
        return CallBudget(self, whole, under_way=True)

    def settle(self, held: Amount, used: Amount) -> None:
        self.held -= held
        self.spent += used
        self._under_way -= 1
        if self._shares is None:
            self._serve()
            return
        self._share -= used
        # What was used is booked after this: a share is asked for when the ledger knows of it.
        asyncio.get_running_loop().call_soon(self._serve)

    def news(self) -> None:
        """Another process may have given something back."""
        if self._waiting:
            self._asks_again = 0.0
            self._serve()

    @property
    def used_share(self) -> float:
        """The larger share of the two limits that all processes have spent, as far as this one knows."""
        return self.limit.share(self.spent + self._elsewhere)

    def release(self, agent: AgentBudget) -> None:
        self._keep_back(agent, Amount())
        self._serve()

    def has_room(self, agent: AgentBudget) -> bool:
        """Whether a call like its last one would be granted at once."""
        return self._fits(agent, agent.needs)

    # ── who gets what ──────────────────────────────────────────────────────────────────────────────────────────────

    def _serve(self) -> None:
        """Grant what fits. Where nobody gives anything back any more, grant what is left; refuse where nothing is."""
        self._grant_all()
        if self._shares is not None:
            self._give_back(self._shares)

    def _grant_all(self) -> None:
        while self._waiting:
            self._waiting = [wish for wish in self._waiting if not wish.granted.cancelled()]
            for wish in tuple(self._waiting):
                self._grant(wish, self._whole(wish))
            in_turn = sorted(self._waiting, key=lambda wish: wish.agent.idles)
            if (
                self._may_settle()
                or self._may_get_from_others()
                or any(self._grant(wish, self._rest(wish)) for wish in in_turn)
            ):
                return
            if self._waiting:
                self._refuse(self._waiting.pop())

    def _whole(self, wish: _Wish) -> _Grant | None:
        return _Grant(wish.whole) if self._fits(wish.agent, wish.whole + wish.report) else None

    def _rest(self, wish: _Wish) -> _Grant | None:
        """The largest call that fits beside the report, else the report."""

        def is_too_much(cap: int) -> bool:
            return not self._fits(wish.agent, self._cost(wish, cap) + wish.report)

        caps = range(REPORT_TOKENS, wish.request.max_tokens)
        if count := bisect_left(caps, True, key=is_too_much):
            return _Grant(self._cost(wish, caps[count - 1]), caps[count - 1])
        return _Grant(wish.report, wish.report_cap, last=True) if self._fits(wish.agent, wish.report) else None

    def _grant(self, wish: _Wish, grant: _Grant | None) -> bool:
        if grant is None:
            return False
        self.held += grant.amount
        self._under_way += 1
        self._keep_back(wish.agent, Amount() if grant.last else wish.report)
        self._waiting.remove(wish)
        call = CallBudget(
            self,
            grant.amount,
            agent=None if grant.last else wish.agent,
            max_tokens=grant.cap,
            last_call=grant.last,
            under_way=True,
        )
        wish.granted.set_result(call)
        return True

    def _refuse(self, wish: _Wish) -> None:
        self._keep_back(wish.agent, Amount())
        wish.granted.set_exception(ModelError(ErrorKind.BUDGET, self._refusal()))

    def _withdraw(self, wish: _Wish) -> None:
        """Who wished is gone; what was granted at the same moment goes back."""
        if not wish.granted.cancelled() and wish.granted.exception() is None:
            wish.granted.result().settle(wish.request.model, None)
        self._serve()

    def _keep_back(self, agent: AgentBudget, amount: Amount) -> None:
        self._kept += amount - self._kept_back.pop(agent, Amount())
        if amount != Amount():
            self._kept_back[agent] = amount

    def _may_settle(self) -> bool:
        """Whether a call is under way, or somebody at work will settle or leave."""
        waiting = {wish.agent for wish in self._waiting}
        return bool(self._under_way) or any(not who.idles and who not in waiting for who in self._kept_back)

    def _may_get_from_others(self) -> bool:
        """Whether another process may give something back: it says so when it does."""
        if self._shares is not None and self._was_busy:
            self._was_busy = False
            self._shares.keep(self._share, False)  # this one gives nothing back any more: the other is not to wait for it
        return self._shares is not None and self._others_busy

    def _may_spend(self, amount: Amount) -> bool:
        """Whether `amount` fits beside what is spent; a share grows for it, if it can."""
        if self._shares is None:
            return (self.spent + amount).within(self.limit)
        if not amount.within(self._bound()) and self._now() >= self._asks_again:
            self._grow(self._shares, amount)
        return amount.within(self._bound())

    def _bound(self) -> Limit:
        """The share, in the currencies of the limit."""
        return Limit(
            None if self.limit.usd is None else self._share.usd, None if self.limit.tokens is None else self._share.tokens
        )

    def _grow(self, shares: Shares, amount: Amount) -> None:
        got = shares.take(amount + self._slice(), True)  # it is for a call: what comes of it others must wait for
        self._was_busy = True
        self._share, self._others_busy = got.share, got.others_busy
        self._elsewhere = got.total - self.spent
        if not amount.within(self._bound()):
            self._asks_again = self._now() + ASK_AGAIN
            with contextlib.suppress(RuntimeError):  # no loop: nobody waits
                asyncio.get_running_loop().call_later(ASK_AGAIN, self.news)

    def _give_back(self, shares: Shares) -> None:
        """Keep what is held and kept back, and a slice while something is at work."""
        busy, needed = self._may_settle(), self.held + self._kept
        if busy:
            needed += self._slice()
        left = self._share - needed
        is_much = left.usd > self._slice().usd or left.tokens > self._slice().tokens
        if busy == self._was_busy and not (is_much or (not busy and left != Amount() and not self._waiting)):
            return
        if not self._waiting and (is_much or not busy):
            self._share = Amount(min(self._share.usd, needed.usd), min(self._share.tokens, needed.tokens))
        self._was_busy = busy
        shares.keep(self._share, busy)

    def _slice(self) -> Amount:
        return Amount((self.limit.usd or 0.0) / SLICES, (self.limit.tokens or 0) // SLICES)

    def _cost(self, wish: _Wish, cap: int) -> Amount:
        return self.worst_case(wish.request.model, wish.prompt_tokens, cap)

    def _fits(self, agent: AgentBudget, amount: Amount) -> bool:
        """Whether `amount` fits beside everything but what is kept back for `agent` itself."""
        others = self._kept - self._kept_back.get(agent, Amount())
        return self._may_spend(self.held + others + amount)

    def _refusal(self) -> str:
        limit, spent = self.limit, self.spent + self._elsewhere
        parts = [f"${spent.usd:.4f} of ${limit.usd:.4f}"] if limit.usd is not None else []
        parts += [f"{spent.tokens:,} of {limit.tokens:,} output tokens"] if limit.tokens is not None else []
        return f"the budget is used up: {' and '.join(parts)}; the next call might cost more than is left"


class AgentBudget:
    """The `Budget` port of one agent."""

    def __init__(self, tree: TreeBudget, idles: bool = False) -> None:
        self.idles = idles
        self.needs = Amount()  # of its last call as asked, with the report beside it
        self._tree = tree
        self._told = False

    def note_need(self, amount: Amount) -> None:
        """What its newest call asks for."""
        self.needs = amount

    async def reserve(self, request: ModelRequest, prompt_tokens: int) -> CallBudget:
        """Hold what this call may cost at most. Raises `ModelError` of kind BUDGET when nothing is left at all."""
        tree = self._tree
        if not tree.limit.is_set:
            return CallBudget(tree, Amount())
        return await tree.hold(self, request, prompt_tokens)

    def spare(self, request: ModelRequest, prompt_tokens: int) -> CallBudget:
        """Hold it only if it fits now beside what is kept back for reports, this agent's own too, and nobody waits.
        Raises `ModelError` of kind BUDGET."""
        tree = self._tree
        return tree.spare(request, prompt_tokens) if tree.limit.is_set else CallBudget(tree, Amount())

    @property
    def has_room(self) -> bool:
        """Whether a call like the last one would be granted at once."""
        return self._tree.has_room(self)

    def close(self) -> None:
        """The agent calls no more: what was kept back for its last call is free for others."""
        self._tree.release(self)

    def take_notice(self) -> str | None:
        """What the agent is to be told, the first time that there is something."""
        share = self._tree.used_share
        if self._told or share < NOTICE_SHARE:
            return None
        self._told = True
        return f"{share:.0%} of the budget of this session is used. Finish what matters most and report soon."


class CallBudget:
    """The `Reservation` of one call."""

    def __init__(
        self,
        tree: TreeBudget,
        held: Amount,
        *,
        agent: AgentBudget | None = None,
        max_tokens: int | None = None,
        last_call: bool = False,
        under_way: bool = False,
    ) -> None:
        self._agent = agent  # who is told when much is used
        self.max_tokens = max_tokens
        self.last_call = last_call
        self._tree = tree
        self._held = held
        self._open = under_way

    @property
    def notice(self) -> str | None:
        """What the agent must be told now, once: who reads it tells it."""
        return self._agent.take_notice() if self._agent else None

    def settle(self, model: str, usage: Usage | None) -> None:
        """Book what was used (None: nothing came back) and give back the rest. A second call does nothing. An answer whose
        endpoint does not count is taken at its worst: all that was held."""
        if not self._open:
            return
        self._open = False
        used = self._held if usage is not None else Amount()
        self._tree.settle(self._held, self._tree.amount(model, usage) if usage is not None and usage.total else used)
