"""Admin requests for records, log directories, replicas and security, as far as a single node supports them."""

import logging
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kafka.protocol.admin import (
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDirsResponse,
    CreateAclsResponse,
    DeleteAclsResponse,
    DeleteRecordsResponse,
    DescribeAclsResponse,
    DescribeLogDirsResponse,
    DescribeTopicPartitionsResponse,
    DescribeUserScramCredentialsResponse,
    ElectLeadersResponse,
    ListPartitionReassignmentsResponse,
)

from headwater.transmit.broker.node import NODE_ID, Node
from headwater.transmit.broker.permissions import ON_TOPIC, as_bits
from headwater.transmit.broker.request import RequestContext
from headwater.transmit.log.partition import LEADER_EPOCH
from headwater.transmit.wire.codes import Code

logger = logging.getLogger(__name__)

_HIGH_WATERMARK = -1  # in place of an offset: delete all visible records


# -- records and log directories ------------------------------------------------------------------------------


def delete_records(node: Node, request: Any, context: RequestContext) -> Any:
    """Delete the records before the given offsets."""
    shape = DeleteRecordsResponse.DeleteRecordsTopicResult
    topics = []
    for topic in request.topics:
        partitions = []
        for wanted in topic.partitions:
            code, low = _delete_before(node, topic.name, wanted)
            partitions.append(
                shape.DeleteRecordsPartitionResult(
                    partition_index=wanted.partition_index, low_watermark=low, error_code=code
                )
            )
        topics.append(shape(name=topic.name, partitions=partitions))
    return DeleteRecordsResponse(topics=topics)


def _delete_before(node: Node, topic: str, wanted: Any) -> tuple[Code, int]:
    partition = node.topics.partition(topic, wanted.partition_index)
    if partition is None:
        return Code.UNKNOWN_TOPIC_OR_PARTITION, -1
    log = partition.log
    offset = log.high_watermark if wanted.offset == _HIGH_WATERMARK else wanted.offset
    if not partition.config.delete:
        return Code.POLICY_VIOLATION, -1
    if not 0 <= offset <= log.high_watermark:
        return Code.OFFSET_OUT_OF_RANGE, -1
    try:
        partition.delete_before(offset)
    except OSError as error:
        logger.error("cannot delete records of %s before offset %d: %s", partition.name, offset, error)
        return Code.KAFKA_STORAGE_ERROR, -1
    return Code.NONE, log.start_offset


def describe_log_dirs(node: Node, request: Any, context: RequestContext) -> Any:
    shape = DescribeLogDirsResponse.DescribeLogDirsResult
    directory = node.settings.data / "log"
    wanted = None if request.topics is None else {(t.topic, n) for t in request.topics for n in t.partitions}
    topics: dict[str, list[Any]] = {}
    for partition in node.topics.partitions():
        if wanted is None or partition.name in wanted:
            topics.setdefault(partition.name.topic, []).append(
                shape.DescribeLogDirsTopic.DescribeLogDirsPartition(
                    partition_index=partition.name.partition,
                    partition_size=partition.log.size_bytes,
                    offset_lag=0,
                    is_future_key=False,
                )
            )
    disk = shutil.disk_usage(node.settings.data)
    return DescribeLogDirsResponse(
        error_code=Code.NONE,
        results=[
            shape(
                error_code=Code.NONE,
                log_dir=str(directory),
                topics=[
                    shape.DescribeLogDirsTopic(name=name, partitions=partitions)
                    for name, partitions in topics.items()
                ],
                total_bytes=disk.total,
                usable_bytes=disk.free,
            )
        ],
    )


def describe_topic_partitions(node: Node, request: Any, context: RequestContext) -> Any:
    """Describe topics in the order of their names, one page at a time."""
    shape = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
    names = sorted({topic.name for topic in request.topics} or {entry.name for entry in node.topics.entries()})
    cursor = request.cursor
    left = max(1, request.response_partition_limit)
    topics: list[Any] = []
    following = None
    for name in names:
        if cursor is not None and name < cursor.topic_name:
            continue
        entry = node.topics.entry(name)
        if entry is None:
            topics.append(shape(error_code=Code.UNKNOWN_TOPIC_OR_PARTITION, name=name, partitions=[]))
            continue
        first = cursor.partition_index if cursor is not None and name == cursor.topic_name else 0
        if left == 0:
            following = (name, first)
            break
        last = min(entry.partitions, first + left)
        partitions = [_partition(shape, number) for number in range(first, last)]
        topics.append(
            shape(
                error_code=Code.NONE,
                name=name,
                topic_id=entry.id,
                partitions=partitions,
                topic_authorized_operations=as_bits(ON_TOPIC, requested=True),
            )
        )
        left -= len(partitions)
        if last < entry.partitions:
            following = (name, last)
            break
    next_cursor = following and DescribeTopicPartitionsResponse.Cursor(
        topic_name=following[0], partition_index=following[1]
    )
    return DescribeTopicPartitionsResponse(topics=topics, next_cursor=next_cursor)


