"""Keeps a topic's deduplication marks across restarts.

The marks are saved as properties of a durable cursor, `pulsar.dedup`, that stands at the last entry they
cover. Trimming and retention respect it as they respect any cursor, so that what lies behind it can always
be replayed: at load the saved marks are taken, and every entry after them is read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

from magnetar.broker.deduplication import Deduplication
from magnetar.broker.sequence_ids import stored_sequences
from magnetar.environment.logs import get_logger
from magnetar.managed_ledger.errors import ManagedLedgerError
from magnetar.protocol.errors import ProtocolError
from magnetar.protocol.message import split_message
from magnetar.protocol.texts import text

if TYPE_CHECKING:
    from magnetar.broker.context import BrokerContext
    from magnetar.managed_ledger import Cursor, Entry, ManagedLedger, Position

log = get_logger("magnetar.broker")

DEDUPLICATION_CURSOR: Final = "pulsar.dedup"


class DeduplicationCursor:
    """The durable side of a topic's deduplication."""

    def __init__(self, ledger: ManagedLedger, context: BrokerContext) -> None:
        self.marks = Deduplication()
        self.status = "Disabled"
        """As stats tell it: Disabled, Recovering, Enabled, Removing or Failed."""
        self.duplicates = 0
        """Entries answered without being stored."""
        self.cuts = 0
        """Batches stored without their first messages."""
        self._ledger = ledger
        self._context = context
        self._cursor: Cursor | None = None
        self._unsaved_entries = 0
        self._saved_at = context.clock.monotonic()
        self._saving = False

    @property
    def tracking(self) -> bool:
        """Whether what is stored counts for the marks."""
        return self.status in ("Recovering", "Enabled")

    @property
    def enabled(self) -> bool:
        """Whether the marks are complete, and judge."""
        return self.status == "Enabled"

    async def enable(self) -> None:
        """Recover the marks. Messages stored meanwhile count already; none is judged before it is done."""
        self.status = "Recovering"
        try:
            cursor = await self._ledger.open_cursor(DEDUPLICATION_CURSOR, initial="latest")
            now = self._context.clock.monotonic()
            self.marks.restore(cursor.properties, now)
            replayed = await self._replay(cursor, now)
        except BaseException:
            self.status = "Failed"
            raise
        self._cursor = cursor
        self.status = "Enabled"
        self._unsaved_entries = replayed
        self._saved_at = now
        log.info(
            "deduplication.recovered",
            ledger=self._ledger.name,
            producers=len(self.marks),
            replayed_entries=replayed,
        )

    async def _replay(self, cursor: Cursor, now: float) -> int:
        replayed = 0
        settings = self._context.settings
        cursor.rewind()
        while cursor.has_more():
            entries = await cursor.read(settings.dispatch_entries, settings.dispatch_bytes)
            if not entries:
                break
            for entry in entries:
                self._replay_entry(entry, now)
            replayed += len(entries)
        return replayed

    def _replay_entry(self, entry: Entry, now: float) -> None:
        try:
            message = split_message(entry.data, verify=False)
        except ProtocolError:
            return  # Never stored by a broker of ours; nothing to learn from it.
        metadata = message.metadata
        chunks = metadata.num_chunks_from_msg
        if metadata.HasField("marker_type") or (chunks > 1 and metadata.chunk_id < chunks - 1):
            return
        self.marks.replay(text(metadata.producer_name), stored_sequences(message), now)

    async def disable(self) -> None:
        """Forget all marks, and let go of what they pinned."""
        self.status = "Removing"
        self._cursor = None
        self.marks = Deduplication()
        if DEDUPLICATION_CURSOR in self._ledger.cursors:
            await self._ledger.delete_cursor(DEDUPLICATION_CURSOR)
        self.status = "Disabled"

    def stored(self, position: Position) -> None:
        """An entry was stored, and the marks know it. They are saved after every so many."""
        self._unsaved_entries += 1
        if self._unsaved_entries >= self._context.settings.deduplication_snapshot_entries:
            self._save(position)

    def tick(self, connected: Collection[str], snapshot_interval_s: float) -> None:
        """Forget those that are long gone, and save what was not saved for so long; 0: however long."""
        if not self.enabled:
            return
        settings = self._context.settings
        now = self._context.clock.monotonic()
        forgotten = self.marks.forget(
            connected,
            idle_since=now - settings.deduplication_inactivity_s,
            keep=settings.deduplication_max_producers,
        )
        if forgotten:
            log.info("deduplication.producers_forgotten", ledger=self._ledger.name, producers=len(forgotten))
        overdue = 0 < snapshot_interval_s <= now - self._saved_at
        if forgotten or (self._unsaved_entries and overdue):
            self._save(self._ledger.last_confirmed)

    def save_now(self) -> None:
        """Save what was not saved yet, so that the log need not keep it for us."""
        if self.enabled and self._unsaved_entries:
            self._save(self._ledger.last_confirmed)

    def _save(self, position: Position) -> None:
        """Save the marks as they are: they cover everything up to `position`, and nothing beyond it.

        In two steps, for what a cursor has passed may be trimmed before the cursor is written. The marks go
        first, with the cursor where it was; only when they are durable it moves on. Marks that cover more
        than the cursor has passed do no harm: replaying what they know changes nothing.
        """
        cursor = self._cursor
        if cursor is None or self._saving or position.entry_id < 0:
            return
        self._saving = True
        self._unsaved_entries = 0
        self._saved_at = self._context.clock.monotonic()
        saving = self._save_then_move(cursor, self.marks.snapshot(), position)
        self._context.tasks.start(saving, f"save the deduplication marks of {self._ledger.name}")

    async def _save_then_move(self, cursor: Cursor, marks: Mapping[str, int], position: Position) -> None:
        try:
            cursor.acknowledge_cumulative(cursor.mark_delete, properties=marks)
            await cursor.flush()
            cursor.acknowledge_cumulative(position)
        except ManagedLedgerError as error:
            log.warning("deduplication.not_saved", ledger=self._ledger.name, reason=str(error))
        finally:
            self._saving = False

    async def close(self) -> None:
        """Save once more, so that the next load has nothing to replay."""
        cursor, position = self._cursor, self._ledger.last_confirmed
        if cursor is not None and self.enabled and self._unsaved_entries and position.entry_id >= 0:
            await self._save_then_move(cursor, self.marks.snapshot(), position)
