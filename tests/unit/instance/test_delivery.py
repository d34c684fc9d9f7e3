"""The guarantees as stories, one at a time. `tests/simulation/instance` tells thousands of them at once."""

from __future__ import annotations

import pytest

from magnetar.functions.config import Guarantee
from magnetar.instance.delivery import (
    LOSSES_TO_BLAME,
    Acknowledge,
    Arrival,
    DeadLetter,
    Delivery,
    Fault,
    Forget,
    Marks,
    Outcome,
    Output,
    Policy,
    Position,
    Publish,
    Run,
)

A, B, C = Position(1, 0), Position(1, 1), Position(1, 2)
EXACT = Policy(Guarantee.EFFECTIVELY_ONCE, ordered=True)


def ready(policy: Policy, marks: Marks | None = None) -> Delivery[str]:
    delivery: Delivery[str] = Delivery(policy, marks)
    assert delivery.process_ready(0.0) == []
    return delivery


def results(*ordinals: int, after: int = 0) -> Output[str]:
    return Output(-1, ordinals, "payload", after)


def test_at_least_once_acknowledges_after_the_receipt() -> None:
    delivery = ready(Policy())
    assert delivery.received(Arrival(A, 2)) == [Run(A, 0)]
    (publish,) = delivery.ran(A, 0, Outcome([results(0, 1)]), 1.0)
    assert publish == Publish(1, A, results(0, 1))
    assert delivery.stored(1) == [Acknowledge(A), Forget(A)]
    assert delivery.idle


def test_at_most_once_acknowledges_before_it_runs() -> None:
    delivery = ready(Policy(Guarantee.ATMOST_ONCE))
    assert delivery.received(Arrival(A, 1)) == [Acknowledge(A), Run(A, 0)]
    assert delivery.process_lost(A, "killed") == [Forget(A)]
    assert delivery.process_ready(1.0) == []
    assert delivery.dropped == 1


def test_no_result_is_acknowledged_at_once() -> None:
    delivery = ready(Policy())
    delivery.received(Arrival(A, 1))
    assert delivery.ran(A, 0, Outcome(), 1.0) == [Acknowledge(A), Forget(A)]


def test_a_failure_waits_while_other_entries_pass() -> None:
    delivery = ready(Policy(backoff_s=1.0))
    delivery.received(Arrival(A, 3))
    (publish,) = delivery.ran(A, 0, Outcome([results(0, 2)], [Fault(1, "no")]), 10.0)
    assert isinstance(publish, Publish)
    assert delivery.stored(publish.token) == []  # One of three is not done.
    assert delivery.received(Arrival(B, 1)) == [Run(B, 0)]
    assert delivery.ran(B, 0, Outcome(), 10.0) == [Acknowledge(B), Forget(B)]
    assert delivery.next_due() == 11.0
    assert delivery.wake(10.5) == []
    assert delivery.wake(11.0) == [Run(A, 0, (1,))]
    delivery.ran(A, 0, Outcome([], [Fault(1, "no")]), 11.0)
    assert delivery.next_due() == 13.0  # Twice as long as before.
    assert delivery.wake(13.0) == [Run(A, 0, (1,))]
    assert delivery.ran(A, 0, Outcome(), 13.0) == [Acknowledge(A), Forget(A)]


def test_after_its_retries_a_message_is_dead_lettered_and_acknowledged_after_that_receipt() -> None:
    delivery = ready(Policy(retries=1, dead_letters=True))
    delivery.received(Arrival(A, 1))
    assert delivery.ran(A, 0, Outcome([], [Fault(0, "no")]), 0.0) == []
    due = delivery.next_due()
    assert due is not None
    assert delivery.wake(due) == [Run(A, 0)]
    (letter,) = delivery.ran(A, 0, Outcome([], [Fault(0, "no")]), due)
    assert letter == DeadLetter(1, A, Fault(0, "no"))
    assert delivery.stored(1) == [Acknowledge(A), Forget(A)]


def test_an_ordered_input_goes_back_to_what_failed() -> None:
    delivery = ready(EXACT)
    delivery.received(Arrival(A, 2, 0))
    assert delivery.received(Arrival(B, 1, 2)) == [Run(B, 0)]
    assert delivery.ran(A, 0, Outcome([], [Fault(0, "no")], ran_through=1), 0.0) == []
    assert delivery.ran(B, 0, Outcome([results(0)]), 0.0) == []  # The process ran on; nobody wants it.
    due = delivery.next_due()
    assert due is not None
    assert delivery.wake(due) == [Run(A, 1), Run(B, 1)]


