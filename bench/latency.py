"""Latency from append to visible result: Headwater's pipeline compared with Spark's Kafka connector and operators.

./dev bench latency [SECONDS] [--write]

Events carry the time at which they were appended. A view holds the newest event of each of a hundred keys, and a
reader that polls it measures the age of each event when it first appears. Stateless: the view holds the event
itself. Stateful: it holds the maximum in a one-minute window. The other side reads the same topic with the Kafka
connector and keeps its results in memory, without a store, so it is a lower bound rather than an equivalent. It
starts each batch as soon as the previous one ends. `--write` writes docs/benchmarks/latency.md.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles

sys.path.append(str(Path(__file__).parents[1]))  # the repository root, for `support`

from _loads import producing
from _report import machine
from _spark import OURS, THEIRS, session_with_connector, stream
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater.clock import SystemClock
from headwater.spark.pipeline.pipeline import Pipeline, PipelineSettings
from headwater.store.pipelines.facts import FactStore
from headwater.store.views import ViewStore
from support.brokers import create_topic, start_headwater

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "latency.md"
RATES = (1_000, 50_000)
SCHEMA = "key string, sent double, at timestamp"
WARM_UP_S = 10.0
FIRST_RESULT_S = 120.0
LOOK_EVERY_S = 0.005

Newest = Callable[[], dict[str, float]]


@dataclass
class Ages:
    """The age of each key's newest event when it first became visible."""

    seen: dict[str, float] = field(default_factory=dict)
    ages: list[float] = field(default_factory=list)

    def look(self, newest: dict[str, float], *, count: bool) -> None:
        now = time.time()
        for key, sent in newest.items():
            if sent > self.seen.get(key, 0.0):
                self.seen[key] = sent
                if count:
                    self.ages.append(now - sent)


@contextmanager
def ours(spark: SparkSession, servers: str, topic: str, *, stateful: bool) -> Iterator[Newest]:
    """Run the app's pipeline into SQLite, and read the results from there."""
    app = hw.App("latency")
    events = app.topic(topic, schema=SCHEMA, event_time="at")
    key = ["key", "window"] if stateful else ["key"]

    @app.view(events, key=key)
    def newest(rows: DataFrame) -> DataFrame:
        if not stateful:
            return rows.select("key", "sent")
        return rows.transform(
            hw.windowed(what={"sent": hw.max("sent")}, where=hw.Tumbling("1 minute"), by=["key"])
        )

    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        store, facts = ViewStore(data / "views.db"), FactStore(data / "facts.db")
        settings = PipelineSettings(bootstrap_servers=servers, data=data)
        pipeline = Pipeline(app, spark, store, facts, settings, SystemClock())
        pipeline.start()
        try:
            yield lambda: _newest((row["key"], row["sent"]) for row in store.rows("newest", limit=10_000))
        finally:
            pipeline.stop()


@contextmanager
def theirs(spark: SparkSession, servers: str, topic: str, *, stateful: bool) -> Iterator[Newest]:
    """Run the JVM connector and Spark's own aggregation, with results in memory."""
    value = F.from_json(F.col("value").cast("string"), SCHEMA).alias("v")
    rows = stream(spark, THEIRS, servers, topic).select(value).select("v.*")
    if stateful:
        rows = rows.groupBy("key", F.window("at", "1 minute")).agg(F.max("sent").alias("sent"))
    found: dict[str, float] = {}

    def keep(batch: DataFrame, number: int) -> None:
        table = batch.select("key", "sent").toArrow()
        found.update(_newest(zip(*table.to_pydict().values(), strict=True)))

    with tempfile.TemporaryDirectory() as folder:
        writer = rows.writeStream.outputMode("update").option("checkpointLocation", folder).foreachBatch(keep)
        query = writer.trigger(processingTime="0 seconds").start()
        try:
            yield lambda: dict(found)
        finally:
            query.stop()


def _newest(pairs: Iterator[tuple[str, float]]) -> dict[str, float]:
    newest: dict[str, float] = {}
    for key, sent in pairs:
        newest[key] = max(sent, newest.get(key, 0.0))
    return newest


def measure(
    spark: SparkSession, servers: str, side: str, rate: int, seconds: float, *, stateful: bool
) -> list[float]:
    """Return the ages of results in the steady state, in seconds."""
    topic = create_topic(servers, f"latency-{side}-{rate}-{'stateful' if stateful else 'stateless'}", 1)
    ages = Ages()
    run = {OURS: ours, THEIRS: theirs}[side]
    with producing(servers, topic, rate), run(spark, servers, topic, stateful=stateful) as newest:
        began = time.monotonic()
        while not ages.seen:
            assert time.monotonic() < began + FIRST_RESULT_S, f"{side} showed no result in {FIRST_RESULT_S} s"
            ages.look(newest(), count=False)
            time.sleep(LOOK_EVERY_S)
        began = time.monotonic()
        while (passed := time.monotonic() - began) < WARM_UP_S + seconds:
            ages.look(newest(), count=passed > WARM_UP_S)
            time.sleep(LOOK_EVERY_S)
    assert len(ages.ages) > 1, f"{side} cannot keep up with {rate} events/s: no new result appeared"
    return ages.ages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seconds", nargs="?", type=float, default=20.0)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    lines = [
        "| | events/s | | Headwater, s | JVM connector without a store, s | ratio |",
        "|---|--:|---|--:|--:|--:|",
    ]
    print("\n".join(lines), flush=True)
    with tempfile.TemporaryDirectory() as folder, session_with_connector("bench") as spark:
        broker = start_headwater(Path(folder), "interval")
        try:
            for stateful in (False, True):
                for rate in RATES:
                    us, them = (
                        quantiles(
                            measure(spark, broker.servers, side, rate, arguments.seconds, stateful=stateful), n=100
                        )
                        for side in (OURS, THEIRS)
                    )
                    kind = "stateful" if stateful else "stateless"
                    for name, at in (("p50", 49), ("p99", 98)):
                        ratio = us[at] / them[at]
                        lines.append(
                            f"| {kind} | {rate:,} | {name} | {us[at]:.2f} | {them[at]:.2f} | {ratio:.2f} |"
                        )
                        print(lines[-1], flush=True)
        finally:
            broker.stop()
    if arguments.write:
        REPORT.write_text("\n".join([INTRODUCTION.format(machine=machine()), *lines, ""]))


INTRODUCTION = """# Latency from append to visible result

Measured by `./dev bench latency` on {machine}. Events carry the time at which they were appended; the figures are
their age when a reader of the view first sees them. *Stateless* shows the newest event of each of a hundred keys,
*stateful* the maximum in a one-minute window. Headwater runs the app's pipeline and commits results to SQLite in
one transaction with their offsets. The other side reads the same topic with Spark's Kafka connector and keeps its
results in memory, without a store: it is a lower bound, not an equivalent. A ratio of 1 would match that lower
bound.
"""


if __name__ == "__main__":
    main()
