"""Requests of the members of share groups: heartbeat, fetch, acknowledge (KIP-932)."""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Collection
from typing import Any

from headwater.errors import CorruptError
from headwater.transmit.broker.error_codes import ACKNOWLEDGEMENT_CODES, SHARE_MEMBER_CODES, SHARE_SESSION_CODES
from headwater.transmit.broker.group_messages import heartbeat_error, heartbeat_response
from headwater.transmit.broker.node import NODE_ID, Node
from headwater.transmit.broker.request import RequestContext
from headwater.transmit.groups.settings import SHARE_HEARTBEAT_MS
from headwater.transmit.groups.share.members import (
    CLOSES,
    AssignedPartition,
    MemberError,
    ShareHeartbeat,
    ShareSession,
    ShareSessionError,
)
from headwater.transmit.groups.share.share_groups import AcquiredRecords
from headwater.transmit.groups.share.share_partition import Acknowledgement
from headwater.transmit.groups.store import GroupKind
from headwater.transmit.log.partition import LEADER_EPOCH
from headwater.transmit.wire.codes import Code
from headwater.transmit.wire.json_messages import (
    ShareAcknowledgeResponse,
    ShareFetchResponse,
    ShareGroupHeartbeatResponse,
)

logger = logging.getLogger(__name__)

FETCH_BYTES_MAX = 8 << 20
_RECORD_LIMIT = 1  # the acquire mode in which the number of records is exact (KIP-1206)


# -- members --------------------------------------------------------------------------------------------------


def share_group_heartbeat(node: Node, request: Any, context: RequestContext) -> Any:
    """Keep a member in its group, and return the partitions to fetch from if they have changed."""
    shape = ShareGroupHeartbeatResponse
    interval_ms = node.share_groups.settings(request.group_id).number(SHARE_HEARTBEAT_MS)
    if not request.group_id:
        return heartbeat_error(shape, Code.INVALID_REQUEST, interval_ms)
    if node.group_kinds.get(request.group_id) not in (None, GroupKind.SHARE):
        return heartbeat_error(shape, Code.GROUP_ID_NOT_FOUND, interval_ms)
    names = request.subscribed_topic_names
    reply = node.share_groups.heartbeat(
        request.group_id,
        ShareHeartbeat(
            member_id=request.member_id,
            epoch=request.member_epoch,
            topics=None if names is None else frozenset(names),
            client_id=context.client_id,
            client_host=context.host,
            rack=request.rack_id,
            connection=context.connection,
        ),
    )
    if isinstance(reply, MemberError):
        return heartbeat_error(shape, SHARE_MEMBER_CODES[reply], interval_ms)
    return heartbeat_response(node.topics, shape, reply, interval_ms)


# -- fetching -------------------------------------------------------------------------------------------------


def share_fetch(node: Node, request: Any, context: RequestContext) -> Any | Awaitable[Any]:
    """Apply acknowledgements at once, in the order of the requests; respond when records can be acquired."""
    acks = _acknowledgements(request)
    session = _step_session(node, request, context, acks, forgets=bool(request.forgotten_topics_data))
    if isinstance(session, ShareSessionError):
        code = SHARE_SESSION_CODES[session]
        return _fetched(node, request, code, {}, {}, {})
    for topic in request.topics:
        session.places |= {(topic.topic_id, p.partition_index): None for p in topic.partitions}
    for topic in request.forgotten_topics_data:
        for number in topic.partitions:
            session.places.pop((topic.topic_id, number), None)
    errors = {partition: _acknowledge(node, request, partition, some) for partition, some in acks.items()}
    if request.share_session_epoch == CLOSES:
        node.share_groups.close_session(request.group_id, request.member_id)
        return _fetched(node, request, Code.NONE, errors, {}, {})
    return _fetch(node, request, session, errors)


def _step_session(
    node: Node, request: Any, context: RequestContext, acks: Collection[object], *, forgets: bool = False
) -> ShareSession | ShareSessionError:
    return node.share_groups.sessions.step(
        request.group_id or "",
        request.member_id or "",
        request.share_session_epoch,
        acknowledges=bool(acks),
        forgets=forgets,
        connection=context.connection,
    )


def _acknowledgements(request: Any) -> dict[AssignedPartition, list[Acknowledgement]]:
    """Return the acknowledgements for each partition; a request may contain a topic twice."""
    found: dict[AssignedPartition, list[Acknowledgement]] = {}
    for topic in request.topics:
        for partition in topic.partitions:
            for batch in partition.acknowledgement_batches:
                found.setdefault((topic.topic_id, partition.partition_index), []).append(
                    Acknowledgement(
                        first=batch.first_offset, last=batch.last_offset, kinds=batch.acknowledge_types
                    )
                )
    return found


def _acknowledge(node: Node, request: Any, partition: AssignedPartition, acks: list[Acknowledgement]) -> Code:
    if node.share_groups.partition(partition) is None:
        return _missing(node, partition)
    return ACKNOWLEDGEMENT_CODES[
        node.share_groups.acknowledge(request.group_id, request.member_id, partition, acks)
    ]


def _missing(node: Node, partition: AssignedPartition) -> Code:
    return Code.UNKNOWN_TOPIC_ID if node.topics.entry(partition[0]) is None else Code.UNKNOWN_TOPIC_OR_PARTITION


