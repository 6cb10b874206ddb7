"""Record batches: other clients read ours, we read theirs, and damage is detected."""

import struct

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from crc32c import crc32c
from hypothesis import assume, given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from headwater.errors import CorruptError, InvalidError
from headwater.record import Record
from headwater.transmit.records.attributes import Compression
from headwater.transmit.records.batch import decode_batch, encode_batch
from headwater.transmit.records.batch_header import (
    HEADER_BYTES,
    check_batch,
    check_batches,
    place,
    read_header,
    walk,
)

CRC_AT, CRC_COVERS_FROM = 17, 21
MAYBE_BYTES = st.none() | st.binary(max_size=300)
RECORDS = st.lists(
    st.builds(
        Record,
        key=MAYBE_BYTES,
        value=MAYBE_BYTES,
        headers=st.lists(st.tuples(st.text(max_size=20), MAYBE_BYTES), max_size=3).map(tuple),
        timestamp_ms=st.integers(-1, 2**45),
    ),
    min_size=1,
    max_size=20,
)
COMPRESSIONS = st.sampled_from(Compression)


def at_offsets(records: list[Record], base_offset: int) -> list[Record]:
    return [
        Record(key=r.key, value=r.value, headers=r.headers, timestamp_ms=r.timestamp_ms, offset=base_offset + n)
        for n, r in enumerate(records)
    ]


def with_valid_crc(batch: bytes) -> bytes:
    return batch[:CRC_AT] + struct.pack(">I", crc32c(batch[CRC_COVERS_FROM:])) + batch[CRC_COVERS_FROM:]


@given(RECORDS, COMPRESSIONS, st.integers(0, 2**60))
def test_encoded_records_are_decoded_unchanged(
    records: list[Record], compression: Compression, base_offset: int
) -> None:
    data = encode_batch(records, compression=compression, base_offset=base_offset)
    assert decode_batch(data) == at_offsets(records, base_offset)
    header = check_batch(data)
    assert (header.size, header.count, header.compression) == (len(data), len(records), compression)
    assert header.next_offset == base_offset + len(records)
    assert header.max_timestamp == max(r.timestamp_ms for r in records)


@given(RECORDS, COMPRESSIONS, st.sampled_from([AiokafkaBatch, KafkaPythonBatch]))
def test_other_readers_read_what_we_encode(records: list[Record], compression: Compression, reader: type) -> None:
    batch = reader(encode_batch(records, compression=compression, base_offset=7))
    assert batch.validate_crc()
    found = [
        Record(key=r.key, value=r.value, headers=tuple(r.headers), timestamp_ms=r.timestamp, offset=r.offset)
        for r in batch
    ]
    assert found == at_offsets(records, 7)


@given(RECORDS, COMPRESSIONS, st.sampled_from([AiokafkaBuilder, KafkaPythonBuilder]))
def test_we_read_what_other_builders_encode(records: list[Record], compression: Compression, kind: type) -> None:
    # For aiokafka's builder, -1 means that there is no timestamp yet, so it uses the next one as the first.
    assume(kind is not AiokafkaBuilder or records[0].timestamp_ms != -1)
    builder = kind(
        magic=2, compression_type=int(compression), is_transactional=0,
        producer_id=-1, producer_epoch=-1, base_sequence=-1, batch_size=1 << 20,
    )  # fmt: skip
    for n, record in enumerate(records):
        builder.append(n, record.timestamp_ms, record.key, record.value, list(record.headers))
    assert decode_batch(bytes(builder.build())) == at_offsets(records, 0)


@given(RECORDS, COMPRESSIONS, st.data())
def test_a_flipped_bit_is_detected_unless_the_crc_does_not_cover_it(
    records: list[Record], compression: Compression, data: st.DataObject
) -> None:
    batch = bytearray(encode_batch(records, compression=compression))
    at = data.draw(st.integers(0, len(batch) - 1), label="at")
    batch[at] ^= 1 << data.draw(st.integers(0, 7), label="bit")
    base_offset_or_leader_epoch = at < 8 or 12 <= at < 16
    if base_offset_or_leader_epoch:
        assert check_batch(batch).count == len(records)
    else:
        with pytest.raises(CorruptError):
            check_batch(batch)
        with pytest.raises(CorruptError):
            decode_batch(batch)


