"""Decode a request, call its handler, and encode the response.

Requests arrive as frames, and responses are lists of parts. Produce and Fetch contain records and are encoded and
decoded by hand (`wire.produce`, `wire.fetch`), the others by kafka-python's classes. A response that needs no
waiting is returned directly, because a task for each request would cost more than handling most requests.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from headwater.errors import InvalidError
from headwater.security.principal import Principal
from headwater.transmit.broker.handlers import (
    admin,
    classic_groups,
    cluster,
    committed_offsets,
    configs,
    consumer_groups,
    fetch,
    group_admin,
    offsets,
    produce,
    quotas,
    share_admin,
    share_groups,
    topics,
    transactions,
)
from headwater.transmit.broker.node import Node
from headwater.transmit.broker.request import RequestContext
from headwater.transmit.broker.response import Parts
from headwater.transmit.broker.throttle import ThrottledRequest
from headwater.transmit.records.file_region import Part
from headwater.transmit.wire.apis import API_VERSIONS, APIS, FETCH, PRODUCE, Api, is_flexible
from headwater.transmit.wire.fetch import read_fetch, write_fetch
from headwater.transmit.wire.frame import LENGTH, RequestHeader, read_request_header, response_header
from headwater.transmit.wire.produce import VERSION_MIN as PRODUCE_VERSION_MIN
from headwater.transmit.wire.produce import read_produce, write_produce

logger = logging.getLogger(__name__)

Handler = Callable[[Node, Any, RequestContext], Any | Awaitable[Any]]
"""Returns the response message, or an awaitable of it. None: the client expects no response."""

_READERS: dict[int, Callable[[memoryview, int, int], Any]] = {PRODUCE: read_produce, FETCH: read_fetch}
_WRITERS: dict[int, Callable[[int, Any], Sequence[Part]]] = {PRODUCE: write_produce, FETCH: write_fetch}

HANDLERS: dict[int, Handler] = {
    0: produce.produce,
    1: fetch.fetch,
    2: offsets.list_offsets,
    3: cluster.metadata,
    8: committed_offsets.offset_commit,
    9: committed_offsets.offset_fetch,
    10: cluster.find_coordinator,
    11: classic_groups.join_group,
    12: classic_groups.heartbeat,
    13: classic_groups.leave_group,
    14: classic_groups.sync_group,
    15: group_admin.describe_groups,
    16: group_admin.list_groups,
    18: cluster.api_versions,
    19: topics.create_topics,
    20: topics.delete_topics,
    21: admin.delete_records,
    22: transactions.init_producer_id,
    23: offsets.offset_for_leader_epoch,
    24: transactions.add_partitions_to_txn,
    25: transactions.add_offsets_to_txn,
    26: transactions.end_txn,
    27: transactions.write_txn_markers,
    28: transactions.txn_offset_commit,
    29: admin.describe_acls,
    30: admin.create_acls,
    31: admin.delete_acls,
    32: configs.describe_configs,
    33: configs.alter_configs,
    34: admin.alter_replica_log_dirs,
    35: admin.describe_log_dirs,
    37: topics.create_partitions,
    42: group_admin.delete_groups,
    43: admin.elect_leaders,
    44: configs.incremental_alter_configs,
    45: admin.alter_partition_reassignments,
    46: admin.list_partition_reassignments,
    47: committed_offsets.offset_delete,
    48: quotas.describe_client_quotas,
    49: quotas.alter_client_quotas,
    50: admin.describe_user_scram_credentials,
    60: cluster.describe_cluster,
    61: transactions.describe_producers,
    65: transactions.describe_transactions,
    66: transactions.list_transactions,
    74: configs.list_config_resources,
    75: admin.describe_topic_partitions,
    68: consumer_groups.consumer_group_heartbeat,
    69: consumer_groups.consumer_group_describe,
    76: share_groups.share_group_heartbeat,
    77: share_admin.share_group_describe,
    78: share_groups.share_fetch,
    79: share_groups.share_acknowledge,
    90: share_admin.describe_share_group_offsets,
    91: share_admin.alter_share_group_offsets,
    92: share_admin.delete_share_group_offsets,
}


class UnservedRequest(InvalidError):
    """An unknown request or version; the connection is closed, as Kafka does."""


def respond(
    node: Node, frame: bytearray, principal: Principal, host: str, connection: object = None
) -> Parts | Awaitable[Parts | None] | None:
    """Return the response to one request, or an awaitable of it; None if the client expects no response."""
    view = memoryview(frame)
    header = read_request_header(view, is_flexible=is_flexible)
    api = APIS.get(header.api_key)
    if api is None:
        raise UnservedRequest(
            f"client {header.client_id!r} sent request type {header.api_key}, which is not supported"
        )
    context = RequestContext(
        client_id=header.client_id,
        principal=principal,
        host=host,
        version=header.api_version,
        connection=connection,
    )
    request = _read(api, header, view)
    throttled = ThrottledRequest(node, header, principal, len(frame)) if node.quotas.table else None
    if throttled is not None:
        request = throttled.begin(request)
    result = HANDLERS[api.key](node, request, context)
    if inspect.isawaitable(result):
        work = result if throttled is None else throttled.timed(result)
        task = asyncio.ensure_future(_write_later(api, header, work, throttled))
        if inspect.iscoroutine(result):
            # If the client disconnects at once, the task is cancelled before it has awaited the handler.
            task.add_done_callback(lambda _: result.close())
        return task
    parts = _write(api, header, result)
    return parts if throttled is None else throttled.end(parts)


def _read(api: Api, header: RequestHeader, view: memoryview) -> Any:
    version = header.api_version
    if not api.serves(version) or (api.key == PRODUCE and version < PRODUCE_VERSION_MIN):
        if api.key == API_VERSIONS:
            return api.request()  # the body is not needed: the response lists the supported versions
        raise UnservedRequest(
            f"client {header.client_id!r} sent {api.request.name} version {version}; "
            f"the supported versions are {api.version_min} to {api.version_max}"
        )
    decode = _READERS.get(api.key)
    if decode is not None:
        return decode(view, header.body_at, version)
    try:
        return api.request.decode(view[header.body_at :], version=version)
    except Exception as error:  # the decoder defines no error of its own, so any error means bad bytes
        raise InvalidError(
            f"cannot decode {api.request.name} of version {version} from {header.client_id!r}: {error!r}"
        ) from error


async def _write_later(
    api: Api, header: RequestHeader, result: Awaitable[Any], throttled: ThrottledRequest | None
) -> Parts | None:
    parts = _write(api, header, await result)
    return parts if throttled is None else throttled.end(parts)


def _write(api: Api, header: RequestHeader, message: Any) -> Parts | None:
    if message is None:
        return None
    version = header.api_version
    if header.api_key == API_VERSIONS and not api.serves(version):
        version = 0  # the only version that every client can decode (KIP-511)
    # The header of ApiVersions is never flexible, because the client does not know the supported versions yet.
    flexible = is_flexible(header.api_key, version) and header.api_key != API_VERSIONS
    head = response_header(header.correlation_id, flexible=flexible)
    encode = _WRITERS.get(header.api_key)
    body = [bytes(message.encode(version=version))] if encode is None else encode(version, message)
    return [LENGTH.pack(len(head) + sum(map(len, body))) + head, *body]
