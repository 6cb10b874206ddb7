"""The cluster: API versions, metadata, coordinators."""

import uuid
from typing import Any

from kafka.protocol.admin import DescribeClusterResponse
from kafka.protocol.metadata import ApiVersionsResponse, FindCoordinatorResponse, MetadataResponse

from headwater.errors import InvalidError
from headwater.transmit.broker.node import CLUSTER_ID, NODE_ID, Node
from headwater.transmit.broker.permissions import ON_CLUSTER, ON_TOPIC, as_set
from headwater.transmit.broker.request import RequestContext
from headwater.transmit.log.partition import LEADER_EPOCH
from headwater.transmit.topics.catalog import TopicEntry, check_topic_name
from headwater.transmit.wire.apis import APIS
from headwater.transmit.wire.codes import Code

_FEATURES = {"group.version": 1, "share.version": 1}
_FEATURES_FROM_0_IN = 4  # older clients treat a feature with minimum version 0 as an error (KAFKA-17492)
_NO_ID = uuid.UUID(int=0)
_EVERY_TOPIC_IF_EMPTY = 0  # in this version of Metadata an empty list means all topics; later versions use null


def api_versions(node: Node, request: Any, context: RequestContext) -> Any:
    """List the supported requests; a newer client retries with one of the listed versions."""
    supported = APIS[request.API_KEY].serves(context.version)
    return ApiVersionsResponse(
        error_code=Code.NONE if supported else Code.UNSUPPORTED_VERSION,
        api_keys=[
            ApiVersionsResponse.ApiVersion(
                api_key=api.key, min_version=api.version_min, max_version=api.version_max
            )
            for api in APIS.values()
        ],
        supported_features=[
            ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=0, max_version=level)
            for name, level in _FEATURES.items()
            if context.version >= _FEATURES_FROM_0_IN
        ],
        finalized_features_epoch=0,
        finalized_features=[
            ApiVersionsResponse.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in _FEATURES.items()
        ],
    )


def metadata(node: Node, request: Any, context: RequestContext) -> Any:
    """Describe topics; a topic that does not exist is created if the broker and the request allow it."""
    wants_all = request.topics is None or (context.version == _EVERY_TOPIC_IF_EMPTY and not request.topics)
    if wants_all:
        topics = [_topic(entry) for entry in node.topics.entries()]
    else:
        topics = [_wanted_topic(node, wanted, request) for wanted in request.topics]
    for topic in topics:
        if topic.error_code == Code.NONE:
            topic.authorized_operations = as_set(ON_TOPIC, requested=request.include_topic_authorized_operations)
    return MetadataResponse(
        brokers=[
            MetadataResponse.MetadataResponseBroker(
                node_id=NODE_ID, host=node.endpoint.host, port=node.endpoint.port, rack=None
            )
        ],
        cluster_id=CLUSTER_ID,
        controller_id=NODE_ID,
        topics=topics,
        authorized_operations=as_set(ON_CLUSTER, requested=request.include_cluster_authorized_operations),
    )


def find_coordinator(node: Node, request: Any, context: RequestContext) -> Any:
    """Return this node, the only one."""
    coordinator = {"node_id": NODE_ID, "host": node.endpoint.host, "port": node.endpoint.port}
    return FindCoordinatorResponse(
        error_code=Code.NONE,
        error_message=None,
        coordinators=[
            FindCoordinatorResponse.Coordinator(key=key, error_code=Code.NONE, error_message=None, **coordinator)
            for key in request.coordinator_keys or []
        ],
        **coordinator,
    )


def describe_cluster(node: Node, request: Any, context: RequestContext) -> Any:
    return DescribeClusterResponse(
        error_code=Code.NONE,
        error_message=None,
        cluster_id=CLUSTER_ID,
        controller_id=NODE_ID,
        brokers=[
            DescribeClusterResponse.DescribeClusterBroker(
                broker_id=NODE_ID, host=node.endpoint.host, port=node.endpoint.port, rack=None
            )
        ],
        authorized_operations=as_set(ON_CLUSTER, requested=request.include_cluster_authorized_operations),
    )


def _wanted_topic(node: Node, wanted: Any, request: Any) -> Any:
    if wanted.name is None:
        entry = node.topics.entry(wanted.topic_id)
        return _topic(entry) if entry else _missing(None, wanted.topic_id, Code.UNKNOWN_TOPIC_ID)
    entry = node.topics.entry(wanted.name)
    if entry is not None:
        return _topic(entry)
    try:
        check_topic_name(wanted.name)
    except InvalidError:
        return _missing(wanted.name, _NO_ID, Code.INVALID_TOPIC_EXCEPTION)
    if node.settings.auto_create_topics_enable and request.allow_auto_topic_creation:
        return _topic(node.topics.create(wanted.name, node.settings.num_partitions, {}))
    return _missing(wanted.name, _NO_ID, Code.UNKNOWN_TOPIC_OR_PARTITION)


def _topic(entry: TopicEntry) -> Any:
    return MetadataResponse.MetadataResponseTopic(
        error_code=Code.NONE,
        name=entry.name,
        topic_id=entry.id,
        is_internal=False,
        partitions=[
            MetadataResponse.MetadataResponseTopic.MetadataResponsePartition(
                error_code=Code.NONE,
                partition_index=number,
                leader_id=NODE_ID,
                leader_epoch=LEADER_EPOCH,
                replica_nodes=[NODE_ID],
                isr_nodes=[NODE_ID],
                offline_replicas=[],
            )
            for number in range(entry.partitions)
        ],
    )


def _missing(name: str | None, topic_id: uuid.UUID, code: Code) -> Any:
    return MetadataResponse.MetadataResponseTopic(
        error_code=code, name=name, topic_id=topic_id, is_internal=False, partitions=[]
    )
