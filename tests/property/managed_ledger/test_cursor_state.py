"""A cursor against a naive one that keeps, for every entry, the set of its messages that are not acknowledged.

Long random walks, each drawn from a seed: acknowledgements of entries, of parts of entries and of all before,
seeks, appends, new ledgers, ledgers dropped at the front, restarts. Everything is compared after each step.
"""

from __future__ import annotations

import random

import pytest

from magnetar.managed_ledger.cursor_state import CursorSnapshot, CursorState
from magnetar.managed_ledger.ledger_list import LedgerList
from magnetar.managed_ledger.position import EARLIEST, LATEST, Position
from magnetar.managed_ledger.records import decode_snapshot, encode_snapshot
from magnetar.protocol import ack_sets

BATCH = 70
"""Messages of each entry: more than fit one word of an ack set."""

WALKS = 2000
STEPS = 60


class Walk:
    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.ledgers = LedgerList()
        self.ledgers.add(10)
        self.next_ledger = 11
        self.model: dict[Position, set[int]] = {}
        self.state = CursorState(self.ledgers, self.ledgers.last_position)
        self.steps = (
            *[self.append] * 3,
            *[self.open_next_ledger] * 2,
            *[self.acknowledge] * 8,
            *[self.acknowledge_part] * 4,
            self.acknowledge_cumulative,
            self.seek,
            self.drop_first_ledger,
            self.restart,
            *[self.read] * 3,
        )

    def step(self) -> None:
        self.dice.choice(self.steps)()
        self.compare()

    def existing(self) -> list[Position]:
        return sorted(self.model)

    def position(self) -> Position:
        """Of an entry, mostly one of the first that are not acknowledged; now and then of none at all."""
        existing = self.existing()
        if not existing or self.dice.random() < 0.05:
            return Position(self.dice.randint(8, self.next_ledger + 1), self.dice.randint(-1, 6))
        first = next((at for at, each in enumerate(existing) if self.model[each]), 0)
        near = existing[max(0, first - 2) : first + 4]
        return self.dice.choice(near if self.dice.random() < 0.7 else existing)

    def some_left(self) -> tuple[set[int], list[int]]:
        """Messages that are not acknowledged, as a set and as an ack set."""
        left = set(self.dice.sample(range(BATCH), self.dice.choice((0, 1, 2, 40))))
        return left, ack_sets.from_bits(sum(1 << index for index in left))

    # What happens.

    def append(self) -> None:
        span = self.ledgers.last
        for _ in range(self.dice.randint(1, 3)):
            self.model[Position(span.ledger_id, span.entries)] = set(range(BATCH))
            span.entries += 1
            span.size += 100

    def open_next_ledger(self) -> None:
        if self.ledgers.last.entries:  # An empty one does not stay in the list.
            self.ledgers.last.closed_ms = 1
            self.next_ledger += self.dice.randint(1, 2)
            self.ledgers.add(self.next_ledger)

    def acknowledge(self) -> None:
        position = self.position()
        assert self.state.acknowledge(position) == bool(self.model.get(position))
        if position in self.model:
            self.model[position] = set()

    def acknowledge_part(self) -> None:
        position = self.position()
        left, words = self.some_left()
        had = bool(self.model.get(position))
        finished = self.state.acknowledge_part(position, words)
        if position in self.model:
            self.model[position] &= left
        assert finished == (had and not self.model[position])

    def acknowledge_cumulative(self) -> None:
        position = self.dice.choice((LATEST, EARLIEST, *[self.position()] * 6))
        left, words = self.some_left() if self.dice.random() < 0.5 else (set[int](), [])
        self.state.acknowledge_cumulative(position, words or None)
        for each in self.model:
            if each < position:
                self.model[each] = set()
            elif each == position:
                self.model[each] &= left

    def seek(self) -> None:
        position = self.dice.choice((LATEST, EARLIEST, *[self.position()] * 6))
        left, words = self.some_left() if self.dice.random() < 0.5 else (set[int](), [])
        self.state.reset(position, words or None)
        for each in self.model:
            self.model[each] = set(range(BATCH)) if each >= position else set()
            if each == position and left:
                self.model[each] = left
        expected = next((each for each in self.existing() if each >= position), None)
        assert self.state.unacknowledged_from(self.state.read_position) == expected

    def drop_first_ledger(self) -> None:
        if len(self.ledgers) > 1:
            gone = next(iter(self.ledgers)).ledger_id
            self.ledgers.drop_first(1)
            self.state.ledgers_dropped()
            self.model = {each: left for each, left in self.model.items() if each.ledger_id != gone}

    def restart(self) -> None:
        """Nothing that is written is forgotten, and nothing else remembered. Some ledgers may be gone meanwhile."""
        self.state.properties = {"producer": 7}
        stored = encode_snapshot(self.state.snapshot(max_ranges=1000, max_ack_sets=1000))
        if self.dice.random() < 0.3:
            self.drop_first_ledger()
        self.state = CursorState.restored(self.ledgers, decode_snapshot("cursor", stored))
        assert self.state.properties == {"producer": 7}

    def read(self) -> None:
        """As the shell reads: from the read position on, whatever is not acknowledged."""
        number = self.dice.randint(1, 4)
        place = self.state.read_position
        expected = [each for each in self.existing() if each >= place and self.model[each]][:number]
        found = []
        for _ in range(number):
            position = self.state.unacknowledged_from(self.state.read_position)
            if position is None:
                break
            self.state.read_position = position.following
            found.append(position)
        assert found == expected

    # What must hold.

    def compare(self) -> None:
        state, mark = self.state, self.state.mark_delete
        unacknowledged = [each for each in self.existing() if self.model[each]]
        for position, left in self.model.items():
            assert state.is_acknowledged(position) == (not left), position
            words = state.ack_set(position)
            if not left or words is None:
                assert words is None, f"{position} is all acknowledged, and its parts are kept"
                assert len(left) in (0, BATCH)
            else:
                assert set(ack_sets.indexes(words)) == left, position
        assert state.backlog == len(unacknowledged)
        first = unacknowledged[0] if unacknowledged else LATEST
        assert not [each for each in self.model if mark < each < first], "the mark stays behind"
        assert state.unacknowledged_from(EARLIEST) == (unacknowledged[0] if unacknowledged else None)
        assert state.read_position > mark
        last = mark
        for ledger_id, start, end in state.ranges():
            assert start <= end
            assert Position(ledger_id, start) > last.following or ledger_id > last.ledger_id
            last = Position(ledger_id, end)


