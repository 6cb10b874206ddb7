"""Groups and queues on the command line."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Consumer, ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from headwater.record import LATEST, Record, TopicPartition
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.client import groups as group_client
from headwater.transmit.client.client import Client
from headwater.transmit.records.batch import encode_batch

Run = Callable[..., "subprocess.CompletedProcess[str]"]
ORDERS = TopicPartition("orders", 0)


class Log:
    """A broker with ten records in topic `orders`, one second apart, and a function to run commands."""

    def __init__(self, broker: Broker, headwater: Run) -> None:
        self.servers = broker.bootstrap_servers
        self._headwater = headwater
        records = [Record(value=b"%d" % n, timestamp_ms=n * 1000) for n in range(10)]
        with Client(self.servers) as client:
            client.create_topic("orders")
            client.produce(ORDERS, encode_batch(records))

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return self._headwater(*arguments, "-b", self.servers)

    def json(self, *arguments: str) -> Any:
        result = self.run(*arguments, "--output", "json")
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    def committed(self, group: str) -> dict[TopicPartition, int]:
        with Client(self.servers) as client:
            return group_client.committed(client, group)

    def commit(self, group: str, offset: int) -> None:
        with Client(self.servers) as client:
            group_client.commit(client, group, {ORDERS: offset})


@pytest.fixture
def log(tmp_path: Path, headwater: Run) -> Any:
    with Broker(tmp_path / "data") as broker:
        yield Log(broker, headwater)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_is_listed_and_described_with_its_lag(log: Log, protocol: str) -> None:
    settings = {"bootstrap.servers": log.servers, "group.id": "readers", "group.protocol": protocol}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.subscribe(["orders"])
    try:
        while (message := consumer.poll(1)) is None:
            pass
        consumer.commit(message, asynchronous=False)
        assert log.json("group", "list") == {
            "groups": [{"group": "readers", "type": protocol, "state": "Stable", "lag_records": 9}]
        }
        found = log.json("group", "describe", "readers")
        (member,) = found["members"]
        assert found["partitions"] == [
            {
                "topic": "orders", "partition": 0, "offset": 1, "end": 10, "lag_records": 9, "at_risk_records": 9,
                "member": member["id"], "host": "127.0.0.1",
            }
        ]  # fmt: skip
        # The records are from 1970, and so older than any retention.
        assert "retention will soon delete records" in log.run("group", "describe", "readers").stdout
        log.run("topic", "alter", "orders", "retention.ms=-1")
        assert log.json("group", "describe", "readers")["partitions"][0]["at_risk_records"] == 0
        assert "retention will soon delete" not in log.run("group", "describe", "readers").stdout
        refused = log.run("group", "delete", "readers")
        assert (refused.returncode, "it has members" in refused.stderr) == (1, True)
    finally:
        consumer.close()
    assert log.run("group", "delete", "readers").returncode == 0
    assert log.json("group", "list") == {"groups": []}


@pytest.mark.parametrize(
    ("verb", "offset"),
    [
        (["--to-earliest"], 0),
        (["--to-latest"], 10),
        (["--to-offset", "7"], 7),
        (["--to-offset", "70"], 10),
        (["--shift-by", "-3"], 2),
        (["--shift-by", "3"], 8),
        (["--to-datetime", "1970-01-01T00:00:03"], 3),
        (["--by-duration", "PT1H"], 10),
    ],
)
def test_offsets_are_reset_with_execute_only(log: Log, verb: list[str], offset: int) -> None:
    log.commit("readers", 5)
    command = ("group", "reset-offsets", "readers", "--topic", "orders:0", *verb)
    assert log.json(*command) == {
        "group": "readers", "executed": False,
        "offsets": [{"topic": "orders", "partition": 0, "before": 5, "after": offset}],
    }  # fmt: skip
    assert log.committed("readers") == {ORDERS: 5}
    assert log.json(*command, "--execute")["executed"]
    assert log.committed("readers") == {ORDERS: offset}


def test_a_reset_needs_exactly_one_target(log: Log) -> None:
    refused = log.run("group", "reset-offsets", "readers", "--topic", "orders")
    assert (refused.returncode, "exactly one of" in refused.stderr) == (2, True)
    refused = log.run("group", "describe", "nobody")
    assert (refused.returncode, "there is no group 'nobody'" in refused.stderr) == (2, True)


def test_a_queue_is_shown_redriven_and_purged(log: Log) -> None:
    configs = {"share.auto.offset.reset": "earliest", "errors.deadletterqueue.topic.name": "dead"}
    entries = [ConfigEntry(*item, incremental_operation=AlterConfigOpType.SET) for item in configs.items()]
    resource = ConfigResource(ResourceType.GROUP, "workers", incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": log.servers})
    admin.incremental_alter_configs([resource])[resource].result(30)
    work(log, lambda n: AcknowledgeType.REJECT if n < 2 else AcknowledgeType.ACCEPT, 10)

    (queue,) = log.json("queue", "list")["queues"]
    assert queue == {
        "queue": "workers", "state": "Empty", "members": 0, "topics": ["orders"], "waiting_records": 0,
        "dead_letters": 2,
    }  # fmt: skip
    shown = log.json("queue", "show", "workers")
    assert shown["configs"]["errors.deadletterqueue.topic.name"] == "dead"
    assert [(d["offset"], d["reason"]) for d in shown["dead_letters"]] == [
        (0, "Offset rejected by client."), (1, "Offset rejected by client."),
    ]  # fmt: skip
    assert log.json("queue", "redrive", "workers")["redriven"] == 2
    assert log.json("queue", "redrive", "workers", "--limit", "1", "--execute")["redriven"] == 1
    assert log.json("queue", "redrive", "workers", "--execute") == {
        "queue": "workers", "executed": True, "redriven": 1, "lost": 0,
    }  # fmt: skip
    with Client(log.servers) as client:
        assert client.offsets([ORDERS], LATEST) == {ORDERS: 12}
    assert log.json("queue", "redrive", "workers", "--execute")["redriven"] == 0
    assert log.json("queue", "purge", "workers") == {"queue": "workers", "executed": False, "purged": 2}
    assert log.json("queue", "purge", "workers", "--execute")["purged"] == 2
    assert log.json("queue", "list")["queues"][0]["waiting_records"] == 0
    log.commit("readers", 5)
    refused = log.run("queue", "purge", "readers")
    assert (refused.returncode, "is a classic group, not a queue" in refused.stderr) == (2, True)


def work(log: Log, answer: Callable[[int], AcknowledgeType], count: int) -> None:
    consumer = ShareConsumer(
        {"bootstrap.servers": log.servers, "group.id": "workers", "share.acknowledgement.mode": "explicit"}
    )
    consumer.subscribe(["orders"])
    seen = 0
    try:
        while seen < count:
            for message in consumer.poll(0.5):
                consumer.acknowledge(message, answer(message.offset()))
                seen += 1
            consumer.commit_sync(30)
    finally:
        consumer.close()
