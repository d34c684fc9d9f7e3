"""A topic's transaction buffer: it lets nobody see what is not committed, also after a restart.

The state lies in `visibility.py`. It is kept with a cursor of the topic's log, as properties; the cursor stands at or
before the entry up to which they go, so that what came later is still there to be read again. Decision 0060.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.errors import InvalidTransactionStatus, MetadataFailed
from magnetar.broker.filters import Verdict
from magnetar.broker.transactions.markers import commits, marker, txn_of
from magnetar.broker.transactions.txn_id import TxnId
from magnetar.broker.transactions.visibility import Visibility
from magnetar.environment.crash import crash_point
from magnetar.environment.logs import get_logger
from magnetar.managed_ledger import Position
from magnetar.managed_ledger.errors import ManagedLedgerError
from magnetar.protocol.errors import ProtocolError
from magnetar.protocol.message import read_metadata

if TYPE_CHECKING:
    from magnetar.broker.context import BrokerContext
    from magnetar.managed_ledger import Cursor, Entry, ManagedLedger
    from magnetar.protocol.pulsar_pb2 import MessageMetadata

log = get_logger("magnetar.broker")

BUFFER_CURSOR: Final = "__transaction_buffer"

_MOVE_ON_S: Final = 60.0
"""So often the cursor follows a topic whose transactions are long past."""


class TransactionBuffer:
    """The transactions of one topic."""

    def __init__(
        self, ledger: ManagedLedger, context: BrokerContext, cursor: Cursor, changed: Callable[[], None]
    ) -> None:
        """`changed` is called whenever more, or less, may be seen."""
        self.state = Visibility()
        self.committed = 0
        self.aborted = 0
        self.snapshot_ms = 0
        """When the state was last stored."""
        self._ledger = ledger
        self._context = context
        self._cursor = cursor
        self._changed = changed
        self._ending: dict[TxnId, asyncio.Future[None]] = {}
        self._untold: set[TxnId] = set()
        """Ended in memory, by no marker, and nowhere else yet: storing it failed."""
        self._unsaved = 0
        self._saved_at = context.clock.monotonic()
        self._saved_through = Position(-1, -1)
        self._saving = asyncio.Lock()

    @classmethod
    async def open(
        cls, ledger: ManagedLedger, context: BrokerContext, changed: Callable[[], None]
    ) -> TransactionBuffer:
        """The buffer of a log; made, and stored, if there is none. Before that no transaction may write."""
        made = BUFFER_CURSOR not in ledger.cursors
        cursor = await ledger.open_cursor(BUFFER_CURSOR, initial="latest")
        buffer = cls(ledger, context, cursor, changed)
        if made or not cursor.properties:
            # What is stored from here on is told to the state, or else read again from here.
            buffer.state.passed(ledger.last_confirmed)
            await buffer._save(move=False)
            crash_point("transaction_buffer.made")
        else:
            await buffer._recover()
        return buffer

    async def _recover(self) -> None:
        try:
            self.state = Visibility.decode(self._cursor.properties)
        except (ValueError, KeyError) as error:
            raise MetadataFailed(f"the transaction buffer of {self._ledger.name}: {error}") from error
        replayed = 0
        settings = self._context.settings
        self._cursor.rewind()
        while self._cursor.has_more():
            entries = await self._cursor.read(settings.dispatch_entries, settings.dispatch_bytes)
            for entry in entries:
                self._replay(entry)
            replayed += len(entries)
        self._cursor.deactivate()
        self.state.passed(self._ledger.last_confirmed)
        self._unsaved = replayed
        log.info(
            "transaction_buffer.recovered",
            ledger=self._ledger.name,
            open=len(self.state.open),
            aborted=len(self.state.aborted),
            replayed_entries=replayed,
        )

    def _replay(self, entry: Entry) -> None:
        try:
            metadata = read_metadata(entry.data)
        except ProtocolError:
            return  # Nobody will see it anyway.
        txn = txn_of(metadata)
        if txn is None:
            self.state.passed(entry.position)
        elif (commit := commits(metadata)) is not None:
            self.state.marker(txn, entry.position, commit=commit)
        elif not metadata.HasField("marker_type"):
            self.state.entry(txn, entry.position)

    # What may be seen.

    @property
    def limit(self) -> Position | None:
        """The first entry that nobody may see yet; None: everything may be seen."""
        return self.state.limit

    def judge(self, entry: Entry, metadata: MessageMetadata) -> Verdict:
        """A filter of what subscriptions deliver: nothing of an aborted transaction."""
        if metadata.txnid_least_bits and self.hides(metadata):
            return Verdict.NEVER
        return Verdict.DELIVER

    def hides(self, metadata: MessageMetadata) -> bool:
        """Whether an entry of a transaction, at or before the limit, is nobody's."""
        return self.state.hides(TxnId(metadata.txnid_most_bits, metadata.txnid_least_bits))

    # What comes.

    def check_open(self, txn: TxnId) -> None:
        """
        Raises:
            InvalidTransactionStatus: it has ended, as far as is known here, or is being ended.
        """
        if txn in self.state.ended or txn in self._ending:
            raise InvalidTransactionStatus(f"transaction {txn} has ended: send in another one")

    def stored(self, txn: TxnId, position: Position) -> None:
        """A message of a transaction is in the log."""
        self._unsaved += 1
        if self.state.entry(txn, position):
            self._changed()

    async def end(self, txn: TxnId, *, commit: bool, watermark: int) -> None:
        """Write down how a transaction ended, unless that is done already. What it wrote may be seen, or never.

        Raises:
            ManagedLedgerError: it may be written down or not; ask again.
        """
        self.state.ended.raise_watermark(txn.most, watermark)
        await self._end(txn, commit=commit)

    async def _end(self, txn: TxnId, *, commit: bool) -> None:
        ending = self._ending.get(txn)
        if ending is None:
            if txn in self.state.ended and txn not in self.state.open and txn not in self._untold:
                return
            ending = self._ending[txn] = asyncio.get_running_loop().create_future()
            self._mark(txn, ending, commit=commit)
        await asyncio.shield(ending)

    def _mark(self, txn: TxnId, ending: asyncio.Future[None], *, commit: bool) -> None:
        def done(position: Position | None, _: int, error: Exception | None) -> None:
            del self._ending[txn]
            if position is None:
                assert error is not None
                ending.set_exception(error)
                ending.exception()  # Whoever asked may be gone.
                return
            crash_point("transaction_buffer.marked")
            self._ended(txn, position, commit=commit)
            ending.set_result(None)

        crash_point("transaction_buffer.before_marker")
        if self._ledger.terminated:
            # Nothing can be written behind its end: the state alone has to tell.
            self.state.settle(txn, self._ledger.last_confirmed, commit=commit)
            self._context.tasks.start(self._store_end(txn, ending), f"end {txn} on {self._ledger.name}")
            return
        self._ledger.append(marker(txn, commit=commit, now_ms=self._context.clock.time_ms()), 1, done)

    async def _store_end(self, txn: TxnId, ending: asyncio.Future[None]) -> None:
        try:
            await self._save(move=False)
        except Exception as error:
            self._untold.add(txn)
            ending.set_exception(error)
            ending.exception()  # Whoever asked may be gone.
        else:
            ending.set_result(None)
            self._changed()
        finally:
            del self._ending[txn]

    def _ended(self, txn: TxnId, position: Position, *, commit: bool) -> None:
        limit = self.state.limit
        self.state.marker(txn, position, commit=commit)
        self._unsaved += 1
        if commit:
            self.committed += 1
        else:
            self.aborted += 1
        if self.state.limit != limit:
            self._changed()

    # Keeping it.

    def tick(self) -> None:
        """Store the state now and then, forget what was trimmed, and end what nobody will."""
        first = self._ledger.first_position.ledger_id
        self.state.aborted.forget_before(first)
        for txn in self.state.orphans:
            log.warning("transaction.orphaned", ledger=self._ledger.name, txn=str(txn))
            self._context.tasks.start(self._end_orphan(txn), f"abort {txn} on {self._ledger.name}")
        if self._saving.locked():
            return
        settings = self._context.settings
        quiet_s = self._context.clock.monotonic() - self._saved_at
        many = max(settings.transaction_buffer_snapshot_entries, len(self.state.aborted) // 4)
        if (
            self._unsaved >= many
            or (self._unsaved and quiet_s >= settings.transaction_buffer_snapshot_interval_s)
            or (quiet_s >= _MOVE_ON_S and self._ledger.last_confirmed != self._saved_through)
        ):
            self._context.tasks.start(self._save_quietly(), f"save transactions of {self._ledger.name}")

    async def _end_orphan(self, txn: TxnId) -> None:
        """Its coordinator never knew of it here, or it would have told: what it wrote counts for nothing."""
        try:
            await self._end(txn, commit=False)
        except ManagedLedgerError as error:
            log.warning("transaction.not_ended", ledger=self._ledger.name, txn=str(txn), reason=str(error))

    async def _save_quietly(self) -> None:
        try:
            await self._save(move=True)
        except ManagedLedgerError as error:
            log.warning("transaction_buffer.not_saved", ledger=self._ledger.name, reason=str(error))

    async def _save(self, *, move: bool) -> None:
        """Store the state; then, with `move`, let go of the entries it covers.

        In two steps: what a cursor has passed may be trimmed before the cursor is written.
        """
        async with self._saving:
            through = self._ledger.last_confirmed
            self.state.passed(through)  # Of what is stored, the state is told at once.
            self._unsaved = 0
            self._saved_at = self._context.clock.monotonic()
            cursor = self._cursor
            cursor.acknowledge_cumulative(cursor.mark_delete, properties=self.state.encode())
            await cursor.flush()
            crash_point("transaction_buffer.saved")
            self._untold.clear()
            self.snapshot_ms = self._context.clock.time_ms()
            self._saved_through = through
            if move:
                cursor.acknowledge_cumulative(through)

    async def close(self) -> None:
        """Store the state once more, so that the next load has little to read."""
        if self._unsaved and not self._ledger.fenced:
            await self._save_quietly()

    # Figures.

    def stats(self) -> dict[str, Any]:
        """As Pulsar's TransactionBufferStats."""
        limit = self.state.limit
        readable = self._ledger.last_confirmed if limit is None else limit.preceding
        return {
            "state": "Ready",
            "maxReadPosition": str(readable),
            "lastSnapshotTimestamps": self.snapshot_ms,
            "lowWaterMarks": {str(most): least for most, least in self.state.ended.watermarks.items()},
            "ongoingTxnSize": len(self.state.open),
            "recoverStartTime": 0,
            "recoverEndTime": 0,
            "totalAbortedTransactions": len(self.state.aborted),
            "snapshotType": "Single",
        }

    def transaction_stats(self, txn: TxnId) -> dict[str, Any]:
        """As Pulsar's TransactionInBufferStats."""
        first = self.state.open.get(txn)
        return {
            "startPosition": None if first is None else str(first),
            "aborted": txn in self.state.aborted,
        }
