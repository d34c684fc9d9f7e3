"""The cursors of one log by name: made, brought back, closed and deleted, one thing at a time for each name."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from magnetar.environment.logs import get_logger
from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.cursor_state import CursorSnapshot, CursorState
from magnetar.managed_ledger.cursor_store import CursorStorage, CursorStore
from magnetar.managed_ledger.errors import (
    CursorClosed,
    ManagedLedgerError,
    ManagedLedgerFenced,
    NoSuchCursor,
    StorageUnavailable,
)
from magnetar.managed_ledger.owned_record import OwnedRecord
from magnetar.managed_ledger.position import Position
from magnetar.managed_ledger.records import CursorRecord, cursor_path, decode_cursor
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore, Versioned

if TYPE_CHECKING:
    from magnetar.managed_ledger.managed_ledger import ManagedLedger

log = get_logger("magnetar.managed_ledger")

T = TypeVar("T")


class CursorSet:
    def __init__(self, owner: ManagedLedger, metadata: MetadataStore, dice: random.Random) -> None:
        self.cursors: dict[str, Cursor] = {}
        self._owner = owner
        self._metadata = metadata
        self._dice = dice
        self._storage = CursorStorage(
            owner.name, owner.client, lambda: owner.config, owner.clock, owner.tasks
        )
        self._busy: dict[str, asyncio.Future[None]] = {}
        """Names whose stored state is being made, closed or deleted."""

    async def open(
        self, name: str, *, start: Position | None, durable: bool, properties: dict[str, str]
    ) -> Cursor:
        """The cursor `name`, or a new one that reads from `start` on, or else what is appended from now on."""
        await self._until_free(name)
        cursor = self.cursors.get(name)
        if cursor is not None:
            return cursor
        ledgers = self._owner.ledgers
        state = CursorState(ledgers, ledgers.last_position)
        if start is not None:
            state.reset(start)
        if not durable:
            cursor = self.cursors[name] = Cursor(self._owner, name, state, None)
            return cursor
        record = CursorRecord(
            CursorSnapshot(state.mark_delete), properties=properties, incarnation=self._incarnation
        )
        store = CursorStore(name, self._storage, self._owned(name), record)
        # It counts from now on, so that nothing it has not seen is trimmed while its record is written.
        cursor = self.cursors[name] = Cursor(self._owner, name, state, store)
        return await self.alone_with(name, self._make(cursor, store))

    async def _make(self, cursor: Cursor, store: CursorStore) -> Cursor:
        name = cursor.name
        try:
            found = await self._read(name)
            if found is not None:
                record = decode_cursor(name, found.value)
                if self._is_alive(record):
                    await self._restore(name, found, record)
                    return self.cursors[name]
                # In place of the old record, not after its deletion: then versions go on, and who still is
                # at work on the old one finds himself outrun.
                store.replace_old(self._owned(name, found.version), record.named_ledgers)
            await store.create()
            await self._verify(store)
        except BaseException:
            if self.cursors.get(name) is cursor:
                del self.cursors[name]
            raise
        if self.cursors.get(name) is not cursor:
            self._owner.check_open()  # The log was closed meanwhile, and the cursor with it.
            raise CursorClosed(name)
        return cursor

    async def _verify(self, store: CursorStore) -> None:
        """Make sure that the new cursor is not one of somebody else's log."""
        try:
            await self._owner.keeper.verify()
        except ManagedLedgerFenced:
            try:
                await store.delete()
            except ManagedLedgerError as error:
                log.warning("cursor.left_behind", log=self._owner.name, reason=str(error))
            raise

    async def restore(self, name: str) -> None:
        """Bring back a cursor that the metadata name.

        Raises:
            StorageUnavailable, ManagedLedgerFenced, RecordUnreadable
        """
        found = await self._read(name)
        if found is None:
            return
        record = decode_cursor(name, found.value)
        if self._is_alive(record):
            await self._restore(name, found, record)
        else:  # A deletion that was cut short.
            store = CursorStore(name, self._storage, self._owned(name, found.version), record)
            await store.delete()

    async def _restore(self, name: str, found: Versioned, record: CursorRecord) -> None:
        store = CursorStore(name, self._storage, self._owned(name, found.version), record)
        snapshot = await store.recover()
        state = CursorState.restored(self._owner.ledgers, snapshot)
        self.cursors[name] = Cursor(self._owner, name, state, store)

    @property
    def _incarnation(self) -> str:
        return self._owner.keeper.record.incarnation

    def _is_alive(self, record: CursorRecord) -> bool:
        """Whether it is a cursor of this log, and not what is left of one, or of an earlier log's."""
        return not record.deleted and record.belongs_to(self._incarnation)

    async def delete(self, name: str) -> None:
        """
        Raises:
            NoSuchCursor, StorageUnavailable, ManagedLedgerFenced
        """
        await self._until_free(name)
        cursor = self.cursors.get(name)
        if cursor is None:
            raise NoSuchCursor(self._owner.name, name)
        await cursor.delete()

    def forget(self, cursor: Cursor) -> None:
        """It was closed."""
        if self.cursors.get(cursor.name) is cursor:
            del self.cursors[cursor.name]
        self._owner.cursor_closed()

    async def alone_with(self, name: str, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` on what is stored of the cursor `name`, after what is being done with it; whoever asks for it
        meanwhile waits for the end."""
        before = self._busy.get(name)  # A log is closed while one of its cursors is still being made.
        done = self._busy[name] = asyncio.get_running_loop().create_future()

        async def then_free() -> T:
            if before is not None:
                await asyncio.wait([before])
            try:
                return await work
            finally:
                if self._busy.get(name) is done:
                    del self._busy[name]
                done.set_result(None)

        return await self._owner.tasks.shielded(then_free())

    async def _until_free(self, name: str) -> None:
        while (busy := self._busy.get(name)) is not None:
            await asyncio.wait([busy])
        self._owner.check_open()

    async def _read(self, name: str) -> Versioned | None:
        try:
            return await self._metadata.get(cursor_path(self._owner.name, name))
        except MetadataError as error:
            raise StorageUnavailable(self._owner.name, str(error) or type(error).__name__) from error

    def _owned(self, name: str, version: int = MUST_NOT_EXIST) -> OwnedRecord:
        return OwnedRecord(
            self._metadata,
            cursor_path(self._owner.name, name),
            version=version,
            clock=self._owner.clock,
            dice=self._dice,
            patience_s=self._owner.config.storage_retry_s,
        )
