"""Deliberate faults in dispatch, acknowledgement and deduplication, each a patch of a production class.

A model that does not notice them proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from magnetar.broker import dedup_cursor, publishing
from magnetar.broker.acknowledgements import Acknowledgements
from magnetar.broker.dedup_cursor import DeduplicationCursor
from magnetar.broker.deduplication import Deduplication, Sequences
from magnetar.broker.deduplication import Verdict as Judgement
from magnetar.broker.delays import Delays
from magnetar.broker.dispatch.candidate import Candidate, Delivery
from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.dispatch.member import Member
from magnetar.broker.dispatch.shared import SharedDispatcher, Turns
from magnetar.broker.dispatch.single_active import SingleActiveDispatcher
from magnetar.broker.filters import Verdict
from magnetar.broker.membership import SubscriptionBase
from magnetar.broker.sequence_ids import stored_sequences
from magnetar.broker.subscription import Subscription
from magnetar.managed_ledger.cursor import Cursor
from magnetar.protocol import ack_sets
from magnetar.protocol.message import split_message

Patch = tuple[Any, str, Any]


@dataclass(frozen=True, slots=True)
class Fault:
    what: str
    life: str
    """The kind of life that notices it."""
    patches: Callable[[], list[Patch]]


FAULTS: dict[str, Fault] = {}


def _fault(life: str) -> Callable[[Callable[[], list[Patch]]], Callable[[], list[Patch]]]:
    def register(patches: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
        FAULTS[patches.__name__] = Fault((patches.__doc__ or "").strip(), life, patches)
        return patches

    return register


@contextmanager
def faulty(name: str) -> Iterator[None]:
    """Have one fault in force for a while; none if `name` is empty."""
    before: list[Patch] = []
    try:
        for owner, attribute, replacement in FAULTS[name].patches() if name else ():
            before.append((owner, attribute, owner.__dict__[attribute]))
            setattr(owner, attribute, replacement)
        yield
    finally:
        for owner, attribute, original in reversed(before):
            setattr(owner, attribute, original)


# Dispatch.


@_fault("subscription")
def forgets_to_rewind() -> list[Patch]:
    """What an exclusive consumer gives back never comes again."""

    def redeliver(self: SingleActiveDispatcher, member: Member, positions: object) -> bool:
        return False

    return [(SingleActiveDispatcher, "redeliver", redeliver)]


@_fault("subscription")
def counts_a_departure() -> list[Patch]:
    """A consumer that leaves counts as one that gave everything back: dead letters come too soon."""
    remove = SharedDispatcher.remove

    def leave(self: SharedDispatcher, member: Member) -> None:
        self.redeliver(member, None)
        remove(self, member)

    return [(SharedDispatcher, "remove", leave)]


@_fault("subscription")
def gives_keys_to_anyone() -> list[Patch]:
    """A key moves while the consumer it had has unacknowledged messages of it."""

    def owner(self: KeySharedDispatcher, slot: int) -> Member | None:
        return self._selector.select(slot)

    return [(KeySharedDispatcher, "_owner", owner)]


@_fault("subscription")
def overtakes_what_is_held() -> list[Patch]:
    """An entry goes out while an earlier one of its key waits."""

    def choose(self: KeySharedDispatcher, candidate: Candidate) -> Member | None:
        member = self._owner(candidate.key_hash)
        return member if member is not None and member.ready else None

    return [(KeySharedDispatcher, "_choose", choose)]


@_fault("subscription")
def sends_without_permits() -> list[Patch]:
    """More is sent than was asked for."""
    return [(Member, "ready", property(lambda self: self.writable and not self.stalled))]


@_fault("subscription")
def counts_permits_by_entry() -> list[Patch]:
    """A batch costs one permit, whatever it holds."""
    assign = SharedDispatcher._assign

    def cheaply(self: SharedDispatcher, member: Member, candidate: Candidate) -> Delivery:
        delivery = assign(self, member, candidate)
        member.permits += candidate.messages - 1
        return delivery

    return [(SharedDispatcher, "_assign", cheaply)]


@_fault("subscription")
def loses_what_was_given_back() -> list[Patch]:
    """What consumers give back, or leave behind, is forgotten."""
    return [(SharedDispatcher, "_replay_later", lambda self, position, key_hash: None)]


@_fault("subscription")
def sleeps_through_permits() -> list[Patch]:
    """New permits wake nobody."""

    def flow_permits(self: SubscriptionBase, consumer: Any, permits: int) -> None:
        consumer.permits += permits

    return [(SubscriptionBase, "flow_permits", flow_permits)]


@_fault("subscription")
def ignores_priority() -> list[Patch]:
    """All shared consumers take turns, whatever their priority."""
    rebuild = Turns.rebuild

    def on_one_level(self: Turns, members: Iterable[Member]) -> None:
        rebuild(self, members)
        levels = list(self._levels.values())
        for level in levels[1:]:
            levels[0].extend(level)
        self._levels = dict(list(self._levels.items())[:1])

    return [(Turns, "rebuild", on_one_level)]


@_fault("subscription")
def elects_the_oldest() -> list[Patch]:
    """The active consumer is who came first, whatever its priority and name."""

    def choose(self: SingleActiveDispatcher) -> Member | None:
        return min(self._members, key=lambda each: each.ordinal, default=None)

    return [(SingleActiveDispatcher, "_choose", choose)]


@_fault("subscription")
def hands_over_at_once() -> list[Patch]:
    """A new active consumer does not wait for the acknowledgements of the one before."""
    return [(SubscriptionBase, "_pause_for_handover", lambda self, dispatcher: None)]


@_fault("subscription")
def never_lifts_the_limit() -> list[Patch]:
    """Who had too much unacknowledged stays blocked."""

    def release(self: Member, messages: int) -> None:
        self.unacked -= messages

    return [(Member, "_release", release)]


@_fault("subscription")
def scatters_chunks() -> list[Patch]:
    """Chunks of one message go to whoever is next."""
    return [(SharedDispatcher, "_choose", lambda self, candidate: self._turns.next())]


@_fault("subscription")
def pinned_chunks_take_the_room() -> list[Patch]:
    """Chunks that wait for their consumer keep everybody else from being read for."""
    return [(SharedDispatcher, "_waits_for_its_owner", lambda self, candidate: False)]


@_fault("subscription")
def delivers_before_its_time() -> list[Patch]:
    """A delayed message comes a moment too soon."""

    def judge(self: Delays, entry: Any, metadata: Any) -> Verdict:
        if metadata.deliver_at_time <= self.now_ms + 400:
            return Verdict.DELIVER
        self.hold(entry.position, metadata.deliver_at_time)
        return Verdict.LATER

    return [(Delays, "judge", judge)]


@_fault("subscription")
def keeps_the_old_epoch() -> list[Patch]:
    """Messages sent after a redelivery bear the epoch from before it."""

    def redeliver(
        self: Subscription, consumer: Any, positions: Collection[Any] | None, epoch: int | None
    ) -> None:
        if self.dispatcher is not None and consumer in self.consumers:
            if self.dispatcher.redeliver(consumer, positions):
                self.restart()
            self.wake()

    return [(Subscription, "redeliver", redeliver)]


# Acknowledgement.


@_fault("subscription")
def takes_a_part_for_the_whole() -> list[Patch]:
    """An acknowledgement of some members of a batch is taken for the whole batch."""
    acknowledge = Cursor.acknowledge

    def whole(self: Cursor, positions: Iterable[tuple[Any, Sequence[int] | None]]) -> Any:
        return acknowledge(self, [(position, None) for position, _ in positions])

    return [(Cursor, "acknowledge", whole)]


@_fault("subscription")
def replaces_instead_of_merging() -> list[Patch]:
    """A later ack set replaces the earlier one: acknowledged members come back."""
    return [(ack_sets, "and_", lambda first, second: list(second))]


@_fault("subscription")
def acknowledges_the_last_batch_whole() -> list[Patch]:
    """A cumulative acknowledgement within a batch takes the rest of the batch along."""
    acknowledge = Cursor.acknowledge_cumulative

    def whole(
        self: Cursor,
        position: Any,
        ack_set: Sequence[int] | None = None,
        properties: Mapping[str, int] | None = None,
    ) -> Any:
        return acknowledge(self, position, None, properties)

    return [(Cursor, "acknowledge_cumulative", whole)]


@_fault("subscription")
def gives_receipts_too_soon() -> list[Patch]:
    """An acknowledgement is receipted before it is written."""

    async def flush(self: Acknowledgements) -> None:
        from magnetar.protocol import commands

        waiting, self._waiting = self._waiting, []
        for consumer, request_id in waiting:
            consumer.peer.send_claim(commands.ack_response(consumer.identifier, request_id))
        self._flushing = None

    return [(Acknowledgements, "_flush", flush)]


@_fault("subscription")
def forgets_who_has_what() -> list[Patch]:
    """What is acknowledged by another consumer stays counted at the one that got it."""
    acknowledged = SharedDispatcher.acknowledged

    def by_itself(self: SharedDispatcher, position: Any, left: Sequence[int], by: Member) -> None:
        if position in by.pending:
            acknowledged(self, position, left, by)

    return [(SharedDispatcher, "acknowledged", by_itself)]


# Deduplication.


@_fault("deduplication")
def judges_a_batch_by_its_lowest_id() -> list[Patch]:
    """A batch that begins with stored messages is dropped whole, its new ones with it."""
    judge = Deduplication.judge

    def by_lowest(self: Deduplication, producer: str, sequences: Sequences) -> Judgement:
        verdict = judge(self, producer, sequences)
        return Judgement.DUPLICATE if verdict is Judgement.STRADDLES else verdict

    return [(Deduplication, "judge", by_lowest)]


@_fault("deduplication")
def stores_a_straddling_batch_whole() -> list[Patch]:
    """A batch that begins with stored messages is stored once more."""
    judge = Deduplication.judge

    def generously(self: Deduplication, producer: str, sequences: Sequences) -> Judgement:
        verdict = judge(self, producer, sequences)
        return Judgement.NEW if verdict is Judgement.STRADDLES else verdict

    return [(Deduplication, "judge", generously)]


@_fault("deduplication")
def stores_what_may_be_under_way() -> list[Patch]:
    """A message that may be on its way to storage already is stored beside it."""
    judge = Deduplication.judge

    def boldly(self: Deduplication, producer: str, sequences: Sequences) -> Judgement:
        verdict = judge(self, producer, sequences)
        return Judgement.NEW if verdict is Judgement.UNKNOWN else verdict

    return [(Deduplication, "judge", boldly)]


@_fault("deduplication")
def answers_what_is_under_way_as_stored() -> list[Patch]:
    """A message that is on its way to storage is called stored, and then its write fails."""
    judge = Deduplication.judge

    def rashly(self: Deduplication, producer: str, sequences: Sequences) -> Judgement:
        verdict = judge(self, producer, sequences)
        return Judgement.DUPLICATE if verdict is Judgement.UNKNOWN else verdict

    return [(Deduplication, "judge", rashly)]


@_fault("deduplication")
def moves_on_without_saving() -> list[Patch]:
    """The cursor passes messages whose ids were not saved."""

    async def move(self: DeduplicationCursor, cursor: Any, marks: Mapping[str, int], position: Any) -> None:
        cursor.acknowledge_cumulative(position)
        await cursor.flush()
        self._saving = False

    return [(DeduplicationCursor, "_save_then_move", move)]


@_fault("deduplication")
def replays_the_first_id_only() -> list[Patch]:
    """After a restart a batch counts for its first message."""

    def first(message: Any) -> Sequences:
        return Sequences(message.metadata.sequence_id, message.metadata.sequence_id)

    return [(dedup_cursor, "stored_sequences", first)]


@_fault("deduplication")
def replays_half_a_message() -> list[Patch]:
    """After a restart a message counts as stored by its first chunk."""

    def replay(self: DeduplicationCursor, entry: Any, now: float) -> None:
        message = split_message(entry.data, verify=False)
        self.marks.replay(message.metadata.producer_name, stored_sequences(message), now)

    return [(DeduplicationCursor, "_replay_entry", replay)]


@_fault("deduplication")
def does_not_replay() -> list[Patch]:
    """After a restart only the snapshot counts."""

    async def replay(self: DeduplicationCursor, cursor: Any, now: float) -> int:
        return 0

    return [(DeduplicationCursor, "_replay", replay)]


@_fault("deduplication")
def takes_a_batch_for_its_one_id() -> list[Patch]:
    """A batch of a client in C++ counts for the one id that it tells."""

    def one(message: Any) -> Sequences:
        return Sequences(message.metadata.sequence_id, message.metadata.sequence_id)

    return [(publishing, "untold_sequences", one)]
