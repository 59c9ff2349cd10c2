"""Sums of usage and cost of one session. `ModelCalled` comes once per call, with its last cumulative numbers, so that
nothing is counted twice however many blocks an answer has."""

from __future__ import annotations

from collections.abc import Callable

from worker_agent.events import ModelCalled
from worker_agent.messages import Usage

Pricing = Callable[[str, Usage], float | None]


class UsageSum:
    """`cost_usd` is None as soon as one used model has no known price, or one answer was not counted: unknown is never shown
    as 0."""

    def __init__(self, price: Pricing) -> None:
        self._price = price
        self.api_seconds = 0.0
        self.by_model: dict[str, Usage] = {}
        self.cost_usd: float | None = 0.0

    @property
    def total(self) -> Usage:
        return sum(self.by_model.values(), Usage())

    def add(self, call: ModelCalled) -> None:
        self.api_seconds += call.duration
        if call.response_id is None:  # it never began
            return
        self.by_model[call.model] = self.by_model.get(call.model, Usage()) + call.usage
        cost = self._price(call.model, call.usage)
        self.cost_usd = None if cost is None or self.cost_usd is None else self.cost_usd + cost
