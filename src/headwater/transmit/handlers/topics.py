"""Topics: creating, growing, deleting and describing them."""

from typing import Any

from kafka.protocol.admin import (
    CreatePartitionsResponse,
    CreateTopicsResponse,
    DeleteTopicsResponse,
    DescribeConfigsResponse,
)

from headwater.errors import ConflictError, HeadwaterError, InvalidError
from headwater.transmit.catalog import TopicEntry, check_topic_name
from headwater.transmit.handlers import Asker
from headwater.transmit.handlers.group_configs import GROUP_RESOURCE, group_config_values
from headwater.transmit.node import Node
from headwater.transmit.wire.codes import Code

_ASSIGNED = -1  # instead of a number: the broker's default, or given by the assignments
_TOPIC, _BROKER = 2, 4
_SET_ON_TOPIC, _DEFAULT = 1, 5


# -- create, grow, delete -------------------------------------------------------------------------------------


def create_topics(node: Node, request: Any, asker: Asker) -> Any:
    return CreateTopicsResponse(
        topics=[_create(node, topic, validate_only=request.validate_only) for topic in request.topics]
    )


def _create(node: Node, topic: Any, *, validate_only: bool) -> Any:
    shape = CreateTopicsResponse.CreatableTopicResult
    try:
        partitions = _partitions_of(node, topic)
        configs = {config.name: config.value for config in topic.configs if config.value is not None}
        if topic.replication_factor not in (_ASSIGNED, 1) and not topic.assignments:
            return shape(
                name=topic.name,
                error_code=Code.INVALID_REPLICATION_FACTOR,
                error_message=f"replication factor {topic.replication_factor}: there is one node, ask for 1",
                num_partitions=-1,
                replication_factor=-1,
                configs=[],
            )
        if validate_only:
            check_topic_name(topic.name)
            if node.topics.entry(topic.name):
                raise ConflictError(f"cannot create topic {topic.name!r}: it exists")
            entry = None
        else:
            entry = node.topics.create(topic.name, partitions, configs)
    except HeadwaterError as error:
        return shape(
            name=topic.name,
            error_code=_create_code(topic.name, error),
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
        configs=[],
        **({"topic_id": entry.id} if entry else {}),
    )


def _partitions_of(node: Node, topic: Any) -> int:
    if topic.assignments:
        return len(topic.assignments)
    return node.settings.num_partitions if topic.num_partitions == _ASSIGNED else int(topic.num_partitions)


def _create_code(name: str, error: HeadwaterError) -> Code:
    if isinstance(error, ConflictError):
        return Code.TOPIC_ALREADY_EXISTS
    try:
        check_topic_name(name)
    except InvalidError:
        return Code.INVALID_TOPIC_EXCEPTION
    return Code.INVALID_PARTITIONS


def create_partitions(node: Node, request: Any, asker: Asker) -> Any:
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
    return CreatePartitionsResponse.CreatePartitionsTopicResult(
        name=topic.name, error_code=code, error_message=message
    )


def delete_topics(node: Node, request: Any, asker: Asker) -> Any:
    """Delete by name, or by id in newer versions."""
    if request.topics:
        asked = [(topic.name, topic.topic_id) for topic in request.topics]
    else:
        asked = [(name, None) for name in request.topic_names or []]
    results = []
    for name, topic_id in asked:
        entry = node.topics.entry(name if name is not None else topic_id)
        if entry is not None:
            node.topics.delete(entry.name)
        missing = Code.UNKNOWN_TOPIC_OR_PARTITION if name is not None else Code.UNKNOWN_TOPIC_ID
        results.append(
            DeleteTopicsResponse.DeletableTopicResult(
                name=entry.name if entry else name,
                error_code=Code.NONE if entry else missing,
                error_message=None if entry else f"there is no topic {name or topic_id}",
                **({"topic_id": entry.id} if entry else {}),
            )
        )
    return DeleteTopicsResponse(responses=results)


# -- configs --------------------------------------------------------------------------------------------------


def describe_configs(node: Node, request: Any, asker: Asker) -> Any:
    return DescribeConfigsResponse(results=[_describe(node, asked) for asked in request.resources])


def _describe(node: Node, asked: Any) -> Any:
    entry = node.topics.entry(asked.resource_name) if asked.resource_type == _TOPIC else None
    code, message = Code.NONE, None
    configs: dict[str, tuple[str, int]] = {}
    if asked.resource_type == _TOPIC and entry is None:
        code, message = Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {asked.resource_name!r}"
    elif asked.resource_type == _TOPIC and entry is not None:
        configs = _topic_configs(node, entry)
    elif asked.resource_type == _BROKER:
        configs = {name: (value, _DEFAULT) for name, value in _broker_configs(node).items()}
    elif asked.resource_type == GROUP_RESOURCE:
        configs = group_config_values(node, asked.resource_name)
    else:
        code, message = Code.INVALID_REQUEST, f"resources of type {asked.resource_type} have no configs here"
    wanted = asked.configuration_keys
    return DescribeConfigsResponse.DescribeConfigsResult(
        error_code=code,
        error_message=message,
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
        configs=[
            DescribeConfigsResponse.DescribeConfigsResult.DescribeConfigsResourceResult(
                name=name,
                value=value,
                read_only=True,
                config_source=source,
                is_sensitive=False,
                synonyms=[],
                config_type=0,
                documentation=None,
            )
            for name, (value, source) in configs.items()
            if wanted is None or name in wanted
        ],
    )


def _topic_configs(node: Node, entry: TopicEntry) -> dict[str, tuple[str, int]]:
    defaults = {
        "cleanup.policy": "delete",
        "max.message.bytes": str(node.settings.message_max_bytes),
        "segment.bytes": str(node.settings.segment_bytes),
    }
    configs = {name: (value, _DEFAULT) for name, value in defaults.items()}
    configs.update((name, (value, _SET_ON_TOPIC)) for name, value in entry.configs.items())
    return configs


def _broker_configs(node: Node) -> dict[str, str]:
    settings = node.settings
    return {
        "num.partitions": str(settings.num_partitions),
        "auto.create.topics.enable": str(settings.auto_create_topics_enable).lower(),
        "message.max.bytes": str(settings.message_max_bytes),
        "log.segment.bytes": str(settings.segment_bytes),
        "headwater.durability": settings.durability.value,
    }
