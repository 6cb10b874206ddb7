"""Records in and out: produce, fetch, and looking offsets up."""

import asyncio
import logging
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

from kafka.protocol.consumer import ListOffsetsResponse, OffsetForLeaderEpochResponse
from kafka.protocol.producer import ProduceResponse

from headwater.errors import CorruptError, InvalidError, UnavailableError
from headwater.transmit.admission import TooLarge, UnfitRecords
from headwater.transmit.batch import walk
from headwater.transmit.conditions import ExpectationFailed
from headwater.transmit.handlers import Asker
from headwater.transmit.handlers.transactions import produce_code
from headwater.transmit.log.partition import LEADER_EPOCH, OffsetOutOfRange
from headwater.transmit.node import Node
from headwater.transmit.producers import Refusal
from headwater.transmit.topics import Appended, Partition, RefusedBatch
from headwater.transmit.transactions import Claim
from headwater.transmit.wire.codes import Code
from headwater.transmit.wire.fetch import PartitionAnswer, TopicAnswer
from headwater.transmit.wire.produce import PartitionRecords, ProduceRequest

logger = logging.getLogger(__name__)

ACKS_NONE, ACKS_ALL = 0, -1
FETCH_BYTES_MAX = 55 * 1024 * 1024
"""Whatever a client asks for; Kafka's own default of the broker's fetch.max.bytes."""
_LATEST, _EARLIEST, _MAX_TIMESTAMP = -1, -2, -3
_NO_OFFSET = -1
_READ_COMMITTED = 1
_REFUSALS = {
    Refusal.STALE_EPOCH: Code.INVALID_PRODUCER_EPOCH,
    Refusal.OUT_OF_ORDER: Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
    Refusal.IN_TRANSACTION: Code.INVALID_TXN_STATE,
    Refusal.NOT_IN_TRANSACTION: Code.INVALID_TXN_STATE,
}


Complaint = str | UnfitRecords | None

# -- produce --------------------------------------------------------------------------------------------------


def produce(node: Node, request: ProduceRequest, asker: Asker) -> Awaitable[Any]:
    """Append now, so that records keep the order of the requests; answer when they are durable."""
    results = [_append(node, part, request) for part in request.parts]
    return _acknowledge(node, request, results)


async def _acknowledge(
    node: Node, request: ProduceRequest, results: list[tuple[Partition | None, Appended | Code, Complaint]]
) -> Any:
    topics: dict[Any, list[Any]] = {}
    for part, (partition, outcome, message) in zip(request.parts, results, strict=True):
        if isinstance(outcome, Appended) and partition is not None and request.acks == ACKS_ALL:
            try:
                await partition.wait_durable(outcome.next_offset)
            except UnavailableError as error:
                outcome, message = Code.KAFKA_STORAGE_ERROR, str(error)
        topics.setdefault(part.topic, []).append(_produced(part, partition, outcome, message))
    if request.acks == ACKS_NONE:
        return None
    return ProduceResponse(
        responses=[
            ProduceResponse.TopicProduceResponse(
                **({"name": topic} if isinstance(topic, str) else {"topic_id": topic}),
                partition_responses=partitions,
            )
            for topic, partitions in topics.items()
        ]
    )


def _append(
    node: Node, part: PartitionRecords, request: ProduceRequest
) -> tuple[Partition | None, Appended | Code, Complaint]:
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
                claim = Claim(producer_id=header.producer_id, epoch=header.producer_epoch)
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
    except UnfitRecords as error:
        return partition, Code.INVALID_RECORD, error
    except InvalidError as error:
        return partition, Code.INVALID_RECORD, str(error)
    except (OSError, UnavailableError) as error:
        return partition, Code.KAFKA_STORAGE_ERROR, str(error)


def _produced(
    part: PartitionRecords, partition: Partition | None, outcome: Appended | Code, message: Complaint
) -> Any:
    failed = isinstance(outcome, Code)
    return ProduceResponse.TopicProduceResponse.PartitionProduceResponse(
        index=part.partition,
        error_code=outcome if isinstance(outcome, Code) else Code.NONE,
        base_offset=_NO_OFFSET if isinstance(outcome, Code) else outcome.base_offset,
        log_append_time_ms=-1 if isinstance(outcome, Code) else outcome.log_append_time_ms,
        log_start_offset=_NO_OFFSET if failed or partition is None else partition.log.start_offset,
        record_errors=_record_errors(message),
        error_message=None if message is None else str(message),
    )


def _record_errors(message: Complaint) -> list[Any]:
    """By these a producer tells the records that do not fit from those that were only in their company."""
    if not isinstance(message, UnfitRecords):
        return []
    shape = ProduceResponse.TopicProduceResponse.PartitionProduceResponse.BatchIndexAndErrorMessage
    return [shape(batch_index=place, batch_index_error_message=message.reason) for place in message.places]


