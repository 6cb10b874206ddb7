"""Reading the log into Spark: Headwater's source compared with Spark's Kafka connector on the JVM, in turns.

./dev bench source [RECORDS] [--write]

Each side reads the whole topic from the same broker as a stream, in four micro-batches, and drops the rows. The
connector's jars come from Maven and serve only this comparison. `--write` writes docs/benchmarks/source.md.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

sys.path.append(str(Path(__file__).parents[1]))  # the repository root, for `support`

from _loads import python_produce
from _report import machine
from _spark import OURS, THEIRS, session_with_connector, stream
from pyspark.sql import SparkSession

from support.brokers import create_topic, start_headwater

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "source.md"
ROUNDS = 3
PARTITIONS = (1, 4)
GOAL = 0.7


def read(spark: SparkSession, source: str, servers: str, topic: str, records: int) -> float:
    """Return rows per second."""
    with tempfile.TemporaryDirectory() as folder:
        rows = stream(spark, source, servers, topic, maxOffsetsPerTrigger=str(records // 4))
        writer = rows.writeStream.format("noop").option("checkpointLocation", folder)
        began = time.perf_counter()
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        took = time.perf_counter() - began
        seen = sum(progress.numInputRows for progress in query.recentProgress)
    assert seen == records, f"{source} read {seen} of {records} records"
    return records / took


def in_turns(measure: Callable[[str], float]) -> tuple[float, float]:
    """Return the median of each side over several rounds in turns; the first round is a warm-up."""
    rounds = [(measure(OURS), measure(THEIRS)) for _ in range(ROUNDS + 1)][1:]
    ours, theirs = zip(*rounds, strict=True)
    return median(ours), median(theirs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="?", type=int, default=2_000_000)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    lines = [
        "| value | partitions | Headwater, rows/s | JVM connector, rows/s | ratio | |",
        "|--:|--:|--:|--:|--:|---|",
    ]
    print("\n".join(lines), flush=True)
    with tempfile.TemporaryDirectory() as folder, session_with_connector("bench") as spark:
        broker = start_headwater(Path(folder), "never")
        try:
            for size, count in ((100, arguments.records), (1000, arguments.records // 4)):
                for partitions in PARTITIONS:
                    topic = create_topic(broker.servers, f"bench-{size}-{partitions}", partitions)
                    python_produce(broker.servers, topic, count, size, acks="1")

                    def measure(source: str, topic: str = topic, count: int = count) -> float:
                        return read(spark, source, broker.servers, topic, count)

                    ours, theirs = in_turns(measure)
                    ratio = ours / theirs
                    verdict = "ok" if round(ratio, 2) >= GOAL else "**missed**"
                    lines.append(
                        f"| {size} B | {partitions} | {ours:,.0f} | {theirs:,.0f} | {ratio:.2f} | {verdict} |"
                    )
                    print(lines[-1], flush=True)
        finally:
            broker.stop()
    if arguments.write:
        REPORT.write_text("\n".join([INTRODUCTION.format(machine=machine()), *lines, ""]))


INTRODUCTION = """# Reading the log into Spark

Measured by `./dev bench source` on {machine}. A topic of two million records of 100 B, or of a quarter as many
records of 1000 B, is read as a stream in four micro-batches whose rows are dropped. `format("headwater")`, written
in Python, and Spark's Kafka connector, written for the JVM, read from the same broker in the same session, in
turns. Figures are medians of three rounds after a warm-up. The goal is 0.7x the connector's throughput.
"""


if __name__ == "__main__":
    main()
