"""Transactions: producer ids, the partitions and offsets of a transaction, its end, and describing it."""

import re
from collections.abc import Awaitable
from typing import Any

from kafka.protocol.admin import (
    DescribeProducersResponse,
    DescribeTransactionsResponse,
    ListTransactionsResponse,
)
from kafka.protocol.producer import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnResponse,
    EndTxnResponse,
    InitProducerIdResponse,
    TxnOffsetCommitResponse,
    WriteTxnMarkersResponse,
)

from headwater.errors import UnavailableError
from headwater.record import TopicPartition
from headwater.transmit.broker.error_codes import TRANSACTION_CODES
from headwater.transmit.broker.node import Node
from headwater.transmit.broker.offset_commits import check_committer, check_offset, committed_offset
from headwater.transmit.broker.request import RequestContext
from headwater.transmit.records.control import Marker
from headwater.transmit.topics.catalog import CommittedOffset
from headwater.transmit.topics.partition import RefusedBatch
from headwater.transmit.transactions.transaction import (
    ProducerClaim,
    Transaction,
    TransactionError,
    TransactionState,
)
from headwater.transmit.wire.codes import Code

_FENCED_FROM_VERSION = {InitProducerIdResponse: 4, AddPartitionsToTxnResponse: 2, AddOffsetsToTxnResponse: 2,
                        EndTxnResponse: 2}  # fmt: skip
"""Versions since which clients know PRODUCER_FENCED; older ones get INVALID_PRODUCER_EPOCH (KIP-588)."""

_GENERATION_FROM = 3


def _code(outcome: Any, response: Any, context: RequestContext) -> Code:
    if not isinstance(outcome, TransactionError):
        return Code.NONE
    knows_fenced = context.version >= _FENCED_FROM_VERSION.get(response, context.version + 1)
    if outcome is TransactionError.FENCED and knows_fenced:
        return Code.PRODUCER_FENCED
    return TRANSACTION_CODES[outcome]


# -- producers ------------------------------------------------------------------------------------------------


def init_producer_id(node: Node, request: Any, context: RequestContext) -> Any:
    """Return a producer id and epoch; a transactional id fences its previous producer."""
    if request.transactional_id is None:
        return _identity(Code.NONE, node.catalog.next_producer_id(), 0)
    if not request.transactional_id:
        return _identity(Code.INVALID_REQUEST)
    if not 0 < request.transaction_timeout_ms <= node.transactions.settings.timeout_ms_max:
        return _identity(Code.INVALID_TRANSACTION_TIMEOUT)
    claim = ProducerClaim(producer_id=request.producer_id, epoch=request.producer_epoch)
    outcome = node.transactions.begin_producer(
        request.transactional_id, claim, request.transaction_timeout_ms, node.catalog.next_producer_id
    )
    if isinstance(outcome, Transaction):
        return _identity(Code.NONE, outcome.producer_id, outcome.epoch)
    return _identity(_code(outcome, InitProducerIdResponse, context))


def _identity(code: Code, producer_id: int = -1, epoch: int = -1) -> Any:
    return InitProducerIdResponse(
        error_code=code, producer_id=producer_id, producer_epoch=epoch, throttle_time_ms=0
    )


# -- partitions and offsets -----------------------------------------------------------------------------------


