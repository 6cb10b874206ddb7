"""Configs of topics, the broker and groups: describe and change them."""

from collections.abc import Callable, Mapping
from typing import Any

from kafka.protocol.admin import (
    AlterConfigsResponse,
    DescribeConfigsResponse,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesResponse,
)

from headwater.errors import HeadwaterError, InvalidError, UnavailableError
from headwater.transmit import configs
from headwater.transmit.broker.node import NODE_ID, Node
from headwater.transmit.broker.request import RequestContext
from headwater.transmit.configs import TABLES, ConfigResource, ConfigType, ConfigValue, InvalidConfig, split_list
from headwater.transmit.groups.settings import check_config as check_group_config
from headwater.transmit.wire.codes import Code

_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
_CLIENT_METRICS = 16  # the only kind that version 0 of ListConfigResources lists
_ALL_KINDS_FROM = 1  # the version since which it lists other kinds as well


class UnknownTopic(InvalidError):
    """There is no such topic."""


# -- describing -----------------------------------------------------------------------------------------------


def describe_configs(node: Node, request: Any, context: RequestContext) -> Any:
    return DescribeConfigsResponse(results=[_describe(node, resource, request) for resource in request.resources])


def _describe(node: Node, resource: Any, request: Any) -> Any:
    code, message = Code.NONE, None
    values: Mapping[str, ConfigValue] = {}
    try:
        values = _values(node, resource.resource_type, resource.resource_name)
    except InvalidError as error:
        code, message = _code(error), str(error)
    wanted = resource.configuration_keys
    return DescribeConfigsResponse.DescribeConfigsResult(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=[
            _described(value, request)
            for name, value in values.items()
            if not wanted or name in wanted  # older clients send an empty list for all
        ],
    )


def _described(value: ConfigValue, request: Any) -> Any:
    shape = DescribeConfigsResponse.DescribeConfigsResult.DescribeConfigsResourceResult
    return shape(
        name=value.config.name,
        value=value.value,
        read_only=value.config.read_only,
        config_source=value.source,
        is_sensitive=False,
        synonyms=[
            shape.DescribeConfigsSynonym(name=name, value=text, source=source)
            for name, text, source in (value.synonyms if request.include_synonyms else ())
        ],
        config_type=value.config.type,
        documentation=value.config.doc if request.include_documentation else None,
    )


def _values(node: Node, kind: int, name: str) -> dict[str, ConfigValue]:
    if kind == ConfigResource.TOPIC:
        entry = node.topics.entry(name)
        if entry is None:
            raise UnknownTopic(f"there is no topic {name!r}")
        return node.topics.topic_configs(entry)
    if kind == ConfigResource.BROKER:
        _check_broker(name)
        return node.topics.broker_configs()
    if kind == ConfigResource.GROUP:
        return configs.group_values(_own_configs(node, ConfigResource.GROUP, name))
    raise InvalidError(f"resources of type {kind} have no configs")


def _check_broker(name: str) -> None:
    if name not in ("", str(NODE_ID)):
        raise InvalidError(f"there is no broker {name!r}, only {NODE_ID}")


def list_config_resources(node: Node, request: Any, context: RequestContext) -> Any:
    """List the topics, the broker, and the groups that have configs of their own."""
    if context.version < _ALL_KINDS_FROM:
        wanted = {_CLIENT_METRICS}  # there are none
    else:
        wanted = set(request.resource_types) or set(ConfigResource)
    names = {
        ConfigResource.TOPIC: [entry.name for entry in node.topics.entries()],
        ConfigResource.BROKER: [str(NODE_ID)],
        ConfigResource.GROUP: node.group_store.configured(),
    }
    return ListConfigResourcesResponse(
        error_code=Code.NONE,
        config_resources=[
            ListConfigResourcesResponse.ConfigResource(resource_name=name, resource_type=kind)
            for kind in ConfigResource
            if kind in wanted
            for name in names[kind]
        ],
    )


# -- changing -------------------------------------------------------------------------------------------------


def alter_configs(node: Node, request: Any, context: RequestContext) -> Any:
    """Replace all configs of a resource."""

    def replaced(resource: Any, current: dict[str, str]) -> dict[str, str]:
        return {config.name: config.value for config in resource.configs if config.value is not None}

    return _alter_all(node, request, AlterConfigsResponse, replaced)


