"""Columns contain the same records as the batches."""

import struct
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import CorruptError
from headwater.record import Record, TopicPartition
from headwater.transmit.records.attributes import Compression
from headwater.transmit.records.batch import decode_batch, encode_batch
from headwater.transmit.records.batch_header import HEADER_BYTES, walk
from headwater.transmit.records.codec import write_varint
from headwater.transmit.records.to_arrow import SCHEMA, SCHEMA_WITH_HEADERS, to_arrow

ORDERS = TopicPartition("orders", 3)
CONTROL, LOG_APPEND_TIME = 0x20, 0x08
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

MAYBE_BYTES = st.none() | st.binary(max_size=40) | st.binary(min_size=100, max_size=200)
BATCHES = st.lists(
    st.tuples(
        st.lists(
            st.builds(
                Record,
                key=MAYBE_BYTES,
                value=MAYBE_BYTES,
                headers=st.lists(st.tuples(st.text(max_size=5), MAYBE_BYTES), max_size=2).map(tuple),
                timestamp_ms=st.integers(-1, 2**41),
            ),
            min_size=1,
            max_size=8,
        ),
        st.sampled_from(Compression),
        st.sampled_from([0, 0, CONTROL, LOG_APPEND_TIME]),
        st.integers(0, 3),  # number of offsets skipped before the batch
    ),
    max_size=5,
)


def mark(batch: bytes, attributes: int) -> bytes:
    """Set more attributes, and recompute the CRC."""
    changed = bytearray(batch)
    changed[22] |= attributes
    struct.pack_into(">I", changed, 17, crc32c(changed[21:]))
    return bytes(changed)


def build(batches: list[tuple[list[Record], Compression, int, int]]) -> tuple[bytes, int]:
    data, offset = b"", 5
    for records, compression, attributes, gap in batches:
        offset += gap
        data += mark(encode_batch(records, compression=compression, base_offset=offset), attributes)
        offset += len(records)
    return data, offset


def rows_one_by_one(data: bytes, start: int, end: int) -> list[dict[str, object]]:
    return [
        {
            "key": record.key,
            "value": record.value,
            "topic": ORDERS.topic,
            "partition": ORDERS.partition,
            "offset": record.offset,
            "timestamp": EPOCH + timedelta(milliseconds=record.timestamp_ms),
            "timestampType": 1 if header.attributes & LOG_APPEND_TIME else 0,
            "headers": [{"key": name, "value": value} for name, value in record.headers],
        }
        for at, header in walk(data)
        if not header.is_control
        for record in decode_batch(data, at)
        if start <= record.offset < end
    ]


@given(BATCHES, st.integers(0, 60), st.integers(0, 60), st.booleans())
def test_columns_equal_the_records_one_by_one(
    batches: list[tuple[list[Record], Compression, int, int]], start: int, length: int, with_headers: bool
) -> None:
    data, _ = build(batches)
    table = to_arrow(data, ORDERS, start, start + length, include_headers=with_headers)
    table.validate(full=True)
    expected = rows_one_by_one(data, start, start + length)
    if not with_headers:
        for row in expected:
            del row["headers"]
    assert table.schema == (SCHEMA_WITH_HEADERS if with_headers else SCHEMA)
    assert table.to_pylist() == expected


@given(BATCHES, st.integers(0, 60))
def test_adjacent_ranges_contain_every_record_once(
    batches: list[tuple[list[Record], Compression, int, int]], middle: int
) -> None:
    data, end = build(batches)
    halves = pa.Table.from_batches([to_arrow(data, ORDERS, 0, middle), to_arrow(data, ORDERS, middle, end)])
    assert halves.to_pylist() == to_arrow(data, ORDERS, 0, max(end, middle)).to_pylist()


@given(BATCHES, st.data())
def test_a_truncated_last_batch_is_skipped(
    batches: list[tuple[list[Record], Compression, int, int]], data: st.DataObject
) -> None:
    whole, end = build(batches)
    last = encode_batch([Record(value=b"last")], base_offset=end)
    cut = whole + last[: data.draw(st.integers(0, len(last) - 1))]
    assert to_arrow(cut, ORDERS, 0, end + 1) == to_arrow(whole, ORDERS, 0, end)


