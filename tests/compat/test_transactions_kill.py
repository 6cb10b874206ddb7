"""Transactions while the broker is killed: a reader of committed records never ends up with half of one.

Every transfer between accounts writes two records to two partitions in one transaction. Whenever the broker is
killed, readers see both records or neither: committed transfers are there, aborted ones are not, and none is there
twice.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as ConfluentPartition

from headwater.errors import UnavailableError
from headwater.record import LATEST, TopicPartition
from headwater.transmit.client.client import Client
from headwater.transmit.records.batch import decode_batch
from headwater.transmit.records.batch_header import walk

PARTITIONS = 3
WRITERS = 3
ROUNDS = int(os.environ.get("HEADWATER_KILL_ROUNDS", "4"))
WAIT_S = 60.0

SCRIPT = """
import os, signal, sys, time
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.topics.topics import Topics

data, port, markers_left, appends_left = sys.argv[1], *map(int, sys.argv[2:])
append, append_marker = Topics.append, Topics.append_marker

def append_then_die(self, partition, records, **more):
    global appends_left
    appended = append(self, partition, records, **more)
    if partition.name.topic == "accounts":
        appends_left -= 1
        if appends_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    return appended

def append_and_die(self, partition, marker, **more):
    global markers_left
    if markers_left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    markers_left -= 1
    return append_marker(self, partition, marker, **more)

Topics.append, Topics.append_marker = append_then_die, append_and_die
with Broker(data, port=port, segment_bytes=20_000) as broker:
    print("ready", flush=True)
    time.sleep(600)
