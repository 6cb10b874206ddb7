"""Runs a kernel on Spark streaming: packs rows by bucket, keeps the state of each bucket, emits rows.

`pack` cuts the rows by bucket. Spark's `transformWithStateInPandas` calls `KernelSteps` once for each bucket and
batch and keeps the bucket's state. The output leaves as Arrow columns in a pandas frame, without copying; output
with types that pandas would convert value by value leaves packed, and `unpack` makes rows of it. See `packing`,
`bucket_state`, `run_cache` and `output_frames`.

A batch that is run again after a crash gives the same result: its rows arrive in the same order, and its
processing time is the one that Spark logged before it started the batch. That needs Spark's processing-time mode,
in which Spark runs batches without data endlessly, unless that is switched off and the source starts a batch when
a timer is due (`source.wake_ups`). A kernel that does not use the processing time is run without it.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
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
from headwater.process.watermarks import BoundedDisorder, PartitionMark, Watermarks
from headwater.spark.kernels.bucket_state import BucketState
from headwater.spark.kernels.frames import empty_like, from_bytes, in_pieces, slices, spark_schema
from headwater.spark.kernels.output_frames import OutputShape
from headwater.spark.kernels.packing import NO_TIME, PACKED, RESULT, STATISTICS, Packing, buckets_of, pack, unpack
from headwater.spark.kernels.processor import LazyProcessor
from headwater.spark.kernels.query_context import current_query
from headwater.spark.kernels.run_cache import RunCache
from headwater.spark.kernels.step_reports import StepReporter
from headwater.spark.kernels.times import Times
from headwater.spark.kernels.watermark_sources import all_started, by_input, next_idle
from headwater.spark.session.workers import freeze_imports

END = 2**62
"""The watermark after all events, which a batch query reaches when it has read its input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on the memory of a task.

    `buckets` defaults to the number of Spark's shuffle partitions, which Spark fixes with the first checkpoint.
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
    times_in: Mapping[str, str] = MappingProxyType({}),
    report_always: bool = False,
    kind: str = "windowed",
) -> DataFrame:
    """Return the output of a kernel for rows, with one state for each value of `by`.

    A batch query has all its rows at once: one step processes them, the next advances event time to the end.

    `times_in` names output columns for the `watermark` and the `clock` at which each row was emitted, for the next
    kernel; with `report_always` each bucket also emits a row of nulls per batch that carries only these. Facts and
    late rows name the operator by its `kind`.
    """
    _check_columns(rows, by, times)
    shared = RunCache(uuid.uuid4().hex)
    arriving = empty_like(rows.schema)
    packing = Packing(
        kernel=kernel,
        schema=arriving.schema,
        by=tuple(by),
        buckets=limits.buckets,
        rows_max=limits.payload_rows,
        shared=shared,
        event_time=times.event_time,
        watermark=times.watermark,
        clock=times.clock,
        source=times.source,
    )
    raw = arriving.drop(packing.hints)
    combined = kernel.combine(raw, Now())
    initial = kernel.initial()
    output = kernel.step(initial, combined, Now()).output
    context = current_query()
    reporter = StepReporter(context.spool, context.name_operator(kind), tuple(by))
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
        report_always=report_always,
    )
    mode = "ProcessingTime" if work.uses_clock else "None"
    context.clocks += work.uses_clock
    schema = spark_schema(output)
    for name in times_in.values():
        schema = StructType([*schema.fields]).add(name, LongType())
    leaves_packed = not all(_is_plain(field.dataType) for field in schema.fields)
    arrow = to_arrow_schema(schema, timezone="UTC")
    processor = LazyProcessor(KernelSteps(work, reporter, OutputShape(arrow, dict(times_in), leaves_packed)))
    # By position: `mapInArrow` reads a dot in a name as a struct's field.
    numbered = rows.toDF(*(f"_{number}" for number in range(len(rows.columns))))
    packed = numbered.mapInArrow(pack(packing), PACKED).groupBy(F.col("bucket"))
    if not leaves_packed:
        return packed.transformWithStateInPandas(processor, schema, "append", mode)
    results = packed.transformWithStateInPandas(processor, RESULT, "append", mode)
    return results.mapInArrow(unpack(arrow, times_in), schema)


def _check_columns(rows: DataFrame, by: Sequence[str], times: Times) -> None:
    needed = [*by, *filter(None, (times.event_time, times.watermark, times.clock, times.source))]
    missing = [name for name in needed if name not in rows.columns]
    if missing:
        raise InvalidError(
            f"cannot run a kernel: there is no column {', '.join(map(repr, missing))}; the rows have: "
            f"{', '.join(rows.columns)}"
        )


