"""The four compressions a record batch may have, through PyArrow, which every installation has anyway.

The broker passes compressed batches through, so PyArrow (a large import) is loaded on first use only.
Java's snappy is framed ("xerial"); the other three are the plain formats.
"""

import struct
from enum import IntEnum

from headwater.errors import CorruptError
from headwater.transmit.codec import read_uvarint

Buffer = bytes | bytearray | memoryview


class Compression(IntEnum):
    """The lowest three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_INT = struct.Struct(">i")
_SNAPPY_RATIO_MAX = 64  # the longest copy gives 64 bytes, and no copy takes less than one


def compress(compression: Compression, data: bytes) -> bytes:
    """Compress the records of a batch."""
    if compression is Compression.NONE:
        return data
    import pyarrow as pa

    if compression is Compression.SNAPPY:
        return pa.compress(data, codec="snappy", asbytes=True)  # type: ignore[no-any-return]
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, compression.name.lower()) as out:
        out.write(data)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def decompress(compression: Compression, data: Buffer) -> Buffer:
    """Decompress the records of a batch; a CorruptError if they are damaged."""
    if compression is Compression.NONE:
        return data
    import pyarrow as pa

    try:
        if compression is Compression.SNAPPY:
            return _decompress_snappy(data)
        stream = pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), compression.name.lower())
        return stream.read()  # type: ignore[no-any-return]
    except (OSError, IndexError, ValueError, struct.error) as error:
        raise CorruptError(f"records do not decompress as {compression.name.lower()}: {error}") from error


def _decompress_snappy(data: Buffer) -> bytes:
    view = memoryview(data)
    if bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _decompress_snappy_block(view)
    blocks = []
    at = _XERIAL_HEADER_BYTES
    while at < len(view):
        (length,) = _INT.unpack_from(view, at)
        at += _INT.size
        blocks.append(_decompress_snappy_block(view[at : at + length]))
        at += length
    return b"".join(blocks)


def _decompress_snappy_block(block: memoryview) -> bytes:
    import pyarrow as pa

    size, _ = read_uvarint(block, 0)  # a raw snappy block starts with its decompressed size
    if size > _SNAPPY_RATIO_MAX * len(block):
        raise ValueError(f"a block of {len(block)} bytes says it holds {size}")
    return pa.decompress(block, decompressed_size=size, codec="snappy", asbytes=True)  # type: ignore[no-any-return]