# -- fetch ----------------------------------------------------------------------------------------------------


async def fetch(node: Node, request: Any, asker: Asker) -> list[TopicAnswer]:
    """Read what is asked for; where there is less than `min_bytes`, wait for more until the time is over."""
    answers = _read_all(node, request)
    if request.max_wait_ms > 0 and not _is_enough(answers, request.min_bytes):
        await _wait_for_more(node, request)
        answers = _read_all(node, request)
    return answers


async def _wait_for_more(node: Node, request: Any) -> None:
    """Wait until the partitions have grown by enough, or the client's patience is over."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + request.max_wait_ms / 1000
    partitions = [
        partition
        for topic in request.topics
        for asked in topic.partitions
        if (entry := node.topics.entry(topic.topic or topic.topic_id))
        and (partition := node.topics.partition(entry.name, asked.partition))
    ]
    while (left := deadline - loop.time()) > 0:
        grown = asyncio.Event()
        for partition in partitions:
            partition.on_advance(grown.set)
        try:
            await asyncio.wait_for(grown.wait(), left)
        except TimeoutError:
            return
        finally:
            for partition in partitions:
                partition.forget(grown.set)
        if _is_enough(_read_all(node, request), request.min_bytes):
            return


def _is_enough(answers: list[TopicAnswer], min_bytes: int) -> bool:
    found = 0
    for topic in answers:
        for answer in topic.partitions:
            if answer.error:
                return True
            found += len(answer.records)
    return found >= min_bytes


def _read_all(node: Node, request: Any) -> list[TopicAnswer]:
    room = min(request.max_bytes, FETCH_BYTES_MAX)
    begun = False
    answers = []
    for topic in request.topics:
        asked_for = topic.topic or topic.topic_id
        entry = node.topics.entry(asked_for)
        partitions = []
        for asked in topic.partitions:
            partition = entry and node.topics.partition(entry.name, asked.partition)
            if partition:
                answer = _read(partition, asked, room, committed=request.isolation_level == _READ_COMMITTED)
            else:
                by_name = isinstance(asked_for, str)
                code = Code.UNKNOWN_TOPIC_OR_PARTITION if by_name or entry else Code.UNKNOWN_TOPIC_ID
                answer = PartitionAnswer(partition=asked.partition, error=code)
            if begun and len(answer.records) > room:
                # A batch is given whole, but only the first of an answer may be larger than the client has room.
                answer, room = replace(answer, records=b"", aborted=[]), 0
            begun = begun or bool(answer.records)
            room -= len(answer.records)
            partitions.append(answer)
        answers.append(TopicAnswer(name=topic.topic or "", id=topic.topic_id, partitions=partitions))
    return answers


def _read(partition: Partition, asked: Any, room: int, *, committed: bool) -> PartitionAnswer:
    log = partition.log
    stable = partition.last_stable_offset
    marks = {
        "partition": asked.partition,
        "high_watermark": log.high_watermark,
        "last_stable_offset": stable,
        "log_start_offset": log.start_offset,
    }
    try:
        wanted = min(asked.partition_max_bytes, room)
        records = log.read(asked.fetch_offset, wanted) if wanted > 0 else b""
    except OffsetOutOfRange:
        return PartitionAnswer(**marks, error=Code.OFFSET_OUT_OF_RANGE)
    except (CorruptError, OSError) as error:
        logger.error("cannot read %s at offset %d: %s", partition.name, asked.fetch_offset, error)
        return PartitionAnswer(**marks, error=Code.KAFKA_STORAGE_ERROR)
    if not committed:
        return PartitionAnswer(**marks, records=records)
    end, behind = 0, asked.fetch_offset
    for at, header in walk(records):
        if header.next_offset > stable:
            break
        end, behind = at + header.size, header.next_offset
    aborted = partition.producers.aborted(asked.fetch_offset, behind) if end else []
    return PartitionAnswer(
        **marks, records=records[:end], aborted=[(a.producer_id, a.first_offset) for a in aborted]
    )


# -- offsets in the log ---------------------------------------------------------------------------------------


def list_offsets(node: Node, request: Any, asker: Asker) -> Any:
    """Find the first, the last, or the record of a time."""
    return ListOffsetsResponse(
        topics=[
            ListOffsetsResponse.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    _list_offset(node, topic.name, asked, committed=request.isolation_level == _READ_COMMITTED)
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


def offset_for_leader_epoch(node: Node, request: Any, asker: Asker) -> Any:
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
