"""The judge of the kill tests is itself judged: each way of losing or spoiling messages is found."""

from __future__ import annotations

import pytest

from magnetar.testing.acknowledged import SendLog, differences


def log(sent: int, receipted: set[int], repeatable: set[int] | None = None) -> SendLog:
    return SendLog("p", sent=sent, receipted=receipted, repeatable=repeatable or set())


def stored(*numbers: int) -> list[bytes]:
    return [f"p:{number}".encode() for number in numbers]


def test_a_faithful_topic_is_right() -> None:
    assert differences([log(4, {0, 1, 2})], stored(0, 1, 2, 3), repeats_allowed=False) == []


def test_a_message_without_receipt_may_be_missing_or_repeated_after_a_kill() -> None:
    assert differences([log(3, {0, 1}, {2})], stored(0, 1), repeats_allowed=True) == []
    assert differences([log(3, {0, 1, 2}, {1, 2})], stored(0, 1, 2, 1, 2), repeats_allowed=True) == []


@pytest.mark.parametrize(
    ("content", "repeats_allowed", "said"),
    [
        ((0, 2), True, "lost"),
        ((0, 1, 2, 7), True, "never sent"),
        ((0, 2, 1), True, "after a later message"),
        ((0, 1, 2, 2), False, "duplicates"),
        ((0, 1, 2, 0), True, "although their receipts"),
    ],
)
def test_each_fault_is_found(content: tuple[int, ...], repeats_allowed: bool, said: str) -> None:
    found = differences([log(3, {0, 1, 2}, {2})], stored(*content), repeats_allowed=repeats_allowed)
    assert any(said in line for line in found), found


def test_an_unknown_producer_is_found() -> None:
    assert differences([], stored(0), repeats_allowed=True) == ["p: nobody sent as this producer"]