@given(
    st.lists(st.builds(Record, key=MAYBE_BYTES, value=MAYBE_BYTES), min_size=1, max_size=6),
    st.binary(min_size=1, max_size=12),
    st.data(),
)
def test_overwritten_records_raise_a_corrupt_error_or_yield_as_many_rows(
    records: list[Record], noise: bytes, data: st.DataObject
) -> None:
    batch = bytearray(encode_batch(records))
    at = data.draw(st.integers(HEADER_BYTES, len(batch) - 1), label="at")
    batch[at : at + len(noise)] = noise[: len(batch) - at]
    struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    try:
        table = to_arrow(bytes(batch), ORDERS, 0, 100)
        table.validate(full=True)
        found = decode_batch(bytes(batch))
    except CorruptError:
        return
    # If both accept it, they return the same.
    assert [r["offset"] for r in table.to_pylist()] == [r.offset for r in found if 0 <= r.offset < 100]
    kept = [(r.key, r.value) for r in found if 0 <= r.offset < 100]
    assert [(r["key"], r["value"]) for r in table.to_pylist()] == kept


def batch_of(body: bytes, count: int) -> bytes:
    batch = bytearray(encode_batch([Record(value=b"v")])[:HEADER_BYTES] + body)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">i", batch, 57, count)
    struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    return bytes(batch)


def record_of(*fields: bytes) -> bytes:
    body = b"\x00" + b"".join(fields)
    return write_varint(len(body)) + body


ZERO, NULL = write_varint(0), write_varint(-1)


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (b"\xff" * 2_000_000, 1),  # a length without an end
        (write_varint(-1), 1),
        (write_varint(-8) + b"x" * 7, 1),
        (write_varint(2**40) + b"x" * 7, 1),
        (write_varint(0), 1),
        (record_of(ZERO, ZERO, write_varint(2**62), b"k"), 1),  # a key longer than the whole batch
        (record_of(ZERO, ZERO, write_varint(-(2**62)), NULL, ZERO) + record_of(ZERO), 2),
        (record_of(ZERO, ZERO, NULL, write_varint(9), b"v") + record_of(ZERO, ZERO, NULL, NULL, ZERO), 2),
        (record_of(ZERO, ZERO, write_varint(9), b"k") + record_of(ZERO, ZERO, NULL, NULL, ZERO), 2),
        (record_of(ZERO, b"\xff" * 30), 1),
        (record_of(ZERO, ZERO, NULL, NULL, ZERO), 2),
        (record_of(ZERO, ZERO, NULL, NULL, ZERO) * 2, 1),
    ],
    ids=[
        "endless length", "length minus one", "negative length", "length beyond the end", "empty record",
        "key beyond the end", "cut record", "value reaches into the next record",
        "key reaches into the next record", "endless offset", "too few records", "too many records",
    ],
)  # fmt: skip
def test_corrupt_lengths_raise_a_corrupt_error(body: bytes, count: int) -> None:
    with pytest.raises(CorruptError):
        to_arrow(batch_of(body, count), ORDERS, 0, 100)


def test_offsets_that_do_not_ascend_raise_a_corrupt_error() -> None:
    with pytest.raises(CorruptError):
        to_arrow(batch_of(record_of(ZERO, ZERO, NULL, NULL, ZERO) * 2, 2), ORDERS, 0, 100)


@pytest.mark.parametrize("length", [-12, -1, 0, 48])
def test_an_invalid_batch_length_raises_a_corrupt_error(length: int) -> None:
    batch = bytearray(encode_batch([Record(value=b"v")]))
    struct.pack_into(">i", batch, 8, length)
    with pytest.raises(CorruptError):
        to_arrow(batch, ORDERS, 0, 10)


def test_an_empty_range_yields_no_rows() -> None:
    data = encode_batch([Record(value=b"v")], base_offset=4)
    assert to_arrow(b"", ORDERS, 0, 10).num_rows == 0
    assert to_arrow(data, ORDERS, 5, 10).num_rows == 0
    assert to_arrow(data, ORDERS, 0, 4, include_headers=True).schema == SCHEMA_WITH_HEADERS
