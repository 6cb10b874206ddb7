"""Stateful processing: our kernels against Spark's own aggregation, transformWithState per key, and Flink SQL.

./dev bench state [--keys 1000,100000] [--events N] [--kinds sum,window] [--rounds N] [--per-key] [--flink PYTHON]
                  [--write]

A running sum and a tumbling window over string keys. Each query first takes large micro-batches that fill the
state, then small ones of 10,000 rows over the state that is there; sides take turns, and only ratios within one
run mean anything. On a machine that does other things too, compare the seconds of processor time. FLINK's PYTHON
is one that has `apache-flink`; there the rows come from Flink's own generator, and only the large part can be
compared. Per-key transformWithState is slow: it gets a hundredth of the events.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import polars as pl
from pyspark.sql import Row
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming import StatefulProcessor

from headwater.process.kernel import Now, State, Step
from headwater.process.table import Table
from headwater.spark.session import spark_session
from headwater.spark.stateful import Times, run_kernel

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "docs" / "benchmarks" / "state.md"
LARGE_BATCHES, SMALL_BATCHES, SMALL_ROWS = 4, 8, 10_000
FILES = 2
WINDOW = 60_000_000
EVENTS_MIN = 2_000_000
KEYS = [1000, 100_000, 1_000_000]


@dataclass(frozen=True)
class RunningSum:
    """The total of a key, said anew for each batch that has it."""

    def initial(self) -> State:
        return {"sums": Table.empty(pl.Schema({"k": pl.String, "v": pl.Float64}), ["k"])}

    def combine(self, rows: pl.DataFrame, now: Now) -> pl.DataFrame:
        return rows.group_by("k").agg(pl.col("v").sum())

    def step(self, state: State, rows: pl.DataFrame, now: Now) -> Step:
        rows = self.combine(rows, now)
        known = state["sums"].get(rows.select("k"))
        totals = self.combine(pl.concat([known, rows]), now) if known.height else rows
        return Step({"sums": state["sums"].put(totals)}, totals)


@dataclass(frozen=True)
class WindowSum:
    """The total of a key and minute, said when the watermark has passed it."""

    def initial(self) -> State:
        schema = pl.Schema({"k": pl.String, "w": pl.Int64, "v": pl.Float64})
        return {"windows": Table.empty(schema, ["k", "w"])}

    def combine(self, rows: pl.DataFrame, now: Now) -> pl.DataFrame:
        if "w" not in rows.columns:
            rows = rows.select("k", (pl.col("at") // WINDOW * WINDOW).alias("w"), "v")
        return rows.group_by("k", "w").agg(pl.col("v").sum())

    def step(self, state: State, rows: pl.DataFrame, now: Now) -> Step:
        table = state["windows"]
        if rows.height:
            rows = self.combine(rows, now).filter(pl.col("w") + WINDOW > now.watermark)
            known = table.get(rows.select("k", "w"))
            table = table.put(self.combine(pl.concat([known, rows]), now) if known.height else rows)
        due = table.where(pl.col("w") + WINDOW <= now.watermark)
        return Step({"windows": table.drop(due.select("k", "w"))}, due)


class PerKey(StatefulProcessor):
    """Spark's way: a value of state and a call of Python for each key."""

    def init(self, handle: Any) -> None:
        self._sum = handle.getValueState("sum", "v double")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        known = self._sum.get()
        total = (known[0] if known else 0.0) + sum(row.v for row in rows)
        self._sum.update((total,))
        yield Row(k=key[0], v=total)

    def close(self) -> None:
        pass


Build = Callable[[Any], Any]


def sides(kind: str, per_key: bool) -> dict[str, tuple[Build, str]]:
    """Each side's query, with the output mode it needs."""
    if kind == "sum":
        found: dict[str, tuple[Build, str]] = {
            "ours": (lambda s: run_kernel(s.select("k", "v"), RunningSum(), by=["k"]), "append"),
            "native": (lambda s: s.groupBy("k").agg(F.sum("v")), "update"),
        }
        if per_key:
            found["per key"] = (
                lambda s: s.groupBy("k").transformWithState(PerKey(), "k string, v double", "append", "None"),
                "append",
            )
        return found
    return {
        "ours": (lambda s: run_kernel(s, WindowSum(), by=["k"], times=Times(event_time="at")), "append"),
        "native": (
            lambda s: (
                s.withColumn("time", F.timestamp_micros("at"))
                .withWatermark("time", "0 seconds")
                .groupBy("k", F.window("time", "60 seconds"))
                .agg(F.sum("v"))
            ),
            "append",
        ),
    }


