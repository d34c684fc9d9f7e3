"""Writing a ledger: the shell around `write_pipeline.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from magnetar.environment.logs import get_logger
from magnetar.ledger.errors import (
    EntryTooLarge,
    LedgerClosed,
    LedgerError,
    LedgerFenced,
    NotEnoughBookies,
    QuorumLost,
)
from magnetar.ledger.fragment import replace_slots
from magnetar.ledger.metadata import LedgerMetadata, LedgerState
from magnetar.ledger.reader import LedgerReader
from magnetar.ledger.surroundings import Surroundings
from magnetar.ledger.write_pipeline import AddOutcome, PendingAdd, WritePipeline
from magnetar.protocol.bookie import AddFlags, BookieStatus
from magnetar.protocol.buffers import Buffer
from magnetar.protocol.ledger_entry import encode_entry_header

log = get_logger("magnetar.ledger")

AppendDone = Callable[[int, LedgerError | None], None]
"""Called with the entry id, and with an error if the entry's outcome is not known."""


class _Member:
    """A bookie in a slot of the ensemble, and how much it has not answered yet."""

    __slots__ = ("bookie", "connection", "outstanding_bytes", "slot")

    def __init__(self, slot: int, bookie: str, surroundings: Surroundings) -> None:
        self.slot = slot
        self.bookie = bookie
        self.connection = surroundings.bookies.connection(bookie)
        self.outstanding_bytes = 0


