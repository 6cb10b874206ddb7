"""Decode record batches to Arrow columns with a single Python loop over records.

The loop reads each record's length, to find the next record. NumPy decodes all other fields for all records at
once, and Arrow gathers keys and values from the received bytes. The columns are those of Spark's Kafka source.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.errors import CorruptError
from headwater.record import TopicPartition
from headwater.transmit.records.attributes import LOG_APPEND_TIME, Buffer
from headwater.transmit.records.batch import decode_batch
from headwater.transmit.records.batch_header import HEADER_BYTES, BatchHeader, walk
from headwater.transmit.records.compression import decompress

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
    ]
)
SCHEMA_WITH_HEADERS = SCHEMA.append(pa.field("headers", HEADERS_TYPE))

_SHIFT_MAX = 63

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class _Field:
    """Start and length of a variable-length field of each record; length -1 for null."""

    start: Ints
    length: Ints


def to_arrow(
    data: Buffer, partition: TopicPartition, start: int, end: int, *, include_headers: bool = False
) -> pa.RecordBatch:
    """Decode the records with offsets in [start, end) from consecutive batches."""
    batches = [(at, h) for at, h in walk(data) if h.next_offset > start and h.base_offset < end]
    batches = [(at, h) for at, h in batches if not h.is_control and h.count]
    schema = SCHEMA_WITH_HEADERS if include_headers else SCHEMA
    if not batches:
        return _empty(schema)
    body, headers = _bodies(data, batches)
    bytes_ = np.frombuffer(body, dtype=np.uint8)
    offsets, timestamps, key, value = _fields(bytes_, _record_positions(body, headers), headers)
    low, high = np.searchsorted(offsets, [start, end])
    count = int(high - low)
    buffer = pa.py_buffer(body)
    columns = [
        _gather(buffer, key, low, high),
        _gather(buffer, value, low, high),
        pa.repeat(pa.scalar(partition.topic, pa.string()), count),
        pa.repeat(pa.scalar(partition.partition, pa.int32()), count),
        pa.array(offsets[low:high]),
        pa.array(timestamps[low:high] * 1000, pa.timestamp("us", tz="UTC")),
        pa.array(_timestamp_types(headers)[low:high]),
    ]
    if include_headers:
        columns.append(_headers(data, batches, start, end))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def _bodies(data: Buffer, batches: Sequence[tuple[int, BatchHeader]]) -> tuple[bytes, list[BatchHeader]]:
    """Return the decompressed records of all batches, concatenated, and the headers."""
    view = memoryview(data)
    bodies = [decompress(h.compression, view[at + HEADER_BYTES : at + h.size]) for at, h in batches]
    return b"".join(bodies), [h for _, h in batches]


def _record_positions(body: bytes, headers: Sequence[BatchHeader]) -> Ints:
    """Return the position of each record, at its length; the only loop over records."""
    positions: list[int] = []
    append = positions.append
    at = 0
    try:
        for _ in range(sum(h.count for h in headers)):
            append(at)
            length = body[at]
            at += 1
            if length >= 0x80:  # zigzag varint, of more than one byte
                shift = 7
                length &= 0x7F
                while True:
                    byte = body[at]
                    at += 1
                    length |= (byte & 0x7F) << shift
                    if byte < 0x80:
                        break
                    shift += 7
                    if shift > _SHIFT_MAX:
                        raise IndexError("a varint is longer than ten bytes")
            at += length >> 1
    except IndexError:
        at = -1
    if at != len(body):
        raise CorruptError(f"record batches at offset {headers[0].base_offset}: record lengths do not add up")
    return np.array(positions, dtype=np.int64)


def _fields(body: Bytes, positions: Ints, headers: Sequence[BatchHeader]) -> tuple[Ints, Ints, _Field, _Field]:
    """Return offsets, timestamps in milliseconds, and the positions of keys and values."""
    counts = [h.count for h in headers]
    ends = np.append(positions[1:], len(body))
    try:
        length, at = _varints(body, positions)
        timestamp_delta, at = _varints(body, at + 1)
        offset_delta, at = _varints(body, at)
        key = _field(body, at, ends)
        value = _field(body, key.start + np.maximum(key.length, 0), ends)
    except IndexError as error:
        raise CorruptError(f"record batches at offset {headers[0].base_offset}: a record is truncated") from error
    offsets = np.repeat(np.array([h.base_offset for h in headers], dtype=np.int64), counts) + offset_delta
    base_times = np.repeat(np.array([h.base_timestamp for h in headers], dtype=np.int64), counts)
    log_times = np.repeat(np.array([h.max_timestamp for h in headers], dtype=np.int64), counts)
    timestamps = np.where(_timestamp_types(headers) == 1, log_times, base_times + timestamp_delta)
    if np.any(length < 0) or np.any(offsets[1:] <= offsets[:-1]):
        raise CorruptError(f"record batches at offset {headers[0].base_offset}: offsets or lengths are invalid")
    return offsets, timestamps, key, value


def _field(body: Bytes, at: Ints, ends: Ints) -> _Field:
    """Return the fields whose lengths are at these positions; none of them is the last of its record."""
    length, start = _varints(body, at)
    if np.any(np.maximum(length, 0) >= ends - start):
        raise IndexError("a field extends beyond its record")
    return _Field(start, length)


def _varints(body: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """Read a zigzag varint at each position; return the values and the positions after them."""
    first = body[at].astype(np.int64)
    values = first & 0x7F
    after = at + 1
    longer = np.nonzero(first & 0x80)[0]
    shift = 7
    while longer.size:
        more = body[after[longer]].astype(np.int64)
        values[longer] |= (more & 0x7F) << shift
        after[longer] += 1
        longer = longer[more >= 0x80]
        shift += 7
        if shift > _SHIFT_MAX and longer.size:
            raise IndexError("a varint is longer than ten bytes")
    return (values >> 1) ^ -(values & 1), after


def _timestamp_types(headers: Sequence[BatchHeader]) -> npt.NDArray[np.int32]:
    kinds = np.array([1 if h.attributes & LOG_APPEND_TIME else 0 for h in headers], dtype=np.int32)
    return np.repeat(kinds, [h.count for h in headers])


def _gather(body: pa.Buffer, field: _Field, low: int, high: int) -> pa.Array:
    """Collect a field of all records into one Arrow column.

    Field starts and ends, alternating, are the offsets of a binary array over the whole body. Every second value
    of that array is a field, the others are the bytes between fields; Arrow takes the former.
    """
    starts, lengths = field.start[low:high], field.length[low:high]
    count = len(starts)
    if count == 0:
        return pa.array([], pa.binary())
    bounds = np.empty(2 * count, dtype=np.int32)
    bounds[0::2] = starts
    bounds[1::2] = starts + np.maximum(lengths, 0)
    everything = pa.BinaryArray.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), body])
    indexes = pa.array(np.arange(count, dtype=np.int64) * 2, mask=lengths < 0)
    return everything.take(indexes)


def _headers(data: Buffer, batches: Sequence[tuple[int, BatchHeader]], start: int, end: int) -> pa.Array:
    """Decode record headers one by one; they are rarely requested."""
    rows = [
        [{"key": name, "value": value} for name, value in record.headers]
        for at, _ in batches
        for record in decode_batch(data, at)
        if start <= record.offset < end
    ]
    return pa.array(rows, HEADERS_TYPE)