"""


class Victim:
    """A broker in its own process, always on the same port and directory."""

    def __init__(self, data: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._data = data
        self._process: subprocess.Popen[str] | None = None

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, *, die_before_marker: int = -1, die_after_append: int = -1) -> None:
        deaths = [str(die_before_marker), str(die_after_append)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(self._data), str(self.port), *deaths],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def wait(self) -> None:
        """Wait until the broker has killed itself."""
        assert self._process is not None
        assert self._process.stdout is not None
        assert self._process.wait(WAIT_S) == -signal.SIGKILL
        self._process.stdout.close()
        self._process = None

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self.wait()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Victim]:
    victim = Victim(tmp_path / "data")
    yield victim
    victim.kill()


def open_producer(servers: str, name: str) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": servers, "transactional.id": name, "transaction.timeout.ms": 20_000,
            "reconnect.backoff.max.ms": 200, "retry.backoff.ms": 50, "retry.backoff.max.ms": 200,
            "socket.timeout.ms": 5000, "linger.ms": 0, "log_level": 0,
        }
    )  # fmt: skip
    while True:
        try:
            producer.init_transactions(WAIT_S)
            return producer
        except KafkaException as error:
            assert error.args[0].retriable(), error


class TransferWriter(threading.Thread):
    """Writes transfers with its own transactional id, and records the outcome of each."""

    def __init__(self, servers: str, name: str, seed: int) -> None:
        super().__init__(name=name)
        self._servers = servers
        self._chance = random.Random(seed)
        self._stopping = threading.Event()
        self.committed: list[str] = []
        self.aborted: list[str] = []

    def run(self) -> None:
        producer = open_producer(self._servers, self.name)
        number = 0
        while not self._stopping.is_set():
            number += 1
            transfer = f"{self.name}/{number}"
            try:
                self._transfer(producer, transfer)
            except KafkaException as error:
                if not self._abort(producer, error, transfer):
                    producer = open_producer(self._servers, self.name)

    def _transfer(self, producer: Producer, transfer: str) -> None:
        amount = self._chance.randrange(1, 100)
        payer, payee = self._chance.sample(range(PARTITIONS), 2)
        producer.begin_transaction()
        producer.produce("accounts", json.dumps([transfer, -amount]), partition=payer)
        producer.produce("accounts", json.dumps([transfer, amount]), partition=payee)
        if self._chance.random() < 0.2:
            producer.flush(0.01)
            self._retry(producer.abort_transaction)
            self.aborted.append(transfer)
        else:
            self._retry(producer.commit_transaction)
            self.committed.append(transfer)

    @staticmethod
    def _retry(call: Any) -> None:
        while True:
            try:
                return call(WAIT_S)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise

    def _abort(self, producer: Producer, error: KafkaException, transfer: str) -> bool:
        """Abort after an error, and return whether the producer can continue."""
        if not error.args[0].txn_requires_abort():
            return False
        try:
            self._retry(producer.abort_transaction)
        except KafkaException:
            return False
        self.aborted.append(transfer)
        return True

    def stop(self) -> None:
        self._stopping.set()
        self.join(WAIT_S)
        assert not self.is_alive()


def read_accounts(servers: str) -> list[tuple[str, int]]:
    """Wait until no transaction is open, then return every half of a transfer that is committed."""
    names = [TopicPartition("accounts", n) for n in range(PARTITIONS)]
    with Client(servers) as every, Client(servers, read_committed=True) as client:
        deadline = time.monotonic() + WAIT_S
        while client.offsets(names, LATEST) != every.offsets(names, LATEST):
            assert time.monotonic() < deadline, "a transaction stays open"
            time.sleep(0.05)
        halves: list[tuple[str, int]] = []
        for name, end in client.offsets(names, LATEST).items():
            at = 0
            while at < end:
                data, at = client.read(name, at)
                for position, header in walk(data):
                    if not header.is_control:
                        halves += [tuple(json.loads(r.value or b"")) for r in decode_batch(data, position)]
    return halves


class Auditor(threading.Thread):
    """Reads committed records continuously, and counts every half of a transfer it receives."""

    def __init__(self, servers: str) -> None:
        super().__init__(name="auditor")
        self._servers = servers
        self._stopping = threading.Event()
        self.seen: Counter[tuple[str, int]] = Counter()

    def run(self) -> None:
        at = dict.fromkeys((TopicPartition("accounts", n) for n in range(PARTITIONS)), 0)
        with Client(self._servers, read_committed=True) as client:
            while not self._stopping.is_set():
                for name in at:
                    try:
                        data, next_offset = client.read(name, at[name])
                    except UnavailableError:
                        continue  # nothing new, or the broker is down
                    for position, header in walk(data):
                        if not header.is_control:
                            shown = [r for r in decode_batch(data, position) if r.offset >= at[name]]
                            self.seen.update(tuple(json.loads(r.value or b"")) for r in shown)
                    at[name] = next_offset

    def stop(self) -> None:
        self._stopping.set()
        self.join(WAIT_S)


def test_transfers_are_complete_whenever_the_broker_is_killed(broker: Victim) -> None:
    seed = int(os.environ.get("HEADWATER_SEED", random.randrange(2**32)))
    print(f"HEADWATER_SEED={seed}")
    chance = random.Random(seed)
    broker.start()
    servers = broker.bootstrap_servers
    with Client(servers) as client:
        client.create_topic("accounts", partitions=PARTITIONS)
    writers = [TransferWriter(servers, f"writer-{n}", chance.randrange(2**32)) for n in range(WRITERS)]
    auditor = Auditor(servers)
    for thread in (*writers, auditor):
        thread.start()
    for _ in range(ROUNDS):
        goal = sum(len(writer.committed) for writer in writers) + chance.randrange(5, 40)
        deadline = time.monotonic() + WAIT_S
        while sum(len(writer.committed) for writer in writers) < goal:
            assert time.monotonic() < deadline, f"{goal} transfers were not reached"
            time.sleep(0.001)
        time.sleep(chance.random() * 0.05)
        broker.kill()
        broker.start()
    for thread in (*writers, auditor):
        thread.stop()
    halves = read_accounts(servers)
    amounts: dict[str, list[int]] = {}
    for transfer, amount in halves:
        amounts.setdefault(transfer, []).append(amount)
    assert {t: a for t, a in amounts.items() if len(a) != 2 or sum(a) != 0} == {}
    committed = {transfer for writer in writers for transfer in writer.committed}
    aborted = {transfer for writer in writers for transfer in writer.aborted}
    assert committed - set(amounts) == set()
    assert aborted & set(amounts) == set()
    assert auditor.seen - Counter(halves) == Counter()  # records that were read once stay
    print(f"{len(committed)} committed, {len(aborted)} aborted, {len(auditor.seen)} halves seen meanwhile")


@pytest.mark.parametrize("markers", range(3), ids=lambda n: f"{n} markers written")
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_decision_survives_a_kill_before_its_markers(broker: Victim, markers: int, commit: bool) -> None:
    broker.start(die_before_marker=markers)
    servers = broker.bootstrap_servers
    with Client(servers) as client:
        client.create_topic("accounts", partitions=PARTITIONS)
    producer = open_producer(servers, "writer")
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "writers"})
    producer.begin_transaction()
    for partition in range(PARTITIONS):
        producer.produce("accounts", json.dumps(["t", partition]), partition=partition)
    producer.send_offsets_to_transaction(
        [ConfluentPartition("accounts", 0, 7)], consumer.consumer_group_metadata(), WAIT_S
    )
    assert producer.flush(WAIT_S) == 0
    ending = producer.commit_transaction if commit else producer.abort_transaction
    thread = threading.Thread(target=lambda: ending(WAIT_S))
    thread.start()
    broker.wait()
    broker.start()
    thread.join(WAIT_S)
    expected = [("t", partition) for partition in range(PARTITIONS)] if commit else []
    assert sorted(read_accounts(servers)) == expected
    (found,) = consumer.committed([ConfluentPartition("accounts", 0)], WAIT_S)
    consumer.close()
    assert found.offset == (7 if commit else -1001)


def test_a_record_after_an_abort_is_not_deduplicated_against_an_abandoned_one(broker: Victim) -> None:
    """The broker dies after it appended a record; the producer abandons it and reuses its sequence number."""
    broker.start(die_after_append=1)
    servers = broker.bootstrap_servers
    with Client(servers) as client:
        client.create_topic("accounts", partitions=PARTITIONS)

    def transfer(producer: Producer) -> None:
        producer.begin_transaction()
        producer.produce("accounts", json.dumps(["kept", 2]), partition=0)
        TransferWriter._retry(producer.commit_transaction)

    producer = open_producer(servers, "writer")
    producer.begin_transaction()
    producer.produce("accounts", json.dumps(["given up", 1]), partition=0)
    producer.flush(0.01)
    broker.wait()
    ending = threading.Thread(target=lambda: TransferWriter._retry(producer.abort_transaction))
    ending.start()  # the record is queued for a retry, and is purged
    time.sleep(0.5)
    broker.start()
    ending.join(WAIT_S)
    # Otherwise the record would count as a duplicate of the first one, and as committed.
    with pytest.raises(KafkaException) as error:
        transfer(producer)
    assert error.value.args[0].code() == KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
    transfer(open_producer(servers, "writer"))
    assert read_accounts(servers) == [("kept", 2)]
