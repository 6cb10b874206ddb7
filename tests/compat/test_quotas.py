"""Quotas with real clients: they are throttled, they report it, and no record is lost."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from headwater.record import LATEST, Record, TopicPartition
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.client.client import Client
from headwater.transmit.client.quotas import alter_quotas
from headwater.transmit.quotas import DEFAULT, Entity

PATIENCE_S = 60.0
RATE, BURST_S = 20_000, 10
RECORD_BYTES, RECORDS = 10_000, 24  # two seconds more than the initial burst


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Broker]:
    """A broker that limits the produce and fetch rates of each client."""
    with Broker(tmp_path / "data") as broker:
        with Client(broker.bootstrap_servers) as client:
            client.create_topic("orders")
            alter_quotas(
                client,
                Entity(None, DEFAULT),
                {"producer_byte_rate": float(RATE), "consumer_byte_rate": float(RATE)},
            )
        yield broker


def throttled(broker: Broker, quota: str, client_id: str) -> float:
    start = f'headwater_quota_throttled_total{{quota="{quota}",user="",client_id="{client_id}"}} '
    found = [line for line in broker.metrics().splitlines() if line.startswith(start)]
    return float(found[0].rpartition(" ")[2]) if found else 0.0


def fill(broker: Broker, settings: dict[str, Any]) -> float:
    """Produce above the quota, one request per record, and return the seconds it took."""
    started = time.monotonic()
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "batch.num.messages": 1, **settings}
    )
    for _ in range(RECORDS):
        producer.produce("orders", b"x" * RECORD_BYTES)
    assert producer.flush(PATIENCE_S) == 0
    return time.monotonic() - started


@pytest.mark.parametrize("acks", ["all", "0"])
def test_librdkafka_is_throttled_and_reports_it(limited: Broker, acks: str) -> None:
    events: list[confluent_kafka.ThrottleEvent] = []
    settings = {"client.id": "loader", "throttle_cb": events.append, "acks": acks}
    fill(limited, settings)
    with Client(limited.bootstrap_servers) as client:
        orders = TopicPartition("orders", 0)
        while client.offsets([orders], LATEST)[orders] < RECORDS:
            time.sleep(0.05)
    assert throttled(limited, "producer_byte_rate", "loader") > 0
    assert acks == "0" or [event for event in events if event.throttle_time > 0]


def test_the_average_rate_is_kept(limited: Broker) -> None:
    """Records above the burst take at least their time at the quota; a test cannot check an upper limit."""
    took = fill(limited, {"client.id": "loader", "max.in.flight": 1})
    assert took > 0.9 * (RECORDS - 1) * RECORD_BYTES / RATE - BURST_S


def test_a_consumer_is_throttled_and_reads_all_records(limited: Broker) -> None:
    with Client(limited.bootstrap_servers) as client:
        alter_quotas(client, Entity(None, "filler"), {"producer_byte_rate": 1e9})
    fill(limited, {"client.id": "filler"})
    assert throttled(limited, "producer_byte_rate", "filler") == 0
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": limited.bootstrap_servers, "client.id": "reader", "group.id": "g",
            "auto.offset.reset": "earliest", "fetch.wait.max.ms": 100,
        }
    )  # fmt: skip
    consumer.assign([confluent_kafka.TopicPartition("orders", 0, 0)])
    offsets: list[int] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(offsets) < RECORDS and time.monotonic() < deadline:
        offsets += [message.offset() for message in consumer.consume(100, 0.2) if not message.error()]
    consumer.close()
    assert offsets == list(range(RECORDS))
    assert throttled(limited, "consumer_byte_rate", "reader") > 0


def test_a_batch_larger_than_the_quota_window_is_still_read(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker, Client(broker.bootstrap_servers) as client:
        client.create_topic("orders")
        fill(broker, {"client.id": "filler"})
        alter_quotas(client, Entity(None, "reader"), {"consumer_byte_rate": 900.0})
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": broker.bootstrap_servers, "client.id": "reader", "group.id": "g"}
        )
        consumer.assign([confluent_kafka.TopicPartition("orders", 0, 0)])
        found = consumer.consume(1, PATIENCE_S)
        assert [message.offset() for message in found] == [0]
        consumer.close()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_kafka_python_and_aiokafka_lose_nothing_when_throttled(limited: Broker, clients: dict[str, Any]) -> None:
    records = [Record(key=None, value=b"x" * RECORD_BYTES, timestamp_ms=n) for n in range(RECORDS)]
    for name in ("kafka-python", "aiokafka"):
        client = clients[name](limited.bootstrap_servers)
        try:
            first = client.produce("orders", records)[0]
            found = client.consume("orders", 0, first, RECORDS)
            assert [record.timestamp_ms for record in found] == list(range(RECORDS))
        finally:
            client.close()
