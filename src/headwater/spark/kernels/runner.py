"""Runs a kernel on Spark streaming: rows packed by bucket, state by bucket, rows again.

`pack` cuts the rows by bucket, and Spark's `transformWithStateInPandas` calls us once for each bucket and batch
and keeps the bucket's state. What the kernel says leaves as columns of Arrow in a pandas frame, which copies
nothing; what has types that pandas would take apart leaves packed, and `unpack` gives rows again. See `packing`,
`state`, `local` and `results`.

A batch that is run again after a crash gives the same result: its rows come in the same order, and the processing
time is the batch's, which Spark logs before it starts. That needs Spark's processing-time mode, in which it runs
batches without data; a kernel that does not ask for the time is run without.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

import pandas as pd
import polars as pl
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, BooleanType, DataType, LongType, NumericType, StringType, StructType

from headwater.errors import InvalidError
from headwater.process.kernel import BEGINNING, Kernel, KernelStep, Now, State
from headwater.process.watermarks import BoundedDisorder, Estimate, PartitionMark, Watermarks
from headwater.spark.kernels.bucket_state import BucketState
from headwater.spark.kernels.frames import empty_like, from_bytes, in_pieces, slices, spark_schema
from headwater.spark.kernels.output_frames import OutputShape
from headwater.spark.kernels.packing import NO_TIME, PACKED, RESULT, STATISTICS, Packing, buckets_of, pack, unpack
from headwater.spark.kernels.processor import LazyProcessor
from headwater.spark.kernels.query_context import current_query
from headwater.spark.kernels.run_cache import RunCache
from headwater.spark.kernels.step_reports import StepReporter
from headwater.spark.kernels.watermark_sources import all_heard, by_input
from headwater.spark.session.workers import settle

END = 2**62
"""The watermark behind all events, which a batch query reaches when it has read its input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Where a kernel's times come from.

    `event_time`, `watermark` and `clock` name columns of microseconds since 1970. The watermark is the least of
    all source partitions' highest event times minus `delay`, or of what `estimate` makes of their times; or, with
    a column `watermark`, what the rows say in it, or what `estimates` make of that, by the number of the input.
    A partition without rows for `idle_after` holds nothing back.
    Unless `by_partition`, all tasks are one source: of files, say, there are as many tasks as happen to be there,
    and of the buckets of an operator some may be silent for ever.
    The processing time is the batch's if `processing_time` is set; or, with a column `clock`, what the rows say. A
    row of nulls beside these only tells the time. With a column `source` the rows say of which source they are;
    see `inputs` for several inputs.
    """

    event_time: str | None = None
    by_partition: bool = True
    delay: int = 0
    estimate: Estimate | None = None
    estimates: Mapping[int, Estimate] = field(default_factory=dict)
    idle_after: int | None = None
    processing_time: bool = False
    watermark: str | None = None
    clock: str | None = None
    source: str | None = None
    inputs: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bounds the memory of a task.

    There are as many buckets as Spark has shuffle partitions unless told; Spark fixes these with the first
    checkpoint, and so are the buckets.
    """

    buckets: int | None = None
    payload_rows: int = 200_000
    step_rows: int = 1_000_000


def run_kernel(
    rows: DataFrame,
    kernel: Kernel,
    *,
    by: Sequence[str],
    times: Times = Times(),  # noqa: B008 - frozen
    limits: Limits = Limits(),  # noqa: B008 - frozen
    told: Mapping[str, str] = MappingProxyType({}),
    tell_always: bool = False,
    kind: str = "windowed",
) -> DataFrame:
    """What a kernel says of rows, with the state of equal `by` in one place.

    The rows of a batch query are all there at once: one step takes them in, the next ends event time.

    `told` names columns in which each row says at which `watermark` and `clock` it came, for a kernel behind this
    one; with `tell_always` there is also a row of nulls from each bucket and batch that only tells these. Facts
    and late rows name the operator by its `kind`.
    """
    needed = [*by, *filter(None, (times.event_time, times.watermark, times.clock, times.source))]
    missing = [name for name in needed if name not in rows.columns]
    if missing:
        raise InvalidError(
            f"cannot run a kernel: column {', '.join(map(repr, missing))} is not there; the rows have: "
            f"{', '.join(rows.columns)}"
        )
    shared = RunCache(uuid.uuid4().hex)
    packing = Packing(
        kernel=kernel,
        by=tuple(by),
        buckets=limits.buckets,
        rows_max=limits.payload_rows,
        shared=shared,
        event_time=times.event_time,
        watermark=times.watermark,
        clock=times.clock,
        source=times.source,
    )
    raw = empty_like(rows.schema).drop(packing.hints)
    combined = kernel.combine(raw, Now())
    initial = kernel.initial()
    output = kernel.step(initial, combined, Now()).output
    around = current_query()
    teller = StepReporter(around.spool, around.name_operator(kind), tuple(by))
    bounded = not rows.isStreaming
    work = KernelConfig(
        kernel=kernel,
        initial=initial,
        times=times,
        limits=limits,
        shared=shared,
        raw=raw.schema,
        nothing=combined,
        bounded=bounded,
        tell_always=tell_always,
    )
    mode = "ProcessingTime" if times.processing_time and times.clock is None and not bounded else "None"
    schema = spark_schema(output)
    for name in told.values():
        schema = StructType([*schema.fields]).add(name, LongType())
    leaves_packed = not all(_is_plain(field.dataType) for field in schema.fields)
    arrow = to_arrow_schema(schema, timezone="UTC")
    processor = LazyProcessor(KernelSteps(work, teller, OutputShape(arrow, dict(told), leaves_packed)))
    packed = rows.mapInArrow(pack(packing), PACKED).groupBy(F.col("bucket"))
    if not leaves_packed:
        return packed.transformWithStateInPandas(processor, schema, "append", mode)
    results = packed.transformWithStateInPandas(processor, RESULT, "append", mode)
    return results.mapInArrow(unpack(arrow, told), schema)


