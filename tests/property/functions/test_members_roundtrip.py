"""Whatever a batch holds, the user process reads what the platform's codec wrote, and the other way round."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnetar.functions.errors import EntryMalformed
from magnetar.functions.process.current_message import Decoded
from magnetar.functions.process.members import forwarded_fields, join_members, raw_metadata, split_batch
from magnetar.functions.process.wire import (
    Entry,
    EntryFlag,
    Failure,
    OutputGroup,
    Result,
    ResultFlag,
    entry_frame,
    read_entry,
    read_result,
    result_frame,
)
from magnetar.functions.serde import IdentitySerDe
from magnetar.protocol.pulsar_pb2 import SingleMessageMetadata

TEXT = st.text(st.characters(codec="utf-8"), max_size=200)


@st.composite
def members(draw: st.DrawFn) -> tuple[SingleMessageMetadata, bytes]:
    payload = draw(st.binary(max_size=300))
    metadata = SingleMessageMetadata(payload_size=len(payload))
    for key, value in draw(st.dictionaries(TEXT, TEXT, max_size=3)).items():
        metadata.properties.add(key=key, value=value)
    if draw(st.booleans()):
        metadata.partition_key = draw(TEXT)
    if draw(st.booleans()):
        metadata.event_time = draw(st.integers(0, 2**63))
    if draw(st.booleans()):
        metadata.ordering_key = draw(st.binary(max_size=20))
    if draw(st.booleans()):
        metadata.sequence_id = draw(st.integers(0, 2**63))
    if draw(st.booleans()):
        metadata.null_value = True
    return metadata, payload


@given(st.lists(members(), min_size=1, max_size=8))
def test_what_the_platform_writes_is_read(batch: list[tuple[SingleMessageMetadata, bytes]]) -> None:
    data = b""
    for metadata, payload in batch:
        fields = metadata.SerializeToString()
        data += len(fields).to_bytes(4, "big") + fields + payload
    payloads, raw = split_batch(data, len(batch))
    assert payloads == [payload for _, payload in batch]
    for found, (metadata, _) in zip(raw, batch, strict=True):
        fields = raw_metadata(found, data)
        decoded = Decoded(fields)
        assert decoded.properties == {pair.key: pair.value for pair in metadata.properties}
        assert (decoded.key or "") == metadata.partition_key
        assert decoded.event_time == metadata.event_time
        assert (decoded.ordering_key or b"") == metadata.ordering_key
        assert decoded.sequence_id == metadata.sequence_id
        assert decoded.null_value == metadata.null_value
        before, after = forwarded_fields(fields)
        forwarded = SingleMessageMetadata.FromString(before + b"\x18\x00" + after)
        assert list(forwarded.properties) == list(metadata.properties)
        assert forwarded.partition_key == metadata.partition_key
        assert forwarded.event_time == metadata.event_time
        assert forwarded.ordering_key == metadata.ordering_key


@given(st.lists(st.binary(max_size=2000), min_size=1, max_size=10))
def test_what_is_written_is_read(payloads: list[bytes]) -> None:
    nothing = [b""] * len(payloads)
    assert split_batch(join_members(payloads, nothing, nothing), len(payloads))[0] == payloads


@given(st.binary(max_size=200), st.integers(1, 10))
def test_no_bytes_break_the_reader(data: bytes, count: int) -> None:
    try:
        payloads, _ = split_batch(data, count)
    except EntryMalformed:
        return
    assert len(payloads) == count
    assert sum(map(len, payloads)) <= len(data)


@given(
    st.integers(1, 50).flatmap(
        lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n - 1), min_size=1, unique=True).map(sorted))
    ),
    st.binary(max_size=50),
    st.text(max_size=20),
)
def test_entries_and_results_survive_the_socketpair(
    shape: tuple[int, list[int]], payload: bytes, text: str
) -> None:
    count, ordinals = shape
    entry = Entry(7, 3, 9, 2**40, 5, -1, 2**33, count, -1, ordinals, EntryFlag.ISOLATE, payload)
    received = read_entry(entry_frame(entry)[5:] + payload)
    assert list(received.ordinals) == ordinals
    assert (received.serial, received.first_index, received.payload) == (7, 2**33, payload)
    assert received.flags & EntryFlag.ISOLATE
    result = Result(
        7,
        9,
        ResultFlag.NONE,
        count,
        123,
        [OutputGroup(2, ordinals, payload, 1)],
        [Failure(0, text, text, True)],
    )
    back = read_result(memoryview(result_frame(result))[5:])
    assert [list(group.ordinals) for group in back.groups] == [ordinals]
    assert (back.groups[0].payload, back.groups[0].after_failures, back.groups[0].route) == (payload, 1, 2)
    assert back.failures == [Failure(0, text, text, True)]


def reference_identity(data: bytes) -> object:
    """What Apache's IdentitySerDe does, as its documentation says it."""
    for parse in (int, float, lambda value: complex(value.decode()), lambda value: value.decode()):
        try:
            return parse(data)
        except ValueError:
            continue
    return data


@given(
    st.one_of(st.binary(max_size=12), st.text("0123456789+-_.eEjJnNaAiIfF()x \t", max_size=8).map(str.encode))
)
def test_the_short_way_of_identity_serde_changes_nothing(data: bytes) -> None:
    assert repr(IdentitySerDe().deserialize(data)) == repr(reference_identity(data))