@pytest.mark.parametrize("chunk", range(4))
def test_a_cursor_knows_what_a_naive_one_knows(chunk: int) -> None:
    for seed in range(chunk * WALKS // 4, (chunk + 1) * WALKS // 4):
        walk = Walk(seed)
        for step in range(STEPS):
            try:
                walk.step()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, step {step}: {error}") from error


def test_of_too_many_ranges_the_first_are_kept() -> None:
    ledgers = LedgerList()
    ledgers.add(1, 100)
    state = CursorState(ledgers, Position(1, -1))
    for entry_id in range(1, 100, 2):
        state.acknowledge(Position(1, entry_id))
    snapshot = state.snapshot(max_ranges=3, max_ack_sets=0)
    assert snapshot.ranges == ((1, 1, 1), (1, 3, 3), (1, 5, 5))
    again = CursorState.restored(ledgers, snapshot)
    assert again.backlog == 97


def test_a_state_that_speaks_of_entries_that_are_not_there_is_fitted_to_those_that_are() -> None:
    """After a loss of data, or a deletion of ledgers, a cursor stands where there is something to stand on."""
    ledgers = LedgerList()
    ledgers.add(5, 4)
    ahead = CursorSnapshot(Position(9, 7), ((9, 9, 12),), ((Position(9, 8), (1,)),))
    state = CursorState.restored(ledgers, ahead)
    assert (state.mark_delete, state.backlog, state.range_count) == (Position(5, 3), 0, 0)
    behind = CursorSnapshot(Position(2, 7), ((2, 9, 12), (5, 1, 1)), ((Position(2, 8), (1,)),))
    state = CursorState.restored(ledgers, behind)
    assert (state.mark_delete, state.backlog) == (Position(5, -1), 3)
    assert list(state.ranges()) == [(5, 1, 1)]
    torn = CursorSnapshot(Position(5, 1), ((5, 0, 1), (5, 1, 2), (5, 3, 9)))
    state = CursorState.restored(ledgers, torn)
    assert (state.mark_delete, state.backlog) == (Position(5, 3), 0)
