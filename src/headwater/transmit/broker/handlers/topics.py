"""Topics: create and delete them, and add partitions."""

from typing import Any

from kafka.protocol.admin import (
    CreatePartitionsResponse,
    CreateTopicsResponse,
    DeleteTopicsResponse,
)

from headwater.errors import ConflictError, HeadwaterError, InvalidError, UnavailableError
from headwater.transmit.broker.error_codes import create_topic_code
from headwater.transmit.broker.node import Node
from headwater.transmit.broker.request import RequestContext
from headwater.transmit.configs import ConfigResource, check_configs
from headwater.transmit.topics.catalog import TopicEntry, check_topic_name
from headwater.transmit.wire.codes import Code

_DEFAULT = -1  # in place of a number: the broker's default, or given by the assignments


def create_topics(node: Node, request: Any, context: RequestContext) -> Any:
    return CreateTopicsResponse(
        topics=[_create(node, topic, validate_only=request.validate_only) for topic in request.topics]
    )


def _create(node: Node, topic: Any, *, validate_only: bool) -> Any:
    shape = CreateTopicsResponse.CreatableTopicResult
    try:
        partitions = _partitions_of(node, topic)
        configs = {config.name: config.value for config in topic.configs if config.value is not None}
        if topic.replication_factor not in (_DEFAULT, 1) and not topic.assignments and not _any_factor(node):
            return shape(
                name=topic.name,
                error_code=Code.INVALID_REPLICATION_FACTOR,
                error_message=f"invalid replication factor {topic.replication_factor}: with one node use 1",
                num_partitions=-1,
                replication_factor=-1,
                configs=[],
            )
        if validate_only:
            check_topic_name(topic.name)
            check_configs(ConfigResource.TOPIC, configs)
            if node.topics.entry(topic.name):
                raise ConflictError(f"cannot create topic {topic.name!r}: it exists")
            entry = None
        else:
            entry = node.topics.create(topic.name, partitions, configs)
    except HeadwaterError as error:
        return shape(
            name=topic.name,
            error_code=create_topic_code(topic.name, error),
            error_message=str(error),
            num_partitions=-1,
            replication_factor=-1,
            configs=[],
        )
    return shape(
        name=topic.name,
        error_code=Code.NONE,
        error_message=None,
        num_partitions=partitions,
        replication_factor=1,
        configs=_created_configs(node, entry) if entry else [],
        **({"topic_id": entry.id} if entry else {}),
    )


def _any_factor(node: Node) -> bool:
    return node.topics.broker_configs()["headwater.any.replication.factor"].value == "true"


def _created_configs(node: Node, entry: TopicEntry) -> list[Any]:
    return [
        CreateTopicsResponse.CreatableTopicResult.CreatableTopicConfigs(
            name=name, value=found.value, read_only=False, config_source=found.source, is_sensitive=False
        )
        for name, found in node.topics.topic_configs(entry).items()
    ]


def _partitions_of(node: Node, topic: Any) -> int:
    if topic.assignments:
        return len(topic.assignments)
    return node.settings.num_partitions if topic.num_partitions == _DEFAULT else int(topic.num_partitions)


def create_partitions(node: Node, request: Any, context: RequestContext) -> Any:
    return CreatePartitionsResponse(
        results=[_grow(node, topic, validate_only=request.validate_only) for topic in request.topics]
    )


def _grow(node: Node, topic: Any, *, validate_only: bool) -> Any:
    code, message = Code.NONE, None
    if node.topics.entry(topic.name) is None:
        code, message = Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic.name!r}"
    elif not validate_only:
        try:
            node.topics.grow(topic.name, topic.count)
        except InvalidError as error:
            code, message = Code.INVALID_PARTITIONS, str(error)
        except UnavailableError as error:
            code, message = Code.KAFKA_STORAGE_ERROR, str(error)
    return CreatePartitionsResponse.CreatePartitionsTopicResult(
        name=topic.name, error_code=code, error_message=message
    )


def delete_topics(node: Node, request: Any, context: RequestContext) -> Any:
    """Delete topics, by name or in newer versions by id."""
    if request.topics:
        topics = [(topic.name, topic.topic_id) for topic in request.topics]
    else:
        topics = [(name, None) for name in request.topic_names or []]
    results = []
    for name, topic_id in topics:
        entry = node.topics.entry(name if name is not None else topic_id)
        code, message = Code.NONE, None
        if entry is None:
            code = Code.UNKNOWN_TOPIC_OR_PARTITION if name is not None else Code.UNKNOWN_TOPIC_ID
            message = f"there is no topic {name or topic_id}"
        else:
            try:
                node.topics.delete(entry.name)
            except UnavailableError as error:
                code, message = Code.KAFKA_STORAGE_ERROR, str(error)
        results.append(
            DeleteTopicsResponse.DeletableTopicResult(
                name=entry.name if entry else name,
                error_code=code,
                error_message=message,
                **({"topic_id": entry.id} if entry else {}),
            )
        )
    return DeleteTopicsResponse(responses=results)
