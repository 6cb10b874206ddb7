"""A run of the shop: the app as a process, its traffic, and readers of its outputs and positions."""

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.processes import descendants, free_port
from torture.shop import (
    BROKEN_FROM,
    COLUMNS,
    CUSTOMERS,
    DEAD_LETTERS,
    DELAY_S,
    END,
    ORDERS,
    PARTITIONS,
    READS,
    THE_END,
    VIEW_OVER_VIEW,
    WINDOWED,
    Customer,
    Event,
    Malformed,
    Order,
    Rows,
    Shop,
    differences,
    expected_outputs,
)

PATIENCE_S = 600.0
"""Long: on a busy machine, a start takes minutes, and so does the search for the records on which a view fails."""
RATE = 80
"""Events per second; low, so that there are many small batches."""
PRODUCTS = ("tea", "coffee", "cocoa", "milk", "maté")
CITIES = ("Ulm", "Bonn", "Kiel")
CUSTOMERS_MAX = 25
SAMPLE_EVERY_S = 0.1
SNAPSHOTS = ("totals", "best", VIEW_OVER_VIEW)
"""Small views whose rows follow from the records before their position, however these are split into batches."""

Offsets = dict[str, dict[str, int]]
"""The next offset of each partition, by topic, as the store records it."""


class AppProcess:
    """`headwater run` with its log, views and checkpoints in one folder."""

    def __init__(self, folder: Path, shop: Shop) -> None:
        self.folder, self.shop = folder, shop
        self.data = folder / "data"
        self.servers = f"127.0.0.1:{free_port()}"
        self._process: subprocess.Popen[bytes] | None = None
        self.write(shop)

    def write(self, shop: Shop) -> None:
        (self.folder / "app.py").write_text(shop.program)

    def start(self) -> None:
        options = ["--data", str(self.data), "--listen", self.servers, "--http", "127.0.0.1:0"]
        options += ["--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=2"]
        with (self.folder / "app.txt").open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "headwater", "run", str(self.folder / "app.py"), *options],
                cwd=self.folder,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def command(self, *arguments: str) -> str:
        """Run a `headwater` command on the app's data and return its output."""
        program = [sys.executable, "-m", "headwater", *arguments, "--data", str(self.data)]
        done = subprocess.run(program, capture_output=True, cwd=self.folder, text=True, check=False)
        assert done.returncode == 0, f"headwater {' '.join(arguments)} failed: {done.stderr}"
        return done.stdout

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None, "the app was not started"
        return self._process

    def kill(self, victim: str) -> bool:
        """Kill the driver, Spark's Java, or all processes of the app; False if there is no such process."""
        pids = {
            "driver": lambda: [self.process.pid],
            "java": lambda: [pid for pid, name in descendants(self.process.pid) if name == "java"],
            "all": lambda: [self.process.pid, *(pid for pid, _ in descendants(self.process.pid))],
        }[victim]()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if victim != "java":
            self.process.wait()
        return bool(pids)

    def stop(self) -> None:
        """Stop the app as Ctrl-C does."""
        self.process.terminate()
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the app did not stop within {PATIENCE_S} s: {self.output()}") from None

    def check_alive(self) -> None:
        """Raise AssertionError if the app has ended by itself."""
        code = self.process.poll()
        assert code is None, f"the app ended by itself with code {code}: {self.output()}"

    def output(self) -> str:
        return (self.folder / "app.txt").read_text(errors="replace")[-3000:]

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill("all")


