"""The log compared with Apache Kafka: throughput, latency, start and memory, with the same clients, in turns.

./dev bench log [--quick] [--only java|python|latency|start] [--no-fsync] [--write]

Needs java (17 or newer) and mvn; Maven downloads Kafka into ~/.cache/headwater. Kafka runs with its default
settings and leaves syncing to the operating system; Headwater does the same here (--durability never). "With
fsync" is Headwater with its default: it waits for the disk before it acknowledges acks=all, which Kafka does not.
Ratios are Headwater / Kafka. A full run measures at least one round, and more until the next one would end later
than 15 minutes after the start. Run it on an idle machine.
"""

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from os import getloadavg
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # the repository root, for `support`

from _loads import (
    acknowledged_after,
    fill,
    java_consume,
    java_latency,
    java_produce,
    python_consume,
    python_produce,
    wait_until_ready,
)
from _report import Cell, Results, Side, machine, tables

from support.brokers import (
    KAFKA_VERSION,
    Running,
    create_topic,
    java_version,
    kafka_jars,
    start_headwater,
    start_kafka,
)

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "docs" / "benchmarks" / "log.md"
SIZES = (100, 1000)
PARTITIONS = (1, 8, 64)
ACKS = ("1", "all")
CLIENTS = ("java", "python")
GOALS = {"java": 0.8, "python": 1.0}
NAMES = {"java": "Java: ProducerPerformance, ConsumerPerformance", "python": "Python: confluent-kafka"}
WARM_UP_RECORDS = 300_000
SETTLE_S = 1.0

Start = Callable[[Path], Running]


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of a run."""

    seconds: float
    """No further round starts if it would end later than this."""
    rounds_max: int
    java_bytes: int
    python_bytes: int
    consume_bytes: dict[int, int]
    """By record size."""
    latency_records: int
    starts: int


QUICK = Plan(
    seconds=0,
    rounds_max=1,
    java_bytes=10_000_000,
    python_bytes=10_000_000,
    consume_bytes={100: 10_000_000, 1000: 20_000_000},
    latency_records=500,
    starts=1,
)
FULL = Plan(
    seconds=840,
    rounds_max=9,
    java_bytes=40_000_000,
    python_bytes=50_000_000,
    consume_bytes={100: 100_000_000, 1000: 200_000_000},
    latency_records=2_000,
    starts=3,
)


class Bench:
    """Measures running brokers and prints the results."""

    def __init__(self, plan: Plan) -> None:
        self.results = Results()
        self._plan = plan
        self._topics = 0
        self._filled: dict[tuple[Side, int, int], tuple[str, int]] = {}

    def starts(self, starts: dict[Side, Start], folder: Path) -> None:
        """Measure the time from process start to the first acknowledged record, and the memory shortly after."""
        section = "Start and memory"
        acknowledged = Cell(section, "start to first acknowledged record", "s", 0.1, more_is_better=False)
        memory = Cell(section, "idle memory (RSS)", "MB", 0.25, more_is_better=False)
        for _ in range(self._plan.starts):
            for side, start in starts.items():
                with running({side: start}, folder) as found:
                    self._note(acknowledged, side, acknowledged_after(found[side]))
                    time.sleep(SETTLE_S)
                    self._note(memory, side, found[side].rss_mb())

    def fill(self, brokers: dict[Side, Running], size: int, partitions: int) -> None:
        """Write the records that `throughput` reads."""
        for side, broker in brokers.items():
            if side is not Side.FSYNC:  # reading does not depend on fsync
                topic = self._topic(broker, partitions)
                count = fill(broker.servers, topic, partitions, self._plan.consume_bytes[size] // size, size)
                self._filled[side, size, partitions] = (topic, count)

    def throughput(self, brokers: dict[Side, Running], client: str, size: int, partitions: int) -> None:
        """Produce, and consume the records of `fill`, on each side in turn."""
        java = client == "java"
        count = (self._plan.java_bytes if java else self._plan.python_bytes) // size
        shape = f"{size} B, {partitions} partition{'s' if partitions > 1 else ''}"
        for side, broker in brokers.items():
            for acks in ACKS if side is not Side.FSYNC else ("all",):
                topic = self._topic(broker, partitions)
                rate = (java_produce if java else python_produce)(broker.servers, topic, count, size, acks)
                cell = Cell(NAMES[client], f"produce acks={acks}, {shape}", "records/s", GOALS[client])
                self._note(cell, side, rate)
            if filled := self._filled.get((side, size, partitions)):
                rate = (java_consume if java else python_consume)(broker.servers, *filled)
                self._note(Cell(NAMES[client], f"consume, {shape}", "records/s", GOALS[client]), side, rate)

    def half_load(self, brokers: dict[Side, Running]) -> int:
        """Return half the throughput of the slower broker, in records of 1 KB per second."""
        count = self._plan.java_bytes // 1000
        rates = [
            java_produce(brokers[side].servers, self._topic(brokers[side], 8), count, 1000, "1")
            for side in (Side.KAFKA, Side.OURS)
        ]
        return int(min(rates) / 2)

    def latency(self, brokers: dict[Side, Running], load: int) -> None:
        """Measure end-to-end latency, one record at a time, while another producer sends at the rate `load`."""
        for side, broker in brokers.items():
            topic, noise = self._topic(broker, 1), self._topic(broker, 8)
            found = java_latency(broker.servers, topic, self._plan.latency_records, noise, load)
            for percentile, value in found.items():
                name = f"{percentile} {f'at half load ({load:,} records/s of 1 KB)' if load else 'alone'}"
                cell = Cell("End-to-end latency: EndToEndLatency", name, "ms", 1.0, more_is_better=False)
                self._note(cell, side, value)

    def _topic(self, broker: Running, partitions: int) -> str:
        self._topics += 1
        topic = create_topic(broker.servers, f"bench-{self._topics}", partitions)
        wait_until_ready(broker.servers, topic, partitions)
        return topic

    def _note(self, cell: Cell, side: Side, value: float) -> None:
        self.results.add(cell, side, value)
        print(f"  {cell.section[:6]:<7}{cell.name:<52} {side:<17} {value:>12,.1f} {cell.unit}", flush=True)


@contextmanager
def running(starts: dict[Side, Start], folder: Path) -> Iterator[dict[Side, Running]]:
    with ExitStack() as stack:
        found = {}
        for side, start in starts.items():
            data = Path(tempfile.mkdtemp(prefix=side.name.lower(), dir=folder))
            stack.callback(shutil.rmtree, data, ignore_errors=True)
            found[side] = broker = start(data)
            stack.callback(broker.stop)
        yield found


def warm_up(brokers: dict[Side, Running], plan: Plan) -> None:
    """Let the JVM compile its hot code, as it has in a broker that has been running for a while."""
    count = min(WARM_UP_RECORDS, plan.java_bytes // 100)
    for broker in brokers.values():
        topic = create_topic(broker.servers, "warm-up", 8)
        for acks in ACKS:
            java_produce(broker.servers, topic, count, 100, acks)
        java_consume(broker.servers, topic, count)


def measure(bench: Bench, starts: dict[Side, Start], plan: Plan, wanted: str | None) -> None:
    began = time.monotonic()
    clients = [client for client in CLIENTS if wanted in (None, client)]
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder:
        if wanted in (None, "start"):
            bench.starts(starts, Path(folder))
        if wanted == "start":
            return
        with running(starts, Path(folder)) as brokers:
            warm_up(brokers, plan)
            load = bench.half_load(brokers) if wanted in (None, "latency") else 0
            for size, partitions in product(SIZES, PARTITIONS) if clients else ():
                bench.fill(brokers, size, partitions)
            for number in range(plan.rounds_max):
                round_began = time.monotonic()
                # Reverse the order in every round, so that changes over time favour neither side.
                sides = dict(list(brokers.items())[:: -1 if number % 2 else 1])
                if wanted in (None, "latency"):
                    bench.latency(sides, 0)
                    bench.latency(sides, load)
                for client, size, partitions in product(clients, SIZES, PARTITIONS):
                    bench.throughput(sides, client, size, partitions)
                now = time.monotonic()
                print(
                    f"round {number + 1} took {now - round_began:.0f} s, {now - began:.0f} s in total", flush=True
                )
                if now + (now - round_began) > began + plan.seconds:
                    return


PAGE = """\
# The log compared with Apache Kafka

