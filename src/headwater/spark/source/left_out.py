"""The records that a reader leaves out of what it reads: those at certain offsets, and those for other readers.

A record that is redriven for one reader only has its name in a header.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from headwater.record import TopicPartition
from headwater.spark.source.offsets import Excluded
from headwater.transmit.records.attributes import Buffer
from headwater.transmit.records.batch import decode_batch
from headwater.transmit.records.batch_header import walk
from headwater.transmit.records.dead_letters import ONLY_HEADER

_ONLY = ONLY_HEADER.encode()


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The records of a topic that a query leaves out: those at `offsets`, and those for readers of other names."""

    offsets: frozenset[tuple[int, int]]
    """Partition and offset of each."""
    reader: str


def leave_out(
    rows: pa.RecordBatch, data: Buffer, partition: TopicPartition, excluded: Excluded, reader: str | None
) -> pa.RecordBatch:
    """Return the rows decoded from `data`, without those that are excluded or meant for another reader."""
    unwanted = set(dict(excluded).get(partition, ()))
    if reader is not None:
        unwanted |= {offset for offset, name in _addressed(data).items() if name != reader.encode()}
    if not unwanted:
        return rows
    offsets = rows.column("offset").to_numpy()
    keep = [int(offset) not in unwanted for offset in offsets]
    return rows if all(keep) else rows.filter(pa.array(keep))


def addressed_records(data: Buffer) -> dict[int, str]:
    """Return the readers of records for one reader only, by offset."""
    return {offset: (name or b"").decode(errors="replace") for offset, name in _addressed(data).items()}


def with_readers(rows: pa.RecordBatch, data: Buffer, column: str) -> pa.RecordBatch:
    """Add a column with the name of the only reader of each row decoded from `data`; null if it is for all."""
    readers = addressed_records(data)
    offsets = rows.column("offset").to_pylist() if readers else ()
    names = [readers.get(offset) for offset in offsets] if readers else pa.nulls(rows.num_rows, pa.string())
    return rows.append_column(pa.field(column, pa.string()), pa.array(names, pa.string()) if readers else names)


def _addressed(data: Buffer) -> Mapping[int, bytes | None]:
    """Return the records for one reader only. Each was appended alone, so larger batches need not be decoded."""
    found: dict[int, bytes | None] = {}
    for at, header in walk(data):
        if header.count != 1 or header.is_control:
            continue
        if not header.compression and _ONLY not in bytes(memoryview(data)[at : at + header.size]):
            continue
        (record,) = decode_batch(data, at)
        for name, value in record.headers:
            if name == ONLY_HEADER:
                found[record.offset] = value
    return found