def test_a_final_failure_of_the_last_message_makes_later_entries_run_again() -> None:
    """The process has stopped, so it answers everything of that generation as stale. (Found by seed 92.)"""
    delivery = ready(Policy(Guarantee.EFFECTIVELY_ONCE, ordered=True, retries=1, dead_letters=True))
    delivery.received(Arrival(A, 1, 0))
    delivery.received(Arrival(B, 1, 1))
    delivery.ran(A, 0, Outcome([], [Fault(0, "no")], ran_through=1), 0.0)
    due = delivery.next_due()
    assert due is not None
    delivery.wake(due)
    effects = delivery.ran(A, 1, Outcome([], [Fault(0, "no")], ran_through=1), due)
    assert effects == [DeadLetter(1, A, Fault(0, "no")), Run(B, 2)]


def test_a_dead_letter_waits_for_the_results_before_it_and_holds_those_after_it() -> None:
    policy = Policy(Guarantee.EFFECTIVELY_ONCE, ordered=True, retries=0, dead_letters=True)
    delivery = ready(policy)
    delivery.received(Arrival(A, 3, 0))
    outcome = Outcome([results(0), results(2, after=1)], [Fault(1, "no")])
    assert delivery.ran(A, 0, outcome, 0.0) == [Publish(1, A, results(0))]
    assert delivery.stored(1) == [DeadLetter(2, A, Fault(1, "no"))]
    assert delivery.stored(2) == [Publish(3, A, results(2, after=1))]
    assert delivery.stored(3) == [Acknowledge(A), Forget(A)]


def test_what_is_committed_never_runs_again() -> None:
    delivery = ready(EXACT, Marks({-1: 3}, dead_letters=4))
    assert delivery.received(Arrival(A, 2, 0)) == [Acknowledge(A), Forget(A)]
    assert delivery.received(Arrival(B, 5, 2)) == [Run(B, 0, (3, 4))]
    assert delivery.skipped == 5


def test_into_several_partitions_only_what_all_have_is_committed() -> None:
    delivery = ready(EXACT, Marks({0: 9, 1: 3}))
    assert delivery.received(Arrival(A, 10, 0)) == [Run(A, 0, (4, 5, 6, 7, 8, 9))]
    effects = delivery.ran(A, 0, Outcome([Output(0, [4, 6], "old"), Output(1, [5, 7], "new")]), 0.0)
    assert effects == [Publish(1, A, Output(1, [5, 7], "new"))]


def test_an_entry_that_comes_twice_is_taken_once() -> None:
    delivery = ready(EXACT)
    delivery.received(Arrival(A, 1, 0))
    assert delivery.received(Arrival(A, 1, 0)) == []
    delivery.ran(A, 0, Outcome(), 0.0)
    assert delivery.received(Arrival(A, 1, 0)) == [Acknowledge(A), Forget(A)]  # The first one got lost.


def test_messages_acknowledged_before_are_not_run() -> None:
    delivery = ready(Policy())
    assert delivery.received(Arrival(A, 3, acknowledged=frozenset({0, 2}))) == [Run(A, 0, (1,))]


def test_without_a_process_nothing_is_run() -> None:
    delivery: Delivery[str] = Delivery(Policy())
    assert delivery.received(Arrival(A, 1)) == []
    assert delivery.process_ready(0.0) == [Run(A, 0)]


def test_after_a_death_the_suspect_runs_message_by_message() -> None:
    delivery = ready(EXACT)
    delivery.received(Arrival(A, 2, 0))
    delivery.received(Arrival(B, 1, 2))
    assert delivery.process_lost(A, "SIGSEGV") == []
    assert delivery.process_ready(0.0) == [Run(A, 1, (0,), alone=True)]
    effects = delivery.ran(A, 1, Outcome([results(0)]), 0.0)
    assert effects[0] == Publish(1, A, results(0))
    assert isinstance(effects[1], Run)
    assert effects[1].ordinals == (1,)


