"""Values that other implementations of the protocol agree on."""

from __future__ import annotations

import pytest

from magnetar.protocol.checksum import crc32c
from magnetar.protocol.compression import compression_type
from magnetar.protocol.entry import ENTRY_MAGIC, split_entry, strip_entry, wrap_entry
from magnetar.protocol.errors import CompressionError, FrameTruncated, LyingLength, MalformedMetadata
from magnetar.protocol.ids import EARLIEST, LATEST, MessageId
from magnetar.protocol.pulsar_pb2 import LZ4, BrokerEntryMetadata, MessageMetadata
from magnetar.protocol.routing import java_string_hash, key_slot, murmur3_32, partition_for_key, sticky_key
from magnetar.protocol.texts import text
from magnetar.protocol.topic_lists import topics_hash


def test_the_check_value_of_crc32c() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"1234", memoryview(b"56"), bytearray(b"789")) == 0xE3069283
    assert crc32c(b"56789", initial=crc32c(b"1234")) == 0xE3069283


def test_hashes_of_topic_lists() -> None:
    a, b = "persistent://public/default/a", "persistent://public/default/b"
    assert topics_hash([]) == "00000000"
    assert topics_hash([a]) == "e4a876e3"
    assert topics_hash([b, a]) == "c7559e98"


def test_java_and_murmur_hashes() -> None:
    assert java_string_hash("") == 0
    assert java_string_hash("hello") == 99162322
    assert java_string_hash("polygenelubricants") == 0  # Java says -2147483648.
    assert java_string_hash("😀") == 1772899
    assert murmur3_32(b"") == 0
    assert murmur3_32(b"hello") == 0x248BFA47
    assert murmur3_32(b"The quick brown fox jumps over the lazy dog") == 0x2E4FF723
    assert murmur3_32(b"a") == 0x3C2569B2
    assert murmur3_32(b"abc") == 0xB3DD93FA & 0x7FFFFFFF
    assert murmur3_32(b"test") == 0xBA6BD213 & 0x7FFFFFFF


def test_keys_choose_partitions_and_slots() -> None:
    assert partition_for_key("hello", 7) == 99162322 % 7
    assert partition_for_key("hello", 7, "murmur3") == 0x248BFA47 % 7
    metadata = MessageMetadata(producer_name="p", sequence_id=9, publish_time=1)
    assert sticky_key(metadata) == b"p-9"
    metadata.partition_key = "aGVsbG8="
    assert sticky_key(metadata) == b"aGVsbG8="
    metadata.partition_key_b64_encoded = True
    assert sticky_key(metadata) == b"hello"
    metadata.ordering_key = b"o"
    assert sticky_key(metadata) == b"o"
    assert key_slot(b"hello") == 0x248BFA47 % 65536
    assert key_slot(b"") == 1  # A hash of 0 is never used.


def test_the_ends_of_a_topic_travel_as_unsigned_numbers() -> None:
    assert EARLIEST.to_data().ledgerId == 2**64 - 1
    assert MessageId.from_data(EARLIEST.to_data()) == EARLIEST
    assert LATEST.to_data().entryId == 2**63 - 1
    assert MessageId.parse("earliest") == MessageId.EARLIEST
    assert MessageId.parse("latest") == MessageId.LATEST
    assert MessageId(3, 4, 1, 2, 9).entry == MessageId(3, 4, 1)


def test_broker_entry_metadata_is_what_protobuf_makes_of_it() -> None:
    prefix = wrap_entry(1_700_000_000_123, 99)
    body = BrokerEntryMetadata(broker_timestamp=1_700_000_000_123, index=99).SerializeToString()
    assert prefix == ENTRY_MAGIC + len(body).to_bytes(4, "big") + body
    stored = split_entry(prefix + b"message")
    assert (stored.broker_timestamp, stored.index, bytes(stored.message)) == (
        1_700_000_000_123,
        99,
        b"message",
    )
    assert bytes(strip_entry(prefix + b"message")) == b"message"
    bare = split_entry(b"\x0e\x01rest")
    assert (bare.broker_timestamp, bare.index, bytes(bare.message)) == (None, None, b"\x0e\x01rest")


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"\x0e\x02\x00", FrameTruncated),
        (b"\x0e\x02\x00\x00\x00\x09\x08", LyingLength),
        (b"\x0e\x02\xff\xff\xff\xff", LyingLength),
        (b"\x0e\x02\x00\x00\x00\x01\xff", MalformedMetadata),
    ],
)
def test_a_damaged_entry_prefix_is_told(data: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        split_entry(data)


def test_compressions_by_name() -> None:
    assert compression_type("LZ4") == LZ4
    with pytest.raises(CompressionError, match="none, lz4, zlib, zstd, snappy"):
        compression_type("brotli")


def test_strings_that_are_no_text_stay_readable() -> None:
    """Other clients write them: protobuf's second version does not forbid it."""
    metadata = MessageMetadata(producer_name="AB", sequence_id=1, publish_time=1)
    read = MessageMetadata.FromString(metadata.SerializeToString().replace(b"AB", b"\xff\xfe"))
    assert text(read.producer_name) == r"\xff\xfe"
    assert sticky_key(read) == b"\xff\xfe-1"
    assert text("plain") == "plain"
