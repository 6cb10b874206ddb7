"""Warnings about groups that will lose unread records to retention."""

import logging
import time

import pytest

from headwater.clock import ManualClock
from headwater.record import Record, TopicPartition
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.client import groups as group_client
from headwater.transmit.client.client import Client
from headwater.transmit.client.lag import GroupPosition, positions
from headwater.transmit.records.batch import encode_batch
from headwater.transmit.wire.list_offsets import DELETED_SOON

ORDERS = TopicPartition("orders", 0)
HOUR_MS = 3_600_000
BASE_MS = 1_000_000_000_000


def commit(servers: str, group: str, offset: int) -> None:
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as KafkaPartition

    consumer = Consumer({"bootstrap.servers": servers, "group.id": group})
    consumer.commit(offsets=[KafkaPartition("orders", 0, offset)], asynchronous=False)
    consumer.close()


def fill(client: Client, clock: ManualClock, records: int) -> None:
    for n in range(records):
        record = Record(value=b"x" * 200, timestamp_ms=clock.now_ms())
        assert client.produce(ORDERS, encode_batch([record])) == n


def at_risk(broker: Broker) -> list[str]:
    name = "headwater_consumergroup_at_risk_records{"
    return [line for line in broker.metrics().splitlines() if line.startswith(name)]


def test_warning_for_consumer_group(caplog: pytest.LogCaptureFixture) -> None:
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
        assert (
            "group 'slow' is at offset 4 of orders-0, and 6 records before offset 10 will be deleted soon"
            in caplog.text
        )
        assert "'quick'" not in caplog.text


def test_warning_for_share_group(caplog: pytest.LogCaptureFixture) -> None:
    from confluent_kafka import ShareConsumer
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    clock = ManualClock(start_ms=BASE_MS)
    with Broker(clock=clock, log_retention_check_interval_ms=100) as broker:
        servers = {"bootstrap.servers": broker.bootstrap_servers}
        earliest = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
        workers = ConfigResource(ResourceType.GROUP, "workers", incremental_configs=[earliest])
        admin = AdminClient(servers)
        admin.incremental_alter_configs([workers])[workers].result(20)
        with Client(broker.bootstrap_servers) as client:
            client.create_topic("orders", partitions=1, configs={"retention.ms": str(10 * HOUR_MS)})
            fill(client, clock, 10)
            consumer = ShareConsumer({**servers, "group.id": "workers"})
            consumer.subscribe(["orders"])
            while not consumer.poll(1):
                clock.advance(0.1)
            consumer.close()
            with caplog.at_level(logging.WARNING):
                clock.advance(9.5 * 3600)
                wait_for(lambda: "group 'workers'" in caplog.text)
            (line,) = at_risk(broker)
            assert 'consumergroup="workers"' in line
            info = group_client.find_group(client, "workers")
            (position,) = positions(client, info).values()
            assert position.at_risk_records == 10 - position.offset > 0


def test_list_offsets_deleted_soon() -> None:
    clock = ManualClock(start_ms=BASE_MS)
    with Broker(clock=clock) as broker, Client(broker.bootstrap_servers) as client:
        client.create_topic("orders", partitions=1, configs={"retention.ms": str(10 * HOUR_MS)})
        fill(client, clock, 10)
        commit(broker.bootstrap_servers, "slow", 4)
        assert client.offsets([ORDERS], DELETED_SOON) == {ORDERS: 0}
        clock.advance(9.5 * 3600)
        assert client.offsets([ORDERS], DELETED_SOON) == {ORDERS: 10}
        found = positions(client, group_client.find_group(client, "slow"))
        assert found == {ORDERS: GroupPosition(offset=4, end=10, lag_records=6, at_risk_records=6)}


def test_retention_by_size() -> None:
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


def test_archived_records_are_not_at_risk(tmp_path: object) -> None:
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
