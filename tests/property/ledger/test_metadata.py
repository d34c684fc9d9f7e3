from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.ledger.errors import MetadataCorrupt
from magnetar.ledger.metadata import (
    LedgerMetadata,
    LedgerState,
    Segment,
    decode_metadata,
    encode_metadata,
    ledger_id_of,
    ledger_path,
    replace_in_segments,
)


@st.composite
def metadata(draw: st.DrawFn) -> LedgerMetadata:
    ack = draw(st.integers(1, 4))
    write = draw(st.integers(ack, 5))
    size = draw(st.integers(write, 6))
    firsts = sorted(draw(st.sets(st.integers(1, 1 << 40), max_size=4)))
    ensembles = st.lists(st.text(min_size=1, max_size=8), min_size=size, max_size=size, unique=True)
    return LedgerMetadata(
        ledger_id=draw(st.integers(0, 2**62)),
        ensemble_size=size,
        write_quorum=write,
        ack_quorum=ack,
        segments=tuple(Segment(first, tuple(draw(ensembles))) for first in (0, *firsts)),
        token=draw(st.text(max_size=8)),
        created_ms=draw(st.integers(0, 1 << 50)),
        state=draw(st.sampled_from(LedgerState)),
        last_entry=draw(st.integers(-1, 1 << 50)),
        length=draw(st.integers(0, 1 << 60)),
        custom=draw(st.dictionaries(st.text(max_size=5), st.binary(max_size=9), max_size=3)),
    )


@given(metadata())
def test_metadata_come_back_as_they_were_stored(value: LedgerMetadata) -> None:
    assert decode_metadata(value.ledger_id, encode_metadata(value)) == value
    assert ledger_id_of(ledger_path(value.ledger_id)) == value.ledger_id


@given(metadata(), st.integers(0, 1 << 41))
def test_every_entry_lies_in_exactly_one_segment(value: LedgerMetadata, entry_id: int) -> None:
    fragment = value.fragment_of(entry_id)
    end = value.fragment_end(entry_id)
    assert fragment.first_entry <= entry_id
    assert end is None or entry_id <= end
    if end is not None:
        assert value.fragment_of(end) == fragment
        assert value.fragment_of(end + 1).first_entry == end + 1


@given(
    st.binary(max_size=80)
    | metadata()
    .map(encode_metadata)
    .flatmap(lambda data: st.integers(0, len(data)).map(lambda cut: data[:cut]))
)
def test_what_is_no_metadata_is_refused_and_nothing_else(data: bytes) -> None:
    try:
        decode_metadata(7, data)
    except MetadataCorrupt:
        return
    assert data.endswith(b"}")


def test_a_newer_format_is_named() -> None:
    with pytest.raises(MetadataCorrupt, match="version 2"):
        decode_metadata(7, b'{"version": 2}')


def test_an_ensemble_that_names_a_bookie_twice_is_refused() -> None:
    value = LedgerMetadata(1, 2, 2, 1, (Segment(0, ("a", "a")),), "t", 0)
    with pytest.raises(MetadataCorrupt, match="different bookies"):
        decode_metadata(1, encode_metadata(value))


CLOSED = LedgerMetadata(
    7,
    3,
    2,
    2,
    (Segment(0, ("a", "b", "c")), Segment(10, ("a", "d", "c"))),
    "t",
    0,
    state=LedgerState.CLOSED,
    last_entry=19,
    length=190,
)


def test_a_closed_fragment_changes_by_substitution_only() -> None:
    changed = replace_in_segments(CLOSED, 0, ("a", "b", "c"), {1: "e"})
    assert changed == replace(CLOSED, segments=(Segment(0, ("a", "e", "c")), CLOSED.segments[1]))
    assert replace_in_segments(CLOSED, 10, ("a", "d", "c"), {0: "b", 2: "e"}) is not None
    assert replace_in_segments(CLOSED, 0, ("a", "x", "c"), {1: "e"}) is None, (
        "another has changed it meanwhile"
    )
    assert replace_in_segments(CLOSED, 5, ("a", "b", "c"), {1: "e"}) is None, "no such segment"
    assert replace_in_segments(CLOSED, 0, ("a", "b", "c"), {1: "c"}) is None, "it is in the ensemble already"


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
def test_the_last_fragment_of_a_ledger_that_is_not_closed_is_let_alone(state: LedgerState) -> None:
    ledger = CLOSED.with_state(state)
    assert replace_in_segments(ledger, 10, ("a", "d", "c"), {1: "e"}) is None
    assert replace_in_segments(ledger, 0, ("a", "b", "c"), {1: "e"}) is not None
