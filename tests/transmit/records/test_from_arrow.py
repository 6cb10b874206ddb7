from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2

from headwater.transmit.records import from_arrow as encoding
from headwater.transmit.records.batch import decode_batch
from headwater.transmit.records.batch_header import read_header
from headwater.transmit.records.from_arrow import (
    ProducerIdentity,
    encode_columns,
    encode_headers,
    partitions_by_key,
    seal_batch,
)

FIELDS = st.one_of(st.none(), st.binary(max_size=300))
RECORDS = st.lists(st.tuples(FIELDS, FIELDS), max_size=200)


def decoded(bodies: Any) -> list[tuple[bytes | None, bytes | None, Any, int]]:
    found = []
    sequence = 0
    for body in bodies:
        batch = seal_batch(body, timestamp_ms=7, identity=ProducerIdentity(3, 4), sequence=sequence)
        header = read_header(batch)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (3, 4, sequence)
        assert header.is_transactional
        records = decode_batch(batch)
        assert [r.offset for r in records] == list(range(len(records)))
        sequence += len(records)
        found += [(r.key, r.value, r.headers, r.timestamp_ms) for r in records]
    return found


@given(RECORDS)
def test_encoded_columns_are_decoded_unchanged(records: list[tuple[bytes | None, bytes | None]]) -> None:
    keys = pa.array([k for k, _ in records], pa.binary())
    values = pa.array([v for _, v in records], pa.binary())
    assert decoded(encode_columns(keys, values)) == [(k, v, (), 7) for k, v in records]
    assert decoded(encode_columns(keys[1:], values[1:])) == [(k, v, (), 7) for k, v in records[1:]]


def test_records_without_keys_and_with_headers() -> None:
    headers = [("op", b"c")], [("op", b"d"), ("x", b"")]
    tails = pa.array([encode_headers(h) for h in headers], pa.binary())
    found = decoded(encode_columns(None, pa.array([b"a", b"b"], pa.binary()), tails))
    assert found == [(None, b"a", tuple(headers[0]), 7), (None, b"b", tuple(headers[1]), 7)]


def test_many_records_are_several_batches() -> None:
    values = [b"x" * 1000] * 2000 + [b"y" * (2 * encoding.BATCH_BYTES)] + [b"z"] * 10
    bodies = list(encode_columns(None, pa.array(values, pa.binary())))
    assert [value for _, value, _, _ in decoded(bodies)] == values
    assert len(bodies) == 5
    large = [body for body in bodies if len(body.records) > encoding.BATCH_BYTES]
    assert [body.count for body in large] == [1]


@given(st.lists(st.binary(max_size=40), min_size=1), st.integers(1, 64))
def test_keys_have_the_same_partition_as_in_other_clients(keys: list[bytes], count: int) -> None:
    found = partitions_by_key(pa.array(keys, pa.binary()), count)
    assert found.tolist() == [(murmur2(key) & 0x7FFFFFFF) % count for key in keys]
