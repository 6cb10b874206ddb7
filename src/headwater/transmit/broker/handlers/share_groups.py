"""Share groups: heartbeats, fetching, acknowledging (KIP-932)."""

import asyncio
import logging
import uuid
from collections.abc import Awaitable
from typing import Any

from headwater.errors import CorruptError
from headwater.transmit.broker.handlers import RequestContext
from headwater.transmit.broker.node import NODE_ID, Node
from headwater.transmit.groups.heartbeats import Assignment
from headwater.transmit.groups.kinds import kind_of
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
from headwater.transmit.groups.share.share_partition import Acknowledgement, ShareError
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

_MEMBER_CODES = {
    MemberError.UNKNOWN_MEMBER: Code.UNKNOWN_MEMBER_ID,
    MemberError.FENCED_EPOCH: Code.FENCED_MEMBER_EPOCH,
    MemberError.GROUP_FULL: Code.GROUP_MAX_SIZE_REACHED,
    MemberError.INVALID_REQUEST: Code.INVALID_REQUEST,
}
_SESSION_CODES = {
    ShareSessionError.NOT_FOUND: Code.SHARE_SESSION_NOT_FOUND,
    ShareSessionError.INVALID_EPOCH: Code.INVALID_SHARE_SESSION_EPOCH,
    ShareSessionError.INVALID_REQUEST: Code.INVALID_REQUEST,
}
_ACK_CODES = {
    None: Code.NONE,
    ShareError.INVALID_STATE: Code.INVALID_RECORD_STATE,
    ShareError.INVALID_REQUEST: Code.INVALID_REQUEST,
}


# -- members --------------------------------------------------------------------------------------------------


