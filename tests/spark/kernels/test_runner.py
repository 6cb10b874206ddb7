"""Kernels on Spark: the same results as a plain loop over the same batches, even after kills and lost files."""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle
from pyspark.sql.functions import col

import headwater as hw
from headwater.errors import InvalidError
from headwater.process.kernel import BEGINNING, KernelStep, Now, State
from headwater.process.table import Table
from headwater.process.windows.kernel import WindowedKernel
from headwater.process.windows.windowing import Windowing
from headwater.spark.kernels.packing import NO_TIME, bucket_labels, murmur3
from headwater.spark.kernels.runner import Limits, advance, run_kernel
from headwater.spark.kernels.times import Times
from headwater.spark.kernels.watermark_sources import SOURCES_MAX

# Workers cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SCHEMA = "k string, v long, at long"
RAW = pl.Schema({"k": pl.String, "v": pl.Int64, "at": pl.Int64})
Batch = list[tuple[str | None, int, int]]


@dataclass(frozen=True)
class RunningSum:
    """Emits the new total of each key in a batch."""

    def initial(self) -> State:
        return {"sums": Table.empty(pl.Schema({"k": pl.String, "v": pl.Int64}), ["k"])}

    def combine(self, rows: pl.DataFrame, now: Now) -> pl.DataFrame:
        return rows.group_by("k").agg(pl.col("v").sum())

    def step(self, state: State, rows: pl.DataFrame, now: Now) -> KernelStep:
        totals = self.combine(
            pl.concat([state["sums"].get(rows.select("k").unique()), rows.select("k", "v")]), now
        )
        return KernelStep({"sums": state["sums"].put(totals)}, totals)


