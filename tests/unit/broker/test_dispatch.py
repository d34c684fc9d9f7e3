"""Who gets what."""

from __future__ import annotations

import pytest

from magnetar.broker.dispatch.candidate import Candidate
from magnetar.broker.dispatch.key_ranges import HashRing, StickyRanges
from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.dispatch.member import Member
from magnetar.broker.dispatch.replay import ReplayQueue
from magnetar.broker.dispatch.shared import SharedDispatcher
from magnetar.broker.dispatch.single_active import SingleActiveDispatcher
from magnetar.broker.errors import ConsumerBusy, ConsumerNotAssignable
from magnetar.managed_ledger.position import Position


def at(entry: int) -> Position:
    return Position(1, entry)


def entries(*numbers: int, messages: int = 1) -> list[Candidate]:
    return [Candidate(at(number), messages) for number in numbers]


def member(name: str = "a", permits: int = 0, priority: int = 0, max_unacked: int = 0) -> Member:
    made = Member(name, priority=priority, max_unacked=max_unacked)
    made.permits = permits
    return made


def taken(dispatcher: SharedDispatcher | SingleActiveDispatcher) -> list[tuple[str, int]]:
    return [(each.member.name, each.candidate.position.entry_id) for each in dispatcher.take()]


class TestSingleActive:
    def test_exclusive_takes_one(self) -> None:
        dispatcher = SingleActiveDispatcher(exclusive=True)
        dispatcher.add(member())
        with pytest.raises(ConsumerBusy):
            dispatcher.add(member())

    def test_order_and_permits(self) -> None:
        dispatcher = SingleActiveDispatcher(exclusive=True)
        one = member(permits=2)
        dispatcher.add(one)
        assert dispatcher.elect()
        dispatcher.offer(entries(0, 1, 2), replayed=False)
        assert taken(dispatcher) == [("a", 0), ("a", 1)]
        assert dispatcher.room() == 0
        one.permits += 5
        assert dispatcher.room() == 4
        assert taken(dispatcher) == [("a", 2)]

    def test_a_batch_may_take_permits_below_zero(self) -> None:
        dispatcher = SingleActiveDispatcher(exclusive=True)
        one = member(permits=1)
        dispatcher.add(one)
        dispatcher.elect()
        dispatcher.offer(entries(0, 1, messages=10), replayed=False)
        assert taken(dispatcher) == [("a", 0)]
        assert one.permits == -9

    def test_failover_prefers_priority_then_name(self) -> None:
        dispatcher = SingleActiveDispatcher(exclusive=False)
        later, first, best = member("b"), member("a"), member("z", priority=-1)
        for each in (later, first):
            dispatcher.add(each)
        dispatcher.elect()
        assert dispatcher.active is first
        dispatcher.add(best)
        assert dispatcher.elect()
        assert dispatcher.active is best
        dispatcher.remove(best)
        assert dispatcher.elect()
        assert dispatcher.active is first
        assert not dispatcher.elect()

    def test_partitions_spread_over_consumers(self) -> None:
        chosen = []
        for partition in range(4):
            dispatcher = SingleActiveDispatcher(exclusive=False, partition=partition)
            for name in ("b", "a"):
                dispatcher.add(member(name))
            dispatcher.elect()
            assert dispatcher.active is not None
            chosen.append(dispatcher.active.name)
        assert chosen == ["a", "b", "a", "b"]

    def test_a_change_drops_what_was_read_for_the_last_one(self) -> None:
        dispatcher = SingleActiveDispatcher(exclusive=False)
        first, second = member("a"), member("b", permits=5)
        dispatcher.add(first)
        dispatcher.add(second)
        dispatcher.elect()
        dispatcher.offer(entries(0, 1), replayed=False)
        dispatcher.remove(first)
        dispatcher.elect()
        assert taken(dispatcher) == []

    def test_only_the_active_consumer_rewinds(self) -> None:
        dispatcher = SingleActiveDispatcher(exclusive=False)
        first, second = member("a"), member("b")
        dispatcher.add(first)
        dispatcher.add(second)
        dispatcher.elect()
        assert not dispatcher.redeliver(second, None)
        assert dispatcher.redeliver(first, [at(3)])


