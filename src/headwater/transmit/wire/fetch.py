"""Fetch, by hand: the records of the log are put between the fields of a response as they are.

Versions 4 to 18; from 7 on there is a session, from 12 on fields are compact and tagged, from 13 on topics go by
id.
"""

import struct
import uuid
from collections.abc import Sequence
from typing import NamedTuple

from headwater.errors import InvalidError
from headwater.transmit.records.codec import write_uvarint
from headwater.transmit.records.file_region import FileRegion, Part
from headwater.transmit.wire import writer
from headwater.transmit.wire.reader import INT, FieldReader

NO_TOPIC_ID = uuid.UUID(int=0)
NO_SESSION = 0
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
"""Isolation levels of Fetch and ListOffsets."""
_FLEXIBLE_FROM = 12
_SESSION_FROM = 7
_LOG_START_FROM = 5
_RACK_FROM = _PREFERRED_REPLICA_FROM = 11
_TOPIC_ID_FROM = 13
_NO_REPLICA_FROM = 15  # the replica's id, which no consumer has, became a tag
_NO_REPLICA = struct.pack(">i", -1)
_LIMITS = struct.Struct(">iiib")
_SESSION = struct.Struct(">ii")
_ANSWER = struct.Struct(">ihqq")
_OFFSET = struct.Struct(">q")
_ERROR_AND_SESSION = struct.Struct(">hi")
_ABORTED = struct.Struct(">qq")


class PartitionAsked(NamedTuple):
    """From where a client wants to read a partition, and how much of it."""

    partition: int
    fetch_offset: int
    partition_max_bytes: int


class TopicAsked(NamedTuple):
    """Partitions of one topic, which goes by its name or its id."""

    topic: str | uuid.UUID
    partitions: list[PartitionAsked]


class FetchRequest(NamedTuple):
    """What a client wants to read, and how long it waits for it."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[TopicAsked]
    forgotten: list[tuple[str | uuid.UUID, list[int]]]


class PartitionAnswer(NamedTuple):
    """What there is to read in one partition."""

    partition: int
    error: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: bytes | FileRegion = b""
    aborted: Sequence[tuple[int, int]] = ()
    """Producer and first offset of aborted transactions, sorted by the offset: readers rely on it."""


class TopicAnswer(NamedTuple):
    """The partitions of one topic, which goes by what it was asked by."""

    topic: str | uuid.UUID
    partitions: Sequence[PartitionAnswer]


class FetchAnswer(NamedTuple):
    """What a client gets to read."""

    topics: Sequence[TopicAnswer]
    error: int = 0
    session_id: int = NO_SESSION


def read_fetch(frame: memoryview, at: int, version: int) -> FetchRequest:
    """Read the request's body, which starts at `at`."""
    try:
        return _read(FieldReader(frame, at, flexible=version >= _FLEXIBLE_FROM), version)
    except (struct.error, IndexError, ValueError) as error:
        raise InvalidError(f"cannot read a Fetch request of version {version}: {error}") from error


def _read(reader: FieldReader, version: int) -> FetchRequest:
    if version < _NO_REPLICA_FROM:
        reader.unpack(INT)
    max_wait_ms, min_bytes, max_bytes, isolation_level = reader.unpack(_LIMITS)
    session_id, epoch = reader.unpack(_SESSION) if version >= _SESSION_FROM else (NO_SESSION, -1)
    by_id = version >= _TOPIC_ID_FROM
    shape, offset_at = _partition_shape(version)
    topics = []
    for _ in range(reader.array()):
        topic = reader.uuid() if by_id else reader.string() or ""
        partitions = []
        for _ in range(reader.array()):
            fields = reader.unpack(shape)
            partitions.append(PartitionAsked(fields[0], fields[offset_at], fields[-1]))
            reader.tags()
        topics.append(TopicAsked(topic, partitions))
        reader.tags()
    forgotten: list[tuple[str | uuid.UUID, list[int]]] = []
    if version >= _SESSION_FROM:
        for _ in range(reader.array()):
            topic = reader.uuid() if by_id else reader.string() or ""
            forgotten.append((topic, [reader.unpack(INT)[0] for _ in range(reader.array())]))
            reader.tags()
    if version >= _RACK_FROM:
        reader.string()
    reader.tags()
    return FetchRequest(max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, epoch, topics, forgotten)


def _partition_shape(version: int) -> tuple[struct.Struct, int]:
    """The fields of a partition that is asked for, and which of them is the offset to read from.

    Partition, leader epoch (from 9), offset, last fetched epoch (from 12), log start (from 5), bytes at most.
    """
    if version >= _FLEXIBLE_FROM:
        return _WITH_FETCHED_EPOCH, 2
    if version >= _EPOCH_FROM:
        return _WITH_EPOCH, 2
    return (_WITH_LOG_START if version >= _LOG_START_FROM else _PLAIN), 1


_EPOCH_FROM = 9
_WITH_FETCHED_EPOCH = struct.Struct(">iiqiqi")
_WITH_EPOCH = struct.Struct(">iiqqi")
_WITH_LOG_START = struct.Struct(">iqqi")
_PLAIN = struct.Struct(">iqi")


def write_fetch(version: int, answer: FetchAnswer) -> list[Part]:
    """The body of the response, in parts to be sent one after the other."""
    flexible = version >= _FLEXIBLE_FROM
    parts: list[Part] = []
    fields = bytearray(4)  # throttle time: none
    if version >= _SESSION_FROM:
        fields += _ERROR_AND_SESSION.pack(answer.error, answer.session_id)
    fields += writer.array(len(answer.topics), flexible)
    for topic, partitions in answer.topics:
        fields += writer.string(topic, flexible) if isinstance(topic, str) else topic.bytes
        fields += writer.array(len(partitions), flexible)
        for partition in partitions:
            _write_marks(fields, version, partition, flexible)
            if partition.records:
                parts += (bytes(fields), partition.records)
                fields = bytearray()
            if flexible:
                fields += writer.NO_TAGS
        if flexible:
            fields += writer.NO_TAGS
    if flexible:
        fields += writer.NO_TAGS
    if fields:
        parts.append(bytes(fields))
    return parts


def _write_marks(fields: bytearray, version: int, answer: PartitionAnswer, flexible: bool) -> None:
    """What stands before the records of a partition, their size included."""
    fields += _ANSWER.pack(*answer[:4])
    if version >= _LOG_START_FROM:
        fields += _OFFSET.pack(answer.log_start_offset)
    fields += writer.array(len(answer.aborted), flexible)
    for producer_id, first_offset in answer.aborted:
        fields += _ABORTED.pack(producer_id, first_offset)
        if flexible:
            fields += writer.NO_TAGS
    if version >= _PREFERRED_REPLICA_FROM:
        fields += _NO_REPLICA
    size = len(answer.records)
    fields += write_uvarint(size + 1) if flexible else INT.pack(size)
