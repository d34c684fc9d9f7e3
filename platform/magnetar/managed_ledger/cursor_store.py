"""Where a durable cursor's state is kept: the last entry of a ledger of its own, or its record in metadata.

A write that finds itself fenced means that the log has another owner: it fails, and never falls back to the
metadata, where it could undo what the new owner has written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from magnetar.environment.clock import Clock
from magnetar.environment.crash import crash_point
from magnetar.environment.logs import get_logger
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError, LedgerFenced, NoSuchLedger, ReadFailed
from magnetar.ledger.owned_tasks import OwnedTasks
from magnetar.ledger.writer import LedgerWriter
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.cursor_state import CursorSnapshot
from magnetar.managed_ledger.errors import ManagedLedgerFenced, RecordUnreadable, StorageUnavailable
from magnetar.managed_ledger.owned_record import OwnedRecord
from magnetar.managed_ledger.records import (
    CursorRecord,
    decode_snapshot,
    encode_cursor,
    encode_snapshot,
)

log = get_logger("magnetar.managed_ledger")

RANGES_IN_METADATA = 1000
"""A state with more ranges than this stays in its ledger. Source: Pulsar `managedLedgerMaxUnackedRangesToPersistInMetadataStore`."""

STATE_BYTES_IN_METADATA = 256 * 1024
"""Nor does one that is larger than this go there: parts of many batches add up to more than a metadata store takes."""


@dataclass(frozen=True, slots=True)
class CursorStorage:
    """What the cursors of one log share to be stored by."""

    log_name: str
    ledgers: LedgerClient
    config: Callable[[], ManagedLedgerConfig]
    clock: Clock
    tasks: OwnedTasks


class CursorStore:
    """One cursor's storage. Calls must not overlap."""

    def __init__(self, name: str, storage: CursorStorage, owned: OwnedRecord, record: CursorRecord) -> None:
        self._name = name
        self._storage = storage
        self._owned = owned
        self._record = record
        self._writer: LedgerWriter | None = None
        self._writer_since = 0.0

    @property
    def properties(self) -> dict[str, str]:
        return dict(self._record.properties)

    @property
    def ledger_id(self) -> int:
        return self._record.ledger_id

    @property
    def ledger_last_entry(self) -> int:
        return -1 if self._writer is None else self._writer.last_add_confirmed

    # Beginning.

    def replace_old(self, owned: OwnedRecord, left: tuple[int, ...]) -> None:
        """Begin in the place of a cursor whose deletion was cut short, and that has left some ledgers."""
        self._owned = owned
        self._record = replace(self._record, doomed=left)

    async def create(self) -> None:
        """Make the cursor known.

        Raises:
            ManagedLedgerFenced, StorageUnavailable
        """
        await self._write_record(self._record)

    async def recover(self) -> CursorSnapshot:
        """The state as it was last written, by whoever owned the log. From here on only we can write it.

        Raises:
            StorageUnavailable: it cannot be read now.
            ManagedLedgerFenced: somebody else recovers it too.
        """
        record = self._record
        snapshot = record.snapshot
        if record.ledger_id >= 0:
            snapshot = await self._read_ledger(record.ledger_id) or snapshot
        if _fits(snapshot):
            doomed = (*record.doomed, record.ledger_id) if record.ledger_id >= 0 else record.doomed
            record = replace(record, snapshot=snapshot, ledger_id=-1, doomed=doomed)
        await self._write_record(record)
        return snapshot

    async def _read_ledger(self, ledger_id: int) -> CursorSnapshot | None:
        try:
            reader = await self._storage.ledgers.open(ledger_id, recover=True)
            if reader.last_confirmed < 0:
                return None
            entries = await reader.read(reader.last_confirmed, reader.last_confirmed)
            return decode_snapshot(self._name, entries[0].payload)
        except NoSuchLedger as error:
            reason: Exception = error
        except RecordUnreadable as error:
            reason = error
        except ReadFailed as error:
            if not error.absent:
                raise StorageUnavailable(self._storage.log_name, str(error)) from error
            reason = error
        except LedgerError as error:
            raise StorageUnavailable(self._storage.log_name, str(error)) from error
        # Better to deliver again what may have been acknowledged than to refuse the whole subscription.
        log.error("cursor.state_lost", log=self._storage.log_name, cursor=self._name, reason=str(reason))
        return None

    # Writing.

    async def persist(self, snapshot: CursorSnapshot) -> None:
        """Make a state durable.

        Raises:
            ManagedLedgerFenced, StorageUnavailable
        """
        data = encode_snapshot(snapshot)
        writer = self._writer
        if writer is not None and not self._is_full(writer):
            try:
                await _append(writer, data)
            except LedgerFenced as error:
                raise ManagedLedgerFenced(self._storage.log_name, str(error)) from error
            except LedgerError as error:
                log.warning(
                    "cursor.ledger_failed", log=self._storage.log_name, cursor=self._name, reason=str(error)
                )
            else:
                return
        await self._move_to_new_ledger(snapshot, data)

    async def _move_to_new_ledger(self, snapshot: CursorSnapshot, data: bytes) -> None:
        self._writer = None
        record = self._record
        old = (record.ledger_id,) if record.ledger_id >= 0 else ()
        config = self._storage.config()
        writer: LedgerWriter | None = None
        try:
            writer = await self._storage.ledgers.create(
                config.ensemble_size,
                config.write_quorum,
                config.ack_quorum,
                custom_metadata={
                    "application": b"magnetar",
                    "component": b"managed-ledger",
                    "managed-ledger": self._storage.log_name.encode(),
                    "cursor": self._name.encode(),
                },
            )
            await _append(writer, data)
        except LedgerFenced as error:
            raise ManagedLedgerFenced(self._storage.log_name, str(error)) from error
        except LedgerError as error:
            log.warning(
                "cursor.kept_in_metadata", log=self._storage.log_name, cursor=self._name, reason=str(error)
            )
            failed = () if writer is None else (writer.ledger_id,)
            await self._write_record(
                replace(
                    record,
                    snapshot=_small(self._name, snapshot),
                    ledger_id=-1,
                    doomed=(*record.doomed, *old, *failed),
                )
            )
            return
        crash_point("cursor.before_record")
        try:
            await self._write_record(
                replace(
                    record,
                    snapshot=CursorSnapshot(snapshot.mark_delete, properties=snapshot.properties),
                    ledger_id=writer.ledger_id,
                    doomed=(*record.doomed, *old),
                )
            )
        except StorageUnavailable:
            # It may be named by the record or not. The next write says that it is not.
            self._record = self._record_with_doomed(writer.ledger_id)
            raise
        self._writer = writer
        self._writer_since = self._storage.clock.monotonic()

    def _is_full(self, writer: LedgerWriter) -> bool:
        config = self._storage.config()
        return (
            writer.last_add_pushed + 1 >= config.max_entries_per_cursor_ledger
            or self._storage.clock.monotonic() - self._writer_since >= config.max_cursor_rollover_s
        )

    async def set_properties(self, properties: dict[str, str]) -> None:
        await self._write_record(replace(self._record, properties=properties))

    def _record_with_doomed(self, ledger_id: int) -> CursorRecord:
        return replace(self._record, doomed=(*self._record.doomed, ledger_id))

    async def _write_record(self, record: CursorRecord) -> None:
        await self._owned.write(lambda revision: encode_cursor(record, revision))
        self._record = record
        if record.doomed:
            self._storage.tasks.spawn(self._delete_doomed(record.doomed))

    async def _delete_doomed(self, doomed: tuple[int, ...]) -> None:
        """What the record no longer names goes. The record hears of it when it is written next."""
        for ledger_id in doomed:
            try:
                await self._storage.ledgers.delete(ledger_id)
            except LedgerError as error:
                log.warning("ledger.not_deleted", ledger_id=ledger_id, reason=str(error))
            else:
                left = tuple(each for each in self._record.doomed if each != ledger_id)
                self._record = replace(self._record, doomed=left)

    # The end.

    async def close(self, snapshot: CursorSnapshot, *, changed: bool) -> None:
        """Write the last state, where the next owner finds it soonest."""
        if self._writer is None and not changed:
            return
        if not _fits(snapshot):
            if changed:
                await self.persist(snapshot)
            return
        record = self._record
        old = (record.ledger_id,) if record.ledger_id >= 0 else ()
        await self._write_record(
            replace(record, snapshot=snapshot, ledger_id=-1, doomed=(*record.doomed, *old))
        )
        self._writer = None

    async def delete(self) -> None:
        """Delete the cursor and all that was kept of it. If this is cut short, the next open finishes it."""
        record = replace(self._record, deleted=True)
        if not self._record.deleted:
            crash_point("cursor.before_marked_deleted")
            await self._owned.write(lambda revision: encode_cursor(record, revision))
            crash_point("cursor.marked_deleted")
        self._record = record
        self._writer = None
        try:
            for ledger_id in record.ledger_ids:
                crash_point("cursor.before_ledger_delete")
                await self._storage.ledgers.delete(ledger_id)
        except LedgerError as error:
            raise StorageUnavailable(self._storage.log_name, str(error)) from error
        crash_point("cursor.before_record_delete")
        await self._owned.delete()


def _fits(snapshot: CursorSnapshot) -> bool:
    """Whether a state may lie in metadata as it is."""
    return (
        len(snapshot.ranges) <= RANGES_IN_METADATA
        and len(encode_snapshot(snapshot)) <= STATE_BYTES_IN_METADATA
    )


def _small(name: str, snapshot: CursorSnapshot) -> CursorSnapshot:
    """As much of a state as may lie in metadata: what is left out is delivered again after a restart."""
    if _fits(snapshot):
        return snapshot
    small = replace(snapshot, ranges=snapshot.ranges[:RANGES_IN_METADATA])
    parts = len(small.ack_sets)
    while parts and not _fits(small):
        parts //= 2
        small = replace(small, ack_sets=snapshot.ack_sets[:parts])
    log.warning(
        "cursor.state_left_out",
        cursor=name,
        ranges=len(snapshot.ranges) - len(small.ranges),
        ack_sets=len(snapshot.ack_sets) - parts,
    )
    return small


async def _append(writer: LedgerWriter, data: bytes) -> None:
    stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(entry_id: int, error: LedgerError | None) -> None:
        if not stored.done():
            if error is None:
                stored.set_result(None)
            else:
                stored.set_exception(error)

    writer.append((data,), done)
    await stored
