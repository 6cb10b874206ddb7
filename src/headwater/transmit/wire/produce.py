"""The Produce request, read by hand: records stay where they are in the frame, no byte of them is copied.

Versions 3 to 13; from 9 on fields are compact and tagged, from 13 on topics go by id.
"""

import struct
import uuid
from dataclasses import dataclass

from headwater.errors import InvalidError
from headwater.transmit.codec import read_uvarint
from headwater.transmit.wire.frame import skip_tags

VERSION_MIN = 3
_FLEXIBLE_FROM = 9
_TOPIC_ID_FROM = 13
_ACKS_AND_TIMEOUT = struct.Struct(">hi")
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")
_UUID_BYTES = 16


@dataclass(frozen=True, slots=True)
class PartitionRecords:
    """Record batches for one partition, as a window on the request's frame."""

    topic: str | uuid.UUID
    partition: int
    records: memoryview | None


@dataclass(frozen=True, slots=True)
class ProduceRequest:
    """What a producer sends."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    parts: list[PartitionRecords]


def read_produce(frame: memoryview, at: int, version: int) -> ProduceRequest:
    """Read the request's body, which starts at `at`."""
    try:
        reader = _Reader(frame, at, flexible=version >= _FLEXIBLE_FROM)
        return _read(reader, by_id=version >= _TOPIC_ID_FROM)
    except (struct.error, IndexError, ValueError) as error:
        raise InvalidError(f"cannot read a Produce request of version {version}: {error}") from error


def _read(reader: "_Reader", *, by_id: bool) -> ProduceRequest:
    transactional_id = reader.string()
    acks, timeout_ms = reader.unpack(_ACKS_AND_TIMEOUT)
    parts = []
    for _ in range(reader.array()):
        topic = reader.uuid() if by_id else reader.string() or ""
        for _ in range(reader.array()):
            (partition,) = reader.unpack(_INT)
            parts.append(PartitionRecords(topic, partition, reader.blob()))
            reader.tags()
        reader.tags()
    reader.tags()
    return ProduceRequest(transactional_id, acks, timeout_ms, parts)


class _Reader:
    """Reads fields one after the other, in the plain or the compact form."""

    def __init__(self, data: memoryview, at: int, *, flexible: bool) -> None:
        self._data = data
        self._at = at
        self._flexible = flexible

    def unpack(self, shape: struct.Struct) -> tuple[int, ...]:
        values = shape.unpack_from(self._data, self._at)
        self._at += shape.size
        return values

    def length(self, plain: struct.Struct) -> int:
        """A length of strings, bytes or arrays; -1 for null."""
        if not self._flexible:
            return self.unpack(plain)[0]
        value, self._at = read_uvarint(self._data, self._at)
        return value - 1

    def array(self) -> int:
        return self.length(_INT)

    def string(self) -> str | None:
        text = self._take(self.length(_SHORT))
        return None if text is None else bytes(text).decode()

    def blob(self) -> memoryview | None:
        return self._take(self.length(_INT))

    def uuid(self) -> uuid.UUID:
        value = uuid.UUID(bytes=bytes(self._data[self._at : self._at + _UUID_BYTES]))
        self._at += _UUID_BYTES
        return value

    def tags(self) -> None:
        if self._flexible:
            self._at = skip_tags(self._data, self._at)

    def _take(self, length: int) -> memoryview | None:
        if length < 0:
            return None
        end = self._at + length
        if end > len(self._data):
            raise IndexError(f"a field of {length} bytes, {len(self._data) - self._at} are left")
        taken = self._data[self._at : end]
        self._at = end
        return taken
