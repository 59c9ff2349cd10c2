"""The schedule of tries."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_agent.api.retry import RetrySchedule
from worker_agent.config import RetrySettings
from worker_agent.errors import RETRYABLE, ErrorKind, ModelError


class Least(random.Random):
    def random(self) -> float:
        return 0.0


class Most(random.Random):
    def random(self) -> float:
        return 1.0


SETTINGS = RetrySettings()
LEAST = RetrySchedule(SETTINGS, Least())
MOST = RetrySchedule(SETTINGS, Most())


def error(kind=ErrorKind.OVERLOADED, **fields):
    return ModelError(kind, "x", **fields)


def test_the_wait_doubles_from_half_a_second_to_32_with_up_to_a_quarter_more():
    assert [LEAST.delay(error(), n) for n in range(1, 10)] == [0.5, 1, 2, 4, 8, 16, 32, 32, 32]
    assert [MOST.delay(error(), n) for n in (1, 9)] == [0.625, 40]


def test_the_tenth_try_is_the_last():
    assert LEAST.delay(error(), 9) is not None
    assert LEAST.delay(error(), 10) is None


@pytest.mark.parametrize("kind", ErrorKind)
def test_only_what_may_succeed_later_is_tried_again(kind):
    assert (LEAST.delay(error(kind), 1) is not None) == (kind in RETRYABLE)


def test_the_servers_word_wins_over_the_kind():
    assert LEAST.delay(error(ErrorKind.INVALID_REQUEST, server_should_retry=True), 1) == 0.5
    assert LEAST.delay(error(ErrorKind.OVERLOADED, server_should_retry=False), 1) is None


def test_retry_after_wins_and_jitter_only_adds():
    assert LEAST.delay(error(retry_after=45.0), 1) == 45.0
    assert MOST.delay(error(retry_after=45.0), 1) == 45.0 + 0.25 * 32
    assert LEAST.delay(error(retry_after=0.0), 2) == 1.0


def test_a_wait_longer_than_anybody_waits_ends_the_call():
    assert LEAST.delay(error(retry_after=3601.0), 1) is None


def test_a_wait_past_the_deadline_ends_the_call():
    assert LEAST.delay(error(), 5, deadline_left=8.0) is None
    assert LEAST.delay(error(), 5, deadline_left=8.1) == 8.0


@given(st.integers(1, 9), st.none() | st.floats(0.001, 3600), st.integers())
def test_a_wait_is_never_shorter_than_asked_and_never_unbounded(attempt, asked, seed):
    wait = RetrySchedule(SETTINGS, random.Random(seed)).delay(error(retry_after=asked), attempt)
    assert (asked or 0.5) <= wait <= (asked or 32) + 8