def _is_plain(kind: DataType) -> bool:
    """Return whether pandas passes a column of this type through unchanged."""
    return isinstance(kind, NumericType | StringType | BinaryType | BooleanType)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelConfig:
    """The arguments of a bucket's steps; rows have the schema `raw`, and that of `nothing` once combined."""

    kernel: Kernel
    initial: State
    times: Times
    limits: Limits
    shared: RunCache
    raw: pl.Schema
    nothing: pl.DataFrame
    bounded: bool
    report_always: bool

    @property
    def uses_clock(self) -> bool:
        """True if the processing time is that of Spark's batches."""
        return self.times.processing_time and self.times.clock is None and not self.bounded


class SourceReport(Protocol):
    """The last row of a source's task: its times, where it has them."""

    source: int
    high: int
    low: int
    watermark: int
    clock: int


class KernelSteps:
    """Runs a kernel for one bucket after another, with the bucket's state and times."""

    def __init__(self, work: KernelConfig, reporter: StepReporter, shape: OutputShape) -> None:
        self._work = work
        self._shape = shape
        self._kernel = work.kernel
        self._reporter = reporter
        self._saved_watermark = False

    def open(self, handle: Any, manifest: Any, pieces: Any) -> None:
        freeze_imports()
        self._handle = handle
        self._bucket = BucketState(manifest, pieces, self._work.shared)

    def take_rows(self, bucket: int, frames: Iterator[Any], timers: Any) -> Iterator[pd.DataFrame]:
        """Run a step with the rows at the old watermark, then one without rows at the new watermark.

        All output carries the new watermark. The next operator advances to it after it has processed the rows of
        the batch, so none of them is late, and it does not have to wait for the next batch that has output.
        """
        arrived: list[Any] = [row for frame in frames for row in frame.itertuples(index=False)]
        arrived.sort(key=lambda row: (row.source, row.seq))
        reports = [row for row in arrived if row.seq == STATISTICS]
        state, notes = self._bucket.load(self._work.initial)
        self._check_buckets(notes)
        before = notes.get("watermark", BEGINNING)
        started = int(notes.get("clock", 0))
        clock = self._clock(notes, reports, timers)
        after = END if self._work.bounded else advance(notes, reports, self._work.times, clock)
        notes["watermark"] = after
        wake_up = notes.get("wake_up")
        if self._work.times.clock is not None:  # A manual clock may jump over timers.
            while wake_up is not None and started < wake_up < clock:
                now, started = Now(watermark=before, processing_time=wake_up), wake_up
                step = self._step(bucket, state, self._work.nothing, now)
                state, wake_up = step.state, step.wake_up
                yield from self._results(step.output, replace(now, watermark=after))
        now = Now(watermark=before, processing_time=clock)
        payloads = [row.payload for row in arrived if row.payload is not None]
        for number, some in enumerate(self._pieces(payloads, now)):
            if number:  # The changes of the previous piece are read faster from a run.
                state = {name: table.sealed() for name, table in state.items()}
            step = self._step(bucket, state, some, now)
            state, wake_up = step.state, step.wake_up
            yield from self._results(step.output, replace(now, watermark=after))
        if after > before or (wake_up is not None and wake_up <= clock):
            now = Now(watermark=after, processing_time=clock)
            step = self._step(bucket, state, self._work.nothing, now)
            state, wake_up = step.state, step.wake_up
            yield from self._results(step.output, replace(now, watermark=after))
        if self._work.report_always:
            yield self._shape.times_row(after, clock)
        self._finish(bucket, state, notes, wake_up)

    def take_timer(self, bucket: int, timers: Any) -> Iterator[pd.DataFrame]:
        """Run a step without rows, for which the kernel had set a timer."""
        state, notes = self._bucket.load(self._work.initial)
        clock = self._clock(notes, (), timers)
        notes["watermark"] = watermark = advance(notes, (), self._work.times, clock)
        notes.pop("timer", None)
        now = Now(watermark=watermark, processing_time=clock)
        step = self._step(bucket, state, self._work.nothing, now)
        yield from self._results(step.output, now)
        self._finish(bucket, step.state, notes, step.wake_up)

    def _check_buckets(self, notes: dict[str, Any]) -> None:
        """Raise if the number of buckets has changed: keys would be looked up in the wrong buckets."""
        requested = buckets_of(TaskContext.get(), self._work.limits.buckets)
        buckets = notes.setdefault("buckets", requested)
        if buckets != requested:
            raise InvalidError(
                f"cannot continue with this state: it was written with {buckets} buckets, not {requested}; "
                "keep the number, or start with a new checkpoint"
            )

    def _step(self, bucket: int, state: State, rows: pl.DataFrame, now: Now) -> KernelStep:
        step = self._kernel.step(state, rows, now)
        self._reporter.add(bucket, step, rows.height)
        return step

    def _clock(self, notes: dict[str, Any], reports: Sequence[SourceReport], timers: Any) -> int:
        """Return the processing time, which never goes back."""
        clock = int(notes.get("clock", 0))
        if self._work.times.clock is not None:
            clock = max([clock, *(int(row.clock) for row in reports if row.clock != NO_TIME)])
        elif self._work.times.processing_time and not self._work.bounded:
            clock = max(clock, timers.getCurrentProcessingTimeInMs() * 1000)
        notes["clock"] = clock
        return clock

    def _pieces(self, payloads: Sequence[bytes], now: Now) -> Iterator[pl.DataFrame]:
        """Unpack the rows into pieces of bounded length, all combined."""
        return in_pieces((self._combined(from_bytes(payload), now) for payload in payloads), self._step_rows)

    @property
    def _step_rows(self) -> int:
        return max(self._work.limits.step_rows, self._work.limits.payload_rows)

    def _combined(self, rows: pl.DataFrame, now: Now) -> pl.DataFrame:
        # Rows from a machine that did not know the watermark are not combined yet.
        is_raw = rows.schema == self._work.raw and rows.schema != self._work.nothing.schema
        return self._kernel.combine(rows, now) if is_raw else rows

    def _results(self, output: pl.DataFrame, now: Now) -> Iterator[pd.DataFrame]:
        for piece in slices(output, self._work.limits.payload_rows):
            yield self._shape.results(piece, now)

    def _finish(self, bucket: int, state: State, notes: dict[str, Any], wake_up: int | None) -> None:
        notes["wake_up"] = wake_up
        if self._work.uses_clock:
            times = self._work.times
            idle = next_idle(notes, times.inputs, times.idle_after, notes["clock"])
            self._set_timer(notes, min((at for at in (wake_up, idle) if at is not None), default=None))
        self._reporter.report(bucket, self._bucket.save(state, notes), notes)
        if not self._saved_watermark:  # Once a task: all buckets have the same watermark.
            task = TaskContext.get()
            batch = task.getLocalProperty("streaming.sql.batchId") if task is not None else None
            if batch is not None:
                self._work.shared.note_watermark(int(batch), notes["watermark"])
            self._saved_watermark = True

    def _set_timer(self, notes: dict[str, Any], wake_up: int | None) -> None:
        """Keep one timer, at the first millisecond at which the kernel needs a step or a source becomes idle."""
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
"""The name of the only source if tasks are not partitions."""


