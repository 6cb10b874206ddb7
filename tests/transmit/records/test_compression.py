"""Compressed records: compatible with the libraries of other clients."""

import contextlib
import gzip
import struct

import cramjam
import lz4.frame
import pytest
import snappy
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import CorruptError
from headwater.transmit.records.attributes import Compression
from headwater.transmit.records.compression import compress, decompress, is_available

DATA = st.binary(max_size=3000) | st.binary(min_size=1, max_size=20).map(lambda piece: piece * 5000)
COMPRESSED = [c for c in Compression if c is not Compression.NONE]

DECOMPRESSORS = {
    Compression.GZIP: gzip.decompress,
    Compression.SNAPPY: snappy.decompress,
    Compression.LZ4: lz4.frame.decompress,
    Compression.ZSTD: lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data),
}
COMPRESSORS = {
    Compression.GZIP: gzip.compress,
    Compression.SNAPPY: snappy.compress,
    Compression.LZ4: lz4.frame.compress,
    Compression.ZSTD: zstandard.ZstdCompressor().compress,
}


def xerial(data: bytes, block_bytes: int) -> bytes:
    """Return data compressed as snappy with the framing of Java clients."""
    framed = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    for at in range(0, len(data), block_bytes):
        block = bytes(cramjam.snappy.compress_raw(data[at : at + block_bytes]))
        framed += struct.pack(">i", len(block)) + block
    return framed


@given(DATA, st.sampled_from(Compression))
def test_compressed_data_is_decompressed_unchanged(data: bytes, compression: Compression) -> None:
    assert decompress(compression, memoryview(compress(compression, data))) == data


@given(DATA, st.sampled_from(COMPRESSED))
def test_other_libraries_read_what_we_compress(data: bytes, compression: Compression) -> None:
    assert DECOMPRESSORS[compression](compress(compression, data)) == data


@given(DATA)
def test_lz4_has_the_independent_blocks_that_java_requires(data: bytes) -> None:
    frame = lz4.frame.get_frame_info(compress(Compression.LZ4, data))
    assert not frame["block_linked"]
    assert frame["block_size"] == 64 << 10


def test_every_compression_is_available() -> None:
    assert all(map(is_available, Compression))


@given(DATA, st.sampled_from(COMPRESSED))
def test_we_read_what_other_libraries_compress(data: bytes, compression: Compression) -> None:
    assert decompress(compression, COMPRESSORS[compression](data)) == data


@given(DATA, st.integers(1, 4000))
def test_snappy_framed_by_java_is_read(data: bytes, block_bytes: int) -> None:
    assert decompress(Compression.SNAPPY, xerial(data, max(block_bytes, len(data) // 20))) == data


@given(st.binary(max_size=100), st.sampled_from(COMPRESSED))
def test_random_bytes_decompress_or_raise_a_corrupt_error(data: bytes, compression: Compression) -> None:
    with contextlib.suppress(CorruptError):
        assert isinstance(decompress(compression, data), bytes)


@pytest.mark.parametrize("compression", COMPRESSED)
def test_truncated_data_raises_a_corrupt_error(compression: Compression) -> None:
    data = compress(compression, bytes(range(256)) * 20)
    for length in (1, len(data) // 2, len(data) - 1):
        with pytest.raises(CorruptError):
            decompress(compression, data[:length])


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 20,  # a size without an end
        b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f" + b"x" * 10,  # a size of 2**63 bytes
        xerial(b"abc", 3)[:-1],
        xerial(b"abc", 3)[:16] + struct.pack(">i", -5),
        xerial(b"abc", 3)[:18],
    ],
)
def test_snappy_with_invalid_sizes_raises_a_corrupt_error(data: bytes) -> None:
    with pytest.raises(CorruptError):
        decompress(Compression.SNAPPY, data)
