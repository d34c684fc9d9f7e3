"""How entries get into a log: into the open ledger, and over to the next one when that is full or fails.

The rules that keep a log right across a change of ledgers:

- Entries of a failed ledger are sent again only after this owner has closed that ledger, at the last entry
  it acknowledged. So none of them is stored twice, and order is kept.
- A ledger is named in the log's record before anything is written to it.
- Whoever finds the ledger or the record in other hands is deposed, and completes nothing any more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from magnetar.environment.crash import crash_point
from magnetar.environment.logs import get_logger
from magnetar.ledger.errors import LedgerError, LedgerFenced, TooManyPending
from magnetar.ledger.writer import LedgerWriter
from magnetar.managed_ledger.creation import NewLedger, new_ledger
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.errors import (
    AppendFailed,
    EntryTooLarge,
    ManagedLedgerError,
    ManagedLedgerFenced,
    StorageUnavailable,
)
from magnetar.managed_ledger.position import Position
from magnetar.managed_ledger.records import ListedLedger, LogRecord
from magnetar.protocol.buffers import Buffer
from magnetar.protocol.entry import wrap_entry

if TYPE_CHECKING:
    from magnetar.managed_ledger.managed_ledger import ManagedLedger

log = get_logger("magnetar.managed_ledger")

AppendDone = Callable[[Position | None, int, Exception | None], None]
"""Called with the position and the index of the entry's last message, or with what went wrong."""

_BACKOFF_S = 0.05
_BACKOFF_MAX_S = 1.0
_JITTER = 0.05
_PLAN_AGAIN_S = 5.0
_HOLD_S = 0.5
_CREATE_PATIENCE_S = 15.0


class _Append:
    __slots__ = ("done", "index", "messages", "parts", "size", "timestamp_ms")

    def __init__(self, parts: Sequence[Buffer], messages: int, size: int, done: AppendDone) -> None:
        self.parts = parts
        self.messages = messages
        self.size = size
        self.done = done
        self.index = -1
        self.timestamp_ms = 0


