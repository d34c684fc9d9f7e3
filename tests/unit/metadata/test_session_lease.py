"""The lease is counted from asking, never from hearing; a stopped process wakes without one."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from magnetar.metadata.session_lease import SessionLease, Sign


def sent(lease: SessionLease, now: float, session: str = "a") -> Sign:
    sign = lease.send(session, now)
    assert sign is not None
    return sign


def test_without_an_answer_there_is_no_lease() -> None:
    lease = SessionLease()
    assert lease.until == -math.inf
    sent(lease, 100.0)
    assert lease.until == -math.inf


def test_it_counts_from_when_it_was_asked_for() -> None:
    """The process was stopped for a minute between asking and hearing."""
    lease = SessionLease()
    sign = sent(lease, 100.0)
    woken_at = 160.0
    lease.answered(sign, "a", span_s=5.0)
    assert lease.until == 105.0 < woken_at


def test_one_sign_at_a_time_and_silence_is_noticed() -> None:
    lease = SessionLease()
    sign = sent(lease, 0.0)
    assert lease.send("a", 1.0) is None
    assert not lease.overdue(3.0, patience_s=3.0)
    assert lease.overdue(3.1, patience_s=3.0)
    lease.given_up()
    again = sent(lease, 3.2)
    lease.answered(sign, "a", 5.0)  # Too late: it was given up, and something else may have answered.
    assert lease.until == -math.inf
    lease.given_up(sign)
    lease.answered(again, "a", 5.0)
    assert lease.until == 8.2


def test_an_answer_for_the_session_before_counts_for_nothing() -> None:
    lease = SessionLease()
    sign = sent(lease, 0.0, "old")
    lease.answered(sign, "new", 5.0)
    assert lease.until == -math.inf


def test_the_end_of_a_session_ends_its_lease_and_what_was_under_way() -> None:
    lease = SessionLease()
    lease.answered(sent(lease, 0.0), "a", 5.0)
    late = sent(lease, 1.0)
    lease.ended()
    assert lease.until == -math.inf
    lease.answered(late, "a", 5.0)
    assert lease.until == -math.inf


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["send", "hear", "lose", "end"]),
            st.floats(
                min_value=0.0, max_value=30.0
            ),  # Time that passes before it; a long one is a stopped process.
        ),
        max_size=60,
    )
)
def test_it_is_never_longer_than_what_the_server_heard(steps: list[tuple[str, float]]) -> None:
    """A server that hears each sign no earlier than it was sent keeps the session at least as long as the lease."""
    lease, now, session = SessionLease(), 0.0, 0
    under_way: list[tuple[Sign, float]] = []
    kept_until = {0: -math.inf}
    timeout_s, span_s = 10.0, 5.0
    for step, passes in steps:
        now += passes
        if step == "send":
            sign = lease.send(str(session), now)
            if sign is not None:
                under_way.append((sign, now))
                kept_until[session] = now + timeout_s  # Heard at once: the shortest the server can count.
        elif step == "hear" and under_way:
            sign, _ = under_way.pop(0)
            lease.answered(sign, str(session), span_s)
        elif step == "lose":
            lease.given_up()
        elif step == "end":
            lease.ended()
            session += 1
            kept_until[session] = -math.inf
        assert lease.until <= kept_until[session]