def _is_plain(kind: DataType) -> bool:
    """Whether pandas hands a column of this type through as it is."""
    return isinstance(kind, NumericType | StringType | BinaryType | BooleanType)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelConfig:
    """What a bucket's steps need to know; rows look like `raw`, and like `nothing` when they are combined."""

    kernel: Kernel
    initial: State
    times: Times
    limits: Limits
    shared: RunCache
    raw: pl.Schema
    nothing: pl.DataFrame
    bounded: bool
    tell_always: bool


class SourceReport(Protocol):
    """What a source's task said with its last row: times, where it knows them."""

    source: int
    high: int
    low: int
    watermark: int
    clock: int


class KernelSteps:
    """Runs a kernel for one bucket after another, with its state and its times."""

    def __init__(self, work: KernelConfig, teller: StepReporter, shape: OutputShape) -> None:
        self._work = work
        self._shape = shape
        self._kernel = work.kernel
        self._teller = teller
        self._noted = False

    def open(self, handle: Any, manifest: Any, pieces: Any) -> None:
        settle()
        self._handle = handle
        self._bucket = BucketState(manifest, pieces, self._work.shared)

    def take_rows(self, bucket: int, frames: Iterator[Any], timers: Any) -> Iterator[pd.DataFrame]:
        """Step with the rows at the old watermark, then without rows at the new one."""
        arrived: list[Any] = [row for frame in frames for row in frame.itertuples(index=False)]
        arrived.sort(key=lambda row: (row.source, row.seq))
        told = [row for row in arrived if row.seq == STATISTICS]
        state, notes = self._bucket.load(self._work.initial)
        self._check_buckets(notes)
        before = notes.get("watermark", BEGINNING)
        started = int(notes.get("clock", 0))
        clock = self._clock(notes, told, timers)
        after = END if self._work.bounded else advance(notes, told, self._work.times, clock)
        notes["watermark"] = after
        wake_up = notes.get("wake_up")
        if self._work.times.clock is not None:  # A manual clock may jump over what was to be done on the way.
            while wake_up is not None and started < wake_up < clock:
                now, started = Now(watermark=before, processing_time=wake_up), wake_up
                step = self._step(bucket, state, self._work.nothing, now)
                state, wake_up = step.state, step.wake_up
                yield from self._results(step.output, now)
        now = Now(watermark=before, processing_time=clock)
        payloads = [row.payload for row in arrived if row.payload is not None]
        for number, some in enumerate(self._pieces(payloads, now)):
            if number:  # What the piece before has changed is read faster from a run.
                state = {name: table.sealed() for name, table in state.items()}
            step = self._step(bucket, state, some, now)
            state, wake_up = step.state, step.wake_up
            yield from self._results(step.output, now)
        if after > before or (wake_up is not None and wake_up <= clock):
            now = Now(watermark=after, processing_time=clock)
            step = self._step(bucket, state, self._work.nothing, now)
            state, wake_up = step.state, step.wake_up
            yield from self._results(step.output, now)
        if self._work.tell_always:
            yield self._shape.told(after, clock)
        self._finish(bucket, state, notes, wake_up)

    def take_timer(self, bucket: int, timers: Any) -> Iterator[pd.DataFrame]:
        """Step without rows: the kernel had asked for it."""
        state, notes = self._bucket.load(self._work.initial)
        clock = self._clock(notes, (), timers)
        notes["watermark"] = watermark = advance(notes, (), self._work.times, clock)
        notes.pop("timer", None)
        now = Now(watermark=watermark, processing_time=clock)
        step = self._step(bucket, state, self._work.nothing, now)
        yield from self._results(step.output, now)
        self._finish(bucket, step.state, notes, step.wake_up)

    def _check_buckets(self, notes: dict[str, Any]) -> None:
        """Another number of buckets would look for keys in the wrong ones."""
        asked = buckets_of(TaskContext.get(), self._work.limits.buckets)
        buckets = notes.setdefault("buckets", asked)
        if buckets != asked:
            raise InvalidError(
                f"cannot go on with this state: it was written with {buckets} buckets, and {asked} are asked for; "
                "keep the number, or start with a new checkpoint"
            )

    def _step(self, bucket: int, state: State, rows: pl.DataFrame, now: Now) -> KernelStep:
        step = self._kernel.step(state, rows, now)
        self._teller.note(bucket, step, rows.height)
        return step

    def _clock(self, notes: dict[str, Any], told: Sequence[SourceReport], timers: Any) -> int:
        """The processing time, which never goes back."""
        clock = int(notes.get("clock", 0))
        if self._work.times.clock is not None:
            clock = max([clock, *(int(row.clock) for row in told if row.clock != NO_TIME)])
        elif self._work.times.processing_time and not self._work.bounded:
            clock = max(clock, timers.getCurrentProcessingTimeInMs() * 1000)
        notes["clock"] = clock
        return clock

    def _pieces(self, payloads: Sequence[bytes], now: Now) -> Iterator[pl.DataFrame]:
        """The rows in pieces of bounded length, all combined."""
        return in_pieces((self._combined(from_bytes(payload), now) for payload in payloads), self._step_rows)

    @property
    def _step_rows(self) -> int:
        return max(self._work.limits.step_rows, self._work.limits.payload_rows)

    def _combined(self, rows: pl.DataFrame, now: Now) -> pl.DataFrame:
        # What came from a machine that did not know the watermark has not been combined.
        is_raw = rows.schema == self._work.raw and rows.schema != self._work.nothing.schema
        return self._kernel.combine(rows, now) if is_raw else rows

    def _results(self, output: pl.DataFrame, now: Now) -> Iterator[pd.DataFrame]:
        for piece in slices(output, self._work.limits.payload_rows):
            yield self._shape.results(piece, now)

    def _finish(self, bucket: int, state: State, notes: dict[str, Any], wake_up: int | None) -> None:
        notes["wake_up"] = wake_up
        if self._work.times.processing_time and self._work.times.clock is None and not self._work.bounded:
            self._set_timer(notes, wake_up)
        self._teller.tell(bucket, self._bucket.save(state, notes), notes)
        if not self._noted:  # Once a task: all buckets come to the same watermark.
            task = TaskContext.get()
            batch = task.getLocalProperty("streaming.sql.batchId") if task is not None else None
            if batch is not None:
                self._work.shared.note_watermark(int(batch), notes["watermark"])
            self._noted = True

    def _set_timer(self, notes: dict[str, Any], wake_up: int | None) -> None:
        """Have one timer, at the first millisecond at which the kernel wants a step."""
        wanted = None if wake_up is None else -(-wake_up // 1000)
        timer = notes.get("timer")
        if wanted == timer:
            return
        if timer is not None:
            self._handle.deleteTimer(timer)
        if wanted is not None:
            self._handle.registerTimer(wanted)
        notes["timer"] = wanted


EVERY_SOURCE = "all"
"""What tasks are called where they are no partitions."""


def advance(notes: dict[str, Any], told: Sequence[SourceReport], times: Times, clock: int) -> int:
    """The watermark after a batch, from what was noted of the source partitions and what they say now."""
    idle_after = None if times.idle_after is None else f"{times.idle_after} microseconds"
    is_told = times.watermark is not None
    bounded = BoundedDisorder(f"{times.delay} microseconds" if times.delay and not is_told else None)
    estimate = bounded if is_told or times.estimate is None else times.estimate
    marks = Watermarks(
        estimate=by_input(times.estimates, estimate) if times.estimates else estimate,
        idle_after=idle_after,
        partitions={name: PartitionMark(**mark) for name, mark in notes.get("sources", {}).items()},
        watermark=int(notes.get("watermark", BEGINNING)),
    )
    latest: dict[str, int] = {}
    lowest: dict[str, int] = {}
    for row in told:
        name = str(row.source) if times.by_partition or times.source is not None else EVERY_SOURCE
        time = int(row.watermark if is_told else row.high)
        if time != NO_TIME:
            latest[name] = max(time, latest.get(name, time))
            lowest[name] = min(int(row.low), lowest.get(name, int(row.low)))
    marks = marks.observe(latest, clock, lowest)
    notes["sources"] = {name: asdict(mark) for name, mark in marks.partitions.items()}
    if not all_heard(notes, times.inputs, times.idle_after, clock):
        return int(notes.get("watermark", BEGINNING))
    return marks.watermark
