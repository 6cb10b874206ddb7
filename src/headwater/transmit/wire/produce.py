"""Produce, encoded and decoded by hand: the records of a request are views of its frame, without copying them.

Versions 3 to 13: compact and tagged fields since 9, topics by id since 13.
"""

import struct
import uuid
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headwater.errors import InvalidError
from headwater.transmit.wire import writer
from headwater.transmit.wire.reader import INT, FieldReader

VERSION_MIN = 3
_FLEXIBLE_FROM = 9
_TOPIC_ID_FROM = 13
_ACKS_AND_TIMEOUT = struct.Struct(">hi")
_LOG_START_FROM = 5
_MESSAGE_FROM = 8
_NO_THROTTLING = bytes(4)
_PARTITION = struct.Struct(">ihqq")
_OFFSET = struct.Struct(">q")


class PartitionRecords(NamedTuple):
    """Record batches for one partition, as a view of the request's frame."""

    topic: str | uuid.UUID
    partition: int
    records: memoryview | None


class ProduceRequest(NamedTuple):
    """Record batches for several partitions, and when to respond."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    parts: list[PartitionRecords]


class ProducedPartition(NamedTuple):
    """The result for one partition."""

    partition: int
    error: int
    base_offset: int
    log_append_time_ms: int
    log_start_offset: int
    message: str | None = None
    rejected: Sequence[tuple[int, str]] = ()
    """Positions in the batch of the records that the topic rejects, and the reasons."""


class ProduceResponse(NamedTuple):
    """The results for all partitions, with topics given by name or id as in the request."""

    topics: Sequence[tuple[str | uuid.UUID, Sequence[ProducedPartition]]]


def read_produce(frame: memoryview, at: int, version: int) -> ProduceRequest:
    """Decode the body of a request, which starts at `at`."""
    try:
        reader = FieldReader(frame, at, flexible=version >= _FLEXIBLE_FROM)
        return _read(reader, by_id=version >= _TOPIC_ID_FROM)
    except (struct.error, IndexError, ValueError) as error:
        raise InvalidError(f"cannot decode a Produce request of version {version}: {error}") from error


def _read(reader: FieldReader, *, by_id: bool) -> ProduceRequest:
    transactional_id = reader.string()
    acks, timeout_ms = reader.unpack(_ACKS_AND_TIMEOUT)
    parts = []
    for _ in range(reader.array()):
        topic = reader.uuid() if by_id else reader.string() or ""
        for _ in range(reader.array()):
            (partition,) = reader.unpack(INT)
            parts.append(PartitionRecords(topic, partition, reader.blob()))
            reader.tags()
        reader.tags()
    reader.tags()
    return ProduceRequest(transactional_id, acks, timeout_ms, parts)


def write_produce(version: int, response: ProduceResponse) -> list[bytes]:
    """Encode the body of a response."""
    flexible = version >= _FLEXIBLE_FROM
    out = [writer.array(len(response.topics), flexible)]
    for topic, partitions in response.topics:
        out.append(writer.string(topic, flexible) if isinstance(topic, str) else topic.bytes)
        out.append(writer.array(len(partitions), flexible))
        out += _write_partitions(version, partitions, flexible)
        if flexible:
            out.append(writer.NO_TAGS)
    out.append(_NO_THROTTLING)
    if flexible:
        out.append(writer.NO_TAGS)
    return [b"".join(out)]


def _write_partitions(version: int, partitions: Iterable[ProducedPartition], flexible: bool) -> Iterable[bytes]:
    for produced in partitions:
        yield _PARTITION.pack(*produced[:4])
        if version >= _LOG_START_FROM:
            yield _OFFSET.pack(produced.log_start_offset)
        if version >= _MESSAGE_FROM:
            yield writer.array(len(produced.rejected), flexible)
            for position, reason in produced.rejected:
                yield INT.pack(position) + writer.string(reason, flexible) + (writer.NO_TAGS if flexible else b"")
            yield writer.string(produced.message, flexible)
        if flexible:
            yield writer.NO_TAGS
