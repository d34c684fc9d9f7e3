"""Which bookies hold which entry: one ensemble, and the entries striped over it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fragment:
    """The run of entries, from `first_entry` on, that one ensemble holds.

    A slot is a place in the ensemble. Entry `e` is held by the slots `e, e + 1, … e + write_quorum - 1`, modulo
    the ensemble's size. Source: BookKeeper `RoundRobinDistributionSchedule`.
    """

    first_entry: int
    ensemble: tuple[str, ...]
    write_quorum: int
    ack_quorum: int

    @property
    def striped(self) -> bool:
        """Whether some bookie of the ensemble misses some entry."""
        return len(self.ensemble) > self.write_quorum

    def write_slots(self, entry_id: int) -> tuple[int, ...]:
        """The slots that hold `entry_id`, in the order in which readers ask them."""
        size = len(self.ensemble)
        return tuple((entry_id + turn) % size for turn in range(self.write_quorum))

    def write_set(self, entry_id: int) -> tuple[str, ...]:
        """The bookies that hold `entry_id`."""
        return tuple(self.ensemble[slot] for slot in self.write_slots(entry_id))


def replace_slots(ensemble: tuple[str, ...], replacements: Mapping[int, str]) -> tuple[str, ...]:
    """`ensemble` with other bookies in some slots."""
    return tuple(replacements.get(slot, bookie) for slot, bookie in enumerate(ensemble))
