"""A group is told of before retention overtakes it."""

import logging
import time

import pytest

from headwater.clock import ManualClock
from headwater.record import Record, TopicPartition
from headwater.transmit.batch import encode_batch
from headwater.transmit.client import Client
from headwater.transmit.embedded import Broker

ORDERS = TopicPartition("orders", 0)
HOUR_MS = 3_600_000
BASE_MS = 1_000_000_000_000


def commit(servers: str, group: str, offset: int) -> None:
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as Place

    consumer = Consumer({"bootstrap.servers": servers, "group.id": group})
    consumer.commit(offsets=[Place("orders", 0, offset)], asynchronous=False)
    consumer.close()


def fill(client: Client, clock: ManualClock, records: int) -> None:
    for n in range(records):
        record = Record(value=b"x" * 200, timestamp_ms=clock.now_ms())
        assert client.produce(ORDERS, encode_batch([record])) == n


def at_risk(broker: Broker) -> list[str]:
    name = "headwater_consumergroup_at_risk_records{"
    return [line for line in broker.metrics().splitlines() if line.startswith(name)]


def test_group_that_is_behind_is_told_of_before_records_are_deleted(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(start_ms=BASE_MS)
    with Broker(clock=clock, log_retention_check_interval_ms=100) as broker:
        with Client(broker.bootstrap_servers) as client:
            client.create_topic("orders", partitions=1, configs={"retention.ms": str(10 * HOUR_MS)})
            fill(client, clock, 10)
        commit(broker.bootstrap_servers, "slow", 4)
        commit(broker.bootstrap_servers, "quick", 10)
        clock.advance(8.9 * 3600)
        assert at_risk(broker) == []
        with caplog.at_level(logging.WARNING):
            clock.advance(0.5 * 3600)
            (line,) = at_risk(broker)
            wait_for(lambda: bool(caplog.messages))
        assert line.endswith('{consumergroup="slow",topic="orders",partition="0"} 6')
        assert "group 'slow' is at offset 4 of orders-0; what is before 10 will be deleted soon" in caplog.text
        assert "'quick'" not in caplog.text


def test_size_counts_as_time_does() -> None:
    clock = ManualClock(start_ms=BASE_MS)
    configs = {"retention.bytes": "3000", "segment.bytes": "600", "retention.ms": "-1"}
    with Broker(clock=clock) as broker:
        with Client(broker.bootstrap_servers) as client:
            client.create_topic("orders", partitions=1, configs=configs)
            fill(client, clock, 10)  # of 270 bytes, two to a segment
            commit(broker.bootstrap_servers, "slow", 0)
            assert at_risk(broker) == []
            for _ in range(3):
                record = Record(value=b"x" * 200, timestamp_ms=clock.now_ms())
                client.produce(ORDERS, encode_batch([record]))
        assert [line.rpartition(" ")[2] for line in at_risk(broker)] == ["2"]


def test_what_goes_to_an_archive_is_in_no_danger(tmp_path: object) -> None:
    clock = ManualClock(start_ms=BASE_MS)
    configs = {"retention.ms": str(HOUR_MS), "remote.archive.dir": str(tmp_path)}
    with Broker(clock=clock) as broker:
        with Client(broker.bootstrap_servers) as client:
            client.create_topic("orders", partitions=1, configs=configs)
            fill(client, clock, 3)
        commit(broker.bootstrap_servers, "slow", 0)
        clock.advance(2 * 3600)
        assert at_risk(broker) == []


def wait_for(condition: object) -> None:
    deadline = time.monotonic() + 20
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)
