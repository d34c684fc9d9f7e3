"""A cursor against a naive one that keeps, for every entry, the set of its messages that are not acknowledged.

Long random walks, each drawn from a seed: acknowledgements of entries, of parts of entries and of all before,
seeks, appends, new ledgers, ledgers dropped at the front, restarts. Everything is compared after each step.
"""

from __future__ import annotations

import random
import tracemalloc

import pytest

from magnetar.managed_ledger.cursor_records import RECORD_BYTES_MAX, encode_change, read_head, replay
from magnetar.managed_ledger.cursor_state import CursorImage, CursorSnapshot, CursorState
from magnetar.managed_ledger.entry_ranges import EntryRanges
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
        self.written: list[bytes] = []
        """The entries of its ledger."""
        self.checkpoint = 0
        self.steps = (
            *[self.append] * 3,
            *[self.open_next_ledger] * 2,
            *[self.acknowledge] * 8,
            *[self.acknowledge_part] * 4,
            self.acknowledge_cumulative,
            self.seek,
            self.drop_first_ledger,
            self.restart,
            *[self.write] * 2,
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

    def write(self) -> None:
        """As its ledger is written: a checkpoint now and then, increments between, cut into small records."""
        if not self.written or self.state.voided or self.dice.random() < 0.2:
            self.checkpoint = len(self.written)
            self.write_records(self.state.whole(), anew=True, properties=True)
        else:
            change = self.state.change()
            assert not change.anew
            self.write_records(change.image, anew=False, properties=change.properties_changed)

    def write_records(self, image: CursorImage, *, anew: bool, properties: bool) -> None:
        bytes_max = self.dice.choice((40, 100, 100_000))
        self.written += encode_change(
            image, anew=anew, properties=properties, checkpoint=self.checkpoint, bytes_max=bytes_max
        )

    def restart(self) -> None:
        """Nothing that is written is forgotten, and nothing else remembered. Some ledgers may be gone meanwhile."""
        self.state.set_properties({"producer": self.dice.randint(1, 9)})
        properties = self.state.properties
        if self.dice.random() < 0.3:
            snapshot = self.state.image().small(max_ranges=1000, max_ack_sets=1000)
            assert snapshot is not None
            image = CursorImage.of(decode_snapshot("cursor", encode_snapshot(snapshot)))
        else:
            self.write()
            found = replay("cursor", self.written[read_head("cursor", self.written[-1]).checkpoint :])
            assert found is not None
            image = found
        if self.dice.random() < 0.3:
            self.drop_first_ledger()
        self.state = CursorState.restored(self.ledgers, image)
        self.written = []
        assert self.state.properties == properties

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


@pytest.mark.parametrize("seed", range(40))
def test_a_death_after_any_record_leaves_the_state_of_the_last_write_that_ended(seed: int) -> None:
    """However a write is cut into records: all of it holds, or nothing (I24)."""
    dice = random.Random(seed)
    ledgers = LedgerList()
    ledgers.add(1, 9000)
    ledgers.add(2, 9000)
    state = CursorState(ledgers, Position(1, -1))
    written: list[bytes] = []
    whole_after: dict[int, CursorImage] = {0: CursorImage(Position(-1, -1))}
    checkpoint = 0
    for number in range(12):
        for _ in range(dice.choice((1, 30, 300))):
            position = Position(dice.choice((1, 2)), dice.randrange(9000))
            if dice.random() < 0.8:
                state.acknowledge(position)
            else:
                state.acknowledge_part(position, ack_sets.from_bits(dice.randint(1, 255)))
        if dice.random() < 0.2:
            state.reset(Position(1, dice.randrange(9000)))
        if dice.random() < 0.5:
            state.set_properties({f"producer-{each}": each for each in range(dice.randint(0, 30))})
        if not number or state.voided or dice.random() < 0.2:
            checkpoint = len(written)
            image, anew, properties = state.whole(), True, True
        else:
            change = state.change()
            image, anew, properties = change.image, change.anew, change.properties_changed
        written += encode_change(
            image, anew=anew, properties=properties, checkpoint=checkpoint, bytes_max=dice.choice((200, 600))
        )
        whole_after[len(written)] = _copy(state.image())
    assert len(written) > 15
    for length in range(1, len(written) + 1):
        found, last = None, length - 1
        while found is None and last >= 0:  # As the store does it.
            first = read_head("cursor", written[last]).checkpoint
            found, last = replay("cursor", written[first : last + 1]), first - 1
        expected = whole_after[max(each for each in whole_after if each <= length)]
        assert _shown(found or CursorImage(Position(-1, -1))) == _shown(expected), length


def _copy(image: CursorImage) -> CursorImage:
    copied = replay("cursor", encode_change(image, anew=True, properties=True, checkpoint=0))
    assert copied is not None
    return copied


def _shown(image: CursorImage) -> tuple[object, ...]:
    ranges = {ledger_id: list(kept) for ledger_id, kept in image.ranges.items()}
    return image.mark_delete, ranges, image.ack_sets, image.properties


def test_ten_million_holes_take_little_memory_and_small_records() -> None:
    ledgers = LedgerList()
    number = 20_000_000 // 50_000
    for ledger_id in range(number):
        ledgers.add(ledger_id, 50_000)
    tracemalloc.start()
    image = CursorImage(Position(0, -1))
    for ledger_id in range(number):
        kept = image.ranges[ledger_id] = EntryRanges()
        for chunk in range(13):
            size = min(4096, 50_000 - chunk * 4096)
            kept.merge(chunk, int.from_bytes(b"\xaa" * 512, "little") & ((1 << size) - 1))
    state = CursorState.restored(ledgers, image)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert state.range_count == 10_000_000
    assert state.backlog == 10_000_000
    assert taken < 6_000_000
    records = encode_change(state.whole(), anew=True, properties=True, checkpoint=0)
    assert max(map(len, records)) <= RECORD_BYTES_MAX
    assert sum(map(len, records)) < 3_000_000
    for entry_id in range(0, 2000, 2):
        state.acknowledge(Position(7, entry_id))
    change = state.change()
    (record,) = encode_change(change.image, anew=False, properties=False, checkpoint=0)
    assert len(record) < 600
    again = replay("cursor", [*records, record])
    assert again is not None
    assert CursorState.restored(ledgers, again).backlog == 10_000_000 - 1000


def test_a_state_that_speaks_of_entries_that_are_not_there_is_fitted_to_those_that_are() -> None:
    """After a loss of data, or a deletion of ledgers, a cursor stands where there is something to stand on."""
    ledgers = LedgerList()
    ledgers.add(5, 4)
    ahead = CursorSnapshot(Position(9, 7), ((9, 9, 12),), ((Position(9, 8), (1,)),))
    state = CursorState.restored(ledgers, CursorImage.of(ahead))
    assert (state.mark_delete, state.backlog, state.range_count) == (Position(5, 3), 0, 0)
    behind = CursorSnapshot(Position(2, 7), ((2, 9, 12), (5, 1, 1)), ((Position(2, 8), (1,)),))
    state = CursorState.restored(ledgers, CursorImage.of(behind))
    assert (state.mark_delete, state.backlog) == (Position(5, -1), 3)
    assert list(state.ranges()) == [(5, 1, 1)]
    torn = CursorSnapshot(Position(5, 1), ((5, 0, 1), (5, 1, 2), (5, 3, 9)))
    state = CursorState.restored(ledgers, CursorImage.of(torn))
    assert (state.mark_delete, state.backlog) == (Position(5, 3), 0)
