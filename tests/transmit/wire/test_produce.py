"""Produce requests written by kafka-python, and Produce responses read by it."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.producer import ProduceRequest
from kafka.protocol.producer import ProduceResponse as KafkaProduceResponse

from headwater.errors import InvalidError
from headwater.transmit.wire.apis import is_flexible
from headwater.transmit.wire.frame import read_request_header
from headwater.transmit.wire.produce import (
    PartitionRecords,
    ProducedPartition,
    ProduceResponse,
    read_produce,
    write_produce,
)

VERSIONS = range(3, 14)
TOPICS = st.lists(
    st.tuples(
        st.text("abc.-_", min_size=1, max_size=300),
        st.uuids(),
        st.lists(st.tuples(st.integers(0, 2**31 - 1), st.none() | st.binary(max_size=300)), max_size=3),
    ),
    max_size=3,
)


def encode(version: int, topics: list, *, transactional_id: str | None = None, acks: int = -1) -> bytes:
    shape = ProduceRequest.TopicProduceData
    request = ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=1234,
        topic_data=[
            shape(
                name=name,
                topic_id=topic_id,
                partition_data=[shape.PartitionProduceData(index=n, records=data) for n, data in partitions],
            )
            for name, topic_id, partitions in topics
        ],
    )
    request.API_VERSION = version
    request.with_header(correlation_id=77, client_id="tester")
    return bytes(request.encode(version=version, header=True))


@given(st.sampled_from(VERSIONS), TOPICS, st.none() | st.text(max_size=20), st.sampled_from([-1, 0, 1]))
def test_read_request_of_kafka_python(version: int, topics: list, transactional_id: str | None, acks: int) -> None:
    frame = memoryview(encode(version, topics, transactional_id=transactional_id, acks=acks))
    header = read_request_header(frame, is_flexible=is_flexible)
    assert (header.api_key, header.api_version, header.correlation_id) == (0, version, 77)
    assert header.client_id == "tester"
    request = read_produce(frame, header.body_at, version)
    assert (request.transactional_id, request.acks, request.timeout_ms) == (transactional_id, acks, 1234)
    assert request.parts == [
        PartitionRecords(topic_id if version >= 13 else name, number, data)
        for name, topic_id, partitions in topics
        for number, data in partitions
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_truncated_request_is_invalid(version: int) -> None:
    frame = encode(version, [("orders", uuid.uuid4(), [(0, b"records" * 20)])])
    at = read_request_header(memoryview(frame), is_flexible=is_flexible).body_at
    for length in range(at, len(frame)):
        with pytest.raises(InvalidError):
            read_produce(memoryview(frame)[:length], at, version)


@given(st.sampled_from(VERSIONS), st.binary(max_size=100))
def test_random_bytes_are_read_or_invalid(version: int, data: bytes) -> None:
    try:
        read_produce(memoryview(data), 0, version)
    except InvalidError as error:
        assert str(version) in str(error)


# -- the response ---------------------------------------------------------------------------------------------

PRODUCED = st.lists(
    st.builds(
        ProducedPartition,
        partition=st.integers(0, 2**31 - 1),
        error=st.sampled_from([0, 2, 87]),
        base_offset=st.integers(-1, 2**63 - 1),
        log_append_time_ms=st.integers(-1, 2**63 - 1),
        log_start_offset=st.integers(-1, 2**63 - 1),
        message=st.none() | st.text(max_size=300),
        rejected=st.lists(st.tuples(st.integers(0, 2**31 - 1), st.text(max_size=30)), max_size=3),
    ),
    max_size=3,
)


@given(st.sampled_from(VERSIONS), st.data())
def test_kafka_python_reads_response(version: int, data: st.DataObject) -> None:
    kind = st.uuids() if version >= 13 else st.text("abc.-_", min_size=1, max_size=249)
    topics = data.draw(st.lists(st.tuples(kind, PRODUCED), max_size=3))
    body = b"".join(write_produce(version, ProduceResponse(topics)))
    response = KafkaProduceResponse.decode(body, version=version)
    assert response.throttle_time_ms == 0
    assert [topic.topic_id if version >= 13 else topic.name for topic in response.responses] == [
        topic for topic, _ in topics
    ]
    for found, (_, partitions) in zip(response.responses, topics, strict=True):
        for partition, produced in zip(found.partition_responses, partitions, strict=True):
            assert (partition.index, partition.error_code, partition.base_offset) == produced[:3]
            assert partition.log_append_time_ms == produced.log_append_time_ms
            rejected = [
                (each.batch_index, each.batch_index_error_message) for each in partition.record_errors or ()
            ]
            assert rejected == (produced.rejected if version >= 8 else [])
            if version >= 5:
                assert partition.log_start_offset == produced.log_start_offset
            if version >= 8:
                assert partition.error_message == produced.message
    assert bytes(response.encode()) == body  # no bytes are left over
