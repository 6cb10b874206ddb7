"""The record batch, version 2: the same bytes on the wire, on disk and in a client's hands.

    base offset 8 | length 4 | leader epoch 4 | magic 1 | crc 4 | attributes 2 | last offset delta 4 |
    base timestamp 8 | max timestamp 8 | producer id 8 | producer epoch 2 | base sequence 4 | count 4 | records

The length counts what stands behind it. The CRC-32C covers everything from the attributes on, so the log can
give a batch its base offset and leader epoch without touching the rest. Records may be compressed as a whole.
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
LENGTH_PREFIX_BYTES = 12  # base offset and length: what `length` does not count
BATCH_BYTES = 768 << 10
"""Of a batch that we make, about; below Kafka's default of `max.message.bytes`."""
RECORD_FRAME_BYTES = 24  # at most, but for headers
_HEADER_FRAME_BYTES = 10
_CRC_AT = 17
_CRC_COVERS_FROM = 21
MAGIC = 2

COMPRESSION_MASK = 0x07
_COMPRESSION_MAX = max(Compression)
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20

_EPOCH = struct.Struct(">i")
_OFFSET = struct.Struct(">q")
_CRC = struct.Struct(">I")


class Sender(NamedTuple):
    """Who a batch is from, and the number of its first record there: a broker takes the same one only once."""

    producer_id: int
    producer_epoch: int
    base_sequence: int


NOBODY = Sender(-1, -1, -1)


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
    count: int  # type: ignore[assignment]  # Kafka's name for it hides tuple.count, which nobody needs

    @property
    def size(self) -> int:
        """All bytes of the batch, the length prefix included."""
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
    """Read the header that starts at `at`; the caller has made sure that 61 bytes are there."""
    return BatchHeader._make(HEADER.unpack_from(data, at))


def check_batch(data: Buffer, at: int = 0) -> BatchHeader:
    """Read the header at `at` and verify that the whole batch is there and undamaged."""
    left = len(data) - at
    if left < HEADER_BYTES:
        raise CorruptError(f"record batch at byte {at}: {left} bytes left, a header takes {HEADER_BYTES}")
    header = read_header(data, at)
    if header.magic != MAGIC:
        raise CorruptError(f"record batch at byte {at}: magic is {header.magic}, expected {MAGIC}")
    if not HEADER_BYTES <= header.size <= left:
        raise CorruptError(f"record batch at byte {at}: it says {header.size} bytes, {left} are there")
    if header.count < 0 or header.last_offset_delta < 0:
        raise CorruptError(
            f"record batch at byte {at}: {header.count} records, last offset delta {header.last_offset_delta}"
        )
    if header.attributes & COMPRESSION_MASK > _COMPRESSION_MAX:
        raise CorruptError(
            f"record batch at byte {at}: unknown compression {header.attributes & COMPRESSION_MASK}"
        )
    found = crc32c(memoryview(data)[at + _CRC_COVERS_FROM : at + header.size])
    if found != header.crc:
        raise CorruptError(f"record batch at byte {at}: CRC-32C is {found:#010x}, header says {header.crc:#010x}")
    return header


def check_batches(data: Buffer) -> list[BatchHeader]:
    """Verify batches that fill a buffer end to end, and return their headers."""
    headers = []
    at = 0
    while at < len(data):
        header = check_batch(data, at)
        headers.append(header)
        at += header.size
    return headers


def walk(data: Buffer, at: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Yield place and header of each whole batch, without checking the CRC; stop before a cut one."""
    end = len(data)
    while at + HEADER_BYTES <= end:
        header = read_header(data, at)
        if header.size < HEADER_BYTES:
            raise CorruptError(f"record batch at byte {at}: it says {header.size} bytes")
        if at + header.size > end:
            return
        yield at, header
        at += header.size


def place(data: bytearray | memoryview, at: int, *, base_offset: int, leader_epoch: int) -> None:
    """Give the batch at `at` its place in the log, in the buffer itself."""
    _OFFSET.pack_into(data, at, base_offset)
    _EPOCH.pack_into(data, at + LENGTH_PREFIX_BYTES, leader_epoch)


def batches_of(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Records in batches of about `BATCH_BYTES`; a larger one is alone."""
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
    base_offset: int = 0,
    producer: Sender = NOBODY,
) -> bytes:
    """Encode records as one batch; unless told, it is from a producer without an identity."""
    if not records:
        raise InvalidError("cannot encode a record batch of no records")
    timestamps = [record.timestamp_ms for record in records]
    base_timestamp = timestamps[0]
    body = b"".join(_encode_record(record, n, base_timestamp) for n, record in enumerate(records))
    body = compress(compression, body)
    header = seal_header(
        body,
        attributes=compression,
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
    producer: Sender = NOBODY,
) -> bytes:
    """The header of a batch whose records are `body`; `producer` is who appends it."""
    length = HEADER_BYTES - LENGTH_PREFIX_BYTES + len(body)
    latest_ms = timestamp_ms if timestamp_max_ms is None else timestamp_max_ms
    header = bytearray(
        HEADER.pack(
            base_offset, length, -1, MAGIC, 0, attributes, count - 1, timestamp_ms, latest_ms, *producer, count
        )
    )  # fmt: skip
    crc = crc32c(body, crc32c(header[_CRC_COVERS_FROM:]))
    _CRC.pack_into(header, _CRC_AT, crc)
    return bytes(header)


def decode_batch(data: Buffer, at: int = 0) -> list[Record]:
    """Decode every record of the batch at `at`, one by one; the columnar way is in `columns`."""
    header = check_batch(data, at)
    body = decompress(header.compression, memoryview(data)[at + HEADER_BYTES : at + header.size])
    log_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    records = []
    place_ = 0
    try:
        for _ in range(header.count):
            record, place_ = _decode_record(body, place_, header, log_time)
            records.append(record)
        if place_ != len(body):
            raise ValueError(f"{len(body) - place_} bytes are left behind the last record")
    except (IndexError, ValueError) as error:
        raise CorruptError(
            f"record batch at offset {header.base_offset}: record {len(records)} of {header.count} is cut "
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
        raise ValueError(f"it says {length} bytes, {len(body) - at} are left")
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
        raise ValueError(f"its fields reach {at - end} bytes into the next record")
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
        raise ValueError(f"a field of {length} bytes, {len(body) - at} are left")
    return bytes(body[at : at + length]), at + length
