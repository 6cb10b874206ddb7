"""Append records."""

import logging
import uuid
from collections.abc import Awaitable

from headwater.errors import CorruptError, InvalidError, UnavailableError
from headwater.transmit.broker.error_codes import append_code, transactional_append_code
from headwater.transmit.broker.node import Node
from headwater.transmit.broker.request import RequestContext
from headwater.transmit.records.batch_header import walk
from headwater.transmit.topics.admission import RejectedRecords
from headwater.transmit.topics.conditional_append import ExpectationFailed
from headwater.transmit.topics.partition import AppendResult, Partition
from headwater.transmit.topics.producers import NO_TIME
from headwater.transmit.transactions.transaction import ProducerClaim
from headwater.transmit.wire.codes import Code
from headwater.transmit.wire.produce import PartitionRecords, ProducedPartition, ProduceRequest, ProduceResponse

logger = logging.getLogger(__name__)

ACKS_NONE, ACKS_ALL = 0, -1
_NO_OFFSET = -1


Outcome = tuple[Partition | None, AppendResult | Code, str | RejectedRecords | None]
"""The partition, the result or an error code, and the reason of the error."""


def produce(
    node: Node, request: ProduceRequest, context: RequestContext
) -> ProduceResponse | Awaitable[ProduceResponse | None] | None:
    """Append at once, so that records keep the order of the requests; respond when they are durable."""
    outcomes = [_append(node, part, request) for part in request.parts]
    if request.acks == ACKS_ALL and not all(_is_durable(partition, outcome) for partition, outcome, _ in outcomes):
        return _respond_when_durable(request, outcomes)
    return _response(request, outcomes)


def _is_durable(partition: Partition | None, outcome: AppendResult | Code) -> bool:
    """Return True if the records are durable, or were not appended."""
    if partition is None or not isinstance(outcome, AppendResult):
        return True
    return partition.log.high_watermark >= outcome.next_offset


async def _respond_when_durable(request: ProduceRequest, outcomes: list[Outcome]) -> ProduceResponse | None:
    for number, (partition, outcome, _) in enumerate(outcomes):
        if partition is not None and isinstance(outcome, AppendResult):
            try:
                await partition.wait_durable(outcome.next_offset)
            except UnavailableError as error:
                outcomes[number] = (partition, Code.KAFKA_STORAGE_ERROR, str(error))
    return _response(request, outcomes)


def _response(request: ProduceRequest, outcomes: list[Outcome]) -> ProduceResponse | None:
    if request.acks == ACKS_NONE:
        return None
    topics: dict[str | uuid.UUID, list[ProducedPartition]] = {}
    for part, (partition, outcome, message) in zip(request.parts, outcomes, strict=True):
        if isinstance(outcome, AppendResult) and partition is not None:
            error, base_offset, time_ms = Code.NONE, outcome.base_offset, outcome.log_append_time_ms
            start_offset = partition.log.start_offset
        else:
            assert isinstance(outcome, Code)
            error, base_offset, time_ms, start_offset = outcome, _NO_OFFSET, NO_TIME, _NO_OFFSET
        # A producer may send the records of the batch again that are not listed as rejected.
        rejected = (
            [(position, message.reason) for position in message.places]
            if isinstance(message, RejectedRecords)
            else ()
        )
        reason = None if message is None else str(message)
        topics.setdefault(part.topic, []).append(
            ProducedPartition(part.partition, error, base_offset, time_ms, start_offset, reason, rejected)
        )
    return ProduceResponse(list(topics.items()))


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
                    return partition, transactional_append_code(refused), f"{partition.name}: {refused.value}"
        return partition, node.topics.append(
            partition,
            part.records,
            now_ms=node.clock.now_ms(),
            transactional=request.transactional_id is not None,
        ), None  # fmt: skip
    except RejectedRecords as error:
        return partition, append_code(error), error
    except (InvalidError, ExpectationFailed, CorruptError, UnavailableError, OSError) as error:
        return partition, append_code(error), str(error)
