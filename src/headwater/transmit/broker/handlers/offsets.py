"""Offsets in the log: ListOffsets and OffsetForLeaderEpoch."""

import logging
from typing import Any

from kafka.protocol.consumer import ListOffsetsResponse, OffsetForLeaderEpochResponse

from headwater.errors import CorruptError
from headwater.transmit.broker.node import Node
from headwater.transmit.broker.request import RequestContext
from headwater.transmit.broker.retention_risk import deleted_soon
from headwater.transmit.log.partition import LEADER_EPOCH
from headwater.transmit.topics.topics import Partition
from headwater.transmit.wire.codes import Code
from headwater.transmit.wire.fetch import READ_COMMITTED
from headwater.transmit.wire.list_offsets import DELETED_SOON

logger = logging.getLogger(__name__)

_LATEST, _EARLIEST, _MAX_TIMESTAMP = -1, -2, -3
_NO_OFFSET = -1


def list_offsets(node: Node, request: Any, context: RequestContext) -> Any:
    """Find the first, the last, or the record of a time."""
    return ListOffsetsResponse(
        topics=[
            ListOffsetsResponse.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    _list_offset(node, topic.name, asked, committed=request.isolation_level == READ_COMMITTED)
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _list_offset(node: Node, topic: str, asked: Any, *, committed: bool) -> Any:
    answer = ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse
    partition = node.topics.partition(topic, asked.partition_index)
    if partition is None:
        return answer(
            partition_index=asked.partition_index,
            error_code=Code.UNKNOWN_TOPIC_OR_PARTITION,
            timestamp=-1,
            offset=_NO_OFFSET,
            leader_epoch=-1,
        )
    try:
        if asked.timestamp == DELETED_SOON:
            timestamp, offset = -1, deleted_soon(partition.log, partition.config, node.clock.now_ms())
        else:
            timestamp, offset = _find_offset(partition, asked.timestamp, committed=committed)
    except (CorruptError, OSError) as error:
        logger.error("cannot look up a time in %s: %s", partition.name, error)
        return answer(
            partition_index=asked.partition_index,
            error_code=Code.KAFKA_STORAGE_ERROR,
            timestamp=-1,
            offset=_NO_OFFSET,
            leader_epoch=-1,
        )
    return answer(
        partition_index=asked.partition_index,
        error_code=Code.NONE,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=LEADER_EPOCH,
    )


def _find_offset(partition: Partition, timestamp: int, *, committed: bool) -> tuple[int, int]:
    log = partition.log
    end = partition.last_stable_offset if committed else log.high_watermark
    if timestamp == _LATEST:
        return -1, end
    if timestamp == _MAX_TIMESTAMP:
        found = log.latest_time()
    elif timestamp < 0:  # earliest, and the variants of it that tell tiers apart
        return -1, log.start_offset
    else:
        found = log.offset_of_time(timestamp)
    return (found.timestamp_ms, found.offset) if found and found.offset < end else (-1, _NO_OFFSET)


def offset_for_leader_epoch(node: Node, request: Any, context: RequestContext) -> Any:
    """Nothing is ever truncated behind a client's back: the only epoch ends where the log does."""
    answer = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
    topics = []
    for topic in request.topics:
        partitions = []
        for asked in topic.partitions:
            partition = node.topics.partition(topic.topic, asked.partition)
            partitions.append(
                answer.EpochEndOffset(
                    error_code=Code.NONE if partition else Code.UNKNOWN_TOPIC_OR_PARTITION,
                    partition=asked.partition,
                    leader_epoch=LEADER_EPOCH if partition else -1,
                    end_offset=partition.log.high_watermark if partition else _NO_OFFSET,
                )
            )
        topics.append(answer(topic=topic.topic, partitions=partitions))
    return OffsetForLeaderEpochResponse(topics=topics)
