"""However a topic's entries are spread over ledgers, micro-batches read each of them exactly once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnetar.spark.offsets import (
    ENDED,
    EntryPosition,
    LedgerExtent,
    Offset,
    TopicExtent,
    next_offset,
    ranges,
)

TOPIC = "persistent://public/default/t"


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 6)), min_size=1, max_size=6),
    st.one_of(st.none(), st.integers(1, 9)),
)
def test_batches_read_each_entry_once_and_then_end(gaps: list[tuple[int, int]], limit: int | None) -> None:
    ledgers, ledger_id = [], 0
    for gap, entries in gaps:
        ledger_id += gap
        ledgers.append(LedgerExtent(ledger_id, entries))
    held = [EntryPosition(ledger.ledger_id, e) for ledger in ledgers for e in range(ledger.entries)]
    last = held[-1] if held else EntryPosition(-1, -1)
    topics = {TOPIC: TopicExtent(tuple(ledgers), last, terminated=True)}

    read: list[EntryPosition] = []
    offset: Offset = {TOPIC: "-1:-1"}
    for _ in range(len(held) + 2):
        following = next_offset(offset, topics, limit)
        for work in ranges(offset, following):
            taken = [entry for entry in held if work.after < entry <= work.through]
            assert limit is None or len(taken) <= limit
            read += taken
        if following == offset:
            break
        offset = following
    assert read == held
    assert offset[ENDED] is True
