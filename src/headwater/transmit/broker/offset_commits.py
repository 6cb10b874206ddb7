"""Checks of committed offsets, for OffsetCommit and TxnOffsetCommit."""

from typing import Any

from headwater.transmit.broker.error_codes import CLASSIC_GROUP_CODES, CONSUMER_GROUP_CODES
from headwater.transmit.groups.consumer import ConsumerError
from headwater.transmit.groups.kinds import GroupKinds
from headwater.transmit.topics.catalog import CommittedOffset
from headwater.transmit.topics.topics import Topics
from headwater.transmit.wire.codes import Code

OFFSET_METADATA_MAX = 4096
_MEMBER_EPOCH_FROM = 9


def check_committer(kinds: GroupKinds, request: Any, *, epoch: int, version: int, now: float) -> Code:
    """Return an error unless the sender of a request, of this version, may commit offsets of the group."""
    error = kinds.check_commit(request.group_id, request.member_id, epoch, request.group_instance_id, now)
    if error is ConsumerError.STALE_EPOCH and version < _MEMBER_EPOCH_FROM:
        return Code.UNSUPPORTED_VERSION  # older versions do not know the code of a stale epoch
    return CONSUMER_GROUP_CODES[error] if isinstance(error, ConsumerError) else CLASSIC_GROUP_CODES[error]


def check_offset(topics: Topics, topic: str, partition: Any) -> Code:
    """Return an error unless the partition of a commit request exists and its metadata is short enough."""
    if topics.partition(topic, partition.partition_index) is None:
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
