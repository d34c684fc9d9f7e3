"""A managed ledger of records: what is appended is read again at the next start, up to what a snapshot replaces.

Each record is the JSON payload of an ordinary message, so that tools which read topics read these too. A snapshot is
one record or several in a row; once they are stored the cursor stands right before them, and the ledgers behind it
are trimmed. Format: `docs/formats/transactions.md`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.errors import MetadataFailed
from magnetar.environment.crash import crash_point
from magnetar.managed_ledger import Position
from magnetar.protocol.message import build_message_parts, split_message
from magnetar.protocol.pulsar_pb2 import MessageMetadata

if TYPE_CHECKING:
    from magnetar.environment.clock import Clock
    from magnetar.managed_ledger import Cursor, ManagedLedger
    from magnetar.managed_ledger.config import ManagedLedgerConfig

FORMAT: Final = 1
RECORD_CURSOR: Final = "__transactions"
_WRITER: Final = "magnetar.transactions"
_ENTRIES_PER_LEDGER: Final = 5000
_READ_ENTRIES: Final = 200
_READ_BYTES: Final = 4 * 1024 * 1024

Record = Mapping[str, Any]


def record_config(config: ManagedLedgerConfig) -> ManagedLedgerConfig:
    """How such a log is kept: in small ledgers, for it is trimmed by whole ones."""
    return replace(
        config,
        max_entries_per_ledger=min(_ENTRIES_PER_LEDGER, config.max_entries_per_ledger),
        min_rollover_s=0.0,
        retention_time_s=0.0,
        retention_size_bytes=0,
    )


class RecordLog:
    """Appends records, and reads them again."""

    def __init__(self, ledger: ManagedLedger, cursor: Cursor, clock: Clock) -> None:
        self.ledger = ledger
        self._cursor = cursor
        self._clock = clock
        self.since_snapshot = 0
        """Records since the last snapshot."""
        self.appended = 0
        """Records stored since it was opened."""

    @classmethod
    async def open(cls, ledger: ManagedLedger, clock: Clock) -> RecordLog:
        cursor = await ledger.open_cursor(RECORD_CURSOR, initial="earliest")
        return cls(ledger, cursor, clock)

    async def replay(self) -> AsyncIterator[Record]:
        """All records that no snapshot has replaced, in order.

        Raises:
            MetadataFailed: one is of a format this software does not know.
        """
        self._cursor.rewind()
        while self._cursor.has_more():
            for entry in await self._cursor.read(_READ_ENTRIES, _READ_BYTES):
                self.since_snapshot += 1
                yield _decode(self.ledger.name, bytes(split_message(entry.data, verify=False).payload))
        self._cursor.deactivate()

    def append(self, record: Record, done: Callable[[Position | None, Exception | None], None]) -> None:
        """Store a record; `done` is called later, in the order of records."""

        def stored(position: Position | None, _: int, error: Exception | None) -> None:
            self.appended += position is not None
            done(position, error)

        self.since_snapshot += 1
        metadata = MessageMetadata(
            producer_name=_WRITER, sequence_id=self.since_snapshot, publish_time=self._clock.time_ms()
        )
        payload = json.dumps({"format": FORMAT, **record}, separators=(",", ":")).encode()
        self.ledger.append(build_message_parts(metadata.SerializeToString(), payload), 1, stored)

    def store(self, record: Record) -> asyncio.Future[Position]:
        """Store a record; the future tells when, and where."""
        future: asyncio.Future[Position] = asyncio.get_running_loop().create_future()

        def done(position: Position | None, error: Exception | None) -> None:
            if future.done():
                return
            if position is not None:
                future.set_result(position)
            else:
                assert error is not None
                future.set_exception(error)
                future.exception()  # Whoever asked may be gone.

        self.append(record, done)
        return future

    async def replace(self, snapshot: Sequence[Record]) -> None:
        """Let `snapshot` stand for everything before it. Records that come meanwhile stand behind it."""
        self.since_snapshot = 0
        stored = [self.store(record) for record in snapshot]  # In one go: nothing may come between them.
        self.since_snapshot = 0
        first, *_ = await asyncio.gather(*stored)
        crash_point("record_log.snapshot_stored")
        self._cursor.acknowledge_cumulative(first.preceding)
        await self._cursor.flush()
        crash_point("record_log.snapshot_taken")


def _decode(name: str, payload: bytes) -> Record:
    record: Record = json.loads(payload)
    if record.get("format") != FORMAT:
        raise MetadataFailed(f"{name} has a record of format {record.get('format')}; known is {FORMAT}")
    return record
