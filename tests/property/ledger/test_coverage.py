"""Fence coverage and quorum verdicts against brute force: I32 of the storage fact sheet."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.ledger.coverage import covers
from magnetar.ledger.fragment import Fragment
from magnetar.ledger.quorum_read import QuorumRead, Verdict
from magnetar.protocol.bookie import BookieStatus

SIZES = [
    (size, write, ack) for size in range(1, 8) for write in range(1, size + 1) for ack in range(1, write + 1)
]


def no_ack_quorum_hides(size: int, write: int, ack: int, known: set[int]) -> bool:
    """Literally: every ack quorum of every write set has a member in `known`."""
    fragment = Fragment(0, tuple(map(str, range(size))), write, ack)
    return all(
        known.intersection(quorum)
        for entry_id in range(size)
        for quorum in combinations(fragment.write_slots(entry_id), ack)
    )


@pytest.mark.parametrize("size", range(1, 8))
def test_coverage_equals_brute_force_for_all_sizes_and_answers(size: int) -> None:
    for size_, write, ack in SIZES:
        if size_ != size:
            continue
        for answers in product((False, True), repeat=size):
            known = {slot for slot, answered in enumerate(answers) if answered}
            assert covers(size, write, ack, known) == no_ack_quorum_hides(size, write, ack, known), (
                size,
                write,
                ack,
                known,
            )


ANSWERS = st.sampled_from([BookieStatus.OK, BookieStatus.NO_SUCH_ENTRY, BookieStatus.TIMEOUT])


@given(st.sampled_from(SIZES), st.data())
def test_a_verdict_never_contradicts_what_may_have_been_acknowledged(
    sizes: tuple[int, int, int], data: st.DataObject
) -> None:
    """Absent only if no ack quorum can hold the entry; present only if somebody has it; early where possible."""
    _, write, ack = sizes
    answers = data.draw(st.lists(ANSWERS, min_size=write, max_size=write))
    order = data.draw(st.permutations(range(write)))
    read = QuorumRead(range(write), ack)
    verdict = None
    for number, slot in enumerate(order, 1):
        verdict = read.answered(slot, answers[slot])
        assert read.answered(slot, BookieStatus.OK) is verdict, "a repeated answer changed something"
        seen = [answers[each] for each in order[:number]]
        may_hold = write - seen.count(BookieStatus.NO_SUCH_ENTRY)
        if BookieStatus.OK in seen:
            assert verdict is Verdict.PRESENT
        elif may_hold < ack:
            assert verdict is Verdict.ABSENT
        elif number == write:
            assert verdict is Verdict.UNKNOWN
        else:
            assert verdict is None


@given(st.sampled_from(SIZES), st.integers(0, 1000))
def test_a_write_set_is_a_window_of_different_bookies(sizes: tuple[int, int, int], entry_id: int) -> None:
    size, write, ack = sizes
    fragment = Fragment(0, tuple(f"b{slot}" for slot in range(size)), write, ack)
    slots = fragment.write_slots(entry_id)
    assert len(set(slots)) == write
    assert slots[0] == entry_id % size
    assert fragment.write_set(entry_id) == tuple(f"b{slot}" for slot in slots)
    assert fragment.striped == (size > write)
