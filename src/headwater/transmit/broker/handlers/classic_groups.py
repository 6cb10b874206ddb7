"""Consumer groups: joining, heartbeats, committed offsets, and looking at groups."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from kafka.protocol.consumer import (
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    OffsetCommitResponse,
    OffsetFetchResponse,
    SyncGroupResponse,
)

from headwater.record import TopicPartition
from headwater.transmit.broker.handlers import RequestContext
from headwater.transmit.broker.handlers.consumer_groups import CODES as CONSUMER_CODES
from headwater.transmit.broker.node import Node
from headwater.transmit.groups.classic_rounds import GroupError, JoinReply, JoinRequest, SyncReply
from headwater.transmit.groups.consumer import ConsumerError
from headwater.transmit.groups.kinds import may_be_classic
from headwater.transmit.topics.catalog import CommittedOffset
from headwater.transmit.wire.codes import Code

OFFSET_METADATA_MAX = 4096
_MEMBER_ID_REQUIRED_FROM = 4
_MANY_MEMBERS_FROM = 3
_MANY_GROUPS_FROM = 8
_MEMBER_EPOCH_FROM = 9
_TOPIC_ID_FROM = 10

Reply = TypeVar("Reply", JoinReply, SyncReply)

CODES = {
    GroupError.NONE: Code.NONE,
    GroupError.UNKNOWN_MEMBER: Code.UNKNOWN_MEMBER_ID,
    GroupError.ILLEGAL_GENERATION: Code.ILLEGAL_GENERATION,
    GroupError.REBALANCE_IN_PROGRESS: Code.REBALANCE_IN_PROGRESS,
    GroupError.INCONSISTENT_PROTOCOL: Code.INCONSISTENT_GROUP_PROTOCOL,
    GroupError.MEMBER_ID_REQUIRED: Code.MEMBER_ID_REQUIRED,
    GroupError.FENCED_INSTANCE: Code.FENCED_INSTANCE_ID,
    GroupError.GROUP_FULL: Code.GROUP_MAX_SIZE_REACHED,
    GroupError.NON_EMPTY: Code.NON_EMPTY_GROUP,
    GroupError.NOT_FOUND: Code.GROUP_ID_NOT_FOUND,
}


# -- membership -----------------------------------------------------------------------------------------------


async def join_group(node: Node, request: Any, context: RequestContext) -> Any:
    """Answer when the round the member joined is complete."""
    if not request.group_id:
        return _joined(JoinReply(member_id=request.member_id), context, Code.INVALID_GROUP_ID)
    if request.session_timeout_ms <= 0:
        return _joined(JoinReply(member_id=request.member_id), context, Code.INVALID_SESSION_TIMEOUT)
    if not may_be_classic(node, request.group_id):
        return _joined(JoinReply(member_id=request.member_id), context, Code.INCONSISTENT_GROUP_PROTOCOL)
    # Before version 1 a member had one timeout for both.
    rebalance_ms = request.rebalance_timeout_ms if context.version >= 1 else request.session_timeout_ms
    member = JoinRequest(
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        client_id=context.client_id,
        client_host=context.host,
        session_timeout_s=request.session_timeout_ms / 1000,
        rebalance_timeout_s=max(rebalance_ms, 0) / 1000,
        protocol_type=request.protocol_type,
        protocols=tuple((p.name, bytes(p.metadata)) for p in request.protocols),
        knows_member_id_required=context.version >= _MEMBER_ID_REQUIRED_FROM,
    )
    answer: asyncio.Future[JoinReply] = asyncio.get_running_loop().create_future()
    node.groups.join(request.group_id, member, _to(answer), node.clock.monotonic())
    reply = await answer
    return _joined(reply, context, CODES[reply.error])


def _to(answer: asyncio.Future[Reply]) -> Callable[[Reply], None]:
    """Answer by the future, unless the client has gone and nobody waits for it."""

    def set_result(reply: Reply) -> None:
        if not answer.done():
            answer.set_result(reply)

    return set_result


def _joined(reply: JoinReply, context: RequestContext, code: Code) -> Any:
    return JoinGroupResponse(
        error_code=code,
        generation_id=reply.generation,
        protocol_type=reply.protocol_type,
        # Up to version 6 the name may not be null.
        protocol_name=reply.protocol if reply.protocol is not None or context.version > 6 else "",
        leader=reply.leader,
        skip_assignment=False,
        member_id=reply.member_id,
        members=[
            JoinGroupResponse.JoinGroupResponseMember(
                member_id=member_id, group_instance_id=instance_id, metadata=metadata
            )
            for member_id, instance_id, metadata in reply.members
        ],
    )


async def sync_group(node: Node, request: Any, context: RequestContext) -> Any:
    """Answer when the leader has said who reads what."""
    answer: asyncio.Future[SyncReply] = asyncio.get_running_loop().create_future()
    node.groups.sync(
        request.group_id,
        request.member_id,
        request.generation_id,
        {a.member_id: bytes(a.assignment) for a in request.assignments},
        _to(answer),
        node.clock.monotonic(),
        request.group_instance_id,
    )
    reply = await answer
    return SyncGroupResponse(
        error_code=CODES[reply.error],
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol,
        assignment=reply.assignment,
    )


def heartbeat(node: Node, request: Any, context: RequestContext) -> Any:
    error = node.groups.heartbeat(
        request.group_id,
        request.member_id,
        request.generation_id,
        node.clock.monotonic(),
        request.group_instance_id,
    )
    return HeartbeatResponse(error_code=CODES[error])


def leave_group(node: Node, request: Any, context: RequestContext) -> Any:
    """Take out one member (old versions) or several."""
    now = node.clock.monotonic()
    if context.version < _MANY_MEMBERS_FROM:
        return LeaveGroupResponse(
            error_code=CODES[node.groups.leave(request.group_id, request.member_id, None, now)]
        )
    return LeaveGroupResponse(
        error_code=Code.NONE,
        members=[
            LeaveGroupResponse.MemberResponse(
                member_id=m.member_id,
                group_instance_id=m.group_instance_id,
                error_code=CODES[node.groups.leave(request.group_id, m.member_id, m.group_instance_id, now)],
            )
            for m in request.members
        ],
    )


# -- committed offsets ----------------------------------------------------------------------------------------


def offset_commit(node: Node, request: Any, context: RequestContext) -> Any:
    """Remember how far a group has come, where the committer may say so."""
    refusal = check_committer(node, request, request.generation_id_or_member_epoch, context)
    accepted: list[tuple[TopicPartition, CommittedOffset]] = []
    topics = []
    for topic in request.topics:
        partitions = []
        name, unknown = _named(node, topic, context)
        for p in topic.partitions:
            code = refusal or unknown or check_commit(node, name, p)
            if code == Code.NONE:
                accepted.append((TopicPartition(name, p.partition_index), committed(p)))
            partitions.append(
                OffsetCommitResponse.OffsetCommitResponseTopic.OffsetCommitResponsePartition(
                    partition_index=p.partition_index, error_code=code
                )
            )
        topics.append(
            OffsetCommitResponse.OffsetCommitResponseTopic(
                name=name, topic_id=topic.topic_id, partitions=partitions
            )
        )
    if accepted:
        node.catalog.commit_offsets(request.group_id, accepted, now_ms=node.clock.now_ms())
    return OffsetCommitResponse(topics=topics)


def check_committer(node: Node, request: Any, epoch: int, context: RequestContext) -> Code:
    """Whether the one who commits may; in a group of the new protocol the generation is its member's epoch."""
    group = node.consumers.get(request.group_id)
    if group is None:
        error = node.groups.check_commit(
            request.group_id, request.member_id, epoch, node.clock.monotonic(), request.group_instance_id
        )
        return CODES[error]
    refused = group.check_offsets(request.member_id, epoch)
    if refused is ConsumerError.STALE_EPOCH and context.version < _MEMBER_EPOCH_FROM:
        return Code.UNSUPPORTED_VERSION  # it could not tell what is wrong
    return CONSUMER_CODES[refused] if refused else Code.NONE


