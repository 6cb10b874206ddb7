"""Every listed version of every request gets a response without an error, over TCP."""

import socket
import struct
from typing import Any

import pytest
from kafka.protocol import admin, consumer, metadata, producer

from headwater.record import Record, TopicPartition
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.client.client import Client
from headwater.transmit.records.batch import encode_batch
from headwater.transmit.wire import json_messages as wire
from headwater.transmit.wire.apis import API_VERSIONS, APIS, PRODUCE
from headwater.transmit.wire.frame import skip_tags
from headwater.transmit.wire.produce import VERSION_MIN as PRODUCE_VERSION_MIN

VERSIONS = [
    (api.key, version)
    for api in APIS.values()
    for version in range(PRODUCE_VERSION_MIN if api.key == PRODUCE else api.version_min, api.version_max + 1)
]


class Peer:
    """A client of a broker that has one topic, `orders`, with one record."""

    def __init__(self, broker: Broker) -> None:
        with Client(broker.bootstrap_servers) as client:
            client.create_topic("orders")
            client.produce(TopicPartition("orders", 0), encode_batch([Record(value=b"v", timestamp_ms=5)]))
        host, port = broker.bootstrap_servers.split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=20)
        found = self.call(metadata.MetadataRequest(topics=None), 12)
        self.topic_id = found.topics[0].topic_id

    def close(self) -> None:
        self._socket.close()

    def call(self, request: Any, version: int) -> Any:
        request.API_VERSION = version
        request.with_header(correlation_id=1, client_id="peer")
        self._socket.sendall(request.encode(version=version, header=True, framed=True))
        (size,) = struct.unpack(">i", self._exactly(4))
        frame = memoryview(bytearray(self._exactly(size)))
        response = APIS[request.API_KEY].response
        flexible = response.flexible_version_q(version) and request.API_KEY != API_VERSIONS
        return response.decode(frame[skip_tags(frame, 4) if flexible else 4 :], version=version)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            assert piece, "closed by the broker"
            data += piece
        return data


