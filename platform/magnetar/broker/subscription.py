"""A subscription of a persistent topic: a cursor, its consumers, and the reading between them.

The dispatcher decides, this does the waiting. One task reads for a subscription, and lives only while
there is something to read for somebody: appends, permits, acknowledgements and redeliveries wake it, once
for a whole batch of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from magnetar.broker import stats
from magnetar.broker.acknowledgements import Acknowledgements
from magnetar.broker.delays import Delays
from magnetar.broker.dispatch.dispatcher import Dispatcher
from magnetar.broker.dispatch.shared import SharedDispatcher
from magnetar.broker.entry_filters.subscription_side import POSTPONED_MAX, FilteredSubscription
from magnetar.broker.errors import (
    ConsumerBusy,
    InvalidPosition,
    MessageNotFound,
    MetadataFailed,
)
from magnetar.broker.filters import FilterChain, reject_markers
from magnetar.broker.membership import Join, SubscriptionBase, SubscriptionType
from magnetar.broker.rates.dispatch_gate import CAUGHT_UP_ENTRIES
from magnetar.broker.transactions.subscription_side import TransactionalSubscription
from magnetar.broker.upkeep.expiry import first_not_older
from magnetar.broker.watchdog import Watchdog
from magnetar.environment.logs import get_logger
from magnetar.managed_ledger import Position
from magnetar.managed_ledger.errors import ManagedLedgerError
from magnetar.protocol import commands

if TYPE_CHECKING:
    from magnetar.broker.compaction.reading import CompactedReading, EntrySource
    from magnetar.broker.consumer import Consumer
    from magnetar.broker.dispatch.candidate import Candidate
    from magnetar.broker.filters import EntryFilter
    from magnetar.broker.persistent_topic import PersistentTopic
    from magnetar.broker.rates.dispatch_gate import DispatchGate
    from magnetar.managed_ledger import Cursor, Entry
    from magnetar.protocol.pulsar_pb2 import CommandAck

log = get_logger("magnetar.broker")

_RETRY_READ_S = 0.5
_LONGEST_WAIT_S = 3600.0
_DUE_TOGETHER_MS = 10
"""What is due so soon after what was due before comes with it: finer than any tick that policies ask for, and
no more than a hundred timers a second."""


class Subscription(TransactionalSubscription, FilteredSubscription, SubscriptionBase):
    """One subscription of a persistent topic."""

    topic: PersistentTopic

    def __init__(
        self,
        topic: PersistentTopic,
        name: str,
        cursor: Cursor,
        *,
        durable: bool,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(topic, name, durable=durable, properties=properties)
        self.cursor = cursor
        self.compacted: CompactedReading | None = None
        """What reads it compacted, once a consumer has asked for that."""
        self._source: EntrySource = cursor
        """What is read: the cursor, or `compacted` where the active consumer wants it."""
        self.acknowledgements = Acknowledgements(self, cursor)
        self.last_mark_delete_ms = 0
        self._seen_mark_delete = cursor.mark_delete
        self._filters = FilterChain()
        self._delays: Delays = Delays(topic.settings.delayed_entries_max)
        self._due: asyncio.TimerHandle | None = None
        self._reading: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._generation = 0
        """Counts what moves the cursor under a read in flight, whose result is then of no use."""
        self._resetting: asyncio.Future[None] | None = None
        self._messages_per_entry = 1.0
        self.watchdog = Watchdog(self, topic.settings.stuck_after_s)
        self.gate = topic.rates.gate(self)
        """The rates it keeps to; None: none."""
        self._follow_filters()

    # Positions.

    @property
    def last_position(self) -> Position:
        """Of the topic's last entry."""
        return self.topic.ledger.last_confirmed

    @property
    def resetting(self) -> bool:
        """Whether the cursor is being moved, and consumers come back when it stands."""
        return self._resetting is not None

    @property
    def caught_up(self) -> bool:
        """Whether everything is acknowledged."""
        return self.cursor.backlog == 0

    # Reading and sending.

    def _new_dispatcher(self, kind: Join) -> Dispatcher:
        keyed = kind.type is SubscriptionType.KEY_SHARED
        filters: tuple[EntryFilter, ...] = (reject_markers,)
        self._delays.active = self.topic.policies.delayed_delivery.active
        if keyed or kind.type is SubscriptionType.SHARED:
            filters = (reject_markers, self._delays.judge)
        self._filters = FilterChain(self._with_transactions(filters), keyed=keyed)
        return super()._new_dispatcher(kind)

    def restart(self) -> None:
        self._generation += 1
        if self.dispatcher is not None and not self.dispatcher.individual:
            self.dispatcher.clear()
        self._delays.clear()
        if self.compacted is not None:
            self._source = self.topic.compaction.source(self)
        self._source.rewind()

    def wake(self) -> None:
        if self.closed or self._resetting is not None:
            return
        self._send_ready()
        if self.gate is not None and self.gate.waiting:
            return
        if self._reading is None and self._retry is None and self._wanted():
            self._reading = asyncio.get_running_loop().create_task(self._read())

    def _wanted(self) -> bool:
        dispatcher = self.dispatcher
        if dispatcher is None:
            return False
        if not self.topic.ours:
            self._wait_for_lease()
            return False
        if isinstance(dispatcher, SharedDispatcher) and dispatcher.replay_count:
            return True
        if dispatcher.room() <= 0:
            return False
        return self._any_due() or (self._source.has_more() and not self._delays.full)

    def _any_due(self) -> bool:
        if not self._delays:
            return False
        self._delays.now_ms = self.topic.clock.time_ms()
        return self._delays.any_due

    async def _read(self) -> None:
        """Read for as long as somebody has room and there is something for them."""
        try:
            # `wake` does nothing while this runs, so that between the last look and the end nothing may wait.
            while True:
                if not await self._read_once():
                    break
                await asyncio.sleep(0)  # Others have a turn, however much there is to read.
        except Exception as error:
            log.warning(
                "subscription.read_failed",
                topic=str(self.topic.name),
                subscription=self.name,
                reason=str(error),
            )
            self._retry = asyncio.get_running_loop().call_later(_RETRY_READ_S, self._read_again)
        finally:
            self._reading = None

    def _read_again(self) -> None:
        self._retry = None
        self.wake()

    async def _read_once(self) -> bool:
        """Read what is wanted most. False, without having waited, when nothing is."""
        dispatcher = self.dispatcher
        if dispatcher is None or self.closed or self._resetting is not None:
            return False
        if not self.topic.ours:
            self._wait_for_lease()
            return False
        settings = self.topic.settings
        entries_max, bytes_max = settings.dispatch_entries, settings.dispatch_bytes
        gate = self._dispatch_gate()
        if gate is not None:
            allowed = gate.ask()
            if allowed is None:
                return False
            entries_max = min(entries_max, gate.entries(allowed, self._messages_per_entry))
            bytes_max = min(bytes_max, allowed.size)
        positions = dispatcher.replays(entries_max)
        if positions:
            await self._replay(dispatcher, positions)
            return True
        room = dispatcher.room()
        if room > 0 and self._any_due():
            await self._deliver_due(dispatcher, min(room, entries_max))
            return True
        if room <= 0 or self._delays.full or not self._source.has_more() or self._postponed >= POSTPONED_MAX:
            return False
        generation = self._generation
        wanted = min(entries_max, max(1, round(room / self._messages_per_entry)))
        entries = await self._source.read(wanted, bytes_max)
        if generation != self._generation or dispatcher is not self.dispatcher:
            self._source.rewind()  # The read may have moved it on from where it was put meanwhile.
        else:
            await self._offer(dispatcher, entries, replayed=False)
        return True

    def _dispatch_gate(self) -> DispatchGate | None:
        """The rates to ask before a read; None: none holds now."""
        if self.gate is None or self.topic.settings.dispatch_rate_for_caught_up:
            return self.gate
        return self.gate if self.cursor.backlog > CAUGHT_UP_ENTRIES else None

    def follow_policies(self) -> None:
        """Policies have changed."""
        self.gate = self.topic.rates.gate(self, self.gate)
        self._delays.active = self.topic.policies.delayed_delivery.active
        self._wait_until_due()
        self._follow_filters()
        self.wake()

    async def _replay(self, dispatcher: Dispatcher, positions: Sequence[Position]) -> None:
        generation = self._generation
        try:
            entries = await self.cursor.read_entries_at(positions)
        except ManagedLedgerError:
            dispatcher.give_back(positions)
            raise
        if generation != self._generation or dispatcher is not self.dispatcher:
            return  # Cleared, and the cursor rewound: they will be read in their turn.
        entries = [entry for entry in entries if not self.cursor.is_acknowledged(entry.position)]
        found = {entry.position for entry in entries}
        dispatcher.forget([position for position in positions if position not in found])
        await self._offer(dispatcher, entries, replayed=True)

    async def _deliver_due(self, dispatcher: Dispatcher, limit: int) -> None:
        """Send what was held back and is due."""
        generation = self._generation
        positions = self._delays.take_due(limit)
        try:
            await self._replay(dispatcher, positions)
        except ManagedLedgerError:
            if generation == self._generation:
                for position in positions:
                    self._delays.hold(position, self._delays.now_ms)
            raise
        self._wait_until_due()

    def deliver_again(self, positions: Sequence[Position]) -> None:
        """Entries that were held back, or given out and not waited for any more, are wanted again now.

        What was not read yet comes in its turn.
        """
        for position in positions:
            if position < self.cursor.read_position and not self.cursor.is_acknowledged(position):
                self._delays.hold(position, 0)
        self.wake()

    def _wait_until_due(self) -> None:
        """One timer for all that is held back. It goes off for the soonest."""
        due_ms = self._delays.next_due_ms
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if due_ms is not None and not self.closed:
            tick_ms = min(self.topic.policies.delayed_delivery.tick_time, _DUE_TOGETHER_MS)
            wait_s = max(tick_ms, due_ms - self.topic.clock.time_ms()) / 1000
            self._due = asyncio.get_running_loop().call_later(
                min(wait_s, _LONGEST_WAIT_S), self._time_has_come
            )

    def _time_has_come(self) -> None:
        self._due = None
        if not self._any_due():
            self._wait_until_due()  # The wall clock was set back, or the wait was too long for one timer.
        self.wake()

    async def _offer(self, dispatcher: Dispatcher, entries: Sequence[Entry], *, replayed: bool) -> None:
        """Let entries through the filters, and what passes to the consumers. It waits only where users have filters."""
        candidates = self._sift(dispatcher, entries)
        if self.entry_filters is not None:
            self.filtering = True
            try:
                await self._pass_filters(dispatcher, candidates, replayed=replayed)
            finally:
                self.filtering = False
        elif candidates:
            self._hand_out(dispatcher, candidates, replayed=replayed)

    def _sift(self, dispatcher: Dispatcher, entries: Sequence[Entry]) -> list[Candidate]:
        self._delays.now_ms = self.topic.clock.time_ms()
        sifted = self._filters.sift(
            entries, self._deliverable_parts if self.compacted is None else self._compacted_part
        )
        if sifted.never:
            self._pass_over(dispatcher, sifted.never)
        if sifted.later:
            self._wait_until_due()
        return sifted.candidates

    def _pass_over(self, dispatcher: Dispatcher, positions: Sequence[Position]) -> None:
        """No consumer may see these: they are acknowledged."""
        self.cursor.acknowledge((position, None) for position in positions)
        dispatcher.forget(positions)
        if self.compacted is not None:
            self.compacted.acknowledged((position, None) for position in positions)

    def _hand_out(self, dispatcher: Dispatcher, candidates: list[Candidate], *, replayed: bool) -> None:
        if candidates:
            messages = sum(candidate.messages for candidate in candidates)
            if self.gate is not None:
                size = sum(len(candidate.entry.data) for candidate in candidates)
                self.gate.went_out(len(candidates), messages, size)
            self._messages_per_entry += (messages / len(candidates) - self._messages_per_entry) * 0.3
            dispatcher.offer(candidates, replayed=replayed)
            self._send_ready()

    def _compacted_part(self, position: Position) -> Sequence[int] | None:
        assert self.compacted is not None
        return self.compacted.part_left(position, self._deliverable_parts(position))

    def _send_ready(self) -> None:
        if self.dispatcher is None:
            return
        if not self.topic.ours:
            self._wait_for_lease()
            return
        deliveries = self.dispatcher.take()
        if not deliveries:
            return
        now_ms = self.topic.clock.time_ms()
        partition = self.topic.partition
        for delivery in deliveries:
            consumer: Consumer = delivery.member  # type: ignore[assignment]  # Only consumers ever join.
            consumer.deliver(delivery, partition, now_ms)
            size = len(delivery.candidate.entry.data)
            self.flow.add(delivery.candidate.messages, size)
            self.topic.flow_out.add(delivery.candidate.messages, size)
            if delivery.redeliveries:
                self.redelivered.count += delivery.candidate.messages
        self.last_delivery_ms = now_ms

    def _wait_for_lease(self) -> None:
        """What is ready stays ready: it goes out when we are sure to own the topic, or never from here."""
        if not self.topic.lost:
            self.topic.lease.when_sure(self.wake)

    # What consumers ask.

    def acknowledge(self, consumer: Consumer, command: CommandAck) -> None:
        """Take an ACK."""
        self.acknowledgements.handle(consumer, command)

    def acknowledged(self, consumer: Consumer, messages: int) -> None:
        """A consumer has acknowledged: count it, and go on where that made room."""
        now_ms = self.topic.clock.time_ms()
        consumer.acks.count += messages
        self.acks.count += messages
        consumer.last_ack_ms = self.last_ack_ms = now_ms
        if self.dispatcher is not None and self.dispatcher.individual:
            self.wake()
        if self.topic.terminated and self.caught_up:
            self.tell_end()

    def redeliver(
        self, consumer: Consumer, positions: Collection[Position] | None, epoch: int | None
    ) -> None:
        """A consumer gives back what it got: all of it, or some entries."""
        if self.dispatcher is None or consumer not in self.consumers:
            return
        if epoch is not None:
            consumer.epoch = max(epoch, consumer.epoch or 0)
        if self.dispatcher.redeliver(consumer, positions):
            self.restart()
        self.wake()

    def tell_end(self) -> None:
        """The topic is terminated and everything acknowledged: say so to clients that bear it."""
        for consumer in self.consumers:
            if consumer.peer.bears_end_of_topic:
                consumer.peer.send(commands.reached_end_of_topic(consumer.identifier))

    def _after_join(self, consumer: Consumer) -> None:
        super()._after_join(consumer)
        if self.topic.terminated and self.caught_up and consumer.peer.bears_end_of_topic:
            consumer.peer.send(commands.reached_end_of_topic(consumer.identifier))

    # Moving the cursor.

    async def until_ready(self) -> None:
        while self._resetting is not None:
            await asyncio.shield(self._resetting)
        await super().until_ready()

    async def reset(self, position: Position, ack_set: Sequence[int] | None = None) -> None:
        """Let the next delivery be that of `position`, or of the entry after it if there is none.

        All consumers are let go first; those that subscribe meanwhile wait until the cursor stands.

        Raises:
            ConsumerBusy: another reset is under way.
            InvalidPosition: the cursor cannot stand there.
        """
        if self._resetting is not None:
            raise ConsumerBusy(f"subscription {self.name!r} is being reset already: retry when that is done")
        await super().until_ready()
        self._resetting = asyncio.get_running_loop().create_future()
        try:
            self.disconnect_all()
            await self._stop_reading()
            if self.pending_acks is not None:
                await self.pending_acks.forget_all()
            await self.cursor.reset(position, ack_set)
            if self.compacted is not None:
                self.compacted.moved_to(position)
            if self.dispatcher is not None:
                self.dispatcher.clear()
            self._generation += 1
        except ManagedLedgerError as error:
            raise InvalidPosition(
                f"subscription {self.name!r} cannot be set to {position}: {error}"
            ) from error
        finally:
            resetting, self._resetting = self._resetting, None
            resetting.set_result(None)
            self.wake()

    async def reset_to_time(self, timestamp_ms: int) -> None:
        """Let the next delivery be the first message not older than `timestamp_ms`."""
        last = self.last_position
        found = await self.topic.ledger.position_at_time(timestamp_ms)
        if self.compacted is not None:
            found = await self.compacted.position_at_time(timestamp_ms, found)
        # Not to the latest there is by then: what was published meanwhile is not older.
        await self.reset(last.following if found is None else found)

    # Standing still.

    def tick(self, seconds: float) -> None:
        super().tick(seconds)
        self.watchdog.look(self.topic.clock.monotonic())

    def something_to_send(self) -> bool:
        """Whether somebody wants what there is: then it should be on its way, or be read at least."""
        dispatcher = self.dispatcher
        if dispatcher is None:
            return False
        if dispatcher.could_send():
            return True
        return dispatcher.room() > 0 and (
            self._any_due() or (self._source.has_more() and not self._delays.full)
        )

    @property
    def progress(self) -> tuple[object, ...]:
        """Changes with whatever is done for its consumers, be it that entries are held back or passed over."""
        filters, users = self._filters, self.entry_filters
        rejected = 0 if users is None else users.rejected
        return self.flow.messages.count, self.cursor.read_position, filters.never, filters.later, rejected

    @property
    def retrying(self) -> bool:
        """Whether reads fail, and the next is planned."""
        return self._retry is not None

    def stands_still_because(self) -> str:
        """What of it has stopped: for the log, once it is known to stand still."""
        if self._reading is not None:
            return "a read has not ended"
        return "nobody woke it"

    def begin_anew(self) -> None:
        """Let everybody go, give up the read under way, and start from what is not acknowledged as they come back."""
        self.disconnect_all()
        if self._reading is not None:
            self._reading.cancel()

    async def _stop_reading(self) -> None:
        """Wait until no read is in flight. The next one begins by `wake`."""
        self._generation += 1
        if self.entry_filters is not None:
            self.entry_filters.interrupt()
        while self._reading is not None:
            await asyncio.wait([self._reading])

    async def skip(self, entries: int) -> int:
        """Acknowledge the first `entries` unacknowledged entries. Returns how many there were."""
        skipped = [entry.position for entry in await self._unacknowledged(entries)]
        self.skip_entries(skipped)
        await self.cursor.flush()
        return len(skipped)

    async def skip_all(self) -> None:
        """Acknowledge everything there is."""
        last = self.last_position
        self.cursor.acknowledge_cumulative(last)
        self._skipped_up_to(last)
        await self.cursor.flush()

    async def expire(self, seconds: float) -> int:
        """Acknowledge what is older than `seconds`. Returns how many entries that were."""
        cutoff_ms = self.topic.clock.time_ms() - round(seconds * 1000)
        return await self.expire_before(await first_not_older(self.topic, cutoff_ms))

    async def expire_before(self, first_kept: Position) -> int:
        """Acknowledge what lies before `first_kept`. Returns how many entries that were."""
        self.last_expire_ms = self.topic.clock.time_ms()
        last = Position(first_kept.ledger_id, first_kept.entry_id - 1)
        expired = await self.evict_up_to(last) if last > self.cursor.mark_delete else 0
        self.expired.count += expired
        return expired

    async def evict_up_to(self, position: Position) -> int:
        """Acknowledge everything up to and with `position`, whoever has it. Returns how many entries that were."""
        before = self.cursor.backlog
        self.cursor.acknowledge_cumulative(position)
        gone = before - self.cursor.backlog  # Asked at once: the topic grows meanwhile.
        self._skipped_up_to(position)
        await self.cursor.flush()
        return max(0, gone)

    async def expire_up_to(self, position: Position) -> int:
        """Acknowledge everything up to and with `position`. Returns how many entries that were."""
        self.last_expire_ms = self.topic.clock.time_ms()
        if position > self.last_position:
            raise InvalidPosition(
                f"{position.ledger_id}:{position.entry_id} lies beyond the end of the topic"
            )
        expired = await self.evict_up_to(position)
        self.expired.count += expired
        return expired

    async def peek(self, number: int) -> Entry:
        """The `number`-th unacknowledged entry, counted from 1.

        Raises:
            MessageNotFound: there are not so many.
        """
        entries = await self._unacknowledged(number)
        if number < 1 or len(entries) < number:
            raise MessageNotFound("Message not found")
        return entries[number - 1]

    async def _unacknowledged(self, limit: int) -> list[Entry]:
        """The first `limit` unacknowledged entries, read past a cursor of their own."""
        found: list[Entry] = []
        start = Position(self.cursor.mark_delete.ledger_id, self.cursor.mark_delete.entry_id + 1)
        async with self.topic.temporary_cursor(start) as reader:
            while len(found) < limit and reader.has_more():
                entries = await reader.read(
                    min(limit - len(found), self.topic.settings.dispatch_entries),
                    self.topic.settings.dispatch_bytes,
                )
                if not entries:
                    break
                found.extend(entry for entry in entries if not self.cursor.is_acknowledged(entry.position))
        return found

    def skip_entries(self, positions: Sequence[Position]) -> None:
        """Acknowledge entries, whoever has them."""
        self.cursor.acknowledge((position, None) for position in positions)
        if self.dispatcher is not None and self.consumers:
            for position in positions:  # Whoever has it, or nobody yet, though it was read.
                holder = next(
                    (each for each in self.consumers if position in each.pending), self.consumers[0]
                )
                self.dispatcher.acknowledged(position, (), holder)
        self._delays.forget(positions)
        self.wake()

    def _skipped_up_to(self, position: Position) -> None:
        if self.compacted is not None:
            self.compacted.skipped_up_to(position)
        if self.dispatcher is not None:
            self.dispatcher.acknowledged_up_to(position)
        self._delays.forget_through(position)
        self.wake()

    # Ending.

    async def unsubscribe(self, consumer: Consumer, *, force: bool) -> None:
        """Delete the subscription at a consumer's wish.

        Raises:
            MetadataFailed: there are other consumers.
        """
        if consumer not in self.consumers:
            raise MetadataFailed("the consumer is not connected any more: subscribe again first")
        if len(self.consumers) > 1 and not force:
            raise MetadataFailed(
                f"subscription {self.name!r} has {len(self.consumers)} consumers: close the others first, or force it"
            )
        self.leave(consumer)
        consumer.peer.forget_consumer(consumer)
        await self.topic.delete_subscription(self.name, force=True)

    async def close(self) -> None:
        """Stop. A durable cursor stays with its log, which writes it down and keeps what it needs."""
        await self.stop()
        await self._close_pending_acks()
        if not self.durable:
            await self.cursor.close()

    async def stop(self) -> None:
        """Let consumers go, and end reading."""
        self.closed = True
        self.disconnect_all()
        if self.gate is not None:
            self.gate.close()
        for timer in (self._retry, self._pause, self._due):
            if timer is not None:
                timer.cancel()
        await self._stop_reading()

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        """Replace the subscription's properties. Durable when it returns, where the subscription is."""
        await self.cursor.set_cursor_properties(properties)
        self.properties = dict(properties)

    def notice_mark_delete(self) -> None:
        """Remember when the cursor was last seen to have moved."""
        if self.cursor.mark_delete != self._seen_mark_delete:
            self._seen_mark_delete = self.cursor.mark_delete
            self.last_mark_delete_ms = self.topic.clock.time_ms()

    def stats(self) -> stats.Json:
        backlog = self.cursor.backlog
        return {
            **super().stats(),
            **self.watchdog.told(self.topic.clock.monotonic()),
            "msgBacklog": backlog,
            "msgBacklogNoDelayed": max(0, backlog - len(self._delays)),
            "msgDelayed": len(self._delays),
            "delayedMessageIndexSizeInBytes": self._delays.size_bytes,
            "backlogSize": self.cursor.backlog_bytes,
            "earliestMsgPublishTimeInBacklog": self.topic.backlog.earliest_ms(self.name),
            "lastMarkDeleteAdvancedTimestamp": self.last_mark_delete_ms,
            "nonContiguousDeletedMessagesRanges": self.cursor.acknowledged_ranges,
            "filterProcessedMsgCount": self._filters.delivered + self._filters.never + self._filters.later,
            "filterAcceptedMsgCount": self._filters.delivered,
            "filterRejectedMsgCount": self._filters.never,
            "filterRescheduledMsgCount": self._filters.later,
            **(self.entry_filters.stats() if self.entry_filters is not None else {}),
        }
