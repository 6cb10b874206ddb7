"""Dead letters of share groups: what is written of a record that was rejected or came back too often (KIP-1191).

A letter's headers say where the record is and why it was given up; key, value and headers of the record itself are
in it if the group wants a copy. The letters of partition p go to partition p modulo those of their topic.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headwater.record import Header, Record, TopicPartition
from headwater.transmit.shares import Span

PREFIX = "__dlq.errors."
TOPIC, PARTITION, OFFSET, GROUP = f"{PREFIX}topic", f"{PREFIX}partition", f"{PREFIX}offset", f"{PREFIX}group"
DELIVERY_COUNT, MESSAGE = f"{PREFIX}delivery.count", f"{PREFIX}message"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a dead letter's record is, and how it came to be one."""

    group: str
    partition: TopicPartition
    offset: int
    delivery_count: int
    message: str


def letters(
    group: str, partition: TopicPartition, span: Span, records: Mapping[int, Record] | None, now_ms: int
) -> Iterator[Record]:
    """The letters of a range; with the records themselves where they are given.

    An offset without a record (compacted away, a transaction's marker) has no letter.
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
        # A record that is itself a redriven letter keeps only the newest origin.
        own = [header for header in copied.headers if not header[0].startswith(PREFIX)]
        yield Record(key=copied.key, value=copied.value, headers=(*own, *headers), timestamp_ms=now_ms)


def origin_of(letter: Record) -> Origin | None:
    """Read a dead letter's headers; None if it is none."""
    found = {name: (value or b"").decode(errors="replace") for name, value in letter.headers}
    try:
        return Origin(
            group=found[GROUP],
            partition=TopicPartition(found[TOPIC], int(found[PARTITION])),
            offset=int(found[OFFSET]),
            delivery_count=int(found[DELIVERY_COUNT]),
            message=found[MESSAGE],
        )
    except (KeyError, ValueError):
        return None
