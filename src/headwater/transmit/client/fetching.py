"""Fetch requests for several partitions, and the partitions of their responses."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from kafka.protocol.consumer import FetchRequest

from headwater.record import TopicPartition


class FetchLimits(NamedTuple):
    """The limits of one Fetch request; a broker exceeds them only to return one whole batch."""

    wait_ms: int
    """Time that the broker waits for a first record, if there is none."""
    max_bytes: int
    """Bytes of the whole response."""
    partition_max_bytes: int
    """Bytes of each partition."""


class Fetched(NamedTuple):
    """The result of one partition in a Fetch response."""

    partition: TopicPartition
    error_code: int
    high_watermark: int
    last_stable_offset: int
    records: bytes
    aborted: list[tuple[int, int]]
    """Producer id and first offset of the aborted transactions among the records."""


def fetch_request(
    positions: Mapping[TopicPartition, int], limits: FetchLimits, *, isolation_level: int
) -> FetchRequest:
    """Return a request for the records of several partitions of one node, without a fetch session."""
    shape = FetchRequest.FetchTopic
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=limits.wait_ms,
        min_bytes=1,
        max_bytes=limits.max_bytes,
        isolation_level=isolation_level,
        session_id=0,
        session_epoch=-1,
        topics=[
            shape(
                topic=topic,
                partitions=[
                    shape.FetchPartition(
                        partition=tp.partition,
                        current_leader_epoch=-1,
                        fetch_offset=positions[tp],
                        last_fetched_epoch=-1,
                        log_start_offset=-1,
                        partition_max_bytes=limits.partition_max_bytes,
                    )
                    for tp in partitions
                ],
            )
            for topic, partitions in by_topic(positions).items()
        ],
        forgotten_topics_data=[],
        rack_id="",
    )


def fetched_partitions(response: Any) -> Iterator[Fetched]:
    """Yield the partitions of a Fetch response."""
    for topic in response.responses:
        for result in topic.partitions:
            yield Fetched(
                TopicPartition(topic.topic, result.partition_index),
                result.error_code,
                result.high_watermark,
                result.last_stable_offset,
                bytes(result.records or b""),
                [(a.producer_id, a.first_offset) for a in result.aborted_transactions or []],
            )


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    """Group partitions by topic."""
    topics: dict[str, list[TopicPartition]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(partition)
    return topics
