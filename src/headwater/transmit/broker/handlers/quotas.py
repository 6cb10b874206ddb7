"""Client quotas: describing and changing them."""

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
    """A kind of entity that has no quotas here."""


def describe_client_quotas(node: Node, request: Any, context: RequestContext) -> Any:
    """The quotas of the entities that fit the filter."""
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
    """Set and remove quotas, each entity by itself."""
    entries = []
    for asked in request.entries:
        code, message = Code.NONE, None
        try:
            entity = _entity(asked.entity)
            values = _changed(node.quotas.table.get(entity, {}), asked.ops)
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
                    for part in asked.entity
                ],
            )
        )
    return AlterClientQuotasResponse(entries=entries)


def _changed(known: dict[str, float], operations: Any) -> dict[str, float]:
    fresh = dict(known)
    for operation in operations:
        if operation.remove:
            fresh.pop(operation.key, None)
        else:
            check_quota(operation.key, operation.value)
            fresh[operation.key] = operation.value
    return fresh


def _entity(parts: Any) -> Entity:
    named: dict[str, str] = {}
    for part in parts:
        _check_type(part.entity_type, named, known=ENTITY_TYPES)
        if part.entity_name == DEFAULT:
            raise InvalidError(f"an empty {part.entity_type} has no quotas; leave the name out for the default")
        named[part.entity_type] = DEFAULT if part.entity_name is None else part.entity_name
    if not named:
        raise InvalidError(f"say whom the quota is for: {' or '.join(ENTITY_TYPES)}, or both")
    return Entity(*(named.get(kind) for kind in ENTITY_TYPES))


def _wanted(components: Any) -> dict[str, EntityMatch]:
    wanted: dict[str, EntityMatch] = {}
    for component in components:
        _check_type(component.entity_type, wanted, known=(*ENTITY_TYPES, "ip"))  # no address has quotas
        if component.match_type == _EXACT and component.match:
            match = EntityMatch(component.match)
        elif component.match_type == _DEFAULT:
            match = EntityMatch(DEFAULT)
        elif component.match_type == _ANY:
            match = EntityMatch(None)
        else:
            raise InvalidError(
                f"cannot match {component.entity_type} {component.match!r} by type {component.match_type}"
            )
        wanted[component.entity_type] = match
    return wanted


def _check_type(kind: str, named: Collection[str], *, known: Collection[str]) -> None:
    if kind not in known:
        raise UnsupportedEntity(
            f"entities of type {kind!r} have no quotas here, only {' and '.join(ENTITY_TYPES)}"
        )
    if kind in named:
        raise InvalidError(f"entity type {kind} stands twice")


def _code(error: InvalidError) -> Code:
    return Code.UNSUPPORTED_VERSION if isinstance(error, UnsupportedEntity) else Code.INVALID_REQUEST
