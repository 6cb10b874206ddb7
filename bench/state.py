"""Stateful processing: `hw.windowed` compared with Spark's own aggregation, transformWithState, and Flink SQL.

./dev bench state [--keys 1000,100000] [--events N] [--kinds sum,window] [--rounds N] [--bare] [--per-key]
                  [--flink [PYTHON]] [--growth] [--write]

A running sum (one global window, a pane in every batch) and a tumbling window (a pane when the watermark passes
its end) over string keys. Each query first processes large micro-batches that fill the state, then small ones of
10,000 rows over the existing state. The sides take turns; compare ratios only within one run. On a busy machine,
compare the CPU seconds.

`--bare` adds minimal kernels. Per-key transformWithState is slow: it gets a hundredth of the events. Flink is
installed from PyPI into ~/.cache/headwater unless PYTHON is a Python that has it; its rows come from its own
generator, and only the large batches can be compared. `--write` updates docs/benchmarks/state.md, replacing
earlier rows with the same keys.

`--growth` instead measures only Headwater with 100 k keys and then with 10 M keys, to show how it scales.
"""

import argparse
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import _flink
from _kernels import WINDOW, RunningSum, WindowSum
from _report import machine
from pyspark.sql import Row
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming import StatefulProcessor

import headwater as hw
from headwater.spark.kernels.runner import run_kernel
from headwater.spark.kernels.times import Times
from headwater.spark.session.session import spark_session
from headwater.spark.source.decoding import EVENT_TIME_KEY

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "docs" / "benchmarks" / "state.md"
LARGE_BATCHES, SMALL_BATCHES, SMALL_ROWS = 4, 8, 10_000
FILES = 2
EVENTS_MIN = 2_000_000
KEYS = [1000, 100_000, 1_000_000]
OURS, PLAIN, NATIVE, BARE = "Headwater", "Headwater, no panes", "Spark", "bare kernel"
PER_KEY, FLINK = "transformWithState", "Flink SQL"
GROWN = "Headwater, vs. 100 k keys"


class PerKey(StatefulProcessor):
    """A running sum with transformWithState: a state value and a Python call for each key."""

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
Side = tuple[Build, str]


def ours(kind: str) -> Build:
    """Return the query as a user writes it."""
    total = {"v": hw.sum("v")}
    if kind == "sum":
        operator = hw.windowed(what=total, where=hw.Global(), when=hw.EveryBatch(), how=hw.ACCUMULATING, by=["k"])
    else:
        operator = hw.windowed(what=total, where=hw.Tumbling("1 minute"), when=hw.AfterWatermark(), by=["k"])

    return _on_declared_rows(operator)


def plain(kind: str) -> Build:
    """Return the query as a user writes it to get only the newest results, without panes."""
    where = hw.Global() if kind == "sum" else hw.Tumbling("1 minute")
    return _on_declared_rows(hw.windowed(what={"v": hw.sum("v")}, where=where, by=["k"]))


def _on_declared_rows(operator: Build) -> Build:
    """Apply an operator to rows whose event time is declared as a topic's is."""

    def build(stream: Any) -> Any:
        rows = stream.withColumn("at", F.timestamp_micros("at"))
        return rows.withMetadata("at", {EVENT_TIME_KEY: True}).transform(operator)

    return build


def native(kind: str) -> Side:
    """Return Spark's own aggregation, with the output mode it needs."""
    if kind == "sum":
        return lambda s: s.groupBy("k").agg(F.sum("v")), "update"

    def build(stream: Any) -> Any:
        rows = stream.withColumn("time", F.timestamp_micros("at")).withWatermark("time", "0 seconds")
        return rows.groupBy("k", F.window("time", "60 seconds")).agg(F.sum("v"))

    return build, "append"


def bare(kind: str) -> Build:
    if kind == "sum":
        return lambda s: run_kernel(s.select("k", "v"), RunningSum(), by=["k"])
    return lambda s: run_kernel(s, WindowSum(), by=["k"], times=Times(event_time="at"))