def advance(notes: dict[str, Any], reports: Sequence[SourceReport], times: Times, clock: int) -> int:
    """Return the watermark after a batch, from the saved state of the source partitions and their reports."""
    idle_after = None if times.idle_after is None else f"{times.idle_after} microseconds"
    has_watermark = times.watermark is not None
    bounded = BoundedDisorder(f"{times.delay} microseconds" if times.delay and not has_watermark else None)
    estimate = bounded if has_watermark or times.estimate is None else times.estimate
    marks = Watermarks(
        estimate=by_input(times.estimates, estimate) if times.estimates else estimate,
        idle_after=idle_after,
        partitions={name: PartitionMark(**mark) for name, mark in notes.get("sources", {}).items()},
        watermark=int(notes.get("watermark", BEGINNING)),
    )
    latest: dict[str, int] = {}
    lowest: dict[str, int] = {}
    for row in reports:
        name = str(row.source) if times.by_partition or times.source is not None else EVERY_SOURCE
        time = int(row.watermark if has_watermark else row.high)
        if time != NO_TIME:
            latest[name] = max(time, latest.get(name, time))
            lowest[name] = min(int(row.low), lowest.get(name, int(row.low)))
    marks = marks.observe(latest, clock, lowest)
    notes["sources"] = {name: asdict(mark) for name, mark in marks.partitions.items()}
    if not all_started(notes, times.inputs, times.idle_after, clock):
        return int(notes.get("watermark", BEGINNING))
    return marks.watermark
