"""Administration of groups: list, describe, move and delete them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kafka.protocol.admin import (
    DeleteGroupsRequest,
    DescribeConfigsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from kafka.protocol.consumer import OffsetCommitRequest, OffsetFetchRequest
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment
from kafka.protocol.metadata import FindCoordinatorRequest

from headwater.errors import ConflictError, HeadwaterError, InvalidError
from headwater.record import TopicPartition
from headwater.transmit.client.client import Client
from headwater.transmit.client.errors import check_code
from headwater.transmit.wire.codes import Code
from headwater.transmit.wire.json_messages import (
    AlterShareGroupOffsetsRequest,
    ConsumerGroupDescribeRequest,
    DescribeShareGroupOffsetsRequest,
    ShareGroupDescribeRequest,
)

CLASSIC, CONSUMER, SHARE = "classic", "consumer", "share"
_GROUP_RESOURCE = 32
_HINTS: dict[int, tuple[type[HeadwaterError], str, str]] = {
    Code.GROUP_ID_NOT_FOUND: (InvalidError, "there is no such group", "headwater group list"),
    Code.NON_EMPTY_GROUP: (ConflictError, "it has members", "stop them and retry"),
    Code.UNKNOWN_MEMBER_ID: (ConflictError, "it has members", "stop them and retry"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInfo:
    """A group in a listing."""

    id: str
    kind: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberInfo:
    """A member of a group, and its partitions."""

    id: str
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareStart:
    """The start offset and the lag of a share group in a partition."""

    start: int
    lag_records: int


def list_groups(client: Client) -> list[GroupInfo]:
    response = client.call(ListGroupsRequest(states_filter=[], types_filter=[]))
    _check(response.error_code, "list groups")
    return sorted(
        (GroupInfo(id=g.group_id, kind=g.group_type or CLASSIC, state=g.group_state) for g in response.groups),
        key=lambda group: group.id,
    )


def find_group(client: Client, group: str) -> GroupInfo:
    """Return a group by name. Raises InvalidError if there is none."""
    found = next((info for info in list_groups(client) if info.id == group), None)
    if found is None:
        raise InvalidError(f"there is no group {group!r}", hint="headwater group list")
    return found


def members(client: Client, group: GroupInfo) -> list[MemberInfo]:
    """Return the members of a group."""
    if group.kind == CLASSIC:
        request = DescribeGroupsRequest(groups=[group.id], include_authorized_operations=False)
    else:
        kind = ConsumerGroupDescribeRequest if group.kind == CONSUMER else ShareGroupDescribeRequest
        request = kind(group_ids=[group.id], include_authorized_operations=False)
    (described,) = _call_coordinator(client, group.id, request).groups
    _check(described.error_code, f"describe group {group.id!r}")
    return [
        MemberInfo(
            id=member.member_id,
            client_id=member.client_id,
            host=member.client_host.removeprefix("/"),
            partitions=_partitions(group, member),
        )
        for member in described.members
    ]


def _partitions(group: GroupInfo, member: Any) -> tuple[TopicPartition, ...]:
    if group.kind != CLASSIC:
        topics = [(topic.topic_name, topic.partitions) for topic in member.assignment.topic_partitions]
    elif member.member_assignment:
        found = ConsumerProtocolAssignment.decode(bytes(member.member_assignment))
        topics = [(topic.topic, topic.partitions) for topic in found.assigned_partitions]
    else:
        topics = []
    return tuple(sorted(TopicPartition(name, n) for name, numbers in topics for n in numbers))


# -- committed offsets ----------------------------------------------------------------------------------------


def committed(client: Client, group: str) -> dict[TopicPartition, int]:
    """Return all committed offsets of a group."""
    shape = OffsetFetchRequest.OffsetFetchRequestGroup
    request = OffsetFetchRequest(
        groups=[shape(group_id=group, member_id=None, member_epoch=-1, topics=None)], require_stable=False
    )
    (found,) = _call_coordinator(client, group, request).groups
    _check(found.error_code, f"read the offsets of group {group!r}")
    return {
        TopicPartition(topic.name, p.partition_index): p.committed_offset
        for topic in found.topics
        for p in topic.partitions
        if p.committed_offset >= 0
    }


def commit(client: Client, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commit offsets for a group without members."""
    shape = OffsetCommitRequest.OffsetCommitRequestTopic
    topics: dict[str, list[Any]] = {}
    for tp, offset in offsets.items():
        topics.setdefault(tp.topic, []).append(
            shape.OffsetCommitRequestPartition(
                partition_index=tp.partition,
                committed_offset=offset,
                committed_leader_epoch=-1,
                committed_metadata="",
            )
        )
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=[shape(name=name, partitions=partitions) for name, partitions in topics.items()],
    )
    for topic in _call_coordinator(client, group, request).topics:
        for result in topic.partitions:
            _check(result.error_code, f"move group {group!r} in {topic.name}-{result.partition_index}")


