"""A cursor against a naive one that keeps a flag per entry: random acknowledgements, in part and cumulative,
seeks, appends, new ledgers, ledgers dropped at the front, restarts.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from magnetar.managed_ledger.cursor_state import CursorState
from magnetar.managed_ledger.ledger_list import LedgerList
from magnetar.managed_ledger.position import EARLIEST, LATEST, Position
from magnetar.managed_ledger.records import decode_snapshot, encode_snapshot
from magnetar.protocol import ack_sets

BATCH = 70
"""Messages of each entry: more than fit one word of an ack set."""


class CursorMachine(RuleBasedStateMachine):
    """In the model, every entry there is has the set of its messages that are not acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self.ledgers = LedgerList()
        self.model: dict[Position, set[int]] = {}

    @initialize(entries=st.integers(0, 5))
    def begin(self, entries: int) -> None:
        self.ledgers.add(10)
        self.next_ledger = 11
        self.state = CursorState(self.ledgers, self.ledgers.last_position)
        self.grow(entries)

    def grow(self, entries: int) -> None:
        span = self.ledgers.last
        for _ in range(entries):
            self.model[Position(span.ledger_id, span.entries)] = set(range(BATCH))
            span.entries += 1
            span.size += 100

    def existing(self) -> list[Position]:
        return sorted(self.model)

    def position(self, data: st.DataObject) -> Position:
        """Of an entry that exists, or close to one."""
        if not self.model or data.draw(st.integers(0, 9), label="anywhere") == 0:
            return Position(data.draw(st.integers(8, 14)), data.draw(st.integers(-1, 8)))
        return data.draw(st.sampled_from(self.existing()), label="position")

    # What happens.

    @rule(entries=st.integers(1, 4))
    def append(self, entries: int) -> None:
        self.grow(entries)

    @rule()
    def next_ledger_opens(self) -> None:
        """An empty one does not stay in the list."""
        if self.ledgers.last.entries:
            self.ledgers.last.closed_ms = 1
            self.next_ledger += 1
            self.ledgers.add(self.next_ledger)

    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        position = self.position(data)
        assert self.state.acknowledge(position) == bool(self.model.get(position))
        if position in self.model:
            self.model[position] = set()

    @rule(data=st.data(), left=st.sets(st.integers(0, BATCH - 1), max_size=4))
    def acknowledge_part(self, data: st.DataObject, left: set[int]) -> None:
        position = self.position(data)
        had = bool(self.model.get(position))
        words = ack_sets.from_bits(sum(1 << index for index in left))
        finished = self.state.acknowledge_part(position, words)
        if position in self.model:
            self.model[position] &= left
        assert finished == (had and not self.model[position])

    @rule(data=st.data(), left=st.none() | st.sets(st.integers(0, BATCH - 1), min_size=1, max_size=3))
    def acknowledge_cumulative(self, data: st.DataObject, left: set[int] | None) -> None:
        position = data.draw(st.sampled_from([LATEST, EARLIEST]) | st.just(self.position(data)))
        words = None if left is None else ack_sets.from_bits(sum(1 << index for index in left))
        self.state.acknowledge_cumulative(position, words)
        for each in self.model:
            if each < position or (each == position and left is None):
                self.model[each] = set()
            elif each == position and left is not None:
                self.model[each] &= left

    @rule(data=st.data(), left=st.none() | st.sets(st.integers(0, BATCH - 1), min_size=1, max_size=3))
    def seek(self, data: st.DataObject, left: set[int] | None) -> None:
        position = data.draw(st.sampled_from([LATEST, EARLIEST]) | st.just(self.position(data)))
        words = None if left is None else ack_sets.from_bits(sum(1 << index for index in left))
        self.state.reset(position, words)
        for each in self.model:
            self.model[each] = set(range(BATCH)) if each >= position else set()
            if each == position and left is not None:
                self.model[each] = set(left)
        found = self.state.unacknowledged_from(self.state.read_position)
        assert found == next((each for each in self.existing() if each >= position), None)

    @precondition(lambda self: len(self.ledgers) > 1)
    @rule()
    def first_ledger_is_dropped(self) -> None:
        gone = next(iter(self.ledgers)).ledger_id
        self.ledgers.drop_first(1)
        self.state.ledgers_dropped()
        self.model = {each: left for each, left in self.model.items() if each.ledger_id != gone}

    @rule()
    def restart(self) -> None:
        """Nothing that is written is forgotten, and nothing else remembered."""
        self.state.properties = {"producer": 7}
        stored = encode_snapshot(self.state.snapshot(max_ranges=1000, max_ack_sets=1000))
        self.state = CursorState.restored(self.ledgers, decode_snapshot("cursor", stored))
        assert self.state.properties == {"producer": 7}

    @rule(entries=st.integers(1, 5))
    def read(self, entries: int) -> None:
        """As the shell reads: from the read position on, whatever is not acknowledged."""
        expected = [
            each for each in self.existing() if each >= self.state.read_position and self.model[each]
        ][:entries]
        found = []
        for _ in range(entries):
            position = self.state.unacknowledged_from(self.state.read_position)
            if position is None:
                break
            self.state.read_position = position.following
            found.append(position)
        assert found == expected

    # What must hold.

    def unacknowledged(self) -> Iterator[Position]:
        return (each for each in self.existing() if self.model[each])

    @invariant()
    def the_same_entries_are_acknowledged(self) -> None:
        for position, left in self.model.items():
            assert self.state.is_acknowledged(position) == (not left), position
            words = self.state.ack_set(position)
            if left and words is not None:
                assert set(ack_sets.indexes(words)) == left, position
            elif left:
                assert len(left) == BATCH, position

    @invariant()
    def the_backlog_is_right(self) -> None:
        assert self.state.backlog == len(list(self.unacknowledged()))

    @invariant()
    def the_mark_stands_right_before_the_first_unacknowledged_entry(self) -> None:
        first = next(self.unacknowledged(), None)
        assert self.state.unacknowledged_from(EARLIEST) == first
        between = [each for each in self.existing() if each > self.state.mark_delete and not self.model[each]]
        if first is None:
            assert not between
        else:
            assert not [each for each in between if each < first]

    @invariant()
    def ranges_are_above_the_mark_and_do_not_touch(self) -> None:
        last = None
        for ledger_id, start, end in self.state.ranges():
            assert start <= end
            assert Position(ledger_id, start) > self.state.mark_delete
            assert last is None or (ledger_id, start) > (last[0], last[1] + 1)
            last = (ledger_id, end)


CursorMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestCursor = CursorMachine.TestCase