def share_group_heartbeat(node: Node, request: Any, context: RequestContext) -> Any:
    """Keep a member in, and tell it which partitions to fetch from."""
    shape = ShareGroupHeartbeatResponse
    interval = node.queues.settings(request.group_id).number(SHARE_HEARTBEAT_MS)

    def refused(code: Code) -> Any:
        return shape(error_code=code, error_message=code.name, member_epoch=0, heartbeat_interval_ms=interval)

    if not request.group_id:
        return refused(Code.INVALID_REQUEST)
    if kind_of(node, request.group_id) not in (None, GroupKind.SHARE):
        return refused(Code.GROUP_ID_NOT_FOUND)
    names = request.subscribed_topic_names
    reply = node.queues.heartbeat(
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
        return refused(_MEMBER_CODES[reply])
    return shape(
        error_code=Code.NONE,
        member_id=reply.member_id,
        member_epoch=reply.epoch,
        heartbeat_interval_ms=interval,
        assignment=None
        if reply.assignment is None
        else shape.Assignment(topic_partitions=assigned(node, reply.assignment, shape.Assignment.TopicPartitions)),
    )


def assigned(node: Node, assignment: Assignment, shape: Any, *, named: bool = False) -> list[Any]:
    """An assignment as messages have it, by topic id."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(assignment):
        topics.setdefault(topic, []).append(partition)
    found = []
    for topic, partitions in topics.items():
        entry = node.topics.entry(topic)
        if entry is not None:
            names = {"topic_name": topic} if named else {}
            found.append(shape(topic_id=entry.id, partitions=partitions, **names))
    return found


# -- fetching -------------------------------------------------------------------------------------------------


def share_fetch(node: Node, request: Any, context: RequestContext) -> Any | Awaitable[Any]:
    """Take acknowledgements at once, in the order of the requests; answer when there are records to lend."""
    acks = _acknowledgements(request)
    session = node.queues.sessions.step(
        request.group_id or "",
        request.member_id or "",
        request.share_session_epoch,
        acknowledges=bool(acks),
        forgets=bool(request.forgotten_topics_data),
        connection=context.connection,
    )
    if isinstance(session, ShareSessionError):
        code = _SESSION_CODES[session]
        return _fetched(node, request, code, {}, {}, {})
    for topic in request.topics:
        session.places |= {(topic.topic_id, p.partition_index): None for p in topic.partitions}
    for topic in request.forgotten_topics_data:
        for number in topic.partitions:
            session.places.pop((topic.topic_id, number), None)
    errors = {place: _acknowledge(node, request, place, some) for place, some in acks.items()}
    if request.share_session_epoch == CLOSES:
        node.queues.close_session(request.group_id, request.member_id)
        return _fetched(node, request, Code.NONE, errors, {}, {})
    return _fetch(node, request, session, errors)


def _acknowledgements(request: Any) -> dict[AssignedPartition, list[Acknowledgement]]:
    """What is said of each partition; a topic may be named twice."""
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


def _acknowledge(node: Node, request: Any, place: AssignedPartition, acks: list[Acknowledgement]) -> Code:
    if node.queues.partition(place) is None:
        return _missing(node, place)
    return _ACK_CODES[node.queues.acknowledge(request.group_id, request.member_id, place, acks)]


def _missing(node: Node, place: AssignedPartition) -> Code:
    return Code.UNKNOWN_TOPIC_ID if node.topics.entry(place[0]) is None else Code.UNKNOWN_TOPIC_OR_PARTITION


async def _fetch(node: Node, request: Any, session: ShareSession, acked: dict[AssignedPartition, Code]) -> Any:
    deadline = node.clock.monotonic() + max(request.max_wait_ms, 0) / 1000
    missing = {p: _missing(node, p) for p in session.places if node.queues.partition(p) is None}
    while True:
        if not node.queues.sessions.is_open(request.group_id, request.member_id, session):
            # Its connection went, or another fetch opened a new one, while this one waited.
            return _fetched(node, request, Code.SHARE_SESSION_NOT_FOUND, acked, {}, {})
        lent, damaged = _lend(node, request, session)
        missing |= damaged
        left = deadline - node.clock.monotonic()
        if lent or missing or left <= 0 or request.max_records <= 0:
            return _fetched(node, request, Code.NONE, acked, missing, lent)
        await _wait(node, request.group_id, session, left)


async def _wait(node: Node, group: str, session: ShareSession, seconds: float) -> None:
    """Wait until a partition grows or records of the group come back."""
    news = asyncio.Event()
    partitions = [p for p in map(node.queues.partition, session.places) if p is not None]
    for partition in partitions:
        partition.on_advance(news.set)
    node.queues.waiters.add(group, news.set)
    try:
        await asyncio.wait_for(news.wait(), seconds)
    except TimeoutError:
        pass
    finally:
        node.queues.waiters.discard(group, news.set)
        for partition in partitions:
            partition.forget(news.set)


def _lend(
    node: Node, request: Any, session: ShareSession
) -> tuple[dict[AssignedPartition, AcquiredRecords], dict[AssignedPartition, Code]]:
    room, count = min(request.max_bytes, FETCH_BYTES_MAX), request.max_records
    found: dict[AssignedPartition, AcquiredRecords] = {}
    damaged: dict[AssignedPartition, Code] = {}
    for place in session.turn():
        if room <= 0 or count <= 0:
            break
        try:
            lent = node.queues.acquire(
                request.group_id,
                request.member_id,
                place,
                bytes_max=room,
                records_max=count,
                exact=request.share_acquire_mode == _RECORD_LIMIT,
            )
        except (CorruptError, OSError) as error:
            logger.error("cannot read %s partition %d for a queue: %s", *place, error)
            damaged[place] = Code.KAFKA_STORAGE_ERROR
            continue
        if lent is not None:
            found[place] = lent
            room -= len(lent.records)
            count -= sum(span.records for span in lent.spans)
    return found, damaged


def _fetched(
    node: Node,
    request: Any,
    code: Code,
    acked: dict[AssignedPartition, Code],
    missing: dict[AssignedPartition, Code],
    lent: dict[AssignedPartition, AcquiredRecords],
) -> Any:
    topic_shape = ShareFetchResponse.ShareFetchableTopicResponse
    shape = topic_shape.PartitionData
    topics: dict[uuid.UUID, list[Any]] = {}
    for place in {**acked, **missing, **lent}:
        found = lent.get(place)
        topics.setdefault(place[0], []).append(
            shape(
                partition_index=place[1],
                error_code=missing.get(place, Code.NONE),
                acknowledge_error_code=acked.get(place, Code.NONE),
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
    return round(node.queues.settings(request.group_id or "").limits.lock_s * 1000)


# -- acknowledging --------------------------------------------------------------------------------------------


def share_acknowledge(node: Node, request: Any, context: RequestContext) -> Any:
    """Take acknowledgements without fetching."""
    acks = _acknowledgements(request)
    session = node.queues.sessions.step(
        request.group_id or "",
        request.member_id or "",
        request.share_session_epoch,
        acknowledges=bool(acks),
        connection=context.connection,
    )
    shape = ShareAcknowledgeResponse.ShareAcknowledgeTopicResponse
    code, topics = Code.NONE, dict[uuid.UUID, list[Any]]()
    if isinstance(session, ShareSessionError):
        code = _SESSION_CODES[session]
    else:
        for place, some in acks.items():
            topics.setdefault(place[0], []).append(
                shape.PartitionData(
                    partition_index=place[1],
                    error_code=_acknowledge(node, request, place, some),
                    current_leader=shape.PartitionData.LeaderIdAndEpoch(
                        leader_id=NODE_ID, leader_epoch=LEADER_EPOCH
                    ),
                )
            )
        if request.share_session_epoch == CLOSES:
            node.queues.close_session(request.group_id, request.member_id)
    return ShareAcknowledgeResponse(
        error_code=code,
        error_message=None if code == Code.NONE else code.name,
        acquisition_lock_timeout_ms=_lock_ms(node, request),
        responses=[shape(topic_id=topic, partitions=some) for topic, some in topics.items()],
        node_endpoints=[],
    )
