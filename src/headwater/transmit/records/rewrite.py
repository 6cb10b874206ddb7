"""Change a record batch with as little decoding as possible: set the log's time, recompress, remove records.

Offsets never change: a batch keeps its base offset and its last offset delta when records are removed from it, and
each record keeps its own delta. The checksum is recomputed. Pure.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from crc32c import crc32c

from headwater.errors import CorruptError
from headwater.transmit.records.attributes import COMPRESSION_MASK, LOG_APPEND_TIME, Buffer, Compression
from headwater.transmit.records.batch_header import (
    CRC,
    CRC_AT,
    CRC_COVERS_FROM,
    HEADER,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    BatchHeader,
)
from headwater.transmit.records.codec import read_varint, write_varint
from headwater.transmit.records.compression import compress, decompress

DELETE_HORIZON = 0x40
"""Attribute bit: the base timestamp is the time from which the batch's tombstones may be removed (KIP-534)."""

_ATTRIBUTES = struct.Struct(">h")
_ATTRIBUTES_AT = 21
_MAX_TIMESTAMP = struct.Struct(">q")
_MAX_TIMESTAMP_AT = 35


class RawRecord(NamedTuple):
    """A record as encoded in its batch; `body` is everything after its length."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    has_value: bool
    body: bytes
    time_from: int
    """The timestamp delta is `body[time_from:time_to]`."""
    time_to: int


def stamp(data: memoryview, at: int, header: BatchHeader, timestamp_ms: int) -> BatchHeader:
    """Replace the producer's time of the batch at `at` by the log's time, in place."""
    attributes = header.attributes | LOG_APPEND_TIME
    _ATTRIBUTES.pack_into(data, at + _ATTRIBUTES_AT, attributes)
    _MAX_TIMESTAMP.pack_into(data, at + _MAX_TIMESTAMP_AT, timestamp_ms)
    crc = crc32c(data[at + CRC_COVERS_FROM : at + header.size])
    CRC.pack_into(data, at + CRC_AT, crc)
    return header._replace(attributes=attributes, max_timestamp=timestamp_ms, crc=crc)


def recompress(data: Buffer, at: int, header: BatchHeader, compression: Compression) -> tuple[BatchHeader, bytes]:
    """Return the batch at `at`, whose checksum is valid, with its records compressed by another codec."""
    body = decompress(header.compression, memoryview(data)[at + HEADER_BYTES : at + header.size])
    attributes = header.attributes & ~COMPRESSION_MASK | compression
    return _with_content(header._replace(attributes=attributes), compress(compression, bytes(body)))


def all_have_keys(data: Buffer, at: int, header: BatchHeader) -> bool:
    """Return whether every record of the batch at `at` has a key; False also if a record is malformed.

    Several times as fast as `raw_records`: nothing is copied, and only the fields up to the key are read.
    """
    body = bytes(decompress(header.compression, memoryview(data)[at + HEADER_BYTES : at + header.size]))
    place, size = 0, len(body)
    try:
        for _ in range(header.count):
            length, place = read_varint(body, place)
            end = place + length
            place += 1  # the attributes
            for _ in range(2):  # the deltas of time and offset
                while body[place] >= 0x80:
                    place += 1
                place += 1
            key_length = body[place]
            if key_length >= 0x80:
                key_length, place = read_varint(body, place)
            else:
                key_length, place = (key_length >> 1) ^ -(key_length & 1), place + 1
            if key_length < 0 or place + key_length >= end or end > size:
                return False
            place = end
    except (IndexError, ValueError):
        return False
    return place == size


def raw_records(data: Buffer, at: int, header: BatchHeader) -> Iterator[RawRecord]:
    """Yield the records of the batch at `at`, whose checksum is valid; raise CorruptError at a malformed one."""
    body = decompress(header.compression, memoryview(data)[at + HEADER_BYTES : at + header.size])
    log_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    place = 0
    try:
        for _ in range(header.count):
            length, place = read_varint(body, place)
            if length < 0 or place + length > len(body):
                raise ValueError(f"a record has length {length}, but {len(body) - place} bytes are left")
            yield _raw_record(bytes(body[place : place + length]), header, log_time)
            place += length
    except (IndexError, ValueError) as error:
        raise CorruptError(f"record batch at offset {header.base_offset}: {error}") from error


def _raw_record(body: bytes, header: BatchHeader, log_time: int | None) -> RawRecord:
    timestamp_delta, time_to = read_varint(body, 1)
    offset_delta, at = read_varint(body, time_to)
    key_length, at = read_varint(body, at)
    key = None if key_length < 0 else body[at : at + key_length]
    value_length, _ = read_varint(body, at + max(key_length, 0))
    return RawRecord(
        offset=header.base_offset + offset_delta,
        timestamp_ms=header.base_timestamp + timestamp_delta if log_time is None else log_time,
        key=key,
        has_value=value_length >= 0,
        body=body,
        time_from=1,
        time_to=time_to,
    )


def rebuild(header: BatchHeader, records: Sequence[RawRecord], *, horizon_ms: int | None = None) -> bytes:
    """Return the batch with only these records, compressed as before.

    `horizon_ms` is the time from which its tombstones may be removed.
    """
    attributes, base_timestamp = header.attributes, header.base_timestamp
    if horizon_ms is not None:
        shift = base_timestamp - horizon_ms
        attributes, base_timestamp = attributes | DELETE_HORIZON, horizon_ms
        bodies = [_shifted(record, shift) for record in records]
    else:
        bodies = [record.body for record in records]
    plain = b"".join(part for body in bodies for part in (write_varint(len(body)), body))
    content = compress(header.compression, plain) if records else b""
    newest = max((record.timestamp_ms for record in records), default=header.max_timestamp)
    changed = header._replace(
        attributes=attributes, base_timestamp=base_timestamp, max_timestamp=newest, count=len(records)
    )
    return _with_content(changed, content)[1]


def _with_content(header: BatchHeader, content: bytes) -> tuple[BatchHeader, bytes]:
    """Return the batch with this content, which is compressed already; set its length and checksum."""
    header = header._replace(length=HEADER_BYTES - LENGTH_PREFIX_BYTES + len(content), crc=0)
    head = bytearray(HEADER.pack(*header))
    crc = crc32c(content, crc32c(head[CRC_COVERS_FROM:]))
    CRC.pack_into(head, CRC_AT, crc)
    return header._replace(crc=crc), bytes(head) + content


def _shifted(record: RawRecord, shift: int) -> bytes:
    delta, _ = read_varint(record.body, record.time_from)
    return record.body[: record.time_from] + write_varint(delta + shift) + record.body[record.time_to :]
