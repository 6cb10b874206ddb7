"""The common uses of Kafka, with three real clients against the broker."""

import time
from pathlib import Path
from typing import Any

import pytest

from headwater.record import Record, TopicPartition
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.client.client import Client
from headwater.transmit.records.batch import decode_batch
from headwater.transmit.records.batch_header import walk

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # kafka-python's

COMPRESSIONS = ["none", "gzip", "snappy", "lz4", "zstd"]
PATIENCE_S = 30.0


def until(condition: Any) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"the condition did not hold within {PATIENCE_S:.0f} s")


def numbered(count: int) -> list[Record]:
    return [Record(key=b"%d" % n, value=b"value %d" % n, timestamp_ms=1_000_000 + n) for n in range(count)]


def at_offsets(records: list[Record], first: int = 0) -> list[Record]:
    return [
        Record(key=r.key, value=r.value, headers=r.headers, timestamp_ms=r.timestamp_ms, offset=first + n)
        for n, r in enumerate(records)
    ]


def stored(broker: Broker, topic: str) -> tuple[list[Record], set[str]]:
    """Return the records of partition 0, read with Headwater's client, and the compression of their batches."""
    with Client(broker.bootstrap_servers) as ours:
        data = ours.fetch(TopicPartition(topic, 0), 0)
    batches = list(walk(data))
    records = [record for at, _ in batches for record in decode_batch(data, at)]
    return records, {header.compression.name.lower() for _, header in batches}


# -- records --------------------------------------------------------------------------------------------------


@pytest.mark.compat("records with key, headers, time and null values")
@pytest.mark.compat("compression: gzip, snappy, lz4, zstd")
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_records_are_read_as_they_were_sent(client: Any, broker: Broker, compression: str) -> None:
    records = [
        Record(key=b"key", value=b"value" * 200, timestamp_ms=5_000),
        Record(key=None, value=b"", timestamp_ms=4_000),
        Record(key=b"", value=None, timestamp_ms=6_000),
        Record(value="ünï".encode(), headers=(("a", b"1"), ("a", b"2"), ("leer", b"")), timestamp_ms=7_000),
        Record(value=b"last" * 500, timestamp_ms=1_700_000_000_000),
    ]
    client.create_topic("orders")
    assert client.produce("orders", records, compression=compression) == [0, 1, 2, 3, 4]
    assert client.consume("orders", 0, 0, 5) == at_offsets(records)
    found, compressions = stored(broker, "orders")
    assert found == at_offsets(records)
    assert {compression} <= compressions <= {compression, "none"}  # a client may not compress a small batch


@pytest.mark.compat("acks 1 and all")
@pytest.mark.compat("acks 0")
@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_records_arrive_with_every_kind_of_acknowledgement(client: Any, acks: str) -> None:
    client.create_topic("orders")
    client.produce("orders", numbered(50), acks=acks)
    assert client.consume("orders", 0, 0, 50) == at_offsets(numbered(50))


@pytest.mark.compat("idempotent producer")
def test_an_idempotent_producer_works(client: Any) -> None:
    client.create_topic("orders")
    assert client.produce("orders", numbered(100), idempotent=True) == list(range(100))
    assert client.produce("orders", numbered(100), idempotent=True) == list(range(100, 200))


@pytest.mark.compat("reading from any offset")
def test_reading_starts_at_any_offset(client: Any) -> None:
    client.create_topic("orders", 2)
    client.produce("orders", numbered(30), partition=1)
    for offset in (0, 17, 29):
        found = client.consume("orders", 1, offset, 30 - offset)
        assert found == at_offsets(numbered(30))[offset:]


@pytest.mark.compat("offsets by time, exact to the record")
def test_an_offset_is_found_by_time_exact_to_the_record(client: Any) -> None:
    client.create_topic("orders")
    client.produce("orders", numbered(30), compression="gzip")
    assert client.offset_of_time("orders", 0, 1_000_017) == 17
    assert client.offset_of_time("orders", 0, 5) == 0


@pytest.mark.compat("large records, and many small ones")
def test_a_large_record_and_many_small_ones(client: Any) -> None:
    small = [Record(value=b"%d" % n, timestamp_ms=2) for n in range(2000)]
    records = [Record(value=b"x" * 900_000, timestamp_ms=1), *small]
    client.create_topic("orders")
    assert client.produce("orders", records) == list(range(2001))
    assert [r.value for r in client.consume("orders", 0, 0, 2001)] == [r.value for r in records]


# -- topics ---------------------------------------------------------------------------------------------------


@pytest.mark.compat("topics: create, grow, delete")
@pytest.mark.compat("metadata of cluster and topics")
def test_topics_are_created_grown_and_deleted(client: Any) -> None:
    client.create_topic("orders", 3)
    assert client.topics() == {"orders": 3}
    client.create_partitions("orders", 5)
    assert client.topics() == {"orders": 5}
    client.produce("orders", numbered(1), partition=4)
    client.delete_topic("orders")
    assert client.topics() == {}
    client.create_topic("orders")
    assert client.produce("orders", numbered(1)) == [0]


