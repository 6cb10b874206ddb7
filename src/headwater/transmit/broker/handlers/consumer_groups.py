"""Consumer groups of the new protocol: heartbeats, and looking at groups (KIP-848)."""

import uuid
from typing import Any

from headwater.record import TopicPartition
from headwater.transmit.broker.handlers import RequestContext
from headwater.transmit.broker.handlers.permissions import ON_GROUP, bits
from headwater.transmit.broker.handlers.share_groups import assigned
from headwater.transmit.broker.node import Node
from headwater.transmit.groups.consumer import JOINS, ConsumerError, ConsumerGroup, ConsumerHeartbeat
from headwater.transmit.groups.kinds import kind_of
from headwater.transmit.groups.settings import CONSUMER_HEARTBEAT_MS
from headwater.transmit.groups.store import GroupKind
from headwater.transmit.wire.codes import Code
from headwater.transmit.wire.json_messages import ConsumerGroupDescribeResponse, ConsumerGroupHeartbeatResponse

_MEMBER_ID_FROM_CLIENT = 1  # from this version on the client makes its id up, so that a lost answer does no harm
_CONSUMER_MEMBER = 1

CODES = {
    ConsumerError.UNKNOWN_MEMBER: Code.UNKNOWN_MEMBER_ID,
    ConsumerError.FENCED_EPOCH: Code.FENCED_MEMBER_EPOCH,
    ConsumerError.STALE_EPOCH: Code.STALE_MEMBER_EPOCH,
    ConsumerError.FENCED_INSTANCE: Code.FENCED_INSTANCE_ID,
    ConsumerError.UNRELEASED_INSTANCE: Code.UNRELEASED_INSTANCE_ID,
    ConsumerError.UNSUPPORTED_ASSIGNOR: Code.UNSUPPORTED_ASSIGNOR,
    ConsumerError.INVALID_REGEX: Code.INVALID_REGULAR_EXPRESSION,
    ConsumerError.INVALID_REQUEST: Code.INVALID_REQUEST,
    ConsumerError.GROUP_FULL: Code.GROUP_MAX_SIZE_REACHED,
}


def consumer_group_heartbeat(node: Node, request: Any, context: RequestContext) -> Any:
    """Keep a member in, and tell it what to read."""
    shape = ConsumerGroupHeartbeatResponse
    interval = node.queues.settings(request.group_id).number(CONSUMER_HEARTBEAT_MS)

    def refused(code: Code) -> Any:
        return shape(error_code=code, error_message=code.name, member_epoch=0, heartbeat_interval_ms=interval)

    member_id = request.member_id
    if not member_id and context.version < _MEMBER_ID_FROM_CLIENT and request.member_epoch == JOINS:
        member_id = str(uuid.uuid4())
    if not request.group_id or not member_id:
        return refused(Code.INVALID_REQUEST)
    if kind_of(node, request.group_id) not in (None, GroupKind.CONSUMER):
        return refused(Code.GROUP_ID_NOT_FOUND)
    heard = _heard(node, request, context, member_id)
    reply = node.consumers.heartbeat(request.group_id, heard, node.clock.monotonic())
    if isinstance(reply, ConsumerError):
        return refused(CODES[reply])
    node.groups.delete(request.group_id)  # an empty classic group of that name has become this one
    node.group_store.set_kind(request.group_id, GroupKind.CONSUMER)
    parts = shape.Assignment
    return shape(
        error_code=Code.NONE,
        member_id=reply.member_id,
        member_epoch=reply.epoch,
        heartbeat_interval_ms=interval,
        assignment=None
        if reply.assignment is None
        else parts(topic_partitions=assigned(node, reply.assignment, parts.TopicPartitions)),
    )


def _heard(node: Node, request: Any, context: RequestContext, member_id: str) -> ConsumerHeartbeat:
    names, owned = request.subscribed_topic_names, None
    if request.topic_partitions is not None:
        entries = [(node.topics.entry(topic.topic_id), topic.partitions) for topic in request.topic_partitions]
        owned = frozenset(TopicPartition(entry.name, n) for entry, numbers in entries if entry for n in numbers)
    return ConsumerHeartbeat(
        member_id=member_id,
        epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack=request.rack_id,
        rebalance_timeout_s=request.rebalance_timeout_ms / 1000 if request.rebalance_timeout_ms >= 0 else None,
        topics=None if names is None else frozenset(names),
        pattern=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=owned,
        client_id=context.client_id,
        client_host=context.host,
    )


def consumer_group_describe(node: Node, request: Any, context: RequestContext) -> Any:
    groups = [_described(node, name) for name in request.group_ids]
    for group in groups:
        group.authorized_operations = bits(ON_GROUP, asked=request.include_authorized_operations)
    return ConsumerGroupDescribeResponse(groups=groups)


def _described(node: Node, name: str) -> Any:
    shape = ConsumerGroupDescribeResponse.DescribedGroup
    group = node.consumers.get(name)
    if group is None and node.group_store.kinds().get(name) is GroupKind.CONSUMER:
        group = ConsumerGroup(id=name)  # nobody has come back since the broker was started
    if group is None:
        return shape(
            error_code=Code.GROUP_ID_NOT_FOUND,
            error_message=f"there is no consumer group {name!r}",
            group_id=name,
            group_state="Dead",
            group_epoch=0,
            assignment_epoch=0,
            assignor_name="",
            members=[],
        )
    return shape(
        error_code=Code.NONE,
        group_id=name,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.epoch,
        assignor_name=group.assignor,
        members=[_member(node, group, member_id) for member_id in group.members],
    )


def _member(node: Node, group: ConsumerGroup, member_id: str) -> Any:
    shape = ConsumerGroupDescribeResponse.DescribedGroup.Member
    has, target = shape.Assignment, shape.TargetAssignment
    member = group.members[member_id]
    return shape(
        member_id=member.id,
        instance_id=member.instance_id,
        rack_id=member.rack,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.subscription.names),
        subscribed_topic_regex=member.subscription.pattern or None,
        assignment=has(topic_partitions=assigned(node, member.assigned, has.TopicPartitions, named=True)),
        target_assignment=target(
            topic_partitions=assigned(node, group.target[member.id], target.TopicPartitions, named=True)
        ),
        member_type=_CONSUMER_MEMBER,
    )
