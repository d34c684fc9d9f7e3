"""Reading a ledger, up to what is confirmed. Replicas that fail or lie are passed over."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from magnetar.environment.logs import get_logger
from magnetar.ledger.errors import LedgerError, ReadFailed
from magnetar.ledger.fragment import Fragment
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.ledger.replica_read import ReplicaReads, asked_in_turn, in_order
from magnetar.ledger.surroundings import Surroundings
from magnetar.protocol.bookie import BookieStatus
from magnetar.protocol.ledger_entry import LedgerEntry

if TYPE_CHECKING:
    from magnetar.ledger.writer import LedgerWriter

log = get_logger("magnetar.ledger")

_LOOK_AGAIN_S = 10.0
"""Metadata are not read anew more often than this because of a bookie that is gone."""
_POLL_S = 10.0
_PAUSE_S = 0.05
_PAUSE_MAX_S = 1.0


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
        self._replicas = ReplicaReads(metadata.ledger_id, surroundings)
        self._look_again_at = 0.0

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
        known = self.metadata.segments
        try:
            return await self._read(first, last, max_bytes)
        except ReadFailed:
            await self._refresh()
            if self.metadata.segments == known:
                raise
            return await self._read(first, last, max_bytes)

    async def close(self) -> None:
        """Nothing is held that must be given back; a reader may simply be dropped."""

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
        wanted = [(entry_id, fragment.write_set(entry_id)) for entry_id in range(first, last + 1)]
        runs = await self._replicas.each(wanted, max_bytes)
        self._look_where_gone()
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
        if fragment.striped:
            replicas = fragment.write_set(first)
        else:
            turn = self._first_choice % len(fragment.ensemble)
            replicas = (*fragment.ensemble[turn:], *fragment.ensemble[:turn])
        bookie, entries = await self._replicas.run(replicas, first, last - first + 1, max_bytes)
        if not fragment.striped and bookie != replicas[0]:
            self._first_choice = fragment.ensemble.index(bookie)
        self._look_where_gone()
        return entries

    def _look_where_gone(self) -> None:
        if self._replicas.gone:
            self._replicas.gone = False
            self._look_for_changes()

    # Following the metadata: autorecovery moves the entries of closed ledgers too.

    def _look_for_changes(self) -> None:
        now = self._surroundings.clock.monotonic()
        if self._writer is None and now >= self._look_again_at:
            self._look_again_at = now + _LOOK_AGAIN_S
            self._surroundings.tasks.spawn(self._refresh_or_log())

    async def _refresh_or_log(self) -> None:
        try:
            await self._refresh()
        except LedgerError as error:
            log.warning("ledger.not_looked_up", ledger_id=self.ledger_id, reason=str(error))

    async def _refresh(self) -> None:
        """Read the metadata anew: replicas may have been moved."""
        if self._writer is not None:
            await self._writer.look_again()
            return
        self._metadata = await self._surroundings.registry.read(self.ledger_id)
        if self._metadata.closed:
            self._last_confirmed = self._metadata.last_entry

    # Waiting for more.

    async def wait_for(self, above: int, timeout_s: float) -> int:
        """The last entry that may be read, once it is beyond `above`, or the ledger is closed, or after `timeout_s`.

        Raises:
            NoSuchLedger: it was deleted meanwhile.
            MetadataUnavailable
        """
        if self._writer is not None:
            return await self._writer.wait_for(above, timeout_s)
        clock = self._surroundings.clock
        end = clock.monotonic() + timeout_s
        pause_s = _PAUSE_S
        while not self.closed and self._last_confirmed <= above:
            left_s = end - clock.monotonic()
            if left_s <= 0:
                break
            began = clock.monotonic()
            poll_s = min(left_s, _POLL_S)
            await self._poll(above, poll_s)
            if self._last_confirmed > above:
                break
            # Nobody knows of more: the ledger may be closed, or go on with other bookies.
            await self._refresh()
            if not self.closed and clock.monotonic() < began + poll_s / 2:
                await asyncio.sleep(min(pause_s, left_s))  # Fenced, and not closed yet; or nobody answers.
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
        return self.last_confirmed

    async def _poll(self, above: int, poll_s: float) -> None:
        surroundings = self._surroundings
        fragment = self._metadata.last_fragment
        clock = surroundings.clock
        end = clock.monotonic() + poll_s

        async def ask(bookie: str) -> int | None:
            connection = surroundings.bookies.connection(bookie)
            answer = await connection.wait_lac(self.ledger_id, above, max(0.0, end - clock.monotonic()))
            return answer.lac if answer.status is BookieStatus.OK else None

        turn = self._first_choice % len(fragment.ensemble)
        replicas = await in_order((*fragment.ensemble[turn:], *fragment.ensemble[:turn]), surroundings)
        found = await asked_in_turn(
            replicas, ask, lambda lac: lac > above, surroundings, surroundings.settings.tail_read_s
        )
        if found is not None and not self.closed:
            self._last_confirmed = max(self._last_confirmed, found)
