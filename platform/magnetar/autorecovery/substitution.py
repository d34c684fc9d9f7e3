"""The one change autorecovery makes to a ledger's metadata: other bookies in the slots of a segment. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from magnetar.ledger.fragment import replace_slots
from magnetar.ledger.metadata import LedgerMetadata, Segment


@dataclass(frozen=True, slots=True)
class Substitution:
    """In the segment at `first_entry`: slot → (the bookie that was there, the one that has the copies now)."""

    first_entry: int
    bookies: Mapping[int, tuple[str, str]]

    def applied_to(self, metadata: LedgerMetadata) -> LedgerMetadata | None:
        """None where the metadata are not as they were when the copies were planned: then nothing is changed."""
        segments = list(metadata.segments)
        for at, segment in enumerate(segments):
            if segment.first_entry != self.first_entry:
                continue
            for slot, (old, new) in self.bookies.items():
                if segment.ensemble[slot] != old or new in segment.ensemble:
                    return None
            after = replace_slots(segment.ensemble, {slot: new for slot, (_, new) in self.bookies.items()})
            segments[at] = Segment(segment.first_entry, after)
            return replace(metadata, segments=tuple(segments))
        return None

    def done_in(self, metadata: LedgerMetadata) -> bool:
        """Whether the metadata name the new bookies."""
        for segment in metadata.segments:
            if segment.first_entry == self.first_entry:
                return all(segment.ensemble[slot] == new for slot, (_, new) in self.bookies.items())
        return False
