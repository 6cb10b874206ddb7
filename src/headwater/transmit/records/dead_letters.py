"""Dead letters: records that could not be processed, with headers that name the original record and the reason.

A pipeline's dead letter is the record itself plus these headers:

    headwater.topic, headwater.partition, headwater.offset    position of the original record
    headwater.reason                                          reason, as text
    headwater.query                                           the query that failed on it; absent if the record
                                                              does not match the topic's schema

A share group's dead letter has the headers of KIP-1191 (`__dlq.errors.*`). It contains the record's key, value and
headers only if the group is configured to copy them.
"""

from dataclasses import dataclass, replace

from headwater.record import Header, Record, TopicPartition

ORIGIN_HEADERS = ("headwater.topic", "headwater.partition", "headwater.offset")
REASON_HEADER = "headwater.reason"
QUERY_HEADER = "headwater.query"
REDRIVEN_HEADER = "headwater.redriven.from"
"""On a redriven record: its dead letter and the number of the redrive, `orders.deadletter-0@17#1`."""
ONLY_HEADER = "headwater.only"
"""On a redriven dead letter of one view: other views skip the record, because they have read it before."""

SHARE_PREFIX = "__dlq.errors."
TOPIC, PARTITION, OFFSET = f"{SHARE_PREFIX}topic", f"{SHARE_PREFIX}partition", f"{SHARE_PREFIX}offset"
GROUP, DELIVERY_COUNT, MESSAGE = (
    f"{SHARE_PREFIX}group",
    f"{SHARE_PREFIX}delivery.count",
    f"{SHARE_PREFIX}message",
)
"""Headers of a share group's dead letter (KIP-1191)."""

_OURS = ("headwater.", SHARE_PREFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareOrigin:
    """The record that a share group gave up on, and why."""

    group: str
    partition: TopicPartition
    offset: int
    delivery_count: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A dead letter: its partition (`place`), its record, the position of the original record, and the reason."""

    place: TopicPartition
    record: Record
    origin: TopicPartition
    origin_offset: int
    reason: str
    query: str | None = None
    """The view that failed on the record; other views have read it."""
    queue: str | None = None
    deliveries: int | None = None

    @property
    def name(self) -> str:
        """Its name in messages and headers."""
        return f"{self.place}@{self.record.offset}"


def read_dead_letter(place: TopicPartition, record: Record) -> DeadLetter | None:
    """Return a record of a dead-letter topic as a DeadLetter; None if it is not one."""
    share_origin = read_share_origin(record)
    if share_origin is not None:
        return DeadLetter(
            place=place,
            record=record,
            origin=share_origin.partition,
            origin_offset=share_origin.offset,
            reason=share_origin.message,
            queue=share_origin.group,
            deliveries=share_origin.delivery_count,
        )
    headers = {name: (value or b"").decode(errors="replace") for name, value in record.headers}
    try:
        topic, partition, offset = (headers[name] for name in ORIGIN_HEADERS)
        origin, origin_offset = TopicPartition(topic, int(partition)), int(offset)
    except (KeyError, ValueError):
        return None
    return DeadLetter(
        place=place,
        record=record,
        origin=origin,
        origin_offset=origin_offset,
        reason=headers.get(REASON_HEADER, ""),
        query=headers.get(QUERY_HEADER),
    )


def dead_letter_headers(
    origin: TopicPartition, offset: int, reason: str, query: str | None = None
) -> tuple[Header, ...]:
    """Return the headers of a pipeline's dead letter."""
    texts = (origin.topic, str(origin.partition), str(offset))
    headers: list[Header] = [(name, text.encode()) for name, text in zip(ORIGIN_HEADERS, texts, strict=True)]
    headers.append((REASON_HEADER, reason.encode()))
    if query is not None:
        headers.append((QUERY_HEADER, query.encode()))
    return tuple(headers)


def restore(letter: DeadLetter, original: Record | None, *, now_ms: int) -> Record | None:
    """Return the original record of a dead letter; None if neither the log nor the dead letter contains it.

    Key and value are those of the dead letter's copy. If the log still has the original record, its headers and
    its timestamp are used, which a pipeline's dead letter does not contain.
    """
    copy = letter.record
    has_copy = letter.queue is None or copy.key is not None or copy.value is not None
    if original is not None and has_copy and (original.key, original.value) != (copy.key, copy.value):
        original = None  # the topic was deleted and created again, so this is another record
    if original is None and not has_copy:
        return None
    found = original or replace(copy, timestamp_ms=now_ms)
    # Headers about the dead letter, and conditions on the log at that time, do not belong to the record.
    own = tuple(header for header in found.headers if not header[0].startswith(_OURS))
    return replace(found, headers=own, offset=-1)


def read_share_origin(letter: Record) -> ShareOrigin | None:
    """Read the headers of a share group's dead letter; return None if the record is not one."""
    found = {name: (value or b"").decode(errors="replace") for name, value in letter.headers}
    try:
        return ShareOrigin(
            group=found[GROUP],
            partition=TopicPartition(found[TOPIC], int(found[PARTITION])),
            offset=int(found[OFFSET]),
            delivery_count=int(found[DELIVERY_COUNT]),
            message=found[MESSAGE],
        )
    except (KeyError, ValueError):
        return None
