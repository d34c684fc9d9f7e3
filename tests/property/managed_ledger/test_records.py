from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.managed_ledger.cursor_state import CursorSnapshot
from magnetar.managed_ledger.errors import RecordUnreadable
from magnetar.managed_ledger.position import Position
from magnetar.managed_ledger.records import (
    CursorRecord,
    ListedLedger,
    LogRecord,
    cursor_path,
    decode_cursor,
    decode_log,
    decode_name,
    decode_snapshot,
    encode_cursor,
    encode_log,
    encode_snapshot,
)

IDS = st.integers(-1, 2**63 - 1)
POSITIONS = st.builds(Position, IDS, IDS)
SNAPSHOTS = st.builds(
    CursorSnapshot,
    POSITIONS,
    st.lists(st.tuples(IDS, IDS, IDS), max_size=5).map(tuple),
    st.lists(
        st.tuples(POSITIONS, st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3).map(tuple)), max_size=4
    ).map(tuple),
    st.dictionaries(st.text(max_size=6), st.integers(-(2**63), 2**63 - 1), max_size=4),
)
TEXTS = st.dictionaries(st.text(max_size=6), st.text(max_size=6), max_size=3)
DOOMED = st.lists(st.integers(0, 2**62), max_size=3).map(tuple)
LOGS = st.builds(
    LogRecord,
    ledgers=st.lists(st.builds(ListedLedger, IDS, IDS, IDS, IDS), max_size=4).map(tuple),
    next_index=st.integers(0, 2**62),
    terminated=st.none() | POSITIONS,
    properties=TEXTS,
    doomed=DOOMED,
    deleted=st.booleans(),
    created_ms=st.integers(0, 2**50),
)
CURSORS = st.builds(CursorRecord, SNAPSHOTS, IDS, DOOMED, TEXTS, st.booleans())


@given(SNAPSHOTS)
def test_a_cursor_state_comes_back_as_it_was_stored(snapshot: CursorSnapshot) -> None:
    assert decode_snapshot("c", encode_snapshot(snapshot)) == snapshot


@given(LOGS, CURSORS)
def test_records_come_back_as_they_were_stored(log: LogRecord, cursor: CursorRecord) -> None:
    assert decode_log("t", encode_log(log, "revision")) == log
    assert decode_cursor("c", encode_cursor(cursor, "revision")) == cursor


@given(st.binary(max_size=60) | SNAPSHOTS.map(encode_snapshot).map(lambda data: data[:-1]))
def test_what_is_no_record_is_refused_and_nothing_else(data: bytes) -> None:
    for decode in (decode_snapshot, decode_log, decode_cursor):
        with pytest.raises(RecordUnreadable):
            decode("name", data)


def test_newer_formats_are_named() -> None:
    newer = json.dumps({"version": 3}).encode()
    with pytest.raises(RecordUnreadable, match=r"the record of log 't'.*format version 1 to 2"):
        decode_log("t", newer)
    stored = encode_snapshot(CursorSnapshot(Position(1, 2)))
    with pytest.raises(RecordUnreadable, match="format version 2"):
        decode_snapshot("c", b"\x02" + stored[1:])


@given(st.text(min_size=1))
def test_any_cursor_name_fits_a_path(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        return
    part = cursor_path("t/ns/persistent/topic", name).removeprefix("/managed-ledgers/t/ns/persistent/topic/")
    assert "/" not in part
    assert part not in ("", ".", "..")
    assert decode_name(part) == name
