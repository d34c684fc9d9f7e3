"""What a soak calls a subscription that stands still."""

from __future__ import annotations

from typing import Any

from magnetar.testing.soak import STUCK_LOOKS, StuckWatch

TOPIC = "persistent://public/soak/topic-0"


def stats(backlog: int, sent: int, permits: int, unacknowledged: int = 0) -> dict[str, Any]:
    """Of one subscription with one consumer."""
    consumers = [{"availablePermits": permits}]
    told = {
        "msgBacklog": backlog,
        "msgOutCounter": sent,
        "unackedMessages": unacknowledged,
        "consumers": consumers,
    }
    return {"subscriptions": {"one": told}}


def found(*looks: dict[str, Any]) -> list[str]:
    """What a new watch tells of these looks."""
    watch = StuckWatch()
    return [told for each in looks for told in watch.look(TOPIC, each)]


def test_a_subscription_with_work_and_permits_that_sends_nothing_is_told_once() -> None:
    (told,) = found(*[stats(backlog=5, sent=7, permits=10)] * (STUCK_LOOKS + 5))
    assert TOPIC in told
    assert "one" in told


def test_others_are_not() -> None:
    looks = STUCK_LOOKS + 5
    assert not found(*[stats(backlog=0, sent=7, permits=10)] * looks), "nothing to do"
    assert not found(*[stats(backlog=5, sent=7, permits=0)] * looks), "nobody asks for any"
    assert not found(*[stats(backlog=5, sent=7, permits=10, unacknowledged=5)] * looks), "all is on its way"
    assert not found(*[stats(backlog=5, sent=number, permits=10) for number in range(looks)]), "it moves"


def test_a_move_begins_the_count_anew() -> None:
    still = [stats(backlog=5, sent=7, permits=10)] * STUCK_LOOKS
    moved = [stats(backlog=5, sent=8, permits=10)] * STUCK_LOOKS
    assert not found(*still, *moved)