class AppendPath:
    """The write side of one log."""

    def __init__(self, owner: ManagedLedger, next_index: int, last_timestamp_ms: int) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self.writer: LedgerWriter | None = None
        self._opened_at = 0.0
        self._sent_entries = 0
        self._sent_bytes = 0
        self._in_flight: deque[_Append] = deque()
        """With the open ledger, in order."""
        self._returned: list[_Append] = []
        """Back from a ledger that failed, in order; they come before those that wait."""
        self._waiting: deque[_Append] = deque()
        self._next_index = next_index
        """Of the next message to be sent."""
        self.next_index = next_index
        """Of the message after the last one stored."""
        self._last_timestamp_ms = last_timestamp_ms
        self._refusal: ManagedLedgerError | None = None
        self._switching = False
        self._without_room = False
        """Whether what waits does so for room in the client of all ledgers."""
        self._failing_since: float | None = None
        """When a ledger first failed, if nothing has been stored since."""
        self._pause_s = _BACKOFF_S
        self._quiet: list[asyncio.Future[None]] = []
        self._planning = False
        self._plan_after = 0.0
        """When to try again, if the next ledger could not be made."""
        self._holding = False
        """Whether appends wait for a ledger that is being made, though the open one could take them."""
        self._next: NewLedger | None = None
        """Made for when the open ledger is left."""
        self._jitter = 1.0
        """By how much longer than said this ledger may live, so that not all logs roll at once."""
        self._sent_at_tick = 0
        self._active_at = 0.0
        self._wake_scheduled = False

    @property
    def pending(self) -> int:
        """How many appends have not been answered."""
        return len(self._in_flight) + len(self._returned) + len(self._waiting)

    # Appending.

    def append(self, parts: Sequence[Buffer], messages: int, done: AppendDone) -> None:
        if self._refusal is not None:
            self._loop.call_soon(done, None, -1, self._refusal)
            return
        size = sum(map(len, parts))
        limit = self._owner.config.max_entry_bytes
        if size > limit:
            self._loop.call_soon(done, None, -1, EntryTooLarge(size, limit))
            return
        append = _Append(parts, messages, size, done)
        writer = self.writer
        if self._switching or self._holding or writer is None or writer.closed:
            self._waiting.append(append)
            if not self._holding:
                self._switch()
        elif self._waiting or not self._send(writer, append):
            self._waiting.append(append)
            self._wait_for_room()

    def _send(self, writer: LedgerWriter, append: _Append) -> bool:
        """Whether it was dealt with; otherwise there is no room for it in the writer's client now."""
        timestamp_ms = self._owner.clock.time_ms()
        if timestamp_ms < self._last_timestamp_ms:
            timestamp_ms = self._last_timestamp_ms  # They rise, so that entries can be found by time.
        self._last_timestamp_ms = append.timestamp_ms = timestamp_ms
        index = append.index = self._next_index + append.messages - 1
        try:
            writer.append((wrap_entry(timestamp_ms, index), *append.parts), self._stored)
        except TooManyPending:
            return False
        except LedgerError as error:
            self._loop.call_soon(append.done, None, -1, AppendFailed(self._owner.name, str(error)))
            return True
        self._next_index = index + 1
        self._in_flight.append(append)
        self._sent_entries += 1
        self._sent_bytes += append.size
        config = self._owner.config
        if self._sent_entries >= config.max_entries_per_ledger or self._sent_bytes >= config.max_size_bytes:
            self.roll_if_old_enough()
        return True

    def _wait_for_room(self) -> None:
        """Send what waits once the client of all ledgers has room: bookies are slower than producers."""
        if not self._without_room:
            self._without_room = True
            self._owner.tasks.spawn(self._send_when_there_is_room())

    async def _send_when_there_is_room(self) -> None:
        await self._owner.client.room()
        self._without_room = False
        self._send_waiting()
        self._tell_if_quiet()  # None of them may have been taken.

    def _stored(self, entry_id: int, error: LedgerError | None) -> None:
        if not self._in_flight:
            return  # Deposed, and everybody told so.
        append = self._in_flight.popleft()
        if error is not None:
            self._returned.append(append)
            if self._failing_since is None:
                self._failing_since = self._owner.clock.monotonic()
            if isinstance(error, LedgerFenced):
                self._owner.fence(str(error))
            else:
                self._switch()
            self._tell_if_quiet()
            return
        assert self.writer is not None
        position = Position(self.writer.ledger_id, entry_id)
        span = self._owner.ledgers.last
        span.entries += 1
        span.size = self.writer.confirmed_length
        self.next_index = append.index + 1
        if self._owner.has_readers:
            self._owner.cache.insert(
                Entry(position, b"".join(append.parts), append.index, append.timestamp_ms)
            )
        if not self._wake_scheduled:
            self._wake_scheduled = True
            self._loop.call_soon(self._wake)
        append.done(position, append.index, None)

    def _wake(self) -> None:
        """Once for all appends that one turn of the loop has completed."""
        self._wake_scheduled = False
        self._failing_since, self._pause_s = None, _BACKOFF_S
        self._owner.shared_reads.appended_at = self._owner.clock.monotonic()
        self._owner.appended()
        self._tell_if_quiet()

    # From ledger to ledger.

    def roll_if_old_enough(self) -> None:
        """Go on in a new ledger, unless this one is too young for that."""
        now = self._owner.clock.monotonic()
        if now - self._opened_at >= self._owner.config.min_rollover_s:
            self._plan(now)

    async def roll(self) -> None:
        """Go on in a new ledger, if this one holds anything."""
        if self._sent_entries:
            self._switch()
        while self._switching:
            await self._until_quiet()

    def tick(self, now: float) -> None:
        """Look at the clock: a ledger that has become too old is closed, if it holds anything."""
        config = self._owner.config
        if self._switching or self._refusal is not None or not self._sent_entries:
            return
        full = (
            self._sent_entries >= config.max_entries_per_ledger or self._sent_bytes >= config.max_size_bytes
        )
        age_s = now - self._opened_at
        if (full and age_s >= config.min_rollover_s) or age_s >= max(
            config.max_rollover_s * self._jitter, config.min_rollover_s
        ):
            self._plan(now)
        elif config.inactive_rollover_s:
            if self._sent_entries != self._sent_at_tick:
                self._sent_at_tick, self._active_at = self._sent_entries, now
            elif now - self._active_at >= config.inactive_rollover_s and not self.pending:
                self._switching, self._holding = True, False
                self._owner.tasks.spawn(self._close_idle())

    async def _close_idle(self) -> None:
        """Nobody appends: close the ledger, so that it can be trimmed. The next append opens another."""
        try:
            closed = await self._close_writer()
            await self._owner.change_record(lambda record: self._without_open(record, closed))
            self._install(closed, None)
        except ManagedLedgerFenced as error:
            self._owner.fence(str(error))
        except (LedgerError, StorageUnavailable) as error:
            self._active_at = self._owner.clock.monotonic()
            log.warning("log.idle_ledger_not_closed", log=self._owner.name, reason=str(error))
        finally:
            self._switching = False
        self._send_waiting()
        self._tell_if_quiet()

    def _plan(self, now: float) -> None:
        """Have the next ledger made, and go over to it then.

        What comes meanwhile waits for it, but not for long: a metadata store that is away must not hold up a
        ledger that can still be written.
        """
        if not self._planning and not self._switching and now >= self._plan_after and not self._owner.fenced:
            self._planning = True
            if not self._plan_after:
                self._holding = True
                self._loop.call_later(_HOLD_S, self._hold_no_more)
            self._owner.tasks.spawn(self._make_next(self.writer))

    def _hold_no_more(self) -> None:
        if self._holding:
            self._holding = False
            self._send_waiting()
            self._tell_if_quiet()

    async def _make_next(self, full: LedgerWriter | None) -> None:
        owner = self._owner
        try:
            async with owner.rolls:
                # What could not be named now need not be made, nor the open one closed for it.
                await owner.keeper.verify()
                made = await self._made()
        except ManagedLedgerFenced as error:
            log.warning("log.roll_refused", log=owner.name, reason=str(error))
            self._switch()  # Which completes what is on its way, and is told the same.
            return
        except (LedgerError, StorageUnavailable) as error:
            self._plan_after = owner.clock.monotonic() + _PLAN_AGAIN_S
            log.warning("log.roll_postponed", log=owner.name, reason=str(error))
            self._hold_no_more()
            return
        finally:
            self._planning = False
        self._plan_after = 0.0
        if self._switching or owner.fenced or self.writer is not full:
            owner.delete_later(made.writer.ledger_id)  # Events have overtaken it.
            self._hold_no_more()
        else:
            self._next = made
            self._switch()

    async def _made(self) -> NewLedger:
        """A new ledger, or an error in time.

        Raises:
            LedgerError, StorageUnavailable
        """
        owner = self._owner
        last_id = owner.ledgers.last.ledger_id if len(owner.ledgers) else -1
        try:
            async with asyncio.timeout(max(owner.config.storage_retry_s, _CREATE_PATIENCE_S)):
                made = await new_ledger(
                    owner.client,
                    owner.clock,
                    owner.config,
                    owner.name,
                    above=max(last_id, owner.highest_ledger_id),
                )
        except TimeoutError as error:
            raise StorageUnavailable(owner.name, "creating a ledger took too long") from error
        return made

    def _switch(self) -> None:
        if not self._switching and not self._owner.fenced:
            self._switching, self._holding = True, False
            self._owner.tasks.spawn(self._switch_ledger())

    async def _switch_ledger(self) -> None:
        try:
            await self._pause_if_fruitless()
            await self._try_to_open_next()
        except ManagedLedgerFenced as error:
            self._owner.fence(str(error))
        except Exception as error:
            if not isinstance(error, LedgerError | StorageUnavailable):
                log.exception("log.switch_failed", log=self._owner.name)
            self._fail_waiting(AppendFailed(self._owner.name, str(error) or type(error).__name__))
        finally:
            self._switching = False
        self._send_waiting()
        self._tell_if_quiet()

    async def _pause_if_fruitless(self) -> None:
        """After a ledger that took nothing: the next would hardly fare better at once, and not for ever.

        Raises:
            StorageUnavailable: ledgers have been failing for `storage_retry_s`.
        """
        since, writer = self._failing_since, self.writer
        if since is None or writer is None or writer.last_add_confirmed >= 0:
            return
        owner = self._owner
        if owner.clock.monotonic() + self._pause_s > since + owner.config.storage_retry_s:
            self._failing_since, self._pause_s = None, _BACKOFF_S
            raise StorageUnavailable(owner.name, "one new ledger after the other takes no entries")
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 2, _BACKOFF_MAX_S)

    async def _try_to_open_next(self) -> None:
        deadline = self._owner.clock.monotonic() + self._owner.config.storage_retry_s
        pause_s = _BACKOFF_S
        while not self._owner.fenced:
            try:
                await self.open_next()
                return
            except (LedgerError, StorageUnavailable) as error:
                log.warning("log.no_new_ledger", log=self._owner.name, reason=str(error))
                if self._owner.clock.monotonic() + pause_s > deadline:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _BACKOFF_MAX_S)

    def _send_waiting(self) -> None:
        writer = self.writer
        while self._waiting and writer is not None and not writer.closed:
            if self._switching or self._holding:
                return
            if not self._send(writer, self._waiting[0]):
                self._wait_for_room()
                return
            self._waiting.popleft()
        if self._waiting:
            self._switch()

    async def open_next(self) -> None:
        """Close the ledger there is, if any, name a new one in the record, and send what waits.

        Raises:
            ManagedLedgerFenced, StorageUnavailable, LedgerError: safe to be called again.
        """
        owner = self._owner
        closed = await self._close_writer()
        if self._refusal is not None and not self._waiting and not self._returned:
            if self._next is not None:
                owner.delete_later(self._next.writer.ledger_id)
                self._next = None
            await owner.change_record(lambda record: self._without_open(record, closed))
            self._install(closed, None)
            return
        made, self._next = self._next, None
        if made is None or made.writer.ledger_id <= owner.highest_ledger_id:
            if made is not None:
                owner.delete_later(made.writer.ledger_id)
            made = await self._made()
        writer = made.writer
        owner.highest_ledger_id = writer.ledger_id
        crash_point("managed_ledger.before_list_update")
        try:
            await owner.change_record(
                lambda record: replace(
                    changed := self._without_open(record, closed),
                    ledgers=(*changed.ledgers, ListedLedger(writer.ledger_id)),
                )
            )
            crash_point("managed_ledger.after_list_update")
            await made.check(owner.client, owner.name)
        except ManagedLedgerFenced:
            owner.delete_later(writer.ledger_id)
            raise
        except (StorageUnavailable, LedgerError):
            # The record may name it by now. The next one will not, and says that it is to be deleted.
            owner.keeper.doom(writer.ledger_id)
            raise
        self._install(closed, writer)

    async def _close_writer(self) -> ListedLedger | None:
        """Close the open ledger where its last acknowledged entry is. None if there is no ledger."""
        writer = self.writer
        if writer is None:
            return None
        while self._in_flight and not writer.closed:
            await self._until_quiet()
        if self._owner.fenced:
            raise ManagedLedgerFenced(self._owner.name)
        try:
            await writer.close()
        except LedgerFenced as error:
            raise ManagedLedgerFenced(self._owner.name, str(error)) from error
        return ListedLedger(
            writer.ledger_id,
            writer.last_add_confirmed + 1,
            writer.confirmed_length,
            self._owner.clock.time_ms(),
        )

    def _without_open(self, record: LogRecord, closed: ListedLedger | None) -> LogRecord:
        """The record once `closed` is the last ledger and no longer open; an empty one is left out."""
        record = replace(record, next_index=self.next_index)
        if closed is None:
            return record
        others = tuple(each for each in record.ledgers if each.ledger_id != closed.ledger_id)
        if closed.entries:
            return replace(record, ledgers=(*others, closed))
        return replace(record, ledgers=others).with_doomed(closed.ledger_id)

    def _install(self, closed: ListedLedger | None, writer: LedgerWriter | None) -> None:
        owner = self._owner
        if owner.fenced:
            return
        if closed is not None:
            span = owner.ledgers.last
            assert span.ledger_id == closed.ledger_id
            assert span.entries == closed.entries
            span.size, span.closed_ms = closed.size, closed.closed_ms
            if not closed.entries and writer is not None:
                owner.ledgers.drop_last()
        self.writer = writer
        self._sent_entries = self._sent_bytes = 0
        self._next_index = self.next_index
        if writer is None:
            return
        owner.ledgers.add(writer.ledger_id)
        self._opened_at = self._active_at = owner.clock.monotonic()
        self._sent_at_tick = 0
        self._jitter = 1 + _JITTER * owner.dice.random()
        self._waiting.extendleft(reversed(self._returned))
        self._returned.clear()
        owner.ledger_changed()

    # Failing.

    def _fail_waiting(self, error: Exception) -> None:
        failed = [*self._returned, *self._waiting]
        self._returned.clear()
        self._waiting.clear()
        self._next_index = self.next_index
        for append in failed:
            append.done(None, -1, error)

    def refuse(self, error: ManagedLedgerError) -> None:
        """Take no more appends."""
        self._refusal = error

    def depose(self, error: ManagedLedgerError) -> None:
        """Complete nothing any more."""
        self._refusal = error
        failed = [*self._returned, *self._in_flight, *self._waiting]
        self._returned.clear()
        self._in_flight.clear()
        self._waiting.clear()
        for append in failed:
            append.done(None, -1, error)
        self._tell_if_quiet()

    # The end.

    async def finish(self, refusal: ManagedLedgerError) -> None:
        """Take no more appends, complete those there are, and close the ledger in the record too.

        Raises:
            ManagedLedgerFenced, StorageUnavailable, LedgerError
        """
        self._refusal = refusal
        while self._switching or self.pending:
            await self._until_quiet()
        if self._owner.fenced:
            raise ManagedLedgerFenced(self._owner.name)
        if self.writer is not None:
            await self.open_next()

    async def _until_quiet(self) -> None:
        """Wait for the next time that nothing is in flight or a switch has ended."""
        quiet: asyncio.Future[None] = self._loop.create_future()
        self._quiet.append(quiet)
        await quiet

    def _tell_if_quiet(self) -> None:
        if self._quiet and not self._in_flight:
            told, self._quiet = self._quiet, []
            for quiet in told:
                if not quiet.done():
                    quiet.set_result(None)
