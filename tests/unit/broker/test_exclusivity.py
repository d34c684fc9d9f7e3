"""Shared and exclusive producers."""

from __future__ import annotations

import pytest

from magnetar.broker.errors import ProducerBusy, ProducerFenced
from magnetar.broker.exclusivity import AccessMode, Exclusivity, Request

SHARED, EXCLUSIVE, WAIT, FENCING = AccessMode


def ask(mode: AccessMode, producer: str, epoch: int | None = None) -> Request[str]:
    return Request(producer, mode, epoch)


def test_shared_producers_share() -> None:
    topic: Exclusivity[str] = Exclusivity()
    assert topic.admit(ask(SHARED, "a")).new_epoch is None
    assert topic.admit(ask(SHARED, "b")).granted
    with pytest.raises(ProducerFenced):
        topic.admit(ask(EXCLUSIVE, "c"))


def test_an_exclusive_producer_shuts_out() -> None:
    topic: Exclusivity[str] = Exclusivity()
    assert topic.admit(ask(EXCLUSIVE, "a")).new_epoch == 0
    with pytest.raises(ProducerBusy):
        topic.admit(ask(SHARED, "b"))
    with pytest.raises(ProducerFenced):
        topic.admit(ask(EXCLUSIVE, "b"))
    topic.leave("a")
    assert topic.admit(ask(EXCLUSIVE, "b")).new_epoch == 1


def test_waiting_shuts_out_shared_producers_too() -> None:
    topic: Exclusivity[str] = Exclusivity()
    topic.admit(ask(SHARED, "a"))
    assert not topic.admit(ask(WAIT, "b")).granted
    with pytest.raises(ProducerBusy):
        topic.admit(ask(SHARED, "c"))
    assert topic.promote() is None
    topic.leave("a")
    assert topic.promote() == ("b", 0)


def test_the_queue_is_served_in_order_and_can_be_left() -> None:
    topic: Exclusivity[str] = Exclusivity()
    topic.admit(ask(EXCLUSIVE, "a"))
    for name in ("b", "c", "d"):
        topic.admit(ask(WAIT, name))
    topic.leave("b")
    topic.leave("a")
    assert topic.promote() == ("c", 1)
    assert topic.promote() is None
    assert topic.waiting == 1


def test_fencing_takes_all() -> None:
    topic: Exclusivity[str] = Exclusivity()
    topic.admit(ask(EXCLUSIVE, "a"))
    topic.admit(ask(WAIT, "b"))
    admission = topic.admit(ask(FENCING, "c"))
    assert admission.evicted == ("a",)
    assert admission.refused == ("b",)
    assert admission.new_epoch == 1
    assert topic.exclusive == "c"


def test_who_lost_the_topic_cannot_come_back() -> None:
    topic: Exclusivity[str] = Exclusivity()
    topic.admit(ask(EXCLUSIVE, "a"))
    topic.admit(ask(FENCING, "b"))
    topic.leave("b")
    for mode in (EXCLUSIVE, FENCING, WAIT):
        with pytest.raises(ProducerFenced):
            topic.admit(ask(mode, "a", epoch=0))
    assert topic.admit(ask(EXCLUSIVE, "b", epoch=1)).new_epoch == 1


def test_a_fenced_waiter_is_refused_when_its_turn_comes() -> None:
    topic: Exclusivity[str] = Exclusivity(epoch=5)
    topic.admit(ask(SHARED, "a"))
    topic.admit(ask(WAIT, "old", epoch=3))
    topic.admit(ask(WAIT, "new"))
    topic.leave("a")
    assert topic.promote() == "old"
    assert topic.promote() == ("new", 6)


def test_nobody_claims_an_epoch_that_leaves_none_to_the_next() -> None:
    topic: Exclusivity[str] = Exclusivity()
    for mode in (EXCLUSIVE, FENCING, WAIT):
        with pytest.raises(ProducerFenced):
            topic.admit(ask(mode, "a", epoch=(1 << 64) - 1))
    assert topic.admit(ask(EXCLUSIVE, "b")).new_epoch == 0
