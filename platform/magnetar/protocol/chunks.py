"""Messages too large for one entry, cut into chunks and put together again. Pure.

Every chunk is an entry of its own with the same sequence id and uuid; compression is that of the whole.
Source: PIP-37, Pulsar binary protocol.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from magnetar.protocol.buffers import Buffer
from magnetar.protocol.pulsar_pb2 import MessageMetadata

Where = TypeVar("Where")


def cut_into_chunks(
    metadata: MessageMetadata, payload: bytes, chunk_bytes: int
) -> Iterator[tuple[MessageMetadata, memoryview]]:
    """The chunks of `payload`, of at most `chunk_bytes` each, with the metadata of each.

    `metadata` is that of the whole, and is left as it was.
    """
    total = len(payload)
    count = max(1, -(-total // chunk_bytes))
    view = memoryview(payload)
    for chunk_id in range(count):
        chunk = MessageMetadata()
        chunk.CopyFrom(metadata)
        chunk.uuid = f"{metadata.producer_name}-{metadata.sequence_id}"
        chunk.num_chunks_from_msg = count
        chunk.total_chunk_msg_size = total
        chunk.chunk_id = chunk_id
        yield chunk, view[chunk_id * chunk_bytes : (chunk_id + 1) * chunk_bytes]


@dataclass(slots=True)
class _Pending(Generic[Where]):
    """A message of which some chunks have come."""

    started: float
    chunks: int
    total: int
    parts: list[bytes] = field(default_factory=list)
    places: list[Where] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Assembled(Generic[Where]):
    """A message whose last chunk has come."""

    payload: bytes
    """Still compressed as its metadata say."""
    places: tuple[Where, ...]
    """Where its chunks lie, first to last."""


@dataclass(frozen=True, slots=True)
class Abandoned(Generic[Where]):
    """Chunks that will never make a message."""

    places: tuple[Where, ...]
    reason: str


class ChunkAssembler(Generic[Where]):
    """Puts messages together from chunks that may come interleaved.

    Holds at most `max_pending` incomplete messages and `max_bytes` of chunks, and none longer than
    `expiry_s`: what must go goes oldest first and is handed to the caller, who decides whether to
    acknowledge or to ask again.
    """

    def __init__(
        self, *, max_pending: int = 10, max_bytes: int = 256 * 1024 * 1024, expiry_s: float = 60.0
    ) -> None:
        self._max_pending = max_pending
        self._max_bytes = max_bytes
        self._expiry_s = expiry_s
        self._pending: OrderedDict[str, _Pending[Where]] = OrderedDict()
        self._bytes = 0

    def add(
        self, metadata: MessageMetadata, payload: Buffer, place: Where, now: float
    ) -> tuple[Assembled[Where] | None, list[Abandoned[Where]]]:
        """Take a chunk that lies at `place`; return the message it completes, and what was given up."""
        abandoned = self._expire(now)
        pending = self._pending.get(metadata.uuid)
        if metadata.chunk_id == 0:
            if pending is not None:  # Sent anew from its start, after a reconnection.
                abandoned.append(self._drop(metadata.uuid, "its first chunk came again"))
            pending = _Pending(now, metadata.num_chunks_from_msg, metadata.total_chunk_msg_size)
            self._pending[metadata.uuid] = pending
        elif pending is None:
            return None, [*abandoned, Abandoned((place,), "its first chunk was not seen")]
        elif metadata.chunk_id < len(pending.parts):
            return None, [*abandoned, Abandoned((place,), "chunk came twice")]
        elif metadata.chunk_id > len(pending.parts):
            pending.places.append(place)
            return None, [*abandoned, self._drop(metadata.uuid, "a chunk is missing")]
        pending.parts.append(bytes(payload))
        pending.places.append(place)
        self._bytes += len(payload)
        if len(pending.parts) == pending.chunks:
            del self._pending[metadata.uuid]
            self._bytes -= sum(map(len, pending.parts))
            whole = b"".join(pending.parts)
            if len(whole) != pending.total:
                reason = f"chunks make {len(whole)} bytes instead of {pending.total}"
                return None, [*abandoned, Abandoned(tuple(pending.places), reason)]
            return Assembled(whole, tuple(pending.places)), abandoned
        while len(self._pending) > self._max_pending or self._bytes > self._max_bytes:
            abandoned.append(self._drop(next(iter(self._pending)), "too many incomplete messages"))
        return None, abandoned

    def clear(self) -> None:
        """Forget everything: the broker will send it all again."""
        self._pending.clear()
        self._bytes = 0

    def _expire(self, now: float) -> list[Abandoned[Where]]:
        late = [uuid for uuid, pending in self._pending.items() if now - pending.started > self._expiry_s]
        return [self._drop(uuid, f"incomplete for {self._expiry_s} s") for uuid in late]

    def _drop(self, uuid: str, reason: str) -> Abandoned[Where]:
        pending = self._pending.pop(uuid)
        self._bytes -= sum(map(len, pending.parts))
        return Abandoned(tuple(pending.places), reason)
