"""Fetch: records out."""

import asyncio
import logging
from collections.abc import Awaitable

from headwater.errors import CorruptError
from headwater.transmit.broker.fetch_sessions import FIRST_EPOCH, FetchSession
from headwater.transmit.broker.handlers import RequestContext
from headwater.transmit.broker.node import Node
from headwater.transmit.log.partition import OffsetOutOfRange
from headwater.transmit.topics.partition import Partition
from headwater.transmit.wire.codes import Code
from headwater.transmit.wire.fetch import FetchAnswer, FetchRequest, PartitionAnswer, PartitionAsked, TopicAnswer

logger = logging.getLogger(__name__)

FETCH_BYTES_MAX = 55 * 1024 * 1024
"""Whatever a client asks for; Kafka's own default of the broker's fetch.max.bytes."""
READ_COMMITTED = 1


def fetch(node: Node, request: FetchRequest, context: RequestContext) -> FetchAnswer | Awaitable[FetchAnswer]:
    """Read what is asked for; where there is less than `min_bytes`, wait for more until the time is over."""
    session = node.fetch_sessions.of(request, node.clock.monotonic())
    if isinstance(session, Code):
        return FetchAnswer((), error=session)
    in_full = request.session_epoch <= FIRST_EPOCH
    if session is not None:
        request = request._replace(topics=session.topics)
    found = _read_all(node, request)
    if request.max_wait_ms > 0 and not _is_enough(found, request.min_bytes):
        return _answer_later(node, request, found, session, in_full)
    return _answer(found, session, in_full)


def _answer(found: list[TopicAnswer], session: FetchSession | None, in_full: bool) -> FetchAnswer:
    return FetchAnswer(found) if session is None else session.answer(found, in_full=in_full)


async def _answer_later(
    node: Node, request: FetchRequest, found: list[TopicAnswer], session: FetchSession | None, in_full: bool
) -> FetchAnswer:
    return _answer(await _wait_for_more(node, request, found), session, in_full)


async def _wait_for_more(node: Node, request: FetchRequest, found: list[TopicAnswer]) -> list[TopicAnswer]:
    """Read again whenever a partition has grown, until it is enough or the client's patience is over."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + request.max_wait_ms / 1000
    partitions = [
        partition
        for topic in request.topics
        for asked in topic.partitions
        if (entry := node.topics.entry(topic.topic))
        and (partition := node.topics.partition(entry.name, asked.partition))
    ]
    while loop.time() < deadline and not _is_enough(found, request.min_bytes):
        grown = loop.create_future()

        def wake(grown: asyncio.Future[None] = grown) -> None:
            if not grown.done():
                grown.set_result(None)

        patience = loop.call_at(deadline, wake)
        for partition in partitions:
            partition.on_advance(wake)
        try:
            await grown
        finally:
            patience.cancel()
            for partition in partitions:
                partition.forget(wake)
        found = _read_all(node, request)
    return found


def _is_enough(found: list[TopicAnswer], min_bytes: int) -> bool:
    size = 0
    for topic in found:
        for partition in topic.partitions:
            if partition.error:
                return True
            size += len(partition.records)
    return size >= min_bytes


def _read_all(node: Node, request: FetchRequest) -> list[TopicAnswer]:
    room = min(request.max_bytes, FETCH_BYTES_MAX)
    committed = request.isolation_level == READ_COMMITTED
    begun = False
    answers = []
    for topic in request.topics:
        entry = node.topics.entry(topic.topic)
        partitions = []
        for asked in topic.partitions:
            partition = node.topics.partition(entry.name, asked.partition) if entry else None
            if partition is not None:
                answer = _read(partition, asked, room, committed=committed)
            else:
                by_name = isinstance(topic.topic, str)
                code = Code.UNKNOWN_TOPIC_OR_PARTITION if by_name or entry else Code.UNKNOWN_TOPIC_ID
                answer = PartitionAnswer(asked.partition, code)
            if begun and len(answer.records) > room:
                # A batch is given whole, but only the first of an answer may be larger than the client has room.
                answer, room = answer._replace(records=b"", aborted=()), 0
            begun = begun or bool(answer.records)
            room -= len(answer.records)
            partitions.append(answer)
        answers.append(TopicAnswer(topic.topic, partitions))
    return answers


def _read(partition: Partition, asked: PartitionAsked, room: int, *, committed: bool) -> PartitionAnswer:
    log = partition.log
    start, stable, visible = log.start_offset, partition.last_stable_offset, log.high_watermark
    wanted = min(asked.partition_max_bytes, room)
    try:
        # What does not fit is still checked for its offset, as if there was room for it.
        below = (stable if committed else visible) if wanted > 0 else start
        records, behind = log.read_region(asked.fetch_offset, wanted, below)
    except OffsetOutOfRange:
        return PartitionAnswer(asked.partition, Code.OFFSET_OUT_OF_RANGE, visible, stable, start)
    except (CorruptError, OSError) as error:
        logger.error("cannot read %s at offset %d: %s", partition.name, asked.fetch_offset, error)
        return PartitionAnswer(asked.partition, Code.KAFKA_STORAGE_ERROR, visible, stable, start)
    aborted = partition.producers.aborted(asked.fetch_offset, behind) if committed and records else ()
    ranges = [(each.producer_id, each.first_offset) for each in aborted]
    return PartitionAnswer(asked.partition, Code.NONE, visible, stable, start, records, ranges)
