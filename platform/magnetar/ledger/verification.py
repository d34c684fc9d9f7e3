"""Reading every copy that a ledger's metadata promise, and comparing them.

All copies of an entry are the same bytes: they were written by one client, or written back as they were read.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from magnetar.ledger.fragment import Fragment
from magnetar.ledger.last_confirmed import read_last_confirmed
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.ledger.surroundings import Surroundings
from magnetar.protocol.bookie import BookieStatus
from magnetar.protocol.ledger_entry import EntryCorrupt, decode_entry

_WINDOW = 256
_FAULTS_MAX = 1000


@dataclass(frozen=True, slots=True)
class CopyFault:
    """A copy that is not as it should be."""

    entry_id: int
    bookie: str
    problem: str


@dataclass(frozen=True, slots=True)
class LedgerReport:
    """What was found."""

    metadata: LedgerMetadata
    last_entry: int
    """The last one looked at: the end of a closed ledger, or what is confirmed of an open one."""
    copies: int
    """Copies that are as they should be."""
    length: int
    """Payload bytes of all entries of which one good copy was found."""
    lost: tuple[int, ...]
    """Entries without any good copy, the first 1000."""
    faults: tuple[CopyFault, ...]
    """The first 1000."""
    fault_count: int

    @property
    def whole(self) -> bool:
        """Whether every copy that the metadata promise is there, and the length is as they say."""
        wrong_length = self.metadata.closed and self.metadata.length != self.length
        return not self.fault_count and not wrong_length


async def verify_ledger(
    ledger_id: int, surroundings: Surroundings, *, background: bool = False
) -> LedgerReport:
    """Read each entry from each bookie that should have it.

    Args:
        background: let traffic go before.

    Raises:
        NoSuchLedger, MetadataCorrupt, MetadataUnavailable
        ReadFailed: it is open, and none of its bookies tells what is confirmed.
    """
    metadata = await surroundings.registry.read(ledger_id)
    last = metadata.last_entry if metadata.closed else await read_last_confirmed(metadata, surroundings)
    verification = _Verification(metadata, surroundings, background)
    for first, end, fragment in _parts(metadata, last):
        for begin in range(first, end + 1, _WINDOW):
            await verification.window(fragment, begin, min(end, begin + _WINDOW - 1))
    return LedgerReport(
        metadata,
        last,
        verification.copies,
        verification.length,
        tuple(verification.lost),
        tuple(verification.faults),
        verification.fault_count,
    )


def _parts(metadata: LedgerMetadata, last: int) -> Iterator[tuple[int, int, Fragment]]:
    for segment in metadata.segments:
        end = metadata.fragment_end(segment.first_entry)
        end = last if end is None else min(end, last)
        if segment.first_entry <= end:
            yield segment.first_entry, end, metadata.fragment_of(segment.first_entry)


class _Verification:
    def __init__(self, metadata: LedgerMetadata, surroundings: Surroundings, background: bool) -> None:
        self._metadata = metadata
        self._surroundings = surroundings
        self._background = background
        self.copies = 0
        self.length = 0
        self.lost: list[int] = []
        self.faults: list[CopyFault] = []
        self.fault_count = 0

    async def window(self, fragment: Fragment, first: int, last: int) -> None:
        """Some entries of one fragment, from all its bookies at once."""
        stripes = {
            bookie: [entry for entry in range(first, last + 1) if slot in fragment.write_slots(entry)]
            for slot, bookie in enumerate(fragment.ensemble)
        }
        found = await asyncio.gather(*(self._copies_at(bookie, stripe) for bookie, stripe in stripes.items()))
        held = dict(zip(stripes, found, strict=True))
        for entry_id in range(first, last + 1):
            self._compare(entry_id, {each: held[each][entry_id] for each in fragment.write_set(entry_id)})

    async def _copies_at(self, bookie: str, stripe: list[int]) -> dict[int, bytes | BookieStatus]:
        """What a bookie gives for each entry of its stripe."""
        connection = self._surroundings.bookies.connection(bookie)
        limit = self._surroundings.settings.read_run_bytes
        ledger_id = self._metadata.ledger_id
        found: dict[int, bytes | BookieStatus] = {}
        for entry_id in stripe:
            if entry_id in found:
                continue
            count = 1
            while entry_id + count in stripe:
                count += 1
            status, run = await connection.read_entries(
                ledger_id, entry_id, count, limit, background=self._background
            )
            if status is not BookieStatus.OK or not run:
                found[entry_id] = BookieStatus.UNKNOWN if status is BookieStatus.OK else status
            found.update(enumerate(run, entry_id))
        return found

    def _compare(self, entry_id: int, copies: dict[str, bytes | BookieStatus]) -> None:
        good: dict[str, bytes] = {}
        length = 0
        for bookie, copy in copies.items():
            if isinstance(copy, BookieStatus):
                self._fault(entry_id, bookie, copy.name)
                continue
            try:
                entry = decode_entry(copy, expect_ledger=self._metadata.ledger_id, expect_entry=entry_id)
            except EntryCorrupt as error:
                self._fault(entry_id, bookie, str(error))
            else:
                good[bookie] = copy
                length = len(entry.payload)
        if not good:
            if len(self.lost) < _FAULTS_MAX:
                self.lost.append(entry_id)
            return
        (usual, _), *others = Counter(good.values()).most_common()
        self.length += length
        self.copies += sum(copy == usual for copy in good.values())
        if others:
            for bookie, copy in good.items():
                if copy != usual:
                    self._fault(
                        entry_id, bookie, "its bytes are well-formed, but not those of the other copies"
                    )

    def _fault(self, entry_id: int, bookie: str, problem: str) -> None:
        self.fault_count += 1
        if len(self.faults) < _FAULTS_MAX:
            self.faults.append(CopyFault(entry_id, bookie, problem))
