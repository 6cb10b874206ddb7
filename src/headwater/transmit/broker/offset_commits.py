"""Checks of committed offsets, for OffsetCommit and TxnOffsetCommit."""

from typing import Any

from headwater.transmit.broker.error_codes import CLASSIC_GROUP_CODES, CONSUMER_GROUP_CODES
from headwater.transmit.broker.node import Node
from headwater.transmit.broker.request import RequestContext
from headwater.transmit.groups.consumer import ConsumerError
from headwater.transmit.topics.catalog import CommittedOffset
from headwater.transmit.wire.codes import Code

OFFSET_METADATA_MAX = 4096
_MEMBER_EPOCH_FROM = 9


def check_committer(node: Node, request: Any, epoch: int, context: RequestContext) -> Code:
    """Return an error unless the sender may commit offsets of the group.

    `epoch` is the generation of a classic group, or the member's epoch in a consumer group.
    """
    group = node.consumer_groups.get(request.group_id)
    if group is None:
        error = node.classic_groups.check_commit(
            request.group_id, request.member_id, epoch, node.clock.monotonic(), request.group_instance_id
        )
        return CLASSIC_GROUP_CODES[error]
    refusal = group.check_offsets(request.member_id, epoch)
    if refusal is ConsumerError.STALE_EPOCH and context.version < _MEMBER_EPOCH_FROM:
        return Code.UNSUPPORTED_VERSION  # older versions do not know the code of a stale epoch
    return CONSUMER_GROUP_CODES[refusal] if refusal else Code.NONE


def check_offset(node: Node, topic: str, partition: Any) -> Code:
    """Return an error unless the partition of a commit request exists and its metadata is short enough."""
    if node.topics.partition(topic, partition.partition_index) is None:
        return Code.UNKNOWN_TOPIC_OR_PARTITION
    if len(partition.committed_metadata or "") > OFFSET_METADATA_MAX:
        return Code.OFFSET_METADATA_TOO_LARGE
    return Code.NONE


def committed_offset(partition: Any) -> CommittedOffset:
    """Return the offset in the partition of a commit request."""
    return CommittedOffset(
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=partition.committed_metadata,
    )
