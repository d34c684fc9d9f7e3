"""What a subscription promises, as a model small enough to be believed.

It is told what was stored and what consumers do, in the order in which the broker hears of it, and is asked of every
delivery: may this consumer have this entry, now, in this order, with these members, this count and this epoch?
Entries are known by their serial numbers, in the order of the log. Source: Pulsar binary protocol; PIP-34, PIP-54, PIP-379.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from magnetar.broker.membership import Join, SubscriptionType
from magnetar.protocol.routing import KEY_SLOTS, key_slot, murmur3_32

EXCLUSIVE, SHARED = SubscriptionType.EXCLUSIVE, SubscriptionType.SHARED
FAILOVER, KEY_SHARED = SubscriptionType.FAILOVER, SubscriptionType.KEY_SHARED


class Violation(AssertionError):
    """A promise was broken."""


def require(promise: bool, broken: str) -> None:
    if not promise:
        raise Violation(broken)


@dataclass(slots=True)
class StoredEntry:
    """An entry of the log."""

    serial: int
    size: int = 1
    """How many messages it holds."""
    slot: int = 0
    """Of its key."""
    due_ms: int = 0
    chunk_of: str | None = None
    chunk_last: bool = False
    left: set[int] = field(default_factory=set)
    """Its members that are not acknowledged."""


@dataclass(eq=False, slots=True)
class ModelConsumer:
    """A consumer that has joined."""

    name: str
    priority: int = 0
    ranges: tuple[tuple[int, int], ...] = ()
    epoch: int | None = None
    max_unacked: int = 0
    ordinal: int = 0
    permits: int = 0
    writable: bool = True
    stalled: bool = False
    pending: dict[int, set[int]] = field(default_factory=dict)
    """What it has and has not acknowledged: Shared and Key_Shared only."""

    @property
    def unacked(self) -> int:
        return sum(map(len, self.pending.values()))

    @property
    def ready(self) -> bool:
        return self.permits > 0 and self.writable and not self.stalled


class Reference:
    """One subscription."""

    def __init__(
        self,
        kind: Join,
        *,
        partition: int = -1,
        max_unacked: int = 0,
        broker_limit: int = 0,
        handover_s: float = 0.0,
    ) -> None:
        """`broker_limit` is for all subscriptions, of which this is the only one; half of it is its share."""
        self.kind = kind
        self.type = kind.type
        self.individual = kind.type in (SHARED, KEY_SHARED)
        self.entries: dict[int, StoredEntry] = {}
        self.consumers: list[ModelConsumer] = []
        self.upto = -1
        """Single active: the last entry sent since the cursor was rewound."""
        self.deliveries = 0
        self._partition = partition
        self._max_unacked = max_unacked
        self._handover_s = handover_s
        self._paused_until = 0.0
        self._active: ModelConsumer | None = None
        self._ordinals = 0
        self._counts: dict[int, int] = {}
        self._ring: list[tuple[int, int]] = []
        self._chunks_went_to: dict[str, ModelConsumer] = {}
        self._chunks_given_back: set[str] = set()
        """Messages of which a chunk was given back before the last was sent: their chunks may part."""
        self._full = False
        self._broker_limit = broker_limit
        self._broker_full = False
        self._blocked = False

    @property
    def stalled(self) -> bool:
        """Whether all consumers together have more than the subscription allows, or than the broker does."""
        return self._full or self._blocked

    # The log, and who reads it.

    def stored(self, entry: StoredEntry) -> None:
        entry.left = set(range(entry.size))
        self.entries[entry.serial] = entry

    def joined(self, consumer: ModelConsumer, now: float) -> None:
        if not self.consumers:
            self.upto = -1
            self._ordinals = 0
            self._paused_until = 0.0
        require(self.type is not EXCLUSIVE or not self.consumers, "a second exclusive consumer got in")
        self._ordinals += 1
        consumer.ordinal = self._ordinals
        self.consumers.append(consumer)
        self._ring.clear()
        self._elect(now)

    def left(self, consumer: ModelConsumer, now: float) -> None:
        self.consumers.remove(consumer)
        consumer.pending.clear()
        self._ring.clear()
        self._chunks_went_to = {
            uuid: each for uuid, each in self._chunks_went_to.items() if each is not consumer
        }
        if not self.consumers:
            self._counts.clear()
        self._release()
        self._elect(now)

    @property
    def active(self) -> ModelConsumer | None:
        """Who receives, for Exclusive and Failover: by priority, name and age; the n-th of the best on partition n."""
        if not self.consumers:
            return None
        best = min(each.priority for each in self.consumers)
        level = sorted(
            (each for each in self.consumers if each.priority == best),
            key=lambda each: (each.name, each.ordinal),
        )
        return level[self._partition % len(level)] if self._partition >= 0 else level[0]

    def _elect(self, now: float) -> None:
        before, self._active = self._active, self.active
        if self.individual or self._active is before:
            return
        self.upto = -1
        if self._handover_s and before in self.consumers and self.type is FAILOVER:
            self._paused_until = now + self._handover_s

    # What clients say.

    def flow(self, consumer: ModelConsumer, permits: int) -> None:
        consumer.permits += permits

    def acknowledged(self, serial: int, kept: Collection[int] | None = None) -> None:
        """By anybody. `kept` are the members that stay unacknowledged; None: nothing stays."""
        entry = self.entries.get(serial)
        if entry is None:
            return
        entry.left &= set(kept or ())
        for consumer in self.consumers:
            if serial in consumer.pending:
                consumer.pending[serial] &= entry.left
                if not consumer.pending[serial]:
                    del consumer.pending[serial]
        if not entry.left:
            self._counts.pop(serial, None)
        self._release()

    def acknowledged_up_to(self, serial: int, kept: Collection[int] | None = None) -> None:
        for each in self.entries:
            if each < serial:
                self.acknowledged(each)
        self.acknowledged(serial, kept)

    def gave_back(
        self, consumer: ModelConsumer, serials: Iterable[int] | None, epoch: int | None = None
    ) -> None:
        """A consumer asks for redelivery of some, or of all that it has."""
        if epoch is not None:
            consumer.epoch = max(epoch, consumer.epoch or 0)
        if not self.individual:
            if consumer is self.active:
                self.upto = -1
            return
        for serial in list(consumer.pending) if serials is None else serials:
            if consumer.pending.pop(serial, None) is not None:
                self._counts[serial] = self._counts.get(serial, 0) + 1
                uuid = self.entries[serial].chunk_of
                if uuid is not None:
                    self._chunks_given_back.add(uuid)
        self._release()

    def sought(self, serial: int, kept: Collection[int] | None = None) -> None:
        """The cursor was moved: `serial` is the first to come, of which `kept` members are wanted."""
        require(not self.consumers, "the cursor was moved under somebody's feet")
        for each, entry in self.entries.items():
            entry.left = set(range(entry.size)) if each >= serial else set()
        if kept is not None and serial in self.entries:
            self.entries[serial].left &= set(kept)

    def _release(self) -> None:
        for consumer in self.consumers:
            if consumer.stalled and consumer.unacked <= consumer.max_unacked // 2:
                consumer.stalled = False
        if self._full and self.unacked < self._max_unacked // 2:
            self._full = False
        self._release_broker()

    def _release_broker(self) -> None:
        limit, share = self._broker_limit, self._broker_limit // 2
        if self._broker_full and self.unacked < limit // 2:
            self._broker_full = self._blocked = False
        elif self._blocked and self.unacked < share / 2:
            self._blocked = False

    @property
    def unacked(self) -> int:
        return sum(each.unacked for each in self.consumers)

    # What they hear.

    def delivered(
        self,
        consumer: ModelConsumer,
        serial: int,
        members: Collection[int] | None,
        *,
        count: int,
        epoch: int | None,
        now: float,
        now_ms: int,
    ) -> None:
        """
        Raises:
            Violation: this may not be.
        """
        require(consumer in self.consumers, f"#{serial} went to a consumer that is gone")
        entry = self.entries.get(serial)
        require(entry is not None, f"#{serial} was never stored")
        assert entry is not None
        require(bool(entry.left), f"#{serial} is acknowledged and came again")
        got = set(range(entry.size)) if members is None else set(members)
        require(got == entry.left, f"#{serial}: members {sorted(got)} came, {sorted(entry.left)} are due")
        require(consumer.permits > 0, f"#{serial} came to {consumer.name} without a permit")
        require(consumer.writable, f"#{serial} was written to a full connection")
        require(epoch == consumer.epoch, f"#{serial} bears epoch {epoch}, it should be {consumer.epoch}")
        if self.individual:
            self._delivered_to_one_of_many(consumer, entry, count, now_ms)
        else:
            self._delivered_in_order(consumer, entry, count, now)
        consumer.permits -= len(got)
        self.deliveries += 1

    def _delivered_in_order(
        self, consumer: ModelConsumer, entry: StoredEntry, count: int, now: float
    ) -> None:
        require(consumer is self.active, f"#{entry.serial} went to {consumer.name}, who is not active")
        require(now >= self._paused_until, f"#{entry.serial} came in the middle of a handover")
        require(count == 0, "redeliveries are counted where consumers share, and only there")
        due = min(each.serial for each in self.entries.values() if each.left and each.serial > self.upto)
        require(entry.serial == due, f"#{entry.serial} came where #{due} was due")
        self.upto = entry.serial

    def _delivered_to_one_of_many(
        self, consumer: ModelConsumer, entry: StoredEntry, count: int, now_ms: int
    ) -> None:
        serial = entry.serial
        require(entry.due_ms <= now_ms, f"#{serial} came {entry.due_ms - now_ms} ms too soon")
        require(not consumer.stalled, f"#{serial} came to {consumer.name}, who has too much unacknowledged")
        require(not self.stalled, f"#{serial} came though the subscription has too much unacknowledged")
        holders = [each.name for each in self.consumers if serial in each.pending]
        require(not holders, f"#{serial} is with {holders} already")
        expected = self._counts.get(serial, 0)
        require(count == expected, f"#{serial} came with redelivery count {count}, it should be {expected}")
        if entry.chunk_of is not None:
            self._check_chunk(consumer, entry, entry.chunk_of)
        elif self.type is SHARED:
            better = [
                each.name for each in self.consumers if each.ready and each.priority < consumer.priority
            ]
            require(not better, f"#{serial} went to {consumer.name}; {better} come first and were ready")
        if self.type is KEY_SHARED:
            self._check_key(consumer, entry)
        if entry.chunk_of is not None:
            self._chunks_went_to[entry.chunk_of] = consumer
        consumer.pending[serial] = set(entry.left)
        if consumer.max_unacked and consumer.unacked >= consumer.max_unacked:
            consumer.stalled = True
        if self._max_unacked and self.unacked >= self._max_unacked:
            self._full = True
        if self._broker_limit:
            self._broker_full = self._broker_full or self.unacked >= self._broker_limit
            self._blocked = self._blocked or (self._broker_full and self.unacked > self._broker_limit // 2)

    def _check_chunk(self, consumer: ModelConsumer, entry: StoredEntry, uuid: str) -> None:
        others = [
            each.name
            for each in self.consumers
            if each is not consumer and any(self.entries[one].chunk_of == uuid for one in each.pending)
        ]
        require(
            # Where keys may move at any time, so may what lies under them.
            not others or uuid in self._chunks_given_back or self.kind.out_of_order,
            f"#{entry.serial}: {others} have other chunks of {uuid}",
        )

    def _check_key(self, consumer: ModelConsumer, entry: StoredEntry) -> None:
        owner = self.owner(entry.slot)
        require(owner is consumer, f"#{entry.serial} belongs to {owner and owner.name}, not {consumer.name}")
        if self.kind.out_of_order:
            return
        others = [
            each.name
            for each in self.consumers
            if each is not consumer and any(self.entries[one].slot == entry.slot for one in each.pending)
        ]
        require(not others, f"#{entry.serial}: {others} have entries of its key")
        if not entry.due_ms:
            overtaken = self.waiting_before(entry) - set(consumer.pending)
            require(not overtaken, f"#{entry.serial} overtook {sorted(overtaken)} of its key")

    def waiting_before(self, entry: StoredEntry) -> set[int]:
        """Unacknowledged entries of the same key that were stored earlier, and not to be delayed."""
        return {
            each.serial
            for each in self.entries.values()
            if each.slot == entry.slot and each.serial < entry.serial and each.left and not each.due_ms
        }

    def owner(self, slot: int) -> ModelConsumer | None:
        """Whose key that is."""
        if self.kind.sticky:
            return next(
                (each for each in self.consumers if any(a <= slot <= b for a, b in each.ranges)), None
            )
        if not self.consumers:
            return None
        if not self._ring:
            self._ring = sorted(
                (murmur3_32(f"{each.name}#{each.ordinal}#{number}".encode()) % KEY_SLOTS, each.ordinal)
                for each in self.consumers
                for number in range(100)
            )
        _, ordinal = self._ring[bisect_left(self._ring, (slot, 0)) % len(self._ring)]
        return next(each for each in self.consumers if each.ordinal == ordinal)

    # Whether somebody waits in vain.

    def overdue(self, now: float, now_ms: int) -> list[str]:
        """Entries that could go out at once, and whom to: after a rest there must be none."""
        if not self.individual:
            active = self.active
            due = [each.serial for each in self.entries.values() if each.left and each.serial > self.upto]
            waits = active is not None and active.ready and now >= self._paused_until
            return [f"#{min(due)} for {active.name}"] if due and waits and active is not None else []
        if self.stalled:
            return []
        held = {serial for each in self.consumers for serial in each.pending}
        found = []
        for entry in self.entries.values():
            if not entry.left or entry.serial in held or entry.due_ms > now_ms:
                continue
            for consumer in self.consumers:
                if consumer.ready and self._may_have(consumer, entry):
                    found.append(f"#{entry.serial} for {consumer.name}")
                    break
        return found

    def _may_have(self, consumer: ModelConsumer, entry: StoredEntry) -> bool:
        if entry.chunk_of in self._chunks_given_back:
            return False
        if entry.chunk_of is not None and self.kind.out_of_order:
            return self.owner(entry.slot) is consumer
        if entry.chunk_of is not None and self._chunks_went_to.get(entry.chunk_of, consumer) is not consumer:
            return False  # Only who has the others can put them together, acknowledged or not.
        if self.type is SHARED:
            return True
        if self.owner(entry.slot) is not consumer:
            return False
        if self.kind.out_of_order:
            return True
        if any(
            self.entries[one].slot == entry.slot
            for each in self.consumers
            if each is not consumer
            for one in each.pending
        ):
            return False
        return bool(entry.due_ms) or self.waiting_before(entry) <= set(consumer.pending)


def slot_of(key: str) -> int:
    return key_slot(key.encode())
