"""Writing a ledger: the shell around `write_pipeline.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from magnetar.environment.logs import get_logger
from magnetar.ledger.errors import (
    EntryTooLarge,
    LedgerClosed,
    LedgerError,
    LedgerFenced,
    NotEnoughBookies,
    QuorumLost,
    TooManyPending,
)
from magnetar.ledger.fragment import replace_slots
from magnetar.ledger.member import Member
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


class LedgerWriter:
    """The one writer of an open ledger. Belongs to one event loop."""

    def __init__(self, metadata: LedgerMetadata, surroundings: Surroundings) -> None:
        self.ledger_id = metadata.ledger_id
        self._metadata = metadata
        self._surroundings = surroundings
        self._max_entry_bytes = surroundings.settings.max_entry_bytes
        self._budget = surroundings.budget
        self._supervision = surroundings.supervision
        self._counts = surroundings.counts
        self._master_key = surroundings.master_key
        self._pipeline: WritePipeline[AppendDone] = WritePipeline(metadata.last_fragment)
        self._members = [
            Member(slot, bookie, surroundings) for slot, bookie in enumerate(self._pipeline.ensemble)
        ]
        self._error: LedgerError | None = None
        self._closing: asyncio.Future[None] | None = None
        self._seeking = False
        self._seek_again_at = 0.0
        self._tried: set[str] = set()
        """Bookies that have failed this ledger since `_tried_at` was confirmed: going round in circles helps nobody."""
        self._tried_at = -1
        self._tail_readers: dict[asyncio.Future[None], None] = {}
        self._lac_told = -1
        """The highest LAC that bookies have been sent."""
        self._short: set[str] = set()
        """Bookies of the last segment that will not get a copy of some confirmed entry."""
        self._short_at_end: set[str] = set()
        """What that was when nothing more was taken."""
        self._copies_came: asyncio.Future[None] | None = None
        """For a close that waits for copies still on their way."""
        surroundings.supervision.opened(self)

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

    async def wait_for(self, above: int, timeout_s: float) -> int:
        """The last entry acknowledged, once it is beyond `above`, or the ledger has ended, or after `timeout_s`."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        while self.last_add_confirmed <= above and not self.closed and loop.time() < end:
            more: asyncio.Future[None] = loop.create_future()
            self._tail_readers[more] = None
            try:
                await asyncio.wait([more], timeout=end - loop.time())
            finally:
                self._tail_readers.pop(more, None)
        return self.last_add_confirmed

    def _wake_tail_readers(self) -> None:
        waiting, self._tail_readers = self._tail_readers, {}
        for more in waiting:
            if not more.done():
                more.set_result(None)

    def reader(self) -> LedgerReader:
        """Reads up to the last entry acknowledged, also while entries are written."""
        return LedgerReader(self._metadata, self._surroundings, writer=self)

    async def look_again(self) -> None:
        """Read the metadata anew: autorecovery may have moved copies of earlier segments while this one is written.

        Raises:
            NoSuchLedger, MetadataCorrupt, MetadataUnavailable
        """
        known = self._metadata
        stored = await self._surroundings.registry.read(self.ledger_id)
        # The last segment of an open ledger is its writer's: where it differs, a change of it is under way.
        last_is_known = stored.closed or stored.segments[-1] == known.segments[-1]
        if self._metadata is known and stored.state is known.state and last_is_known:
            self._metadata = stored

    # Appending.

    def append(self, parts: Sequence[Buffer], done: AppendDone) -> int:
        """Write an entry and return its id. `done` is called later, on the loop, in the order of ids.

        An entry whose `done` brings an error may still turn up in the ledger, unless this writer closes it.

        Raises:
            EntryTooLarge
            TooManyPending: nothing is taken now, in any ledger; `LedgerClient.room` tells when it is again.
            LedgerError: what ended the ledger.
        """
        pipeline, budget = self._pipeline, self._budget
        if pipeline.stopped:
            raise self._error or LedgerClosed(self.ledger_id)
        size = sum(map(len, parts))
        if size > self._max_entry_bytes:
            raise EntryTooLarge(size, self._max_entry_bytes)
        supervision = self._supervision
        crowded = budget.pending_bytes >= budget.pending_limit or supervision.waiting or supervision.woken
        if crowded and supervision.refuses:
            self._counts.refused += 1
            raise TooManyPending(budget.pending_bytes, budget.pending_limit)
        if not supervision.running:
            supervision.start()
        budget.pending_bytes += size
        add = pipeline.push(size, done)
        entry_id = add.entry_id
        self._lac_told = last_confirmed = pipeline.last_confirmed
        header = encode_entry_header(self.ledger_id, entry_id, last_confirmed, add.length, parts)
        add.parts = (header, *parts)
        for slot in pipeline.write_slots(entry_id):
            self._send(add, self._members[slot])
        return entry_id

    def _send(self, add: PendingAdd[AppendDone], member: Member) -> None:
        done = partial(self._answered, add, member)
        lag = member.lag
        lag.sent += 1
        member.outstanding_bytes += add.size
        if lag.lagging_bytes > self._budget.lagging_limit:
            asyncio.get_running_loop().call_soon(done, BookieStatus.TOO_MANY_REQUESTS)
            return
        member.connection.add_entry(
            self.ledger_id, add.entry_id, add.parts, AddFlags.NONE, self._master_key, done
        )

    def _answered(self, add: PendingAdd[AppendDone], member: Member, status: BookieStatus) -> None:
        member.lag.answered += 1
        member.outstanding_bytes -= add.size
        pipeline = self._pipeline
        if add.entry_id <= pipeline.last_confirmed:
            self._answered_late(add, member, status)
            return
        if pipeline.stopped:
            return
        if status is BookieStatus.OK:
            if pipeline.add_succeeded(add, member.slot, member.bookie):
                self._confirm()
            return
        self._failed(add, member, status)

    def _answered_late(self, add: PendingAdd[AppendDone], member: Member, status: BookieStatus) -> None:
        """Others have confirmed the entry before this bookie answered."""
        if not member.replaced:
            member.lagging_bytes -= add.size
            member.lag.lagging_bytes -= add.size
            came = self._copies_came
            if came is not None and not came.done() and not self._lagging():
                came.set_result(None)
        if status is BookieStatus.OK:
            return
        self._give_up_copy(add.entry_id, member)
        if not self._pipeline.stopped:
            self._failed(add, member, status)

    def _failed(self, add: PendingAdd[AppendDone], member: Member, status: BookieStatus) -> None:
        pipeline = self._pipeline
        match pipeline.add_failed(add, member.slot, member.bookie, status):
            case AddOutcome.FATAL if status is BookieStatus.FENCED:
                self._end(LedgerFenced(self.ledger_id))
            case AddOutcome.FATAL:
                self._end(QuorumLost(self.ledger_id, f"bookie {member.bookie} answered {status.name}"))
            case AddOutcome.REPLACE:
                surroundings = self._surroundings
                surroundings.health.error(member.bookie, surroundings.clock.monotonic())
                lost = pipeline.is_lost(add)
                patient = surroundings.settings.delay_ensemble_change
                if lost or not patient or status is BookieStatus.READ_ONLY:
                    self._seek_replacements(status.name, lost)
            case AddOutcome.LATE:
                return

    def _confirm(self) -> None:
        pipeline = self._pipeline
        before, write_quorum = pipeline.confirmed_length, pipeline.write_quorum
        confirmed = pipeline.take_confirmed()
        if not confirmed:
            return
        self._budget.pending_bytes -= pipeline.confirmed_length - before
        self._counts.appends += len(confirmed)
        if self._supervision.waiting:  # Before those that are told append more.
            self._supervision.made_room()
        for add in confirmed:
            if add.acks < write_quorum:
                self._confirmed_short(add)
            self._tell(add, None)
        if self._tail_readers:
            self._wake_tail_readers()

    def _confirmed_short(self, add: PendingAdd[AppendDone]) -> None:
        """An entry is confirmed though not all of its copies are there."""
        acked, failed, size = add.acked, add.failed, add.size
        for slot in self._pipeline.write_slots(add.entry_id):
            bit = 1 << slot
            if acked & bit:
                continue
            member = self._members[slot]
            if failed & bit:
                self._give_up_copy(add.entry_id, member)
            else:
                member.lagging_bytes += size
                member.lag.lagging_bytes += size

    def _give_up_copy(self, entry_id: int, member: Member) -> None:
        """A copy that the metadata promise will not come: have autorecovery make it."""
        metadata, bookie = self._metadata, member.bookie
        if metadata.fragment_of(entry_id).ensemble[member.slot] != bookie:
            return  # Sent to another one since.
        if entry_id >= metadata.segments[-1].first_entry:
            if bookie in self._short:
                return  # It is marked already, and once more when the segment ends.
            self._short.add(bookie)
            self._counts.copies_given_up += 1
        self._surroundings.marks.note(self.ledger_id, bookie)

    def _segment_ended(self) -> None:
        """Mark what it lacks once more: only now can it be repaired."""
        for bookie in sorted(self._short):
            self._surroundings.marks.note(self.ledger_id, bookie)
        self._short.clear()

    def _tell(self, add: PendingAdd[AppendDone], error: LedgerError | None) -> None:
        add.parts = ()
        try:
            add.done(add.entry_id, error)
        except Exception:
            # The others wait for their answers, whatever this one's owner does with it.
            log.exception("append.callback_failed", ledger_id=self.ledger_id, entry_id=add.entry_id)

    # Bookies that fail.

    def drop(self, bookie: str) -> None:
        """`bookie` lags behind the others: have another take its place, if it keeps anything of this ledger waiting."""
        pipeline = self._pipeline
        for member in self._members:
            if member.bookie == bookie and member.outstanding_bytes and not pipeline.stopped:
                pipeline.failed[member.slot] = bookie
                self._counts.dropped_replicas += 1
                self._seek_replacements("lagging", pipeline.quorum_lost)

    def _seek_replacements(self, reason: str, lost: bool) -> None:
        if self._seeking:
            return
        if lost or self._surroundings.clock.monotonic() >= self._seek_again_at:
            self._seeking = True
            log.warning(
                "bookie.failed",
                ledger_id=self.ledger_id,
                bookies=sorted(self._pipeline.failed.values()),
                status=reason,
            )
            self._surroundings.tasks.spawn(self._replace_failed())

    async def _replace_failed(self) -> None:
        try:
            while self._pipeline.failed and not self._pipeline.stopped:
                if not await self._replace_once():
                    return
        except LedgerError as error:
            self._end(error)
        except Exception as error:
            # Confirmations are held back during a change: without its end, all would wait for ever.
            self._end(QuorumLost(self.ledger_id, f"{type(error).__name__}: {error}"))
            raise
        finally:
            self._seeking = False

    async def _replace_once(self) -> bool:
        """Replace what has failed so far. False if nothing could be found: it goes on as it is."""
        pipeline, surroundings = self._pipeline, self._surroundings
        now = surroundings.clock.monotonic()
        for bookie in pipeline.failed.values():
            surroundings.health.failed(bookie, now)
        if pipeline.last_confirmed > self._tried_at:
            self._tried.clear()
        self._tried.update(pipeline.failed.values())
        self._tried_at = pipeline.last_confirmed
        replacements = await surroundings.ensembles.replacements(
            self._metadata,
            pipeline.ensemble,
            tuple(pipeline.failed),
            exclude=self._tried,
            desperate=pipeline.quorum_lost,
        )
        if pipeline.stopped:
            return False
        if not replacements:
            failed = set(pipeline.failed.values())
            pipeline.failed.clear()
            self._seek_again_at = now + surroundings.settings.ensemble_retry_s
            if pipeline.quorum_lost:
                writable = await surroundings.bookies.writable()
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
        self._replaced_in(first_entry, replacements)
        self._metadata = stored
        self._counts.ensemble_changes += 1
        log.info(
            "ensemble.changed", ledger_id=self.ledger_id, first_entry=first_entry, ensemble=",".join(ensemble)
        )
        for slot, bookie in replacements.items():
            self._members[slot].replace()
            self._members[slot] = Member(slot, bookie, surroundings)
        for add, slot in pipeline.end_change(replacements):
            self._send(add, self._members[slot])
        self._confirm()
        return True

    def _replaced_in(self, first_entry: int, replacements: Mapping[int, str]) -> None:
        """The segment there was ends before `first_entry`. What its bookies still owe may never come."""
        for slot in replacements:
            if self._members[slot].lagging_bytes:
                self._short.add(self._members[slot].bookie)
                self._counts.copies_given_up += 1
        if first_entry > self._metadata.segments[-1].first_entry:
            self._segment_ended()
        else:
            self._short.clear()  # It held nothing.

    # The LAC, where no entry brings it.

    @property
    def lac_untold(self) -> bool:
        return not self._pipeline.stopped and self._lac_told < self._pipeline.last_confirmed

    def tell_lac(self) -> None:
        """Tell the bookies that hold the last confirmed entry that it is confirmed. Best effort: it only helps readers."""
        self._lac_told = last_confirmed = self._pipeline.last_confirmed
        for slot in self._pipeline.write_slots(last_confirmed):
            connection = self._members[slot].connection
            self._surroundings.tasks.spawn(
                connection.write_lac(self.ledger_id, last_confirmed, self._master_key)
            )

    # The end.

    def _end(self, error: LedgerError) -> None:
        """Acknowledge nothing more, and tell all that wait."""
        if self._pipeline.stopped:
            return
        self._error = error
        log.warning(
            "ledger.writer_stopped", ledger_id=self.ledger_id, pending=self.pending, reason=str(error)
        )
        self._stop(error)

    def _stop(self, error: LedgerError) -> None:
        pipeline, budget = self._pipeline, self._budget
        budget.pending_bytes -= pipeline.length - pipeline.confirmed_length
        self._supervision.ended(self)
        for add in pipeline.stop():
            self._counts.failed += 1
            self._tell(add, error)
        self._short_at_end = set(self._short)
        self._segment_ended()
        if self._supervision.waiting:
            self._supervision.made_room()
        self._wake_tail_readers()

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
            self._stop(self._error)
        return await self._surroundings.tasks.shielded(self._close())

    async def _close(self) -> int:
        last_entry, length = self._pipeline.last_confirmed, self._pipeline.confirmed_length
        if self._metadata.closed:
            return last_entry
        await self._say_what_is_short()
        stored = await self._surroundings.registry.update(
            self.ledger_id, partial(_close_at, last_entry=last_entry, length=length)
        )
        if (stored.last_entry, stored.length) != (last_entry, length):
            raise LedgerFenced(
                self.ledger_id, f"it was closed at entry {stored.last_entry} by another client"
            )
        self._metadata = stored
        return last_entry

    async def _say_what_is_short(self) -> None:
        """Mark, durably, the bookies that may lack copies: once the ledger is closed, nobody else finds out.

        Raises:
            MetadataUnavailable
        """
        if self._lagging():
            self._copies_came = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._copies_came], timeout=self._surroundings.settings.close_patience_s)
        short = {*self._short_at_end, *self._short, *self._lagging()}
        await self._surroundings.marks.store(self.ledger_id, short)

    def _lagging(self) -> list[str]:
        """The bookies whose copies of confirmed entries are on their way."""
        return [member.bookie for member in self._members if member.lagging_bytes]


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
