"""The record batch, version 2: the same bytes on the wire, on disk and in clients.

    base offset 8 | length 4 | leader epoch 4 | magic 1 | crc 4 | attributes 2 | last offset delta 4 |
    base timestamp 8 | max timestamp 8 | producer id 8 | producer epoch 2 | base sequence 4 | count 4 | records

The length counts the bytes after it. The CRC-32C covers everything from the attributes on, so the log can set the
base offset and leader epoch of a batch without changing the rest. The records can be compressed together.
https://kafka.apache.org/documentation/#recordbatch
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from crc32c import crc32c

from headwater.errors import CorruptError, InvalidError
from headwater.record import Header, Record
from headwater.transmit.records.codec import read_varint, write_varint
from headwater.transmit.records.compression import Compression, compress, decompress

Buffer = bytes | bytearray | memoryview

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
LENGTH_PREFIX_BYTES = 12  # base offset and length, which `length` does not count
BATCH_BYTES = 768 << 10
"""Approximate size of batches that Headwater encodes; below Kafka's default for `max.message.bytes`."""
RECORD_FRAME_BYTES = 24  # at most, without headers
_HEADER_FRAME_BYTES = 10
CRC_AT = 17
CRC_COVERS_FROM = 21
MAGIC = 2

COMPRESSION_MASK = 0x07
_COMPRESSION_MAX = max(Compression)
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20

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


def batches_of(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Group records into batches of about BATCH_BYTES; a larger record is alone in its batch."""
    batch: list[Record] = []
    size = 0
    for record in records:
        headers = sum(_HEADER_FRAME_BYTES + len(name) + len(value or b"") for name, value in record.headers)
        needed = RECORD_FRAME_BYTES + len(record.key or b"") + len(record.value or b"") + headers
        if batch and size + needed > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += needed
    if batch:
        yield batch


def encode_batch(
    records: Sequence[Record],
    *,
    compression: Compression = Compression.NONE,
    attributes: int = 0,
    base_offset: int = 0,
    producer: Sender = NO_SENDER,
) -> bytes:
    """Encode records as one batch; by default from a producer without an id."""
    if not records:
        raise InvalidError("cannot encode a record batch without records")
    timestamps = [record.timestamp_ms for record in records]
    base_timestamp = timestamps[0]
    body = b"".join(_encode_record(record, n, base_timestamp) for n, record in enumerate(records))
    body = compress(compression, body)
    header = seal_header(
        body,
        attributes=attributes | compression,
        count=len(records),
        timestamp_ms=base_timestamp,
        timestamp_max_ms=max(timestamps),
        base_offset=base_offset,
        producer=producer,
    )
    return header + body


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


def decode_batch(data: Buffer, at: int = 0) -> list[Record]:
    """Decode all records of the batch at `at`, one by one; `to_arrow` decodes to columns."""
    header = check_batch(data, at)
    body = decompress(header.compression, memoryview(data)[at + HEADER_BYTES : at + header.size])
    log_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    records = []
    position = 0
    try:
        for _ in range(header.count):
            record, position = _decode_record(body, position, header, log_time)
            records.append(record)
        if position != len(body):
            raise ValueError(f"{len(body) - position} bytes follow the last record")
    except (IndexError, ValueError) as error:
        raise CorruptError(
            f"record batch at offset {header.base_offset}: record {len(records)} of {header.count} is damaged "
            f"({error})"
        ) from error
    return records


def _encode_record(record: Record, offset_delta: int, base_timestamp: int) -> bytes:
    parts = [
        b"\x00",
        write_varint(record.timestamp_ms - base_timestamp),
        write_varint(offset_delta),
        *_encode_bytes(record.key),
        *_encode_bytes(record.value),
        write_varint(len(record.headers)),
    ]
    for name, value in record.headers:
        parts += [*_encode_bytes(name.encode()), *_encode_bytes(value)]
    body = b"".join(parts)
    return write_varint(len(body)) + body


def _encode_bytes(value: bytes | None) -> tuple[bytes, ...]:
    return (write_varint(-1),) if value is None else (write_varint(len(value)), value)


def _decode_record(body: Buffer, at: int, header: BatchHeader, log_time: int | None) -> tuple[Record, int]:
    length, at = read_varint(body, at)
    end = at + length
    if length < 0 or end > len(body):
        raise ValueError(f"its length is {length}, but {len(body) - at} bytes are left")
    timestamp_delta, at = read_varint(body, at + 1)
    offset_delta, at = read_varint(body, at)
    key, at = _decode_bytes(body, at)
    value, at = _decode_bytes(body, at)
    count, at = read_varint(body, at)
    headers: list[Header] = []
    for _ in range(count):
        name, at = _decode_bytes(body, at)
        content, at = _decode_bytes(body, at)
        headers.append(((name or b"").decode(), content))
    if at > end:
        raise ValueError(f"its fields end {at - end} bytes after the record")
    record = Record(
        key=key,
        value=value,
        headers=tuple(headers),
        timestamp_ms=header.base_timestamp + timestamp_delta if log_time is None else log_time,
        offset=header.base_offset + offset_delta,
    )
    return record, end


def _decode_bytes(body: Buffer, at: int) -> tuple[bytes | None, int]:
    length, at = read_varint(body, at)
    if length < 0:
        return None, at
    if at + length > len(body):
        raise ValueError(f"a field has length {length}, but {len(body) - at} bytes are left")
    return bytes(body[at : at + length]), at + length