def build(key: int, version: int, topic_id: Any) -> Any:
    """Build a valid request; the encoder omits fields that the version does not have."""
    orders = {"name": "orders", "topic": "orders", "topic_id": topic_id}
    name = {"name": "orders"}
    produce, fetch = producer.ProduceRequest, consumer.FetchRequest
    offsets, commit, fetched = (
        consumer.ListOffsetsRequest,
        consumer.OffsetCommitRequest,
        consumer.OffsetFetchRequest,
    )
    epoch, create, grow = (
        consumer.OffsetForLeaderEpochRequest,
        admin.CreateTopicsRequest,
        admin.CreatePartitionsRequest,
    )
    alter, fetched_topic = admin.IncrementalAlterConfigsRequest, wire.ShareFetchRequest.FetchTopic
    member = {"group_id": "g", "member_id": "nobody", "group_instance_id": None}
    records = encode_batch([Record(value=b"w")])
    builders = {
        0: lambda: produce(
            transactional_id=None, acks=-1, timeout_ms=1000,
            topic_data=[produce.TopicProduceData(
                **{k: orders[k] for k in ("name", "topic_id")},
                partition_data=[produce.TopicProduceData.PartitionProduceData(index=0, records=records)],
            )],
        ),
        1: lambda: fetch(
            replica_id=-1, max_wait_ms=0, min_bytes=1, max_bytes=1000, isolation_level=0, session_id=0,
            session_epoch=-1, forgotten_topics_data=[], rack_id="",
            topics=[fetch.FetchTopic(
                **{k: orders[k] for k in ("topic", "topic_id")},
                partitions=[fetch.FetchTopic.FetchPartition(
                    partition=0, current_leader_epoch=-1, fetch_offset=0, last_fetched_epoch=-1,
                    log_start_offset=-1, partition_max_bytes=1000,
                )],
            )],
        ),
        2: lambda: offsets(
            replica_id=-1, isolation_level=0, timeout_ms=1000,
            topics=[offsets.ListOffsetsTopic(**name, partitions=[
                offsets.ListOffsetsTopic.ListOffsetsPartition(
                    partition_index=0, current_leader_epoch=-1, timestamp=5)])],
        ),
        3: lambda: metadata.MetadataRequest(
            topics=[metadata.MetadataRequest.MetadataRequestTopic(**name)], allow_auto_topic_creation=True,
        ),
        8: lambda: commit(
            group_id="g", generation_id_or_member_epoch=-1, member_id="", group_instance_id=None,
            retention_time_ms=-1,
            topics=[commit.OffsetCommitRequestTopic(**name, topic_id=topic_id, partitions=[
                commit.OffsetCommitRequestTopic.OffsetCommitRequestPartition(
                    partition_index=0, committed_offset=1, committed_leader_epoch=0, committed_metadata="m")])],
        ),
        9: lambda: fetched(
            group_id="g", require_stable=False,
            topics=[fetched.OffsetFetchRequestTopic(**name, partition_indexes=[0])],
            groups=[fetched.OffsetFetchRequestGroup(group_id="g", member_id=None, member_epoch=-1, topics=[
                fetched.OffsetFetchRequestGroup.OffsetFetchRequestTopics(
                    **name, topic_id=topic_id, partition_indexes=[0])])],
        ),
        10: lambda: metadata.FindCoordinatorRequest(key="g", key_type=0, coordinator_keys=["g"]),
        11: lambda: consumer.JoinGroupRequest(
            group_id=f"joined-{version}", session_timeout_ms=1000, rebalance_timeout_ms=1000, member_id="",
            group_instance_id=None, protocol_type="consumer", reason=None,
            protocols=[consumer.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"m")],
        ),
        12: lambda: consumer.HeartbeatRequest(**member, generation_id=1),
        13: lambda: consumer.LeaveGroupRequest(
            group_id="g", member_id="nobody", members=[consumer.LeaveGroupRequest.MemberIdentity(
                member_id="nobody", group_instance_id=None, reason=None)],
        ),
        14: lambda: consumer.SyncGroupRequest(
            **member, generation_id=1, protocol_type="consumer", protocol_name="range", assignments=[]),
        15: lambda: admin.DescribeGroupsRequest(groups=["g"], include_authorized_operations=False),
        16: lambda: admin.ListGroupsRequest(states_filter=[], types_filter=[]),
        18: lambda: metadata.ApiVersionsRequest(client_software_name="peer", client_software_version="1"),
        19: lambda: create(
            timeout_ms=1000, validate_only=False,
            topics=[create.CreatableTopic(
                name=f"made-{version}", num_partitions=2, replication_factor=1, assignments=[], configs=[])],
        ),
        20: lambda: admin.DeleteTopicsRequest(
            timeout_ms=1000, topic_names=["orders"],
            topics=[admin.DeleteTopicsRequest.DeleteTopicState(name="orders", topic_id=topic_id)],
        ),
        22: lambda: producer.InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=1000, producer_id=-1, producer_epoch=-1),
        23: lambda: epoch(
            replica_id=-1,
            topics=[epoch.OffsetForLeaderTopic(topic="orders", partitions=[
                epoch.OffsetForLeaderTopic.OffsetForLeaderPartition(
                    partition=0, current_leader_epoch=-1, leader_epoch=0)])],
        ),
        32: lambda: admin.DescribeConfigsRequest(
            include_synonyms=False, include_documentation=False,
            resources=[admin.DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=2, resource_name="orders", configuration_keys=None)],
        ),
        37: lambda: grow(
            timeout_ms=1000, validate_only=False,
            topics=[grow.CreatePartitionsTopic(name="orders", count=3, assignments=None)],
        ),
        42: lambda: admin.DeleteGroupsRequest(groups_names=["g"]),
        44: lambda: alter(
            validate_only=False,
            resources=[alter.AlterConfigsResource(resource_type=32, resource_name="g", configs=[
                alter.AlterConfigsResource.AlterableConfig(
                    name="share.auto.offset.reset", config_operation=0, value="earliest")])],
        ),
        60: lambda: admin.DescribeClusterRequest(include_cluster_authorized_operations=False, endpoint_type=1),
        68: lambda: wire.ConsumerGroupHeartbeatRequest(
            group_id="new", member_id="m" * version, member_epoch=0, rebalance_timeout_ms=1000,
            subscribed_topic_names=["orders"], topic_partitions=[],
        ),
        69: lambda: wire.ConsumerGroupDescribeRequest(group_ids=["new"], include_authorized_operations=False),
        76: lambda: wire.ShareGroupHeartbeatRequest(
            group_id="q", member_id="m", member_epoch=0, subscribed_topic_names=["orders"]),
        77: lambda: wire.ShareGroupDescribeRequest(group_ids=["q"], include_authorized_operations=False),
        78: lambda: wire.ShareFetchRequest(
            group_id="q", member_id="m", share_session_epoch=0, max_wait_ms=0, min_bytes=1, max_bytes=1000,
            max_records=10, batch_size=10, share_acquire_mode=0, forgotten_topics_data=[],
            topics=[fetched_topic(topic_id=topic_id, partitions=[
                fetched_topic.FetchPartition(partition_index=0, acknowledgement_batches=[])])],
        ),
        79: lambda: wire.ShareAcknowledgeRequest(
            group_id="q", member_id="m", share_session_epoch=1, topics=[]),
        90: lambda: wire.DescribeShareGroupOffsetsRequest(
            groups=[wire.DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup(
                group_id="q", topics=None)]),
        91: lambda: wire.AlterShareGroupOffsetsRequest(group_id="q", topics=[]),
        92: lambda: wire.DeleteShareGroupOffsetsRequest(group_id="q", topics=[]),
        **admin_builders(),
    }  # fmt: skip
    return builders[key]() if key in builders else build_transactional(key)


