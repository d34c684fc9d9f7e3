"""Reading a ledger, up to what is confirmed. Replicas that fail or lie are passed over."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from magnetar.environment.logs import get_logger
from magnetar.ledger.errors import ReadFailed
from magnetar.ledger.fragment import Fragment
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.ledger.surroundings import Surroundings
from magnetar.protocol.bookie import BookieStatus
from magnetar.protocol.ledger_entry import EntryCorrupt, LedgerEntry, decode_entry

if TYPE_CHECKING:
    from magnetar.ledger.writer import LedgerWriter

log = get_logger("magnetar.ledger")


class LedgerReader:
    """Reads a closed ledger, one that is being written here, or an open one up to what was confirmed."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        surroundings: Surroundings,
        *,
        writer: LedgerWriter | None = None,
        last_confirmed: int = -1,
    ) -> None:
        self.ledger_id = metadata.ledger_id
        self._metadata = metadata
        self._surroundings = surroundings
        self._writer = writer
        self._last_confirmed = metadata.last_entry if metadata.closed else last_confirmed
        # Where all replicas hold all entries, stay with one, whose read-ahead then serves us; others take others.
        self._first_choice = metadata.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._metadata if self._writer is None else self._writer.metadata

    @property
    def last_confirmed(self) -> int:
        """The last entry that may be read; -1 if there is none."""
        return self._last_confirmed if self._writer is None else self._writer.last_add_confirmed

    @property
    def length(self) -> int:
        """Payload bytes of a closed ledger's entries, or of those acknowledged by its writer here."""
        return self._metadata.length if self._writer is None else self._writer.confirmed_length

    @property
    def closed(self) -> bool:
        """Whether the ledger is closed: it ends at `last_confirmed`."""
        return self.metadata.closed

    async def read(self, first: int, last: int, *, max_bytes: int | None = None) -> list[LedgerEntry]:
        """Entries from `first` on: at least one, at most up to `last`, about `max_bytes`.

        Fewer than wanted come where a segment, a replica's run or the limit ends; ask again behind them.

        Raises:
            ReadFailed: `first` lies past the end, or no replica gives it.
        """
        last = min(last, self.last_confirmed)
        if not 0 <= first <= last:
            raise ReadFailed(self.ledger_id, first, f"only entries up to {self.last_confirmed} can be read")
        limit = self._surroundings.settings.read_run_bytes
        max_bytes = limit if max_bytes is None else min(limit, max_bytes)
        try:
            return await self._read(first, last, max_bytes)
        except ReadFailed:
            if not await self._refresh():
                raise
            return await self._read(first, last, max_bytes)

    async def close(self) -> None:
        """Nothing is held that must be given back; a reader may simply be dropped."""

    async def _refresh(self) -> bool:
        """Read the metadata anew: replicas may have been moved. Whether they have."""
        if self._writer is not None:
            return False
        known = self._metadata.segments
        self._metadata = await self._surroundings.registry.read(self.ledger_id)
        return self._metadata.segments != known

    async def _read(self, first: int, last: int, max_bytes: int) -> list[LedgerEntry]:
        metadata = self.metadata
        fragment = metadata.fragment_of(first)
        end = metadata.fragment_end(first)
        if end is not None:
            last = min(last, end)
        if first == last or not fragment.striped:
            return await self._read_run(fragment, first, last, max_bytes)
        last = min(last, first + self._surroundings.settings.read_window - 1)
        return await self._read_stripes(fragment, first, last, max_bytes)

    async def _read_stripes(
        self, fragment: Fragment, first: int, last: int, max_bytes: int
    ) -> list[LedgerEntry]:
        """Each entry by itself, all at once."""
        runs = await asyncio.gather(
            *(self._read_run(fragment, entry_id, entry_id, max_bytes) for entry_id in range(first, last + 1)),
            return_exceptions=True,
        )
        entries: list[LedgerEntry] = []
        size = 0
        for run in runs:
            if isinstance(run, BaseException):
                if entries and isinstance(run, ReadFailed):
                    break  # Whoever asks for it will be told.
                raise run
            size += len(run[0].payload)
            if entries and size > max_bytes:
                break
            entries += run
        return entries

    async def _read_run(self, fragment: Fragment, first: int, last: int, max_bytes: int) -> list[LedgerEntry]:
        """A run of entries that one replica holds."""
        replicas = fragment.write_set(first)
        answers: list[tuple[str, BookieStatus]] = []
        for turn in range(len(replicas)):
            choice = turn if fragment.striped else (self._first_choice + turn) % len(replicas)
            bookie = replicas[choice] if fragment.striped else fragment.ensemble[choice]
            connection = self._surroundings.bookies.connection(bookie)
            status, run = await connection.read_entries(self.ledger_id, first, last - first + 1, max_bytes)
            entries = self._verified(bookie, first, run) if status is BookieStatus.OK else []
            if entries:
                if turn and not fragment.striped:
                    self._first_choice = choice
                return entries
            answers.append((bookie, BookieStatus.UNKNOWN if status is BookieStatus.OK else status))
        raise ReadFailed(
            self.ledger_id,
            first,
            ", ".join(f"{bookie} answered {status.name}" for bookie, status in answers),
            absent=all(status.is_negative for _, status in answers),
        )

    def _verified(self, bookie: str, first: int, run: list[bytes]) -> list[LedgerEntry]:
        entries: list[LedgerEntry] = []
        for entry_id, stored in enumerate(run, first):
            try:
                entries.append(decode_entry(stored, expect_ledger=self.ledger_id, expect_entry=entry_id))
            except EntryCorrupt as error:
                log.warning("replica.corrupt", bookie=bookie, ledger_id=self.ledger_id, reason=str(error))
                break
        return entries


async def read_last_confirmed(metadata: LedgerMetadata, surroundings: Surroundings) -> int:
    """What an open ledger's bookies know to be confirmed: a lower bound, good for reading, not for closing."""
    fragment = metadata.last_fragment

    async def ask(bookie: str) -> int:
        answer = await surroundings.bookies.connection(bookie).read_lac(metadata.ledger_id)
        return answer.lac if answer.status is BookieStatus.OK else -1

    answers = await asyncio.gather(*map(ask, fragment.ensemble))
    return max(fragment.first_entry - 1, *answers)
