"""The five compressions of a message's payload, in the raw forms that official clients read and write.

LZ4 and Snappy are bare blocks without a length in front, ZLIB is a zlib stream, ZSTD one frame. The
size to expect comes from the message's metadata; nothing larger is ever allocated or accepted. The
libraries are imported when first used.
"""

from __future__ import annotations

import zlib

from magnetar.protocol.buffers import Buffer
from magnetar.protocol.errors import CompressionError
from magnetar.protocol.pulsar_pb2 import LZ4, NONE, SNAPPY, ZLIB, ZSTD, CompressionType

MAX_UNCOMPRESSED_BYTES = 128 * 1024 * 1024
"""What a payload may claim to expand to, unless told otherwise."""

_NAMES: dict[str, CompressionType.ValueType] = {
    "none": NONE,
    "lz4": LZ4,
    "zlib": ZLIB,
    "zstd": ZSTD,
    "snappy": SNAPPY,
}


def compression_type(name: str) -> CompressionType.ValueType:
    """The protocol's number of `none`, `lz4`, `zlib`, `zstd` or `snappy`.

    Raises:
        CompressionError: another name.
    """
    try:
        return _NAMES[name.lower()]
    except KeyError:
        raise CompressionError(f"unknown compression {name!r}: use one of {', '.join(_NAMES)}") from None


def compress(kind: CompressionType.ValueType, data: Buffer) -> bytes:
    """`data` in the compressed form `kind`."""
    if kind == NONE:
        return bytes(data)
    if kind == ZLIB:
        return zlib.compress(data)
    import cramjam

    if kind == LZ4:
        return bytes(cramjam.lz4.compress_block(data, store_size=False))
    if kind == ZSTD:
        return bytes(cramjam.zstd.compress(data, 3))
    if kind == SNAPPY:
        return bytes(cramjam.snappy.compress_raw(data))
    raise CompressionError(f"unknown compression {kind}")


def decompress(
    kind: CompressionType.ValueType,
    data: Buffer,
    uncompressed_size: int,
    *,
    limit: int = MAX_UNCOMPRESSED_BYTES,
) -> bytes:
    """The data behind `data`, which must come out at exactly `uncompressed_size` bytes.

    Raises:
        CompressionError: the data are corrupt, come out at another size, or claim more than `limit`.
    """
    if kind == NONE:
        return bytes(data)
    if uncompressed_size > limit:
        raise CompressionError(f"payload claims {uncompressed_size} bytes uncompressed; the limit is {limit}")
    if uncompressed_size == 0 and not data:
        return b""
    if kind == ZLIB:
        return _decompress_zlib(data, uncompressed_size)
    import cramjam

    try:
        decompress_into = {
            LZ4: cramjam.lz4.decompress_block_into,
            ZSTD: cramjam.zstd.decompress_into,
            SNAPPY: cramjam.snappy.decompress_raw_into,
        }[kind]
    except KeyError:
        raise CompressionError(f"unknown compression {kind}") from None
    output = bytearray(uncompressed_size)
    try:
        written = decompress_into(data, output)
    except cramjam.DecompressionError as error:
        raise CompressionError(
            f"payload cannot be decompressed to {uncompressed_size} bytes: {error}"
        ) from None
    if written != uncompressed_size:
        raise CompressionError(f"payload decompressed to {written} bytes instead of {uncompressed_size}")
    return bytes(output)


def _decompress_zlib(data: Buffer, uncompressed_size: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        # One byte of room more: a stream that goes on past its claim must show it.
        output = stream.decompress(data, uncompressed_size + 1)
    except zlib.error as error:
        raise CompressionError(f"payload cannot be decompressed: {error}") from None
    if len(output) != uncompressed_size or not stream.eof:
        raise CompressionError(f"payload does not decompress to the {uncompressed_size} bytes it claims")
    return output
