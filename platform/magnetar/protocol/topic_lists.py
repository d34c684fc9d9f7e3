"""The hash by which client and broker compare lists of topics. Source: Pulsar TopicList."""

from __future__ import annotations

from collections.abc import Iterable

from magnetar.protocol.checksum import crc32c


def topics_hash(topics: Iterable[str]) -> str:
    """CRC32-C of the sorted names joined by commas, as hexadecimal digits of its little-endian bytes."""
    joined = ",".join(sorted(topics)).encode()
    return crc32c(joined).to_bytes(4, "little").hex()
