"""Carrying out a recovery: the shell around `recovery.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from functools import partial
from typing import Any

from magnetar.environment.crash import crash_point
from magnetar.environment.logs import get_logger
from magnetar.ledger.errors import RecoveryFailed
from magnetar.ledger.metadata import LedgerMetadata, LedgerState
from magnetar.ledger.recovery import (
    CloseLedger,
    FenceAndReadLac,
    GiveUp,
    LedgerRecovery,
    ReadReplica,
    ReplaceBookies,
    Request,
    StoredCopy,
    WriteBack,
)
from magnetar.ledger.surroundings import Surroundings
from magnetar.ledger.write_pipeline import PendingAdd
from magnetar.protocol.bookie import AddFlags, BookieStatus
from magnetar.protocol.ledger_entry import EntryCorrupt, decode_entry

log = get_logger("magnetar.ledger")


async def recover(ledger_id: int, surroundings: Surroundings) -> LedgerMetadata:
    """Bring a ledger to its end, whoever wrote it, and return its metadata, closed.

    Raises:
        RecoveryFailed: too little is known now; the ledger stays in recovery.
        NoSuchLedger, MetadataUnavailable
    """
    metadata = await surroundings.registry.update(ledger_id, _begin)
    if metadata.closed:
        return metadata
    crash_point("ledger.in_recovery")
    run = _Run(metadata, surroundings)
    end = await run.finished()
    # First said, then closed: nobody looks at a closed ledger by himself, should this process die in between.
    await surroundings.marks.store(ledger_id, run.short(_close(metadata, end=end) or metadata))
    crash_point("ledger.before_close")
    metadata = await surroundings.registry.update(ledger_id, partial(_close, end=end))
    run.closed(metadata)
    surroundings.counts.recoveries += 1
    log.info(
        "ledger.recovered",
        ledger_id=ledger_id,
        last_entry=metadata.last_entry,
        written_back=run.recovery.recovered,
    )
    return metadata


def _begin(metadata: LedgerMetadata) -> LedgerMetadata | None:
    return metadata.with_state(LedgerState.IN_RECOVERY) if metadata.state is LedgerState.OPEN else None


def _close(metadata: LedgerMetadata, *, end: CloseLedger) -> LedgerMetadata | None:
    if metadata.closed:
        return None  # Its writer or another recovery was first: what they say holds.
    for segment in end.added:
        metadata = metadata.with_ensemble(segment.first_entry, segment.ensemble)
    return metadata.closed_at(end.last_entry, end.length)


class _Run:
    """One recovery's requests under way. They go on if the caller is cancelled: a fence is never taken back."""

    def __init__(self, metadata: LedgerMetadata, surroundings: Surroundings) -> None:
        self.recovery = LedgerRecovery(metadata, window=surroundings.settings.recovery_window)
        self._ledger_id = metadata.ledger_id
        self._metadata = metadata
        self._closed: LedgerMetadata | None = None
        self._failed_copies: list[tuple[int, int, str]] = []
        """Written back and not taken: entry, slot, bookie."""
        self._tried: set[str] = set()
        """Bookies that have failed in this recovery: none of them is chosen again."""
        self._surroundings = surroundings
        self._end: asyncio.Future[CloseLedger] = asyncio.get_running_loop().create_future()

    def closed(self, metadata: LedgerMetadata) -> None:
        """The ledger is closed: have those looked at that may lack something of it."""
        self._closed = metadata
        for bookie in sorted(self.short(metadata)):
            self._surroundings.marks.note(self._ledger_id, bookie)
        self._failed_copies.clear()

    def short(self, metadata: LedgerMetadata) -> set[str]:
        """The bookies that may lack entries of the ledger as it is closed: what was written back, but not to all that
        then are to have it, is to be copied.

        So may be what the writer had confirmed: with fewer copies than its metadata promise, the others still under way
        when it died, and nobody left who knows. Where that can be, all whom it concerns are to be looked at.
        """
        bookies: set[str] = set()
        if metadata.write_quorum > metadata.ack_quorum and metadata.last_entry >= 0:
            # An ensemble change moves what is not confirmed: copies of the segment before may be under way too.
            for segment in metadata.segments[max(0, len(self._metadata.segments) - 2) :]:
                bookies.update(segment.ensemble)
        for entry_id, slot, bookie in self._failed_copies:
            ensemble = metadata.fragment_of(entry_id).ensemble
            if entry_id <= metadata.last_entry and ensemble[slot] == bookie:
                bookies.add(bookie)
        return bookies

    async def finished(self) -> CloseLedger:
        self._carry_out(self.recovery.start())
        return await self._end

    def _carry_out(self, requests: list[Request]) -> None:
        for request in requests:
            match request:
                case ReadReplica():
                    self._spawn(self._read(request))
                case WriteBack(add, slot, bookie):
                    self._surroundings.bookies.connection(bookie).add_entry(
                        self._ledger_id,
                        add.entry_id,
                        add.parts,
                        AddFlags.RECOVERY | AddFlags.HIGH_PRIORITY,
                        self._surroundings.master_key,
                        partial(self._written, add, slot, bookie),
                    )
                case FenceAndReadLac():
                    self._spawn(self._fence(request))
                case ReplaceBookies():
                    self._spawn(self._replace(request))
                case CloseLedger():
                    if not self._end.done():
                        self._end.set_result(request)
                case GiveUp(reason, missing):
                    self._fail(reason, missing)

    def _fail(self, reason: str, missing: Collection[str] = ()) -> None:
        if not self._end.done():
            self._end.set_exception(RecoveryFailed(self._ledger_id, reason, missing))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        async def guarded() -> None:
            try:
                await work
            except Exception as error:
                self._fail(f"{type(error).__name__}: {error}")
                raise

        self._surroundings.tasks.spawn(guarded())

    async def _fence(self, request: FenceAndReadLac) -> None:
        connection = self._surroundings.bookies.connection(request.bookie)
        answer = await connection.read_lac(
            self._ledger_id, fence=True, master_key=self._surroundings.master_key
        )
        status, lac = answer.status, answer.lac
        if status is BookieStatus.OK and answer.entry:
            try:
                lac = max(lac, decode_entry(answer.entry, expect_ledger=self._ledger_id).lac)
            except EntryCorrupt as error:
                self._corrupt(request.bookie, error)
                status = BookieStatus.UNKNOWN
        self._carry_out(self.recovery.fenced(request.slot, status, lac))

    async def _read(self, request: ReadReplica) -> None:
        connection = self._surroundings.bookies.connection(request.bookie)
        answer = await connection.read_entry(
            self._ledger_id, request.entry_id, fence=True, master_key=self._surroundings.master_key
        )
        status, copy = answer.status, None
        if status is BookieStatus.OK:
            try:
                entry = decode_entry(
                    answer.entry, expect_ledger=self._ledger_id, expect_entry=request.entry_id
                )
                copy = StoredCopy(answer.entry, entry.length, len(entry.payload))
            except EntryCorrupt as error:
                self._corrupt(request.bookie, error)
                status = BookieStatus.UNKNOWN
        self._carry_out(self.recovery.read(request.entry_id, request.slot, status, copy))

    def _written(self, add: PendingAdd[None], slot: int, bookie: str, status: BookieStatus) -> None:
        if status is not BookieStatus.OK:
            self._failed_copies.append((add.entry_id, slot, bookie))
            if self._closed is not None:
                self.closed(self._closed)
        self._carry_out(self.recovery.written(add, slot, bookie, status))

    async def _replace(self, request: ReplaceBookies) -> None:
        surroundings = self._surroundings
        now = surroundings.clock.monotonic()
        failed = [request.ensemble[slot] for slot in request.failed]
        self._tried.update(failed)
        for bookie in failed:
            surroundings.health.failed(bookie, now)
        replacements = await surroundings.ensembles.replacements(
            self._metadata, request.ensemble, request.failed, exclude=self._tried, desperate=True
        )
        self._carry_out(self.recovery.replaced(request, replacements))

    def _corrupt(self, bookie: str, error: EntryCorrupt) -> None:
        log.warning("replica.corrupt", bookie=bookie, ledger_id=self._ledger_id, reason=str(error))