class Traffic:
    """Produces orders, customers and malformed records, with a client that survives restarts of the log.

    Orders are out of order, but in each partition never older than its watermark, so none is late.
    """

    def __init__(self, servers: str, chance: random.Random) -> None:
        from confluent_kafka import Producer

        settings: dict[str, Any] = {"enable.idempotence": True, "linger.ms": 20, "log_level": 0}
        settings |= {"reconnect.backoff.max.ms": 500, "message.timeout.ms": 0}
        self._producer = Producer({"bootstrap.servers": servers, **settings})
        self._servers, self._chance = servers, chance
        self._latest = [0] * PARTITIONS
        self._recent: list[tuple[Order, int]] = []
        self._number = 0
        self._broken = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.acknowledged: list[Event] = []
        self._errors: list[object] = []

    def start(self) -> None:
        """Send events at a steady rate, from the moment at which the app has created its topics."""
        self._thread.start()

    def wait_for_topics(self) -> None:
        """Wait until the app has created its topics."""
        from headwater.errors import HeadwaterError
        from headwater.transmit.client.client import Client

        while not self._stopping.wait(0.1):
            with contextlib.suppress(HeadwaterError, OSError), Client(self._servers) as client:
                found = client.topics([ORDERS, CUSTOMERS])
                if len(found) == 2 and all(len(info.leaders) == PARTITIONS for info in found.values()):
                    return

    def interrupt(self) -> None:
        """Stop sending."""
        self._stopping.set()

    def stop(self) -> None:
        """Send orders that close every window, and wait until all events are acknowledged."""
        self.interrupt()
        if self._thread.is_alive():
            self._thread.join()
        for partition in range(PARTITIONS):
            self._send(Order(-1 - partition, THE_END, 0, 0, END), partition)
        self.flush()

    def break_orders(self) -> None:
        """Send only orders of the kind on which the failing view fails from now on."""
        self._recent = []
        self._broken = True

    def burst(self, count: int) -> None:
        """Send events at once, and wait until they are acknowledged."""
        for _ in range(count):
            self._send_next()
        self.flush()

    def flush(self) -> None:
        assert self._producer.flush(PATIENCE_S) == 0, "the log did not acknowledge all events"
        assert not self._errors, f"events were not acknowledged: {self._errors[:3]}"

    def _run(self) -> None:
        self.wait_for_topics()
        while not self._stopping.wait(1 / RATE):
            self._send_next()

    def _send_next(self) -> None:
        chance = self._chance
        kind = chance.random()
        partition = chance.randrange(PARTITIONS)
        self._number += 1
        if kind < 0.02 and not self._broken:
            texts = (f"{{oops {self._number}", f'{{"id": "text {self._number}"}}', f'{{"id": {self._number}}}')
            self._send(Malformed(chance.choice(texts).encode()), partition)
        elif kind < 0.05:
            customer = Customer(chance.randrange(CUSTOMERS_MAX), chance.choice(CITIES), self._number)
            self._send(customer, partition)
        elif kind < 0.08 and self._recent:
            order, partition = chance.choice(self._recent)
            if order.at > self._latest[partition] - DELAY_S:
                self._send(order, partition)
        else:
            order = self._next_order(partition)
            self._recent = [*self._recent[-20:], (order, partition)]
            self._send(order, partition)

    def _next_order(self, partition: int) -> Order:
        at = round(self._number * 0.6 - self._chance.uniform(0, DELAY_S))
        at = max(0, at, self._latest[partition] - DELAY_S + 1)
        self._latest[partition] = max(at, self._latest[partition])
        number = self._number + (BROKEN_FROM if self._broken else 0)
        customer = self._chance.randrange(CUSTOMERS_MAX)
        return Order(number, self._chance.choice(PRODUCTS), customer, self._chance.randrange(1000), at)

    def _send(self, event: Event, partition: int) -> None:
        def acknowledge(error: object, _: object) -> None:
            if error is None:
                self.acknowledged.append(event)
            else:
                self._errors.append(error)

        self._producer.produce(event.topic, value=event.value, partition=partition, on_delivery=acknowledge)
        self._producer.poll(0)


