"""The fast check for keys agrees with reading the records."""

import contextlib
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import CorruptError
from headwater.record import Record
from headwater.transmit.records.attributes import Compression
from headwater.transmit.records.batch import encode_batch
from headwater.transmit.records.batch_header import HEADER_BYTES, read_header
from headwater.transmit.records.rewrite import all_have_keys, raw_records

RECORDS = st.builds(
    Record,
    key=st.binary(max_size=200) | st.none(),
    value=st.binary(max_size=200) | st.none(),
    timestamp_ms=st.integers(0, 2**40),
    headers=st.lists(st.tuples(st.text(max_size=3), st.binary(max_size=3)), max_size=2).map(tuple),
)
KEYED = st.builds(replace, RECORDS, key=st.binary(max_size=200))


def all_have_keys_when_read(data: bytes) -> bool:
    with contextlib.suppress(CorruptError):
        return all(record.key is not None for record in raw_records(data, 0, read_header(data)))
    return False


@given(st.lists(RECORDS, min_size=1, max_size=20), st.sampled_from([Compression.NONE, Compression.ZSTD]))
def test_the_fast_check_agrees_with_the_records(records: list[Record], compression: Compression) -> None:
    data = encode_batch(records, compression=compression)
    assert all_have_keys(data, 0, read_header(data)) == all(record.key is not None for record in records)


def test_the_fast_check_accepts_no_damaged_batch_that_reading_rejects() -> None:
    """The fast check may reject more than reading does, but never less."""
    accepted = 0

    @given(st.lists(KEYED, min_size=1, max_size=5), st.integers(0, 300), st.integers(0, 255))
    def check(records: list[Record], at: int, byte: int) -> None:
        nonlocal accepted
        data = bytearray(encode_batch(records))
        if HEADER_BYTES + at < len(data):
            data[HEADER_BYTES + at] = byte
        if all_have_keys(data, 0, read_header(data)):
            accepted += 1
            assert all_have_keys_when_read(bytes(data))

    check()
    assert accepted > 10
