"""Each way in which a frame can lie, and the error that says so."""

from __future__ import annotations

import struct

import pytest

from magnetar.protocol import commands
from magnetar.protocol.errors import (
    FrameError,
    FrameTooLarge,
    FrameTruncated,
    LyingLength,
    MalformedCommand,
    UnknownCommand,
)
from magnetar.protocol.frames import FrameDecoder, encode_command
from magnetar.protocol.pulsar_pb2 import BaseCommand, CommandAck, CommandSubscribe, ServerError

UNKNOWN = ServerError.UnknownError


def framed(body: bytes) -> bytes:
    return struct.pack(">II", len(body) + 4, len(body)) + body


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (struct.pack(">I", 2**31), FrameTooLarge),
        (struct.pack(">I", 3), FrameTruncated),
        (struct.pack(">II", 4, 1), LyingLength),
        (struct.pack(">II", 8, 2**32 - 1) + bytes(4), LyingLength),
        (framed(b""), UnknownCommand),
        (framed(b"\x08\x63"), UnknownCommand),
        (framed(b"\x08\x12"), MalformedCommand),
        (framed(b"\x08\x06\x32\x7f"), MalformedCommand),
        (framed(b"\x08\x0b\x5a\x02\x08\x01"), MalformedCommand),
        (framed(b"garbage!"), FrameError),
    ],
)
def test_what_is_no_frame(data: bytes, error: type[FrameError]) -> None:
    with pytest.raises(error):
        FrameDecoder().feed(data)


def test_a_frame_too_large_is_refused_by_its_first_four_bytes() -> None:
    decoder = FrameDecoder(max_frame_bytes=1000)
    assert decoder.feed(b"\x00\x00\x03") == []
    with pytest.raises(FrameTooLarge, match="limit of 1000"):
        decoder.feed(b"\xe5")
    FrameDecoder(max_frame_bytes=1001).feed(b"\x00\x00\x03\xe5")


def test_a_command_whose_strings_are_no_text_is_refused() -> None:
    """The library would hand out bytes where every caller expects text."""
    frame = commands.subscribe("TOPIC", "sub", CommandSubscribe.Shared, 1, 2)
    with pytest.raises(MalformedCommand, match="UTF-8"):
        FrameDecoder().feed(frame.replace(b"TOPIC", b"TOP\xff\xfe"))
    ack = BaseCommand(type=BaseCommand.ACK)
    ack.ack.consumer_id = 1
    ack.ack.ack_type = CommandAck.Individual
    ack.ack.properties.add(key="KEY", value=1)
    with pytest.raises(MalformedCommand, match="UTF-8"):
        FrameDecoder().feed(encode_command(ack).replace(b"KEY", b"K\xff\xfe"))


def test_frames_are_views_until_they_straddle_reads() -> None:
    decoder = FrameDecoder()
    read = commands.send(1, 2, 5) + b"hello" + commands.send(1, 3, 5) + b"wor"
    (first,) = decoder.feed(read)
    assert first.payload is not None
    assert first.payload.obj is read
    assert decoder.pending_bytes > 0
    (second,) = decoder.feed(bytearray(b"ld"))
    assert bytes(second.payload or b"") == b"world"
    assert decoder.pending_bytes == 0


def test_every_required_field_is_set_in_what_we_say() -> None:
    """Official clients drop the connection otherwise. Each command here has only what it must have."""
    frames = [
        commands.connected("Magnetar", protocol_version=21, max_message_bytes=5),
        commands.error(commands.NO_REQUEST, UNKNOWN, ""),
        commands.send_error(1, -1, UNKNOWN, ""),
        commands.producer_success(1, "p"),
        commands.partitioned_metadata_failed(1, UNKNOWN, ""),
        commands.lookup_failed(1, UNKNOWN, ""),
        commands.schema_failed(1, UNKNOWN, ""),
        commands.broker_closes_consumer(1),
        commands.broker_closes_producer(1),
        commands.ack_response(1, 2),
    ]
    decoder = FrameDecoder()
    assert len([decoder.feed(frame) for frame in frames]) == len(frames)
    answer = decoder.feed(commands.partitioned_metadata_response(1, 0))[0].command
    assert not answer.partitionMetadataResponse.HasField("error")
    assert answer.partitionMetadataResponse.HasField("partitions")
    success = decoder.feed(commands.producer_success(1, "p"))[0].command.producer_success
    assert success.last_sequence_id == -1
    closes = decoder.feed(commands.broker_closes_consumer(4))[0].command.close_consumer
    assert closes.request_id == 2**64 - 1
    assert not closes.HasField("assignedBrokerServiceUrl")
