"""Whatever is encoded comes out of the decoder again, however the stream is cut; and nothing else does."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.protocol import hot_commands
from magnetar.protocol.errors import FrameError
from magnetar.protocol.frames import FrameDecoder, encode_command, encode_payload_command
from magnetar.protocol.ids import MessageId
from magnetar.protocol.pulsar_pb2 import (
    BaseCommand,
    CommandAck,
    CommandFlow,
    CommandMessage,
    CommandSend,
    CommandSendReceipt,
    MessageIdData,
)
from tests.property.protocol.any_message import any_command

UINT64 = st.integers(0, 2**64 - 1)
SIGNED = st.integers(-1, 2**63 - 1)
WITH_MESSAGE = (BaseCommand.SEND, BaseCommand.MESSAGE)


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(place % (len(data) + 1) for place in cuts)})
    return [data[start:end] for start, end in pairwise(places)]


@given(
    st.lists(st.tuples(any_command(), st.binary(max_size=40)), max_size=5),
    st.lists(st.integers(0, 2**16), max_size=12),
)
def test_frames_come_out_as_they_went_in(sent: list[tuple[BaseCommand, bytes]], cuts: list[int]) -> None:
    stream = b"".join(
        b"".join(encode_payload_command(command, [payload]))
        if command.type in WITH_MESSAGE
        else encode_command(command)
        for command, payload in sent
    )
    decoder = FrameDecoder()
    frames = [frame for piece in cut(stream, cuts) for frame in decoder.feed(piece)]
    assert [frame.command for frame in frames] == [command for command, _ in sent]
    assert decoder.pending_bytes == 0
    for frame, (command, payload) in zip(frames, sent, strict=True):
        assert frame.type == command.type
        assert frame.payload == (payload if command.type in WITH_MESSAGE else None)


@given(st.lists(st.binary(max_size=60), max_size=6))
def test_random_bytes_end_in_a_frame_error_or_wait(pieces: list[bytes]) -> None:
    decoder = FrameDecoder(max_frame_bytes=1024)
    try:
        for piece in pieces:
            decoder.feed(piece)
            assert decoder.pending_bytes <= 1024
    except FrameError:
        return


@given(any_command(), st.data())
def test_a_damaged_frame_is_refused_or_is_another_frame(command: BaseCommand, data: st.DataObject) -> None:
    """Lengths that lie, commands that lie, anything flipped: FrameError, or a well-formed command."""
    frame = bytearray(encode_command(command))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    decoder = FrameDecoder(max_frame_bytes=4096)
    try:
        for result in decoder.feed(bytes(frame)):
            assert result.command.HasField("type")
    except FrameError:
        return
    assert decoder.pending_bytes <= 4096


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.binary(max_size=30))
def test_lying_sizes_never_make_the_decoder_keep_more_than_its_limit(
    size: int, command_size: int, rest: bytes
) -> None:
    decoder = FrameDecoder(max_frame_bytes=512)
    try:
        decoder.feed(struct.pack(">II", size, command_size) + rest)
    except FrameError:
        return
    assert decoder.pending_bytes < size + 4 <= 512


@given(UINT64, UINT64, st.integers(1, 2**31 - 1), st.none() | UINT64, st.booleans(), st.binary(max_size=9))
def test_send_is_what_protobuf_makes_of_it(
    producer_id: int, sequence_id: int, messages: int, highest: int | None, is_chunk: bool, payload: bytes
) -> None:
    body = CommandSend(producer_id=producer_id, sequence_id=sequence_id, highest_sequence_id=highest)
    if messages != 1:
        body.num_messages = messages
    if is_chunk:
        body.is_chunk = True
    expected = encode_payload_command(BaseCommand(type=BaseCommand.SEND, send=body), [payload])
    head = hot_commands.send(
        producer_id,
        sequence_id,
        len(payload),
        num_messages=messages,
        highest_sequence_id=highest,
        is_chunk=is_chunk,
    )
    assert head + payload == b"".join(expected)


@given(UINT64, UINT64, SIGNED, SIGNED, UINT64)
def test_receipt_is_what_protobuf_makes_of_it(
    producer_id: int, sequence_id: int, ledger_id: int, entry_id: int, highest: int
) -> None:
    body = CommandSendReceipt(
        producer_id=producer_id,
        sequence_id=sequence_id,
        highest_sequence_id=highest,
        message_id=MessageId(ledger_id, entry_id).to_data(),
    )
    expected = encode_command(BaseCommand(type=BaseCommand.SEND_RECEIPT, send_receipt=body))
    assert hot_commands.send_receipt(producer_id, sequence_id, ledger_id, entry_id, highest) == expected


@given(
    UINT64,
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(-1, 2**31 - 1),
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
    st.none() | UINT64,
)
def test_message_is_what_protobuf_makes_of_it(
    consumer_id: int,
    ledger_id: int,
    entry_id: int,
    partition: int,
    redelivered: int,
    ack_set: list[int],
    epoch: int | None,
) -> None:
    """Drawn one after another, these also show that nothing of one frame is left in the next."""
    body = CommandMessage(
        consumer_id=consumer_id,
        message_id=MessageIdData(ledgerId=ledger_id, entryId=entry_id),
        ack_set=ack_set,
        consumer_epoch=epoch,
    )
    if partition >= 0:
        body.message_id.partition = partition
    if redelivered:
        body.redelivery_count = redelivered
    expected = encode_payload_command(BaseCommand(type=BaseCommand.MESSAGE, message=body), [b"entry"])
    head = hot_commands.message(
        consumer_id,
        ledger_id,
        entry_id,
        5,
        partition=partition,
        redelivery_count=redelivered,
        ack_set=ack_set,
        consumer_epoch=epoch,
    )
    assert head + b"entry" == b"".join(expected)


@given(UINT64, st.integers(0, 2**32 - 1))
def test_flow_is_what_protobuf_makes_of_it(consumer_id: int, permits: int) -> None:
    body = CommandFlow(consumer_id=consumer_id, messagePermits=permits)
    assert hot_commands.flow(consumer_id, permits) == encode_command(
        BaseCommand(type=BaseCommand.FLOW, flow=body)
    )


@given(
    UINT64,
    st.lists(st.tuples(SIGNED, SIGNED, st.lists(st.integers(-(2**63), 2**63 - 1), max_size=2)), max_size=4),
    st.none() | UINT64,
)
def test_ack_is_what_protobuf_makes_of_it(
    consumer_id: int, places: list[tuple[int, int, list[int]]], request_id: int | None
) -> None:
    body = CommandAck(consumer_id=consumer_id, ack_type=CommandAck.Individual, request_id=request_id)
    for ledger_id, entry_id, ack_set in places:
        body.message_id.append(MessageId(ledger_id, entry_id).to_data(ack_set))
    positions = [(MessageId(ledger_id, entry_id), ack_set) for ledger_id, entry_id, ack_set in places]
    assert hot_commands.ack(consumer_id, positions, request_id=request_id) == encode_command(
        BaseCommand(type=BaseCommand.ACK, ack=body)
    )


@pytest.mark.parametrize("size", [1, 3, 7, 64, 1000])
def test_a_stream_in_equal_pieces(size: int) -> None:
    """Every cut inside the size field, the command and the payload is met."""
    frame = hot_commands.send(1, 2, 300) + bytes(300)
    stream = frame * 9
    decoder = FrameDecoder()
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    frames = [frame for piece in pieces for frame in decoder.feed(piece)]
    assert [len(frame.payload or b"") for frame in frames] == [300] * 9
