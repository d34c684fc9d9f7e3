"""How a producer works."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from magnetar.protocol.pulsar_pb2 import CompressionType, ProducerAccessMode, Schema


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """Settings of a producer; the meaning of each is told by `Client.create_producer`."""

    compression: CompressionType.ValueType
    batching: bool = True
    batching_max_delay_s: float = 0.001
    batching_max_messages: int = 1000
    batching_max_bytes: int = 128 * 1024
    max_pending_messages: int = 0
    send_timeout_s: float = 30.0
    chunking: bool = False
    access_mode: ProducerAccessMode.ValueType = ProducerAccessMode.Shared
    initial_sequence_id: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    schema: Schema | None = None
