"""When enough bookies are fenced that the old writer can never again have an entry acknowledged. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def covers(ensemble_size: int, write_quorum: int, ack_quorum: int, known: Iterable[int]) -> bool:
    """Whether every ack quorum of every entry contains one of the slots `known`.

    There are as many different write sets as slots: each is a window of `write_quorum` slots in a row, around
    the ring. An ack quorum can hide from `known` only inside a window with at least `ack_quorum` other slots.
    Source: BookKeeper `RoundRobinDistributionSchedule.getCoverageSet`.
    """
    answered = [False] * ensemble_size
    for slot in known:
        answered[slot] = True
    unknown = sum(1 for slot in range(write_quorum) if not answered[slot])
    for first in range(ensemble_size):
        if unknown >= ack_quorum:
            return False
        # Slide the window by one slot.
        unknown += answered[first] - answered[(first + write_quorum) % ensemble_size]
    return True
