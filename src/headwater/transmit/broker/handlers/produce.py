"""Records in, and looking offsets up."""

import logging
import uuid
from collections.abc import Awaitable
from typing import Any

from kafka.protocol.consumer import ListOffsetsResponse, OffsetForLeaderEpochResponse

from headwater.errors import CorruptError, InvalidError, UnavailableError
from headwater.transmit.broker.handlers import RequestContext
from headwater.transmit.broker.handlers.fetch import READ_COMMITTED
from headwater.transmit.broker.handlers.transactions import produce_code
from headwater.transmit.broker.node import Node
from headwater.transmit.broker.retention_risk import deleted_soon
from headwater.transmit.log.partition import LEADER_EPOCH
from headwater.transmit.records.batch import walk
from headwater.transmit.topics.admission import RejectedRecords, TooLarge
from headwater.transmit.topics.conditional_append import ExpectationFailed
from headwater.transmit.topics.partition import AppendResult, Partition, RefusedBatch
from headwater.transmit.topics.producers import NO_TIME, Refusal
from headwater.transmit.transactions.transaction import ProducerClaim
from headwater.transmit.wire.codes import Code
from headwater.transmit.wire.list_offsets import DELETED_SOON
from headwater.transmit.wire.produce import PartitionProduced, PartitionRecords, ProduceAnswer, ProduceRequest

logger = logging.getLogger(__name__)

ACKS_NONE, ACKS_ALL = 0, -1
_LATEST, _EARLIEST, _MAX_TIMESTAMP = -1, -2, -3
_NO_OFFSET = -1
_REFUSALS = {
    Refusal.STALE_EPOCH: Code.INVALID_PRODUCER_EPOCH,
    Refusal.OUT_OF_ORDER: Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
    Refusal.IN_TRANSACTION: Code.INVALID_TXN_STATE,
    Refusal.NOT_IN_TRANSACTION: Code.INVALID_TXN_STATE,
}


Complaint = str | RejectedRecords | None

# -- produce --------------------------------------------------------------------------------------------------


Outcome = tuple[Partition | None, AppendResult | Code, Complaint]


def produce(
    node: Node, request: ProduceRequest, context: RequestContext
) -> ProduceAnswer | Awaitable[ProduceAnswer | None] | None:
    """Append now, so that records keep the order of the requests; answer when they are durable."""
    outcomes = [_append(node, part, request) for part in request.parts]
    if request.acks == ACKS_ALL and not all(_is_durable(partition, outcome) for partition, outcome, _ in outcomes):
        return _wait_and_answer(request, outcomes)
    return _produced(request, outcomes)


def _is_durable(partition: Partition | None, outcome: AppendResult | Code) -> bool:
    """Whether there is nothing to wait for."""
    if partition is None or not isinstance(outcome, AppendResult):
        return True
    return partition.log.high_watermark >= outcome.next_offset


async def _wait_and_answer(request: ProduceRequest, outcomes: list[Outcome]) -> ProduceAnswer | None:
    for number, (partition, outcome, _) in enumerate(outcomes):
        if partition is not None and isinstance(outcome, AppendResult):
            try:
                await partition.wait_durable(outcome.next_offset)
            except UnavailableError as error:
                outcomes[number] = (partition, Code.KAFKA_STORAGE_ERROR, str(error))
    return _produced(request, outcomes)


def _produced(request: ProduceRequest, outcomes: list[Outcome]) -> ProduceAnswer | None:
    if request.acks == ACKS_NONE:
        return None
    topics: dict[str | uuid.UUID, list[PartitionProduced]] = {}
    for part, (partition, outcome, message) in zip(request.parts, outcomes, strict=True):
        if isinstance(outcome, AppendResult) and partition is not None:
            error, base_offset, time_ms = Code.NONE, outcome.base_offset, outcome.log_append_time_ms
            start_offset = partition.log.start_offset
        else:
            assert isinstance(outcome, Code)
            error, base_offset, time_ms, start_offset = outcome, _NO_OFFSET, NO_TIME, _NO_OFFSET
        # By these a producer tells the records that do not fit from those that were only in their company.
        unfit = (
            [(place, message.reason) for place in message.places] if isinstance(message, RejectedRecords) else ()
        )
        words = None if message is None else str(message)
        topics.setdefault(part.topic, []).append(
            PartitionProduced(part.partition, error, base_offset, time_ms, start_offset, words, unfit)
        )
    return ProduceAnswer(list(topics.items()))


def _append(node: Node, part: PartitionRecords, request: ProduceRequest) -> Outcome:
    entry = node.topics.entry(part.topic)
    partition = entry and node.topics.partition(entry.name, part.partition)
    if not partition:
        code = Code.UNKNOWN_TOPIC_OR_PARTITION if isinstance(part.topic, str) else Code.UNKNOWN_TOPIC_ID
        return None, code, f"there is no partition {part.topic}-{part.partition}"
    if part.records is None:
        return partition, Code.INVALID_RECORD, "the request has no records"
    try:
        if request.transactional_id is not None:
            for _, header in walk(part.records):
                claim = ProducerClaim(producer_id=header.producer_id, epoch=header.producer_epoch)
                refused = node.transactions.check_write(request.transactional_id, claim, partition.name)
                if refused is not None:
                    return partition, produce_code(refused), f"{partition.name}: {refused.value}"
        return partition, node.topics.append(
            partition,
            part.records,
            now_ms=node.clock.now_ms(),
            transactional=request.transactional_id is not None,
        ), None  # fmt: skip
    except RefusedBatch as error:
        return partition, _REFUSALS[error.refusal], str(error)
    except ExpectationFailed as error:
        return partition, Code.OPERATION_NOT_ATTEMPTED, str(error)
    except TooLarge as error:
        return partition, Code.MESSAGE_TOO_LARGE, str(error)
    except CorruptError as error:
        return partition, Code.CORRUPT_MESSAGE, str(error)
    except RejectedRecords as error:
        return partition, Code.INVALID_RECORD, error
    except InvalidError as error:
        return partition, Code.INVALID_RECORD, str(error)
    except (OSError, UnavailableError) as error:
        return partition, Code.KAFKA_STORAGE_ERROR, str(error)


# -- offsets in the log ---------------------------------------------------------------------------------------


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
