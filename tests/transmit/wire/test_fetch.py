"""Fetch requests written by kafka-python, and Fetch responses read by it."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.consumer import FetchResponse as KafkaFetchResponse

from headwater.errors import InvalidError
from headwater.transmit.wire.fetch import FetchedPartition, FetchedTopic, FetchResponse, read_fetch, write_fetch

VERSIONS = range(4, 19)
INT32 = st.integers(0, 2**31 - 1)
INT64 = st.integers(-1, 2**63 - 1)
NAMES = st.text("abc.-_", min_size=1, max_size=249)
TOPICS = st.lists(st.tuples(NAMES, st.uuids(), st.lists(st.tuples(INT32, INT64, INT32), max_size=4)), max_size=3)
FORGOTTEN = st.lists(st.tuples(NAMES, st.uuids(), st.lists(INT32, max_size=4)), max_size=3)
PARTITIONS = st.lists(
    st.builds(
        FetchedPartition,
        partition=INT32,
        error=st.sampled_from([0, 1, 3, 100]),
        high_watermark=INT64,
        last_stable_offset=INT64,
        log_start_offset=INT64,
        records=st.binary(max_size=20_000),
        aborted=st.lists(st.tuples(INT64, INT64), max_size=4),
    ),
    max_size=4,
)


# -- the request ----------------------------------------------------------------------------------------------


def encode(version: int, topics: list, forgotten: list, *, session: tuple[int, int] = (0, -1)) -> bytes:
    shape = FetchRequest.FetchTopic
    request = FetchRequest(
        replica_id=-1, max_wait_ms=500, min_bytes=1, max_bytes=1 << 24, isolation_level=1,
        session_id=session[0], session_epoch=session[1], rack_id="r",
        topics=[
            shape(
                topic=name,
                topic_id=topic_id,
                partitions=[
                    shape.FetchPartition(
                        partition=number, current_leader_epoch=3, fetch_offset=offset, last_fetched_epoch=4,
                        log_start_offset=-1, partition_max_bytes=size,
                    )
                    for number, offset, size in partitions
                ],
            )
            for name, topic_id, partitions in topics
        ],
        forgotten_topics_data=[
            FetchRequest.ForgottenTopic(topic=name, topic_id=topic_id, partitions=numbers)
            for name, topic_id, numbers in forgotten
        ],
    )  # fmt: skip
    return bytes(request.encode(version=version))


@given(st.sampled_from(VERSIONS), TOPICS, FORGOTTEN, st.tuples(INT32, st.integers(-1, 2**31 - 1)))
def test_read_request_of_kafka_python(
    version: int, topics: list, forgotten: list, session: tuple[int, int]
) -> None:
    body = encode(version, topics, forgotten, session=session)
    request = read_fetch(memoryview(body), 0, version)
    assert request[:4] == (500, 1, 1 << 24, 1)
    assert request.topics == [
        (topic_id if version >= 13 else name, partitions) for name, topic_id, partitions in topics
    ]
    if version >= 7:
        assert (request.session_id, request.session_epoch) == session
        assert request.forgotten == [
            (topic_id if version >= 13 else name, numbers) for name, topic_id, numbers in forgotten
        ]


@pytest.mark.parametrize("version", VERSIONS)
def test_truncated_request_is_invalid(version: int) -> None:
    body = encode(version, [("orders", uuid.uuid4(), [(0, 5, 100)])], [("old", uuid.uuid4(), [1])])
    for length in range(len(body)):
        with pytest.raises(InvalidError):
            read_fetch(memoryview(body)[:length], 0, version)


@given(st.sampled_from(VERSIONS), st.binary(max_size=100))
def test_random_bytes_are_read_or_invalid(version: int, data: bytes) -> None:
    try:
        read_fetch(memoryview(data), 0, version)
    except InvalidError as error:
        assert str(version) in str(error)


# -- the response ---------------------------------------------------------------------------------------------


@given(st.sampled_from(VERSIONS), st.data(), st.sampled_from([0, 70]), INT32)
def test_kafka_python_reads_response(version: int, data: st.DataObject, error: int, session: int) -> None:
    kind = st.uuids() if version >= 13 else NAMES
    topics = data.draw(st.lists(st.builds(FetchedTopic, topic=kind, partitions=PARTITIONS), max_size=3))
    body = b"".join(write_fetch(version, FetchResponse(topics, error, session)))
    response = KafkaFetchResponse.decode(body, version=version)
    assert response.throttle_time_ms == 0
    if version >= 7:
        assert (response.error_code, response.session_id) == (error, session)
    assert len(response.responses) == len(topics)
    for found, topic in zip(response.responses, topics, strict=True):
        assert (found.topic_id if version >= 13 else found.topic) == topic.topic
        for partition, written in zip(found.partitions, topic.partitions, strict=True):
            assert partition.partition_index == written.partition
            assert partition.error_code == written.error
            assert partition.high_watermark == written.high_watermark
            assert partition.last_stable_offset == written.last_stable_offset
            aborted = [(a.producer_id, a.first_offset) for a in partition.aborted_transactions]
            assert aborted == written.aborted
            assert bytes(partition.records) == written.records
            if version >= 5:
                assert partition.log_start_offset == written.log_start_offset
            if version >= 11:
                assert partition.preferred_read_replica == -1
    assert bytes(response.encode()) == body  # no bytes are left over
