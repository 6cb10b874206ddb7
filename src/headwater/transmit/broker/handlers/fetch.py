"""Read records."""

import asyncio
import logging
from collections.abc import Awaitable

from headwater.errors import CorruptError
from headwater.transmit.broker.fetch_sessions import FIRST_EPOCH, FetchSession
from headwater.transmit.broker.node import Node
from headwater.transmit.broker.request import RequestContext
from headwater.transmit.log.partition import OffsetOutOfRange
from headwater.transmit.topics.topics import Partition
from headwater.transmit.wire.codes import Code
from headwater.transmit.wire.fetch import (
    READ_COMMITTED,
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
)

logger = logging.getLogger(__name__)

FETCH_BYTES_MAX = 55 * 1024 * 1024
"""Limit on one response; Kafka's default of the broker's fetch.max.bytes."""


def fetch(node: Node, request: FetchRequest, context: RequestContext) -> FetchResponse | Awaitable[FetchResponse]:
    """Read the partitions; with less than `min_bytes`, wait up to `max_wait_ms` for more."""
    session = node.fetch_sessions.of(request, node.clock.monotonic())
    if isinstance(session, Code):
        return FetchResponse((), error=session)
    in_full = request.session_epoch <= FIRST_EPOCH
    if session is not None:
        request = request._replace(topics=session.topics)
    found = _read_all(node, request)
    if request.max_wait_ms > 0 and not _is_enough(found, request.min_bytes):
        return _respond_later(node, request, found, session, in_full)
    return _response(found, session, in_full)


def _response(found: list[FetchedTopic], session: FetchSession | None, in_full: bool) -> FetchResponse:
    return FetchResponse(found) if session is None else session.response(found, in_full=in_full)


async def _respond_later(
    node: Node, request: FetchRequest, found: list[FetchedTopic], session: FetchSession | None, in_full: bool
) -> FetchResponse:
    return _response(await _wait_for_more(node, request, found), session, in_full)


async def _wait_for_more(node: Node, request: FetchRequest, found: list[FetchedTopic]) -> list[FetchedTopic]:
    """Read again whenever a partition grows, until there is enough or the time is over."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + request.max_wait_ms / 1000
    partitions = [
        partition
        for topic in request.topics
        for wanted in topic.partitions
        if (entry := node.topics.entry(topic.topic))
        and (partition := node.topics.partition(entry.name, wanted.partition))
    ]
    while loop.time() < deadline and not _is_enough(found, request.min_bytes):
        grown = loop.create_future()

        def wake(grown: asyncio.Future[None] = grown) -> None:
            if not grown.done():
                grown.set_result(None)

        timeout = loop.call_at(deadline, wake)
        for partition in partitions:
            partition.on_advance(wake)
        try:
            await grown
        finally:
            timeout.cancel()
            for partition in partitions:
                partition.forget(wake)
        found = _read_all(node, request)
    return found


def _is_enough(found: list[FetchedTopic], min_bytes: int) -> bool:
    size = 0
    for topic in found:
        for partition in topic.partitions:
            if partition.error:
                return True
            size += len(partition.records)
    return size >= min_bytes


def _read_all(node: Node, request: FetchRequest) -> list[FetchedTopic]:
    left = min(request.max_bytes, FETCH_BYTES_MAX)
    committed = request.isolation_level == READ_COMMITTED
    has_records = False
    topics = []
    for topic in request.topics:
        entry = node.topics.entry(topic.topic)
        partitions = []
        for wanted in topic.partitions:
            partition = node.topics.partition(entry.name, wanted.partition) if entry else None
            if partition is not None:
                fetched = _read(partition, wanted, left, committed=committed)
            else:
                by_name = isinstance(topic.topic, str)
                code = Code.UNKNOWN_TOPIC_OR_PARTITION if by_name or entry else Code.UNKNOWN_TOPIC_ID
                fetched = FetchedPartition(wanted.partition, code)
            if has_records and len(fetched.records) > left:
                # Batches are returned whole, but only the first one of a response may exceed the limit.
                fetched, left = fetched._replace(records=b"", aborted=()), 0
            has_records = has_records or bool(fetched.records)
            left -= len(fetched.records)
            partitions.append(fetched)
        topics.append(FetchedTopic(topic.topic, partitions))
    return topics


def _read(partition: Partition, wanted: FetchPartition, bytes_max: int, *, committed: bool) -> FetchedPartition:
    log = partition.log
    start, stable, visible = log.start_offset, partition.last_stable_offset, log.high_watermark
    size = min(wanted.partition_max_bytes, bytes_max)
    try:
        # Without free bytes, nothing is read, but the offset is still checked.
        below = (stable if committed else visible) if size > 0 else start
        records, next_offset = log.read_region(wanted.fetch_offset, size, below)
    except OffsetOutOfRange:
        return FetchedPartition(wanted.partition, Code.OFFSET_OUT_OF_RANGE, visible, stable, start)
    except (CorruptError, OSError) as error:
        logger.error("cannot read %s at offset %d: %s", partition.name, wanted.fetch_offset, error)
        return FetchedPartition(wanted.partition, Code.KAFKA_STORAGE_ERROR, visible, stable, start)
    aborted = partition.producers.aborted(wanted.fetch_offset, next_offset) if committed and records else ()
    ranges = [(each.producer_id, each.first_offset) for each in aborted]
    return FetchedPartition(wanted.partition, Code.NONE, visible, stable, start, records, ranges)