@dataclass(slots=True)
class Sampler:
    """Reads the positions of the views while the app runs, is killed, and restarts.

    Each sample is one read transaction. Positions must never decrease; with `same_position`, all views must have
    the same. The rows of small views are kept, to compare them with the records before their position.
    """

    database: Path
    shop: Shop
    same_position: bool
    snapshots: list[tuple[str, Offsets, Rows]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    positions: dict[str, Offsets] = field(default_factory=dict)
    advanced_at: dict[str, float] = field(default_factory=dict)
    longest_pause: dict[str, float] = field(default_factory=dict)
    samples: int = 0
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _snapshot_at: float = 0.0

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def restart_pauses(self) -> None:
        """Measure the pauses between advances from now on."""
        now = time.monotonic()
        self.longest_pause = {}
        self.advanced_at = dict.fromkeys(self.shop.views, now)

    def pauses(self) -> dict[str, float]:
        """Return for each view the longest time without an advance since `restart_pauses`."""
        now = time.monotonic()
        return {
            view: max(self.longest_pause.get(view, 0.0), now - self.advanced_at[view]) for view in self.shop.views
        }

    def _run(self) -> None:
        while not self._stopping.wait(SAMPLE_EVERY_S):
            with contextlib.suppress(sqlite3.OperationalError):  # not created yet, or locked
                self._sample()

    def _sample(self) -> None:
        with reading(self.database) as db:
            found = db.execute("select query, note from headwater_progress").fetchall()
            notes = {query: json.loads(note or "{}").get("offsets", {}) for query, note in found}
            wants_rows = time.monotonic() > self._snapshot_at + 1
            rows = {
                view: read_view(db, view)
                for view in SNAPSHOTS
                if wants_rows and view in self.shop.views and view in notes
            }
        if wants_rows:
            self._snapshot_at = time.monotonic()
        self.samples += 1
        positions = {view: notes[view] for view in self.shop.views if view in notes}
        self.observe(positions)
        self.snapshots += [(view, positions[view], found) for view, found in rows.items()]

    def observe(self, positions: dict[str, Offsets]) -> None:
        """Check one sample of the positions of all views that have one."""
        now = time.monotonic()
        for view, offsets in positions.items():
            before = self.positions.get(view, {})
            for topic, partition, offset in _each(before):
                after = offsets.get(topic, {}).get(partition)
                if after is None or after < offset:
                    self.problems.append(f"{view}: {topic}-{partition} went back from {offset} to {after}")
            if offsets != before:
                waited = now - self.advanced_at.get(view, now)
                self.longest_pause[view] = max(self.longest_pause.get(view, 0.0), waited)
                self.advanced_at[view] = now
        for view in self.positions.keys() - positions.keys():
            self.problems.append(f"{view}: its position has disappeared")
        if self.same_position and positions:
            self.problems += different_positions(positions, self.shop.views)
        self.positions = positions

    def advances(self) -> int:
        """Return the sum of all positions, which grows with each batch of any view."""
        return sum(offset for offsets in self.positions.values() for _, _, offset in _each(offsets))


def different_positions(positions: dict[str, Offsets], views: tuple[str, ...]) -> list[str]:
    """Return a line for each partition in which two views differ, and for each view without a position."""
    lines = [f"{view} has no position, others have" for view in views if view not in positions]
    found: dict[tuple[str, str], dict[int, list[str]]] = {}
    for view, offsets in positions.items():
        for topic, partition, offset in _each(offsets):
            found.setdefault((topic, partition), {}).setdefault(offset, []).append(view)
    lines += [f"{topic}-{n}: {them}" for (topic, n), them in sorted(found.items()) if len(them) > 1]
    return lines


def _each(offsets: Offsets) -> Iterator[tuple[str, str, int]]:
    for topic, partitions in offsets.items():
        for partition, offset in partitions.items():
            yield topic, partition, offset


@contextlib.contextmanager
def reading(database: Path) -> Iterator[sqlite3.Connection]:
    """Open the store and begin a read transaction."""
    with contextlib.closing(
        sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, timeout=5, isolation_level=None)
    ) as db:
        db.execute("begin")
        yield db


def read_view(db: sqlite3.Connection, view: str) -> Rows:
    rows = db.execute(f"select {', '.join(COLUMNS[view])} from view_{view}").fetchall()
    return Counter(row for row in rows if view not in WINDOWED or row[0] != THE_END)


def read_log(servers: str, topic: str) -> list[tuple[str, int, bytes]]:
    """Return the partition, offset and value of each committed record of a topic; none if it does not exist."""
    from headwater.record import EARLIEST, LATEST, TopicPartition
    from headwater.transmit.client.client import Client
    from headwater.transmit.records.batch import decode_batch
    from headwater.transmit.records.batch_header import walk

    records = []
    with Client(servers, read_committed=True) as client:
        found = client.topics([topic])
        for partition in [TopicPartition(topic, n) for n in found[topic].leaders] if topic in found else []:
            at, end = (client.offsets([partition], bound)[partition] for bound in (EARLIEST, LATEST))
            while at < end:
                data, at = client.read(partition, at)
                for position, header in walk(data):
                    for record in () if header.is_control else decode_batch(data, position):
                        records.append((str(partition.partition), record.offset, record.value or b""))
    return records


