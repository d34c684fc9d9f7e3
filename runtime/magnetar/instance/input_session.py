"""One input topic for as long as it is this instance's: its delivery, and what carries out its decisions."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Protocol

from magnetar.client.consumer import Consumer
from magnetar.client.messages import MessageBatch
from magnetar.environment.clock import Clock
from magnetar.environment.crash import crash_point
from magnetar.environment.logs import get_logger
from magnetar.functions.process.wire import Entry, EntryFlag, Result, ResultFlag
from magnetar.instance.dead_letters import DeadLetters
from magnetar.instance.delivery import (
    Acknowledge,
    DeadLetter,
    Delivery,
    Effect,
    Fault,
    Forget,
    Outcome,
    Output,
    Position,
    Publish,
    Run,
)
from magnetar.instance.entries import arrival_of, batch_payload
from magnetar.instance.errors import GuaranteeUnavailable, InputRestarted
from magnetar.instance.feed import Feed
from magnetar.instance.output_topic import PlainOutput, SequencedOutput
from magnetar.instance.statistics import Statistics
from magnetar.protocol.errors import ProtocolError

STALE_CLOCK_MS = 10_000
"""How far the clocks of broker and host may differ."""

ENTRIES_ORDERED_MAX = 256
ENTRIES_SHARED_MAX = 1024
"""Entries in hand. Of a shared input, so many may wait to be tried again before they hold up the others."""

log = get_logger("magnetar.instance.input")


class SessionOwner(Protocol):
    """The instance: what all its sessions share."""

    statistics: Statistics
    clock: Clock
    feed: Feed

    def session_failed(self, error: Exception) -> None:
        """Nothing can go on until everything is opened anew."""

    def bytes_in_hand(self, change: int) -> None:
        """So much more is in hand, or less."""


class InputSession:
    """Carries out what a Delivery decides. Everything happens on the loop, in callbacks."""

    def __init__(
        self,
        owner: SessionOwner,
        number: int,
        topic: str,
        configured: str,
        consumer: Consumer,
        delivery: Delivery[bytes],
        *,
        plain: PlainOutput | None = None,
        sequenced: SequencedOutput | None = None,
        output_partitions: int = 0,
        dead_letters: DeadLetters | None = None,
        owns_dead_letters: bool = True,
        ordered: bool = False,
        exact: bool = False,
    ) -> None:
        self.number = number
        self.topic = topic
        self.configured = configured
        self._owner = owner
        self._consumer = consumer
        self._delivery = delivery
        self._plain = plain
        self._sequenced = sequenced
        self._output_partitions = output_partitions
        self._exact = exact
        self._dead_letters = dead_letters
        self._owned = [part for part in (sequenced, dead_letters if owns_dead_letters else None) if part]
        self._limit = ENTRIES_ORDERED_MAX if ordered else ENTRIES_SHARED_MAX
        self._opened_ms = owner.clock.time_ms()
        self._batches: dict[Position, tuple[MessageBatch, bytes, int]] = {}
        """Entries in hand: as they came, their payload, their first index."""
        self._newest: tuple[Position, int] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self.closed = False
        self.room = asyncio.Event()
        """Set while another entry may come."""
        self.room.set()

    @property
    def idle(self) -> bool:
        return self._delivery.idle

    # Coming in

    def received(self, batch: MessageBatch) -> None:
        """An entry came. Raises GuaranteeUnavailable or InputRestarted where no result could be exactly once."""
        arrival = arrival_of(batch)
        if self._exact:
            self._check_index(batch, arrival.position, arrival.first_index)
        if arrival.position in self._batches:
            return
        try:
            payload = batch_payload(batch)
        except ProtocolError as error:
            log.error(
                "entry.unreadable", topic=self.topic, message_id=str(batch.message_id), reason=str(error)
            )
            self._owner.statistics.system_failed(
                f"{batch.message_id} of {self.topic} cannot be read: {error}", self._owner.clock.time_ms()
            )
            self._consumer.acknowledge(batch)
            return
        self._batches[arrival.position] = (batch, payload, arrival.first_index)
        self._owner.bytes_in_hand(len(payload))
        if len(self._batches) >= self._limit:
            self.room.clear()
        skipped = self._delivery.skipped
        effects = self._delivery.received(arrival)
        statistics = self._owner.statistics
        repeated = self._delivery.skipped - skipped
        if repeated:
            statistics.skipped += repeated
            log.info("input.repeated", topic=self.topic, message_id=str(batch.message_id), committed=repeated)
        statistics.received(len(batch) - repeated)
        self._carry_out(effects)

    def _check_index(self, batch: MessageBatch, position: Position, first_index: int) -> None:
        """Indices that go backwards mean another topic of the same name: its results would be taken for old ones."""
        if first_index < 0:
            raise GuaranteeUnavailable(
                f"'{self.topic}' does not tell the index of its messages, which sequence ids are made of"
            )
        newest = self._newest
        if newest is not None and position > newest[0] and first_index < newest[1]:
            raise InputRestarted(self.topic, first_index, newest[1])
        committed = self._delivery.marks.committed
        stored_ms = batch.broker_timestamp
        if (
            first_index <= committed
            and stored_ms is not None
            and stored_ms > self._opened_ms + STALE_CLOCK_MS
        ):
            raise InputRestarted(self.topic, first_index, committed)
        if newest is None or position > newest[0]:
            self._newest = (position, first_index)

    def process_ready(self) -> None:
        self._carry_out(self._delivery.process_ready(self._owner.clock.monotonic()))

    def process_lost(self, suspect: Position | None, reason: str) -> None:
        self._cancel_timer()
        self._carry_out(self._delivery.process_lost(suspect, reason))

    def entry(self, run: Run) -> Entry:
        """What the user process is sent for a run."""
        batch, payload, first_index = self._batches[run.position]
        return Entry(
            serial=0,
            topic=self.number,
            generation=run.generation,
            ledger_id=run.position.ledger_id,
            entry_id=run.position.entry_id,
            partition=batch.message_id.partition,
            first_index=first_index,
            count=max(batch.size, 1),
            route=self._route(first_index),
            ordinals=run.ordinals,
            flags=(EntryFlag.ISOLATE if run.isolate else 0) | (EntryFlag.ALONE if run.alone else 0),
            payload=payload,
        )

    def _route(self, first_index: int) -> int:
        """The partition for results without a key: where it must be the same in a repeat, it hangs on the entry."""
        if not self._output_partitions:
            return -1
        if self._sequenced is not None:
            return first_index % self._output_partitions
        assert self._plain is not None
        return self._plain.next_route()

    def ran(self, run: Run, result: Result) -> None:
        """User code is through with a run."""
        if self.closed or result.flags & ResultFlag.STALE:
            return
        owner, now_ms = self._owner, self._owner.clock.time_ms()
        batch = self._batches[run.position][0]
        asked = run.ordinals or range(max(batch.size, 1))
        calls = sum(ordinal < result.ran_through for ordinal in asked) if run.ordinals else result.ran_through
        owner.statistics.ran(calls, len(result.failures), result.elapsed_ns, now_ms)
        for failure in result.failures:
            owner.statistics.user_failed(failure.traceback or failure.error, now_ms)
        outcome: Outcome[bytes] = Outcome(
            [
                Output(group.route, group.ordinals, group.payload, group.after_failures)
                for group in result.groups
            ],
            [Fault(f.ordinal, f.error, f.traceback, f.rejected) for f in result.failures],
            result.ran_through,
        )
        crash_point("instance.after_run")
        self._carry_out(self._delivery.ran(run.position, run.generation, outcome, owner.clock.monotonic()))

    def side_publish_began(self, position: Position) -> None:
        self._delivery.side_publish_began(position)

    def side_publish_stored(self, position: Position) -> None:
        if not self.closed:
            self._carry_out(self._delivery.side_publish_stored(position))

    def acknowledged_by_user(self, position: Position, ordinal: int) -> None:
        self._carry_out(self._delivery.acknowledged_by_user(position, ordinal))

    # Going out

    def _carry_out(self, effects: list[Effect[bytes]]) -> None:
        for effect in effects:
            match effect:
                case Run():
                    self._owner.feed.run(self, effect)
                case Publish(token, position, output):
                    self._publish(token, position, output)
                case DeadLetter(token, position, fault):
                    self._bury(token, position, fault)
                case Acknowledge(position):
                    crash_point("instance.before_acknowledge")
                    self._consumer.acknowledge(self._batches[position][0])
                    crash_point("instance.after_acknowledge")
                case Forget(position):
                    _, payload, _ = self._batches.pop(position)
                    self._owner.bytes_in_hand(-len(payload))
                    self.room.set()
        self._set_timer()

    def _publish(self, token: int, position: Position, output: Output[bytes]) -> None:
        done = partial(self._stored, token)
        if self._sequenced is not None:
            self._sequenced.publish(output, self._batches[position][2], done)
        else:
            assert self._plain is not None
            self._plain.publish(output.route, output.payload, len(output.ordinals), done)

    def _bury(self, token: int, position: Position, fault: Fault) -> None:
        assert self._dead_letters is not None
        batch, _, first_index = self._batches[position]
        self._owner.statistics.dead_lettered += 1
        self._dead_letters.publish(batch, fault, first_index + fault.ordinal, partial(self._stored, token))

    def _stored(self, token: int) -> None:
        if not self.closed:
            self._carry_out(self._delivery.stored(token))

    # Time

    def _set_timer(self) -> None:
        due = self._delivery.next_due()
        if due is None or self.closed:
            self._cancel_timer()
        elif self._timer is None or due != self._timer_due:
            self._cancel_timer()
            wait_s = max(0.0, due - self._owner.clock.monotonic())
            self._timer_due = due
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._carry_out(self._delivery.wake(max(self._timer_due, self._owner.clock.monotonic())))

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def close(self) -> None:
        """Let go of everything at once. What is in hand will be delivered again, to whoever has the topic then."""
        self.closed = True
        self._cancel_timer()
        for _, payload, _ in self._batches.values():
            self._owner.bytes_in_hand(-len(payload))
        self._batches.clear()
        self.room.set()
        for part in self._owned:
            await part.close()
