"""The Fetch response, as kafka-python reads it."""

from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchResponse

from headwater.transmit.wire.fetch import PartitionAnswer, TopicAnswer, write_fetch

INT64 = st.integers(-1, 2**63 - 1)
ANSWERS = st.lists(
    st.builds(
        TopicAnswer,
        name=st.text("abc.-_", min_size=1, max_size=249),
        id=st.uuids(),
        partitions=st.lists(
            st.builds(
                PartitionAnswer,
                partition=st.integers(0, 2**31 - 1),
                error=st.sampled_from([0, 1, 3, 100]),
                high_watermark=INT64,
                last_stable_offset=INT64,
                log_start_offset=INT64,
                records=st.binary(max_size=20_000),
                aborted=st.lists(st.tuples(INT64, INT64), max_size=4),
            ),
            max_size=4,
        ),
    ),
    max_size=3,
)


@given(st.integers(4, 18), ANSWERS, st.sampled_from([0, 70]))
def test_what_we_write_is_read_by_kafka_python(version: int, topics: list[TopicAnswer], error: int) -> None:
    body = b"".join(write_fetch(version, topics, error=error))
    response = FetchResponse.decode(body, version=version)
    assert response.throttle_time_ms == 0
    if version >= 7:
        assert (response.error_code, response.session_id) == (error, 0)
    assert len(response.responses) == len(topics)
    for found, topic in zip(response.responses, topics, strict=True):
        assert (found.topic_id if version >= 13 else found.topic) == (topic.id if version >= 13 else topic.name)
        for partition, answer in zip(found.partitions, topic.partitions, strict=True):
            assert partition.partition_index == answer.partition
            assert partition.error_code == answer.error
            assert partition.high_watermark == answer.high_watermark
            assert partition.last_stable_offset == answer.last_stable_offset
            aborted = [(a.producer_id, a.first_offset) for a in partition.aborted_transactions]
            assert aborted == answer.aborted
            assert bytes(partition.records) == answer.records
            if version >= 5:
                assert partition.log_start_offset == answer.log_start_offset
            if version >= 11:
                assert partition.preferred_read_replica == -1
    assert bytes(response.encode()) == body  # nothing is left behind
