from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnetar.managed_ledger.config import UNLIMITED, ManagedLedgerConfig
from magnetar.managed_ledger.ledger_list import LedgerList
from magnetar.managed_ledger.position import Position
from magnetar.managed_ledger.retention import droppable


@st.composite
def lists(draw: st.DrawFn) -> tuple[LedgerList, list[Position], int]:
    """A list, the entries in it, and how many were dropped from its front."""
    counts = draw(st.lists(st.integers(0, 4), min_size=1, max_size=6))
    ledgers = LedgerList()
    entries: list[Position] = []
    for number, count in enumerate(counts):
        ledger_id = 3 * number + 1
        ledgers.add(ledger_id, count, count * 10, 1000 + number)
        entries += [Position(ledger_id, entry_id) for entry_id in range(count)]
    dropped = draw(st.integers(0, len(counts) - 1))
    ledgers.drop_first(dropped)
    gone = sum(counts[:dropped])
    return ledgers, entries[gone:], gone


ANYWHERE = st.builds(Position, st.integers(-1, 20), st.integers(-1, 6))


@given(lists(), ANYWHERE)
def test_positions_are_counted_like_a_plain_list_would(
    drawn: tuple[LedgerList, list[Position], int], position: Position
) -> None:
    ledgers, entries, gone = drawn
    assert ledgers.entries == len(entries)
    assert ledgers.size == 10 * len(entries)
    assert ledgers.end_ordinal == gone + len(entries)
    assert ledgers.ordinal(position) == gone + sum(each <= position for each in entries)
    assert ledgers.bytes_through(position) == 10 * ledgers.ordinal(position)
    assert ledgers.existing_from(position) == next((each for each in entries if each >= position), None)
    earlier = [each for each in entries if each < position]
    assert ledgers.ordinal(ledgers.before(position)) == gone + len(earlier)
    if earlier:
        assert ledgers.before(position) == earlier[-1]
    if entries:
        assert (ledgers.first_position, ledgers.last_position) == (entries[0], entries[-1])


@given(
    lists(),
    st.none() | ANYWHERE,
    st.sampled_from([UNLIMITED, 0, 2]),
    st.sampled_from([UNLIMITED, 0, 50]),
    st.integers(1000, 6000),
)
def test_what_goes_is_a_prefix_that_nobody_needs_and_retention_lets_go(
    drawn: tuple[LedgerList, list[Position], int],
    slowest: Position | None,
    retention_s: int,
    retention_bytes: int,
    now_ms: int,
) -> None:
    """I26, with the retention rule written down the other way round: what must be kept."""
    ledgers, entries, _ = drawn
    config = ManagedLedgerConfig(retention_time_s=retention_s, retention_size_bytes=retention_bytes)
    number = droppable(ledgers, slowest, config, now_ms)
    spans = list(ledgers)
    assert number < len(spans), "the last ledger stays"
    kept = spans[number:]
    if slowest is not None:
        needed = [each for each in entries if each > slowest]
        assert {each.ledger_id for each in needed} <= {span.ledger_id for span in kept}
    limited = retention_s != 0 and retention_bytes != 0
    for at in range(number):
        old = retention_s != UNLIMITED and (now_ms - spans[at].closed_ms) / 1000 >= retention_s
        behind = sum(span.size for span in spans[at + 1 :])
        assert not limited or old or (retention_bytes != UNLIMITED and behind >= retention_bytes)
    if number < len(spans) - 1:
        first = spans[number]
        may_go = slowest is None or all(
            each <= slowest for each in entries if each.ledger_id == first.ledger_id
        )
        old = retention_s != UNLIMITED and (now_ms - first.closed_ms) / 1000 >= retention_s
        full = retention_bytes != UNLIMITED and sum(span.size for span in kept[1:]) >= retention_bytes
        assert not (may_go and (not limited or old or full)), "something that may go was kept"
