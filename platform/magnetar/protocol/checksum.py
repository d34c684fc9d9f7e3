"""CRC32-C (Castagnoli), the checksum of messages and of stored entries."""

from __future__ import annotations

from collections.abc import Callable

from google_crc32c import extend as _extend_any

from magnetar.protocol.buffers import Buffer

_extend: Callable[[int, bytes], int] = _extend_any


def crc32c(*buffers: Buffer, initial: int = 0) -> int:
    """The checksum of `buffers` read one after another, as an unsigned 32-bit number.

    `initial` continues an earlier result. `bytes` are read in place; other buffers are copied once,
    because the library reads nothing else.
    """
    checksum = initial
    for buffer in buffers:
        checksum = _extend(checksum, buffer if type(buffer) is bytes else bytes(buffer))
    return checksum
