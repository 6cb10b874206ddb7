"""The attribute bits of a record batch."""

from enum import IntEnum

Buffer = bytes | bytearray | memoryview
"""Bytes of batches, wherever they are: in a frame, in a file, or just encoded."""

COMPRESSION_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20


class Compression(IntEnum):
    """The lowest three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4
