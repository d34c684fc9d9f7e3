"""The end of a log: what a record marked as deleted still has is deleted, by whoever finds it, however often.

A log, or a cursor, is marked as deleted by compare-and-set before anything of it goes. So its owner can write
it no more, and a deletion that was cut short at any point is found and finished: by the next who opens or
deletes the log, or by the sweeper. Each log has an incarnation, which its cursors name: who finishes the
deletion of one incarnation late never touches the cursors of the next.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import partial

from magnetar.environment.clock import Clock
from magnetar.environment.crash import crash_point
from magnetar.environment.logs import get_logger
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError, NoSuchLedger
from magnetar.managed_ledger.chapters import ChapterMissing, ChapterStore
from magnetar.managed_ledger.errors import (
    ManagedLedgerFenced,
    NoSuchLedgerInLog,
    NoSuchManagedLedger,
    RecordUnreadable,
    StorageUnavailable,
)
from magnetar.managed_ledger.owned_record import OwnedRecord
from magnetar.managed_ledger.records import (
    CursorRecord,
    LogRecord,
    cursor_path,
    decode_cursor,
    decode_log,
    decode_name,
    encode_cursor,
    encode_log,
    log_path,
)
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore, Versioned

log = get_logger("magnetar.managed_ledger")

_PATIENCE_S = 15.0

INDEXES_LEFT_OUT = 1 << 24
"""Of a ledger that was never closed, and is lost: more messages than it can have held."""


@dataclass(frozen=True, slots=True)
class LogRemover:
    """Deletes logs and cursors that nobody has open."""

    metadata: MetadataStore
    client: LedgerClient
    clock: Clock
    dice: random.Random

    async def delete(self, name: str) -> None:
        """Delete the log `name`, its cursors and all their ledgers.

        Raises:
            NoSuchManagedLedger, StorageUnavailable, ManagedLedgerFenced
        """
        record, version = await self.read_record(name)
        if record is None:
            raise NoSuchManagedLedger(name)
        owned = self.owned(log_path(name), version)
        if not record.deleted:
            record = deleted = replace(record, deleted=True)
            await owned.write(lambda revision: encode_log(deleted, revision))
            crash_point("managed_ledger.marked_deleted")
        await self.empty(name, record)
        await owned.delete()
        log.info("log.deleted", log=name)

    async def empty(self, name: str, record: LogRecord) -> None:
        """Delete all that a log marked as deleted has, but for its record.

        Raises:
            StorageUnavailable
            ManagedLedgerFenced: somebody else does it too, or has made the log anew.
        """
        try:
            for part in await self.children(name, log_path(name)):
                await self.delete_cursor(name, decode_name(part), record.incarnation)
            for each in record.ledgers:
                if not each.closed_ms:
                    await self._fence(each.ledger_id)  # A previous owner must not write into nothing.
                crash_point("managed_ledger.before_ledger_delete")
                await self.client.delete(each.ledger_id)
            for ledger_id in (*record.doomed, *(each.ledger_id for each in record.lost)):
                crash_point("managed_ledger.before_ledger_delete")
                await self.client.delete(ledger_id)
        except LedgerError as error:
            raise StorageUnavailable(name, str(error)) from error
        if record.chapters:
            await self.chapters.delete(name, record.chapters, all_of_them=True)
        crash_point("managed_ledger.before_record_delete")

    async def delete_cursor(self, log_name: str, name: str, incarnation: str) -> None:
        """Delete a cursor of a log that is being deleted, or one whose own deletion was cut short."""
        path = cursor_path(log_name, name)
        found = await self.get(log_name, path)
        if found is None:
            return
        record = self._cursor(name, found)
        if record is not None and not record.belongs_to(incarnation):
            raise ManagedLedgerFenced(log_name, "it was made anew, while its deletion was being finished")
        owned = self.owned(path, found.version)
        if record is not None:
            if not record.deleted:
                deleted = replace(record, deleted=True)
                await owned.write(lambda revision: encode_cursor(deleted, revision))
                crash_point("cursor.marked_deleted")
            for ledger_id in record.named_ledgers:
                crash_point("cursor.before_ledger_delete")
                await self.client.delete(ledger_id)
        crash_point("cursor.before_record_delete")
        await owned.delete()

    async def give_up(self, name: str, ledger_id: int) -> str:
        """Let a log that nobody has open here go on without a ledger that is lost. Whoever has it is deposed.

        Raises:
            NoSuchManagedLedger, NoSuchLedgerInLog, StorageUnavailable, ManagedLedgerFenced
        """
        record, version = await self.read_record(name)
        if record is None or record.deleted:
            raise NoSuchManagedLedger(name)
        for each in record.ledgers:
            if each.ledger_id == ledger_id:
                changed = record.with_lost(ledger_id, self.clock.time_ms(), INDEXES_LEFT_OUT)
                owned = self.owned(log_path(name), version)
                await owned.write(partial(encode_log, changed))
                log.error("ledger.given_up", log=name, ledger_id=ledger_id, entries=each.entries)
                known = f"{each.entries} entries, {each.size} bytes"
                return known if each.closed_ms else "the log's last entries: nobody knows how many"
        for part in await self.children(name, log_path(name)):
            cursor = decode_name(part)
            path = cursor_path(name, cursor)
            found = await self.get(name, path)
            kept = self._cursor(cursor, found) if found is not None else None
            if found is not None and kept is not None and kept.ledger_id == ledger_id:
                given_up = replace(kept, ledger_id=-1, doomed=kept.ledger_ids)
                owned = self.owned(path, found.version)
                await owned.write(partial(encode_cursor, given_up))
                mark = kept.snapshot.mark_delete
                log.error("cursor.state_given_up", log=name, cursor=cursor, goes_on_from=str(mark))
                return f"the state of cursor {cursor!r}: it goes on from {mark}"
        raise NoSuchLedgerInLog(name, ledger_id)

    def _cursor(self, name: str, found: Versioned) -> CursorRecord | None:
        try:
            return decode_cursor(name, found.value)
        except RecordUnreadable as error:
            # It must not keep the log for ever. Ledgers it has named are found by the sweeper.
            log.error("cursor.deleted_unread", cursor=name, reason=str(error))
            return None

    async def _fence(self, ledger_id: int) -> None:
        try:
            await self.client.open(ledger_id, recover=True)
        except NoSuchLedger:
            return
        except LedgerError as error:
            log.warning("ledger.not_fenced", ledger_id=ledger_id, reason=str(error))

    # Metadata.

    async def read_record(self, name: str) -> tuple[LogRecord | None, int]:
        """The record of the log `name` with all its ledgers, and its version.

        Raises:
            StorageUnavailable, RecordUnreadable
        """
        while True:
            record, version = await self.read_head(name)
            if record is None:
                return None, version
            try:
                return await self.chapters.with_chapters(name, record), version
            except ChapterMissing as error:
                _, again = await self.read_head(name)
                if again == version:
                    what = f"the ledgers of log {name!r}"
                    raise RecordUnreadable(what, f"chapter {error} is missing") from error

    async def read_head(self, name: str) -> tuple[LogRecord | None, int]:
        """The same, without those ledgers that are listed elsewhere."""
        found = await self.get(name, log_path(name))
        if found is None or not found.value:
            # A parent made for the sake of a child is no log.
            return None, MUST_NOT_EXIST if found is None else found.version
        return decode_log(name, found.value), found.version

    @property
    def chapters(self) -> ChapterStore:
        return ChapterStore(self.metadata)

    def owned(self, path: str, version: int, patience_s: float = _PATIENCE_S) -> OwnedRecord:
        return OwnedRecord(
            self.metadata,
            path,
            version=version,
            clock=self.clock,
            dice=self.dice,
            patience_s=patience_s,
        )

    async def get(self, name: str, path: str) -> Versioned | None:
        try:
            return await self.metadata.get(path)
        except MetadataError as error:
            raise StorageUnavailable(name, str(error) or type(error).__name__) from error

    async def children(self, name: str, path: str) -> list[str]:
        try:
            return await self.metadata.children(path)
        except MetadataError as error:
            raise StorageUnavailable(name, str(error) or type(error).__name__) from error
