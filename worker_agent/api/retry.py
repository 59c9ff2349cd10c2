"""When a failed model call is tried again: one schedule, no I/O, no clock.

0.5 s doubling to 32 s with up to a quarter of jitter, at most ten tries; `retry-after` wins over the doubling. Jitter
is only ever added, so that a wait the server asked for is kept. What the schedule cannot mend it does not try: an
error that is not retryable, a wait longer than anybody waits, a deadline that would be over.
"""

from __future__ import annotations

import random

from worker_agent.config import RetrySettings, jittered
from worker_agent.errors import ModelError


class RetrySchedule:
    def __init__(self, settings: RetrySettings, rng: random.Random | None = None) -> None:
        self._settings = settings
        self._rng = rng or random.Random()

    def delay(self, error: ModelError, attempt: int, *, deadline_left: float | None = None) -> float | None:
        """Seconds to wait before the next try; None to give up. `attempt` is the number of the try that failed, from 1;
        `deadline_left` are the seconds the call may still take."""
        if attempt >= self._settings.max_tries or not error.retryable:
            return None
        if error.retry_after is not None and error.retry_after > self._settings.max_retry_after:
            return None
        wait = self._asked(error.retry_after) if error.retry_after else self._doubled(attempt)
        return None if deadline_left is not None and wait >= deadline_left else wait

    def _asked(self, seconds: float) -> float:
        """The server's wait, and jitter of at most a share of our longest own wait."""
        spread = self._settings.jitter * min(seconds, self._settings.max_delay)
        return seconds + spread * self._rng.random()

    def _doubled(self, attempt: int) -> float:
        exponent = min(attempt - 1, 60)  # a float overflows long after any cap
        wait = min(self._settings.max_delay, self._settings.first_delay * 2.0**exponent)
        return jittered(wait, self._settings.jitter, self._rng)
