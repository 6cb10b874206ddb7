"""The Fetch response, written by hand: the records of the log are put between the fields as they are.

Versions 4 to 18; from 7 on there is a session (we keep none: id 0), from 12 on fields are compact and tagged,
from 13 on topics go by id.
"""

import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from headwater.transmit.codec import write_uvarint

_FLEXIBLE_FROM = 12
_SESSION_FROM = 7
_LOG_START_FROM = 5
_PREFERRED_REPLICA_FROM = 11
_TOPIC_ID_FROM = 13
_NO_TAGS = b"\x00"
_NO_REPLICA = struct.pack(">i", -1)
_INT = struct.Struct(">i")
_PARTITION = struct.Struct(">ihqq")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAnswer:
    """What there is to read in one partition."""

    partition: int
    error: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: bytes = b""
    aborted: Sequence[tuple[int, int]] = ()
    """Producer and first offset of aborted transactions, sorted by the offset: readers rely on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAnswer:
    """The partitions of one topic."""

    name: str
    id: uuid.UUID
    partitions: Sequence[PartitionAnswer]


def write_fetch(version: int, topics: Sequence[TopicAnswer], *, error: int = 0) -> list[bytes]:
    """The body of the response, in parts to be sent one after the other."""
    flexible = version >= _FLEXIBLE_FROM
    head = bytearray(4)  # throttle time: none
    if version >= _SESSION_FROM:
        head += struct.pack(">hi", error, 0)
    head += _array(len(topics), flexible)
    parts = [bytes(head)]
    for topic in topics:
        parts.append(_topic_name(version, topic, flexible) + _array(len(topic.partitions), flexible))
        for answer in topic.partitions:
            parts += _partition(version, answer, flexible)
        if flexible:
            parts.append(_NO_TAGS)
    if flexible:
        parts.append(_NO_TAGS)
    return parts


def _topic_name(version: int, topic: TopicAnswer, flexible: bool) -> bytes:
    if version >= _TOPIC_ID_FROM:
        return topic.id.bytes
    name = topic.name.encode()
    return (write_uvarint(len(name) + 1) if flexible else struct.pack(">h", len(name))) + name


def _partition(version: int, answer: PartitionAnswer, flexible: bool) -> list[bytes]:
    head = bytearray(
        _PARTITION.pack(answer.partition, answer.error, answer.high_watermark, answer.last_stable_offset)
    )
    if version >= _LOG_START_FROM:
        head += struct.pack(">q", answer.log_start_offset)
    head += _array(len(answer.aborted), flexible)
    for producer_id, first_offset in answer.aborted:
        head += struct.pack(">qq", producer_id, first_offset) + (_NO_TAGS if flexible else b"")
    if version >= _PREFERRED_REPLICA_FROM:
        head += _NO_REPLICA
    size = len(answer.records)
    head += write_uvarint(size + 1) if flexible else _INT.pack(size)
    parts = [bytes(head), answer.records]
    if flexible:
        parts.append(_NO_TAGS)
    return parts


def _array(length: int, flexible: bool) -> bytes:
    return write_uvarint(length + 1) if flexible else _INT.pack(length)