def per_key(stream: Any) -> Any:
    return stream.groupBy("k").transformWithState(PerKey(), "k string, v double", "append", "None")


def sides(kind: str, keys: int, arguments: Any) -> dict[str, Side]:
    """Return each side's query with its output mode."""
    found: dict[str, Side] = {OURS: (ours(kind), "append"), NATIVE: native(kind)}
    if keys < 10**6:  # With many keys it performs as Spark's own operator does.
        found[PLAIN] = (plain(kind), "update")
    if arguments.bare:
        found[BARE] = (bare(kind), "append")
    if arguments.per_key and kind == "sum" and keys <= 100_000:
        found[PER_KEY] = (per_key, "append")
    return found


def make_input(spark: Any, folder: Path, keys: int, events: int) -> int:
    """Write files for large batches, then small ones; event time passes through two windows in each part."""
    batch = events // LARGE_BATCHES
    rows = 0
    for number in range(LARGE_BATCHES + SMALL_BATCHES):
        size = batch if number < LARGE_BATCHES else SMALL_ROWS
        key = F.pmod(F.xxhash64(F.lit(number), "id"), F.lit(keys))
        # The large batches contain every key, so that the state is complete when the small batches start.
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
    """Return the CPU seconds used by this process and its descendants: Java and the Python workers."""
    children: dict[int, list[int]] = {}
    used: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # The process has ended meanwhile.
        process = int(path.parent.name)
        children.setdefault(int(fields[1]), []).append(process)
        used[process] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    total, waiting = 0.0, [os.getpid()]
    while waiting:
        process = waiting.pop()
        total += used.get(process, 0.0)
        waiting += children.get(process, [])
    return total


@dataclass(frozen=True, slots=True)
class Measured:
    """The results of a query."""

    rate: float
    """Rows per second in the large batches, without the first."""
    small_s: float
    """Median duration of a small batch."""
    cpu_per_million: float
    """CPU seconds per million rows in the large batches."""
    cpu_small_s: float
    """CPU seconds per small batch."""


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
    shutil.rmtree(checkpoint, ignore_errors=True)  # Spark may still be cleaning up in it.
    large_rows = sum(p.numInputRows for p in large) / 1e6
    return Measured(
        rate,
        median(small) if small else float("nan"),
        (marks[-2] - marks[1]) / large_rows,
        (marks[-1] - marks[-2]) / max(1, len(progress) - LARGE_BATCHES),
    )


def main() -> None:
    arguments = parse()
    lines: list[str] = []
    python = arguments.flink if arguments.flink != "" else _flink.environment()
    with (
        tempfile.TemporaryDirectory() as folder,
        spark_session("bench", master="local[2]", log_file=Path(folder) / "spark.log") as spark,
    ):
        warm_up(spark, Path(folder) / "warm", arguments.kinds)
        print("\n".join(HEAD), flush=True)
        if arguments.growth:
            lines = growth(spark, Path(folder), arguments.kinds)
        for keys in () if arguments.growth else arguments.keys:
            events = max(arguments.events, 2 * keys)
            path = Path(folder) / f"in-{keys}"
            make_input(spark, path, keys, events)
            for kind in arguments.kinds:
                lines += report(spark, path, (kind, keys, events), sides(kind, keys, arguments), arguments, python)
            subprocess.run(["rm", "-rf", str(path)], check=True)
    if arguments.write:
        write(lines)


def warm_up(spark: Any, path: Path, kinds: list[str]) -> None:
    """Let the JVM compile its hot code and start the workers."""
    make_input(spark, path, 10_000, 400_000)
    for kind in kinds:
        for build, mode in ((ours(kind), "append"), native(kind), (plain(kind), "update")):
            measure(spark, path, build, mode, LARGE_BATCHES + SMALL_BATCHES)


