"""Record batches: encode and decode the records after the header (`batch_header`)."""

from collections.abc import Iterable, Iterator, Sequence

from headwater.errors import CorruptError, InvalidError
from headwater.record import Header, Record
from headwater.transmit.records.attributes import LOG_APPEND_TIME, Buffer, Compression
from headwater.transmit.records.batch_header import (
    HEADER_BYTES,
    NO_SENDER,
    BatchHeader,
    Sender,
    check_batch,
    seal_header,
)
from headwater.transmit.records.codec import read_varint, write_varint
from headwater.transmit.records.compression import compress, decompress

BATCH_BYTES = 768 << 10
"""Approximate size of batches that Headwater encodes; below Kafka's default for `max.message.bytes`."""
RECORD_FRAME_BYTES = 24  # at most, without headers
_HEADER_FRAME_BYTES = 10


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