@dataclass(frozen=True)
class TumblingSum:
    """Emits the total of each window of ten once the watermark has passed it; late rows are dropped."""

    def initial(self) -> State:
        schema = pl.Schema({"k": pl.String, "window": pl.Int64, "v": pl.Int64})
        return {"windows": Table.empty(schema, ["k", "window"])}

    def combine(self, rows: pl.DataFrame, now: Now) -> pl.DataFrame:
        window = (pl.col("at") // 10 * 10).alias("window")
        return rows.with_columns(window).group_by("k", "window").agg(pl.col("v").sum())

    def step(self, state: State, rows: pl.DataFrame, now: Now) -> KernelStep:
        table = state["windows"]
        rows = rows.filter(pl.col("window") + 10 > now.watermark)
        known = table.get(rows.select("k", "window").unique())
        totals = pl.concat([known, rows]).group_by("k", "window").agg(pl.col("v").sum())
        table = table.put(totals)
        due = table.where(pl.col("window") + 10 <= now.watermark)
        wake_up = None
        return KernelStep({"windows": table.drop(due.select("k", "window"))}, due, wake_up)


@dataclass(frozen=True)
class Alarm:
    """Emits and discards the total of each key a hundred microseconds after its first row."""

    def initial(self) -> State:
        schema = pl.Schema({"k": pl.String, "v": pl.Int64, "due": pl.Int64})
        return {"waiting": Table.empty(schema, ["k"])}

    def combine(self, rows: pl.DataFrame, now: Now) -> pl.DataFrame:
        return rows.select("k", "v")

    def step(self, state: State, rows: pl.DataFrame, now: Now) -> KernelStep:
        table = state["waiting"]
        new = rows.group_by("k").agg(pl.col("v").sum()).with_columns(due=pl.lit(now.processing_time + 100))
        both = pl.concat([table.get(new.select("k")), new.select("k", "v", pl.col("due").cast(pl.Int64))])
        table = table.put(both.group_by("k").agg(pl.col("v").sum(), pl.col("due").min()))
        due = table.where(pl.col("due") <= now.processing_time)
        table = table.drop(due.select("k"))
        wake_up = table.rows.get_column("due").min()
        return KernelStep({"waiting": table}, due.select("k", "v"), wake_up)  # type: ignore[arg-type]


def frame(batch: Batch) -> pl.DataFrame:
    return pl.DataFrame(batch, schema=RAW, orient="row")


def plain(kernel: Any, batches: Sequence[Batch], *, delay: int | None = None) -> list[list[tuple[Any, ...]]]:
    """Return the output of a kernel for each batch, in a plain loop."""
    state, watermark, said = kernel.initial(), BEGINNING, []
    for batch in batches:
        step = kernel.step(state, kernel.combine(frame(batch), Now(watermark)), Now(watermark))
        rows = step.output.rows()
        if delay is not None and batch:
            watermark = max(watermark, max(at for _, _, at in batch) - delay)
            step = kernel.step(step.state, kernel.combine(frame([]), Now(watermark)), Now(watermark))
            rows += step.output.rows()
        state = step.state
        said.append(sorted(rows, key=repr))
    return said


class Stream:
    """A query over files, one batch for each file, that can be stopped and continued."""

    def __init__(self, spark: Any, folder: Path, schema: str = SCHEMA) -> None:
        self._spark, self._folder, self._schema = spark, folder, schema
        self._files = 0
        (folder / "in").mkdir(parents=True)

    def run(self, batches: Sequence[Sequence[Any]], build: Callable[[Any], Any]) -> dict[int, list[Any]]:
        """Run the query on some batches and return the output of each."""
        for batch in batches:
            names = [field.split()[0] for field in self._schema.split(", ")]
            lines = [json.dumps(dict(zip(names, row, strict=True))) for row in batch]
            path = self._folder / "in" / f"{self._files:05}.json"
            path.write_text("\n".join(lines))
            # Spark reads files in the order of their modification times, and a file as one partition.
            os.utime(path, (1_000_000_000 + self._files, 1_000_000_000 + self._files))
            self._files += 1
        found: dict[int, list[Any]] = {}

        def take(rows: Any, batch: int) -> None:
            found[batch] = sorted([tuple(row) for row in rows.collect()], key=repr)

        stream = self._spark.readStream.schema(self._schema).option("maxFilesPerTrigger", 1)
        query = (
            build(stream.json(str(self._folder / "in")))
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return found


@pytest.fixture
def stream(spark: Any, tmp_path: Path) -> Stream:
    return Stream(spark, tmp_path)


rows = st.tuples(st.sampled_from(["tea", "coffee", "a name of more than twelve letters", None]),
                 st.integers(-9, 9), st.integers(0, 100))  # fmt: skip
batches_of_rows = st.lists(st.lists(rows, min_size=1, max_size=20), min_size=1, max_size=4)


@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(batches_of_rows)
def test_a_running_sum_equals_that_of_a_loop(spark: Any, tmp_path_factory: Any, batches: list[Batch]) -> None:
    stream = Stream(spark, tmp_path_factory.mktemp("stream"))
    found = stream.run(batches, lambda s: run_kernel(s, RunningSum(), by=["k"], limits=Limits(buckets=4)))
    assert list(found.values()) == plain(RunningSum(), batches)


@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(batches_of_rows)
def test_windows_close_as_in_a_loop(spark: Any, tmp_path_factory: Any, batches: list[Batch]) -> None:
    stream = Stream(spark, tmp_path_factory.mktemp("stream"))
    times = Times(event_time="at", delay=5)
    limits = Limits(buckets=4, payload_rows=7, step_rows=5)
    found = stream.run(batches, lambda s: run_kernel(s, TumblingSum(), by=["k"], times=times, limits=limits))
    assert list(found.values()) == plain(TumblingSum(), batches, delay=5)


def test_state_continues_after_a_restart_and_without_the_local_files(stream: Stream, monkeypatch: Any) -> None:
    first: list[Batch] = [[(f"key number {n}", n, 0) for n in range(5000)] for _ in range(2)]
    second: list[Batch] = [[(f"key number {n}", 1, 0)] for n in range(3)]
    build = lambda s: run_kernel(s, RunningSum(), by=["k"], limits=Limits(buckets=2))  # noqa: E731
    found = stream.run(first, build)
    # A new call is a new operator to the workers: no local file is found, all is read from Spark's store.
    found.update(stream.run(second, build))
    assert list(found.values()) == plain(RunningSum(), [*first, *second])


def test_two_kernels_in_one_query(stream: Stream) -> None:
    batches: list[Batch] = [[("tea", 1, at), ("coffee", 2, at)] for at in (1, 12, 25, 38, 60)]

    def build(s: Any) -> Any:
        sums = run_kernel(s, TumblingSum(), by=["k"], times=Times(event_time="at"), times_in={"watermark": "seen"})
        again = sums.select("k", "v", col("window").alias("at"), "seen")
        return run_kernel(again, RunningSum(), by=["k"])

    found = stream.run(batches, build)
    assert [rows for _, rows in sorted(found.items())][-1] == [("coffee", 8), ("tea", 4)]


def test_a_kernel_after_a_kernel_uses_its_watermark(stream: Stream) -> None:
    batches: list[Batch] = [[("tea", 1, at)] for at in (1, 12, 25, 38, 60, 61)]

    def build(s: Any) -> Any:
        times = Times(event_time="at")
        sums = run_kernel(s, TumblingSum(), by=["k"], times=times, times_in={"watermark": "seen"})
        behind = Times(event_time="at", watermark="seen")
        again = sums.select("k", "v", col("window").alias("at"), "seen")
        return run_kernel(again, TumblingSum(), by=["k"], times=behind)

    found = stream.run(batches, build)
    assert [row for rows in found.values() for row in rows] == [("tea", w, 1) for w in (0, 10, 20, 30)]


def test_rows_can_carry_watermark_and_clock(spark: Any, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path, "k string, v long, at long, wm long, clock long")
    batches = [
        [("tea", 1, 5, None, 1000)],
        [(None, None, None, 9, None)],
        [(None, None, None, 10, None)],
        [("tea", 2, 5, None, None), ("tea", 4, 15, None, None)],
        [(None, None, None, 20, 1100)],
    ]
    windows = Times(event_time="at", watermark="wm", clock="clock")
    found = stream.run(batches, lambda s: run_kernel(s, TumblingSum(), by=["k"], times=windows))
    assert list(found.values()) == [[], [], [("tea", 0, 1)], [], [("tea", 10, 4)]]
    alarms = Stream(spark, tmp_path / "alarms", "k string, v long, at long, wm long, clock long")
    found = alarms.run(batches, lambda s: run_kernel(s, Alarm(), by=["k"], times=windows))
    assert list(found.values()) == [[], [], [], [], [("tea", 7)]]


def test_a_kernel_is_woken_without_rows(stream: Stream, spark: Any, tmp_path: Path) -> None:
    (tmp_path / "in" / "one.json").write_text('{"k": "tea", "v": 3, "at": 1}')
    found: list[Any] = []
    source = spark.readStream.schema(SCHEMA).json(str(tmp_path / "in"))
    query = (
        run_kernel(source, Alarm(), by=["k"], times=Times(processing_time=True), limits=Limits(buckets=2))
        .writeStream.foreachBatch(lambda rows, _: found.extend(tuple(row) for row in rows.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        deadline = time.monotonic() + 60
        while not found and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        query.stop()
    assert found == [("tea", 3)]


def test_a_repeated_batch_leaves_the_state_of_its_last_attempt(spark: Any, tmp_path: Path) -> None:
    """Spark continues with that state, so another one in the checkpoint would affect later batches."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "one.json").write_text('{"k": "tea", "v": 3, "at": 1}')
    checkpoint = tmp_path / "checkpoint"
    tries: list[list[bytes]] = []

    def write(rows: Any, batch: int) -> None:
        rows.collect()
        tries.append([path.read_bytes() for path in sorted(checkpoint.glob("state/0/*/1.changelog"))])
        if len(tries) == 1:
            raise RuntimeError("the place is away")

    def run() -> None:
        source = spark.readStream.schema(SCHEMA).json(str(tmp_path / "in"))
        rows = run_kernel(source, TumblingSum(), by=["k"], times=Times(event_time="at"), limits=Limits(buckets=2))
        options = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint))
        options.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(Exception, match="the place is away"):
        run()
    run()
    first, last = tries
    assert any(first)
    assert first != last  # runs of state have names that are never used twice
    assert [path.read_bytes() for path in sorted(checkpoint.glob("state/0/*/1.changelog"))] == last
    assert list(checkpoint.rglob("*.tmp")) == []


def test_a_lagging_partition_holds_the_watermark_and_an_idle_one_does_not() -> None:
    from headwater.spark.kernels.runner import advance

    @dataclass
    class Report:
        source: int
        high: int
        low: int = NO_TIME
        watermark: int = NO_TIME
        clock: int = NO_TIME

    times = Times(event_time="at", delay=10, idle_after=100)
    notes: dict[str, Any] = {}
    notes["watermark"] = advance(notes, [Report(0, 500), Report(1, 50)], times, 0)
    assert notes["watermark"] == 40
    notes["watermark"] = advance(notes, [Report(0, 600), Report(1, NO_TIME)], times, 99)
    assert notes["watermark"] == 40
    notes["watermark"] = advance(notes, [Report(0, 600)], times, 100)
    assert notes["watermark"] == 590
    notes["watermark"] = advance(notes, [Report(1, 60)], times, 120)
    assert notes["watermark"] == 590


@dataclass(frozen=True)
class StepSizes:
    """Emits the number of rows of each step."""

    def initial(self) -> State:
        return {"none": Table.empty(pl.Schema({"k": pl.String}), ["k"])}

    def combine(self, rows: pl.DataFrame, now: Now) -> pl.DataFrame:
        return rows.select("k", "v", "at")

    def step(self, state: State, rows: pl.DataFrame, now: Now) -> KernelStep:
        return KernelStep(state, pl.DataFrame({"n": [rows.height]}, schema={"n": pl.Int64}))


def test_a_skewed_key_does_not_make_steps_longer(stream: Stream) -> None:
    skewed: Batch = [("tea" if n % 10 else f"key {n}", n, n) for n in range(9_000)]
    limits = Limits(buckets=2, payload_rows=500, step_rows=1_500)
    [sizes] = stream.run([skewed], lambda s: run_kernel(s, StepSizes(), by=["k"], limits=limits)).values()
    given = [n for (n,) in sizes]
    assert sum(given) == 9_000
    assert max(given) <= 1_500


def test_one_huge_session_is_collected_step_by_step(stream: Stream) -> None:
    skewed: Batch = [("tea" if n % 10 else f"key {n}", n, n) for n in range(6_000)]
    what = {"all": hw.collect("v"), "n": hw.count(), "total": hw.sum("v")}
    windowing = Windowing(what=what, where=hw.Session("50 microseconds"), by=("k",), time="at")
    kernel = WindowedKernel.of(windowing, RAW)
    limits = Limits(buckets=2, payload_rows=500, step_rows=1_000)
    times = Times(event_time="at", delay=100)
    found = stream.run(
        [skewed[:3_000], skewed[3_000:], [("end", 0, 10**6)]],
        lambda s: run_kernel(s, kernel, by=["k"], times=times, limits=limits).select("k", "all", "n", "total"),
    )
    [tea] = [row for rows in found.values() for row in rows if row[0] == "tea"]
    expected = [n for n in range(6_000) if n % 10]
    assert (tea[2], tea[3], list(tea[1])) == (len(expected), sum(expected), expected)


def test_buckets_are_spread_evenly(spark: Any) -> None:
    some = [0, 1, 7, -1, 2**31 - 1, 123456]
    rows = spark.createDataFrame([(n,) for n in some], "n int").selectExpr("n", "hash(n) as h").collect()
    assert {row.n: row.h for row in rows} == {n: murmur3(n) for n in some}
    for partitions in (1, 2, 4, 8, 16):
        places = [murmur3(label) % partitions for label in bucket_labels(16)]
        assert {places.count(place) for place in range(partitions)} == {16 // partitions}


def test_a_missing_column_is_refused(spark: Any) -> None:
    with pytest.raises(InvalidError, match="there is no column 'nobody'; the rows have: k, v, at"):
        run_kernel(spark.createDataFrame([], SCHEMA), RunningSum(), by=["nobody"])


@pytest.mark.parametrize(("by_partition", "expected"), [(True, 10), (False, 50)])
def test_a_task_that_is_not_a_partition_does_not_hold_the_watermark(by_partition: bool, expected: int) -> None:
    """Two files in one batch are two tasks, and the second may never have rows again."""
    times = Times(event_time="at", by_partition=by_partition)
    notes: dict[str, Any] = {}
    reports = [SimpleNamespace(source=source, high=high, low=0) for source, high in ((0, 20), (1, 10))]
    assert advance(notes, reports, times, clock=0) == (10 if by_partition else 20)
    notes["watermark"] = 10 if by_partition else 20
    assert advance(notes, [SimpleNamespace(source=0, high=50, low=30)], times, clock=0) == expected


def test_each_input_estimates_its_own_watermark() -> None:
    def report(source: int, watermark: int, low: int) -> Any:
        return SimpleNamespace(source=source, watermark=watermark, low=low)

    times = Times(
        watermark="w", source="s", inputs=2, estimates={1: lambda seen: seen.lowest - int(seen.partition)}
    )
    notes: dict[str, Any] = {}
    assert advance(notes, [report(0, 50, 40), report(SOURCES_MAX + 3, 60, 30)], times, clock=0) == 27
    assert advance(notes, [report(SOURCES_MAX + 3, 99, 90)], times, clock=0) == 50


def test_a_silent_bucket_of_the_previous_operator_does_not_hold_the_watermark() -> None:
    """All its buckets have the same watermark, so the report of one is that of all."""
    notes: dict[str, Any] = {}
    for source, watermark in ((0, 20), (1, 70)):
        reports = [SimpleNamespace(source=source, high=NO_TIME, low=NO_TIME, watermark=watermark)]
        notes["watermark"] = advance(notes, reports, Times(watermark="w", by_partition=False), clock=0)
    assert notes["watermark"] == 70
