"""What a topic has of compaction: when it runs, which compacted ledger holds, and what is told of it.

The cursor `__compaction` stands at the horizon of the compacted ledger, so that the log keeps what is not
compacted yet. Its properties say which compacted ledger holds, and name all there are; the switch from one to the
next is one write of them. What is named and does not hold was begun or replaced when a broker ended: whoever owns
the topic next deletes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.compaction.compacted_ledger import CompactedLedger
from magnetar.broker.compaction.compactor import Compactor, Outcome, Scope
from magnetar.broker.compaction.reading import CompactedReading, EntrySource
from magnetar.broker.compaction.state import (
    BEGINS_PROPERTY,
    COMPACTED_PROPERTY,
    COMPACTION_CURSOR,
    CompactedEntry,
    CompactedRecord,
)
from magnetar.broker.errors import CompactionRunning
from magnetar.environment.crash import crash_point
from magnetar.environment.logs import get_logger
from magnetar.ledger.errors import LedgerError
from magnetar.managed_ledger import EARLIEST, Position
from magnetar.managed_ledger.creation import new_ledger
from magnetar.managed_ledger.errors import ManagedLedgerError
from magnetar.managed_ledger.records import KEPT_LEDGERS
from magnetar.protocol import ack_sets
from magnetar.protocol.errors import ProtocolError
from magnetar.protocol.ids import MessageId
from magnetar.protocol.message import read_metadata

if TYPE_CHECKING:
    from magnetar.broker.context import BrokerContext
    from magnetar.broker.persistent_topic import PersistentTopic
    from magnetar.broker.subscription import Subscription
    from magnetar.managed_ledger import Cursor, ManagedLedger

log = get_logger("magnetar.broker")

_AFTER_FAILURE_S: Final = 60.0
_COUNT_RIGHT: Final = ("Pulsar-Java", "Magnetar")
"""Clients that acknowledge an entry once all messages are acknowledged that they were told are there. Others wait for
those that are gone, too, so that their durable consumers are better given something for each. Readers do not mind."""
_REST: Final = 4
"""By threshold a topic is not compacted again before so many times as long as the last run took."""


class TopicCompaction:
    """Compaction of one topic."""

    def __init__(self, topic: PersistentTopic, ledger: ManagedLedger, context: BrokerContext) -> None:
        self._topic = topic
        self._ledger = ledger
        self._context = context
        self._cursor: Cursor | None = None
        self._running: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()
        self._not_before = 0.0
        self.current: CompactedLedger | None = None
        """The compacted ledger that holds."""
        self.status = "NOT_RUN"
        """NOT_RUN, RUNNING, SUCCESS or ERROR: of the last run in this broker."""
        self.last_error = ""
        self.runs = 0
        self.failures = 0
        self.removed_messages = 0
        """By the last run."""
        self.succeeded_ms = 0
        self.failed_ms = 0
        self.duration_ms = 0

    @property
    def horizon(self) -> Position:
        """The last entry of the log that is compacted."""
        return self.current.horizon if self.current is not None else EARLIEST

    @property
    def backlog_bytes(self) -> int:
        """About how much is not compacted yet."""
        return self._ledger.total_size if self._cursor is None else self._cursor.backlog_bytes

    # Coming and going.

    async def recover(self) -> None:
        """Know again what was compacted, and make an end of what was cut short."""
        cursor = self._ledger.cursors.get(COMPACTION_CURSOR)
        if cursor is None:
            await self.follow_policies()
            return
        self._cursor = cursor
        said = cursor.cursor_properties.get(COMPACTED_PROPERTY)
        if said is not None:
            record = CompactedRecord.decode(said)
            self.current = CompactedLedger(record, self._ledger.client)
            self.succeeded_ms = record.completed_ms
            cursor.acknowledge_cumulative(record.horizon)
        if self._named() != self._holding():
            self._context.tasks.start(
                self._delete_leftovers(), f"delete old compacted ledgers of {self._topic.name}"
            )

    def _named(self) -> list[int]:
        assert self._cursor is not None
        kept = self._cursor.cursor_properties.get(KEPT_LEDGERS, "")
        return [int(each) for each in kept.split(",") if each]

    def _holding(self) -> list[int]:
        return [] if self.current is None else [self.current.record.ledger_id]

    async def _delete_leftovers(self, *, switch_in_doubt: bool = False) -> None:
        """Delete the compacted ledgers that are named and do not hold."""
        assert self._cursor is not None
        try:
            if switch_in_doubt:  # Say first that what we believe to hold does.
                holding = "" if self.current is None else self.current.record.encode()
                await self._change({COMPACTED_PROPERTY: holding})
            gone = set(self._named()) - set(self._holding())
            for ledger_id in gone:
                await self._ledger.client.delete(ledger_id)
            crash_point("compaction.old_deleted")
            # What a run that began meanwhile has named stays named.
            await self._change({}, forget=gone)
        except (LedgerError, ManagedLedgerError) as error:
            log.warning("compaction.leftovers_kept", topic=str(self._topic.name), reason=str(error))

    async def follow_policies(self) -> None:
        """Where a threshold is set, the log keeps from now on what is not compacted yet."""
        if self._topic.policies.compaction_threshold_bytes > 0 and self._cursor is None:
            await self.keep()

    async def keep(self) -> Cursor:
        """Have the log keep, from now on, what is not compacted yet."""
        if self._cursor is None:
            self._cursor = await self._ledger.open_cursor(COMPACTION_CURSOR, initial="earliest")
        return self._cursor

    @property
    def keeps(self) -> bool:
        """Whether the log keeps what is not compacted yet."""
        return self._cursor is not None

    async def end(self) -> None:
        """Compact no more: what was compacted goes, and the log need not wait to be.

        Raises:
            CompactionRunning
            ManagedLedgerError: some of it may be left; ask again, or load the topic anew.
        """
        if self._running is not None:
            raise CompactionRunning("Compaction already in progress: it ends first")
        self.current = self._cursor = None
        self.status = "NOT_RUN"
        await self._ledger.delete_cursor(COMPACTION_CURSOR)

    async def let_go(self) -> None:
        """Nothing that is in the log now need be kept to be compacted. What was compacted stays."""
        if self._cursor is not None:
            self._cursor.acknowledge_cumulative(self._ledger.last_confirmed)
            await self._cursor.flush()

    async def close(self) -> None:
        """Let a run go; what it has written is of no use."""
        running = self._running
        if running is not None:
            running.cancel()
            await asyncio.wait([running])

    # Running.

    def check(self, now: float) -> None:
        """Compact, if there is as much to compact as the topic's policy has it. Asked now and then."""
        self._remember_all()
        threshold = self._topic.policies.compaction_threshold_bytes
        if threshold <= 0 or self._running is not None or now < self._not_before or self._topic.closing:
            return
        if self._end() > self.horizon and self.backlog_bytes > threshold and self._ledger.number_of_entries:
            self.start()

    def start(self) -> None:
        """Compact what there is now.

        Raises:
            CompactionRunning: that is being done already.
            ServiceNotReady: the topic is being unloaded.
        """
        self._topic.check_open()
        if self._running is not None:
            raise CompactionRunning("Compaction already in progress")
        self.status, self.last_error = "RUNNING", ""
        self._running = self._context.tasks.start(self._run(), f"compact {self._topic.name}")

    def _end(self) -> Position:
        """The last entry that may be compacted: behind it transactions may be open."""
        return self._topic.max_read_position

    async def _run(self) -> None:
        began = self._context.clock.monotonic()
        try:
            outcome = await self._compact()
        except Exception as error:
            self._failed(error)
        except BaseException:
            self.status = "NOT_RUN"
            raise
        else:
            self.status = "SUCCESS"
            self.runs += 1
            self.removed_messages = outcome.seen - outcome.record.messages
            self.succeeded_ms = outcome.record.completed_ms
            took = self._context.clock.monotonic() - began
            self.duration_ms = round(took * 1000)
            self._not_before = self._context.clock.monotonic() + _REST * took
            log.info(
                "topic.compacted",
                topic=str(self._topic.name),
                ledger_id=outcome.record.ledger_id,
                messages=outcome.record.messages,
                removed=self.removed_messages,
                passes=outcome.passes,
                milliseconds=self.duration_ms,
            )
        finally:
            self._running = None

    def _failed(self, error: Exception) -> None:
        self.status, self.last_error = "ERROR", str(error) or type(error).__name__
        self.failures += 1
        self.failed_ms = self._context.clock.time_ms()
        self._not_before = self._context.clock.monotonic() + _AFTER_FAILURE_S
        log.warning("topic.not_compacted", topic=str(self._topic.name), reason=self.last_error)

    async def _compact(self) -> Outcome:
        cursor = await self.keep()
        settings = self._topic.settings
        scope = Scope(
            self.current,
            max(self._end(), self.horizon),
            self._topic.temporary_cursor,
            self._topic.hides,
            settings.compaction_keys_max,
            settings.compaction_retain_keyless,
        )
        compactor = Compactor(scope, self._context.clock)
        await compactor.choose()
        ledger, clock = self._ledger, self._context.clock
        made = await new_ledger(ledger.client, clock, ledger.config, ledger.name, cursor=COMPACTION_CURSOR)
        ledger_id = made.writer.ledger_id
        try:
            crash_point("compaction.before_named")
            await self._change({}, name=ledger_id)
            await made.check(ledger.client, ledger.name)
            outcome = await compactor.write(made.writer)
            await self._change({COMPACTED_PROPERTY: outcome.record.encode()})
        except BaseException:
            if ledger_id not in self._named():
                ledger.delete_later(ledger_id)
            if not self._topic.closing:  # Else the next owner does it.
                self._context.tasks.start(
                    self._delete_leftovers(switch_in_doubt=True),
                    f"delete what the compaction of {self._topic.name} has left",
                )
            raise
        crash_point("compaction.switched")
        self.current = CompactedLedger(outcome.record, ledger.client)
        cursor.acknowledge_cumulative(outcome.record.horizon)
        await cursor.flush()
        crash_point("compaction.mark_moved")
        await self._delete_leftovers()
        return outcome

    async def _change(
        self, changes: Mapping[str, str], *, name: int | None = None, forget: Collection[int] = ()
    ) -> None:
        """Change what the cursor's properties say: all at once, or nothing. What becomes empty is not kept.

        `name` is a compacted ledger that there is from now on; those to `forget` are deleted.
        """
        assert self._cursor is not None
        async with self._changing:
            named = dict.fromkeys(each for each in (*self._holding(), *self._named()) if each not in forget)
            if name is not None:
                named[name] = None
            changed = {
                **self._cursor.cursor_properties,
                KEPT_LEDGERS: ",".join(map(str, named)),
                **changes,
            }
            await self._cursor.set_cursor_properties({name: said for name, said in changed.items() if said})

    # Reading.

    async def attend(
        self, subscription: Subscription, *, new: bool, earliest: bool, start: Position | None
    ) -> None:
        """A consumer that reads compacted asks for `subscription`, made just now if `new`.

        Args:
            earliest: whether a new one begins at the beginning, where `start` does not say otherwise.
        """
        if subscription.compacted is not None:
            return
        begins: Position | None = None
        if not subscription.durable:
            begins = start if start is not None else EARLIEST if earliest else None
        elif new and earliest:
            begins = EARLIEST
        elif not new:
            begins = self._begins(subscription.name)
        if begins is not None and begins >= self._ledger.first_position:
            begins = None
        reading = CompactedReading(self, self._ledger, subscription.cursor, begins)
        if subscription.durable:
            await self.remember(subscription.name, begins)
        subscription.compacted = reading

    def source(self, subscription: Subscription) -> EntrySource:
        """What a subscription reads from, by what its active consumer asks for."""
        reading = subscription.compacted
        active = subscription.active_consumer
        if reading is None or active is None or not active.read_compacted:
            return subscription.cursor
        reading.tells_gone = not subscription.durable or active.peer.client_version.startswith(_COUNT_RIGHT)
        return reading

    def _begins(self, name: str) -> Position | None:
        said = (
            self._cursor.cursor_properties.get(BEGINS_PROPERTY + name) if self._cursor is not None else None
        )
        if said is None:
            return None
        ledger_id, _, entry_id = said.partition(":")
        return Position(int(ledger_id), int(entry_id))

    async def remember(self, name: str, begins: Position | None) -> None:
        """Keep where a durable subscription begins, if that is before all the log still has."""
        if self._begins(name) == begins or (begins is None and self._cursor is None):
            return
        await self.keep()
        await self._change({BEGINS_PROPERTY + name: "" if begins is None else str(begins)})

    def _remember_all(self) -> None:
        """Keep how far durable subscriptions have come in what the log has let go."""
        for subscription in self._topic.subscriptions.values():
            reading = subscription.compacted
            if (
                reading is not None
                and subscription.durable
                and self._begins(subscription.name) != reading.begins
            ):
                self._context.tasks.start(
                    self._remember_quietly(subscription.name, reading.begins),
                    f"keep where {subscription.name} reads compacted",
                )

    async def _remember_quietly(self, name: str, begins: Position | None) -> None:
        try:
            await self.remember(name, begins)
        except ManagedLedgerError as error:  # It may read some messages once more.
            log.warning("subscription.place_not_kept", subscription=name, reason=str(error))

    async def last_message_id(self, last: MessageId) -> MessageId:
        """The last message that can be read compacted, where `last` is the last of the log."""
        compacted = self.current
        if compacted is None or (last.entry_id >= 0 and (last.ledger_id, last.entry_id) > compacted.horizon):
            return last
        found = await compacted.read(compacted.entries - 1, 1, 1) if compacted.entries else []
        if not found:
            return MessageId(-1, -1, last.partition)
        position = found[0].entry.position
        return MessageId(position.ledger_id, position.entry_id, last.partition, _last_index(found[0]))

    # Figures.

    def stats(self) -> dict[str, Any]:
        """As topic stats tell it."""
        return {
            "lastCompactionRemovedEventCount": self.removed_messages,
            "lastCompactionSucceedTimestamp": self.succeeded_ms,
            "lastCompactionFailedTimestamp": self.failed_ms,
            "lastCompactionDurationTimeInMills": self.duration_ms,
        }

    def internal_stats(self) -> dict[str, Any]:
        """As internal stats tell the compacted ledger."""
        record = None if self.current is None else self.current.record
        return {
            "ledgerId": -1 if record is None else record.ledger_id,
            "entries": -1 if record is None else record.entries,
            "size": -1 if record is None else record.size,
            "offloaded": False,
            "underReplicated": False,
        }


def _last_index(each: CompactedEntry) -> int:
    """Of a batch the last message that is there; -1 of what is no batch."""
    try:
        metadata = read_metadata(each.entry.data)
    except ProtocolError:
        return -1
    if not metadata.HasField("num_messages_in_batch"):
        return -1
    return max(ack_sets.indexes(each.stays)) if each.stays else metadata.num_messages_in_batch - 1
