"""Committed offsets of groups: commit, read and delete them."""

from typing import Any

from kafka.protocol.consumer import OffsetCommitResponse, OffsetDeleteResponse, OffsetFetchResponse

from headwater.record import TopicPartition
from headwater.transmit.broker.error_codes import CONSUMER_GROUP_CODES
from headwater.transmit.broker.node import Node
from headwater.transmit.broker.offset_commits import check_committer, check_offset, committed_offset
from headwater.transmit.broker.request import RequestContext
from headwater.transmit.topics.catalog import CommittedOffset
from headwater.transmit.wire.codes import Code

_MANY_GROUPS_FROM = 8
_TOPIC_ID_FROM = 10


def offset_commit(node: Node, request: Any, context: RequestContext) -> Any:
    """Commit offsets of a group, if the sender is allowed to."""
    refusal = check_committer(
        node.group_kinds,
        request,
        epoch=request.generation_id_or_member_epoch,
        version=context.version,
        now=node.clock.monotonic(),
    )
    accepted: list[tuple[TopicPartition, CommittedOffset]] = []
    topics = []
    for topic in request.topics:
        partitions = []
        name, unknown = _topic_name(node, topic, context)
        for p in topic.partitions:
            code = refusal or unknown or check_offset(node.topics, name, p)
            if code == Code.NONE:
                accepted.append((TopicPartition(name, p.partition_index), committed_offset(p)))
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


def _topic_name(node: Node, topic: Any, context: RequestContext) -> tuple[str, Code]:
    """Return the name of a topic; newer versions send its id."""
    if context.version < _TOPIC_ID_FROM:
        return topic.name, Code.NONE
    entry = node.topics.entry(topic.topic_id)
    return (entry.name, Code.NONE) if entry else ("", Code.UNKNOWN_TOPIC_ID)


def offset_fetch(node: Node, request: Any, context: RequestContext) -> Any:
    """Return the committed offsets of groups, for given partitions or all of them."""
    if context.version < _MANY_GROUPS_FROM:
        topics = _fetched(node, request, request, OffsetFetchResponse.OffsetFetchResponseTopic, context)
        return OffsetFetchResponse(error_code=Code.NONE, topics=topics)
    return OffsetFetchResponse(groups=[_fetched_group(node, request, group, context) for group in request.groups])


def _offset_code(topic: str, is_unstable: bool) -> Code:
    if not topic:
        return Code.UNKNOWN_TOPIC_ID
    return Code.UNSTABLE_OFFSET_COMMIT if is_unstable else Code.NONE


def _fetched_group(node: Node, request: Any, group: Any, context: RequestContext) -> Any:
    shape = OffsetFetchResponse.OffsetFetchResponseGroup
    consumer_group = node.consumer_groups.get(group.group_id)
    # Only members send their id and epoch; other clients may read the offsets without them.
    refused = None
    if consumer_group is not None and group.member_id and group.member_epoch >= 0:
        refused = consumer_group.check_offsets(group.member_id, group.member_epoch)
    if refused is not None:
        return shape(group_id=group.group_id, error_code=CONSUMER_GROUP_CODES[refused], topics=[])
    topics = _fetched(node, request, group, shape.OffsetFetchResponseTopics, context)
    return shape(group_id=group.group_id, error_code=Code.NONE, topics=topics)


def _fetched(node: Node, request: Any, group: Any, shape: Any, context: RequestContext) -> list[Any]:
    stable = node.catalog.committed_offsets(group.group_id)
    unstable = node.transactions.pending_offsets(group.group_id) if request.require_stable else set()
    wanted: list[tuple[str, Any, list[int]]] = []
    if group.topics is None:
        every = stable | dict.fromkeys(unstable)
        names = dict.fromkeys(tp.topic for tp in every)
        wanted = [(name, None, [tp.partition for tp in every if tp.topic == name]) for name in names]
    else:
        by_id = context.version >= _TOPIC_ID_FROM
        wanted = [
            (_topic_name(node, t, context)[0], t.topic_id if by_id else None, t.partition_indexes)
            for t in group.topics
        ]
    partition_shape = getattr(shape, "OffsetFetchResponsePartition", None) or shape.OffsetFetchResponsePartitions
    no_offset = CommittedOffset(offset=-1, leader_epoch=-1, metadata="")
    topics = []
    for name, topic_id, numbers in wanted:
        entry = node.topics.entry(name)
        known = topic_id or (entry.id if entry else None)
        unstable_numbers = [number for number in numbers if TopicPartition(name, number) in unstable]
        found = [
            (n, no_offset if n in unstable_numbers else stable.get(TopicPartition(name, n), no_offset))
            for n in numbers
        ]
        topics.append(
            shape(
                name=name,
                partitions=[
                    partition_shape(
                        partition_index=number,
                        committed_offset=at.offset,
                        committed_leader_epoch=at.leader_epoch,
                        metadata=at.metadata,
                        error_code=_offset_code(name, number in unstable_numbers),
                    )
                    for number, at in found
                ],
                **({"topic_id": known} if known and context.version >= _TOPIC_ID_FROM else {}),
            )
        )
    return topics


def offset_delete(node: Node, request: Any, context: RequestContext) -> Any:
    """Delete committed offsets of partitions that no member of the group reads."""
    shape = OffsetDeleteResponse.OffsetDeleteResponseTopic
    group = node.classic_groups.get(request.group_id)
    committed = node.catalog.committed_offsets(request.group_id)
    if group is None and not committed:
        return OffsetDeleteResponse(error_code=Code.GROUP_ID_NOT_FOUND, topics=[])
    if group is not None and group.members:
        # Only the members can decode their assignments, so every partition counts as being read.
        code = Code.GROUP_SUBSCRIBED_TO_TOPIC
    else:
        code = Code.NONE
        partitions = [TopicPartition(t.name, p.partition_index) for t in request.topics for p in t.partitions]
        node.catalog.delete_offsets(request.group_id, partitions)
    return OffsetDeleteResponse(
        error_code=Code.NONE,
        topics=[
            shape(
                name=topic.name,
                partitions=[
                    shape.OffsetDeleteResponsePartition(partition_index=p.partition_index, error_code=code)
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )
