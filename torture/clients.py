"""A checker modeled on Jepsen's Kafka workload: producers, transactions and consumers under kill -9 and SIGSTOP.

Writers send unique values. The acknowledgements they receive and the records that readers receive form a history,
and `check` returns its anomalies, named as in https://github.com/jepsen-io/jepsen, tests/kafka.clj. A seed
repeats a run's choices: the faults, including the storage operation at which the broker kills itself, and what
each writer does. It does not control how threads and processes are scheduled.
"""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException, Producer

from headwater.errors import UnavailableError
from headwater.record import LATEST, TopicPartition
from headwater.transmit.client.client import Client
from headwater.transmit.records.batch import decode_batch
from headwater.transmit.records.batch_header import walk

ROOT = Path(__file__).resolve().parents[1]
PARTITIONS = 2
WAIT_S = 60.0

Position = tuple[int, int]
"""Partition and offset."""


@dataclass(frozen=True, slots=True)
class Value:
    """A unique value: each writer numbers its values in ascending order."""

    writer: str
    number: int


@dataclass(slots=True)
class History:
    """The outcomes that writers were given, and the records that readers received."""

    acknowledged: list[tuple[Value, Position]] = field(default_factory=list)
    """Values of writers without transactions, with the acknowledged position."""
    committed: set[Value] = field(default_factory=set)
    aborted: set[Value] = field(default_factory=set)
    polls: dict[str, list[tuple[Position, Value]]] = field(default_factory=dict)
    """The records that each read-committed reader received, in order."""
    log: list[tuple[Position, Value]] = field(default_factory=list)
    """All records at the end of the run, committed or not."""
    committed_log: list[tuple[Position, Value]] = field(default_factory=list)
    """The committed records at the end of the run."""


def check(history: History) -> dict[str, object]:
    """Return the anomalies of a history by name; empty if there are none."""
    polled = [entry for poll in history.polls.values() for entry in poll]
    visible = {value for _, value in history.committed_log}
    expected = {value for value, _ in history.acknowledged} | history.committed
    findings = {
        "lost-write": expected - visible,
        "duplicate": {v for v, n in Counter(value for _, value in history.log).items() if n > 1},
        "aborted-read": history.aborted & (visible | {value for _, value in polled}),
        "inconsistent-offsets": _inconsistent(
            [*history.log, *history.committed_log, *polled, *((p, v) for v, p in history.acknowledged)]
        ),
        "reordered": _reordered(history.log),
        "nonmonotonic-poll": {name for name, poll in history.polls.items() if _goes_back(poll)},
        "poll-skip": {name for name, poll in history.polls.items() if _skips(poll, history.committed_log)},
    }
    return {name: found for name, found in findings.items() if found}


def _inconsistent(entries: Iterable[tuple[Position, Value]]) -> set[Position]:
    known: dict[Position, Value] = {}
    return {position for position, value in entries if known.setdefault(position, value) != value}


def _reordered(log: list[tuple[Position, Value]]) -> set[Value]:
    last: dict[tuple[int, str], int] = {}
    found = set()
    for (partition, _), value in sorted(log, key=lambda entry: entry[0]):
        if value.number < last.get((partition, value.writer), -1):
            found.add(value)
        last[partition, value.writer] = value.number
    return found


def _goes_back(poll: list[tuple[Position, Value]]) -> bool:
    last: dict[int, int] = {}
    for (partition, offset), _ in poll:
        if offset <= last.get(partition, -1):
            return True
        last[partition] = offset
    return False


def _skips(poll: list[tuple[Position, Value]], log: list[tuple[Position, Value]]) -> bool:
    """Return whether a reader that starts at the beginning missed a record before the last one it received."""
    seen = {position for position, _ in poll}
    last: dict[int, int] = {}
    for partition, offset in seen:
        last[partition] = max(offset, last.get(partition, -1))
    return any(position not in seen and position[1] < last.get(position[0], -1) for position, _ in log)


# -- the run --------------------------------------------------------------------------------------------------

SCRIPT = """
import sys, time
from headwater.transmit.broker.embedded import Broker

if len(sys.argv) > 3:
    from support.disk import die_after
    die_after(int(sys.argv[3]))
with Broker(sys.argv[1], port=int(sys.argv[2]), segment_bytes=20_000) as broker:
    print("ready", flush=True)
    time.sleep(600)
"""


class Victim:
    """A broker in its own process, always on the same port and directory."""

    def __init__(self, data: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.bootstrap_servers = f"127.0.0.1:{self._port}"
        self._data = data
        self._process: subprocess.Popen[str] | None = None

    def start(self, die_after: int | None = None) -> bool:
        """Start the broker and return whether it is ready.

        With `die_after` it kills itself after this many storage operations.
        """
        arguments = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(self._data), str(self._port)]
        if die_after is not None:
            arguments.append(str(die_after))
        # Explicitly, since the tests set PYTHONSAFEPATH: without `support` the broker would die before it does
        # anything.
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            arguments, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
        )
        assert self._process.stdout is not None
        return self._process.stdout.readline() == "ready\n"

    def wait_dead(self, seconds: float) -> bool:
        """Return whether the broker has died by itself within this time."""
        assert self._process is not None
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self.send(signal.SIGKILL)
            assert self._process.stdout is not None
            self._process.wait(WAIT_S)
            self._process.stdout.close()
            self._process = None


class Worker(threading.Thread):
    """Repeats a step until `stop` is called, which raises the error that ended it early, if any."""

    def __init__(self, name: str, open_step: Callable[[], Callable[[], None]]) -> None:
        super().__init__(name=name)
        self._open_step = open_step
        self._stopping = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            step = self._open_step()
            while not self._stopping.is_set():
                step()
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        self._stopping.set()
        self.join(2 * WAIT_S)
        assert not self.is_alive(), self.name
        if self.error is not None:
            raise self.error


def producer(servers: str, **more: Any) -> Producer:
    return Producer(
        {
            "bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 1, "log_level": 0,
            "reconnect.backoff.max.ms": 200, "retry.backoff.ms": 50, "retry.backoff.max.ms": 200,
            "socket.timeout.ms": 5000, **more,
        }
    )  # fmt: skip


def write_idempotently(servers: str, name: str, history: History, chance: random.Random) -> Callable[[], None]:
    """Return the step of an idempotent writer without transactions."""
    sender = producer(servers)
    number = 0

    def step() -> None:
        nonlocal number
        for _ in range(chance.randrange(1, 20)):
            value, partition = Value(name, number), chance.randrange(PARTITIONS)
            number += 1

            def delivered(error: object, message: Any, value: Value = value) -> None:
                assert error is None, error
                history.acknowledged.append((value, (message.partition(), message.offset())))

            sender.produce("orders", f"{name} {value.number}", partition=partition, on_delivery=delivered)
        assert sender.flush(WAIT_S) == 0
        time.sleep(0.01)

    return step


def write_in_transactions(servers: str, name: str, history: History, chance: random.Random) -> Callable[[], None]:
    """Return the step of a writer that runs one transaction per step.

    If the outcome of a transaction is unknown, its values enter neither `committed` nor `aborted`.
    """

    def open_producer() -> Producer:
        opened = producer(servers, **{"transactional.id": name, "transaction.timeout.ms": 20_000})
        retry(opened.init_transactions)
        return opened

    sender = open_producer()
    number = 0

    def step() -> None:
        nonlocal number, sender
        values = [Value(name, number + n) for n in range(chance.randrange(1, 5))]
        number += len(values)
        try:
            sender.begin_transaction()
            for value in values:
                sender.produce("orders", f"{name} {value.number}", partition=chance.randrange(PARTITIONS))
            if chance.random() < 0.3:
                sender.flush(0.02)
                retry(sender.abort_transaction)
                history.aborted.update(values)
            else:
                retry(sender.commit_transaction)
                history.committed.update(values)
        except KafkaException as error:
            try:
                if not error.args[0].txn_requires_abort():
                    raise
                retry(sender.abort_transaction)
                history.aborted.update(values)
            except KafkaException:
                sender = open_producer()

    return step


def retry(call: Callable[[float], Any]) -> None:
    """Repeat a call while its error is retriable."""
    while True:
        try:
            call(WAIT_S)
            return
        except KafkaException as error:
            if not error.args[0].retriable():
                raise


def read(client: Client, name: TopicPartition, at: int) -> tuple[list[tuple[Position, Value]], int]:
    data, next_offset = client.read(name, at)
    found = []
    for position, header in walk(data):
        for record in [] if header.is_control else decode_batch(data, position):
            if record.offset >= at:
                writer, number = (record.value or b"").decode().split()
                found.append(((name.partition, record.offset), Value(writer, int(number))))
    return found, next_offset


