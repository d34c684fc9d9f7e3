"""The index of what is held back, beside a plain dictionary of the same."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.broker import delays as subject
from magnetar.broker.delays import Delays
from magnetar.broker.held_positions import HeldPositions
from magnetar.managed_ledger.position import Position

POSITIONS = st.builds(Position, st.integers(1, 4), st.integers(0, 70_000))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("hold"), POSITIONS, st.integers(0, 1000)),
        st.tuples(st.just("hold many"), POSITIONS, st.integers(0, 1000)),
        st.tuples(st.just("time"), st.integers(1, 200)),
        st.tuples(st.just("take"), st.integers(1, 40)),
        st.tuples(st.just("forget"), st.lists(POSITIONS, max_size=5)),
        st.tuples(st.just("forget through"), POSITIONS),
        st.tuples(st.just("clear")),
        st.tuples(st.just("switch")),
    ),
    max_size=60,
)


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """So short that a few steps fill, empty and rewrite them."""
    monkeypatch.setattr(subject, "RUN_ENTRIES", 8)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_it_holds_and_lets_go_of_the_same(steps: list[tuple[object, ...]]) -> None:
    held: dict[Position, int] = {}
    written: dict[Position, int] = {}
    """The time of each entry, which it keeps when it is let go and comes again."""
    index = Delays(10**9)

    def hold(position: Position, due_ms: int) -> None:
        due_ms = written.setdefault(position, due_ms)
        held.setdefault(position, due_ms)
        index.hold(position, due_ms)

    for step in steps:
        match step:
            case ("hold", Position() as position, int(due_ms)):
                hold(position, due_ms)
            case ("hold many", Position() as position, int(due_ms)):
                for more in range(30):
                    hold(Position(position.ledger_id, position.entry_id + more), due_ms + more * 7 % 50)
            case ("time", int(passed)):
                index.now_ms += passed
            case ("take", int(limit)):
                due = sorted(
                    (at, each) for each, at in held.items() if at <= index.now_ms or not index.active
                )
                taken = index.take_due(limit)
                assert len(taken) == min(limit, len(due))
                assert taken == sorted(taken)
                assert sorted(held[each] for each in taken) == [at for at, _ in due[:limit]]
                for each in taken:
                    del held[each]
            case ("forget", list(positions)):
                index.forget(positions)
                for each in positions:
                    held.pop(each, None)
            case ("forget through", Position() as last):
                index.forget_through(last)
                held = {each: at for each, at in held.items() if each > last}
            case ("clear",):
                index.clear()
                held.clear()
            case ("switch",):
                index.active = not index.active
        assert len(index) == len(held)
        assert index.next_due_ms is None if not held else index.next_due_ms is not None
        if held and index.active:
            assert index.next_due_ms is not None
            assert index.next_due_ms <= min(held.values()), "nothing is woken for too late"
    index.now_ms = 10**6
    left: list[Position] = []
    while taken := index.take_due(7):
        left += taken
    assert sorted(left) == sorted(held)
    assert (len(index), index.size_bytes) == (0, 0)


@given(st.lists(st.tuples(st.sampled_from(["add", "remove", "through"]), POSITIONS), max_size=80))
def test_a_set_of_bits_is_a_set(steps: list[tuple[str, Position]]) -> None:
    plain: set[Position] = set()
    bits = HeldPositions()
    for act, position in steps:
        if act == "add":
            assert bits.add(position) is (position not in plain)
            plain.add(position)
        elif act == "remove":
            assert bits.remove(position) is (position in plain)
            plain.discard(position)
        else:
            bits.remove_through(position)
            plain = {each for each in plain if each > position}
        assert bits.count == len(plain)
    assert all(each in bits for each in plain)


def test_memory_is_given_back_as_entries_are_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "RUN_ENTRIES", 1024)
    index = Delays(10**9)
    for number in range(50_000):
        index.hold(Position(1 + number // 10_000, number % 10_000), 10_000 + number * 7919 % 50_000)
    before = index.size_bytes
    assert before < 50_000 * 20
    index.forget_through(Position(5, 4_999))
    for _ in range(100):
        index.forget(())
    assert len(index) == 5_000
    assert index.size_bytes < before / 3
    index.now_ms = 10**6
    assert len(index.take_due(10_000)) == 5_000