def growth(spark: Any, folder: Path, kinds: list[str]) -> list[str]:
    """Compare Headwater with many keys and with fewer, in one run."""
    found: dict[tuple[str, int], Measured] = {}
    for keys in (10**5, 10**7):
        path = folder / f"in-{keys}"
        make_input(spark, path, keys, max(EVENTS_MIN, 2 * keys))
        rounds = range(1 if keys > 10**6 else 3)  # Short runs vary more.
        for kind in kinds:
            some = [measure(spark, path, ours(kind), "append", LARGE_BATCHES + SMALL_BATCHES) for _ in rounds]
            found[kind, keys] = middle(some)
        subprocess.run(["rm", "-rf", str(path)], check=True)
    lines = [_row((kind, 10**7, GROWN), found[kind, 10**7], found[kind, 10**5]) for kind in kinds]
    print("\n".join(lines), flush=True)
    return lines


def report(
    spark: Any,
    path: Path,
    what: tuple[str, int, int],
    some: dict[str, Side],
    arguments: Any,
    python: str | None,
) -> list[str]:
    kind, keys, events = what
    measured: dict[str, list[Measured]] = {name: [] for name in some}
    for _ in range(arguments.rounds):
        for name, (build, mode) in some.items():
            if name == PER_KEY:
                measured[name].append(
                    measure(spark, a_hundredth(spark, path, events), build, mode, 2 * LARGE_BATCHES)
                )
            else:
                measured[name].append(measure(spark, path, build, mode, LARGE_BATCHES + SMALL_BATCHES))
    base = middle(measured[NATIVE])
    lines = []
    for name, samples in measured.items():
        lines.append(_row((kind, keys, name), middle(samples), base))
        print(lines[-1], flush=True)
    if python is not None:
        nothing = float("nan")
        rate = _flink.rows_per_second(python, keys, events, kind)
        lines.append(_row((kind, keys, FLINK), Measured(rate, nothing, nothing, nothing), base))
        print(lines[-1], flush=True)
    return lines


def _row(name: tuple[str, int, str], found: Measured, base: Measured) -> str:
    cells = [f"{found.rate:,.0f}", f"{found.rate / base.rate:.3g}"]
    if name[2] in (PER_KEY, FLINK):
        cells += [""] * 6
    else:
        cells += [f"{found.cpu_per_million:.1f}", f"{base.cpu_per_million / found.cpu_per_million:.2f}"]
        cells += [f"{found.small_s:.2f}", f"{base.small_s / found.small_s:.2f}"]
        cells += [f"{found.cpu_small_s:.2f}", f"{base.cpu_small_s / found.cpu_small_s:.2f}"]
    return f"| {name[0]} | {name[1]:,} | {name[2]} | {' | '.join(cells)} |"


def a_hundredth(spark: Any, path: Path, events: int) -> Path:
    """Return a folder with a hundredth of the events."""
    small = path.with_name(f"{path.name}-small")
    if not small.exists():
        some_rows = spark.read.parquet(str(path)).limit(events // 100)
        some_rows.repartition(2 * FILES * LARGE_BATCHES).write.parquet(str(small))
    return small


def middle(samples: list[Measured]) -> Measured:
    return Measured(*(median(getattr(s, name) for s in samples) for name in Measured.__slots__))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=lambda t: [int(n) for n in t.split(",")], default=KEYS)
    parser.add_argument("--events", type=int, default=EVENTS_MIN, help="minimum; there are at least two per key")
    parser.add_argument("--kinds", type=lambda t: t.split(","), default=["sum", "window"])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--per-key", action="store_true")
    parser.add_argument("--flink", metavar="PYTHON", nargs="?", const="")
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--write", action="store_true")
    return parser.parse_args()


_COLUMNS = ("state", "keys", "side", "large batches, rows/s", "ratio", "CPU s per million rows", "ratio",
            "batch of 10 k rows, s", "ratio", "CPU s", "ratio")  # fmt: skip
