"""Consumer groups, the protocol of KIP-848: heartbeat and describe."""

import uuid
from typing import Any

from headwater.record import TopicPartition
from headwater.transmit.broker.error_codes import CONSUMER_GROUP_CODES
from headwater.transmit.broker.group_messages import heartbeat_error, heartbeat_response, topic_partitions
from headwater.transmit.broker.node import Node
from headwater.transmit.broker.permissions import ON_GROUP, as_bits
from headwater.transmit.broker.request import RequestContext
from headwater.transmit.groups.consumer import JOINS, Assignment, ConsumerError, ConsumerGroup, ConsumerHeartbeat
from headwater.transmit.groups.settings import CONSUMER_HEARTBEAT_MS
from headwater.transmit.groups.store import GroupKind
from headwater.transmit.wire.codes import Code
from headwater.transmit.wire.json_messages import ConsumerGroupDescribeResponse, ConsumerGroupHeartbeatResponse

_MEMBER_ID_FROM_CLIENT = 1  # since this version the client generates its id, so that a lost response does no harm
_CONSUMER_MEMBER = 1


def consumer_group_heartbeat(node: Node, request: Any, context: RequestContext) -> Any:
    """Keep a member in its group, and return its assignment if that has changed."""
    shape = ConsumerGroupHeartbeatResponse
    interval_ms = node.share_groups.settings(request.group_id).number(CONSUMER_HEARTBEAT_MS)
    member_id = request.member_id
    if not member_id and context.version < _MEMBER_ID_FROM_CLIENT and request.member_epoch == JOINS:
        member_id = str(uuid.uuid4())
    if not request.group_id or not member_id:
        return heartbeat_error(shape, Code.INVALID_REQUEST, interval_ms)
    if node.group_kinds.get(request.group_id) not in (None, GroupKind.CONSUMER):
        return heartbeat_error(shape, Code.GROUP_ID_NOT_FOUND, interval_ms)
    heartbeat = _heartbeat(node, request, context, member_id)
    reply = node.consumer_groups.heartbeat(request.group_id, heartbeat, node.clock.monotonic())
    if isinstance(reply, ConsumerError):
        return heartbeat_error(shape, CONSUMER_GROUP_CODES[reply], interval_ms)
    node.group_kinds.become_consumer(request.group_id)
    return heartbeat_response(node.topics, shape, reply, interval_ms)


def _heartbeat(node: Node, request: Any, context: RequestContext, member_id: str) -> ConsumerHeartbeat:
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
        group.authorized_operations = as_bits(ON_GROUP, requested=request.include_authorized_operations)
    return ConsumerGroupDescribeResponse(groups=groups)


def _described(node: Node, name: str) -> Any:
    shape = ConsumerGroupDescribeResponse.DescribedGroup
    group = node.consumer_groups.get(name)
    if group is None and node.group_store.kinds().get(name) is GroupKind.CONSUMER:
        group = ConsumerGroup(id=name)  # no member has joined since the broker started
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
    member = group.members[member_id]

    def assigned(part: Any, assignment: Assignment) -> Any:
        topics = topic_partitions(node.topics, assignment, part.TopicPartitions, named=True)
        return part(topic_partitions=topics)

    return shape(
        member_id=member.id,
        instance_id=member.instance_id,
        rack_id=member.rack,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.subscription.names),
        subscribed_topic_regex=member.subscription.pattern or None,
        assignment=assigned(shape.Assignment, member.has),
        target_assignment=assigned(shape.TargetAssignment, group.target[member.id]),
        member_type=_CONSUMER_MEMBER,
    )
