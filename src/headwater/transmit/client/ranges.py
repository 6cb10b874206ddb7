"""Read ranges of several partitions as Arrow batches, with one Fetch request per node at a time."""

import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa

from headwater.errors import InvalidError, UnavailableError
from headwater.record import TopicPartition
from headwater.transmit.client.client import FETCH_BYTES, Client
from headwater.transmit.client.errors import check_code
from headwater.transmit.client.fetching import Fetched, FetchLimits, fetch_request, fetched_partitions
from headwater.transmit.records.batch_header import walk
from headwater.transmit.records.control import drop_aborted
from headwater.transmit.records.to_arrow import to_arrow
from headwater.transmit.wire.codes import Code
from headwater.transmit.wire.fetch import READ_COMMITTED

_LIMITS = FetchLimits(wait_ms=0, max_bytes=4 * FETCH_BYTES, partition_max_bytes=FETCH_BYTES)
_PAUSE_S, _PAUSE_MAX_S = 0.1, 2.0

Bounds = tuple[int, int]
"""The offsets of a range, [start, end)."""


class RangeBatch(NamedTuple):
    """Records of one partition, in the order of their offsets."""

    partition: TopicPartition
    data: bytes
    """The record batches that they were decoded from, which may have further records outside of the range."""
    rows: pa.RecordBatch


def read_ranges(
    client: Client,
    ranges: Mapping[TopicPartition, Bounds],
    *,
    include_headers: bool = False,
    patience_s: float = 0.0,
) -> Iterator[RangeBatch]:
    """Yield the records of all ranges: each range in order, batches of different partitions in any order.

    Records of aborted transactions are omitted, if the client reads committed records. Raises InvalidError if an
    offset is out of range or a partition does not exist, and UnavailableError if a broker is unavailable, or a
    range extends beyond the end of its partition, for longer than `patience_s`.
    """
    left = {tp: bounds for tp, bounds in ranges.items() if bounds[0] < bounds[1]}
    failing_since: float | None = None
    pause_s = _PAUSE_S
    while left:
        try:
            for fetched, bounds in _read_once(client, left):
                failing_since, pause_s = None, _PAUSE_S
                data = drop_aborted(fetched.records, fetched.aborted)
                rows = to_arrow(data, fetched.partition, *bounds, include_headers=include_headers)
                if rows.num_rows:
                    yield RangeBatch(fetched.partition, data, rows)
        except UnavailableError:
            now = time.monotonic()
            failing_since = failing_since or now
            if now + pause_s > failing_since + patience_s:
                raise
            client.forget_leaders({tp.topic for tp in left})
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _PAUSE_MAX_S)


def _read_once(client: Client, left: dict[TopicPartition, Bounds]) -> Iterator[tuple[Fetched, Bounds]]:
    """Send one request to each leader; yield what was read, with its bounds, and remove it from the ranges."""
    requests = {
        node: fetch_request(
            {tp: left[tp][0] for tp in partitions}, _LIMITS, isolation_level=client.isolation_level
        )
        for node, partitions in client.by_leader(left).items()
    }
    committed = client.isolation_level == READ_COMMITTED
    for response in client.call_each(requests):
        results = list(fetched_partitions(response))
        is_empty = not any(fetched.records for fetched in results)
        progress = False
        for fetched in results:
            start, end = left[fetched.partition]
            attempt = f"read {fetched.partition} at offset {start}"
            check_code(fetched.error_code, attempt, errors={Code.OFFSET_OUT_OF_RANGE: InvalidError})
            if is_empty:
                # Not even the first partition has records, so compaction has removed all from here on.
                next_offset = fetched.last_stable_offset if committed else fetched.high_watermark
            else:
                next_offset = max((header.next_offset for _, header in walk(fetched.records)), default=start)
            if next_offset > start:
                progress = True
                left[fetched.partition] = (next_offset, end)
                if next_offset >= end:
                    del left[fetched.partition]
                yield fetched, (start, end)
        if not progress:
            names = [f"{fetched.partition} at offset {left[fetched.partition][0]}" for fetched in results]
            raise UnavailableError(
                f"cannot read {', '.join(names) or 'any partition'}: the broker returned no further records"
            )
