"""What is made of entries that say strange things, and what is told of batches that were cut."""

from __future__ import annotations

import pytest

from magnetar.broker.compaction.messages import places_in, read_contents
from magnetar.broker.compaction.state import CompactedRecord, decode_entry, decode_position, encode_entry
from magnetar.broker.errors import MetadataFailed
from magnetar.managed_ledger import Entry, Position
from magnetar.protocol.message import build_message, split_message
from magnetar.protocol.pulsar_pb2 import CompressionType, EncryptionKeys, MessageMetadata
from tests.unit.broker.compaction.conftest import batch


@pytest.mark.parametrize("count", [-5, 0, 2**30])
def test_a_batch_of_an_impossible_number_counts_as_one_message(count: int) -> None:
    metadata = MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=count, partition_key="k"
    )
    split = split_message(build_message(metadata, b"payload"))
    assert places_in(split.metadata) == 1
    assert read_contents(split).messages == [(b"k", False)]


def test_what_cannot_be_opened_is_opaque_and_what_is_encrypted_has_the_key_outside() -> None:
    damaged = batch([("a", "1"), ("b", "2")], CompressionType.ZSTD)
    split = split_message(damaged)
    torn = split_message(build_message(split.metadata, bytes(split.payload)[:-3]))
    contents = read_contents(torn)
    assert (contents.opaque, contents.places, contents.messages) == (True, 2, [])
    split.metadata.encryption_keys.append(EncryptionKeys(key="k", value=b"v"))
    split.metadata.partition_key = "outside"
    assert read_contents(split_message(build_message(split.metadata, b"?"))).messages == [(b"outside", False)]


def test_keys_are_found_wherever_they_stand() -> None:
    long = "k" * 300
    data = batch([("a", "1"), (None, "2"), (long, ""), ("é", "3")])
    expected = [(b"a", False), (None, False), (long.encode(), True), ("é".encode(), False)]
    assert read_contents(split_message(data)).messages == expected
    assert read_contents(split_message(data), stays=(0b1011,)).messages == [*expected[:2], None, expected[3]]


def test_a_compacted_entry_knows_its_place_and_what_stays() -> None:
    entry = Entry(Position(7, 9), b"\x0e\x01data", index=41, broker_timestamp=5)
    payload = b"".join(map(bytes, encode_entry(entry, b"\x0e\x01less", (5, -1))))
    decoded = decode_entry(payload)
    assert (decoded.entry.position, decoded.entry.index, decoded.entry.data) == ((7, 9), 41, b"\x0e\x01less")
    assert decoded.stays == (5, -1)
    assert decode_position(payload) == (7, 9)
    with pytest.raises(MetadataFailed):
        decode_entry(b"\x02" + payload[1:])


def test_the_record_of_a_newer_broker_is_refused() -> None:
    record = CompactedRecord(3, Position(2, 1), 4, 5, 6, 7)
    assert CompactedRecord.decode(record.encode()) == record
    with pytest.raises(MetadataFailed):
        CompactedRecord.decode(record.encode().replace('"version":1', '"version":2'))
