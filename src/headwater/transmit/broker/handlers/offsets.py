"""Offsets in the log: ListOffsets and OffsetForLeaderEpoch."""

import logging
from typing import Any

from kafka.protocol.consumer import ListOffsetsResponse, OffsetForLeaderEpochResponse

from headwater.errors import CorruptError
from headwater.transmit.broker.monitoring.retention_risk import deleted_soon
from headwater.transmit.broker.node import Node
from headwater.transmit.broker.request import RequestContext
from headwater.transmit.log.partition import LEADER_EPOCH
from headwater.transmit.topics.partition import Partition
from headwater.transmit.wire.codes import Code
from headwater.transmit.wire.fetch import READ_COMMITTED
from headwater.transmit.wire.list_offsets import DELETED_SOON

logger = logging.getLogger(__name__)

_LATEST, _EARLIEST, _MAX_TIMESTAMP = -1, -2, -3
_NO_OFFSET = -1


def list_offsets(node: Node, request: Any, context: RequestContext) -> Any:
    """Return the offset of the first record, the last one, or the first one at a timestamp."""
    return ListOffsetsResponse(
        topics=[
            ListOffsetsResponse.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    _list_offset(node, topic.name, wanted, committed=request.isolation_level == READ_COMMITTED)
                    for wanted in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _list_offset(node: Node, topic: str, wanted: Any, *, committed: bool) -> Any:
    code, timestamp, offset = _look_up(node, topic, wanted, committed=committed)
    return ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse(
        partition_index=wanted.partition_index,
        error_code=code,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=LEADER_EPOCH if code == Code.NONE else -1,
    )


def _look_up(node: Node, topic: str, wanted: Any, *, committed: bool) -> tuple[Code, int, int]:
    """Return an error code, the timestamp and the offset of the record wanted."""
    partition = node.topics.partition(topic, wanted.partition_index)
    if partition is None:
        return Code.UNKNOWN_TOPIC_OR_PARTITION, -1, _NO_OFFSET
    if wanted.timestamp == DELETED_SOON:
        return Code.NONE, -1, deleted_soon(partition.log, partition.config, node.clock.now_ms())
    try:
        return Code.NONE, *_find_offset(partition, wanted.timestamp, committed=committed)
    except (CorruptError, OSError) as error:
        logger.error("cannot look up timestamp %d in %s: %s", wanted.timestamp, partition.name, error)
        return Code.KAFKA_STORAGE_ERROR, -1, _NO_OFFSET


def _find_offset(partition: Partition, timestamp: int, *, committed: bool) -> tuple[int, int]:
    log = partition.log
    end = partition.last_stable_offset if committed else log.high_watermark
    if timestamp == _LATEST:
        return -1, end
    if timestamp == _MAX_TIMESTAMP:
        found = log.latest_time()
    elif timestamp < 0:  # earliest, and its variants for tiered storage
        return -1, log.start_offset
    else:
        found = log.offset_of_time(timestamp)
    return (found.timestamp_ms, found.offset) if found and found.offset < end else (-1, _NO_OFFSET)


def offset_for_leader_epoch(node: Node, request: Any, context: RequestContext) -> Any:
    """Return the end of the log: there is one leader epoch, and visible records are never truncated."""
    shape = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
    topics = []
    for topic in request.topics:
        partitions = []
        for wanted in topic.partitions:
            partition = node.topics.partition(topic.topic, wanted.partition)
            partitions.append(
                shape.EpochEndOffset(
                    error_code=Code.NONE if partition else Code.UNKNOWN_TOPIC_OR_PARTITION,
                    partition=wanted.partition,
                    leader_epoch=LEADER_EPOCH if partition else -1,
                    end_offset=partition.log.high_watermark if partition else _NO_OFFSET,
                )
            )
        topics.append(shape(topic=topic.topic, partitions=partitions))
    return OffsetForLeaderEpochResponse(topics=topics)