class TestShared:
    def test_turns(self) -> None:
        dispatcher = SharedDispatcher()
        for name in ("a", "b"):
            dispatcher.add(member(name, permits=10))
        dispatcher.offer(entries(0, 1, 2, 3), replayed=False)
        assert taken(dispatcher) == [("a", 0), ("b", 1), ("a", 2), ("b", 3)]

    def test_priority_first(self) -> None:
        dispatcher = SharedDispatcher()
        dispatcher.add(member("low", permits=10, priority=1))
        dispatcher.add(member("high", permits=2, priority=0))
        dispatcher.offer(entries(0, 1, 2), replayed=False)
        assert taken(dispatcher) == [("high", 0), ("high", 1), ("low", 2)]

    def test_what_cannot_be_sent_stays_ready_in_order(self) -> None:
        dispatcher = SharedDispatcher()
        one = member(permits=1)
        dispatcher.add(one)
        dispatcher.offer(entries(0, 1, 2), replayed=False)
        assert taken(dispatcher) == [("a", 0)]
        one.permits = 10
        assert taken(dispatcher) == [("a", 1), ("a", 2)]

    def test_a_consumer_that_leaves_gives_everything_back_uncounted(self) -> None:
        dispatcher = SharedDispatcher()
        one, two = member("a", permits=10), member("b")
        dispatcher.add(one)
        dispatcher.add(two)
        dispatcher.offer(entries(0, 1), replayed=False)
        dispatcher.take()
        dispatcher.remove(one)
        two.permits = 10
        assert dispatcher.replays(10) == [at(0), at(1)]
        dispatcher.offer(entries(0, 1), replayed=True)
        assert [each.redeliveries for each in dispatcher.take()] == [0, 0]
        assert dispatcher.unacked == 2

    def test_given_back_goes_before_new(self) -> None:
        dispatcher = SharedDispatcher()
        one = member(permits=1)
        dispatcher.add(one)
        dispatcher.offer(entries(0, 1), replayed=False)
        dispatcher.take()
        dispatcher.redeliver(one, [at(0)])
        one.permits = 1
        dispatcher.give_back(dispatcher.replays(10))
        one.permits = 5
        assert dispatcher.replays(10) == [at(0)]
        dispatcher.offer(entries(0), replayed=True)
        assert taken(dispatcher) == [("a", 0), ("a", 1)]

    def test_redelivery_of_what_one_does_not_hold_is_nothing(self) -> None:
        dispatcher = SharedDispatcher()
        one = member(permits=10)
        dispatcher.add(one)
        dispatcher.redeliver(one, [at(7)])
        assert dispatcher.replay_count == 0
        assert dispatcher.redeliveries(at(7)) == 0

    def test_another_consumer_may_acknowledge(self) -> None:
        dispatcher = SharedDispatcher()
        one, two = member("a", permits=10), member("b")
        dispatcher.add(one)
        dispatcher.add(two)
        dispatcher.offer(entries(0, messages=5), replayed=False)
        dispatcher.take()
        dispatcher.acknowledged(at(0), [0b111], two)
        assert (one.unacked, dispatcher.unacked) == (3, 3)
        dispatcher.acknowledged(at(0), (), two)
        assert (one.unacked, dispatcher.unacked, one.pending) == (0, 0, {})

    def test_the_subscription_as_a_whole_has_a_limit(self) -> None:
        dispatcher = SharedDispatcher(max_unacked=4)
        one = member(permits=100)
        dispatcher.add(one)
        dispatcher.offer(entries(*range(8)), replayed=False)
        assert len(dispatcher.take()) == 4
        for number in range(2):
            dispatcher.acknowledged(at(number), (), one)
        assert dispatcher.stalled
        dispatcher.acknowledged(at(2), (), one)
        assert len(dispatcher.take()) == 3

    def test_a_limit_of_one_lets_go_of_the_next(self) -> None:
        dispatcher = SharedDispatcher(max_unacked=1)
        one = member(permits=100)
        dispatcher.add(one)
        dispatcher.offer(entries(0, 1), replayed=False)
        assert taken(dispatcher) == [("a", 0)]
        dispatcher.acknowledged(at(0), (), one)
        assert taken(dispatcher) == [("a", 1)]

    def test_a_busy_chunk_consumer_holds_up_its_message_only(self) -> None:
        dispatcher = SharedDispatcher()
        one, two = member("a", permits=1), member("b")
        dispatcher.add(one)
        dispatcher.add(two)
        dispatcher.offer([Candidate(at(0), 1, chunk_of="u")], replayed=False)
        assert taken(dispatcher) == [("a", 0)]
        two.permits = 5
        dispatcher.offer([Candidate(at(1), 1, chunk_of="u", chunk_last=True), *entries(2)], replayed=False)
        assert taken(dispatcher) == [("b", 2)]
        one.permits = 1
        assert taken(dispatcher) == [("a", 1)]

    def test_chunks_start_over_when_their_consumer_leaves(self) -> None:
        dispatcher = SharedDispatcher()
        one, two = member("a", permits=1), member("b", permits=0)
        dispatcher.add(one)
        dispatcher.add(two)
        dispatcher.offer(
            [Candidate(at(n), 1, chunk_of="u", chunk_last=n == 2) for n in range(3)], replayed=False
        )
        assert taken(dispatcher) == [("a", 0)]
        dispatcher.remove(one)
        two.permits = 10
        assert dispatcher.replays(10) == [at(0), at(1), at(2)]

    def test_an_unwritable_connection_gets_nothing(self) -> None:
        dispatcher = SharedDispatcher()
        one = member(permits=10)
        one.writable = False
        dispatcher.add(one)
        dispatcher.offer(entries(0), replayed=False)
        assert taken(dispatcher) == []
        one.writable = True
        assert taken(dispatcher) == [("a", 0)]


