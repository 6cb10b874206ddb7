"""Pack rows for the shuffle: one binary Arrow value for each bucket, unpacked to rows after the operator.

Spark's shuffle handles rows one by one; with packed rows it handles a few large values. A key's bucket is its hash
modulo the number of buckets, and both are fixed with the first checkpoint. Every task sends a last row to every
bucket, with the highest and the lowest event time that it read. So each bucket is called in every batch that has
tasks, and all buckets know the same times.

A task's rows reach a bucket in the order of `seq`, so that a batch that is run again gives the same result.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from pyspark import TaskContext

from headwater.process.kernel import Kernel, Now
from headwater.process.table import key_hash
from headwater.spark.kernels.frames import as_schema, from_arrow, in_pieces, slices, to_arrow, to_bytes
from headwater.spark.kernels.run_cache import RunCache
from headwater.spark.session.workers import freeze_imports

PACKED = "bucket int, source int, seq int, high long, low long, watermark long, clock long, payload binary"
RESULT = "watermark long, clock long, payload binary"

_PACKED = pa.schema(
    [
        ("bucket", pa.int32()),
        ("source", pa.int32()),
        ("seq", pa.int32()),
        ("high", pa.int64()),
        ("low", pa.int64()),
        ("watermark", pa.int64()),
        ("clock", pa.int64()),
        ("payload", pa.binary()),
    ]
)

STATISTICS = -1
"""The `seq` of a task's last row, which carries times and no payload."""

NO_TIME = -(2**63)
"""Stands for null in the columns of times: pandas would convert a column with nulls to floats."""

BUCKETS, BUCKETS_MAX = 8, 64
"""The number of buckets if Spark's number of partitions is unknown, and the maximum."""

_TIMES = ("high", "low", "watermark", "clock")

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """The arguments of `pack`, for rows whose columns are those of `schema` in its order, whatever their names.

    The columns of times are optional and hold microseconds.

    A task is one source of rows, unless a column `source` names the source of each row.
    """

    kernel: Kernel
    schema: pl.Schema
    by: tuple[str, ...]
    buckets: int | None
    rows_max: int
    shared: RunCache
    event_time: str | None = None
    watermark: str | None = None
    clock: str | None = None
    source: str | None = None

    @property
    def hints(self) -> tuple[str, ...]:
        """Columns that the runner reads and the kernel does not get."""
        return tuple(name for name in (self.watermark, self.clock, self.source) if name is not None)


def pack(packing: Packing) -> Callable[[Batches], Batches]:
    """Make the function for `mapInArrow` that packs rows."""

    def cut(batches: Batches) -> Batches:
        freeze_imports()
        task = TaskContext.get()
        assert task is not None
        labels = bucket_labels(buckets_of(task, packing.buckets))
        source = task.partitionId()
        watermark = packing.shared.watermark_before(_batch_of(task))
        highs: list[tuple[int, dict[str, int | None]]] = []
        for seq, rows in enumerate(_gather(batches, packing)):
            highs += _times(rows, packing, source)
            yield _cut(_events(rows, packing), packing, labels, source, seq, watermark)
        for reporting in {number for number, _ in highs} or {source}:
            yield _statistics([times for number, times in highs if number == reporting], labels, reporting)

    return cut


def buckets_of(task: TaskContext | None, requested: int | None) -> int:
    """Return the number of buckets: the requested one, or one for each partition of Spark's shuffle.

    Spark passes the number of partitions to its tasks, and keeps that of the first batch whatever a later session
    sets. So a computation can continue on a machine with more cores.
    """
    if requested is not None:
        return requested
    partitions = None if task is None else task.getLocalProperty("spark.sql.shuffle.partitions")
    return BUCKETS if partitions is None else max(1, min(int(partitions), BUCKETS_MAX))


def unpack(schema: pa.Schema, times_in: Mapping[str, str]) -> Callable[[Batches], Batches]:
    """Make the function for `mapInArrow` that unpacks the rows.

    `times_in` names columns for the `watermark` and the `clock` at which they were emitted. A value without rows
    becomes a row of nulls that carries only the times.
    """
    named = {name: what for what, name in times_in.items()}

    def open_up(batches: Batches) -> Batches:
        for batch in batches:
            for number, value in enumerate(batch.column("payload")):
                times = {name: batch.column(what)[number] for name, what in named.items()}
                if value.is_valid:
                    table = pa.ipc.open_stream(value.as_buffer()).read_all()
                    for name, time in times.items():
                        table = table.append_column(name, pa.repeat(time, table.num_rows))
                    yield from table.cast(schema).to_batches()
                else:
                    nulls = {name: times.get(name, pa.scalar(None)) for name in schema.names}
                    yield pa.RecordBatch.from_arrays(
                        [pa.array([nulls[field.name].as_py()], field.type) for field in schema], schema=schema
                    )

    return open_up