def _named(node: Node, topic: Any, context: RequestContext) -> tuple[str, Code]:
    """The name of a topic, which newer versions give by its id."""
    if context.version < _TOPIC_ID_FROM:
        return topic.name, Code.NONE
    entry = node.topics.entry(topic.topic_id)
    return (entry.name, Code.NONE) if entry else ("", Code.UNKNOWN_TOPIC_ID)


def check_commit(node: Node, topic: str, asked: Any) -> Code:
    """Whether an offset can be committed for a partition."""
    if node.topics.partition(topic, asked.partition_index) is None:
        return Code.UNKNOWN_TOPIC_OR_PARTITION
    if len(asked.committed_metadata or "") > OFFSET_METADATA_MAX:
        return Code.OFFSET_METADATA_TOO_LARGE
    return Code.NONE


def committed(asked: Any) -> CommittedOffset:
    """The offset that a request wants to be kept."""
    return CommittedOffset(
        offset=asked.committed_offset,
        leader_epoch=asked.committed_leader_epoch,
        metadata=asked.committed_metadata,
    )


def offset_fetch(node: Node, request: Any, context: RequestContext) -> Any:
    """Tell how far groups have come, for some partitions or all they ever committed."""
    if context.version < _MANY_GROUPS_FROM:
        topics = _fetched(node, request, request, OffsetFetchResponse.OffsetFetchResponseTopic, context)
        return OffsetFetchResponse(error_code=Code.NONE, topics=topics)
    return OffsetFetchResponse(groups=[_fetched_group(node, request, group, context) for group in request.groups])