def poll(servers: str, poll_: list[tuple[Position, Value]]) -> Callable[[], None]:
    """Return the step of a reader of committed records."""
    at = {TopicPartition("orders", n): 0 for n in range(PARTITIONS)}

    def step() -> None:
        with Client(servers, read_committed=True) as client:
            try:
                for name, end in client.offsets(at, LATEST).items():
                    if end > at[name]:
                        found, at[name] = read(client, name, at[name])
                        poll_.extend(found)
            except UnavailableError:
                pass  # the broker is down
        time.sleep(0.01)

    return step


def read_everything(servers: str, *, read_committed: bool) -> list[tuple[Position, Value]]:
    """Wait until no transaction is open, then return all records."""
    names = [TopicPartition("orders", n) for n in range(PARTITIONS)]
    entries = []
    with Client(servers) as every, Client(servers, read_committed=True) as stable:
        deadline = time.monotonic() + WAIT_S
        while every.offsets(names, LATEST) != stable.offsets(names, LATEST):
            assert time.monotonic() < deadline, "a transaction stays open"
            time.sleep(0.05)
        client = stable if read_committed else every
        for name, end in client.offsets(names, LATEST).items():
            at = 0
            while at < end:
                found, at = read(client, name, at)
                entries += found
    return entries


@dataclass(slots=True)
class Report:
    """The counts of a run."""

    crashes: int = 0
    stops: int = 0
    records: int = 0
    acknowledged: int = 0
    committed: int = 0
    aborted: int = 0
    polled: int = 0


class Violation(AssertionError):
    """A broken guarantee."""


def run(seed: int, faults: int) -> Report:
    """Run a broker in a temporary folder, with faults; raises Violation if a guarantee was broken."""
    folder = Path(tempfile.mkdtemp(prefix="headwater-torture-"))
    broker = Victim(folder / "data")
    try:
        return _run(broker, random.Random(seed), faults)
    finally:
        broker.kill()
        shutil.rmtree(folder)


def _run(broker: Victim, chance: random.Random, faults: int) -> Report:
    assert broker.start()
    servers = broker.bootstrap_servers
    with Client(servers) as client:
        client.create_topic("orders", partitions=PARTITIONS)
    history = History(polls={"reader": []})
    workers = [Worker("reader", lambda: poll(servers, history.polls["reader"]))]
    for kind, name in (
        (write_idempotently, "p"),
        (write_in_transactions, "t"),
        (write_in_transactions, "u"),
    ):
        own = random.Random(chance.randrange(2**32))
        workers.append(Worker(name, lambda k=kind, n=name, o=own: k(servers, n, history, o)))  # type: ignore[misc]
    for worker in workers:
        worker.start()
    report = Report()
    for _ in range(faults):
        time.sleep(0.2 + chance.random())
        _disturb(broker, chance, report)
    time.sleep(1)
    for worker in workers:
        worker.stop()
    history.log = read_everything(servers, read_committed=False)
    history.committed_log = read_everything(servers, read_committed=True)
    report.records, report.acknowledged = len(history.log), len(history.acknowledged)
    report.committed, report.aborted = len(history.committed), len(history.aborted)
    report.polled = len(history.polls["reader"])
    found = check(history)
    if found:
        raise Violation(f"{found}")
    if not min(report.acknowledged, report.committed, report.polled):
        raise Violation(f"the run proves nothing: a writer or the reader made no progress: {report}")
    return report


def _disturb(broker: Victim, chance: random.Random, report: Report) -> None:
    """Kill the broker, let it kill itself during a storage operation, or pause it for a while."""
    kind = chance.random()
    if kind < 0.35:
        broker.kill()
        report.crashes += 1
    elif kind < 0.8:
        broker.kill()
        report.crashes += 1
        # During recovery or soon after: every append, sync and rename counts as an operation.
        is_up = broker.start(die_after=int(chance.choice([10, 100, 1000]) * (1 + chance.random())))
        if broker.wait_dead(3.0 if is_up else WAIT_S):
            report.crashes += 1
        broker.kill()
    else:
        broker.send(signal.SIGSTOP)
        time.sleep(chance.random())
        broker.send(signal.SIGCONT)
        report.stops += 1
        return
    assert broker.start()
