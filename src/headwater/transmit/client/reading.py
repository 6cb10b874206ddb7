"""Read the records of a partition, decoded one by one."""

from collections.abc import Iterator

from headwater.errors import InvalidError
from headwater.record import EARLIEST, LATEST, Record, TopicPartition
from headwater.transmit.client.client import Client
from headwater.transmit.records.batch import decode_batch
from headwater.transmit.records.batch_header import walk

_ONE_BATCH = 1  # bytes; a broker sends the whole batch that holds the offset, and no more


def read_records(client: Client, partition: TopicPartition, start: int | None = None) -> Iterator[Record]:
    """Yield the records of a partition from an offset (defaults to the first) up to its current end."""
    earliest = client.offsets([partition], EARLIEST)[partition]
    first = offset = earliest if start is None else max(start, earliest)
    end = client.offsets([partition], LATEST)[partition]
    while offset < end:
        data, offset = client.read(partition, offset)
        for position, header in walk(data):
            if not header.is_control:
                yield from (record for record in decode_batch(data, position) if record.offset >= first)


def record_at(client: Client, partition: TopicPartition, offset: int) -> Record | None:
    """Return the record at an offset, or None if the partition does not hold it."""
    try:
        data = client.fetch(partition, offset, max_bytes=_ONE_BATCH)
    except InvalidError:  # the offset is out of range, or there is no such partition
        return None
    found = (
        record
        for position, header in walk(data)
        if not header.is_control
        for record in decode_batch(data, position)
    )
    return next((record for record in found if record.offset == offset), None)
