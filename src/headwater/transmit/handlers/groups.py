"""Consumer groups: joining, heartbeats, committed offsets, and looking at groups."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from kafka.protocol.admin import DeleteGroupsResponse, DescribeGroupsResponse, ListGroupsResponse
from kafka.protocol.consumer import (
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    OffsetCommitResponse,
    OffsetFetchResponse,
    SyncGroupResponse,
)

from headwater.record import TopicPartition
from headwater.transmit.catalog import CommittedOffset
from headwater.transmit.handlers import Asker
from headwater.transmit.membership import Group, GroupError, GroupState, JoinReply, JoinRequest, SyncReply
from headwater.transmit.node import Node
from headwater.transmit.wire.codes import Code

OFFSET_METADATA_MAX = 4096
_MEMBER_ID_REQUIRED_FROM = 4
_MANY_MEMBERS_FROM = 3
_MANY_GROUPS_FROM = 8
_NOT_FOUND_FROM = 6
_CONSUMER = "consumer"

Reply = TypeVar("Reply", JoinReply, SyncReply)

_CODES = {
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


async def join_group(node: Node, request: Any, asker: Asker) -> Any:
    """Answer when the round the member joined is complete."""
    if not request.group_id:
        return _joined(JoinReply(member_id=request.member_id), asker, Code.INVALID_GROUP_ID)
    if request.session_timeout_ms <= 0:
        return _joined(JoinReply(member_id=request.member_id), asker, Code.INVALID_SESSION_TIMEOUT)
    # Before version 1 a member had one timeout for both.
    rebalance_ms = request.rebalance_timeout_ms if asker.version >= 1 else request.session_timeout_ms
    member = JoinRequest(
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        client_id=asker.client_id,
        client_host=asker.host,
        session_timeout_s=request.session_timeout_ms / 1000,
        rebalance_timeout_s=max(rebalance_ms, 0) / 1000,
        protocol_type=request.protocol_type,
        protocols=tuple((p.name, bytes(p.metadata)) for p in request.protocols),
        knows_member_id_required=asker.version >= _MEMBER_ID_REQUIRED_FROM,
    )
    answer: asyncio.Future[JoinReply] = asyncio.get_running_loop().create_future()
    node.groups.join(request.group_id, member, _to(answer), node.clock.monotonic())
    reply = await answer
    return _joined(reply, asker, _CODES[reply.error])


def _to(answer: asyncio.Future[Reply]) -> Callable[[Reply], None]:
    """Answer by the future, unless the client has gone and nobody waits for it."""

    def set_result(reply: Reply) -> None:
        if not answer.done():
            answer.set_result(reply)

    return set_result


def _joined(reply: JoinReply, asker: Asker, code: Code) -> Any:
    return JoinGroupResponse(
        error_code=code,
        generation_id=reply.generation,
        protocol_type=reply.protocol_type,
        # Up to version 6 the name may not be null.
        protocol_name=reply.protocol if reply.protocol is not None or asker.version > 6 else "",
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


async def sync_group(node: Node, request: Any, asker: Asker) -> Any:
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
        error_code=_CODES[reply.error],
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol,
        assignment=reply.assignment,
    )


def heartbeat(node: Node, request: Any, asker: Asker) -> Any:
    error = node.groups.heartbeat(
        request.group_id,
        request.member_id,
        request.generation_id,
        node.clock.monotonic(),
        request.group_instance_id,
    )
    return HeartbeatResponse(error_code=_CODES[error])


def leave_group(node: Node, request: Any, asker: Asker) -> Any:
    """Take out one member (old versions) or several."""
    now = node.clock.monotonic()
    if asker.version < _MANY_MEMBERS_FROM:
        return LeaveGroupResponse(
            error_code=_CODES[node.groups.leave(request.group_id, request.member_id, None, now)]
        )
    return LeaveGroupResponse(
        error_code=Code.NONE,
        members=[
            LeaveGroupResponse.MemberResponse(
                member_id=m.member_id,
                group_instance_id=m.group_instance_id,
                error_code=_CODES[node.groups.leave(request.group_id, m.member_id, m.group_instance_id, now)],
            )
            for m in request.members
        ],
    )


# -- committed offsets ----------------------------------------------------------------------------------------


def offset_commit(node: Node, request: Any, asker: Asker) -> Any:
    """Remember how far a group has come, where the committer may say so."""
    error = node.groups.check_commit(
        request.group_id,
        request.member_id,
        request.generation_id_or_member_epoch,
        node.clock.monotonic(),
        request.group_instance_id,
    )
    accepted: list[tuple[TopicPartition, CommittedOffset]] = []
    topics = []
    for topic in request.topics:
        partitions = []
        for p in topic.partitions:
            code = _CODES[error] or check_commit(node, topic.name, p)
            if code == Code.NONE:
                accepted.append((TopicPartition(topic.name, p.partition_index), committed(p)))
            partitions.append(
                OffsetCommitResponse.OffsetCommitResponseTopic.OffsetCommitResponsePartition(
                    partition_index=p.partition_index, error_code=code
                )
            )
        topics.append(OffsetCommitResponse.OffsetCommitResponseTopic(name=topic.name, partitions=partitions))
    if accepted:
        node.catalog.commit_offsets(request.group_id, accepted, now_ms=node.clock.now_ms())
    return OffsetCommitResponse(topics=topics)


def group_code(error: GroupError) -> Code:
    """The number of a group's error."""
    return _CODES[error]


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


