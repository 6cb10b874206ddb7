"""A broker is killed repeatedly while a producer writes: no acknowledged record is lost or duplicated.

The rule is that of Kafka's own tests (`validate_delivery`): every acknowledged record is in the log, in order, at
the acknowledged offset; with an idempotent producer it is there exactly once.
"""

import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import kafka
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ConfluentPartition

from headwater.record import LATEST, TopicPartition
from headwater.transmit.client.client import Client
from headwater.transmit.records.batch import decode_batch
from headwater.transmit.records.batch_header import walk

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # kafka-python's

ROUNDS = 5
PARTITIONS = 2
PATIENCE_S = 60.0

SCRIPT = """
import json, sys, time
from headwater.transmit.broker.embedded import Broker

data, port, segment_bytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with Broker(data, port=port, segment_bytes=segment_bytes) as broker:
    print(json.dumps([[str(name), size] for name, size in broker.recovered]), flush=True)
    time.sleep(600)
"""


class Victim:
    """A broker in its own process, always on the same port and directory."""

    def __init__(self, data: Path, segment_bytes: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._arguments = [str(data), str(self.port), str(segment_bytes)]
        self._process: subprocess.Popen[str] | None = None
        self.recovered: list[list[Any]] = []

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> "Victim":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, *self._arguments], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.recovered = json.loads(self._process.stdout.readline())

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process.stdout.close()
            self._process = None


class ConfluentWriter:
    def __init__(self, servers: str, acknowledge: Any) -> None:
        self._acknowledge = acknowledge
        self._producer = Producer(
            {
                "bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 1,
                "reconnect.backoff.max.ms": 200, "retry.backoff.ms": 50, "retry.backoff.max.ms": 200,
                "socket.timeout.ms": 5000,
            }
        )  # fmt: skip

    def send(self, partition: int, value: bytes) -> None:
        def delivered(error: object, message: Any) -> None:
            self._acknowledge(error, partition, value, message.offset())

        self._producer.produce("orders", value, partition=partition, on_delivery=delivered)
        self._producer.poll(0)

    def close(self) -> None:
        assert self._producer.flush(PATIENCE_S) == 0


class KafkaPythonWriter:
    def __init__(self, servers: str, acknowledge: Any) -> None:
        self._acknowledge = acknowledge
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=servers, enable_idempotence=True, retry_backoff_ms=50, reconnect_backoff_max_ms=200,
            request_timeout_ms=5000, delivery_timeout_ms=int(PATIENCE_S * 1000),
        )  # fmt: skip

    def send(self, partition: int, value: bytes) -> None:
        future = self._producer.send("orders", value, partition=partition)
        future.add_callback(lambda done: self._acknowledge(None, partition, value, done.offset))
        future.add_errback(lambda error: self._acknowledge(error, partition, value, -1))

    def close(self) -> None:
        self._producer.flush(PATIENCE_S)
        self._producer.close()


class NumberWriter:
    """Writes numbers to every partition until `stop` is called."""

    def __init__(self, kind: type, servers: str) -> None:
        self.acknowledged: list[dict[int, int]] = [{} for _ in range(PARTITIONS)]
        self.errors: list[object] = []
        self.sent = 0
        self._stop = threading.Event()
        self._writer = kind(servers, self._note)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _note(self, error: object, partition: int, value: bytes, offset: int) -> None:
        if error is not None:
            self.errors.append(error)
        else:
            self.acknowledged[partition][int(value.split()[0])] = offset

    def _run(self) -> None:
        while not self._stop.is_set():
            for partition in range(PARTITIONS):
                self._writer.send(partition, b"%d %s" % (self.sent, b"x" * 500))
            self.sent += 1
            time.sleep(0.0005)

    @property
    def count(self) -> int:
        return min(map(len, self.acknowledged))

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._writer.close()


def wait_for(writing: NumberWriter, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while writing.count < count and not writing.errors:
        assert time.monotonic() < deadline, f"{writing.count} acknowledged, {count} expected"
        time.sleep(0.01)


def read_numbers(client: Client, partition: TopicPartition) -> list[int]:
    end = client.offsets([partition], LATEST)[partition]
    numbers: list[int] = []
    while len(numbers) < end:
        data, _ = client.read(partition, len(numbers))
        records = [record for at, _ in walk(data) for record in decode_batch(data, at)]
        numbers += [int(r.value.split()[0]) for r in records if r.offset >= len(numbers)]
    return numbers


@pytest.mark.compat("after kill -9: what was acknowledged, once")
@pytest.mark.parametrize("segment_bytes", [1 << 30, 100_000], ids=["one segment", "many segments"])
@pytest.mark.parametrize("kind", [ConfluentWriter, KafkaPythonWriter], ids=["confluent-kafka", "kafka-python"])
def test_acknowledged_records_are_there_once_after_kills(tmp_path: Path, kind: type, segment_bytes: int) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    with Victim(tmp_path / "data", segment_bytes) as broker, Client(broker.bootstrap_servers) as client:
        client.create_topic("orders", partitions=PARTITIONS)
        writing = NumberWriter(kind, broker.bootstrap_servers)
        try:
            kill_repeatedly(broker, writing, tmp_path / "data" / "log", random.Random(seed))
        finally:
            writing.stop()
        assert writing.errors == []
        with Client(broker.bootstrap_servers) as after:
            for partition in range(PARTITIONS):
                numbers = read_numbers(after, TopicPartition("orders", partition))
                assert numbers == list(range(writing.sent))
                assert writing.acknowledged[partition] == {number: number for number in numbers}


def kill_repeatedly(broker: Victim, writing: NumberWriter, log: Path, chance: random.Random) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "readers"})
    try:
        for _ in range(ROUNDS):
            wait_for(writing, writing.count + chance.randrange(20, 400))
            committed = writing.count
            consumer.commit(offsets=[ConfluentPartition("orders", 0, committed)], asynchronous=False)
            time.sleep(chance.random() * 0.1)
            broker.kill()
            # As if the kill had interrupted a write; sometimes it really does, in either partition.
            with max(log.glob("orders-1-*/*.log")).open("ab") as file:
                file.write(b"half a batch")
            broker.start()
            assert dict(broker.recovered)["orders-1"] >= len(b"half a batch")
            (found,) = consumer.committed([ConfluentPartition("orders", 0)], PATIENCE_S)
            assert found.offset == committed
        wait_for(writing, writing.count + 20)
    finally:
        consumer.close()