def build_transactional(key: int) -> Any:
    """Build a request for a transactional id that does not exist."""
    producer_fields = {"transactional_id": "t", "producer_id": 9, "producer_epoch": 0}
    add, offsets = producer.AddPartitionsToTxnRequest, producer.TxnOffsetCommitRequest
    markers, producers = producer.WriteTxnMarkersRequest, admin.DescribeProducersRequest
    builders: dict[int, Any] = {
        24: lambda: add(
            v3_and_below_transactional_id="t", v3_and_below_producer_id=9, v3_and_below_producer_epoch=0,
            v3_and_below_topics=[add.AddPartitionsToTxnTopic(name="orders", partitions=[0, 1])],
        ),
        25: lambda: producer.AddOffsetsToTxnRequest(**producer_fields, group_id="g"),
        26: lambda: producer.EndTxnRequest(**producer_fields, committed=True),
        27: lambda: markers(markers=[markers.WritableTxnMarker(
            producer_id=9, producer_epoch=0, transaction_result=False, coordinator_epoch=0,
            topics=[markers.WritableTxnMarker.WritableTxnMarkerTopic(name="orders", partition_indexes=[0])])]),
        28: lambda: offsets(
            **producer_fields, group_id="g", generation_id=-1, member_id="", group_instance_id=None,
            topics=[offsets.TxnOffsetCommitRequestTopic(name="orders", partitions=[
                offsets.TxnOffsetCommitRequestTopic.TxnOffsetCommitRequestPartition(
                    partition_index=0, committed_offset=1, committed_leader_epoch=-1, committed_metadata="")])],
        ),
        61: lambda: producers(topics=[producers.TopicRequest(name="orders", partition_indexes=[0])]),
        65: lambda: admin.DescribeTransactionsRequest(transactional_ids=["t"]),
        66: lambda: admin.ListTransactionsRequest(state_filters=["Ongoing"], producer_id_filters=[]),
    }  # fmt: skip
    return builders[key]()


