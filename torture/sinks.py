"""Crash an app that writes to sinks: driver, JVM, executors, workers, broker and database are killed at random.

./dev torture --sink postgres --seeds 50
./dev torture sinks --sink sqlite --first 7 --seeds 1
./dev torture sinks --sink all --seeds 1 --on-kafka --on-cluster

Each seed chooses out-of-order events, a window, a trigger, and the times of the kills. One query writes windows by
key, which retract what they refine; another writes every event unchanged. At the end, both results must be what
plain Python computes over all events: no row lost and none duplicated, whatever was killed. Sinks that keep
changes also receive the changes of the windows without a key, and their sum must be the same.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headwater.spark.source.checkpoint import last_done
from support.processes import SHORT_LIVED, descendants
from support.restartable_brokers import ApacheKafka, HeadwaterLog, Log
from support.spark_cluster import SparkCluster
from torture.subjects import CHANGES, RAW, SUBJECTS, TOTALS, Row, Subject, times
from torture.windows import KEYS, TRIGGERS, WINDOWS, windows_of

PATIENCE_S = 240.0
PARTITIONS = 2
PARTITIONED = f"spark.sql.shuffle.partitions={PARTITIONS}"  # on a cluster Spark defaults to 200
RATE = 150
"""Events per second; low, so that there are many small batches."""
END = 10**6
VICTIMS = ("driver", "jvm", "worker", "worker", "broker", "database", "database")
ON_A_CLUSTER = (*VICTIMS, "executor", "executor")

APP = """
import headwater as hw

app = hw.App("torture")
events = app.topic(
    "events",
    schema="id bigint, key string, amount bigint, at timestamp",
    event_time="at",
    delay="10 seconds",
    partitions={partitions},
)
"""
TOTALS_QUERY = """

@app.sink(events, to={to}, {key}name="{name}")
def totals(events):
    windows = hw.windowed(
        what={{"n": hw.count(), "amount": hw.sum("amount")}},
        where=hw.{where},
        when=hw.{when},
        how=hw.RETRACTING,
        by=["key"],
        lateness="1 day",
    )
    return events.transform(windows).select("key", "window", "n", "amount", "_change")
"""
RAW_QUERY = """

@app.sink(events, to={to}, name="{name}")
def raw(events):
    return events.select("id", "key", "amount")
"""

STREAMS = {
    TOTALS: (TOTALS_QUERY, 'key=["key", "window"], '),
    RAW: (RAW_QUERY, ""),
    CHANGES: (TOTALS_QUERY, ""),
}
"""The query of each stream, and the key argument of its declaration."""

Event = tuple[int, str, int, int]
"""Number, key, amount, second."""


@dataclass(frozen=True, slots=True)
class Report:
    """The counts of a run."""

    kills: Counter[str]
    events: int
    windows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """The log and the Spark that the app runs on: Headwater's broker or Apache Kafka, local Spark or a cluster."""

    kafka: bool = False
    cluster: bool = False

    @property
    def victims(self) -> tuple[str, ...]:
        return ON_A_CLUSTER if self.cluster else VICTIMS


