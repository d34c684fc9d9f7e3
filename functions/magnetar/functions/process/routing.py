"""Which partition of the output a result goes to: by its key, as official clients hash it.

Source: Pulsar's JavaStringHash, the clients' default hashing scheme.
"""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=65536)
def partition_of(key: bytes, partitions: int) -> int:
    """The partition, of `partitions`, for a key as it travels."""
    value = 0
    for unit in memoryview(key.decode("utf-8", "replace").encode("utf-16-le", "surrogatepass")).cast("H"):
        value = (31 * value + unit) & 0xFFFF_FFFF
    return (value & 0x7FFF_FFFF) % partitions
