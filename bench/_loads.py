"""Workloads for a broker: Kafka's own performance tools, and confluent-kafka from Python."""

import json
import multiprocessing
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import confluent_kafka

from headwater.errors import UnavailableError
from headwater.record import Record, TopicPartition
from headwater.transmit.client.client import Client
from headwater.transmit.records.batch import encode_batch
from support.brokers import KAFKA_VERSION, Running, java, kafka_jars

TOOL_WAIT_S = 300
BATCH_BYTES = 64_000
_PRODUCED = re.compile(r"([\d.]+) records/sec")
_PERCENTILES = re.compile(r"Percentiles: 50th = ([\d.]+), 99th = ([\d.]+)")
_QUIET = {"log_level": 2}
_KEYS = 100


def _tool(name: str, *arguments: str) -> list[str]:
    return java(kafka_jars(KAFKA_VERSION), f"org.apache.kafka.tools.{name}", *arguments)


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_WAIT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[5]} failed:\n{done.stdout[-1500:]}{done.stderr[-1500:]}")
    return done.stdout


def _produce_command(servers: str, topic: str, count: int, size: int, acks: str, rate: int = -1) -> list[str]:
    to = ("--bootstrap-server", servers, "--topic", topic)
    what = ("--num-records", str(count), "--record-size", str(size), "--throughput", str(rate))
    return _tool("ProducerPerformance", *to, *what, "--command-property", f"acks={acks}")


def java_produce(servers: str, topic: str, count: int, size: int, acks: str) -> float:
    """Return records per second, as ProducerPerformance prints them in its last line."""
    return float(_PRODUCED.findall(_run(_produce_command(servers, topic, count, size, acks)))[-1])


def java_consume(servers: str, topic: str, count: int) -> float:
    """Return records per second while fetching, without joining the group, as ConsumerPerformance prints them."""
    to = ("--bootstrap-server", servers, "--topic", topic, "--num-records", str(count), "--hide-header")
    return float(_run(_tool("ConsumerPerformance", *to)).strip().splitlines()[-1].split(",")[-1])


def java_latency(servers: str, topic: str, count: int, noise: str, load: int) -> dict[str, float]:
    """Return p50 and p99 in ms of one record at a time, while another producer sends `load` records/s of 1 KB."""
    background = None
    if load:
        command = _produce_command(servers, noise, load * TOOL_WAIT_S, 1000, "1", load)
        background = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(3)  # until it has reached its rate
    try:
        found = _PERCENTILES.search(_run(_tool("EndToEndLatency", servers, topic, str(count), "1", "100")))
    finally:
        if background is not None:
            background.kill()
            background.wait()
    assert found is not None
    return {"p50": float(found[1]), "p99": float(found[2])}


def fill(servers: str, topic: str, partitions: int, count: int, size: int) -> int:
    """Write at least `count` records in batches of one size, so that every broker serves the same bytes.

    With a producer, a slower broker would get larger batches, which are read faster.
    """
    batch_count = max(1, BATCH_BYTES // size)
    batch = encode_batch([Record(value=b"x" * size, timestamp_ms=int(time.time() * 1000))] * batch_count)
    batches = -(-count // batch_count)
    with Client(servers) as client:
        for number in range(batches):
            client.produce(TopicPartition(topic, number % partitions), batch)
    return batches * batch_count


def wait_until_ready(servers: str, topic: str, partitions: int) -> None:
    """Write a record to each partition: Kafka creates partitions one by one after it reports the topic."""
    batch = encode_batch([Record(value=b"ready", timestamp_ms=int(time.time() * 1000))])
    deadline = time.monotonic() + TOOL_WAIT_S
    with Client(servers) as client:
        for number in range(partitions):
            while True:
                try:
                    client.produce(TopicPartition(topic, number), batch)
                    break
                except UnavailableError:
                    assert time.monotonic() < deadline, f"{topic} has no leader for partition {number}"
                    time.sleep(0.05)


def python_produce(servers: str, topic: str, count: int, size: int, acks: str) -> float:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": servers, "acks": acks, "queue.buffering.max.messages": 1_000_000, **_QUIET}
    )
    producer.list_topics(topic, timeout=10)
    value = b"x" * size
    began = time.perf_counter()
    for number in range(count):
        try:
            producer.produce(topic, value)
        except BufferError:
            producer.poll(0.1)
            producer.produce(topic, value)
        if not number % 1000:
            producer.poll(0)
    left = producer.flush(TOOL_WAIT_S)
    assert left == 0, f"{left} records were not acknowledged"
    return count / (time.perf_counter() - began)


def python_consume(servers: str, topic: str, count: int) -> float:
    """Return records per second, counted from the first batch received."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "bench",
            "auto.offset.reset": "earliest",
            # By default it pauses fetching for a second once 100,000 records are queued, which slows down only the
            # faster broker.
            "fetch.queue.backoff.ms": 5,
            "queued.min.messages": 1_000_000,
            **_QUIET,
        }
    )
    partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in partitions])
    rows, first, deadline = 0, 0.0, time.monotonic() + TOOL_WAIT_S
    while rows < count and time.monotonic() < deadline:
        messages = consumer.consume(1_000, 0.1)
        if messages and not first:
            first = time.perf_counter()
            count -= len(messages)  # they arrived before the clock started
            continue
        rows += len(messages)
    assert rows >= count, f"received {rows} of {count} records"
    rate = rows / (time.perf_counter() - first)
    consumer.close()
    return rate


def acknowledged_after(broker: Running) -> float:
    """Return the seconds from the start of the broker's process to the first acknowledged record."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.servers, "acks": "all", "reconnect.backoff.max.ms": 100, **_QUIET}
    )
    producer.produce("first", b"x")
    assert producer.flush(60) == 0
    return time.monotonic() - broker.started


Event = Callable[[int, str], str]
"""Returns the JSON of an event from its number and the end of the JSON: `sent`, `at` and the closing bracket."""


def keyed(number: int, rest: str) -> str:
    """Return an event with a key, the time of sending, and that time as event time."""
    return f'{{"key": "{number % _KEYS}", {rest}'


def _produce(servers: str, topic: str, rate: int, event: Event) -> None:
    """Append events at a rate until killed."""
    settings = {"bootstrap.servers": servers, "linger.ms": 1, "queue.buffering.max.messages": 1_000_000}
    producer = confluent_kafka.Producer(settings)
    began, sent = time.perf_counter(), 0
    while True:
        due = int((time.perf_counter() - began) * rate)
        now = time.time()
        rest = json.dumps({"sent": now, "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))})[1:]
        for number in range(sent, due):
            producer.produce(topic, event(number, rest).encode())
        sent = due
        producer.poll(0.001)


@contextmanager
def producing(servers: str, topic: str, rate: int, event: Event = keyed) -> Iterator[None]:
    """Append events at a rate from another process while the block runs."""
    process = multiprocessing.get_context("spawn").Process(target=_produce, args=(servers, topic, rate, event))
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()
