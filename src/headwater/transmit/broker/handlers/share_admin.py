"""Share groups: describe them, and describe, alter and delete their start offsets."""

from typing import Any

from headwater.transmit.broker.group_messages import topic_partitions
from headwater.transmit.broker.node import Node
from headwater.transmit.broker.permissions import ON_GROUP, as_bits
from headwater.transmit.broker.request import RequestContext
from headwater.transmit.log.partition import LEADER_EPOCH
from headwater.transmit.topics.catalog import TopicEntry
from headwater.transmit.wire.codes import Code
from headwater.transmit.wire.json_messages import (
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponse,
    ShareGroupDescribeResponse,
)

ASSIGNOR = "simple"
_NO_OFFSET = -1


def share_group_describe(node: Node, request: Any, context: RequestContext) -> Any:
    groups = [_described(node, name) for name in request.group_ids]
    for group in groups:
        group.authorized_operations = as_bits(ON_GROUP, requested=request.include_authorized_operations)
    return ShareGroupDescribeResponse(groups=groups)


def _described(node: Node, name: str) -> Any:
    shape = ShareGroupDescribeResponse.DescribedGroup
    group = node.share_groups.group(name)
    parts = shape.Member.Assignment
    return shape(
        error_code=Code.NONE if group else Code.GROUP_ID_NOT_FOUND,
        error_message=None if group else f"there is no share group {name!r}",
        group_id=name,
        group_state=group.state if group else "Dead",
        group_epoch=group.epoch if group else 0,
        assignment_epoch=group.epoch if group else 0,
        assignor_name=ASSIGNOR if group else "",
        members=[
            shape.Member(
                member_id=member.id,
                rack_id=member.rack,
                member_epoch=member.epoch,
                client_id=member.client_id,
                client_host=member.client_host,
                subscribed_topic_names=sorted(member.topics),
                assignment=parts(
                    topic_partitions=topic_partitions(
                        node.topics, member.assignment, parts.TopicPartitions, named=True
                    )
                ),
            )
            for member in (group.members.values() if group else ())
        ],
    )


# -- start offsets --------------------------------------------------------------------------------------------


def describe_share_group_offsets(node: Node, request: Any, context: RequestContext) -> Any:
    """Return the start offset and lag of groups, for given partitions or all that they have started."""
    shape = DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup
    groups = []
    for group in request.groups:
        known = node.share_groups.group(group.group_id) is not None
        groups.append(
            shape(
                group_id=group.group_id,
                topics=_start_offsets(node, group, shape) if known else [],
                error_code=Code.NONE if known else Code.GROUP_ID_NOT_FOUND,
                error_message=None if known else f"there is no share group {group.group_id!r}",
            )
        )
    return DescribeShareGroupOffsetsResponse(groups=groups)


def _start_offsets(node: Node, group: Any, shape: Any) -> list[Any]:
    topic_shape = shape.DescribeShareGroupOffsetsResponseTopic
    wanted: dict[str, list[int]] = {}
    if group.topics is None:
        for topic_id, number in node.share_groups.shares(group.group_id):
            entry = node.topics.entry(topic_id)
            if entry is not None:
                wanted.setdefault(entry.name, []).append(number)
    else:
        wanted = {topic.topic_name: topic.partitions for topic in group.topics}
    topics = []
    for name, numbers in sorted(wanted.items()):
        entry = node.topics.entry(name)
        if entry is not None:
            shapes = [
                _start_offset(
                    node, group.group_id, entry, n, topic_shape.DescribeShareGroupOffsetsResponsePartition
                )
                for n in sorted(numbers)
            ]
            topics.append(topic_shape(topic_name=name, topic_id=entry.id, partitions=shapes))
    return topics


def _start_offset(node: Node, group: str, entry: TopicEntry, number: int, shape: Any) -> Any:
    share = node.share_groups.shares(group).get((entry.id, number))
    partition = node.topics.partition(entry.name, number)
    lag = _NO_OFFSET
    if share is not None and partition is not None:
        lag = max(partition.log.high_watermark - share.start - share.counts().done, 0)
    return shape(
        partition_index=number,
        start_offset=share.start if share else _NO_OFFSET,
        leader_epoch=LEADER_EPOCH,
        lag=lag,
        error_code=Code.NONE if partition else Code.UNKNOWN_TOPIC_OR_PARTITION,
    )


def alter_share_group_offsets(node: Node, request: Any, context: RequestContext) -> Any:
    """Reset an empty group to the given offsets."""
    shape = AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponseTopic
    refusal = _refusal(node, request.group_id)
    topics = []
    for topic in request.topics if refusal == Code.NONE else ():
        entry = node.topics.entry(topic.topic_name)
        partitions = []
        for wanted in topic.partitions:
            partition = entry and node.topics.partition(entry.name, wanted.partition_index)
            if entry and partition:
                log = partition.log
                offset = min(max(wanted.start_offset, log.start_offset), log.high_watermark)
                node.share_groups.move(request.group_id, (entry.id, wanted.partition_index), offset)
            partitions.append(
                shape.AlterShareGroupOffsetsResponsePartition(
                    partition_index=wanted.partition_index,
                    error_code=Code.NONE if partition else Code.UNKNOWN_TOPIC_OR_PARTITION,
                )
            )
        ids = {"topic_id": entry.id} if entry else {}
        topics.append(shape(topic_name=topic.topic_name, partitions=partitions, **ids))
    return AlterShareGroupOffsetsResponse(
        error_code=refusal, error_message=_message(refusal, request.group_id), responses=topics
    )


def delete_share_group_offsets(node: Node, request: Any, context: RequestContext) -> Any:
    """Delete the offsets of topics in an empty group."""
    shape = DeleteShareGroupOffsetsResponse.DeleteShareGroupOffsetsResponseTopic
    refusal = _refusal(node, request.group_id)
    topics = []
    for topic in request.topics if refusal == Code.NONE else ():
        entry = node.topics.entry(topic.topic_name)
        found = entry is not None and node.share_groups.forget_topic(request.group_id, entry.id)
        topics.append(
            shape(
                topic_name=topic.topic_name,
                error_code=Code.NONE if found else Code.UNKNOWN_TOPIC_OR_PARTITION,
                **({"topic_id": entry.id} if entry else {}),
            )
        )
    return DeleteShareGroupOffsetsResponse(
        error_code=refusal, error_message=_message(refusal, request.group_id), responses=topics
    )


def _refusal(node: Node, group_id: str) -> Code:
    group = node.share_groups.group(group_id)
    if group is None:
        return Code.GROUP_ID_NOT_FOUND
    return Code.NON_EMPTY_GROUP if group.members else Code.NONE


def _message(code: Code, group: str) -> str | None:
    if code == Code.GROUP_ID_NOT_FOUND:
        return f"there is no share group {group!r}"
    return f"share group {group!r} has members; stop them first" if code == Code.NON_EMPTY_GROUP else None
