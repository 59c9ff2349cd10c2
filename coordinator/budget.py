"""One budget for the whole tree of agents: held before a call, settled after it.

1. Before each call an agent holds the most the call can cost: its prompt, all of it uncached, and its output cap. So
   the sum of what is spent and what is held never passes the limit, however many agents call at once.
2. An agent that calls normally also keeps back the price of one more such call: its last, tool-free one, to report
   with. So the end of the budget still delivers what was found.
3. What does not fit now may fit when others settle for less, or end and free what was kept back for them: the call
   waits for them, also while they run tools. When nobody is left who could give anything back (all others wait
   themselves, or idle like a coordinator between its turns), it becomes the agent's last call; if not even that fits,
   it is refused (`ErrorKind.BUDGET`).
4. At 80 % each agent is told, once.

Two currencies, each with its own limit: USD, and output tokens. Unlimited means that nothing is held.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from worker_agent.api.client import ModelRequest
from worker_agent.errors import ErrorKind, ModelError
from worker_agent.messages import Usage

NOTICE_SHARE = 0.8
Price = Callable[[str, Usage], float | None]


@dataclass(frozen=True, slots=True)
class Amount:
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


@dataclass(frozen=True, slots=True)
class Limit:
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


class TreeBudget:
    """The account. `spent` is what is settled, `held` what calls under way may still cost. Belongs to one loop."""

    def __init__(self, price: Price, limit: Limit, *, spent: Amount = Amount()) -> None:
        self.limit = limit
        self.spent = spent
        self.held = Amount()
        self._price = price
        self._under_way = 0
        self._kept_back: dict[AgentBudget, Amount] = {}
        self._waiting: set[AgentBudget] = set()
        self._changed = asyncio.Event()

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

    def worst_case(self, request: ModelRequest, prompt_tokens: int) -> Amount:
        plain = self.amount(request.model, Usage(input=prompt_tokens, output=request.max_tokens))
        written = self.amount(request.model, Usage(cache_write_5m=prompt_tokens, output=request.max_tokens))
        return max(plain, written, key=lambda amount: amount.usd)

    def hold(self, agent: AgentBudget, amount: Amount, *, last: bool) -> bool:
        """Hold `amount` (and keep as much back for the agent's last call, unless this is it) if it fits."""
        others = sum((kept for who, kept in self._kept_back.items() if who is not agent), Amount())
        wanted = self.spent + self.held + others + amount
        if not (wanted if last else wanted + amount).within(self.limit):
            return False
        self.held += amount
        self._under_way += 1
        self._kept_back[agent] = Amount() if last else amount
        return True

    def settle(self, held: Amount, used: Amount) -> None:
        self.held -= held
        self.spent += used
        self._under_way -= 1
        self._wake()

    def release(self, agent: AgentBudget) -> None:
        if self._kept_back.pop(agent, None) is not None:
            self._wake()

    async def wait_for_others(self, agent: AgentBudget) -> bool:
        """Wait until somebody settles or leaves; False at once when nobody is left who could."""
        at_work = (who for who, kept in self._kept_back.items() if kept != Amount() and not who.idles)
        if not self._under_way and not {*at_work} - self._waiting - {agent}:
            return False
        self._waiting.add(agent)
        try:
            await self._changed.wait()
        finally:
            self._waiting.discard(agent)
        return True

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class AgentBudget:
    """The `Budget` port of one agent."""

    def __init__(self, tree: TreeBudget, idles: bool = False) -> None:
        self.idles = idles
        self._tree = tree
        self._told = False

    async def reserve(self, request: ModelRequest, prompt_tokens: int) -> CallBudget:
        """Hold what this call may cost at most. Raises `ModelError` of kind BUDGET when nothing is left at all."""
        tree = self._tree
        if not tree.limit.is_set:
            return CallBudget(tree, Amount())
        worst = tree.worst_case(request, prompt_tokens)
        while not tree.hold(self, worst, last=False):
            if await tree.wait_for_others(self):
                continue
            if tree.hold(self, worst, last=True):
                return CallBudget(tree, worst, last_call=True, under_way=True)
            raise ModelError(ErrorKind.BUDGET, self._refusal())
        return CallBudget(tree, worst, notice=self._notice(), under_way=True)

    def close(self) -> None:
        """The agent calls no more: what was kept back for its last call is free for others."""
        self._tree.release(self)

    def _notice(self) -> str | None:
        share = self._tree.limit.share(self._tree.spent)
        if self._told or share < NOTICE_SHARE:
            return None
        self._told = True
        return f"{share:.0%} of the budget of this session is used. Finish what matters most and report soon."

    def _refusal(self) -> str:
        limit, spent = self._tree.limit, self._tree.spent
        parts = [f"${spent.usd:.4f} of ${limit.usd:.4f}"] if limit.usd is not None else []
        parts += [f"{spent.tokens:,} of {limit.tokens:,} output tokens"] if limit.tokens is not None else []
        return f"the budget is used up: {' and '.join(parts)}; the next call might cost more than is left"


class CallBudget:
    """The `Reservation` of one call."""

    def __init__(
        self,
        tree: TreeBudget,
        held: Amount,
        *,
        notice: str | None = None,
        last_call: bool = False,
        under_way: bool = False,
    ) -> None:
        self.notice = notice
        self.last_call = last_call
        self._tree = tree
        self._held = held
        self._open = under_way

    def settle(self, model: str, usage: Usage | None) -> None:
        """Book what was used (None: nothing came back) and give back the rest. A second call does nothing."""
        if not self._open:
            return
        self._open = False
        self._tree.settle(self._held, self._tree.amount(model, usage) if usage else Amount())
