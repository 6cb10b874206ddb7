"""Control batches: the marker that ends a producer's transaction in a partition, written by the broker.

A batch has one record. Its key is the outcome of the transaction, its value the coordinator:

    key    version 2 (= 0) | 0 for abort, 1 for commit 2
    value  version 2 (= 0) | coordinator epoch 4
"""

import struct
from dataclasses import dataclass

from headwater.errors import CorruptError
from headwater.record import Record
from headwater.transmit.records.attributes import CONTROL, TRANSACTIONAL, Buffer
from headwater.transmit.records.batch import decode_batch, encode_batch
from headwater.transmit.records.batch_header import NO_SENDER, Sender, read_header

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_ABORT, _COMMIT = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """The end of a transaction of one producer."""

    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int = 0


def encode_marker(marker: Marker, *, timestamp_ms: int) -> bytearray:
    """Return the control batch of a marker, without an offset."""
    record = Record(
        key=_KEY.pack(0, _COMMIT if marker.is_commit else _ABORT),
        value=_VALUE.pack(0, marker.coordinator_epoch),
        timestamp_ms=timestamp_ms,
    )
    producer = Sender(marker.producer_id, marker.producer_epoch, NO_SENDER.base_sequence)
    return bytearray(encode_batch([record], attributes=TRANSACTIONAL | CONTROL, producer=producer))


def read_marker(data: Buffer, at: int = 0) -> Marker | None:
    """Return the marker of a control batch; None if the batch does not end a transaction."""
    header = read_header(data, at)
    (record,) = decode_batch(data, at)
    try:
        _, kind = _KEY.unpack_from(record.key or b"")
        _, coordinator_epoch = _VALUE.unpack_from(record.value or b"")
    except struct.error as error:
        raise CorruptError(f"control batch at offset {header.base_offset}: {error}") from error
    if kind not in (_ABORT, _COMMIT):
        return None
    return Marker(
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        is_commit=kind == _COMMIT,
        coordinator_epoch=coordinator_epoch,
    )


def drop_aborted(data: bytes, aborted: list[tuple[int, int]]) -> bytes:
    """Remove control batches and the batches of aborted transactions from fetched data.

    `aborted` are producer ids with the first offset of their transaction, as in the fetch response.
    """
    if not aborted:
        return data
    upcoming = sorted(((first, producer) for producer, first in aborted), reverse=True)
    active: set[int] = set()
    kept = []
    at = 0
    while at < len(data):
        header = read_header(data, at)
        if at + header.size > len(data):
            break
        while upcoming and upcoming[-1][0] < header.next_offset:
            active.add(upcoming.pop()[1])
        if header.is_control:
            marker = read_marker(data, at)
            if marker is not None and not marker.is_commit:
                active.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in active):
            kept.append(data[at : at + header.size])
        at += header.size
    return b"".join(kept)