def _offset_code(topic: str, undecided: bool) -> Code:
    if not topic:
        return Code.UNKNOWN_TOPIC_ID
    return Code.UNSTABLE_OFFSET_COMMIT if undecided else Code.NONE


def _fetched_group(node: Node, request: Any, asked: Any, context: RequestContext) -> Any:
    shape = OffsetFetchResponse.OffsetFetchResponseGroup
    group = node.consumers.get(asked.group_id)
    # Only a member says who it is; from outside anybody may look.
    is_member = group is not None and asked.member_id and asked.member_epoch >= 0
    refused = group.check_offsets(asked.member_id, asked.member_epoch) if group and is_member else None
    if refused is not None:
        return shape(group_id=asked.group_id, error_code=CONSUMER_CODES[refused], topics=[])
    topics = _fetched(node, request, asked, shape.OffsetFetchResponseTopics, context)
    return shape(group_id=asked.group_id, error_code=Code.NONE, topics=topics)


def _fetched(node: Node, request: Any, asked: Any, shape: Any, context: RequestContext) -> list[Any]:
    stable = node.catalog.committed_offsets(asked.group_id)
    unstable = node.transactions.pending_offsets(asked.group_id) if request.require_stable else set()
    wanted: list[tuple[str, Any, list[int]]] = []
    if asked.topics is None:
        every = stable | dict.fromkeys(unstable)
        names = dict.fromkeys(tp.topic for tp in every)
        wanted = [(name, None, [tp.partition for tp in every if tp.topic == name]) for name in names]
    else:
        by_id = context.version >= _TOPIC_ID_FROM
        wanted = [
            (_named(node, t, context)[0], t.topic_id if by_id else None, t.partition_indexes) for t in asked.topics
        ]
    partition_shape = getattr(shape, "OffsetFetchResponsePartition", None) or shape.OffsetFetchResponsePartitions
    nothing = CommittedOffset(offset=-1, leader_epoch=-1, metadata="")
    topics = []
    for name, topic_id, numbers in wanted:
        entry = node.topics.entry(name)
        known = topic_id or (entry.id if entry else None)
        undecided = [number for number in numbers if TopicPartition(name, number) in unstable]
        found = [(n, nothing if n in undecided else stable.get(TopicPartition(name, n), nothing)) for n in numbers]
        topics.append(
            shape(
                name=name,
                partitions=[
                    partition_shape(
                        partition_index=number,
                        committed_offset=at.offset,
                        committed_leader_epoch=at.leader_epoch,
                        metadata=at.metadata,
                        error_code=_offset_code(name, number in undecided),
                    )
                    for number, at in found
                ],
                **({"topic_id": known} if known and context.version >= _TOPIC_ID_FROM else {}),
            )
        )
    return topics
