"""Administration of client quotas."""

from collections.abc import Mapping

from kafka.protocol.admin import AlterClientQuotasRequest, DescribeClientQuotasRequest

from headwater.transmit.client.client import Client
from headwater.transmit.client.errors import check_result
from headwater.transmit.quotas import DEFAULT, ENTITY_TYPES, Entity


def list_quotas(client: Client) -> dict[Entity, dict[str, float]]:
    """Return all quotas by entity."""
    response = client.call(DescribeClientQuotasRequest(components=[], strict=False))
    check_result(response, "list quotas")
    return {
        _entity({part.entity_type: part.entity_name for part in entry.entity}): {
            quota.key: quota.value for quota in entry.values
        }
        for entry in response.entries or []
        if all(part.entity_type in ENTITY_TYPES for part in entry.entity)  # Kafka also has quotas for IP addresses
    }


def alter_quotas(client: Client, entity: Entity, changes: Mapping[str, float | None]) -> None:
    """Set quotas; None removes one."""
    shape = AlterClientQuotasRequest.EntryData
    entry = shape(
        entity=[
            shape.EntityData(entity_type=kind, entity_name=None if name == DEFAULT else name)
            for kind, name in zip(ENTITY_TYPES, entity, strict=True)
            if name is not None
        ],
        ops=[
            shape.OpData(key=key, value=0.0 if value is None else value, remove=value is None)
            for key, value in changes.items()
        ],
    )
    (result,) = client.call(AlterClientQuotasRequest(entries=[entry], validate_only=False)).entries
    check_result(result, f"change the quotas of {entity}")


def _entity(parts: Mapping[str, str | None]) -> Entity:
    return Entity(*(None if kind not in parts else parts[kind] or DEFAULT for kind in ENTITY_TYPES))
