"""Settings of groups: reading and changing them, as resources of type 32."""

from typing import Any

from kafka.protocol.admin import IncrementalAlterConfigsResponse

from headwater.errors import InvalidError
from headwater.transmit.group_configs import DEFAULTS, check_config
from headwater.transmit.handlers import Asker
from headwater.transmit.node import Node
from headwater.transmit.wire.codes import Code

GROUP_RESOURCE = 32
_SET, _DELETE = 0, 1
_DEFAULT, _SET_ON_GROUP = 5, 8


def incremental_alter_configs(node: Node, request: Any, asker: Asker) -> Any:
    """Change settings one by one, all of a resource or none."""
    results = []
    for resource in request.resources:
        code, message = Code.NONE, None
        try:
            alter_group(node, resource, validate_only=request.validate_only)
        except InvalidError as error:
            code, message = Code.INVALID_CONFIG, str(error)
        results.append(
            IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    return IncrementalAlterConfigsResponse(responses=results)


def alter_group(node: Node, resource: Any, *, validate_only: bool) -> None:
    """Change the settings of a group, which need not be there yet; an InvalidError says what is wrong."""
    if resource.resource_type != GROUP_RESOURCE:
        raise InvalidError(f"resources of type {resource.resource_type} have no configs that can be changed")
    if not resource.resource_name:
        raise InvalidError("cannot change the configs of a group without a name")
    configs = dict(node.group_store.configs(resource.resource_name))
    for config in resource.configs:
        if config.config_operation == _DELETE:
            configs.pop(config.name, None)
        elif config.config_operation == _SET and config.value is not None:
            check_config(config.name, config.value)
            configs[config.name] = config.value
        else:
            raise InvalidError(f"cannot change {config.name}: it is no list, set or delete it")
    if not validate_only:
        node.group_store.set_configs(resource.resource_name, configs)


def group_config_values(node: Node, group: str) -> dict[str, tuple[str, int]]:
    """Every setting of a group, with the source it comes from."""
    configs = {name: (value, _DEFAULT) for name, value in DEFAULTS.items()}
    configs |= {name: (value, _SET_ON_GROUP) for name, value in node.group_store.configs(group).items()}
    return configs
