"""Key_Shared under joins, leaves, acknowledgements and redeliveries: each key in order, one holder at a time."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.broker.dispatch.candidate import Candidate
from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.dispatch.member import Member
from magnetar.managed_ledger.position import Position

SLOTS = [1, 9000, 20000, 33000, 48000, 65000]


class World:
    """The dispatcher, a log, and what each consumer holds."""

    def __init__(self) -> None:
        self.dispatcher = KeySharedDispatcher(look_ahead=50)
        self.members: list[Member] = []
        self.keys: list[int] = []
        self.read = 0
        self.acknowledged: set[int] = set()
        self.names = 0

    def join(self, permits: int) -> None:
        member = Member(f"c{self.names}")
        self.names += 1
        member.permits = permits
        self.dispatcher.add(member)
        self.members.append(member)

    def leave(self, index: int) -> None:
        if len(self.members) > 1:
            self.dispatcher.remove(self.members.pop(index % len(self.members)))

    def acknowledge(self, index: int, which: int) -> None:
        if self.members:
            member = self.members[index % len(self.members)]
            if member.pending:
                position = list(member.pending)[which % len(member.pending)]
                self.acknowledged.add(position.entry_id)
                self.dispatcher.acknowledged(position, (), member)

    def give_back(self, index: int) -> None:
        if self.members:
            self.dispatcher.redeliver(self.members[index % len(self.members)], None)

    def run(self) -> None:
        """What the shell does: replays first, then new entries, then everything that can go."""
        for _ in range(200):
            positions = self.dispatcher.replays(10)
            if positions:
                self.dispatcher.offer([self.candidate(each.entry_id) for each in positions], replayed=True)
            elif self.dispatcher.room() > 0 and self.read < len(self.keys):
                self.dispatcher.offer([self.candidate(self.read)], replayed=False)
                self.read += 1
            else:
                return
            self.deliver()
        raise AssertionError("dispatch does not come to rest")

    def candidate(self, number: int) -> Candidate:
        return Candidate(Position(1, number), 1, key_hash=self.keys[number])

    def deliver(self) -> None:
        for delivery in self.dispatcher.take():
            number = delivery.candidate.position.entry_id
            key = self.keys[number]
            earlier = [n for n in range(number) if self.keys[n] == key and n not in self.acknowledged]
            holders = {
                id(member)
                for member in self.members
                for position in member.pending
                if self.keys[position.entry_id] == key
            }
            held = {position.entry_id for position in delivery.member.pending}
            assert holders == {id(delivery.member)}, "one consumer at a time has a key"
            assert set(earlier) <= held, (
                "what came before of the key is acknowledged or with the same consumer"
            )


OPERATIONS = st.one_of(
    st.tuples(st.just("publish"), st.sampled_from(SLOTS), st.just(0)),
    st.tuples(st.just("join"), st.integers(0, 5), st.just(0)),
    st.tuples(st.just("leave"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("flow"), st.integers(0, 9), st.integers(1, 5)),
    st.tuples(st.just("acknowledge"), st.integers(0, 9), st.integers(0, 9)),
    st.tuples(st.just("give_back"), st.integers(0, 9), st.just(0)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(OPERATIONS, max_size=80))
def test_order_holds_and_nothing_is_lost(operations: list[tuple[str, int, int]]) -> None:
    world = World()
    world.join(3)
    for name, first, second in operations:
        match name:
            case "publish":
                world.keys.append(first)
            case "join":
                world.join(first)
            case "leave":
                world.leave(first)
            case "flow":
                world.members[first % len(world.members)].permits += second
            case "acknowledge":
                world.acknowledge(first, second)
            case "give_back":
                world.give_back(first)
        world.run()
    for _ in range(len(world.keys) + 1):  # With permits and acknowledgements everything arrives.
        for member in world.members:
            member.permits += 100
        world.run()
        for index in range(len(world.members)):
            while world.members[index].pending:
                world.acknowledge(index, 0)
    assert world.acknowledged == set(range(len(world.keys)))