def admin_builders() -> dict[int, Any]:
    records, alter, incremental = (
        admin.DeleteRecordsRequest,
        admin.AlterConfigsRequest,
        admin.IncrementalAlterConfigsRequest,
    )
    reassign, forget, scram = (
        admin.AlterPartitionReassignmentsRequest,
        consumer.OffsetDeleteRequest,
        admin.DescribeUserScramCredentialsRequest,
    )
    quota = admin.AlterClientQuotasRequest.EntryData
    move = admin.AlterReplicaLogDirsRequest
    setting = {"name": "retention.ms", "value": "1000"}
    orders = {"resource_type": 2, "resource_name": "orders"}
    anything = {
        "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1,
        "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1,
    }  # fmt: skip
    return {
        21: lambda: records(timeout_ms=1000, topics=[records.DeleteRecordsTopic(name="orders", partitions=[
            records.DeleteRecordsTopic.DeleteRecordsPartition(partition_index=0, offset=-1)])]),
        29: lambda: admin.DescribeAclsRequest(**anything),
        30: lambda: admin.CreateAclsRequest(creations=[admin.CreateAclsRequest.AclCreation(
            resource_type=2, resource_name="orders", resource_pattern_type=3, principal="User:a", host="*",
            operation=2, permission_type=3)]),
        31: lambda: admin.DeleteAclsRequest(filters=[admin.DeleteAclsRequest.DeleteAclsFilter(**anything)]),
        33: lambda: alter(validate_only=False, resources=[alter.AlterConfigsResource(
            **orders, configs=[alter.AlterConfigsResource.AlterableConfig(**setting)])]),
        34: lambda: move(dirs=[move.AlterReplicaLogDir(path="/elsewhere", topics=[
            move.AlterReplicaLogDir.AlterReplicaLogDirTopic(name="orders", partitions=[0])])]),
        35: lambda: admin.DescribeLogDirsRequest(topics=None),
        43: lambda: admin.ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=1000),
        44: lambda: incremental(validate_only=False, resources=[incremental.AlterConfigsResource(
            **orders,
            configs=[incremental.AlterConfigsResource.AlterableConfig(**setting, config_operation=0)])]),
        45: lambda: reassign(timeout_ms=1000, allow_replication_factor_change=True, topics=[
            reassign.ReassignableTopic(name="orders", partitions=[
                reassign.ReassignableTopic.ReassignablePartition(partition_index=0, replicas=[1])])]),
        46: lambda: admin.ListPartitionReassignmentsRequest(timeout_ms=1000, topics=None),
        47: lambda: forget(group_id="g", topics=[forget.OffsetDeleteRequestTopic(name="orders", partitions=[
            forget.OffsetDeleteRequestTopic.OffsetDeleteRequestPartition(partition_index=0)])]),
        48: lambda: admin.DescribeClientQuotasRequest(components=[], strict=False),
        49: lambda: admin.AlterClientQuotasRequest(
            entries=[quota(entity=[quota.EntityData(entity_type="user", entity_name=None)],
                           ops=[quota.OpData(key="request_percentage", value=50.0, remove=False)])],
            validate_only=False),
        50: lambda: scram(users=[scram.UserName(name="nobody")]),
        74: lambda: admin.ListConfigResourcesRequest(resource_types=[]),
        75: lambda: admin.DescribeTopicPartitionsRequest(
            topics=[admin.DescribeTopicPartitionsRequest.TopicRequest(name="orders")],
            response_partition_limit=10, cursor=None),
    }  # fmt: skip


EXPECTED = {
    11: {0, 79}, 12: {25}, 13: {0, 25}, 14: {25}, 15: {0, 69}, 42: {69},
    25: {49}, 26: {49}, 28: {49}, 65: {105},
    69: {69}, 77: {69}, 79: {122}, 90: {0, 69}, 91: {69}, 92: {69},
    29: {54}, 30: {54}, 31: {54}, 34: {57}, 43: {0, 84}, 47: {69}, 50: {0, 91},
}  # fmt: skip
"""Codes for members, groups and transactions that do not exist, and for features that a single node lacks."""


def codes(value: Any) -> set[int]:
    """Return every `error_code` in a message."""
    found: set[int] = set()
    if isinstance(value, dict):
        for name, inner in value.items():
            found |= {inner} if name == "error_code" else codes(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            found |= codes(inner)
    return found


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_every_version_of_every_request(broker: Broker, key: int, version: int) -> None:
    peer = Peer(broker)
    try:
        response = peer.call(build(key, version, peer.topic_id), version)
    finally:
        peer.close()
    assert codes(response.to_dict()) - EXPECTED.get(key, {0}) == set()
