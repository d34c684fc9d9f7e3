"""The fragments of a ledger, how far each goes, and which of its entries each slot holds. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from magnetar.autorecovery.entry_ranges import Ranges, Run, intersect, subtract, union
from magnetar.ledger.fragment import Fragment
from magnetar.ledger.metadata import LedgerMetadata


@dataclass(frozen=True, slots=True)
class Extent:
    """A fragment from its first entry to its last."""

    fragment: Fragment
    last_entry: int | None
    """None while nobody can say: entries may still be added. Below the first: there are none."""

    @property
    def first_entry(self) -> int:
        return self.fragment.first_entry

    @property
    def ensemble(self) -> tuple[str, ...]:
        return self.fragment.ensemble

    @property
    def closed(self) -> bool:
        return self.last_entry is not None

    def entries(self) -> Ranges:
        """All of a closed fragment's."""
        if self.last_entry is None or self.last_entry < self.first_entry:
            return ()
        return ((self.first_entry, self.last_entry),)

    def stripe(self, slot: int) -> Iterator[Run]:
        """The entries a slot holds, of a closed fragment: runs of Qw in every E, cut to the fragment."""
        if not self.entries():
            return
        assert self.last_entry is not None
        size, quorum = len(self.ensemble), self.fragment.write_quorum
        if size == quorum:
            yield self.first_entry, self.last_entry
            return
        # Entry e lies at slot s where (s - e) mod E < Qw: the runs end at the entries congruent to s.
        end = self.first_entry + (slot - self.first_entry) % size
        while end - quorum + 1 <= self.last_entry:
            yield max(end - quorum + 1, self.first_entry), min(end, self.last_entry)
            end += size

    def missing(self, slot: int, held: Sequence[Run]) -> Ranges:
        """What a slot should hold and does not."""
        return subtract(self.stripe(slot), held)

    def unheld(self, holdings: dict[int, Ranges]) -> Ranges:
        """The entries that no slot of their write set holds. `holdings`: what is known of which slots."""
        covered = union([tuple(intersect(self.stripe(slot), held)) for slot, held in holdings.items()])
        return subtract(self.entries(), covered)


def extents(metadata: LedgerMetadata, last_confirmed: int = -1) -> list[Extent]:
    """The fragments of a ledger.

    Of an open one the last is open. So is the one before it, unless `last_confirmed`, what bookies know to be
    confirmed, reaches to its end: only its writer knows more. Source: trap T14 of the storage fact sheet.
    """
    found: list[Extent] = []
    last = len(metadata.segments) - 1
    for at, segment in enumerate(metadata.segments):
        fragment = metadata.fragment_of(segment.first_entry)
        end: int | None
        if at < last:
            end = metadata.segments[at + 1].first_entry - 1
            if not metadata.closed and at == last - 1 and last_confirmed < end:
                end = None
        else:
            end = metadata.last_entry if metadata.closed else None
        found.append(Extent(fragment, end))
    return found


def names_open(metadata: LedgerMetadata, bookies: Collection[str]) -> bool:
    """Whether the last segment names one of `bookies` and may still get entries."""
    return not metadata.closed and any(bookie in bookies for bookie in metadata.segments[-1].ensemble)


def names_any(metadata: LedgerMetadata, bookies: Collection[str]) -> bool:
    """Whether a segment names one of `bookies`."""
    return any(bookie in bookies for segment in metadata.segments for bookie in segment.ensemble)
