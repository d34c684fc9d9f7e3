"""One run of compaction: find the last message of each key, then write what stays into a ledger of its own.

Reads what the compaction before has left, then the log from there on, up to an end fixed at the beginning; once
for each pass that the keys take, and once more to write. Whatever is published meanwhile is for the next run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from magnetar.broker.compaction.messages import cut, places_in, read_contents
from magnetar.broker.compaction.state import CompactedEntry, CompactedRecord, encode_entry
from magnetar.broker.compaction.survivors import Survivors
from magnetar.broker.errors import PersistenceFailed
from magnetar.environment.crash import crash_point
from magnetar.ledger.errors import LedgerError, TooManyPending
from magnetar.managed_ledger import Entry, Position
from magnetar.protocol import ack_sets
from magnetar.protocol.errors import ProtocolError
from magnetar.protocol.message import SplitMessage, split_message

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from magnetar.broker.compaction.compacted_ledger import CompactedLedger
    from magnetar.environment.clock import Clock
    from magnetar.ledger.writer import LedgerWriter
    from magnetar.managed_ledger import Cursor
    from magnetar.protocol.pulsar_pb2 import MessageMetadata

_SLICE_S: Final = 0.002
"""So long others wait at most for a run that has the processor."""
_READ_ENTRIES: Final = 100
_READ_BYTES: Final = 1024 * 1024
_UNDER_WAY_MAX: Final = 8 * 1024 * 1024
"""Bytes written and not yet confirmed."""

Hides = Callable[["MessageMetadata"], bool]
"""Whether an entry is of a transaction that was aborted."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What a run works on."""

    previous: CompactedLedger | None
    end: Position
    """The last entry of the log that is compacted."""
    cursor_from: Callable[[Position], AbstractAsyncContextManager[Cursor]]
    """Opens a reader of the log."""
    hides: Hides
    keys_max: int
    keep_keyless: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to."""

    record: CompactedRecord
    seen: int
    """Messages read."""
    passes: int


class Compactor:
    """Carries out one run. Ended early, it leaves a ledger that nothing names as the one that holds."""

    def __init__(self, scope: Scope, clock: Clock) -> None:
        self._scope = scope
        self._clock = clock
        self._survivors = Survivors(scope.keys_max, keep_keyless=scope.keep_keyless)
        self._slice_ends = 0.0
        self._seen = 0
        self._places: int | None = None
        """How many ordinals there are, once all was read."""

    async def choose(self) -> None:
        """The first phase: which messages stay.

        Raises:
            LedgerError, ManagedLedgerError, ProtocolError: what is there cannot be read.
        """
        survivors = self._survivors
        while not survivors.complete:
            survivors.begin()
            self._seen = 0
            async for each, split, ordinal in self._read():
                contents = read_contents(split, each.stays)
                if contents.opaque:
                    survivors.see_opaque(ordinal, contents.places)
                    self._seen += contents.places
                elif contents.chunk is not None and contents.messages[0] is not None:
                    survivors.see_chunk(ordinal, contents.messages[0][0], contents.chunk)
                    self._seen += 1
                else:
                    survivors.see(ordinal, contents.messages)
                    self._seen += contents.places - contents.messages.count(None)
            survivors.end()
            crash_point("compaction.keys_known")

    async def write(self, writer: LedgerWriter) -> Outcome:
        """The second phase: write them, and close the ledger.

        Raises:
            LedgerError, ManagedLedgerError, ProtocolError
        """
        output = _Output(writer)
        survivors = self._survivors
        async for each, split, ordinal in self._read():
            stays = survivors.these_stay(ordinal, places_in(split.metadata))
            if all(stays):
                await output.append(each.entry, each.entry.data)
            elif any(stays):
                left = _ack_set(stays)
                data = each.entry.data if left == list(each.stays) else cut(split, stays)
                await output.append(each.entry, data, left)
        await output.finish()
        crash_point("compaction.written")
        record = CompactedRecord(
            writer.ledger_id,
            self._scope.end,
            output.entries,
            output.size,
            survivors.kept_messages,
            self._clock.time_ms(),
        )
        return Outcome(record, self._seen, survivors.passes)

    async def _read(self) -> AsyncIterator[tuple[CompactedEntry, SplitMessage, int]]:
        """Each entry with the ordinal of its first message: the same ones every time.

        Raises:
            PersistenceFailed: they are not.
        """
        ordinal = 0
        async for each in self._entries():
            now = self._clock.monotonic()
            if now >= self._slice_ends:
                await asyncio.sleep(0)
                self._slice_ends = self._clock.monotonic() + _SLICE_S
            try:
                split = split_message(each.entry.data, verify=False)
            except ProtocolError:
                continue  # No consumer is ever sent it.
            metadata = split.metadata
            if not metadata.HasField("marker_type") and not self._scope.hides(metadata):
                yield each, split, ordinal
            ordinal += places_in(metadata)
        if self._places is None:
            self._places = ordinal
        elif self._places != ordinal:
            raise PersistenceFailed("the log has let entries go that were being compacted: compact again")

    async def _entries(self) -> AsyncIterator[CompactedEntry]:
        scope = self._scope
        start = Position(-1, -1)
        if scope.previous is not None:
            start = scope.previous.horizon.following
            number = 0
            while number < scope.previous.entries:
                run = await scope.previous.read(number, _READ_ENTRIES, _READ_BYTES)
                for each in run:
                    yield each
                number += len(run)
        async with scope.cursor_from(start) as cursor:
            while entries := await cursor.read(_READ_ENTRIES, _READ_BYTES):
                for entry in entries:
                    if entry.position > scope.end:
                        return
                    yield CompactedEntry(entry)


def _ack_set(stays: Sequence[bool]) -> list[int]:
    return ack_sets.from_bits(sum(1 << index for index, each in enumerate(stays) if each))


class _Output:
    """Writes a ledger, with so much under way as is bearable."""

    def __init__(self, writer: LedgerWriter) -> None:
        self._writer = writer
        self._under_way = 0
        self._error: LedgerError | None = None
        self._changed = asyncio.Event()
        self.entries = 0
        self.size = 0

    async def append(
        self, entry: Entry, data: bytes | bytearray | memoryview, stays: Sequence[int] = ()
    ) -> None:
        """Raises LedgerError: this write, or one before it, has failed."""
        parts = encode_entry(entry, data, stays)
        size = sum(map(len, parts))
        await self._until(_UNDER_WAY_MAX)

        def done(entry_id: int, error: LedgerError | None) -> None:
            self._under_way -= size
            self._error = self._error or error
            self._changed.set()

        while True:
            try:
                self._writer.append(parts, done)
                break
            except TooManyPending:  # Publishers go first.
                await asyncio.sleep(0.05)
        self._under_way += size
        self.entries += 1
        self.size += size
        crash_point("compaction.writing")

    async def _until(self, bytes_max: int) -> None:
        while self._under_way > bytes_max and self._error is None:
            self._changed.clear()
            await self._changed.wait()
        if self._error is not None:
            raise self._error

    async def finish(self) -> None:
        await self._until(0)
        await self._writer.close()
