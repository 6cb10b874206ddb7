"""Fetch, encoded and decoded by hand: a response contains regions of the log's files, without copying them.

Versions 4 to 18: sessions since 7, compact and tagged fields since 12, topics by id since 13.
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
_NO_REPLICA_FROM = 15  # the replica id, which only brokers send, became a tagged field
_NO_REPLICA = struct.pack(">i", -1)
_LIMITS = struct.Struct(">iiib")
_SESSION = struct.Struct(">ii")
_PARTITION = struct.Struct(">ihqq")
_OFFSET = struct.Struct(">q")
_ERROR_AND_SESSION = struct.Struct(">hi")
_ABORTED = struct.Struct(">qq")


class FetchPartition(NamedTuple):
    """A partition to read: from which offset, and at most how many bytes."""

    partition: int
    fetch_offset: int
    partition_max_bytes: int


class FetchTopic(NamedTuple):
    """The partitions to read of one topic, given by name or by id."""

    topic: str | uuid.UUID
    partitions: list[FetchPartition]


class FetchRequest(NamedTuple):
    """The partitions to read, the limits, and how long to wait for records."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[FetchTopic]
    forgotten: list[tuple[str | uuid.UUID, list[int]]]


class FetchedPartition(NamedTuple):
    """The records read from one partition, and its offsets."""

    partition: int
    error: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: bytes | FileRegion = b""
    aborted: Sequence[tuple[int, int]] = ()
    """Producer id and first offset of aborted transactions, sorted by offset, which consumers rely on."""


class FetchedTopic(NamedTuple):
    """The partitions of one topic, given by name or id as in the request."""

    topic: str | uuid.UUID
    partitions: Sequence[FetchedPartition]


class FetchResponse(NamedTuple):
    """The records of all partitions, or an error of the session."""

    topics: Sequence[FetchedTopic]
    error: int = 0
    session_id: int = NO_SESSION


def read_fetch(frame: memoryview, at: int, version: int) -> FetchRequest:
    """Decode the body of a request, which starts at `at`."""
    try:
        return _read(FieldReader(frame, at, flexible=version >= _FLEXIBLE_FROM), version)
    except (struct.error, IndexError, ValueError) as error:
        raise InvalidError(f"cannot decode a Fetch request of version {version}: {error}") from error


def _read(reader: FieldReader, version: int) -> FetchRequest:
    if version < _NO_REPLICA_FROM:
        reader.unpack(INT)
    max_wait_ms, min_bytes, max_bytes, isolation_level = reader.unpack(_LIMITS)
    session_id, epoch = reader.unpack(_SESSION) if version >= _SESSION_FROM else (NO_SESSION, -1)
    by_id = version >= _TOPIC_ID_FROM
    layout, offset_at = _partition_layout(version)
    topics = []
    for _ in range(reader.array()):
        topic = reader.uuid() if by_id else reader.string() or ""
        partitions = []
        for _ in range(reader.array()):
            fields = reader.unpack(layout)
            partitions.append(FetchPartition(fields[0], fields[offset_at], fields[-1]))
            reader.tags()
        topics.append(FetchTopic(topic, partitions))
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


def _partition_layout(version: int) -> tuple[struct.Struct, int]:
    """Return the layout of a partition in a request, and the index of the fetch offset in it.

    Fields: partition, leader epoch (since 9), fetch offset, last fetched epoch (since 12), log start (since 5),
    maximum bytes.
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


def write_fetch(version: int, response: FetchResponse) -> list[Part]:
    """Encode the body of a response, as parts to be sent in order."""
    flexible = version >= _FLEXIBLE_FROM
    parts: list[Part] = []
    fields = bytearray(4)  # throttle time 0
    if version >= _SESSION_FROM:
        fields += _ERROR_AND_SESSION.pack(response.error, response.session_id)
    fields += writer.array(len(response.topics), flexible)
    for topic, partitions in response.topics:
        fields += writer.string(topic, flexible) if isinstance(topic, str) else topic.bytes
        fields += writer.array(len(partitions), flexible)
        for partition in partitions:
            _write_partition(fields, version, partition, flexible)
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


def _write_partition(fields: bytearray, version: int, partition: FetchedPartition, flexible: bool) -> None:
    """Append the fields of a partition up to the length of its records."""
    fields += _PARTITION.pack(*partition[:4])
    if version >= _LOG_START_FROM:
        fields += _OFFSET.pack(partition.log_start_offset)
    fields += writer.array(len(partition.aborted), flexible)
    for producer_id, first_offset in partition.aborted:
        fields += _ABORTED.pack(producer_id, first_offset)
        if flexible:
            fields += writer.NO_TAGS
    if version >= _PREFERRED_REPLICA_FROM:
        fields += _NO_REPLICA
    size = len(partition.records)
    fields += write_uvarint(size + 1) if flexible else INT.pack(size)
