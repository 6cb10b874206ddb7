"""Write the dead letters of records that a share group has given up, range by range.

If a range cannot be written (full disk, invalid topic name), it is retried until it succeeds. The records stay in
the ARCHIVING state until then, so nothing is lost. Everything runs in the broker's loop.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from headwater.clock import Clock
from headwater.errors import HeadwaterError
from headwater.record import Header, Record, TopicPartition
from headwater.transmit.groups.settings import GroupSettings
from headwater.transmit.groups.share.members import AssignedPartition
from headwater.transmit.groups.share.share_partition import Span
from headwater.transmit.records.batch import batches_of, decode_batch, encode_batch
from headwater.transmit.records.batch_header import walk
from headwater.transmit.records.dead_letters import (
    DELIVERY_COUNT,
    GROUP,
    MESSAGE,
    OFFSET,
    PARTITION,
    SHARE_PREFIX,
    TOPIC,
)
from headwater.transmit.topics.partition import AppendResult, Partition

logger = logging.getLogger(__name__)

RETRY_S = 5.0
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUpRange:
    """A range of records that a group has given up."""

    group: str
    place: AssignedPartition
    partition: Partition
    span: Span


Append = Callable[[Partition, memoryview], AppendResult]
"""Appends batches to a partition."""
OpenTarget = Callable[[str, TopicPartition], Partition]
"""Returns the partition of a dead-letter topic for the records of a partition; creates the topic if needed."""


class DeadLetterWriter:
    """Writes dead letters; `on_written` is called when those of a range are durable."""

    def __init__(
        self,
        append: Append,
        open_target: OpenTarget,
        clock: Clock,
        settings: Callable[[str], GroupSettings],
        on_written: Callable[[GivenUpRange], None],
    ) -> None:
        self._append = append
        self._open_target = open_target
        self._clock = clock
        self._settings = settings
        self._on_written = on_written
        self._writing: set[asyncio.Task[None]] = set()
        self._waiting: list[GivenUpRange] = []
        self._retries: list[tuple[float, GivenUpRange]] = []
        """Ranges that could not be written, and the time of the next attempt."""

    def post(self, given_up: GivenUpRange) -> None:
        """Start to write the dead letters of a range."""
        self._waiting.append(given_up)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # the broker is starting; the first call of `retry` writes it
        self._start(loop)

    def retry(self, now: float) -> None:
        """Retry ranges that could not be written."""
        self._waiting += [given_up for at, given_up in self._retries if at <= now]
        self._retries = [item for item in self._retries if item[0] > now]
        if self._waiting:
            self._start(asyncio.get_running_loop())

    async def close(self) -> None:
        """Wait for dead letters that are being written."""
        await asyncio.gather(*self._writing, return_exceptions=True)

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting, self._waiting = self._waiting, []
        for given_up in waiting:
            task = loop.create_task(self._write(given_up))
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)

    async def _write(self, given_up: GivenUpRange) -> None:
        settings = self._settings(given_up.group)
        name, span = given_up.partition.name, given_up.span
        if not settings.deadletter_topic:
            self._on_written(given_up)  # the group's config was removed meanwhile
            return
        try:
            records = _records_of(given_up.partition, span) if settings.copies_record else None
            target = self._open_target(settings.deadletter_topic, name)
            for batch in batches_of(dead_letters_of(given_up.group, name, span, records, self._clock.now_ms())):
                appended = self._append(target, memoryview(bytearray(encode_batch(batch))))
                await target.wait_durable(appended.next_offset)
        except (HeadwaterError, OSError) as error:
            logger.error(
                "cannot write dead letters of group %r for %s, offsets %d to %d, retrying: %s",
                given_up.group, name, span.first, span.last, error,
            )  # fmt: skip
            self._retries.append((self._clock.monotonic() + RETRY_S, given_up))
            return
        self._on_written(given_up)


def _records_of(partition: Partition, span: Span) -> dict[int, Record]:
    """Return the records of a range that the log still has, by offset."""
    found: dict[int, Record] = {}
    at = max(span.first, partition.log.start_offset)
    while at <= span.last:
        data = partition.log.read(at, _READ_BYTES)
        if not data:
            break
        for place, header in walk(data):
            at = header.next_offset
            if not header.is_control and header.base_offset <= span.last:
                found |= {r.offset: r for r in decode_batch(data, place) if span.first <= r.offset <= span.last}
    return found


def dead_letters_of(
    group: str, partition: TopicPartition, span: Span, records: Mapping[int, Record] | None, now_ms: int
) -> Iterator[Record]:
    """Yield the dead letters of a range, with copies of the records if `records` is passed.

    An offset without a record (removed by compaction, transaction marker) has no dead letter then.
    """
    for offset in range(span.first, span.last + 1):
        copied = records.get(offset) if records is not None else Record()
        if copied is None:
            continue
        headers: list[Header] = [
            (TOPIC, partition.topic.encode()),
            (PARTITION, str(partition.partition).encode()),
            (OFFSET, str(offset).encode()),
            (GROUP, group.encode()),
            (DELIVERY_COUNT, str(span.count).encode()),
            (MESSAGE, (span.reason.value if span.reason else "").encode()),
        ]
        # A record that is itself a redriven dead letter keeps only its newest origin.
        own = [header for header in copied.headers if not header[0].startswith(SHARE_PREFIX)]
        yield Record(key=copied.key, value=copied.value, headers=(*own, *headers), timestamp_ms=now_ms)