class TestKeyShared:
    @staticmethod
    def keyed(*pairs: tuple[int, int]) -> list[Candidate]:
        return [Candidate(at(number), 1, key_hash=slot) for number, slot in pairs]

    def test_a_key_stays_with_its_consumer(self) -> None:
        dispatcher = KeySharedDispatcher()
        for name in ("a", "b", "c"):
            dispatcher.add(member(name, permits=1000))
        dispatcher.offer(
            self.keyed(*((number, number % 20 * 3000 + 1) for number in range(200))), replayed=False
        )
        owners: dict[int, set[str]] = {}
        for delivery in dispatcher.take():
            owners.setdefault(delivery.candidate.key_hash, set()).add(delivery.member.name)
        assert all(len(names) == 1 for names in owners.values())
        assert len({next(iter(names)) for names in owners.values()}) == 3

    def test_a_moved_key_waits_for_its_old_consumer(self) -> None:
        dispatcher = KeySharedDispatcher()
        old = member("old", permits=1000)
        dispatcher.add(old)
        slots = range(1, 60_000, 600)
        dispatcher.offer(self.keyed(*enumerate(slots)), replayed=False)
        dispatcher.take()
        new = member("new", permits=1000)
        dispatcher.add(new)
        moved = [slot for slot in slots if dispatcher._selector.select(slot) is new]
        assert moved
        start = 1000
        dispatcher.offer(self.keyed((start, moved[0])), replayed=False)
        assert dispatcher.take() == []
        assert dispatcher.replays(10) == []
        dispatcher.acknowledged(at(list(slots).index(moved[0])), (), old)
        assert dispatcher.replays(10) == [at(start)]
        dispatcher.offer(self.keyed((start, moved[0])), replayed=True)
        assert taken(dispatcher) == [("new", start)]

    def test_a_held_entry_holds_those_behind_it(self) -> None:
        dispatcher = KeySharedDispatcher()
        one = member(permits=10)
        dispatcher.add(one)
        dispatcher.offer(self.keyed((0, 7)), replayed=False)
        dispatcher.take()
        dispatcher.redeliver(one, [at(0)])
        dispatcher.offer(self.keyed((1, 7), (2, 8)), replayed=False)
        assert taken(dispatcher) == [("a", 2)]
        assert dispatcher.replays(10) == [at(0), at(1)]
        dispatcher.offer(self.keyed((0, 7), (1, 7)), replayed=True)
        assert taken(dispatcher) == [("a", 0), ("a", 1)]

    def test_out_of_order_holds_nothing(self) -> None:
        dispatcher = KeySharedDispatcher(out_of_order=True)
        old = member("old", permits=1000)
        dispatcher.add(old)
        dispatcher.offer(self.keyed(*((slot, slot) for slot in range(1, 60_000, 600))), replayed=False)
        dispatcher.take()
        new = member("new", permits=1000)
        dispatcher.add(new)
        dispatcher.offer(
            self.keyed(*((60_000 + slot, slot) for slot in range(1, 60_000, 600))), replayed=False
        )
        assert {name for name, _ in taken(dispatcher)} == {"old", "new"}

    def test_uncovered_slots_stay_undelivered(self) -> None:
        dispatcher = KeySharedDispatcher(sticky=True)
        dispatcher.join(member("a", permits=10), [(0, 99)])
        dispatcher.offer(self.keyed((0, 50), (1, 100)), replayed=False)
        assert taken(dispatcher) == [("a", 0)]
        late = member("b", permits=10)
        dispatcher.join(late, [(100, 65535)])
        assert dispatcher.replays(10) == [at(1)]

    def test_reading_stops_when_too_much_is_held(self) -> None:
        dispatcher = KeySharedDispatcher(sticky=True, look_ahead=3)
        dispatcher.join(member("a", permits=10), [(0, 9)])
        dispatcher.offer(self.keyed((0, 50), (1, 50), (2, 50)), replayed=False)
        dispatcher.take()
        assert dispatcher.room() == 0

    def test_forgotten_replays_free_their_slot(self) -> None:
        dispatcher = KeySharedDispatcher()
        one = member(permits=10)
        dispatcher.add(one)
        dispatcher.offer(self.keyed((0, 7)), replayed=False)
        dispatcher.take()
        dispatcher.redeliver(one, None)
        positions = dispatcher.replays(10)
        dispatcher.forget(positions)
        dispatcher.give_back(positions)
        dispatcher.offer(self.keyed((1, 7)), replayed=False)
        assert taken(dispatcher) == [("a", 1)]


