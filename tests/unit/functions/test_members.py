"""Batches as the user process reads and writes them agree with the platform's own codec."""

from __future__ import annotations

from base64 import b64decode

import pytest

from magnetar.functions.errors import EntryMalformed
from magnetar.functions.process.current_message import Decoded, MessageId
from magnetar.functions.process.members import (
    INPUT_MESSAGE_ID_PROPERTY,
    INPUT_TOPIC_PROPERTY,
    forwarded_fields,
    join_members,
    key_of,
    property_field,
    raw_metadata,
    sequence_fields,
    source_fields,
    split_batch,
)
from magnetar.functions.process.routing import partition_of
from magnetar.protocol.pulsar_pb2 import MessageIdData, SingleMessageMetadata
from magnetar.protocol.routing import partition_for_key

TOPIC = property_field(INPUT_TOPIC_PROPERTY, b"persistent://public/default/in")


def batch(*members: tuple[SingleMessageMetadata, bytes]) -> bytes:
    out = b""
    for metadata, payload in members:
        metadata.payload_size = len(payload)
        fields = metadata.SerializeToString()
        out += len(fields).to_bytes(4, "big") + fields + payload
    return out


def test_a_batch_is_split_into_what_was_put_in() -> None:
    plain = SingleMessageMetadata(sequence_id=7)
    keyed = SingleMessageMetadata(partition_key="k" * 200, event_time=5)
    keyed.properties.add(key="a", value="b" * 300)
    data = batch((plain, b"one"), (keyed, b"x" * 20_000), (SingleMessageMetadata(), b""))
    payloads, metadata = split_batch(data, 3)
    assert payloads == [b"one", b"x" * 20_000, b""]
    assert isinstance(metadata[1], bytes)
    assert Decoded(raw_metadata(metadata[0], data)).sequence_id == 7
    assert Decoded(metadata[1]).key == "k" * 200
    assert Decoded(metadata[1]).properties == {"a": "b" * 300}
    assert key_of(metadata[1]) == b"k" * 200
    assert key_of(metadata[0]) is None


@pytest.mark.parametrize("cut", [1, 3, 5, 9])
def test_a_batch_cut_short_is_told_from_a_whole_one(cut: int) -> None:
    data = batch((SingleMessageMetadata(), b"one"), (SingleMessageMetadata(), b"two"))
    with pytest.raises(EntryMalformed):
        split_batch(data[:-cut], 2)


def test_results_name_the_message_they_came_from() -> None:
    for count in (1, 2, 300, 20_000):
        fields = source_fields(TOPIC, 123, 45, 3, count)
        assert len(fields) == count
        for ordinal in {0, count // 2, count - 1}:
            properties = Decoded(fields[ordinal]).properties
            assert properties[INPUT_TOPIC_PROPERTY] == "persistent://public/default/in"
            data = b64decode(properties[INPUT_MESSAGE_ID_PROPERTY], validate=True)
            expected = MessageIdData(ledgerId=123, entryId=45, partition=3)
            if count > 1:
                expected.batch_index = ordinal
            assert MessageIdData.FromString(data) == expected
            assert MessageId.deserialize(data).serialize() == expected.SerializeToString()


def test_sequence_ids_are_indices_with_room_for_an_ordinal() -> None:
    for first in (0, 1, 60, 63, 64, 1000, 2**20 - 3, 2**40):
        for offset, field in enumerate(sequence_fields(first, 200)):
            decoded = SingleMessageMetadata.FromString(field + b"\x18\x00")
            assert decoded.sequence_id == (first + offset) << 8


def test_what_is_written_is_in_protobufs_order_and_reads_back() -> None:
    after = sequence_fields(5, 1)[0]
    data = join_members([b"payload"], [TOPIC], [after])
    size = int.from_bytes(data[:4], "big")
    metadata = SingleMessageMetadata.FromString(data[4 : 4 + size])
    assert metadata.SerializeToString() == data[4 : 4 + size]
    assert metadata.payload_size == 7
    assert data.endswith(b"payload")


def test_key_properties_and_event_time_are_forwarded_but_not_where_an_earlier_function_had_its_input_from() -> (
    None
):
    earlier = source_fields(TOPIC, 1, 2, -1, 1)[0]
    metadata = SingleMessageMetadata(partition_key="JFK", event_time=99, sequence_id=4, payload_size=3)
    metadata.properties.add(key="colour", value="red")
    before, after = forwarded_fields(earlier + metadata.SerializeToString())
    forwarded = SingleMessageMetadata.FromString(before + b"\x18\x03" + after)
    assert [(p.key, p.value) for p in forwarded.properties] == [("colour", "red")]
    assert forwarded.partition_key == "JFK"
    assert forwarded.event_time == 99
    assert not forwarded.HasField("sequence_id")


def test_where_there_is_nothing_to_forward_nothing_is_looked_at() -> None:
    plain = SingleMessageMetadata(payload_size=300, sequence_id=4).SerializeToString()
    assert forwarded_fields(plain) == (b"", b"")
    for size in (0, 3, 127, 128, 16_383, 16_384, 100_000):
        data = batch((SingleMessageMetadata(sequence_id=5), b"x" * size), (SingleMessageMetadata(), b"y"))
        payloads, metadata = split_batch(data, 2)
        assert payloads == [b"x" * size, b"y"]
        assert all(isinstance(place, int) for place in metadata)
        assert Decoded(raw_metadata(metadata[0], data)).sequence_id == 5


def test_keys_choose_the_partition_official_clients_choose() -> None:
    for key in ("", "a", "JFK", "schlüssel", "鍵", "🔑"):
        assert partition_of(key.encode(), 7) == partition_for_key(key, 7)
