"""Whatever is taken, and whenever: a rate holds over any stretch of time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.rates.dispatch_limit import DispatchLimit, allowance
from magnetar.broker.rates.rate import Rate, TwinBucket
from magnetar.broker.rates.subscribe_limit import ConsumerIdentity, SubscribeLimit
from magnetar.broker.rates.token_bucket import TokenBucket
from magnetar.policies.rates import DispatchRate

STEPS = st.lists(
    st.tuples(st.floats(0, 5, allow_subnormal=False), st.integers(1, 500)), min_size=1, max_size=60
)


@given(st.integers(1, 1000), st.integers(1, 1000), STEPS)
def test_who_asks_first_never_gets_more_than_the_rate_and_one_piece(
    rate: int, burst: int, steps: list[tuple[float, int]]
) -> None:
    """Pieces are taken only where something is available; the debt of the last is all that goes beyond."""
    bucket = TokenBucket(rate, burst, 0.0)
    now, taken, largest = 0.0, 0, 0
    for pause, piece in steps:
        now += pause
        if bucket.available(now) > 0:
            assert bucket.wait_s(now) == 0
            bucket.take(piece, now)
            taken += piece
            largest = max(largest, piece)
        else:
            assert bucket.wait_s(now) > 0
        assert taken <= burst + rate * now + largest + 1e-6


@given(st.integers(1, 1000), STEPS)
def test_after_the_wait_there_is_something(rate: int, steps: list[tuple[float, int]]) -> None:
    bucket = TokenBucket(rate, rate, 0.0)
    now = 0.0
    for pause, piece in steps:
        now += pause
        bucket.take(piece, now)
        wait_s = bucket.wait_s(now)
        if wait_s > 0.002:
            assert bucket.available(now + wait_s - 0.001) <= 0, "it waits no longer than it must"
        now += wait_s + 1e-6
        assert bucket.available(now) > 0


@given(st.integers(1, 1000), st.integers(1, 1000), STEPS)
def test_a_change_of_rate_forgives_no_debt_and_gives_nothing_away(
    before: int, after: int, steps: list[tuple[float, int]]
) -> None:
    bucket = TokenBucket(before, before, 0.0)
    now = 0.0
    for pause, piece in steps:
        now += pause
        bucket.take(piece, now)
    left = bucket.available(now)
    bucket.set_rate(after, after, now)
    assert bucket.available(now) == min(left, after)


@given(STEPS)
def test_a_clock_that_stands_or_goes_back_gives_nothing(steps: list[tuple[float, int]]) -> None:
    bucket = TokenBucket(100, 100, 50.0)
    for pause, piece in steps:
        before = bucket.available(50.0 - pause)
        bucket.take(piece, 50.0 - pause)
        assert bucket.available(50.0 - pause) == before - piece


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 100), st.integers(0, 100), STEPS)
def test_the_allowance_of_several_limits_is_the_smallest(
    a: int, b: int, c: int, d: int, steps: list[tuple[float, int]]
) -> None:
    limits = [TwinBucket(Rate(a, b), 0.0), DispatchLimit(_said(c, d), 0.0)]
    now = 0.0
    for pause, piece in steps:
        now += pause
        allowed = allowance(limits, now)
        assert allowed.wait_s == max(limit.wait_s(now) for limit in limits)
        if allowed.wait_s == 0:
            for limit in limits:
                assert allowed.messages <= max(1, limit.messages_left(now))
                assert allowed.size <= max(1, limit.bytes_left(now))
            messages = min(piece, allowed.messages)
            for limit in limits:
                limit.take(messages, piece, now)


def _said(messages: int, size: int) -> DispatchRate:
    return DispatchRate(dispatch_throttling_rate_in_msg=messages, dispatch_throttling_rate_in_byte=size)


@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.floats(0, 4, allow_subnormal=False), st.integers(0, 3)), max_size=80),
)
def test_nobody_subscribes_more_often_in_a_period(limit: int, tries: list[tuple[float, int]]) -> None:
    """Against the history itself: whoever is refused has had its turns since the period began."""
    decides = SubscribeLimit(limit, 10.0, 0.0)
    now = since = 0.0
    allowed: dict[int, int] = {}
    for pause, who in tries:
        now += pause
        if now - since >= 10.0:
            since, allowed = now, {}
        expected = allowed.get(who, 0) < limit
        assert decides.allows(ConsumerIdentity("/10.0.0.1", "c", who), now) is expected
        if expected:
            allowed[who] = allowed.get(who, 0) + 1