class TestRanges:
    def test_a_ring_moves_few_keys(self) -> None:
        ring = HashRing()
        members = [member(f"c{number}") for number in range(5)]
        for ordinal, each in enumerate(members):
            each.ordinal = ordinal
        for each in members[:4]:
            ring.add(each, ())
        before = [ring.select(slot) for slot in range(1, 65536, 7)]
        ring.add(members[4], ())
        after = [ring.select(slot) for slot in range(1, 65536, 7)]
        moved = [new for old, new in zip(before, after, strict=True) if old is not new]
        assert all(new is members[4] for new in moved)
        assert 0 < len(moved) < len(before) / 2

    def test_same_names_are_two_consumers(self) -> None:
        ring = HashRing()
        first, second = member("same"), member("same")
        first.ordinal, second.ordinal = 1, 2
        ring.add(first, ())
        ring.add(second, ())
        assert {id(ring.select(slot)) for slot in range(1, 65536, 11)} == {id(first), id(second)}

    def test_ranges_told_are_those_selected(self) -> None:
        ring = HashRing()
        members = [member(name) for name in "abc"]
        for ordinal, each in enumerate(members):
            each.ordinal = ordinal
            ring.add(each, ())
        for each in members:
            for first, last in ring.ranges_of(each):
                assert ring.select(first) is each
                assert ring.select(last) is each

    @pytest.mark.parametrize(
        "ranges", [[], [(5, 4)], [(-1, 5)], [(0, 65536)], [(0, 10), (10, 20)], [(40, 60)]]
    )
    def test_bad_sticky_ranges(self, ranges: list[tuple[int, int]]) -> None:
        sticky = StickyRanges()
        sticky.add(member(), [(50, 100)])
        with pytest.raises(ConsumerNotAssignable):
            sticky.add(member(), ranges)


def test_a_replay_queue_is_a_sorted_set() -> None:
    queue = ReplayQueue()
    queue.extend(at(number) for number in (3, 1, 2, 3, 1))
    queue.discard(at(1))
    assert len(queue) == 2
    assert queue.lowest() == at(2)
    queue.add(at(1))
    assert queue.pop(2) == [at(1), at(2)]
    queue.discard_up_to(at(3))
    assert (queue.pop(5), queue.lowest()) == ([], None)