def make_input(spark: Any, folder: Path, keys: int, events: int) -> int:
    """Files for large batches and then small ones; event time goes through two windows in each part."""
    batch = events // LARGE_BATCHES
    rows = 0
    for number in range(LARGE_BATCHES + SMALL_BATCHES):
        size = batch if number < LARGE_BATCHES else SMALL_ROWS
        key = F.pmod(F.xxhash64(F.lit(number), "id"), F.lit(keys))
        # All of a key's first rows are in the first batches, so that the state is full when the small ones come.
        if number < LARGE_BATCHES and events <= 2 * keys:
            key = F.pmod(F.col("id") + number * size, F.lit(keys))
        at = (F.lit(number) * WINDOW / 4 + F.col("id") * (WINDOW / 4) / size).cast("long")
        data = spark.range(size).select(
            F.concat(F.lit("user-"), key.cast("string")).alias("k"), F.rand(number).alias("v"), at.alias("at")
        )
        data.repartition(FILES).write.mode("append").parquet(str(folder))
        rows += size
        time.sleep(0.01)
    return rows


def processor_seconds() -> float:
    """What this process and all below it, Java and the workers, have used of the processors."""
    below: dict[int, list[int]] = {}
    used: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # It has ended meanwhile.
        process = int(path.parent.name)
        below.setdefault(int(fields[1]), []).append(process)
        used[process] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    total, waiting = 0.0, [os.getpid()]
    while waiting:
        process = waiting.pop()
        total += used.get(process, 0.0)
        waiting += below.get(process, [])
    return total


@dataclass(frozen=True, slots=True)
class Measured:
    """Of the large batches without the first: rows a second. Of a small one, the median: seconds. And processor
    time: of a large part's million rows, and of a small batch."""

    rate: float
    small_s: float
    cpu_per_million: float
    cpu_small_s: float


