"""Encode Arrow columns as record batches without a Python loop over records; the inverse of `to_arrow`.

    length | attributes 0 | timestamp delta 0 | offset delta | key length | key | value length | value | headers

All numbers except the attributes are zigzag varints. NumPy encodes them for all records at once, and Arrow joins
them with keys and values; the concatenated bytes of the result are the records.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.transmit.records.attributes import TRANSACTIONAL
from headwater.transmit.records.batch import BATCH_BYTES, RECORD_FRAME_BYTES
from headwater.transmit.records.batch_header import HEADER_BYTES, LENGTH_PREFIX_BYTES, Sender, seal_header
from headwater.transmit.records.codec import write_varint

_VARINT_BYTES_MAX = 5  # of a 32-bit number
NO_HEADERS = b"\x00"

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class EncodedRecords:
    """The encoded records of a batch, without its header."""

    records: memoryview
    count: int


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """The id and epoch of a producer, by which the log deduplicates its batches."""

    producer_id: int
    epoch: int


def encode_columns(
    keys: pa.Array | None, values: pa.Array, headers: pa.Array | None = None, *, size: int = BATCH_BYTES
) -> Iterator[EncodedRecords]:
    """Encode binary keys and values as batches of about `size` bytes; a larger record is alone in its batch.

    `headers` has the encoded headers of each record, from `encode_headers`.
    """
    count = len(values)
    if not count:
        return
    values = values.cast(pa.large_binary())
    keys = None if keys is None else keys.cast(pa.large_binary())
    key_sizes = np.full(count, -1, np.int64) if keys is None else _sizes(keys)
    value_sizes = _sizes(values)
    header_sizes = np.full(count, len(NO_HEADERS), np.int64) if headers is None else _sizes(headers)
    rough = np.maximum(key_sizes, 0) + np.maximum(value_sizes, 0) + header_sizes + RECORD_FRAME_BYTES
    starts = _cuts(rough, size)
    positions = np.arange(count) - np.repeat(starts, np.diff(np.append(starts, count)))
    deltas, key_lengths, value_lengths = _varints(positions), _varints(key_sizes), _varints(value_sizes)
    sizes = (
        2  # attributes and timestamp delta
        + deltas.sizes + key_lengths.sizes + value_lengths.sizes
        + np.maximum(key_sizes, 0) + np.maximum(value_sizes, 0) + header_sizes
    )  # fmt: skip
    nothing = _Varints(np.zeros((count, 2), np.uint8), np.ones((count, 2), bool), np.full(count, 2))
    head = _pieces(_varints(sizes), nothing, deltas, key_lengths)
    parts = [head, *([] if keys is None else [_filled(keys)]), _pieces(value_lengths), _filled(values)]
    tail = pa.scalar(NO_HEADERS, pa.large_binary()) if headers is None else headers.cast(pa.large_binary())
    records = pc.binary_join_element_wise(*parts, tail, pa.scalar(b"", pa.large_binary()))
    bounds = np.frombuffer(records.buffers()[1], np.int64)[records.offset :]
    data = memoryview(records.buffers()[2])
    for start, end in zip(starts, [*starts[1:], count], strict=True):
        yield EncodedRecords(data[bounds[start] : bounds[end]], int(end - start))


def encode_headers(headers: list[tuple[str, bytes]]) -> bytes:
    """Encode the headers of a record, which follow its value."""
    out = [write_varint(len(headers))]
    for name, value in headers:
        encoded = name.encode()
        out += [write_varint(len(encoded)), encoded, write_varint(len(value)), value]
    return b"".join(out)


def seal_batch(body: EncodedRecords, *, timestamp_ms: int, identity: ProducerIdentity, sequence: int) -> bytes:
    """Return a transactional record batch; `sequence` is the sequence number of its first record."""
    header = seal_header(
        body.records,
        attributes=TRANSACTIONAL,
        count=body.count,
        timestamp_ms=timestamp_ms,
        producer=Sender(identity.producer_id, identity.epoch, sequence),
    )
    assert len(header) == HEADER_BYTES > LENGTH_PREFIX_BYTES
    return b"".join((header, body.records))


def partitions_by_key(keys: pa.Array, count: int) -> Ints:
    """Return the partition of each key, by the default partitioner of Kafka clients."""
    if count == 1:
        return np.zeros(len(keys), np.int64)
    return (hashes_of_keys(keys) & 0x7FFFFFFF) % count


def hashes_of_keys(keys: pa.Array) -> Ints:
    """Return the Murmur2 hash of each key as Kafka clients compute it, unsigned 32 bits; it must never change."""
    return _murmur2(keys.cast(pa.large_binary())).astype(np.int64)


# -- varints --------------------------------------------------------------------------------------------------


class _Varints(NamedTuple):
    """One varint per row: the bytes of `matrix` where `used` is true."""

    matrix: Bytes
    used: npt.NDArray[np.bool_]
    sizes: Ints


def _varints(values: Ints) -> _Varints:
    zigzag = ((values << 1) ^ (values >> 63)).astype(np.uint64)
    shifts = np.arange(_VARINT_BYTES_MAX, dtype=np.uint64) * np.uint64(7)
    groups = zigzag[:, None] >> shifts
    used = groups > 0
    used[:, 0] = True
    matrix = (groups & np.uint64(0x7F)).astype(np.uint8)
    matrix[:, :-1] |= used[:, 1:].astype(np.uint8) << 7  # another byte follows
    return _Varints(matrix, used, used.sum(axis=1))


def _pieces(*columns: _Varints) -> pa.Array:
    """Concatenate varints row by row into one binary column."""
    matrix = np.concatenate([c.matrix for c in columns], axis=1)
    used = np.concatenate([c.used for c in columns], axis=1)
    offsets = np.zeros(len(matrix) + 1, np.int64)
    np.cumsum(used.sum(axis=1), out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(matrix[used])]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(matrix), buffers)


# -- inside ---------------------------------------------------------------------------------------------------


def _sizes(column: pa.Array) -> Ints:
    """Return the length of each value; -1 for null."""
    return np.asarray(pc.fill_null(pc.binary_length(column), -1)).astype(np.int64)


def _filled(column: pa.Array) -> pa.Array:
    return column.fill_null(b"") if column.null_count else column


def _cuts(sizes: Ints, most: int) -> Ints:
    """Return the first record of each batch, so that only batches of one record exceed `most` bytes."""
    ends = np.cumsum(sizes)
    starts = [0]
    while True:
        before = ends[starts[-1] - 1] if starts[-1] else 0
        at = int(np.searchsorted(ends, before + most, side="right"))
        at = max(at, starts[-1] + 1)
        if at >= len(sizes):
            return np.array(starts, np.int64)
        starts.append(at)


def _murmur2(keys: pa.Array) -> npt.NDArray[np.uint32]:
    """Compute Kafka's variant of MurmurHash2 for all keys: each round handles the next four bytes of every key."""
    lengths = _sizes(keys)
    starts = np.frombuffer(keys.buffers()[1], np.int64)[keys.offset : keys.offset + len(keys)]
    buffer: Any = keys.buffers()[2]
    data = np.frombuffer(buffer, np.uint8) if buffer is not None else np.zeros(0, np.uint8)
    data = np.append(data, np.zeros(4, np.uint8))  # so that the last key's tail can be read as a full word
    multiplier = np.uint32(0x5BD1E995)
    with np.errstate(over="ignore"):
        hashes = np.uint32(0x9747B28C) ^ lengths.astype(np.uint32)
        whole = lengths // 4
        for round_ in range(int(whole.max(initial=0))):
            rows = np.nonzero(whole > round_)[0]
            word = _words(data, starts[rows] + 4 * round_) * multiplier
            word = (word ^ (word >> np.uint32(24))) * multiplier
            hashes[rows] = hashes[rows] * multiplier ^ word
        rest = lengths % 4
        rows = np.nonzero(rest)[0]
        mask = (np.uint32(1) << (8 * rest[rows]).astype(np.uint32)) - np.uint32(1)
        tail = _words(data, starts[rows] + 4 * whole[rows]) & mask
        hashes[rows] = (hashes[rows] ^ tail) * multiplier
        hashes = (hashes ^ (hashes >> np.uint32(13))) * multiplier
        return hashes ^ (hashes >> np.uint32(15))


def _words(data: Bytes, at: Ints) -> npt.NDArray[np.uint32]:
    """Return the little-endian 32-bit word at each position."""
    found = data[at].astype(np.uint32)
    for n in (1, 2, 3):
        found |= data[at + n].astype(np.uint32) << np.uint32(8 * n)
    return found