def _partition(shape: Any, number: int) -> Any:
    return shape.DescribeTopicPartitionsResponsePartition(
        error_code=Code.NONE, partition_index=number, leader_id=NODE_ID, leader_epoch=LEADER_EPOCH,
        replica_nodes=[NODE_ID], isr_nodes=[NODE_ID], eligible_leader_replicas=[], last_known_elr=[],
        offline_replicas=[],
    )  # fmt: skip


# -- replicas: there is only one ------------------------------------------------------------------------------


def elect_leaders(node: Node, request: Any, context: RequestContext) -> Any:
    """Report that no election is needed: the only replica is the leader."""
    shape = ElectLeadersResponse.ReplicaElectionResult
    if request.topic_partitions is None:
        partitions: Iterable[tuple[str, Iterable[int]]] = (
            (entry.name, range(entry.partitions)) for entry in node.topics.entries()
        )
    else:
        partitions = ((topic.topic, topic.partitions) for topic in request.topic_partitions)
    return ElectLeadersResponse(
        error_code=Code.NONE,
        replica_election_results=[
            shape(topic=topic, partition_result=[_election(node, shape, topic, n) for n in numbers])
            for topic, numbers in partitions
        ],
    )


def _election(node: Node, shape: Any, topic: str, number: int) -> Any:
    found = node.topics.partition(topic, number) is not None
    return shape.PartitionResult(
        partition_id=number,
        error_code=Code.ELECTION_NOT_NEEDED if found else Code.UNKNOWN_TOPIC_OR_PARTITION,
        error_message="the only replica is already the leader"
        if found
        else f"there is no partition {topic}-{number}",
    )


def list_partition_reassignments(node: Node, request: Any, context: RequestContext) -> Any:
    return ListPartitionReassignmentsResponse(error_code=Code.NONE, error_message=None, topics=[])


def alter_partition_reassignments(node: Node, request: Any, context: RequestContext) -> Any:
    """Accept assignments to this node and refuse all others; there is never a reassignment to cancel."""
    shape = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
    return AlterPartitionReassignmentsResponse(
        error_code=Code.NONE,
        error_message=None,
        responses=[
            shape(
                name=topic.name,
                partitions=[_reassignment(node, shape, topic.name, wanted) for wanted in topic.partitions],
            )
            for topic in request.topics
        ],
    )


def _reassignment(node: Node, shape: Any, topic: str, wanted: Any) -> Any:
    code, message = Code.NONE, None
    if node.topics.partition(topic, wanted.partition_index) is None:
        code, message = Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic}-{wanted.partition_index}"
    elif wanted.replicas is None:
        code, message = Code.NO_REASSIGNMENT_IN_PROGRESS, "no reassignment is in progress"
    elif list(wanted.replicas) != [NODE_ID]:
        code, message = Code.INVALID_REPLICA_ASSIGNMENT, f"there is only one node, {NODE_ID}"
    return shape.ReassignablePartitionResponse(
        partition_index=wanted.partition_index, error_code=code, error_message=message
    )


def alter_replica_log_dirs(node: Node, request: Any, context: RequestContext) -> Any:
    """Accept the only log directory and refuse all others."""
    shape = AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult
    results = []
    for directory in request.dirs:
        here = Path(directory.path) == node.settings.data / "log"
        for topic in directory.topics:
            partitions = [
                shape.AlterReplicaLogDirPartitionResult(
                    partition_index=number, error_code=_move(node, topic.name, number, here=here)
                )
                for number in topic.partitions
            ]
            results.append(shape(topic_name=topic.name, partitions=partitions))
    return AlterReplicaLogDirsResponse(results=results)


def _move(node: Node, topic: str, number: int, *, here: bool) -> Code:
    if node.topics.partition(topic, number) is None:
        return Code.UNKNOWN_TOPIC_OR_PARTITION
    return Code.NONE if here else Code.LOG_DIR_NOT_FOUND


# -- security: there is none ----------------------------------------------------------------------------------

_NO_SECURITY = "no authorizer is configured: every client is authorized for all operations"


def describe_acls(node: Node, request: Any, context: RequestContext) -> Any:
    return DescribeAclsResponse(error_code=Code.SECURITY_DISABLED, error_message=_NO_SECURITY, resources=[])


def create_acls(node: Node, request: Any, context: RequestContext) -> Any:
    return CreateAclsResponse(
        results=[
            CreateAclsResponse.AclCreationResult(error_code=Code.SECURITY_DISABLED, error_message=_NO_SECURITY)
            for _ in request.creations
        ]
    )


def delete_acls(node: Node, request: Any, context: RequestContext) -> Any:
    return DeleteAclsResponse(
        filter_results=[
            DeleteAclsResponse.DeleteAclsFilterResult(
                error_code=Code.SECURITY_DISABLED, error_message=_NO_SECURITY, matching_acls=[]
            )
            for _ in request.filters
        ]
    )


def describe_user_scram_credentials(node: Node, request: Any, context: RequestContext) -> Any:
    """Report that the users do not exist: there are no credentials."""
    shape = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
    return DescribeUserScramCredentialsResponse(
        error_code=Code.NONE,
        error_message=None,
        results=[
            shape(
                user=user.name,
                error_code=Code.RESOURCE_NOT_FOUND,
                error_message=f"there is no user {user.name!r}",
                credential_infos=[],
            )
            for user in request.users or []
        ],
    )