def measure(spark: Any, folder: Path, build: Build, mode: str, batches: int) -> Measured:
    """Run a query to the end of its input."""
    schema = "k string, v double, at long"
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", FILES).parquet(str(folder))
    checkpoint = tempfile.mkdtemp(prefix="bench-state-")
    query = (
        build(stream)
        .writeStream.format("noop")
        .outputMode(mode)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    marks = [processor_seconds()]
    while query.isActive and (query.lastProgress is None or query.lastProgress.batchId < LARGE_BATCHES - 1):
        time.sleep(0.05)
        if len(marks) == 1 and query.lastProgress is not None:
            marks.append(processor_seconds())
    marks.append(processor_seconds())
    query.awaitTermination()
    marks.append(processor_seconds())
    progress = [p for p in query.recentProgress if p.numInputRows]
    assert len(progress) == batches, len(progress)
    large = progress[1:LARGE_BATCHES]
    rate = sum(p.numInputRows for p in large) / (sum(p.batchDuration for p in large) / 1000)
    small = [p.batchDuration / 1000 for p in progress[LARGE_BATCHES + 1 :]]
    subprocess.run(["rm", "-rf", checkpoint], check=True)
    large_rows = sum(p.numInputRows for p in large) / 1e6
    return Measured(
        rate,
        median(small) if small else float("nan"),
        (marks[-2] - marks[1]) / large_rows,
        (marks[-1] - marks[-2]) / max(1, len(progress) - LARGE_BATCHES),
    )


FLINK = """
import json, sys, time
from pyflink.table import EnvironmentSettings, TableEnvironment
keys, events, kind = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
t = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
for key, value in {
    "parallelism.default": "2", "state.backend.type": "rocksdb", "taskmanager.numberOfTaskSlots": "2",
    "execution.checkpointing.interval": "10 s", "execution.checkpointing.dir": "file://" + sys.argv[4],
    "table.exec.mini-batch.enabled": "true", "table.exec.mini-batch.allow-latency": "2 s",
    "table.exec.mini-batch.size": "100000", "table.optimizer.agg-phase-strategy": "TWO_PHASE",
}.items():
    t.get_config().set(key, value)
t.execute_sql(f'''create table src (
    id bigint, seq bigint, v double,
    ts as to_timestamp_ltz(seq * 60000 / {events // 4}, 3), watermark for ts as ts
) with (
    'connector' = 'datagen', 'number-of-rows' = '{events}', 'rows-per-second' = '1000000000',
    'fields.id.min' = '0', 'fields.id.max' = '{keys - 1}',
    'fields.seq.kind' = 'sequence', 'fields.seq.start' = '0', 'fields.seq.end' = '{events - 1}'
)''')
t.execute_sql("create table sink (k string, v double) with ('connector' = 'blackhole')")
key = "'user-' || cast(id as string)"
if kind == "sum":
    query = f"insert into sink select {key}, sum(v) from src group by {key}"
else:
    query = '''insert into sink select k, sum(v)
        from table(tumble(table keyed, descriptor(ts), interval '1' minute))
        group by k, window_start, window_end'''
    t.execute_sql(f"create temporary view keyed as select {key} as k, v, ts from src")
began = time.time()
t.execute_sql(query).wait()
print(json.dumps(events / (time.time() - began)))
"""


def flink(python: str, keys: int, events: int, kind: str) -> float:
    """Rows a second of Flink SQL with RocksDB and mini-batches, its start included."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "flink_side.py"
        program.write_text(FLINK)
        command = [python, str(program), str(keys), str(events), kind, folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
    if done.returncode:
        sys.exit(f"Flink failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return float(json.loads(done.stdout.strip().splitlines()[-1]))


def main() -> None:
    arguments = parse()
    head = ("state", "keys", "side", "large batches, rows/s", "ratio", "processor s per million rows", "ratio",
            "batch of 10 k rows, s", "ratio", "processor s", "ratio")  # fmt: skip
    lines = [f"| {' | '.join(head)} |", "|---|--:|---|" + "--:|" * (len(head) - 3)]
    print("\n".join(lines), flush=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        spark_session("bench", master="local[2]", log_file=Path(folder) / "spark.log") as spark,
    ):
        for keys in arguments.keys:
            events = max(arguments.events, 2 * keys)
            path = Path(folder) / f"in-{keys}"
            make_input(spark, path, keys, events)
            for kind in arguments.kinds:
                some = sides(kind, arguments.per_key and keys <= 100_000)
                lines += report(spark, path, keys, events, kind, some, arguments)
    if arguments.write:
        write(lines)


def report(
    spark: Any, path: Path, keys: int, events: int, kind: str, some: dict[str, tuple[Build, str]], arguments: Any
) -> list[str]:
    measured: dict[str, list[Measured]] = {name: [] for name in some}
    for _ in range(arguments.rounds):
        for name, (build, mode) in some.items():
            if name == "per key":
                small = path.with_name(f"{path.name}-small")
                if not small.exists():
                    some_rows = spark.read.parquet(str(path)).limit(events // 100)
                    some_rows.repartition(2 * FILES * LARGE_BATCHES).write.parquet(str(small))
                measured[name].append(measure(spark, small, build, mode, 2 * LARGE_BATCHES))
            else:
                measured[name].append(measure(spark, path, build, mode, LARGE_BATCHES + SMALL_BATCHES))
    if arguments.flink:
        rate = flink(arguments.flink, keys, events, kind)
        measured["Flink SQL"] = [Measured(rate, float("nan"), float("nan"), float("nan"))]
    native = middle(measured["native"])
    lines = []
    for name, samples in measured.items():
        found = middle(samples)
        cells = [f"{found.rate:,.0f}", f"{found.rate / native.rate:.2f}"]
        if name in ("ours", "native"):
            cells += [f"{found.cpu_per_million:.1f}", f"{native.cpu_per_million / found.cpu_per_million:.2f}"]
            cells += [f"{found.small_s:.2f}", f"{native.small_s / found.small_s:.2f}"]
            cells += [f"{found.cpu_small_s:.2f}", f"{native.cpu_small_s / found.cpu_small_s:.2f}"]
        else:
            cells += [""] * 6
        lines.append(f"| {kind} | {keys:,} | {name} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return lines


def middle(samples: list[Measured]) -> Measured:
    return Measured(*(median(getattr(s, name) for s in samples) for name in Measured.__slots__))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=lambda t: [int(n) for n in t.split(",")], default=KEYS)
    parser.add_argument("--events", type=int, default=EVENTS_MIN, help="at least; there are two for each key")
    parser.add_argument("--kinds", type=lambda t: t.split(","), default=["sum", "window"])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--per-key", action="store_true")
    parser.add_argument("--flink", metavar="PYTHON")
    parser.add_argument("--write", action="store_true")
    return parser.parse_args()


def write(lines: list[str]) -> None:
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(
        "# Stateful processing\n\n"
        f"By `./dev {' '.join(['bench', 'state', *sys.argv[1:]])}` on {platform.machine()}, two cores for Spark; "
        "sides take turns in one run. More than 1 in a ratio means faster than Spark's own aggregation.\n\n"
        + "\n".join(lines)
        + "\n"
    )


if __name__ == "__main__":
    main()
