"""The new consumer protocol (KIP-848) with confluent-kafka and `group.protocol=consumer`."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from headwater.transmit.broker.embedded import Broker

# Sockets that kafka-python left open in earlier tests.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

PATIENCE_S = 30.0


class Members:
    """Consumers of one group, polled in turn."""

    def __init__(self, servers: str, **settings: Any) -> None:
        self._settings = {
            "bootstrap.servers": servers, "group.id": "readers", "group.protocol": "consumer",
            "auto.offset.reset": "earliest", "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": 200, **settings,
        }  # fmt: skip
        self.open: list[Consumer] = []
        self.seen: list[tuple[int, int]] = []

    def join(self, *topics: str, **settings: Any) -> Consumer:
        consumer = Consumer({**self._settings, **settings})
        consumer.subscribe(list(topics))
        self.open.append(consumer)
        return consumer

    def leave(self, consumer: Consumer) -> None:
        self.open.remove(consumer)
        consumer.close()

    def close(self) -> None:
        for consumer in list(self.open):
            self.leave(consumer)

    def assignments(self) -> list[set[int]]:
        return [{tp.partition for tp in consumer.assignment()} for consumer in self.open]

    def until(self, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"the condition did not hold; assigned: {self.assignments()}"
            for consumer in self.open:
                message = consumer.poll(0.05)
                if message is not None:
                    assert message.error() is None
                    self.seen.append((message.partition(), message.offset()))


def prepare(servers: str, partitions: int = 4, records: int = 20) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic("orders", partitions)])["orders"].result(PATIENCE_S)
    producer = Producer({"bootstrap.servers": servers})
    for n in range(records):
        producer.produce("orders", b"%d" % n, partition=n % partitions)
    assert producer.flush(PATIENCE_S) == 0
    return admin


def split_evenly(members: Members, sizes: list[int], total: int) -> Callable[[], bool]:
    def check() -> bool:
        found = members.assignments()
        return sorted(map(len, found)) == sizes and set().union(*found) == set(range(total))

    return check


@pytest.mark.compat("the new consumer protocol (KIP-848)", client="confluent-kafka")
@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_share_the_partitions_as_they_join_and_leave(broker: Broker, assignor: str) -> None:
    admin = prepare(broker.bootstrap_servers)
    members = Members(broker.bootstrap_servers, **{"group.remote.assignor": assignor})
    try:
        first = members.join("orders")
        members.until(lambda: len(members.seen) == 20)
        first.commit(asynchronous=False)
        members.join("orders")
        members.until(split_evenly(members, [2, 2], 4))
        admin.create_partitions([NewPartitions("orders", 6)])["orders"].result(PATIENCE_S)
        members.until(split_evenly(members, [3, 3], 6))
        members.leave(first)
        members.until(split_evenly(members, [6], 6))
        assert len(members.seen) == len(set(members.seen)) == 20
    finally:
        members.close()


@pytest.mark.compat("the new consumer protocol (KIP-848)", client="confluent-kafka")
def test_a_pattern_also_matches_topics_created_later(broker: Broker) -> None:
    admin = prepare(broker.bootstrap_servers, partitions=1, records=0)
    members = Members(broker.bootstrap_servers)
    try:
        consumer = members.join("^or.*")

        def topics() -> set[str]:
            return {tp.topic for tp in consumer.assignment()}

        members.until(lambda: topics() == {"orders"})
        admin.create_topics([NewTopic("oracles", 1), NewTopic("people", 1)])["oracles"].result(PATIENCE_S)
        members.until(lambda: topics() == {"orders", "oracles"})
    finally:
        members.close()


@pytest.mark.compat("the new consumer protocol (KIP-848)", client="confluent-kafka")
def test_a_static_member_keeps_its_partitions_after_a_restart(broker: Broker) -> None:
    prepare(broker.bootstrap_servers)
    members = Members(broker.bootstrap_servers)
    try:
        members.join("orders", **{"group.instance.id": "one"})
        two = members.join("orders", **{"group.instance.id": "two"})
        members.until(split_evenly(members, [2, 2], 4))
        had = {tp.partition for tp in two.assignment()}
        members.leave(two)
        two = members.join("orders", **{"group.instance.id": "two"})
        members.until(lambda: {tp.partition for tp in two.assignment()} == had)
        assert members.assignments()[0] == {0, 1, 2, 3} - had
    finally:
        members.close()


@pytest.mark.compat("the new consumer protocol (KIP-848)", client="confluent-kafka")
def test_offsets_survive_a_restart_and_the_group_is_listed(data: Path) -> None:
    with Broker(data) as broker:
        prepare(broker.bootstrap_servers)
        members = Members(broker.bootstrap_servers)
        consumer = members.join("orders")
        members.until(lambda: len(members.seen) == 20)
        consumer.commit(asynchronous=False)
        members.close()
    with Broker(data) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        (group,) = admin.list_consumer_groups().result(PATIENCE_S).valid
        assert (group.group_id, group.type.name, group.state.name) == ("readers", "CONSUMER", "EMPTY")
        members = Members(broker.bootstrap_servers)
        consumer = members.join("orders")
        members.until(split_evenly(members, [4], 4))
        found = consumer.committed([TopicPartition("orders", n) for n in range(4)], PATIENCE_S)
        assert [tp.offset for tp in found] == [5, 5, 5, 5]
        described = admin.describe_consumer_groups(["readers"])["readers"].result(PATIENCE_S)
        assert (described.state.name, described.type.name, len(described.members)) == ("STABLE", "CONSUMER", 1)
        members.close()
        assert admin.delete_consumer_groups(["readers"])["readers"].result(PATIENCE_S) is None
        assert admin.list_consumer_groups().result(PATIENCE_S).valid == []


def test_members_continue_after_a_restart_of_the_broker(data: Path) -> None:
    with Broker(data) as broker:
        port = int(broker.bootstrap_servers.rpartition(":")[2])
        prepare(broker.bootstrap_servers)
        members = Members(broker.bootstrap_servers, **{"reconnect.backoff.max.ms": 200})
        members.join("orders")
        members.join("orders")
        members.until(split_evenly(members, [2, 2], 4))
        members.until(lambda: len(members.seen) == 20)
    with Broker(data, port=port) as broker:
        members.seen.clear()
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for n in range(8):
            producer.produce("orders", b"more", partition=n % 4)
        assert producer.flush(PATIENCE_S) == 0
        members.until(lambda: {(n, 6) for n in range(4)} <= set(members.seen))
        members.until(split_evenly(members, [2, 2], 4))
        members.close()


def test_a_consumer_that_assigns_partitions_to_itself_may_commit(broker: Broker) -> None:
    """It sends a member id although it is not a member."""
    servers = {"bootstrap.servers": broker.bootstrap_servers}
    producer = Producer(servers)
    producer.produce("orders", b"x")
    assert producer.flush(30) == 0
    settings = {**servers, "group.id": "alone", "group.protocol": "consumer", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition("orders", 0)])
    assert consumer.poll(30).value() == b"x"
    (done,) = consumer.commit(asynchronous=False)
    consumer.close()
    assert (done.error, done.offset) == (None, 1)


def test_a_group_rejects_members_of_the_other_protocol(broker: Broker) -> None:
    prepare(broker.bootstrap_servers)
    members = Members(broker.bootstrap_servers)
    old = Members(broker.bootstrap_servers, **{"group.protocol": "classic"})
    try:
        members.join("orders")
        members.until(split_evenly(members, [4], 4))
        stranger = old.join("orders")
        with pytest.raises((AssertionError, KafkaException), match=r"(?i)inconsistent"):
            old.until(lambda: False)
        old.leave(stranger)
        members.close()  # an empty group may become a classic one
        old.join("orders")
        old.until(split_evenly(old, [4], 4))
    finally:
        members.close()
        old.close()