@cache
def bucket_labels(buckets: int) -> list[int]:
    """Return a number for each bucket, so that Spark's hash spreads the buckets evenly.

    Spark puts a group into partition `murmur3(label) % partitions`. The labels' hashes are all different modulo
    the number of buckets, so if the number of partitions divides it, each partition gets the same number of
    buckets.
    """
    found: dict[int, int] = {}
    label = 0
    while len(found) < buckets:
        found.setdefault(murmur3(label) % buckets, label)
        label += 1
    return [found[number] for number in range(buckets)]


def murmur3(value: int) -> int:
    """Compute Spark's `hash(int)`: 32-bit Murmur3 with seed 42, signed like a Java int, as `pmod` expects."""
    mask = 0xFFFFFFFF

    def rotate(x: int, by: int) -> int:
        return ((x << by) | (x >> (32 - by))) & mask

    k = rotate((value * 0xCC9E2D51) & mask, 15) * 0x1B873593 & mask
    h = (rotate(42 ^ k, 13) * 5 + 0xE6546B64) & mask
    h ^= 4
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & mask
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & mask
    h ^= h >> 16
    return h - (1 << 32) if h >> 31 else h


# -- the map side ---------------------------------------------------------------------------------------------


def _batch_of(task: TaskContext) -> int:
    return int(task.getLocalProperty("streaming.sql.batchId") or 0)


def _gather(batches: Batches, packing: Packing) -> Iterator[pl.DataFrame]:
    """Concatenate Spark's batches up to `rows_max` rows: combining and packing are faster on long frames."""
    names = packing.schema.names()
    frames = (as_schema(from_arrow(batch.rename_columns(names)), packing.schema) for batch in batches)
    pieces = (piece for frame in frames for piece in slices(frame, packing.rows_max))
    return in_pieces(pieces, packing.rows_max)


def _times(rows: pl.DataFrame, packing: Packing, task: int) -> list[tuple[int, dict[str, int | None]]]:
    """Return the highest times and the lowest event time of each source of these rows."""
    named = {"high": packing.event_time, "watermark": packing.watermark, "clock": packing.clock}
    parts = {task: rows}
    if packing.source is not None:
        parts = {int(number[0]): part for number, part in rows.partition_by(packing.source, as_dict=True).items()}
    found = []
    for number, part in parts.items():
        times = {w: _int(part.get_column(n).to_physical().max()) for w, n in named.items() if n is not None}
        if (low := packing.event_time or packing.watermark) is not None:
            times["low"] = _int(part.get_column(low).to_physical().min())
        found.append((number, times))
    return found


def _int(value: Any) -> int | None:
    return None if value is None else int(value)


def _events(rows: pl.DataFrame, packing: Packing) -> pl.DataFrame:
    """Return the rows for the kernel: without the hints, and without rows of nulls, which only carry times.

    Only a kernel that reports always emits such rows, and then there is a clock; otherwise they are the user's.
    """
    events = rows.drop(packing.hints)
    if packing.clock is None:
        return events
    return events.filter(~pl.all_horizontal(pl.all().is_null()))


def _cut(
    rows: pl.DataFrame, packing: Packing, labels: Sequence[int], source: int, seq: int, watermark: int | None
) -> pa.RecordBatch:
    """Pack the rows into one value for each bucket that has any."""
    if watermark is not None:
        rows = packing.kernel.combine(rows, Now(watermark=watermark))
    buckets = len(labels)
    # NumPy sorts uint8 stably with a radix sort, in linear time.
    numbers = (key_hash(rows, packing.by) % np.uint64(buckets)).astype(np.uint8)
    order = np.argsort(numbers, kind="stable")
    table = to_arrow(rows[order].rechunk())
    ends = np.cumsum(np.bincount(numbers, minlength=buckets))
    starts = np.concatenate([[0], ends[:-1]])
    full = [number for number in range(buckets) if ends[number] > starts[number]]
    payloads = [to_bytes(table.slice(starts[n], ends[n] - starts[n])) for n in full]
    return _packed([labels[n] for n in full], source, seq, {}, payloads)


def _statistics(highs: Sequence[dict[str, int | None]], labels: Sequence[int], source: int) -> pa.RecordBatch:
    times: dict[str, int | None] = {}
    for name in _TIMES:
        known = [value for some in highs if (value := some.get(name)) is not None]
        times[name] = (min if name == "low" else max)(known) if known else None
    return _packed(labels, source, STATISTICS, times, [None] * len(labels))


def _packed(
    labels: Sequence[int],
    source: int,
    seq: int,
    times: dict[str, int | None],
    payloads: Sequence[pa.Buffer | None],
) -> pa.RecordBatch:
    count = len(labels)
    values = [None if payload is None else payload.to_pybytes() for payload in payloads]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(labels, pa.int32()),
            pa.array([source] * count, pa.int32()),
            pa.array([seq] * count, pa.int32()),
            *(pa.array([_known(times.get(name))] * count, pa.int64()) for name in _TIMES),
            pa.array(values, pa.binary()),
        ],
        schema=_PACKED,
    )


def _known(time: int | None) -> int:
    return NO_TIME if time is None else time
