"""Transcripts on Spark: each action is a micro-batch of a real query, whose rows contain watermark and clock.

After a restart, the query has only the files of the run's folder, which include its state.
"""

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import polars as pl
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headwater.process.kernel import BEGINNING
from headwater.process.windows.kernel import WindowedKernel
from headwater.process.windows.windowing import Windowing
from headwater.spark.kernels.frames import from_arrow, spark_schema
from headwater.spark.kernels.query_context import query_context
from headwater.spark.kernels.runner import Limits, run_kernel
from headwater.spark.kernels.spool import Spool
from headwater.spark.kernels.times import Times
from headwater.spark.session.session import spark_session

WATERMARK, CLOCK = "_watermark_column", "_clock_column"
"""Columns of the input that set the watermark and the clock of a batch."""

_LIMITS = Limits(buckets=2)
"""Two buckets, because each costs time in every batch and a transcript has few keys."""


class _Crash(Exception):
    """The crash that a transcript requested."""


class SparkRunner:
    """One run of a chain of computations as a streaming query."""

    def __init__(self, spark: SparkSession, windowings: Sequence[Any], schema: pl.Schema) -> None:
        self._spark = spark
        self._folder = Path(tempfile.mkdtemp(prefix="headwater-transcript-"))
        (self._folder / "in").mkdir()
        self._spool = Spool(str(self._folder / "spool"))
        self._rows = pl.DataFrame(schema={**schema, WATERMARK: pl.Int64, CLOCK: pl.Int64})
        self._kernels: list[Any] = []
        for one in windowings:
            self._kernels.append(WindowedKernel.of(one, schema) if isinstance(one, Windowing) else one)
            schema = self._kernels[-1].output_schema
        self._actions = 0
        self._watermark = BEGINNING
        self._clock = 0
        self._crashes = False
        self._output: dict[int, pl.DataFrame] = {}
        self._query = self._start()

    def send(self, rows: pl.DataFrame) -> None:
        self._act(rows.select(*(name for name in self._rows.columns if name in rows.columns)))

    def advance_watermark(self, to: int) -> None:
        self._watermark = to
        self._act(None)

    def advance_clock(self, to: int) -> None:
        self._clock = to
        self._act(None)

    def crash(self) -> None:
        """Discard the result of the next batch after it was computed; the query is restarted."""
        self._crashes = True

    def restart(self) -> None:
        self._query.stop()
        self._query = self._start()

    def take_output(self) -> pl.DataFrame:
        output = [frame for _, frame in sorted(self._output.items())]
        self._output.clear()
        return pl.concat(output) if output else pl.DataFrame()

    def take_late(self) -> pl.DataFrame:
        """Return the late rows of the first computation."""
        files = sorted((self._folder / "spool").glob("*/*/windowed-0-*.late"))
        late = [pl.read_ipc(file.read_bytes()) for file in files]
        for file in files:
            file.unlink()
        return pl.concat(late) if late else pl.DataFrame()

    def close(self) -> None:
        self._query.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _act(self, rows: pl.DataFrame | None) -> None:
        """Give the query one file, and wait until it has processed it."""
        time = pl.DataFrame({WATERMARK: [self._watermark], CLOCK: [self._clock]}, schema_overrides=_TIMES)
        parts = [self._rows, time] if rows is None else [self._rows, rows, time]
        batch = pl.concat(parts, how="diagonal")
        path = self._folder / f"{self._actions:05}.parquet"
        batch.write_parquet(path)
        # Spark reads files in the order of their modification times.
        os.utime(path, (1_000_000_000 + self._actions,) * 2)
        path.rename(self._folder / "in" / path.name)
        self._actions += 1
        should_crash = self._crashes
        try:
            self._query.processAllAvailable()
        except StreamingQueryException:
            if not should_crash:
                raise
            self._query = self._start()
            self._query.processAllAvailable()

    def _start(self) -> StreamingQuery:
        source = self._spark.readStream.schema(spark_schema(self._rows)).option("maxFilesPerTrigger", 1)
        with query_context(self._spool):
            changes = self._chain(source.parquet(str(self._folder / "in")))
        return (
            changes.writeStream.foreachBatch(self._take)
            .outputMode("append")
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(processingTime="0 seconds")
            .start()
        )

    def _chain(self, rows: DataFrame) -> DataFrame:
        for number, kernel in enumerate(self._kernels):
            is_windowed = isinstance(kernel, WindowedKernel)
            is_last = number == len(self._kernels) - 1
            rows = run_kernel(
                rows,
                kernel,
                by=kernel.windowing.by if is_windowed else kernel.by,
                times=Times(
                    event_time=kernel.windowing.time if is_windowed else None, watermark=WATERMARK, clock=CLOCK
                ),
                limits=_LIMITS,
                times_in={} if is_last else {"watermark": WATERMARK, "clock": CLOCK},
                report_always=not is_last,
            )
        return rows

    def _take(self, rows: DataFrame, batch: int) -> None:
        found = from_arrow(rows.toArrow())
        if self._crashes:
            self._crashes = False
            raise _Crash("the transcript requested a crash here")
        if found.height:
            self._output[batch] = found


_TIMES: Any = {WATERMARK: pl.Int64, CLOCK: pl.Int64}


def make_runners() -> Callable[[Sequence[Any], pl.Schema], SparkRunner]:
    """Return a function that creates runners, in the active session or in one that ends with this process."""
    spark = SparkSession.getActiveSession()
    if spark is None:
        exit_stack = ExitStack()
        atexit.register(exit_stack.close)
        folder = exit_stack.enter_context(tempfile.TemporaryDirectory(prefix="headwater-spark-"))
        spark = exit_stack.enter_context(
            spark_session("transcripts", master="local[2]", log_file=Path(folder) / "spark.log")
        )
    running: list[SparkRunner] = []

    def make(windowings: Sequence[Any], schema: pl.Schema) -> SparkRunner:
        while running:
            running.pop().close()
        running.append(SparkRunner(spark, windowings, schema))
        return running[0]

    return make