def test_invalid_operations_on_a_topic_are_errors(client: Any) -> None:
    client.create_topic("orders", 2)
    with pytest.raises(Exception, match=r"(?i)exists"):
        client.create_topic("orders")
    with pytest.raises(Exception, match=r"(?i)partitions"):
        client.create_partitions("orders", 1)
    with pytest.raises(Exception, match=r"(?i)unknown|invalid"):
        client.delete_topic("other")
    with pytest.raises(Exception, match=r"(?i)invalid|not allowed|may only"):
        client.create_topic("not a name")


@pytest.mark.compat("configs: describe and change")
def test_configs_of_a_topic_are_described(client: Any) -> None:
    client.create_topic("orders")
    configs = client.topic_configs("orders")
    assert configs["cleanup.policy"] == "delete"
    assert configs["max.message.bytes"] == "1048588"


@pytest.mark.compat("topics made when first used")
def test_a_topic_is_created_on_first_use(client: Any) -> None:
    assert client.produce("orders", numbered(3)) == [0, 1, 2]
    assert client.topics() == {"orders": 1}


# -- groups ---------------------------------------------------------------------------------------------------


def read_all(members: list[Any], count: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []

    def poll() -> bool:
        for member in members:
            found.extend(member.poll())
        return len(found) >= count

    until(poll)
    return found


@pytest.mark.compat("classic groups: sharing, taking over, committing")
@pytest.mark.compat("groups: list and describe")
def test_members_share_partitions_and_the_last_member_gets_all(client: Any) -> None:
    client.create_topic("orders", 4)
    for partition in range(4):
        client.produce("orders", numbered(5), partition=partition)
    first = client.member("orders", "readers")
    assert sorted(read_all([first], 20)) == [(p, n) for p in range(4) for n in range(5)]
    first.commit()
    second = client.member("orders", "readers")

    def is_shared() -> bool:
        first.poll()
        second.poll()
        return {len(first.assignment()), len(second.assignment())} == {2}

    until(is_shared)
    assert first.assignment() | second.assignment() == {0, 1, 2, 3}
    assert client.groups() == {"readers"}
    assert client.group_members("readers") == ("Stable", 2)
    second.close()
    until(lambda: first.poll() or first.assignment() == {0, 1, 2, 3})
    client.produce("orders", numbered(1), partition=3)
    assert read_all([first], 1) == [(3, 5)]
    first.close()
    assert client.group_members("readers") == ("Empty", 0)


def test_two_groups_each_read_all_records(client: Any) -> None:
    client.create_topic("orders")
    client.produce("orders", numbered(10))
    for group in ("one", "two"):
        member = client.member("orders", group)
        assert read_all([member], 10) == [(0, n) for n in range(10)]
        member.close()


@pytest.mark.compat("classic groups: sharing, taking over, committing")
def test_a_group_continues_at_its_committed_offset(client: Any) -> None:
    client.create_topic("orders")
    client.produce("orders", numbered(10))
    member = client.member("orders", "readers")
    read_all([member], 10)
    member.commit()
    member.close()
    assert client.committed("readers", "orders", 0) == 10
    client.produce("orders", numbered(2))
    member = client.member("orders", "readers")
    assert read_all([member], 2) == [(0, 10), (0, 11)]
    member.close()


@pytest.mark.compat("static members")
def test_a_static_member_that_restarts_gets_its_partitions_back(client: Any) -> None:
    client.create_topic("orders", 2)
    first, second = (client.member("orders", "readers", name) for name in ("a", "b"))

    def is_shared() -> bool:
        first.poll()
        second.poll()
        return len(first.assignment()) == len(second.assignment()) == 1

    until(is_shared)
    had = first.assignment()
    back = client.member("orders", "readers", "a")  # before the old member has left
    until(lambda: (back.poll(), second.poll()) and back.assignment() == had)
    client.produce("orders", numbered(1), partition=next(iter(had)))
    assert read_all([back], 1) == [(next(iter(had)), 0)]
    for member in (back, second, first):
        member.close()


# -- restart and settings of the broker -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["confluent-kafka", "kafka-python", "aiokafka"])
def test_committed_offsets_and_records_survive_a_restart(data: Path, kind: str, clients: dict[str, Any]) -> None:
    with Broker(data) as broker:
        address = broker.bootstrap_servers
        client = clients[kind](address)
        client.create_topic("orders")
        client.produce("orders", numbered(10))
        member = client.member("orders", "readers")
        read_all([member], 10)
        member.commit()
        member.close()
        client.close()
    with Broker(data, port=int(address.split(":")[1])) as broker:
        assert broker.bootstrap_servers == address
        client = clients[kind](address)
        assert client.committed("readers", "orders", 0) == 10
        assert client.produce("orders", numbered(1)) == [10]
        member = client.member("orders", "readers")
        assert read_all([member], 1) == [(0, 10)]
        member.close()
        client.close()


@pytest.mark.parametrize("kind", ["confluent-kafka", "kafka-python", "aiokafka"])
def test_a_topic_is_not_created_if_auto_creation_is_off(data: Path, kind: str, clients: dict[str, Any]) -> None:
    with Broker(data, auto_create_topics_enable=False) as broker:
        client = clients[kind](broker.bootstrap_servers)
        assert client.topics() == {}
        with Client(broker.bootstrap_servers) as ours:
            assert ours.topics(["orders"]) == {}
        if kind == "confluent-kafka":  # the others retry for up to a minute before they raise an error
            with pytest.raises(RuntimeError, match="UNKNOWN"):
                client.produce("orders", numbered(1))
        assert client.topics() == {}
        client.close()
