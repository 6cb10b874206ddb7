"""The supported requests of Kafka's protocol: their versions, and the classes that encode and decode them.

The classes are kafka-python's: one class handles every version of a message and omits the fields that a version
does not have. The version ranges are those of a Kafka 4.3 broker, as far as a single node needs them. Produce is
listed from version 0 although only 3 and higher are supported, because older librdkafka otherwise stops
compressing (KAFKA-18659).
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from kafka.protocol.admin import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterConfigsRequest,
    AlterConfigsResponse,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from kafka.protocol.consumer import (
    FetchRequest,
    FetchResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

from headwater.transmit.wire.json_messages import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

PRODUCE, FETCH, API_VERSIONS, SHARE_FETCH = 0, 1, 18, 78


@dataclass(frozen=True, slots=True)
class Api:
    """A request, its response, and the versions listed in ApiVersions."""

    key: int
    request: Any
    response: Any
    version_min: int
    version_max: int

    def serves(self, version: int) -> bool:
        return self.version_min <= version <= self.version_max


def _table(*rows: tuple[Any, Any, int, int]) -> dict[int, Api]:
    return {request.API_KEY: Api(request.API_KEY, request, response, low, high)
            for request, response, low, high in rows}  # fmt: skip


APIS = _table(
    (ProduceRequest, ProduceResponse, 0, 13),
    (FetchRequest, FetchResponse, 4, 18),
    (ListOffsetsRequest, ListOffsetsResponse, 1, 11),
    (MetadataRequest, MetadataResponse, 0, 13),
    (OffsetCommitRequest, OffsetCommitResponse, 2, 10),
    (OffsetFetchRequest, OffsetFetchResponse, 1, 10),
    (FindCoordinatorRequest, FindCoordinatorResponse, 0, 6),
    (JoinGroupRequest, JoinGroupResponse, 0, 9),
    (HeartbeatRequest, HeartbeatResponse, 0, 4),
    (LeaveGroupRequest, LeaveGroupResponse, 0, 5),
    (SyncGroupRequest, SyncGroupResponse, 0, 5),
    (DescribeGroupsRequest, DescribeGroupsResponse, 0, 6),
    (ListGroupsRequest, ListGroupsResponse, 0, 5),
    (ApiVersionsRequest, ApiVersionsResponse, 0, 4),
    (CreateTopicsRequest, CreateTopicsResponse, 2, 7),
    (DeleteTopicsRequest, DeleteTopicsResponse, 1, 6),
    (InitProducerIdRequest, InitProducerIdResponse, 0, 5),
    (OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse, 2, 4),
    (AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, 0, 3),  # higher versions are for brokers
    (AddOffsetsToTxnRequest, AddOffsetsToTxnResponse, 0, 4),
    (EndTxnRequest, EndTxnResponse, 0, 4),  # higher versions are for transaction.version 2
    (WriteTxnMarkersRequest, WriteTxnMarkersResponse, 1, 2),
    (TxnOffsetCommitRequest, TxnOffsetCommitResponse, 0, 4),  # higher versions are for transaction.version 2
    (DescribeConfigsRequest, DescribeConfigsResponse, 1, 4),
    (CreatePartitionsRequest, CreatePartitionsResponse, 0, 3),
    (DeleteGroupsRequest, DeleteGroupsResponse, 0, 2),
    (DescribeClusterRequest, DescribeClusterResponse, 0, 2),
    (DescribeProducersRequest, DescribeProducersResponse, 0, 0),
    (DescribeTransactionsRequest, DescribeTransactionsResponse, 0, 0),
    (ListTransactionsRequest, ListTransactionsResponse, 0, 2),
    (DeleteRecordsRequest, DeleteRecordsResponse, 0, 2),
    (DescribeAclsRequest, DescribeAclsResponse, 1, 3),
    (CreateAclsRequest, CreateAclsResponse, 1, 3),
    (DeleteAclsRequest, DeleteAclsResponse, 1, 3),
    (AlterConfigsRequest, AlterConfigsResponse, 0, 2),
    (AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse, 1, 2),
    (DescribeLogDirsRequest, DescribeLogDirsResponse, 1, 5),
    (ElectLeadersRequest, ElectLeadersResponse, 0, 2),
    (IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse, 0, 1),
    (AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse, 0, 1),
    (ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse, 0, 0),
    (OffsetDeleteRequest, OffsetDeleteResponse, 0, 0),
    (DescribeClientQuotasRequest, DescribeClientQuotasResponse, 0, 1),
    (AlterClientQuotasRequest, AlterClientQuotasResponse, 0, 1),
    (DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse, 0, 0),
    (ListConfigResourcesRequest, ListConfigResourcesResponse, 0, 1),
    (DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse, 0, 0),
    (ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, 0, 1),
    (ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse, 0, 1),
    (ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse, 1, 1),
    (ShareGroupDescribeRequest, ShareGroupDescribeResponse, 1, 1),
    (ShareFetchRequest, ShareFetchResponse, 1, 2),
    (ShareAcknowledgeRequest, ShareAcknowledgeResponse, 1, 2),
    (DescribeShareGroupOffsetsRequest, DescribeShareGroupOffsetsResponse, 0, 1),
    (AlterShareGroupOffsetsRequest, AlterShareGroupOffsetsResponse, 0, 0),
    (DeleteShareGroupOffsetsRequest, DeleteShareGroupOffsetsResponse, 0, 0),
)


@lru_cache(maxsize=1024)  # bounded, because clients choose the arguments
def is_flexible(api_key: int, api_version: int) -> bool:
    """Return True if this version of a request uses compact fields and tags."""
    api = APIS.get(api_key)
    return api is not None and bool(api.request.flexible_version_q(api_version))