@given(RECORDS, COMPRESSIONS, st.data())
def test_a_truncated_batch_is_detected(
    records: list[Record], compression: Compression, data: st.DataObject
) -> None:
    batch = encode_batch(records, compression=compression)
    cut = batch[: data.draw(st.integers(0, len(batch) - 1))]
    with pytest.raises(CorruptError):
        check_batch(cut)
    assert list(walk(cut)) == []


@given(st.binary(max_size=200), st.integers(-2, 30), st.integers(0, 7))
def test_random_records_with_a_valid_crc_are_decoded_or_raise_a_corrupt_error(
    body: bytes, count: int, compression: int
) -> None:
    header = struct.pack(
        ">qiibIhiqqqhii", 0, HEADER_BYTES - 12 + len(body), -1, 2, 0, compression, 9, 0, 0, -1, -1, -1, count
    )
    try:
        records = decode_batch(with_valid_crc(header + body))
    except CorruptError:
        return
    assert len(records) == count


def test_an_unknown_compression_is_a_corrupt_batch() -> None:
    batch = bytearray(encode_batch([Record(value=b"v")]))
    batch[22] = 5
    with pytest.raises(CorruptError, match="compression"):
        check_batch(with_valid_crc(bytes(batch)))


def test_bytes_after_the_last_record_are_detected() -> None:
    batch = bytearray(encode_batch([Record(value=b"v"), Record(value=b"w")]))
    struct.pack_into(">i", batch, 57, 1)
    with pytest.raises(CorruptError):
        decode_batch(with_valid_crc(bytes(batch)))


def test_a_field_that_overlaps_the_next_record_is_detected() -> None:
    batch = bytearray(encode_batch([Record(value=b"v"), Record(value=b"w")]))
    value_length_at = HEADER_BYTES + 5
    assert batch[value_length_at] == 2
    batch[value_length_at] = 8
    with pytest.raises(CorruptError):
        decode_batch(with_valid_crc(bytes(batch)))


def test_setting_the_offset_of_a_batch_keeps_its_crc() -> None:
    batch = bytearray(encode_batch([Record(value=b"v")]))
    place(batch, 0, base_offset=2**40, leader_epoch=3)
    header = check_batch(batch)
    assert (header.base_offset, header.leader_epoch) == (2**40, 3)


def test_consecutive_batches_are_walked_and_checked() -> None:
    first, second = (encode_batch([Record(value=b"v")], base_offset=n) for n in (0, 1))
    assert [h.base_offset for h in check_batches(first + second)] == [0, 1]
    assert [(at, h.base_offset) for at, h in walk(first + second + second[:-1])] == [(0, 0), (len(first), 1)]
    with pytest.raises(CorruptError):
        check_batches(first + second[:-1])


@pytest.mark.parametrize("length", [-(2**31), -12, -1, 0, 48])
def test_walking_over_an_invalid_length_raises_a_corrupt_error(length: int) -> None:
    batch = bytearray(encode_batch([Record(value=b"v")]))
    struct.pack_into(">i", batch, 8, length)
    with pytest.raises(CorruptError):
        list(walk(batch))


def test_a_batch_without_records_is_rejected() -> None:
    with pytest.raises(InvalidError):
        encode_batch([])


def test_the_time_of_the_log_replaces_that_of_the_records() -> None:
    batch = bytearray(encode_batch([Record(timestamp_ms=5), Record(timestamp_ms=3)]))
    batch[22] |= 0x08
    struct.pack_into(">q", batch, 35, 99)
    stamped = with_valid_crc(bytes(batch))
    assert read_header(stamped).max_timestamp == 99
    assert [r.timestamp_ms for r in decode_batch(stamped)] == [99, 99]
