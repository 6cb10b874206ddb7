"""The header of a record batch, version 2: the same bytes on the wire, on disk and in clients.

    base offset 8 | length 4 | leader epoch 4 | magic 1 | crc 4 | attributes 2 | last offset delta 4 |
    base timestamp 8 | max timestamp 8 | producer id 8 | producer epoch 2 | base sequence 4 | count 4 | records

The length counts the bytes after it. The CRC-32C covers everything from the attributes on, so the log can set the
base offset and leader epoch of a batch without changing the rest. The records can be compressed together.
https://kafka.apache.org/documentation/#recordbatch
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from headwater.errors import CorruptError
from headwater.transmit.records.attributes import COMPRESSION_MASK, CONTROL, TRANSACTIONAL, Buffer, Compression

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
LENGTH_PREFIX_BYTES = 12  # base offset and length, which `length` does not count
CRC_AT = 17
CRC_COVERS_FROM = 21
MAGIC = 2
_COMPRESSION_MAX = max(Compression)

_EPOCH = struct.Struct(">i")
_OFFSET = struct.Struct(">q")
CRC = struct.Struct(">I")


class Sender(NamedTuple):
    """The producer of a batch, and the sequence number of its first record, by which brokers deduplicate it."""

    producer_id: int
    producer_epoch: int
    base_sequence: int


NO_SENDER = Sender(-1, -1, -1)


class BatchHeader(NamedTuple):
    """The 61 bytes before the records."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # Kafka's name for it hides tuple.count, which is not used

    @property
    def size(self) -> int:
        """The size of the batch in bytes, including base offset and length."""
        return self.length + LENGTH_PREFIX_BYTES

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> Compression:
        return Compression(self.attributes & COMPRESSION_MASK)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)


def read_header(data: Buffer, at: int = 0) -> BatchHeader:
    """Read the header at `at`; the caller must make sure that there are 61 bytes."""
    return BatchHeader._make(HEADER.unpack_from(data, at))


def check_batch(data: Buffer, at: int = 0) -> BatchHeader:
    """Read the header at `at` and verify that the batch is complete and undamaged."""
    left = len(data) - at
    if left < HEADER_BYTES:
        raise CorruptError(f"record batch at byte {at}: {left} bytes are left, but a header has {HEADER_BYTES}")
    header = read_header(data, at)
    if header.magic != MAGIC:
        raise CorruptError(f"record batch at byte {at}: magic is {header.magic}, expected {MAGIC}")
    if not HEADER_BYTES <= header.size <= left:
        raise CorruptError(f"record batch at byte {at}: its size is {header.size} bytes, but {left} are left")
    if header.count < 0 or header.last_offset_delta < 0:
        raise CorruptError(
            f"record batch at byte {at}: {header.count} records, last offset delta {header.last_offset_delta}"
        )
    if header.attributes & COMPRESSION_MASK > _COMPRESSION_MAX:
        raise CorruptError(
            f"record batch at byte {at}: unknown compression {header.attributes & COMPRESSION_MASK}"
        )
    found = crc32c(memoryview(data)[at + CRC_COVERS_FROM : at + header.size])
    if found != header.crc:
        raise CorruptError(f"record batch at byte {at}: CRC-32C is {found:#010x}, expected {header.crc:#010x}")
    return header


def check_batches(data: Buffer) -> list[BatchHeader]:
    """Verify all batches of a buffer, and return their headers."""
    headers = []
    at = 0
    while at < len(data):
        header = check_batch(data, at)
        headers.append(header)
        at += header.size
    return headers


def walk(data: Buffer, at: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Yield position and header of each complete batch, without checking the CRC; stop at an incomplete one."""
    end = len(data)
    while at + HEADER_BYTES <= end:
        header = read_header(data, at)
        if header.size < HEADER_BYTES:
            raise CorruptError(f"record batch at byte {at}: its size is {header.size} bytes")
        if at + header.size > end:
            return
        yield at, header
        at += header.size


def place(data: bytearray | memoryview, at: int, *, base_offset: int, leader_epoch: int) -> None:
    """Set the base offset and leader epoch of the batch at `at`, in place."""
    _OFFSET.pack_into(data, at, base_offset)
    _EPOCH.pack_into(data, at + LENGTH_PREFIX_BYTES, leader_epoch)


def seal_header(
    body: Buffer,
    *,
    attributes: int,
    count: int,
    timestamp_ms: int,
    timestamp_max_ms: int | None = None,
    base_offset: int = 0,
    producer: Sender = NO_SENDER,
) -> bytes:
    """Return the header of a batch with `body` as its encoded records."""
    length = HEADER_BYTES - LENGTH_PREFIX_BYTES + len(body)
    latest_ms = timestamp_ms if timestamp_max_ms is None else timestamp_max_ms
    header = bytearray(
        HEADER.pack(
            base_offset, length, -1, MAGIC, 0, attributes, count - 1, timestamp_ms, latest_ms, *producer, count
        )
    )  # fmt: skip
    crc = crc32c(body, crc32c(header[CRC_COVERS_FROM:]))
    CRC.pack_into(header, CRC_AT, crc)
    return bytes(header)
