"""Rows on their way to the state: cut by bucket, one binary Arrow value for each bucket, and rows again behind it.

Spark's shuffle handles rows one by one; here it handles a few large values. A key's bucket is its hash modulo the
number of buckets, and both are fixed with the first checkpoint. Every task sends a last row to every bucket, with
the highest and the lowest event time it saw. So each bucket is called in every batch that has tasks and knows what
all know.

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
from headwater.spark.kernels.frames import from_arrow, in_pieces, slices, to_arrow, to_bytes
from headwater.spark.kernels.run_cache import RunCache
from headwater.spark.session.workers import settle

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
"""The `seq` of the row that carries no rows."""

NO_TIME = -(2**63)
"""In the columns of times, where pandas would make floats of a column with nulls."""

BUCKETS, BUCKETS_MAX = 8, 64
"""How many there are where Spark does not say how many partitions it has, and at most."""

_TIMES = ("high", "low", "watermark", "clock")

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """What a task needs to know to pack; the columns of times hold microseconds and need not be there.

    A task is one source of rows; or, with a column `source`, its rows say of which source each is.
    """

    kernel: Kernel
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
        """Columns that are for the runner alone; the kernel does not see them."""
        return tuple(name for name in (self.watermark, self.clock, self.source) if name is not None)


def pack(packing: Packing) -> Callable[[Batches], Batches]:
    """Make the function for `mapInArrow`."""

    def cut(batches: Batches) -> Batches:
        settle()
        task = TaskContext.get()
        assert task is not None
        labels = bucket_labels(buckets_of(task, packing.buckets))
        source = task.partitionId()
        watermark = packing.shared.watermark_before(_batch_of(task))
        highs: list[tuple[int, dict[str, int | None]]] = []
        for seq, rows in enumerate(_gather(batches, packing.rows_max)):
            highs += _times(rows, packing, source)
            yield _cut(_events(rows, packing), packing, labels, source, seq, watermark)
        for told in {number for number, _ in highs} or {source}:
            yield _statistics([times for number, times in highs if number == told], labels, told)

    return cut


def buckets_of(task: TaskContext | None, asked: int | None) -> int:
    """How many buckets there are: as asked, or one for each partition of Spark's shuffle.

    Spark tells its tasks the number of partitions, and keeps to that of the first batch whatever a later session
    says. So a computation may go on where there are more cores than before.
    """
    if asked is not None:
        return asked
    partitions = None if task is None else task.getLocalProperty("spark.sql.shuffle.partitions")
    return BUCKETS if partitions is None else max(1, min(int(partitions), BUCKETS_MAX))


def unpack(schema: pa.Schema, told: Mapping[str, str]) -> Callable[[Batches], Batches]:
    """Make the function for `mapInArrow` that gives the rows.

    `told` names columns for the `watermark` and the `clock` at which they came. A value without rows becomes a row
    of nulls that only tells the time.
    """
    named = {name: what for what, name in told.items()}

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
    """A number for each bucket that Spark's hash spreads evenly.

    Spark puts a group into partition `murmur3(label) % partitions`. The labels' hashes are all different modulo
    the number of buckets, so that any number of partitions that divides it gets the same number of buckets each.
    """
    found: dict[int, int] = {}
    label = 0
    while len(found) < buckets:
        found.setdefault(murmur3(label) % buckets, label)
        label += 1
    return [found[number] for number in range(buckets)]


def murmur3(value: int) -> int:
    """Spark's `hash(int)`, unsigned: 32 bits of Murmur3 with seed 42. It has the sign of a Java int for `pmod`."""
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


def _gather(batches: Batches, rows_max: int) -> Iterator[pl.DataFrame]:
    """Spark's batches in larger pieces: combining and packing pay off with length, which is bounded."""
    pieces = (piece for batch in batches for piece in slices(from_arrow(batch), rows_max))
    return in_pieces(pieces, rows_max)


def _times(rows: pl.DataFrame, packing: Packing, task: int) -> list[tuple[int, dict[str, int | None]]]:
    """The highest times of each source of these rows."""
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
    """What the kernel sees: a row of nothing but nulls only says what time it is."""
    events = rows.drop(packing.hints)
    if not packing.hints:
        return events
    return events.filter(~pl.all_horizontal(pl.all().is_null()))


def _cut(
    rows: pl.DataFrame, packing: Packing, labels: Sequence[int], source: int, seq: int, watermark: int | None
) -> pa.RecordBatch:
    """One value for each bucket that has rows."""
    if watermark is not None:
        rows = packing.kernel.combine(rows, Now(watermark=watermark))
    buckets = len(labels)
    # Of so small numbers a stable sort goes by counting.
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
