"""Records, their headers, and the name of a partition."""

from dataclasses import dataclass
from typing import NamedTuple


class TopicPartition(NamedTuple):
    """One partition of a topic; formatted as in Kafka, `orders-0`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


LATEST, EARLIEST = -1, -2
"""In place of an offset or a time: the end of a partition, and its first record, as in Kafka's ListOffsets."""

Header = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record, as producers send it and consumers receive it.

    `offset` is -1 until the record is appended; `timestamp_ms` is milliseconds since 1970 in UTC, -1 for none.
    """

    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[Header, ...] = ()
    timestamp_ms: int = -1
    offset: int = -1
