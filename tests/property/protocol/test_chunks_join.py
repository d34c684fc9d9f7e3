"""Chunks: whatever is cut is joined, interleaved or not; what misses a chunk is given up, and memory bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnetar.protocol.chunks import ChunkAssembler, cut_into_chunks
from magnetar.protocol.pulsar_pb2 import MessageMetadata


def chunks_of(name: str, payload: bytes, size: int) -> list[tuple[MessageMetadata, bytes]]:
    whole = MessageMetadata(producer_name=name, sequence_id=7, publish_time=1)
    return [(metadata, bytes(part)) for metadata, part in cut_into_chunks(whole, payload, size)]


@given(
    st.binary(max_size=100), st.binary(max_size=100), st.integers(1, 30), st.randoms(use_true_random=False)
)
def test_interleaved_messages_are_joined(first: bytes, second: bytes, size: int, random: object) -> None:
    queues = [chunks_of("a", first, size), chunks_of("b", second, size)]
    assembler: ChunkAssembler[int] = ChunkAssembler()
    joined = {}
    place = 0
    while any(queues):
        queue = random.choice([queue for queue in queues if queue])  # type: ignore[attr-defined]
        metadata, part = queue.pop(0)
        result, abandoned = assembler.add(metadata, part, place, now=0.0)
        place += 1
        assert not abandoned
        if result is not None:
            joined[metadata.producer_name] = result
    assert joined["a"].payload == first
    assert joined["b"].payload == second
    assert sorted(joined["a"].places + joined["b"].places) == list(range(place))


def test_a_missing_chunk_gives_the_message_up() -> None:
    assembler: ChunkAssembler[int] = ChunkAssembler()
    chunks = chunks_of("a", b"abcdef", 2)
    assert assembler.add(*chunks[0], 0, now=0.0) == (None, [])
    result, abandoned = assembler.add(*chunks[2], 2, now=0.0)
    assert result is None
    assert abandoned[0].places == (0, 2)
    assert "missing" in abandoned[0].reason
    _, abandoned = assembler.add(*chunks[1], 1, now=0.0)
    assert "not seen" in abandoned[0].reason


def test_a_message_sent_again_from_its_start_is_joined_once() -> None:
    assembler: ChunkAssembler[int] = ChunkAssembler()
    chunks = chunks_of("a", b"abcd", 2)
    assembler.add(*chunks[0], 0, now=0.0)
    _, abandoned = assembler.add(*chunks[0], 1, now=0.0)
    assert abandoned[0].places == (0,)
    result, _ = assembler.add(*chunks[1], 2, now=0.0)
    assert result is not None
    assert result.payload == b"abcd"
    assert result.places == (1, 2)


def test_too_many_or_too_old_go_first() -> None:
    assembler: ChunkAssembler[str] = ChunkAssembler(max_pending=2, expiry_s=10.0)
    for name in ("a", "b"):
        assembler.add(*chunks_of(name, b"abcd", 2)[0], name, now=0.0)
    _, abandoned = assembler.add(*chunks_of("c", b"abcd", 2)[0], "c", now=1.0)
    assert [given_up.places for given_up in abandoned] == [("a",)]
    _, abandoned = assembler.add(*chunks_of("d", b"abcd", 2)[0], "d", now=10.5)
    assert [given_up.places for given_up in abandoned] == [("b",)]