def incremental_alter_configs(node: Node, request: Any, context: RequestContext) -> Any:
    """Set, unset, append to and subtract from individual configs."""

    def changed(resource: Any, current: dict[str, str]) -> dict[str, str]:
        for config in resource.configs:
            current = _change(node, resource, config, current)
        return current

    return _alter_all(node, request, IncrementalAlterConfigsResponse, changed)


Change = Callable[[Any, dict[str, str]], dict[str, str]]


def _alter_all(node: Node, request: Any, response: Any, change: Change) -> Any:
    results = []
    for resource in request.resources:
        code, message = Code.NONE, None
        try:
            _alter(node, resource, change, validate_only=request.validate_only)
        except (InvalidError, UnavailableError) as error:
            code, message = _code(error), str(error)
        results.append(
            response.AlterConfigsResourceResponse(
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    return response(responses=results)


def _alter(node: Node, resource: Any, change: Change, *, validate_only: bool) -> None:
    if resource.resource_type not in list(ConfigResource):
        raise InvalidError(f"resources of type {resource.resource_type} have no configs")
    kind, name = ConfigResource(resource.resource_type), resource.resource_name
    if kind is ConfigResource.BROKER:
        _check_broker(name)
    current = _own_configs(node, kind, name)
    new = change(resource, current)
    configs.check_configs(kind, new)
    if kind is ConfigResource.GROUP:
        _check_group(name, new)
    fixed = [key for key in new.keys() | current.keys() if TABLES[kind][key].read_only]
    if fixed and new != current:
        raise InvalidConfig(f"cannot change {', '.join(sorted(fixed))}: it is set only when the broker starts")
    if validate_only:
        return
    if kind is ConfigResource.TOPIC:
        node.catalog.set_topic_configs(name, new)
        node.topics.apply_configs([name])
    elif kind is ConfigResource.GROUP:
        node.group_store.set_configs(name, new)
    else:
        node.catalog.set_configs(kind, name, new)
        node.topics.apply_configs(entry.name for entry in node.topics.entries())


def _check_group(name: str, new: Mapping[str, str]) -> None:
    """Check the values of group configs, which have more constraints than their types."""
    if not name:
        raise InvalidError("cannot change the configs of a group: its name is empty")
    for key, value in new.items():
        try:
            check_group_config(key, value)
        except InvalidError as error:
            raise InvalidConfig(str(error)) from error


def _own_configs(node: Node, kind: ConfigResource, name: str) -> dict[str, str]:
    if kind is ConfigResource.GROUP:
        return dict(node.group_store.configs(name))
    if kind is ConfigResource.BROKER:
        return node.catalog.configs(kind).get(name, {})
    entry = node.topics.entry(name)
    if entry is None:
        raise UnknownTopic(f"there is no topic {name!r}")
    return entry.configs


def _change(node: Node, resource: Any, config: Any, current: dict[str, str]) -> dict[str, str]:
    name, operation = config.name, config.config_operation
    others = {key: value for key, value in current.items() if key != name}
    if operation == _DELETE:
        return others
    if config.value is None:
        raise InvalidConfig(f"cannot change config {name}: no value was given")
    if operation == _SET:
        return {**others, name: config.value}
    row = TABLES[ConfigResource(resource.resource_type)].get(name)
    if operation not in (_APPEND, _SUBTRACT) or row is None or row.type is not ConfigType.LIST:
        raise InvalidConfig(f"cannot apply operation {operation} to config {name}: it is not a list")
    values = split_list(_values(node, resource.resource_type, resource.resource_name)[name].value)
    given = split_list(config.value)
    if operation == _APPEND:
        values += [value for value in given if value not in values]
    else:
        values = [value for value in values if value not in given]
    return {**others, name: ",".join(values)}


def _code(error: HeadwaterError) -> Code:
    if isinstance(error, UnavailableError):
        return Code.KAFKA_STORAGE_ERROR
    if isinstance(error, UnknownTopic):
        return Code.UNKNOWN_TOPIC_OR_PARTITION
    return Code.INVALID_CONFIG if isinstance(error, InvalidConfig) else Code.INVALID_REQUEST