class World:
    """A broker, the sinks' servers, and the app between them, all as processes."""

    def __init__(self, folder: Path, sinks: Sequence[str], chance: random.Random, platform: Platform) -> None:
        self.folder = folder
        self._log: Log = ApacheKafka(folder) if platform.kafka else HeadwaterLog(folder)
        self._cluster = SparkCluster(folder / "cluster") if platform.cluster else None
        self.servers = self._log.servers
        self.subjects: dict[str, Subject] = {sink: SUBJECTS[sink](folder, self.servers) for sink in sinks}
        where, when = chance.choice(WINDOWS), chance.choice(TRIGGERS)
        self.where, self.when = where, when
        program = [APP.format(partitions=PARTITIONS)]
        for sink, subject in self.subjects.items():
            for kind, (query, key) in STREAMS.items():
                if kind != CHANGES or subject.keeps_changes:
                    name = f"{kind}_{sink}"
                    to = subject.expression(name)
                    program.append(query.format(name=name, to=to, key=key, where=where, when=when))
        (folder / "app.py").write_text("".join(program))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start_broker(self) -> None:
        self._start("broker", *self._log.command)

    def start_app(self, *more: str) -> "subprocess.Popen[bytes]":
        options = ["--data", str(self.folder / "data"), "-b", self.servers, "--http", "127.0.0.1:0"]
        options += ["--master", "local[2]" if self._cluster is None else self._cluster.address]
        program = [sys.executable, "-m", "headwater", "run", str(self.folder / "app.py")]
        return self._start("app", *program, *options, "--conf", PARTITIONED, *more)

    def end_app(self) -> None:
        _kill(self._processes["app"].pid)
        self._processes["app"].wait()

    def _start(self, name: str, *command: str) -> "subprocess.Popen[bytes]":
        with (self.folder / f"{name}.txt").open("ab") as output:
            self._processes[name] = subprocess.Popen(
                command, cwd=self.folder, stdout=output, stderr=output, start_new_session=True
            )
        return self._processes[name]

    def output(self, name: str = "app") -> str:
        return (self.folder / f"{name}.txt").read_text()[-3000:]

    def batches(self) -> int:
        """Return the number of batches of window queries that are committed; old ones have no file any more."""
        folders = (self.folder / "data" / "checkpoints").glob(f"{TOTALS}_*")
        return sum(last_done(folder) + 1 for folder in folders)

    def kill(self, victim: str, chance: random.Random) -> str | None:
        """Kill a victim, restart it unless it restarts by itself, and return its name.

        Returns None if there is no such process at the moment.
        """
        if victim == "driver":
            self.end_app()
            self.start_app()
        elif victim in ("jvm", "worker", "executor"):
            found = self._spark_processes(victim)
            if not found:
                return None
            _kill(chance.choice(found))
        elif victim == "broker":
            _kill(self._processes["broker"].pid)
            self._processes["broker"].wait()
            time.sleep(chance.random() * 2)
            self.start_broker()
        else:
            server = chance.choice(self.sink_servers)
            server.kill()
            time.sleep(chance.random() * 2)
            server.start()
        return victim

    def _spark_processes(self, kind: str) -> list[int]:
        if self._cluster is not None and kind != "jvm":
            return self._cluster.executors() if kind == "executor" else self._cluster.python_workers()
        app = self._processes["app"]
        return [pid for pid, name in descendants(app.pid) if (name == "java") == (kind == "jvm")]

    @property
    def sink_servers(self) -> list[Subject]:
        """The sinks that have a server, which can be killed."""
        return [subject for subject in self.subjects.values() if subject.has_server]

    def keep_running(self, *, after: str | None) -> None:
        """Restart the app if it has ended, which only a kill of its JVM may cause."""
        app = self._processes["app"]
        if app.poll() is None:
            return
        ended = f"the app ended with code {app.returncode} after the {after} was killed"
        assert after == "jvm", f"{ended}: {self.output()}"
        self.start_app()

    def close(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for subject in self.subjects.values():
            subject.close()
        if self._cluster is not None:
            self._cluster.close()


class Traffic:
    """Produces out-of-order events, with a client that survives restarts of the broker."""

    def __init__(self, servers: str, chance: random.Random) -> None:
        from confluent_kafka import Producer

        settings: dict[str, Any] = {"enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        self._producer = Producer({"bootstrap.servers": servers, **settings})
        self._chance = chance
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.events: list[Event] = []
        self._errors: list[object] = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop, send an event that closes every window, and wait until all events are in the log."""
        self._stopping.set()
        self._thread.join()
        for partition in range(PARTITIONS):
            self._send((-1 - partition, "the end", 0, END), partition)
        assert self._producer.flush(PATIENCE_S) == 0, "the broker did not acknowledge all events"
        assert not self._errors, self._errors

    def _run(self) -> None:
        while not self._stopping.wait(1 / RATE):
            number = len(self.events)
            late = 600 if self._chance.random() < 0.2 else 30
            at = max(0, round(number * 0.6 - self._chance.expovariate(1 / late)))
            event = (number, self._chance.choice(KEYS), self._chance.randrange(100), at)
            self.events.append(event)
            self._send(event, self._chance.randrange(PARTITIONS))

    def _send(self, event: Event, partition: int) -> None:
        number, key, amount, at = event
        when = datetime.fromtimestamp(at, UTC).isoformat()
        value = json.dumps({"id": number, "key": key, "amount": amount, "at": when}).encode()
        self._producer.produce("events", value=value, partition=partition, on_delivery=self._on_delivery)
        self._producer.poll(0)

    def _on_delivery(self, error: object, message: object) -> None:
        if error is not None:
            self._errors.append(error)


LOCAL = Platform()


def run(
    seed: int,
    sinks: Sequence[str],
    kills: int = 6,
    platform: Platform = LOCAL,
    victims: Sequence[str] | None = None,
) -> Report:
    """Run one seed; raises AssertionError if a sink's final rows are wrong, and keeps the run's folder then."""
    chance = random.Random(seed)
    folder = Path(tempfile.mkdtemp(prefix="torture-"))
    world = World(folder, sinks, chance, platform)
    try:
        killed, events = _disturb(world, chance, kills, victims or platform.victims)
        _finish(world)
        windows = sum(_compare(world, sink, events) for sink in sinks)
    finally:
        world.close()
    shutil.rmtree(folder, ignore_errors=True)
    return Report(killed, len(events), windows)


def _disturb(
    world: World, chance: random.Random, kills: int, victims: Sequence[str]
) -> tuple["Counter[str]", list[Event]]:
    """Run the app and kill victims until the number of kills is reached."""
    world.start_broker()
    _create_topic(world.servers)
    world.start_app()
    traffic = Traffic(world.servers, random.Random(chance.random()))
    traffic.start()
    killed: Counter[str] = Counter()
    victims = [name for name in victims if name != "database" or world.sink_servers]
    try:
        last: str | None = None
        while killed.total() < kills:
            _wait_for_batches(world, world.batches() + len(world.subjects) * chance.randrange(1, 4), last)
            time.sleep(chance.random())  # so that the kill hits the next batch at a random point
            last = world.kill(chance.choice(victims), chance)
            killed.update([last] if last else [])
        _wait_for_batches(world, world.batches() + 2 * len(world.subjects), last)
    finally:
        traffic.stop()
    return killed, traffic.events


def _wait_for_batches(world: World, goal: int, last: str | None) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while world.batches() < goal:
        world.keep_running(after=last)
        assert time.monotonic() < deadline, f"no progress after the {last} was killed: {world.output()}"
        time.sleep(0.05)


def _finish(world: World) -> None:
    """Kill the app once more, and process the remaining events in a last run."""
    world.end_app()
    last = world.start_app("--once")
    try:
        code = last.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"the last run did not end within {PATIENCE_S} s: {world.output()}") from None
    assert code == 0, f"the last run failed: {world.output()}"


def _compare(world: World, sink: str, events: list[Event]) -> int:
    subject = world.subjects[sink]
    raw, totals = (subject.rows(f"{name}_{sink}") for name in (RAW, TOTALS))
    found = Counter((row["id"], row["key"], row["amount"]) for row in raw if row["id"] >= 0)
    _same(f"{RAW} rows in {sink}", found, Counter((number, key, amount) for number, key, amount, _ in events))
    windows = Counter(_window(row) for row in totals if row["key"] != "the end")
    expected = Counter(windows_of(world.where, [(key, amount, at) for _, key, amount, at in events]))
    _same(f"{TOTALS} of {world.where}, {world.when} in {sink}", windows, expected)
    if subject.keeps_changes:
        _same(f"the sum of {CHANGES} in {sink}", _sum_of(subject.rows(f"{CHANGES}_{sink}")), expected)
    return len(expected)


def _window(row: Row) -> tuple[Any, ...]:
    return row["key"], _micros(row["window"]["start"]), _micros(row["window"]["end"]), row["n"], row["amount"]


def _sum_of(changes: list[Row]) -> "Counter[Any]":
    """Return the rows that remain after all changes; no change may retract a row that was not inserted before."""
    rows: Counter[Any] = Counter()
    for change in changes:
        row = change["after"] or change["before"]
        if row["key"] == "the end":
            continue
        window = _window({**row, "window": times(row["window"])})
        rows[window] += 1 if change["op"] == "c" else -1
        assert rows[window] >= 0, f"{window} was retracted before it was inserted"
    return +rows


def _same(what: str, found: "Counter[Any]", expected: "Counter[Any]") -> None:
    lost, more = expected - found, found - expected
    shown = f"{lost.total()} lost, such as {list(lost)[:3]}; {more.total()} too many, such as {list(more)[:3]}"
    assert found == expected, f"{what}: {shown}"


def _micros(at: datetime) -> int:
    return round(at.timestamp()) * 1_000_000


def _create_topic(servers: str) -> None:
    from headwater.errors import UnavailableError
    from headwater.transmit.client.client import Client

    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            with Client(servers) as client:
                client.create_topic("events", partitions=PARTITIONS)
                return
        except UnavailableError:
            assert time.monotonic() < deadline, "the broker did not start"
            time.sleep(0.1)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="./dev torture sinks", description=(__doc__ or "").partition("\n")[0])
    names = ", ".join(SUBJECTS)
    parser.add_argument("--sink", required=True, help=f"{names}; several separated by commas, or all")
    parser.add_argument("--seeds", type=int, default=50, help="number of runs (default: 50)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--kills", type=int, default=6, help="kills per run (default: 6)")
    parser.add_argument("--on-kafka", action="store_true", help="use Apache Kafka as the log")
    parser.add_argument("--on-cluster", action="store_true", help="run on a Spark cluster and also kill executors")
    options = parser.parse_args(arguments)
    os.environ.setdefault("SPARK_SUBMIT_OPTS", SHORT_LIVED)
    sinks = list(SUBJECTS) if options.sink == "all" else options.sink.split(",")
    if unknown := [sink for sink in sinks if sink not in SUBJECTS]:
        parser.error(f"no sink named {', '.join(unknown)}; there are: {names}")
    total: Counter[str] = Counter()
    for seed in range(options.first, options.first + options.seeds):
        started = time.monotonic()
        try:
            report = run(seed, sinks, options.kills, Platform(kafka=options.on_kafka, cluster=options.on_cluster))
        except AssertionError as error:
            flags = [argument for argument in arguments if argument.startswith("--on-")]
            same = ["--sink", options.sink, "--kills", str(options.kills), *flags]
            again = " ".join([*same, "--first", str(seed), "--seeds", "1"])
            print(f"seed {seed}: {error}\nto repeat: ./dev torture sinks {again}", flush=True)
            return 1
        total += report.kills
        killed = ", ".join(f"{name} {count}" for name, count in sorted(report.kills.items()))
        took = time.monotonic() - started
        seen = f"{report.events} events, {report.windows} windows"
        print(f"seed {seed}: {seen}, killed {killed}; {took:.0f} s", flush=True)
    print(f"no row lost, none duplicated: {options.seeds} runs, {total.total()} kills ({dict(total)})")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
