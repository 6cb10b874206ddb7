"""The log against Apache Kafka: same machine, same client, in turns; every cell as the ratio ours / Kafka.

./dev bench log [--quick] [--only JAVA-OR-PYTHON] [--write]

Needs java (17 or newer) and mvn; Kafka comes from Maven by its coordinates into ~/.cache/headwater. Both brokers
leave syncing to the operating system, as Kafka does by default; "fsync" is ours once more, waiting for the disk.
"""

import argparse
import os
import platform
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent))
from _brokers import KAFKA_VERSION, Running, create_topic, kafka_jars, start_headwater, start_kafka
from _loads import (
    acknowledged_after,
    java_consume,
    java_latency,
    java_produce,
    python_consume,
    python_produce,
)

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "docs" / "benchmarks" / "log.md"
SIZES = (100, 1000)
PARTITIONS = (1, 8, 64)
ACKS = ("1", "all")
WARM_UP_RECORDS = 300_000
KAFKA, OURS, FSYNC = "kafka", "headwater", "headwater fsync"


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    rounds: int
    java_bytes: int
    python_bytes: int
    latency_records: int
    starts: int


QUICK = Plan(rounds=1, java_bytes=60_000_000, python_bytes=50_000_000, latency_records=2_000, starts=1)
FULL = Plan(rounds=3, java_bytes=300_000_000, python_bytes=200_000_000, latency_records=10_000, starts=5)


@dataclass(slots=True)
class Results:
    """What was measured: cell to side to samples, in the order of measuring."""

    samples: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)

    def add(self, cell: str, side: str, value: float, unit: str) -> None:
        self.samples.setdefault(cell, {}).setdefault(side, []).append(value)
        self.units[cell] = unit
        print(f"  {cell:<44} {side:<16} {value:>12,.1f} {unit}", flush=True)

    def lines(self) -> Iterator[str]:
        """A table in Markdown, medians of the rounds."""
        yield "| cell | unit | Kafka | ours | ours/Kafka | with fsync | fsync/Kafka |"
        yield "|---|---|--:|--:|--:|--:|--:|"
        for cell, sides in self.samples.items():
            middle = {side: median(values) for side, values in sides.items()}
            numbers = [_number(middle.get(KAFKA))]
            for side in (OURS, FSYNC):
                numbers += [_number(middle.get(side)), _ratio(middle.get(side), middle.get(KAFKA))]
            yield f"| {cell} | {self.units[cell]} | {' | '.join(numbers)} |"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"


def _ratio(value: float | None, other: float | None) -> str:
    return f"{value / other:.2f}" if value is not None and other else ""


Start = Callable[[Path], Running]


@contextmanager
def running(starts: dict[str, Start], folder: Path) -> Iterator[dict[str, Running]]:
    with ExitStack() as stack:
        found = {}
        for side, start in starts.items():
            data = Path(tempfile.mkdtemp(prefix=side.replace(" ", "-"), dir=folder))
            found[side] = broker = start(data)
            stack.callback(shutil.rmtree, data, ignore_errors=True)
            stack.callback(broker.stop)
        yield found


def measure_starts(results: Results, starts: dict[str, Start], plan: Plan, folder: Path) -> None:
    """From the start of the process to the first acknowledged record, and memory a while after it."""
    for _ in range(plan.starts):
        for side, start in starts.items():
            if side == FSYNC:
                continue
            with running({side: start}, folder) as found:
                broker = found[side]
                results.add("start to first acknowledged record", side, acknowledged_after(broker), "s")
                results.add("idle memory (RSS)", side, broker.rss_mb(), "MB")


def warm_up(brokers: dict[str, Running]) -> None:
    """Let a virtual machine compile what it runs often, as it has in a broker that is up for a while."""
    for broker in brokers.values():
        topic = create_topic(broker.servers, "warm-up", 8)
        for acks in ACKS:
            java_produce(broker.servers, topic, WARM_UP_RECORDS, 100, acks)
        java_consume(broker.servers, topic, WARM_UP_RECORDS)