class Run:
    """An app with its traffic and its sampler."""

    def __init__(self, folder: Path, shop: Shop, seed: int, *, same_position: bool = False) -> None:
        self.shop = shop
        self.app = AppProcess(folder, shop)
        self.database = self.app.data / "views.db"
        self.traffic = Traffic(self.app.servers, random.Random(f"traffic {seed}"))
        self.sampler = Sampler(self.database, shop, same_position)

    def close(self) -> None:
        self.traffic.interrupt()
        self.sampler.stop()
        self.app.close()

    def wait_until(self, is_true: Callable[[], object], what: str) -> None:
        """Wait until a condition holds; raises AssertionError if it does not, or if the app ends."""
        deadline = time.monotonic() + PATIENCE_S
        while not is_true():
            self.app.check_alive()
            assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {what}; {self.app.output()}"
            time.sleep(0.1)

    def wait_until_advanced(self) -> None:
        """Wait for the next advance of any view."""
        before = self.sampler.advances()
        self.wait_until(lambda: self.sampler.advances() > before, "a view advances")

    def wait_until_read(self) -> None:
        """Wait until every view has read all records that are in the log now."""
        records = [
            (topic, *record[:2]) for topic in (ORDERS, CUSTOMERS) for record in read_log(self.app.servers, topic)
        ]

        def is_read() -> bool:
            positions = self.sampler.positions
            return all(
                positions.get(view, {}).get(topic, {}).get(partition, 0) > offset
                for view in self.shop.views
                for topic, partition, offset in records
                if topic in READS.get(view, (ORDERS,))
            )

        self.wait_until(is_read, "every view has read the log")

    def outputs(self) -> dict[str, Rows]:
        """Return the rows of every output."""
        with reading(self.database) as db:
            found = {view: read_view(db, view) for view in self.shop.views}
        if self.shop.sinks:
            found |= {"halves": self._halves(), "archive": self._archive()}
        return found

    def _halves(self) -> Rows:
        import psycopg

        with psycopg.connect(self.shop.sinks["dsn"]) as db:
            rows = db.execute("select product, start, n, amount from halves").fetchall()
        return Counter(row for row in rows if row[0] != THE_END)

    def _archive(self) -> Rows:
        from headwater.sinks.parquet import read_parquet

        found = read_parquet(Path(self.shop.sinks["parquet"])).to_pylist()
        return Counter(tuple(row[name] for name in COLUMNS["archive"]) for row in found)

    def _letters(self) -> Rows:
        return Counter(value for _, _, value in read_log(self.app.servers, f"{ORDERS}.deadletter"))

    def finish(self) -> dict[str, Rows]:
        """End the traffic, wait for the results, stop the app, and compare; returns the expected rows.

        The results are compared before and after the app stops, so that nothing that arrives late escapes.
        """
        self.traffic.stop()
        events = self.traffic.acknowledged
        expected = expected_outputs(events)
        self.wait_until_read()
        self._check_log(events)

        def found() -> dict[str, Rows]:
            return {**self.outputs(), DEAD_LETTERS: self._letters()}

        deadline = time.monotonic() + PATIENCE_S / 3
        while problems := differences(found(), expected):
            self.app.check_alive()
            assert time.monotonic() < deadline, "\n".join([*problems, self.app.output()])
            time.sleep(0.5)
        self.sampler.stop()
        problems = self.sampler.problems + self._snapshot_problems()
        self.app.stop()
        problems += differences(self.outputs(), expected)
        assert not problems, "\n".join(list(dict.fromkeys(problems))[:10])
        return expected

    def _check_log(self, events: list[Event]) -> None:
        sent = Counter(event.value for event in events)
        kept = Counter(value for topic in (ORDERS, CUSTOMERS) for _, _, value in read_log(self.app.servers, topic))
        problems = differences({"log": kept}, {"log": sent})
        assert not problems, problems

    def _snapshot_problems(self) -> list[str]:
        """Compare the rows read while the app ran with the records before the position read with them."""
        orders = {event.value: event for event in self.traffic.acknowledged}
        records = [(n, offset, orders[value]) for n, offset, value in read_log(self.app.servers, ORDERS)]
        problems = []
        for view, offsets, rows in self.sampler.snapshots:
            ends = offsets.get(ORDERS, {})
            before = [event for partition, offset, event in records if offset < ends.get(partition, 0)]
            lines = differences({view: rows}, expected_outputs(before, [view]))
            problems += [f"at {ends} {line}" for line in lines]
        return problems
