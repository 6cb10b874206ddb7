"""The four compression codecs of record batches, implemented with PyArrow, which every installation has.

The broker usually passes compressed batches through unchanged, so PyArrow, a large import, is loaded on first use.
Java clients frame snappy ("xerial"); the other three codecs use their plain formats.
"""

import struct

from headwater.errors import CorruptError
from headwater.transmit.records.attributes import Buffer, Compression
from headwater.transmit.records.codec import read_uvarint

_LZ4_FRAME_HEAD = bytes.fromhex("04224d18 60 40 82")
"""Magic, version 1 with independent blocks of up to 64 KiB, and the checksum of both, as Java clients write it."""
_LZ4_BLOCK_BYTES = 64 << 10
_LZ4_UNCOMPRESSED = 1 << 31
_LITTLE_INT = struct.Struct("<I")
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_INT = struct.Struct(">i")
_SNAPPY_RATIO_MAX = 64  # a copy element yields at most 64 bytes and takes at least one


def is_available(compression: Compression) -> bool:
    """Return whether the installed PyArrow was built with the codec."""
    if compression is Compression.NONE:
        return True
    import pyarrow as pa

    names = {Compression.LZ4: ("lz4", "lz4_raw")}.get(compression, (compression.name.lower(),))
    return all(pa.Codec.is_available(name) for name in names)


def compress(compression: Compression, data: bytes) -> bytes:
    """Compress the records of a batch."""
    if compression is Compression.NONE:
        return data
    import pyarrow as pa

    if compression is Compression.SNAPPY:
        return pa.compress(data, codec="snappy", asbytes=True)  # type: ignore[no-any-return]
    if compression is Compression.LZ4:
        return _compress_lz4(data)
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, compression.name.lower()) as out:
        out.write(data)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _compress_lz4(data: bytes) -> bytes:
    """Write a frame of independent blocks; PyArrow's frames have linked blocks, which Java clients reject."""
    import pyarrow as pa

    parts = [_LZ4_FRAME_HEAD]
    for at in range(0, len(data), _LZ4_BLOCK_BYTES):
        block = data[at : at + _LZ4_BLOCK_BYTES]
        packed = pa.compress(block, codec="lz4_raw", asbytes=True)
        if len(packed) < len(block):
            parts += [_LITTLE_INT.pack(len(packed)), packed]
        else:
            parts += [_LITTLE_INT.pack(len(block) | _LZ4_UNCOMPRESSED), block]
    return b"".join((*parts, _LITTLE_INT.pack(0)))


def decompress(compression: Compression, data: Buffer) -> Buffer:
    """Decompress the records of a batch; raise CorruptError if they are damaged."""
    if compression is Compression.NONE:
        return data
    import pyarrow as pa

    try:
        if compression is Compression.SNAPPY:
            return _decompress_snappy(data)
        stream = pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), compression.name.lower())
        return stream.read()  # type: ignore[no-any-return]
    except (OSError, IndexError, ValueError, struct.error) as error:
        raise CorruptError(f"cannot decompress records as {compression.name.lower()}: {error}") from error


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
        raise ValueError(f"a block of {len(block)} bytes has a decompressed size of {size}")
    return pa.decompress(block, decompressed_size=size, codec="snappy", asbytes=True)  # type: ignore[no-any-return]
