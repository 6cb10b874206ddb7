"""Prometheus metrics: names, values, and the HTTP page."""

import asyncio
import re
import socket
import urllib.error
import urllib.request
from pathlib import Path

import confluent_kafka
import pytest

from headwater.clock import ManualClock
from headwater.record import Record, TopicPartition
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.broker.monitoring.metrics import render
from headwater.transmit.broker.monitoring.metrics_page import serve_metrics
from headwater.transmit.broker.node import BrokerSettings, Endpoint, open_node
from headwater.transmit.records.attributes import Compression
from headwater.transmit.records.batch import encode_batch
from headwater.transmit.records.control import Marker
from headwater.transmit.topics.catalog import Catalog, CommittedOffset

SAMPLE = re.compile(r'[a-z_]+(\{[a-z_]+="[^"]*"(,[a-z_]+="[^"]*")*\})? -?[0-9.e+-]+')


def sample(text: str, name: str) -> float:
    return float(next(line for line in text.splitlines() if line.startswith(f"{name} ")).rpartition(" ")[2])


def test_lag_in_records_and_seconds(tmp_path: Path) -> None:
    clock = ManualClock(start_ms=60_000)
    settings = BrokerSettings(data=tmp_path, durability="never")
    Catalog(_created(tmp_path) / "meta.db").close()
    node = open_node(settings, Endpoint(host="x", port=1), clock)
    node.topics.create("orders", 2, {})
    partition = node.topics.partition("orders", 0)
    assert partition is not None
    for second in (10, 20, 30):
        batch = encode_batch([Record(value=b"x", timestamp_ms=second * 1000)])
        node.topics.append(partition, memoryview(bytearray(batch)))
    committed = CommittedOffset(offset=1, leader_epoch=0, metadata=None)
    node.catalog.commit_offsets('a "group"', [(TopicPartition("orders", 0), committed)], now_ms=0)
    text = render(node)
    where = 'topic="orders",partition="0"'
    group = 'consumergroup="a \\"group\\""'
    assert sample(text, f"kafka_topic_partition_current_offset{{{where}}}") == 3
    assert sample(text, f"kafka_topic_partition_oldest_offset{{{where}}}") == 0
    assert sample(text, f"kafka_consumergroup_current_offset{{{group},{where}}}") == 1
    assert sample(text, f"kafka_consumergroup_lag{{{group},{where}}}") == 2
    lag = 'kafka_consumergroup_group_lag_seconds{group="a \\"group\\"",' + where + "}"
    assert sample(text, lag) == 40
    asyncio.run(node.topics.close())
    node.catalog.close()


def test_lag_in_seconds_of_each_record(tmp_path: Path) -> None:
    clock = ManualClock(start_ms=60_000)
    Catalog(_created(tmp_path) / "meta.db").close()
    node = open_node(BrokerSettings(data=tmp_path, durability="never"), Endpoint(host="x", port=1), clock)
    node.topics.create("orders", 1, {})
    partition = node.topics.partition("orders", 0)
    assert partition is not None
    producer = Marker(producer_id=7, producer_epoch=0, is_commit=False, coordinator_epoch=0)
    node.topics.append_marker(partition, producer, now_ms=1)
    seconds = (10, 25, 20, 30)
    batch = [Record(key=b"k", value=b"x", timestamp_ms=second * 1000) for second in seconds]
    for compression in (Compression.NONE, Compression.ZSTD):
        node.topics.append(partition, memoryview(bytearray(encode_batch(batch, compression=compression))))
    where = TopicPartition("orders", 0)
    # A control batch comes before the first record, and no record after the last.
    ages = [50, 50, 35, 40, 30, 50, 35, 40, 30, 0, 0]
    for offset, age in enumerate(ages):
        committed = CommittedOffset(offset=offset, leader_epoch=0, metadata=None)
        node.catalog.commit_offsets("g", [(where, committed)], now_ms=0)
        lag = 'kafka_consumergroup_group_lag_seconds{group="g",topic="orders",partition="0"}'
        assert sample(render(node), lag) == age, offset
    asyncio.run(node.topics.close())
    node.catalog.close()


def _created(path: Path) -> Path:
    path.mkdir(exist_ok=True)
    return path


def test_request_counters(broker: Broker) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers, "acks": "all"})
    producer.produce("orders", b"x" * 1000)
    assert producer.flush(20) == 0
    text = broker.metrics()
    assert sample(text, 'headwater_requests_total{api="Produce"}') == 1
    assert sample(text, "headwater_bytes_in_total") > 1000
    assert sample(text, "headwater_bytes_out_total") > 0
    assert sample(text, "headwater_connections") >= 1
    assert sample(text, "headwater_fsync_total") >= 1
    assert sample(text, "headwater_queued_request_bytes") == 0
    assert sample(text, "kafka_brokers") == 1
    assert sample(text, "process_resident_memory_bytes") > 1_000_000
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert [line for line in lines if not SAMPLE.fullmatch(line)] == []


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=20) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def failing() -> str:
    raise RuntimeError("no metrics")


@pytest.mark.parametrize(
    ("path", "render", "status"),
    [("/metrics", lambda: "up 1\n", 200), ("/", lambda: "up 1\n", 404), ("/metrics", failing, 500)],
)
def test_metrics_page(path: str, render: object, status: int) -> None:
    async def request() -> tuple[int, str]:
        server = await serve_metrics("127.0.0.1", 0, render)
        async with server:
            port = server.sockets[0].getsockname()[1]
            return await asyncio.to_thread(get, f"http://127.0.0.1:{port}{path}")

    found, body = asyncio.run(request())
    assert found == status
    assert status != 200 or body == "up 1\n"


def test_random_bytes_close_only_their_connection() -> None:
    async def request() -> tuple[int, str]:
        server = await serve_metrics("127.0.0.1", 0, lambda: "up 1\n")
        async with server:
            port = server.sockets[0].getsockname()[1]

            def send_random_bytes() -> bytes:
                with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
                    client.sendall(b"x" * 100_000)
                    try:
                        return client.recv(10)
                    except ConnectionResetError:
                        return b""

            assert await asyncio.to_thread(send_random_bytes) == b""
            return await asyncio.to_thread(get, f"http://127.0.0.1:{port}/metrics")

    assert asyncio.run(request()) == (200, "up 1\n")