Written by `./dev bench log{how} --write` on {day:%Y-%m-%d}, on {machine}, {java}.
Load average before {load[0]:.1f}, after {load[1]:.1f}.

Apache Kafka {version} (one node, KRaft, -Xmx1G, default settings) and `headwater broker` run at the same time and
are measured in turns with the same client over loopback; client and broker share the cores. Figures are medians of
the rounds. The ratio is Headwater / Kafka: for rates higher is better, for times and memory lower is better. The
records that are consumed were written to both brokers in the same batches of 64 kB. librdkafka is configured not
to pause when it is far ahead of its user (`fetch.queue.backoff.ms=5`, `queued.min.messages=1000000`); all other
client settings are defaults.

**fsync.** Kafka acknowledges records before they are on disk and leaves syncing to the operating system
(`flush.messages` and `flush.ms` have their defaults). "Headwater" does the same here (`--durability never`). "With
fsync" is Headwater with its default: with acks=all it acknowledges records once they are on disk. With acks=1 it
acknowledges earlier, but readers see the records only once they are on disk, and the disk is as busy.

{tables}
"""


def report(results: Results, plan: Plan, load: tuple[float, float]) -> str:
    """Return the whole page."""
    return PAGE.format(
        how=" --quick" if plan is QUICK else "",
        day=datetime.now(UTC),
        machine=machine(),
        java=java_version(),
        load=load,
        version=KAFKA_VERSION,
        tables="\n".join(tables(results)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="./dev bench log", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a smoke test: one round with few records, 4 minutes")
    parser.add_argument("--only", choices=(*CLIENTS, "latency", "start"), help="measure only this")
    parser.add_argument("--no-fsync", action="store_true", help="leave out the broker that syncs")
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.relative_to(ROOT)}")
    arguments = parser.parse_args()
    plan = QUICK if arguments.quick else FULL
    jars = kafka_jars(KAFKA_VERSION)
    starts: dict[Side, Start] = {
        Side.KAFKA: lambda data: start_kafka(jars, data),
        Side.OURS: lambda data: start_headwater(data, "never"),
        Side.FSYNC: lambda data: start_headwater(data, "fsync"),
    }
    if arguments.no_fsync:
        del starts[Side.FSYNC]
    bench = Bench(plan)
    load_before = getloadavg()[0]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the brokers are stopped as well
    try:
        measure(bench, starts, plan, arguments.only)
    except KeyboardInterrupt:
        print("interrupted; results so far:")
    text = report(bench.results, plan, (load_before, getloadavg()[0]))
    print("\n" + text)
    if arguments.write:
        REPORT.parent.mkdir(parents=True, exist_ok=True)
        REPORT.write_text(text)
        print(f"written: {REPORT.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