def offset_fetch(node: Node, request: Any, asker: Asker) -> Any:
    """Tell how far groups have come, for some partitions or all they ever committed."""
    if asker.version < _MANY_GROUPS_FROM:
        topics = _fetched(node, request, request, OffsetFetchResponse.OffsetFetchResponseTopic)
        return OffsetFetchResponse(error_code=Code.NONE, topics=topics)
    shape = OffsetFetchResponse.OffsetFetchResponseGroup
    return OffsetFetchResponse(
        groups=[
            shape(
                group_id=group.group_id,
                error_code=Code.NONE,
                topics=_fetched(node, request, group, shape.OffsetFetchResponseTopics),
            )
            for group in request.groups
        ]
    )


def _fetched(node: Node, request: Any, asked: Any, shape: Any) -> list[Any]:
    known = node.catalog.committed_offsets(asked.group_id)
    unstable = node.transactions.pending_offsets(asked.group_id) if request.require_stable else set()
    if asked.topics is None:
        wanted: dict[str, list[int]] = {}
        for tp in known | dict.fromkeys(unstable):
            wanted.setdefault(tp.topic, []).append(tp.partition)
    else:
        wanted = {topic.name: topic.partition_indexes for topic in asked.topics}
    partition_shape = getattr(shape, "OffsetFetchResponsePartition", None) or shape.OffsetFetchResponsePartitions
    nothing = CommittedOffset(offset=-1, leader_epoch=-1, metadata="")
    topics = []
    for topic, numbers in wanted.items():
        undecided = [number for number in numbers if TopicPartition(topic, number) in unstable]
        found = [(n, nothing if n in undecided else known.get(TopicPartition(topic, n), nothing)) for n in numbers]
        topics.append(
            shape(
                name=topic,
                partitions=[
                    partition_shape(
                        partition_index=number,
                        committed_offset=at.offset,
                        committed_leader_epoch=at.leader_epoch,
                        metadata=at.metadata,
                        error_code=Code.UNSTABLE_OFFSET_COMMIT if number in undecided else Code.NONE,
                    )
                    for number, at in found
                ],
            )
        )
    return topics


# -- looking at groups ----------------------------------------------------------------------------------------


def list_groups(node: Node, request: Any, asker: Asker) -> Any:
    """Groups with members, and those that have only left offsets."""
    known = {group.id: group for group in node.groups.all()}
    for name in node.catalog.groups():
        known.setdefault(name, Group(id=name, protocol_type=_CONSUMER))
    states = [state.lower() for state in request.states_filter or []]
    types = [kind.lower() for kind in request.types_filter or []]
    return ListGroupsResponse(
        error_code=Code.NONE,
        groups=[
            ListGroupsResponse.ListedGroup(
                group_id=group.id,
                protocol_type=group.protocol_type or "",
                group_state=group.state.value,
                group_type="classic",
            )
            for group in known.values()
            if (not states or group.state.value.lower() in states) and (not types or "classic" in types)
        ],
    )


def describe_groups(node: Node, request: Any, asker: Asker) -> Any:
    return DescribeGroupsResponse(groups=[_described(node, name, asker) for name in request.groups])


def _described(node: Node, name: str, asker: Asker) -> Any:
    shape = DescribeGroupsResponse.DescribedGroup
    group = node.groups.get(name)
    if group is None and name in node.catalog.groups():
        group = Group(id=name, protocol_type=_CONSUMER)
    if group is None:
        # Old versions know no such error and are told that the group is dead.
        code = Code.GROUP_ID_NOT_FOUND if asker.version >= _NOT_FOUND_FROM else Code.NONE
        return shape(
            error_code=code,
            error_message=f"there is no group {name!r}",
            group_id=name,
            group_state=GroupState.DEAD.value,
            protocol_type="",
            protocol_data="",
            members=[],
        )
    return shape(
        error_code=Code.NONE,
        error_message=None,
        group_id=name,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=group.protocol or "",
        members=[
            shape.DescribedGroupMember(
                member_id=member.id,
                group_instance_id=member.request.instance_id,
                client_id=member.request.client_id,
                client_host=member.request.client_host,
                member_metadata=member.metadata(group.protocol),
                member_assignment=member.assignment,
            )
            for member in group.members.values()
        ],
    )


def delete_groups(node: Node, request: Any, asker: Asker) -> Any:
    return DeleteGroupsResponse(
        results=[
            DeleteGroupsResponse.DeletableGroupResult(group_id=name, error_code=_CODES[_delete(node, name)])
            for name in request.groups_names
        ]
    )


def _delete(node: Node, name: str) -> GroupError:
    if node.groups.get(name) is None and name not in node.catalog.groups():
        return GroupError.NOT_FOUND
    error = node.groups.delete(name)
    if error is GroupError.NONE:
        node.catalog.delete_group(name)
    return error
