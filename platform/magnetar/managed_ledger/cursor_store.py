"""Where a durable cursor's state is kept: in a ledger of its own, or, if it is small, in its record in metadata.

The ledger begins with a checkpoint of the whole state; increments follow, and other checkpoints when they have
grown large (`cursor_records.py`). So holes cost nothing to write but once, however many there are, and none is
ever left out.

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
from magnetar.ledger.errors import (
    LedgerError,
    LedgerFenced,
    MetadataUnavailable,
    NoSuchLedger,
    QuorumLost,
    ReadFailed,
    TooManyPending,
)
from magnetar.ledger.owned_tasks import OwnedTasks
from magnetar.ledger.reader import LedgerReader
from magnetar.ledger.writer import LedgerWriter
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.creation import NewLedger, new_ledger
from magnetar.managed_ledger.cursor_records import (
    RECORD_BYTES_MAX,
    encode_change,
    is_replayed,
    read_head,
    replay,
)
from magnetar.managed_ledger.cursor_state import CursorImage, CursorSnapshot, CursorState
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

_SMALL_WEIGHT = 8
"""A state of so few pieces is written whole each time: then one entry is all that recovery reads."""

_INCREMENTS_PER_CHECKPOINT = 4
"""So many times its size may follow a checkpoint before the next: what recovery reads at most, against what is
written beside the changes themselves."""

_APPEND_PATIENCE_S = 30.0


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
        self._checkpoint = 0
        """The entry with which the ledger's last checkpoint begins."""
        self._checkpoint_bytes = 0
        self._increment_bytes = 0
        """Of what follows it."""
        self.lost = ""
        """Why what was written last could not be recovered, if so."""

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

    async def recover(self) -> CursorImage:
        """The state as it was last written, by whoever owned the log. From here on only we can write it.

        Raises:
            StorageUnavailable: it cannot be read now.
            ManagedLedgerFenced: somebody else recovers it too.
        """
        record = self._record
        image = CursorImage.of(record.snapshot)
        if record.ledger_id >= 0:
            image = await self._read_ledger(record.ledger_id) or image
        snapshot = _small(image)
        if snapshot is not None:
            record = replace(record, snapshot=snapshot, ledger_id=-1, doomed=record.ledger_ids)
        await self._write_record(record)
        return image

    async def _read_ledger(self, ledger_id: int) -> CursorImage | None:
        try:
            reader = await self._storage.ledgers.open(ledger_id, recover=True)
            image = await self._read_last(reader)
            if image is not None:
                return image
            reason: Exception = RecordUnreadable(f"ledger {ledger_id}", "it holds no whole state")
        except NoSuchLedger as error:
            reason = error
        except RecordUnreadable as error:
            reason = error
        except ReadFailed as error:
            if not error.absent:
                raise StorageUnavailable(self._storage.log_name, str(error)) from error
            reason = error
        except LedgerError as error:
            raise StorageUnavailable(self._storage.log_name, str(error)) from error
        # Better to deliver again what may have been acknowledged than to refuse the whole subscription.
        self.lost = f"ledger {ledger_id}: {reason}"
        log.error(
            "cursor.state_lost",
            log=self._storage.log_name,
            cursor=self._name,
            ledger_id=ledger_id,
            goes_on_from=str(self._record.snapshot.mark_delete),
            reason=str(reason),
        )
        return None

    async def _read_last(self, reader: LedgerReader) -> CursorImage | None:
        """The last whole state in a ledger."""
        last = reader.last_confirmed
        while last >= 0:
            (entry,) = await reader.read(last, last)
            if not is_replayed(entry.payload):
                return CursorImage.of(decode_snapshot(self._name, entry.payload))
            first = read_head(self._name, entry.payload).checkpoint
            records: list[bytes | memoryview] = []
            while first + len(records) < last:
                found = await reader.read(first + len(records), last - 1)
                records += [each.payload for each in found]
            image = replay(self._name, [*records, entry.payload])
            if image is not None:
                return image
            last = first - 1  # The checkpoint was cut short: what was there before it holds.
        return None

    # Writing.

    async def persist(self, state: CursorState) -> None:
        """Make a state durable, as it is now.

        Raises:
            ManagedLedgerFenced, StorageUnavailable
        """
        writer = self._writer
        if writer is not None and not self._is_full(writer) and not state.voided:
            try:
                await self._append(writer, self._encode(state, writer.last_add_pushed + 1))
            except LedgerFenced as error:
                raise ManagedLedgerFenced(self._storage.log_name, str(error)) from error
            except LedgerError as error:
                log.warning(
                    "cursor.ledger_failed", log=self._storage.log_name, cursor=self._name, reason=str(error)
                )
            else:
                return
        await self._move_to_new_ledger(state)

    def _encode(self, state: CursorState, next_entry: int) -> list[bytes]:
        """What must be appended to have `state` in the ledger."""
        largest = max(_INCREMENTS_PER_CHECKPOINT * self._checkpoint_bytes, RECORD_BYTES_MAX)
        if state.weight <= _SMALL_WEIGHT or self._increment_bytes > largest:
            return self._encode_whole(state.whole(), next_entry)
        change = state.change()
        records = encode_change(
            change.image,
            anew=False,
            properties=change.properties_changed,
            checkpoint=self._checkpoint,
            bytes_max=RECORD_BYTES_MAX,
        )
        self._increment_bytes += sum(map(len, records))
        return records

    def _encode_whole(self, image: CursorImage, next_entry: int) -> list[bytes]:
        records = encode_change(
            image, anew=True, properties=True, checkpoint=next_entry, bytes_max=RECORD_BYTES_MAX
        )
        self._checkpoint = next_entry
        self._checkpoint_bytes = sum(map(len, records))
        self._increment_bytes = 0
        return records

    async def _move_to_new_ledger(self, state: CursorState) -> None:
        self._writer = None
        record = self._record
        image = state.whole()
        records, snapshot = self._encode_whole(image, 0), _small(image)
        bare = CursorSnapshot(image.mark_delete, properties=dict(image.properties))
        try:
            writer = await self._new_ledger(records)
        except LedgerError as error:
            if snapshot is None:
                # Never a part of it: what is written holds, until the whole can be written again.
                raise StorageUnavailable(self._storage.log_name, str(error)) from error
            log.warning(
                "cursor.kept_in_metadata", log=self._storage.log_name, cursor=self._name, reason=str(error)
            )
            await self._write_record(
                replace(record, snapshot=snapshot, ledger_id=-1, doomed=record.ledger_ids)
            )
            return
        crash_point("cursor.before_record")
        try:
            await self._write_record(
                replace(
                    record,
                    snapshot=snapshot or (bare if _fits(bare) else CursorSnapshot(image.mark_delete)),
                    ledger_id=writer.writer.ledger_id,
                    doomed=record.ledger_ids,
                )
            )
            crash_point("cursor.after_record")
            await writer.check(self._storage.ledgers, self._storage.log_name)
        except ManagedLedgerFenced:
            self._storage.tasks.spawn(self._storage.ledgers.delete(writer.writer.ledger_id))
            raise
        except (StorageUnavailable, LedgerError) as error:
            # It may be named by the record or not. The next write says that it is not.
            self._record = self._record_with_doomed(writer.writer.ledger_id)
            raise StorageUnavailable(self._storage.log_name, str(error)) from error
        self._writer = writer.writer
        self._writer_since = self._storage.clock.monotonic()

    async def _new_ledger(self, records: list[bytes]) -> NewLedger:
        """A ledger that holds `records`, and that nothing names yet."""
        storage = self._storage
        try:
            async with asyncio.timeout(storage.config().storage_retry_s):
                made = await new_ledger(
                    storage.ledgers, storage.clock, storage.config(), storage.log_name, cursor=self._name
                )
        except TimeoutError as error:
            raise MetadataUnavailable("creating a cursor's ledger", "it took too long") from error
        crash_point("cursor.ledger_created")
        try:
            await self._append(made.writer, records)
        except LedgerFenced as error:
            raise ManagedLedgerFenced(storage.log_name, str(error)) from error
        except LedgerError:
            storage.tasks.spawn(storage.ledgers.delete(made.writer.ledger_id))
            raise
        return made

    async def _append(self, writer: LedgerWriter, records: list[bytes]) -> None:
        """Append all of them. Whatever happens, it ends: a ledger that does not answer has failed.

        Raises:
            LedgerError
        """
        left = len(records)
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(entry_id: int, error: LedgerError | None) -> None:
            nonlocal left
            left -= 1
            if stored.done():
                return
            if error is not None:
                stored.set_exception(error)
            elif not left:
                stored.set_result(None)

        try:
            async with asyncio.timeout(max(self._storage.config().storage_retry_s, _APPEND_PATIENCE_S)):
                for data in records:
                    while not stored.done():
                        try:
                            writer.append((data,), done)
                            break
                        except TooManyPending:  # The ledger is well; all of them together have too much.
                            await self._storage.ledgers.room()
                await stored
        except TimeoutError as error:
            raise QuorumLost(writer.ledger_id, "its bookies do not answer") from error

    def _is_full(self, writer: LedgerWriter) -> bool:
        config = self._storage.config()
        return (
            writer.last_add_pushed + 1 >= config.max_entries_per_cursor_ledger
            or self._storage.clock.monotonic() - self._writer_since >= config.max_cursor_rollover_s
        )

    async def set_properties(self, properties: dict[str, str]) -> None:
        await self._write_record(replace(self._record, properties=properties))

    def _record_with_doomed(self, ledger_id: int) -> CursorRecord:
        record = self._record
        if record.ledger_id == ledger_id:
            return replace(record, ledger_id=-1, doomed=record.ledger_ids)
        return replace(record, doomed=(*record.doomed, ledger_id))

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

    async def close(self, state: CursorState, *, changed: bool) -> None:
        """Write the last state, where the next owner finds it soonest."""
        if self._writer is None and not changed:
            return
        snapshot = _small(state.image())
        if snapshot is None:
            if changed:
                await self.persist(state)
            return
        record = self._record
        await self._write_record(replace(record, snapshot=snapshot, ledger_id=-1, doomed=record.ledger_ids))
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
            for ledger_id in record.named_ledgers:
                crash_point("cursor.before_ledger_delete")
                await self._storage.ledgers.delete(ledger_id)
        except LedgerError as error:
            raise StorageUnavailable(self._storage.log_name, str(error)) from error
        crash_point("cursor.before_record_delete")
        await self._owned.delete()


def _small(image: CursorImage) -> CursorSnapshot | None:
    """A state as it may lie in metadata; None if there is too much of it."""
    snapshot = image.small(max_ranges=RANGES_IN_METADATA, max_ack_sets=RANGES_IN_METADATA)
    return snapshot if snapshot is not None and _fits(snapshot) else None


def _fits(snapshot: CursorSnapshot) -> bool:
    return len(encode_snapshot(snapshot)) <= STATE_BYTES_IN_METADATA
