"""Client quotas: describe and change them."""

from collections.abc import Collection
from typing import Any

from kafka.protocol.admin import AlterClientQuotasResponse, DescribeClientQuotasResponse

from headwater.errors import InvalidError
from headwater.transmit.broker.node import Node
from headwater.transmit.broker.request import RequestContext
from headwater.transmit.quotas import DEFAULT, ENTITY_TYPES, Entity, EntityMatch, check_quota, matching
from headwater.transmit.wire.codes import Code

_EXACT, _DEFAULT, _ANY = range(3)


class UnsupportedEntity(InvalidError):
    """A type of entity that quotas do not support."""


def describe_client_quotas(node: Node, request: Any, context: RequestContext) -> Any:
    """Return the quotas of the entities that match the filter."""
    try:
        wanted = _wanted(request.components)
    except InvalidError as error:
        return DescribeClientQuotasResponse(error_code=_code(error), error_message=str(error), entries=None)
    entry = DescribeClientQuotasResponse.EntryData
    return DescribeClientQuotasResponse(
        error_code=Code.NONE,
        error_message=None,
        entries=[
            entry(
                entity=[
                    entry.EntityData(entity_type=kind, entity_name=None if name == DEFAULT else name)
                    for kind, name in zip(ENTITY_TYPES, entity, strict=True)
                    if name is not None
                ],
                values=[entry.ValueData(key=key, value=value) for key, value in sorted(values.items())],
            )
            for entity, values in matching(node.quotas.table, wanted, strict=request.strict)
        ],
    )


def alter_client_quotas(node: Node, request: Any, context: RequestContext) -> Any:
    """Set and remove quotas, independently for each entity."""
    entries = []
    for entry in request.entries:
        code, message = Code.NONE, None
        try:
            entity = _entity(entry.entity)
            values = _changed(node.quotas.table.get(entity, {}), entry.ops)
            if not request.validate_only:
                node.catalog.set_quotas(entity.user, entity.client_id, values)
                node.quotas.change(entity, values)
        except InvalidError as error:
            code, message = _code(error), str(error)
        shape = AlterClientQuotasResponse.EntryData
        entries.append(
            shape(
                error_code=code,
                error_message=message,
                entity=[
                    shape.EntityData(entity_type=part.entity_type, entity_name=part.entity_name)
                    for part in entry.entity
                ],
            )
        )
    return AlterClientQuotasResponse(entries=entries)


def _changed(known: dict[str, float], operations: Any) -> dict[str, float]:
    changed = dict(known)
    for operation in operations:
        if operation.remove:
            changed.pop(operation.key, None)
        else:
            check_quota(operation.key, operation.value)
            changed[operation.key] = operation.value
    return changed


def _entity(parts: Any) -> Entity:
    named: dict[str, str] = {}
    for part in parts:
        _check_type(part.entity_type, named, known=ENTITY_TYPES)
        if part.entity_name == DEFAULT:
            raise InvalidError(f"cannot set quotas of an empty {part.entity_type}; omit the name for the default")
        named[part.entity_type] = DEFAULT if part.entity_name is None else part.entity_name
    if not named:
        raise InvalidError(f"no entity given for the quota: expected {' or '.join(ENTITY_TYPES)}, or both")
    return Entity(*(named.get(kind) for kind in ENTITY_TYPES))


def _wanted(components: Any) -> dict[str, EntityMatch]:
    wanted: dict[str, EntityMatch] = {}
    for component in components:
        # A filter for IP addresses is valid, but addresses have no quotas here.
        _check_type(component.entity_type, wanted, known=(*ENTITY_TYPES, "ip"))
        if component.match_type == _EXACT and component.match:
            match = EntityMatch(component.match)
        elif component.match_type == _DEFAULT:
            match = EntityMatch(DEFAULT)
        elif component.match_type == _ANY:
            match = EntityMatch(None)
        else:
            raise InvalidError(
                f"cannot match {component.entity_type} {component.match!r}: invalid type {component.match_type}"
            )
        wanted[component.entity_type] = match
    return wanted


def _check_type(kind: str, named: Collection[str], *, known: Collection[str]) -> None:
    if kind not in known:
        raise UnsupportedEntity(f"entities of type {kind!r} have no quotas, only {' and '.join(ENTITY_TYPES)}")
    if kind in named:
        raise InvalidError(f"entity type {kind!r} is given twice")


def _code(error: InvalidError) -> Code:
    return Code.UNSUPPORTED_VERSION if isinstance(error, UnsupportedEntity) else Code.INVALID_REQUEST