def add_partitions_to_txn(node: Node, request: Any, context: RequestContext) -> Any:
    """Add partitions to a transaction: all of them, or none."""
    wanted = [
        TopicPartition(topic.name, number) for topic in request.v3_and_below_topics for number in topic.partitions
    ]
    unknown = {tp for tp in wanted if node.topics.partition(tp.topic, tp.partition) is None}
    if unknown:
        codes = {
            tp: Code.UNKNOWN_TOPIC_OR_PARTITION if tp in unknown else Code.OPERATION_NOT_ATTEMPTED for tp in wanted
        }
    else:
        claim = ProducerClaim(
            producer_id=request.v3_and_below_producer_id, epoch=request.v3_and_below_producer_epoch
        )
        outcome = node.transactions.add_partitions(request.v3_and_below_transactional_id, claim, wanted)
        codes = dict.fromkeys(wanted, _code(outcome, AddPartitionsToTxnResponse, context))
    shape = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
    return AddPartitionsToTxnResponse(
        throttle_time_ms=0,
        results_by_topic_v3_and_below=[
            shape(
                name=topic.name,
                results_by_partition=[
                    shape.AddPartitionsToTxnPartitionResult(
                        partition_index=number, partition_error_code=codes[TopicPartition(topic.name, number)]
                    )
                    for number in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ],
    )


def add_offsets_to_txn(node: Node, request: Any, context: RequestContext) -> Any:
    """Add the offsets of a group to a transaction."""
    claim = ProducerClaim(producer_id=request.producer_id, epoch=request.producer_epoch)
    outcome = node.transactions.add_group(request.transactional_id, claim, request.group_id)
    return AddOffsetsToTxnResponse(throttle_time_ms=0, error_code=_code(outcome, AddOffsetsToTxnResponse, context))


def txn_offset_commit(node: Node, request: Any, context: RequestContext) -> Any:
    """Keep offsets until their transaction is committed or aborted."""
    claim = ProducerClaim(producer_id=request.producer_id, epoch=request.producer_epoch)
    refused = node.transactions.check_offsets(request.transactional_id, claim, request.group_id)
    code = _code(refused, TxnOffsetCommitResponse, context)
    if code == Code.NONE and context.version >= _GENERATION_FROM and request.generation_id >= 0:
        code = check_committer(
            node.group_kinds,
            request,
            epoch=request.generation_id,
            version=context.version,
            now=node.clock.monotonic(),
        )
        if code == Code.UNSUPPORTED_VERSION:
            code = Code.ILLEGAL_GENERATION  # the only error of this request for an old epoch
    accepted: list[tuple[TopicPartition, CommittedOffset]] = []
    shape = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
    topics = []
    for topic in request.topics:
        partitions = []
        for partition in topic.partitions:
            found = code or check_offset(node.topics, topic.name, partition)
            if found == Code.NONE:
                accepted.append(
                    (TopicPartition(topic.name, partition.partition_index), committed_offset(partition))
                )
            partitions.append(
                shape.TxnOffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=found)
            )
        topics.append(shape(name=topic.name, partitions=partitions))
    if accepted:
        node.transactions.add_offsets(request.transactional_id, request.group_id, accepted)
    return TxnOffsetCommitResponse(throttle_time_ms=0, topics=topics)


# -- the end of a transaction ---------------------------------------------------------------------------------


async def end_txn(node: Node, request: Any, context: RequestContext) -> Any:
    """Commit or abort; once this has responded, `read_committed` consumers see the result."""
    claim = ProducerClaim(producer_id=request.producer_id, epoch=request.producer_epoch)
    error = await node.transactions.end(request.transactional_id, claim, commit=request.committed)
    return EndTxnResponse(throttle_time_ms=0, error_code=_code(error, EndTxnResponse, context))


def write_txn_markers(node: Node, request: Any, context: RequestContext) -> Awaitable[Any]:
    """Write transaction markers to partitions, so that an administrator can end a hanging transaction."""
    written: list[tuple[Any, Any, int, Any, Code | int]] = []
    for wanted in request.markers:
        marker = Marker(
            producer_id=wanted.producer_id,
            producer_epoch=wanted.producer_epoch,
            is_commit=wanted.transaction_result,
            coordinator_epoch=wanted.coordinator_epoch,
        )
        for topic in wanted.topics:
            for number in topic.partition_indexes:
                partition = node.topics.partition(topic.name, number)
                written.append((wanted, topic, number, partition, _write_marker(node, partition, marker)))
    return _respond_when_written(request, written)


def _write_marker(node: Node, partition: Any, marker: Marker) -> Code | int:
    """Return the offset after the marker, or an error code."""
    if partition is None:
        return Code.UNKNOWN_TOPIC_OR_PARTITION
    try:
        return node.topics.append_marker(partition, marker, now_ms=node.clock.now_ms()).next_offset
    except RefusedBatch:
        return Code.INVALID_PRODUCER_EPOCH
    except (OSError, UnavailableError):
        return Code.KAFKA_STORAGE_ERROR


async def _respond_when_written(request: Any, written: list[tuple[Any, Any, int, Any, Code | int]]) -> Any:
    shape = WriteTxnMarkersResponse.WritableTxnMarkerResult
    topic_shape = shape.WritableTxnMarkerTopicResult
    results: dict[int, dict[str, list[Any]]] = {id(wanted): {} for wanted in request.markers}
    for wanted, topic, number, partition, outcome in written:
        code = outcome if isinstance(outcome, Code) else Code.NONE
        if code == Code.NONE:
            try:
                await partition.wait_durable(outcome)
            except UnavailableError:
                code = Code.KAFKA_STORAGE_ERROR
        results[id(wanted)].setdefault(topic.name, []).append(
            topic_shape.WritableTxnMarkerPartitionResult(partition_index=number, error_code=code)
        )
    return WriteTxnMarkersResponse(
        markers=[
            shape(
                producer_id=wanted.producer_id,
                topics=[topic_shape(name=name, partitions=found) for name, found in results[id(wanted)].items()],
            )
            for wanted in request.markers
        ]
    )


# -- describing -----------------------------------------------------------------------------------------------


def describe_transactions(node: Node, request: Any, context: RequestContext) -> Any:
    """Describe transactional ids."""
    return DescribeTransactionsResponse(
        throttle_time_ms=0, transaction_states=[_described(node, name) for name in request.transactional_ids]
    )


def _described(node: Node, name: str) -> Any:
    shape = DescribeTransactionsResponse.TransactionState
    known = node.transactions.get(name)
    if known is None:
        return shape(
            error_code=Code.TRANSACTIONAL_ID_NOT_FOUND,
            transactional_id=name,
            transaction_state="",
            transaction_timeout_ms=0,
            transaction_start_time_ms=-1,
            producer_id=-1,
            producer_epoch=-1,
            topics=[],
        )
    topics: dict[str, list[int]] = {}
    for partition in sorted(known.partitions):
        topics.setdefault(partition.topic, []).append(partition.partition)
    return shape(
        error_code=Code.NONE,
        transactional_id=name,
        transaction_state=known.state.value,
        transaction_timeout_ms=known.timeout_ms,
        transaction_start_time_ms=known.started_ms,
        producer_id=known.producer_id,
        producer_epoch=known.epoch,
        topics=[shape.TopicData(topic=topic, partitions=numbers) for topic, numbers in topics.items()],
    )


def list_transactions(node: Node, request: Any, context: RequestContext) -> Any:
    """List the transactional ids that match the filters."""
    states = {state.value for state in TransactionState}
    wanted = set(request.state_filters or [])
    pattern = request.transactional_id_pattern if context.version >= 2 else None
    longer_ms = request.duration_filter if context.version >= 1 else -1
    now_ms = node.clock.now_ms()
    return ListTransactionsResponse(
        throttle_time_ms=0,
        error_code=Code.NONE,
        unknown_state_filters=sorted(wanted - states),
        transaction_states=[
            ListTransactionsResponse.TransactionState(
                transactional_id=known.id, producer_id=known.producer_id, transaction_state=known.state.value
            )
            for known in node.transactions.all()
            if (not wanted or known.state.value in wanted)
            and (not request.producer_id_filters or known.producer_id in request.producer_id_filters)
            and (longer_ms < 0 or (known.started_ms >= 0 and now_ms - known.started_ms > longer_ms))
            and (not pattern or re.fullmatch(pattern, known.id))
        ],
    )


def describe_producers(node: Node, request: Any, context: RequestContext) -> Any:
    """Describe the producers of partitions and their open transactions."""
    shape = DescribeProducersResponse.TopicResponse
    return DescribeProducersResponse(
        throttle_time_ms=0,
        topics=[
            shape(
                name=topic.name,
                partitions=[_producers(node, topic.name, number) for number in topic.partition_indexes],
            )
            for topic in request.topics
        ],
    )


def _producers(node: Node, topic: str, number: int) -> Any:
    shape = DescribeProducersResponse.TopicResponse.PartitionResponse
    partition = node.topics.partition(topic, number)
    if partition is None:
        return shape(
            partition_index=number,
            error_code=Code.UNKNOWN_TOPIC_OR_PARTITION,
            error_message=f"there is no partition {topic}-{number}",
            active_producers=[],
        )
    return shape(
        partition_index=number,
        error_code=Code.NONE,
        error_message=None,
        active_producers=[
            shape.ProducerState(
                producer_id=info.producer_id,
                producer_epoch=info.epoch,
                last_sequence=info.last_sequence,
                last_timestamp=info.last_ms,
                coordinator_epoch=info.coordinator_epoch,
                current_txn_start_offset=info.transaction_start,
            )
            for info in partition.producers.infos()
        ],
    )
