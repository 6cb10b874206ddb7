"""Transaction markers, and readers that skip aborted transactions."""

import struct

import kafka.record
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from headwater.record import Record
from headwater.transmit.records.attributes import TRANSACTIONAL
from headwater.transmit.records.batch import decode_batch, encode_batch
from headwater.transmit.records.batch_header import check_batch, place, walk
from headwater.transmit.records.control import Marker, drop_aborted, encode_marker, read_marker


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1), st.booleans(), st.integers(0, 2**31 - 1))
def test_a_marker_is_read_as_it_was_written(producer: int, epoch: int, is_commit: bool, coordinator: int) -> None:
    marker = Marker(producer_id=producer, producer_epoch=epoch, is_commit=is_commit, coordinator_epoch=coordinator)
    data = encode_marker(marker, timestamp_ms=5)
    header = check_batch(data)
    assert header.is_control
    assert header.is_transactional
    assert read_marker(data) == marker


def test_kafka_python_reads_our_marker() -> None:
    data = encode_marker(Marker(producer_id=1, producer_epoch=2, is_commit=True), timestamp_ms=5)
    batch = kafka.record.MemoryRecords(bytes(data)).next_batch()
    assert (batch.is_control_batch, batch.is_transactional) == (True, True)
    (record,) = batch
    assert (record.abort, record.commit) == (False, True)


def transactional(value: bytes, producer: int) -> bytearray:
    data = bytearray(encode_batch([Record(value=value)]))
    struct.pack_into(">h", data, 21, TRANSACTIONAL)
    struct.pack_into(">qhi", data, 43, producer, 0, 0)
    struct.pack_into(">I", data, 17, crc32c(data[21:]))
    return data


def ended(producer: int, *, is_commit: bool) -> bytearray:
    return encode_marker(Marker(producer_id=producer, producer_epoch=0, is_commit=is_commit), timestamp_ms=0)


def log_of(*batches: bytearray) -> bytes:
    for offset, batch in enumerate(batches):
        place(batch, 0, base_offset=offset, leader_epoch=0)
    return b"".join(batches)


def values(data: bytes) -> list[bytes | None]:
    return [r.value for at, h in walk(data) if not h.is_control for r in decode_batch(data, at)]


def test_only_the_aborted_transaction_of_a_producer_is_dropped() -> None:
    plain = bytearray(encode_batch([Record(value=b"plain")]))
    data = log_of(
        transactional(b"one", 1), transactional(b"two", 2), plain, ended(1, is_commit=False),
        transactional(b"three", 1), ended(2, is_commit=True), ended(1, is_commit=True),
    )  # fmt: skip
    assert values(drop_aborted(data, [(1, 0)])) == [b"two", b"plain", b"three"]
    assert drop_aborted(data, []) is data


def test_two_aborts_of_one_producer_in_a_row() -> None:
    data = log_of(
        transactional(b"a", 1), ended(1, is_commit=False), transactional(b"b", 1), ended(1, is_commit=True),
        transactional(b"c", 1), ended(1, is_commit=False),
    )  # fmt: skip
    assert values(drop_aborted(data, [(1, 4), (1, 0)])) == [b"b"]
