"""The check of subscriptions finds what it is for."""

from __future__ import annotations

from magnetar.testing.acknowledged import SendLog
from magnetar.testing.load_check import not_yet_received, subscription_differences


def log(sent: int, receipted: set[int]) -> SendLog:
    return SendLog("p", sent=sent, receipted=receipted)


def key_of(_: str, number: int) -> str:
    return f"key-{number % 2}"


def test_all_is_well() -> None:
    received = [["p:0", "p:1", "p:0", "p:2"]]
    assert subscription_differences("s", "Exclusive", [log(4, {0, 1, 2})], received) == []


def test_a_message_that_never_came() -> None:
    sends = log(3, {0, 2})
    assert not_yet_received([sends], [["p:0"], []]) == 1
    assert subscription_differences("s", "Shared", [sends], [["p:0"], []]) == [
        "s: 1 acknowledged messages of p were never received"
    ]


def test_shared_consumers_have_it_together_and_in_any_order() -> None:
    assert subscription_differences("s", "Shared", [log(3, {0, 1, 2})], [["p:2", "p:0"], ["p:1"]]) == []


def test_a_message_nobody_sent() -> None:
    wrong = subscription_differences("s", "Shared", [log(1, {0})], [["p:0", "p:1", "q:0"]])
    assert wrong == ["s: p:1 was never sent", "s: q:0 was never sent"]


def test_order() -> None:
    wrong = subscription_differences("s", "Failover", [log(3, {0, 1, 2})], [["p:0", "p:2", "p:1"]])
    assert wrong == ["s: p:1 came for the first time after a later one"]


def test_order_within_a_key_only() -> None:
    sends = [log(4, {0, 1, 2, 3})]
    assert (
        subscription_differences("s", "KeyShared", sends, [["p:1", "p:0", "p:2", "p:3"]], key_of=key_of) == []
    )
    wrong = subscription_differences("s", "KeyShared", sends, [["p:2", "p:1", "p:0", "p:3"]], key_of=key_of)
    assert wrong == ["s: p:0 of key key-0 came for the first time after a later one"]