async def _fetch(node: Node, request: Any, session: ShareSession, acked: dict[AssignedPartition, Code]) -> Any:
    deadline = node.clock.monotonic() + max(request.max_wait_ms, 0) / 1000
    missing = {p: _missing(node, p) for p in session.places if node.share_groups.partition(p) is None}
    while True:
        if not node.share_groups.sessions.is_open(request.group_id, request.member_id, session):
            # While this fetch waited, its connection was closed, or another fetch opened a new session.
            return _fetched(node, request, Code.SHARE_SESSION_NOT_FOUND, acked, {}, {})
        acquired, damaged = _acquire(node, request, session)
        missing |= damaged
        left = deadline - node.clock.monotonic()
        if acquired or missing or left <= 0 or request.max_records <= 0:
            return _fetched(node, request, Code.NONE, acked, missing, acquired)
        await _wait(node, request.group_id, session, left)


async def _wait(node: Node, group: str, session: ShareSession, seconds: float) -> None:
    """Wait until a partition grows or records of the group become available again."""
    event = asyncio.Event()
    partitions = [p for p in map(node.share_groups.partition, session.places) if p is not None]
    for partition in partitions:
        partition.on_advance(event.set)
    node.share_groups.waiters.add(group, event.set)
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        pass
    finally:
        node.share_groups.waiters.discard(group, event.set)
        for partition in partitions:
            partition.forget(event.set)


def _acquire(
    node: Node, request: Any, session: ShareSession
) -> tuple[dict[AssignedPartition, AcquiredRecords], dict[AssignedPartition, Code]]:
    left, count = min(request.max_bytes, FETCH_BYTES_MAX), request.max_records
    found: dict[AssignedPartition, AcquiredRecords] = {}
    damaged: dict[AssignedPartition, Code] = {}
    for partition in session.turn():
        if left <= 0 or count <= 0:
            break
        try:
            acquired = node.share_groups.lend(
                request.group_id,
                request.member_id,
                partition,
                bytes_max=left,
                records_max=count,
                exact=request.share_acquire_mode == _RECORD_LIMIT,
            )
        except (CorruptError, OSError) as error:
            logger.error(
                "cannot read partition %d of topic %s for share group %r: %s",
                partition[1],
                partition[0],
                request.group_id,
                error,
            )
            damaged[partition] = Code.KAFKA_STORAGE_ERROR
            continue
        if acquired is not None:
            found[partition] = acquired
            left -= len(acquired.records)
            count -= sum(span.records for span in acquired.spans)
    return found, damaged


def _fetched(
    node: Node,
    request: Any,
    code: Code,
    acked: dict[AssignedPartition, Code],
    missing: dict[AssignedPartition, Code],
    acquired: dict[AssignedPartition, AcquiredRecords],
) -> Any:
    topic_shape = ShareFetchResponse.ShareFetchableTopicResponse
    shape = topic_shape.PartitionData
    topics: dict[uuid.UUID, list[Any]] = {}
    for partition in {**acked, **missing, **acquired}:
        found = acquired.get(partition)
        topics.setdefault(partition[0], []).append(
            shape(
                partition_index=partition[1],
                error_code=missing.get(partition, Code.NONE),
                acknowledge_error_code=acked.get(partition, Code.NONE),
                current_leader=shape.LeaderIdAndEpoch(leader_id=NODE_ID, leader_epoch=LEADER_EPOCH),
                records=found.records if found else b"",
                acquired_records=[
                    shape.AcquiredRecords(first_offset=s.first, last_offset=s.last, delivery_count=s.count)
                    for s in (found.spans if found else ())
                ],
            )
        )
    return ShareFetchResponse(
        error_code=code,
        error_message=None if code == Code.NONE else code.name,
        acquisition_lock_timeout_ms=_lock_ms(node, request),
        responses=[topic_shape(topic_id=topic, partitions=some) for topic, some in topics.items()],
        node_endpoints=[],
    )


def _lock_ms(node: Node, request: Any) -> int:
    return round(node.share_groups.settings(request.group_id or "").limits.lock_s * 1000)


# -- acknowledging --------------------------------------------------------------------------------------------


def share_acknowledge(node: Node, request: Any, context: RequestContext) -> Any:
    """Apply acknowledgements without fetching."""
    acks = _acknowledgements(request)
    session = _step_session(node, request, context, acks)
    shape = ShareAcknowledgeResponse.ShareAcknowledgeTopicResponse
    code, topics = Code.NONE, dict[uuid.UUID, list[Any]]()
    if isinstance(session, ShareSessionError):
        code = SHARE_SESSION_CODES[session]
    else:
        for partition, some in acks.items():
            topics.setdefault(partition[0], []).append(
                shape.PartitionData(
                    partition_index=partition[1],
                    error_code=_acknowledge(node, request, partition, some),
                    current_leader=shape.PartitionData.LeaderIdAndEpoch(
                        leader_id=NODE_ID, leader_epoch=LEADER_EPOCH
                    ),
                )
            )
        if request.share_session_epoch == CLOSES:
            node.share_groups.close_session(request.group_id, request.member_id)
    return ShareAcknowledgeResponse(
        error_code=code,
        error_message=None if code == Code.NONE else code.name,
        acquisition_lock_timeout_ms=_lock_ms(node, request),
        responses=[shape(topic_id=topic, partitions=some) for topic, some in topics.items()],
        node_endpoints=[],
    )
