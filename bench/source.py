"""Log to Spark: our source against the Kafka connector of the JVM, same broker, same records, in turns.

./dev bench source [RECORDS]

Each side reads the whole topic as a stream, in micro-batches of a quarter, and drops the rows. The jars of the
connector come from Maven and are for this comparison only.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from _brokers import create_topic, start_headwater
from _loads import python_produce
from _spark import OURS, THEIRS, session_with_connector, stream
from pyspark.sql import SparkSession

ROUNDS = 3
PARTITIONS = (1, 4)


def read(spark: SparkSession, source: str, servers: str, topic: str, records: int) -> float:
    """Rows a second."""
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
    """The median of each side, measured one after the other, again and again; the first round warms up."""
    rounds = [(measure(OURS), measure(THEIRS)) for _ in range(ROUNDS + 1)][1:]
    ours, theirs = zip(*rounds, strict=True)
    return median(ours), median(theirs)


def main() -> None:
    records = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000
    with tempfile.TemporaryDirectory() as folder, session_with_connector("bench") as spark:
        broker = start_headwater(Path(folder), "never")
        try:
            for size, count in ((100, records), (1000, records // 4)):
                for partitions in PARTITIONS:
                    topic = create_topic(broker.servers, f"bench-{size}-{partitions}", partitions)
                    python_produce(broker.servers, topic, count, size, acks="1")

                    def measure(source: str, topic: str = topic, count: int = count) -> float:
                        return read(spark, source, broker.servers, topic, count)

                    ours, theirs = in_turns(measure)
                    where = f"{size:>5} B, {partitions} partition{'s' if partitions > 1 else ' '}"
                    figures = f"ours {ours:>9,.0f} rows/s, JVM connector {theirs:>9,.0f} rows/s"
                    print(f"{where}: {figures}, ratio {ours / theirs:.2f}", flush=True)
        finally:
            broker.stop()


if __name__ == "__main__":
    main()
