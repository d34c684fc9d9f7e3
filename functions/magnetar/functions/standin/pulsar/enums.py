"""The official client's enumerations that functions pass to their context."""

from enum import Enum, IntEnum


class CompressionType(IntEnum):
    NONE = 0
    LZ4 = 1
    ZLib = 2
    ZSTD = 3
    SNAPPY = 4


class Result(Enum):
    Ok = "Ok"
