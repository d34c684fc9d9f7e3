"""How a micro-batch is cut out of topics that grow, end, and are split over ledgers."""

from __future__ import annotations

import pytest

from magnetar.spark.errors import OptionInvalid
from magnetar.spark.offsets import (
    ENDED,
    EntryPosition,
    LedgerExtent,
    TopicExtent,
    TopicRange,
    ends_here,
    extent_from_stats,
    next_offset,
    ranges,
)

A, B = "persistent://public/default/a", "persistent://public/default/b"


def extent(*ledgers: tuple[int, int], terminated: bool = False) -> TopicExtent:
    listed = tuple(LedgerExtent(ledger, entries) for ledger, entries in ledgers)
    full = [ledger for ledger in listed if ledger.entries]
    last = EntryPosition(full[-1].ledger_id, full[-1].entries - 1) if full else EntryPosition(-1, -1)
    return TopicExtent(listed, last, terminated)


def test_without_a_limit_a_batch_reads_all_there_is() -> None:
    assert next_offset({A: "3:1"}, {A: extent((3, 5), (7, 2))}, None) == {A: "7:1"}


def test_a_limit_counts_entries_across_ledgers() -> None:
    topics = {A: extent((3, 5), (7, 4))}
    assert next_offset({A: "3:2"}, topics, 2) == {A: "3:4"}
    assert next_offset({A: "3:2"}, topics, 3) == {A: "7:0"}
    assert next_offset({A: "3:2"}, topics, 100) == {A: "7:3"}


def test_a_limit_is_shared_between_topics_and_never_less_than_one_entry() -> None:
    topics = {A: extent((1, 9)), B: extent((2, 9))}
    assert next_offset({}, topics, 4) == {A: "1:1", B: "2:1"}
    assert next_offset({}, topics, 1) == {A: "1:0", B: "2:0"}


def test_the_open_ledger_counts_by_the_last_entry_where_it_reports_none() -> None:
    stats = {"state": "LedgerOpened", "lastConfirmedEntry": "9:4", "ledgers": [{"ledgerId": 9, "entries": 0}]}
    assert next_offset({}, {A: extent_from_stats(stats)}, 3) == {A: "9:2"}


def test_a_topic_whose_newest_ledger_is_empty_reaches_to_the_entry_before_it() -> None:
    stats = {
        "state": "Terminated",
        "lastConfirmedEntry": "9:-1",
        "ledgers": [{"ledgerId": 4, "entries": 3}, {"ledgerId": 9, "entries": 0}],
    }
    assert next_offset({A: "4:2"}, {A: extent_from_stats(stats)}, None) == {A: "4:2", ENDED: True}
    trimmed = {**stats, "ledgers": [{"ledgerId": 9, "entries": 0}]}
    assert next_offset({A: "4:2"}, {A: extent_from_stats(trimmed)}, None) == {A: "4:2", ENDED: True}


def test_an_offset_never_goes_back_when_a_topic_was_trimmed() -> None:
    assert next_offset({A: "8:3"}, {A: extent()}, None) == {A: "8:3"}


def test_the_end_is_reported_once_everything_was_read_and_only_then() -> None:
    topics = {A: extent((1, 2), terminated=True), B: extent((2, 1), terminated=True)}
    first = next_offset({}, topics, None)
    assert ENDED not in first
    second = next_offset(first, topics, None)
    assert second[ENDED] is True
    assert ends_here(first, second)
    assert not ends_here(second, next_offset(second, topics, None))


def test_one_topic_that_goes_on_keeps_the_whole_query_going() -> None:
    topics = {A: extent((1, 2), terminated=True), B: extent((2, 1))}
    assert ENDED not in next_offset({A: "1:1", B: "2:0"}, topics, None)


def test_no_topic_at_all_is_not_the_end() -> None:
    assert next_offset({}, {}, None) == {}


def test_ranges_leave_out_topics_with_nothing_new() -> None:
    found = ranges({A: "1:1", B: "2:0"}, {A: "1:1", B: "3:4", ENDED: True})
    assert found == [TopicRange(B, EntryPosition(2, 0), EntryPosition(3, 4))]


@pytest.mark.parametrize("text", ["", "7", "7:", "a:b", "1:2:3"])
def test_a_spoilt_checkpoint_is_named(text: str) -> None:
    with pytest.raises(OptionInvalid, match="LEDGER:ENTRY"):
        ranges({}, {A: text})