HEAD = [f"| {' | '.join(_COLUMNS)} |", "|---|--:|---|" + "--:|" * (len(_COLUMNS) - 3)]


def write(lines: list[str]) -> None:
    """Replace the page's rows of the measured states and keys, and keep the other rows."""
    known = REPORT.read_text().splitlines() if REPORT.exists() else []
    rows = {_named(line): line for line in known if line.startswith(("| sum |", "| window |"))}
    measured = {_named(line)[:2] for line in lines if _named(line)[2] != GROWN}
    rows = {name: line for name, line in rows.items() if name[2] == GROWN or name[:2] not in measured}
    rows |= {_named(line): line for line in lines}
    table = [*HEAD, *(rows[name] for name in sorted(rows, key=lambda name: name[:2]))]
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(
        "\n".join([*INTRODUCTION.format(machine=machine()).splitlines(), "", *table, "", *verdicts(rows)]) + "\n"
    )


def _named(line: str) -> tuple[str, int, str]:
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    return cells[0], int(cells[1].replace(",", "")), cells[2]


INTRODUCTION = """# Stateful processing

Measured by `./dev bench state` on {machine}. Spark has two cores, state is in RocksDB, and the sides take turns in
one run. *Headwater* is `hw.windowed` with panes: the running sum is one global window with a pane for every batch,
the window is a minute long with a pane when the watermark passes its end. *Headwater, no panes* is `hw.windowed`
without `when`, `how` and `lateness`, which runs on Spark's own operator. *Spark* is Spark's own aggregation,
`groupBy().agg()`; a ratio above 1 is faster than it. *transformWithState* calls Python for each key. A large batch
is a quarter of the events; there are two million events, or two per key if that is more. *Headwater, vs. 100 k
keys* is a separate run (`--growth`): its ratios compare Headwater with itself at 100 k keys, measured just
before."""


def verdicts(rows: dict[tuple[str, int, str], str]) -> list[str]:
    """Return the goals and whether they are reached."""

    def cell(kind: str, keys: int, side: str, column: int) -> float | None:
        line = rows.get((kind, keys, side))
        text = "" if line is None else line.strip("|").split("|")[column].strip()
        return float(text.replace(",", "")) if text else None

    def over(a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None else a / b

    goals: list[tuple[str, float | None, float]] = []
    for kind in ("sum", "window"):
        rate = {(keys, side): cell(kind, keys, side, 3) for keys in (1000, 10**5, 10**6, 10**7)
                for side in (OURS, PLAIN, NATIVE, PER_KEY, FLINK)}  # fmt: skip
        goals += [
            (f"{kind}: {keys:,} keys, {side} vs. Spark", over(rate[keys, side], rate[keys, NATIVE]), goal)
            for keys, side, goal in ((1000, OURS, 1.0), (1000, PLAIN, 1.0), (10**5, OURS, 1.0), (10**6, OURS, 2.5))
        ]
        goals.append(
            (f"{kind}: 1 M keys, Headwater vs. Flink SQL", over(rate[10**6, OURS], rate[10**6, FLINK]), 1.5)
        )
        if kind == "sum":
            per_key_ratio = over(rate[10**5, OURS], rate[10**5, PER_KEY])
            goals.append(("sum: 100 k keys, Headwater vs. transformWithState", per_key_ratio, 50))
        goals.append((f"{kind}: 10 k rows with 10 M keys, Headwater vs. Spark", cell(kind, 10**7, OURS, 8), 1.0))
        goals.append((f"{kind}: rows/s with 10 M keys vs. 100 k keys", cell(kind, 10**7, GROWN, 4), 0.5))
    lines = ["| goal | at least | measured | |", "|---|--:|--:|---|"]
    for name, found, goal in goals:
        if found is not None:
            lines.append(f"| {name} | {goal:g} | {found:.3g} | {'ok' if found >= goal else '**missed**'} |")
    return lines


if __name__ == "__main__":
    main()