def delete(client: Client, group: str) -> None:
    """Delete a group without members."""
    (result,) = _call_coordinator(client, group, DeleteGroupsRequest(groups_names=[group])).results
    _check(result.error_code, f"delete group {group!r}")


# -- share groups ---------------------------------------------------------------------------------------------


def share_starts(client: Client, group: str) -> dict[TopicPartition, ShareStart]:
    """Return the start offset and lag of every partition that a share group has started."""
    shape = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup
    request = DescribeShareGroupOffsetsRequest(groups=[shape(group_id=group, topics=None)])
    (found,) = _call_coordinator(client, group, request).groups
    _check(found.error_code, f"read the start offsets of share group {group!r}")
    return {
        TopicPartition(topic.topic_name, p.partition_index): ShareStart(start=p.start_offset, lag_records=p.lag)
        for topic in found.topics
        for p in topic.partitions
    }


def move_share(client: Client, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Reset a share group without members to the offsets."""
    shape = AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestTopic
    topics: dict[str, list[Any]] = {}
    for tp, offset in offsets.items():
        topics.setdefault(tp.topic, []).append(
            shape.AlterShareGroupOffsetsRequestPartition(partition_index=tp.partition, start_offset=offset)
        )
    request = AlterShareGroupOffsetsRequest(
        group_id=group, topics=[shape(topic_name=name, partitions=some) for name, some in topics.items()]
    )
    response = _call_coordinator(client, group, request)
    _check(response.error_code, f"move share group {group!r}")
    for topic in response.responses:
        for result in topic.partitions:
            _check(result.error_code, f"move share group {group!r} in {topic.topic_name}")


def group_configs(client: Client, group: str) -> dict[str, str]:
    """Return the configs of a group, including defaults."""
    shape = DescribeConfigsRequest.DescribeConfigsResource
    request = DescribeConfigsRequest(
        resources=[shape(resource_type=_GROUP_RESOURCE, resource_name=group, configuration_keys=None)],
        include_synonyms=False,
        include_documentation=False,
    )
    (result,) = client.call(request).results
    _check(result.error_code, f"read the configs of group {group!r}")
    return {config.name: config.value or "" for config in result.configs}


# -- requests -------------------------------------------------------------------------------------------------


def _call_coordinator(client: Client, group: str, request: Any) -> Any:
    """Send a request to the coordinator of a group."""
    response = client.call(FindCoordinatorRequest(key=group, key_type=0, coordinator_keys=[group]))
    found = response.coordinators[0] if response.coordinators else response
    _check(found.error_code, f"find the coordinator of group {group!r}")
    client.topics([])  # fetches the addresses of the nodes
    return client.call(request, node=found.node_id)


def _check(code: int, attempt: str) -> None:
    if code in _HINTS:
        kind, found, hint = _HINTS[code]
        raise kind(f"cannot {attempt}: {found}", hint=hint)
    check_code(code, attempt)
