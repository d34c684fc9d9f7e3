"""The stored form of an entry comes back as it went in, and no damaged one passes for good."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.protocol.ledger_entry import (
    ENTRY_HEADER_BYTES,
    EntryCorrupt,
    LedgerEntry,
    decode_entry,
    encode_entry_header,
    entry_digest_matches,
)

ids = st.integers(-(2**63), 2**63 - 1)
payloads = st.lists(st.binary(max_size=60), max_size=5)


@given(ids, ids, ids, ids, payloads)
def test_an_entry_comes_back(
    ledger_id: int, entry_id: int, lac: int, length: int, parts: list[bytes]
) -> None:
    header = encode_entry_header(ledger_id, entry_id, lac, length, parts)
    payload = b"".join(parts)
    assert len(header) == ENTRY_HEADER_BYTES
    assert entry_digest_matches(header, parts)
    entry = decode_entry(header + payload, expect_ledger=ledger_id, expect_entry=entry_id)
    assert entry == LedgerEntry(ledger_id, entry_id, lac, length, memoryview(payload))


@given(payloads, st.integers(0), st.integers(1, 255))
def test_every_changed_byte_is_noticed(parts: list[bytes], where: int, change: int) -> None:
    stored = bytearray(encode_entry_header(1, 2, 1, 3, parts) + b"".join(parts))
    stored[where % len(stored)] ^= change
    with pytest.raises(EntryCorrupt):
        decode_entry(stored)


@given(payloads, st.integers(0))
def test_a_cut_entry_is_noticed(parts: list[bytes], where: int) -> None:
    stored = encode_entry_header(1, 2, 1, 3, parts) + b"".join(parts)
    cut = where % len(stored)
    if stored[cut:].strip(b"\0") or cut < ENTRY_HEADER_BYTES:
        with pytest.raises(EntryCorrupt):
            decode_entry(stored[:cut])


def test_another_entry_than_expected_is_corrupt() -> None:
    stored = encode_entry_header(1, 2, 1, 3, [b"x"]) + b"x"
    for ledger_id, entry_id in ((2, 2), (1, 3), (None, 0), (0, None)):
        with pytest.raises(EntryCorrupt, match="entry 1:2"):
            decode_entry(stored, expect_ledger=ledger_id, expect_entry=entry_id)