def test_one_death_is_bad_luck_and_several_on_the_same_message_are_its_fault() -> None:
    delivery = ready(Policy(retries=0, dead_letters=True))
    delivery.received(Arrival(A, 2))
    for _ in range(LOSSES_TO_BLAME):
        assert delivery.process_lost(A, "SIGSEGV") == []
        assert delivery.process_ready(0.0)
    letter, *_ = delivery.process_lost(A, "SIGSEGV")
    assert isinstance(letter, DeadLetter)
    assert letter.fault.ordinal == 0
    assert "SIGSEGV" in letter.fault.error
    assert delivery.process_ready(0.0)[0] == Run(A, LOSSES_TO_BLAME + 1, (1,), alone=True)


def test_what_is_published_aside_holds_the_acknowledgement() -> None:
    delivery = ready(Policy())
    delivery.received(Arrival(A, 1))
    delivery.side_publish_began(A)
    assert delivery.ran(A, 0, Outcome(), 0.0) == []
    assert delivery.side_publish_stored(A) == [Acknowledge(A), Forget(A)]


def test_manual_waits_for_the_user() -> None:
    delivery = ready(Policy(Guarantee.MANUAL))
    delivery.received(Arrival(A, 2))
    assert delivery.acknowledged_by_user(A, 0) == []
    assert delivery.ran(A, 0, Outcome(), 0.0) == []
    assert delivery.acknowledged_by_user(A, 1) == [Acknowledge(A), Forget(A)]


def test_a_sinks_last_attempt_is_message_by_message() -> None:
    delivery = ready(Policy(retries=1, dead_letters=True, isolate=True))
    delivery.received(Arrival(A, 3))
    everything = [Fault(ordinal, "no") for ordinal in range(3)]
    delivery.ran(A, 0, Outcome([], everything), 0.0)
    due = delivery.next_due() or 0.0
    assert delivery.wake(due) == [Run(A, 0, alone=True)]
    delivery.ran(A, 0, Outcome([], everything), due)
    due = delivery.next_due() or 0.0
    assert delivery.wake(due) == [Run(A, 0, isolate=True, alone=True)]
    assert delivery.ran(A, 0, Outcome([], [Fault(1, "no")]), due) == [DeadLetter(1, A, Fault(1, "no"))]


def test_what_a_sink_had_in_hand_when_it_died_is_written_apart_from_then_on() -> None:
    """Nobody knows which entry of the batch it died of: each by itself will show."""
    delivery = ready(Policy(isolate=True))
    assert delivery.received(Arrival(A, 1)) + delivery.received(Arrival(B, 1)) == [Run(A, 0), Run(B, 0)]
    delivery.process_lost(A, "killed")
    assert delivery.process_ready(0.0) == [Run(A, 1, (0,), alone=True), Run(B, 1, alone=True)]
    assert delivery.received(Arrival(C, 1)) == [Run(C, 1)]


def test_a_rejected_message_is_given_up_at_once() -> None:
    delivery = ready(Policy())
    delivery.received(Arrival(A, 1))
    assert delivery.ran(A, 0, Outcome([], [Fault(0, "no", final=True)]), 0.0) == [Acknowledge(A), Forget(A)]
    assert delivery.dropped == 1


@pytest.mark.parametrize(("failures", "delay"), [(1, 0.1), (2, 0.2), (3, 0.4), (100, 30.0)])
def test_waits_grow_up_to_a_bound(failures: int, delay: float) -> None:
    assert Policy().delay_s(failures) == pytest.approx(delay)


def test_late_and_repeated_reports_do_no_harm() -> None:
    delivery = ready(Policy())
    delivery.received(Arrival(A, 1))
    assert delivery.ran(B, 0, Outcome(), 0.0) == []
    assert delivery.ran(A, 7, Outcome(), 0.0) == []
    assert delivery.stored(99) == []
    (publish,) = delivery.ran(A, 0, Outcome([results(0)]), 0.0)
    assert isinstance(publish, Publish)
    assert delivery.ran(A, 0, Outcome([results(0)]), 0.0) == []
    assert delivery.stored(publish.token) == [Acknowledge(A), Forget(A)]
    assert delivery.stored(publish.token) == []
    assert delivery.side_publish_stored(A) == []
    assert delivery.acknowledged_by_user(C, -1) == []