class LedgerWriter:
    """The one writer of an open ledger. Belongs to one event loop."""

    def __init__(self, metadata: LedgerMetadata, surroundings: Surroundings) -> None:
        self.ledger_id = metadata.ledger_id
        self._metadata = metadata
        self._surroundings = surroundings
        self._max_entry_bytes = surroundings.settings.max_entry_bytes
        self._unacknowledged_bytes = surroundings.settings.unacknowledged_bytes
        self._master_key = surroundings.master_key
        self._pipeline: WritePipeline[AppendDone] = WritePipeline(metadata.last_fragment)
        self._members = [
            _Member(slot, bookie, surroundings) for slot, bookie in enumerate(self._pipeline.ensemble)
        ]
        self._error: LedgerError | None = None
        self._closing: asyncio.Future[None] | None = None
        self._seeking = False
        self._seek_again_at = 0.0

    # What is known of it.

    @property
    def metadata(self) -> LedgerMetadata:
        return self._metadata

    @property
    def last_add_confirmed(self) -> int:
        """The last entry acknowledged; readers may read up to it."""
        return self._pipeline.last_confirmed

    @property
    def last_add_pushed(self) -> int:
        return self._pipeline.last_pushed

    @property
    def length(self) -> int:
        """Payload bytes of all entries up to the last one pushed."""
        return self._pipeline.length

    @property
    def confirmed_length(self) -> int:
        """Payload bytes of all entries up to the last one acknowledged."""
        return self._pipeline.confirmed_length

    @property
    def pending(self) -> int:
        """How many entries are on their way."""
        return len(self._pipeline)

    @property
    def closed(self) -> bool:
        """Whether it takes no more entries."""
        return self._pipeline.stopped

    def reader(self) -> LedgerReader:
        """Reads up to the last entry acknowledged, also while entries are written."""
        return LedgerReader(self._metadata, self._surroundings, writer=self)

    # Appending.

    def append(self, parts: Sequence[Buffer], done: AppendDone) -> int:
        """Write an entry and return its id. `done` is called later, on the loop, in the order of ids.

        An entry whose `done` brings an error may still turn up in the ledger, unless this writer closes it.

        Raises:
            EntryTooLarge
            LedgerError: what ended the ledger.
        """
        pipeline = self._pipeline
        if pipeline.stopped:
            raise self._error or LedgerClosed(self.ledger_id)
        size = sum(map(len, parts))
        if size > self._max_entry_bytes:
            raise EntryTooLarge(size, self._max_entry_bytes)
        add = pipeline.push(size, done)
        entry_id = add.entry_id
        header = encode_entry_header(self.ledger_id, entry_id, pipeline.last_confirmed, add.length, parts)
        add.parts = (header, *parts)
        for slot in pipeline.write_slots(entry_id):
            self._send(add, self._members[slot])
        return entry_id

    def _send(self, add: PendingAdd[AppendDone], member: _Member) -> None:
        done = partial(self._answered, add, member)
        late = member.outstanding_bytes > self._unacknowledged_bytes
        member.outstanding_bytes += add.size
        if late:
            asyncio.get_running_loop().call_soon(done, BookieStatus.TOO_MANY_REQUESTS)
            return
        member.connection.add_entry(
            self.ledger_id, add.entry_id, add.parts, AddFlags.NONE, self._master_key, done
        )

    def _answered(self, add: PendingAdd[AppendDone], member: _Member, status: BookieStatus) -> None:
        member.outstanding_bytes -= add.size
        pipeline = self._pipeline
        if pipeline.stopped:
            return
        if status is BookieStatus.OK:
            if pipeline.add_succeeded(add, member.slot, member.bookie):
                self._confirm()
            return
        match pipeline.add_failed(add, member.slot, member.bookie, status):
            case AddOutcome.FATAL if status is BookieStatus.FENCED:
                self._end(LedgerFenced(self.ledger_id))
            case AddOutcome.FATAL:
                self._end(QuorumLost(self.ledger_id, f"bookie {member.bookie} answered {status.name}"))
            case AddOutcome.REPLACE:
                self._seek_replacements(add, status)
            case AddOutcome.LATE:
                return

    def _confirm(self) -> None:
        for add in self._pipeline.take_confirmed():
            self._tell(add, None)

    def _tell(self, add: PendingAdd[AppendDone], error: LedgerError | None) -> None:
        add.parts = ()
        try:
            add.done(add.entry_id, error)
        except Exception:
            # The others wait for their answers, whatever this one's owner does with it.
            log.exception("append.callback_failed", ledger_id=self.ledger_id, entry_id=add.entry_id)

    # Bookies that fail.

    def _seek_replacements(self, add: PendingAdd[AppendDone], status: BookieStatus) -> None:
        if self._seeking:
            return
        due = self._surroundings.clock.monotonic() >= self._seek_again_at
        if due or self._pipeline.is_lost(add):
            self._seeking = True
            log.warning(
                "bookie.failed",
                ledger_id=self.ledger_id,
                bookies=sorted(self._pipeline.failed.values()),
                status=status.name,
            )
            self._surroundings.tasks.spawn(self._replace_failed())

    async def _replace_failed(self) -> None:
        try:
            while self._pipeline.failed and not self._pipeline.stopped:
                if not await self._replace_once():
                    return
        except LedgerError as error:
            self._end(error)
        finally:
            self._seeking = False

    async def _replace_once(self) -> bool:
        """Replace what has failed so far. False if nothing could be found: it goes on as it is."""
        pipeline, surroundings = self._pipeline, self._surroundings
        writable = await surroundings.bookies.writable()
        if pipeline.stopped:
            return False
        now = surroundings.clock.monotonic()
        for bookie in pipeline.failed.values():
            surroundings.placement.suspect(bookie, now)
        replacements = surroundings.placement.replacements(writable, pipeline.ensemble, pipeline.failed, now)
        if not replacements:
            failed = set(pipeline.failed.values())
            pipeline.failed.clear()
            self._seek_again_at = now + surroundings.settings.ensemble_retry_s
            if pipeline.quorum_lost:
                raise NotEnoughBookies(len(pipeline.ensemble), len(writable), failed)
            return False
        first_entry = pipeline.begin_change()
        ensemble = replace_slots(pipeline.ensemble, replacements)
        stored = await surroundings.registry.update(
            self.ledger_id, partial(_use_ensemble, first_entry=first_entry, ensemble=ensemble)
        )
        if pipeline.stopped:
            return False
        if stored.state is not LedgerState.OPEN:
            raise LedgerFenced(self.ledger_id, f"it is {stored.state.value} in the metadata")
        self._metadata = stored
        log.info(
            "ensemble.changed", ledger_id=self.ledger_id, first_entry=first_entry, ensemble=",".join(ensemble)
        )
        for slot, bookie in replacements.items():
            self._members[slot] = _Member(slot, bookie, surroundings)
        for add, slot in pipeline.end_change(replacements):
            self._send(add, self._members[slot])
        self._confirm()
        return True

    # The end.

    def _end(self, error: LedgerError) -> None:
        """Acknowledge nothing more, and tell all that wait."""
        if self._pipeline.stopped:
            return
        self._error = error
        log.warning(
            "ledger.writer_stopped", ledger_id=self.ledger_id, pending=self.pending, reason=str(error)
        )
        for add in self._pipeline.stop():
            self._tell(add, error)

    async def close(self) -> int:
        """Close the ledger at the last entry acknowledged, and return that entry's id.

        Entries still on their way get a `LedgerClosed`; once this returns, they are not part of the ledger.
        A writer that had to stop may still be closed. Closing goes on if the caller is cancelled.

        Raises:
            LedgerFenced: another client has closed it, at another entry.
            MetadataUnavailable: whether it is closed is not known; call again.
        """
        if not self._pipeline.stopped:
            self._error = LedgerClosed(self.ledger_id)
            for add in self._pipeline.stop():
                self._tell(add, self._error)
        return await self._surroundings.tasks.shielded(self._close())

    async def _close(self) -> int:
        last_entry, length = self._pipeline.last_confirmed, self._pipeline.confirmed_length
        if self._metadata.closed:
            return last_entry
        stored = await self._surroundings.registry.update(
            self.ledger_id, partial(_close_at, last_entry=last_entry, length=length)
        )
        if (stored.last_entry, stored.length) != (last_entry, length):
            raise LedgerFenced(
                self.ledger_id, f"it was closed at entry {stored.last_entry} by another client"
            )
        self._metadata = stored
        return last_entry


def _use_ensemble(
    metadata: LedgerMetadata, *, first_entry: int, ensemble: tuple[str, ...]
) -> LedgerMetadata | None:
    if metadata.state is not LedgerState.OPEN:
        return None
    last = metadata.segments[-1]
    if (last.first_entry, last.ensemble) == (first_entry, ensemble):
        return None
    return metadata.with_ensemble(first_entry, ensemble)


def _close_at(metadata: LedgerMetadata, *, last_entry: int, length: int) -> LedgerMetadata | None:
    # A ledger in recovery may be closed by its writer: it knows best, and the recovery adopts it.
    return None if metadata.closed else metadata.closed_at(last_entry, length)