def measure_throughput(results: Results, brokers: dict[str, Running], plan: Plan, clients: list[str]) -> None:
    for client in clients:
        total = plan.java_bytes if client == "java" else plan.python_bytes
        produce = java_produce if client == "java" else python_produce
        consume = java_consume if client == "java" else python_consume
        for size in SIZES:
            for partitions in PARTITIONS:
                count = total // size
                for number in range(plan.rounds):
                    for side, broker in brokers.items():
                        name = f"{client}-{size}-{partitions}-{number}"
                        cell = f"{client} %s {size} B, {partitions} partitions"
                        for acks in ACKS:
                            topic = create_topic(broker.servers, f"{name}-{acks}", partitions)
                            rate = produce(broker.servers, topic, count, size, acks)
                            results.add(cell % f"produce acks={acks}", side, rate, "records/s")
                        if side != FSYNC:  # reading is the same
                            rate = consume(broker.servers, topic, count)
                            results.add(cell % "consume", side, rate, "records/s")


def measure_latency(results: Results, brokers: dict[str, Running], plan: Plan) -> None:
    """End to end, alone and with a producer at half of what the slower of both brokers takes."""
    rates = []
    for side in (KAFKA, OURS):
        topic = create_topic(brokers[side].servers, "full-load", 8)
        rates.append(java_produce(brokers[side].servers, topic, plan.java_bytes // 1000, 1000, "1"))
    half = int(min(rates) / 2)
    print(f"  half load: {half:,} records of 1 KB a second")
    for number in range(plan.rounds):
        for side, broker in brokers.items():
            for load in (0, half):
                topic = create_topic(broker.servers, f"latency-{number}-{load}", 1)
                noise = create_topic(broker.servers, f"noise-{number}-{load}", 8)
                found = java_latency(broker.servers, topic, plan.latency_records, noise, load)
                name = "at half load" if load else "alone"
                for percentile, value in found.items():
                    results.add(f"end-to-end {percentile} {name}", side, value, "ms")


def measure(results: Results, starts: dict[str, Start], plan: Plan, wanted: str | None) -> None:
    clients = [client for client in ("java", "python") if wanted in (None, client)]
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder:
        if wanted in (None, "start"):
            measure_starts(results, starts, plan, Path(folder))
        if wanted == "start":
            return
        with running(starts, Path(folder)) as brokers:
            warm_up(brokers)
            if wanted in (None, "latency"):
                measure_latency(results, brokers, plan)
            measure_throughput(results, brokers, plan, clients)


def write_report(results: Results, plan: Plan) -> None:
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    how = "--quick" if plan is QUICK else "full"
    REPORT.write_text(
        "# The log against Apache Kafka\n\n"
        f"Written by `./dev bench log --write` ({how}): Kafka {KAFKA_VERSION} with -Xmx1G, single node, and "
        f"`headwater broker`, on {os.cpu_count()} cores, {platform.machine()}, Python "
        f"{platform.python_version()}. Client and broker share the machine, over loopback, in turns.\n"
        "Rates: more is better. Seconds, MB and ms: less is better. Kafka and \"ours\" leave syncing to the "
        "operating system; \"with fsync\" ours waits for the disk before acknowledging acks=all.\n\n"
        + "\n".join(results.lines()) + "\n"
    )  # fmt: skip
    print(f"written: {REPORT.relative_to(ROOT)}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev bench log", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few minutes: one round, fewer records")
    parser.add_argument("--only", choices=("java", "python", "latency", "start"), help="measure only this")
    parser.add_argument("--no-fsync", action="store_true", help="leave out the broker that waits for the disk")
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.relative_to(ROOT)}")
    arguments = parser.parse_args()
    plan = QUICK if arguments.quick else FULL
    jars = kafka_jars(KAFKA_VERSION)
    starts: dict[str, Start] = {
        KAFKA: lambda data: start_kafka(jars, data),
        OURS: lambda data: start_headwater(data, "never"),
        FSYNC: lambda data: start_headwater(data, "fsync"),
    }
    if arguments.no_fsync:
        del starts[FSYNC]
    results = Results()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the brokers are stopped too
    try:
        measure(results, starts, plan, arguments.only)
    except KeyboardInterrupt:
        print("interrupted: this is what was measured until then")
    print("\n" + "\n".join(results.lines()))
    if arguments.write:
        write_report(results, plan)


if __name__ == "__main__":
    main()
