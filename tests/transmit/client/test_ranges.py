"""Ranges of several partitions, read with few requests and as Arrow batches."""

import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka.protocol.admin import DeleteRecordsRequest

from headwater.errors import InvalidError, UnavailableError
from headwater.record import LATEST, Record, TopicPartition
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.client import ranges, waiting
from headwater.transmit.client.client import Client
from headwater.transmit.client.connection import ClientConnection
from headwater.transmit.client.fetching import FetchLimits
from headwater.transmit.client.ranges import read_ranges
from headwater.transmit.client.topics import delete_topic
from headwater.transmit.client.waiting import RecordWaiter
from headwater.transmit.log.cleaner import save_cleaned
from headwater.transmit.records.batch import encode_batch
from support.processes import free_port

ORDERS = [TopicPartition("orders", number) for number in range(3)]
CLICKS = TopicPartition("clicks", 0)
ALL = [*ORDERS, CLICKS]

Values = dict[TopicPartition, list[bytes]]


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.bootstrap_servers, read_committed=True) as client:
        client.create_topic("orders", partitions=len(ORDERS))
        client.create_topic("clicks", partitions=1)
        yield client


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch, client: Client) -> list[str]:
    """Return the names of the requests that all clients send from now on."""
    sent: list[str] = []
    send = ClientConnection.send

    def count(connection: ClientConnection, request: Any) -> Any:
        sent.append(request.name)
        return send(connection, request)

    monkeypatch.setattr(ClientConnection, "send", count)
    return sent


def append(client: Client, partition: TopicPartition, values: Iterable[bytes]) -> None:
    client.produce(partition, encode_batch([Record(value=value, timestamp_ms=1) for value in values]))


def read(client: Client, bounds: Mapping[TopicPartition, tuple[int, int]], **options: Any) -> Values:
    found: Values = {}
    for partition, data, rows in read_ranges(client, bounds, **options):
        assert data
        assert set(rows["topic"].to_pylist()) == {partition.topic}
        assert set(rows["partition"].to_pylist()) == {partition.partition}
        found.setdefault(partition, []).extend(rows["value"].to_pylist())
    return found


def to_end(client: Client) -> dict[TopicPartition, tuple[int, int]]:
    return {tp: (0, end) for tp, end in client.offsets(ALL, LATEST).items()}


def test_one_request_for_all_partitions(client: Client, requests: list[str]) -> None:
    expected = {}
    for tp in ALL:
        expected[tp] = [b"%s %d" % (str(tp).encode(), n) for n in range(10)]
        append(client, tp, expected[tp][:6])
        append(client, tp, expected[tp][6:])
    del requests[:]
    assert read(client, dict.fromkeys(ALL, (0, 10))) == expected
    assert requests == ["FetchRequest"]
    inner = {ORDERS[0]: (2, 5), ORDERS[1]: (4, 8), ORDERS[2]: (7, 7), CLICKS: (9, 10)}
    assert read(client, inner) == {
        ORDERS[0]: expected[ORDERS[0]][2:5],
        ORDERS[1]: expected[ORDERS[1]][4:8],
        CLICKS: expected[CLICKS][9:],
    }
    assert requests == ["FetchRequest"] * 2
    assert read(client, {}) == {}
    assert requests == ["FetchRequest"] * 2


@pytest.mark.parametrize("limit", [1, 200, 1000])
def test_more_records_than_fit_in_a_response(client: Client, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "_LIMITS", FetchLimits(0, limit, limit))
    expected: Values = {tp: [] for tp in ALL}
    for n in range(8):
        for tp in ALL[: n % 4 + 1]:
            expected[tp].append(b"%d" % n * 30)
            append(client, tp, expected[tp][-1:])
    assert read(client, to_end(client)) == expected


def test_headers(client: Client) -> None:
    record = Record(value=b"v", headers=(("from", b"shop"),), timestamp_ms=1)
    client.produce(CLICKS, encode_batch([record]))
    (batch,) = read_ranges(client, {CLICKS: (0, 1)}, include_headers=True)
    assert batch.rows["headers"].to_pylist() == [[{"key": "from", "value": b"shop"}]]


def test_aborted_transactions_and_control_records(client: Client, broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "t"})
    producer.init_transactions()
    for outcome in ("commit", "abort"):
        producer.begin_transaction()
        for tp in ORDERS[:2]:
            producer.produce(tp.topic, outcome.encode(), partition=tp.partition)
        producer.flush()
        append(client, ORDERS[0], [f"during {outcome}".encode()])
        getattr(producer, f"{outcome}_transaction")()
    ends = to_end(client)
    assert ends[ORDERS[1]] == (0, 4)
    assert read(client, ends) == {
        ORDERS[0]: [b"commit", b"during commit", b"during abort"],
        ORDERS[1]: [b"commit"],
    }
    assert read(client, {ORDERS[1]: (1, 4)}) == {}  # a control record, an aborted record and its control record
    assert read(client, {ORDERS[1]: (3, 4), ORDERS[0]: (1, 2)}) == {ORDERS[0]: [b"during commit"]}
    with Client(broker.bootstrap_servers) as uncommitted:
        assert read(uncommitted, {ORDERS[1]: (0, 4)}) == {ORDERS[1]: [b"commit", b"abort"]}


@pytest.mark.parametrize("batch", ["an empty batch", "no batch"])
def test_range_that_ends_in_a_compacted_gap(broker: Broker, batch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compaction may remove the last records; our broker leaves an empty batch, others may leave nothing."""
    configs = {"cleanup.policy": "compact", "delete.retention.ms": "0", "min.cleanable.dirty.ratio": "0"}
    with Client(broker.bootstrap_servers) as client, RecordWaiter(broker.bootstrap_servers) as waiter:
        client.create_topic("orders", partitions=3, configs=configs)
        for key, value in ((b"a", b"1"), (b"b", b"2"), (b"b", None)):
            client.produce(ORDERS[0], encode_batch([Record(key=key, value=value, timestamp_ms=1)]))
        client.produce(ORDERS[1], encode_batch([Record(key=b"c", value=b"other", timestamp_ms=1)]))
        broker._call(_compact(broker, ORDERS[0]))
        if batch == "no batch":
            _hide_empty_batch(broker, ORDERS[0], monkeypatch)
        assert client.offsets([ORDERS[0]], LATEST) == {ORDERS[0]: 3}
        monkeypatch.setattr(waiting, "_LONG_POLL_MS", 500)  # Its end shows that there is no batch.
        assert waiter.wait({ORDERS[0]: 1}, 30)
        assert read(client, {ORDERS[0]: (0, 3), ORDERS[1]: (0, 1)}) == {ORDERS[0]: [b"1"], ORDERS[1]: [b"other"]}
        assert read(client, {ORDERS[0]: (1, 3)}) == {}
        with pytest.raises(UnavailableError, match="no further records"):
            read(client, {ORDERS[0]: (1, 4)})


async def _compact(broker: Broker, name: TopicPartition) -> None:
    server: Any = broker._server
    partition = server._node.topics.partition(*name)
    partition.log.roll()
    for days in (1, 2):  # the first time, tombstones are only marked
        await server._upkeep.clean(partition, server._node.clock.now_ms() + days * 24 * 3_600_000)
        save_cleaned(partition.log.directory, 0)


def _hide_empty_batch(broker: Broker, name: TopicPartition, monkeypatch: pytest.MonkeyPatch) -> None:
    server: Any = broker._server
    log = server._node.topics.partition(*name).log
    read_region = log.read_region

    def read(offset: int, max_bytes: int, below: int) -> Any:
        return (b"", offset) if 1 <= offset < below else read_region(offset, max_bytes, min(below, 1))

    monkeypatch.setattr(log, "read_region", read)


def test_range_beyond_the_last_stable_offset(client: Client, broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "t"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("orders", b"open", partition=0)
    producer.flush()
    append(client, ORDERS[1], [b"a"])
    found = []
    with pytest.raises(UnavailableError, match=r"cannot read orders-0 at offset 0: .* no further records"):
        found.extend(read_ranges(client, {ORDERS[0]: (0, 1), ORDERS[1]: (0, 1)}))
    assert [batch.partition for batch in found] == [ORDERS[1]]
    threading.Timer(0.3, producer.commit_transaction).start()
    assert read(client, {ORDERS[0]: (0, 1)}, patience_s=30) == {ORDERS[0]: [b"open"]}
    with pytest.raises(UnavailableError, match="no further records"):
        read(client, {ORDERS[0]: (0, 3)}, patience_s=0.3)


def test_deleted_records_topic_and_partition(client: Client) -> None:
    append(client, ORDERS[0], [b"a", b"b"])
    shape = DeleteRecordsRequest.DeleteRecordsTopic
    partition = shape.DeleteRecordsPartition(partition_index=0, offset=1)
    client.call(DeleteRecordsRequest(topics=[shape(name="orders", partitions=[partition])], timeout_ms=1000))
    with pytest.raises(InvalidError, match="read orders-0 at offset 0: OFFSET_OUT_OF_RANGE"):
        read(client, {ORDERS[0]: (0, 2)})
    assert read(client, {ORDERS[0]: (1, 2)}) == {ORDERS[0]: [b"b"]}
    with pytest.raises(InvalidError, match="no partition orders-7"):
        read(client, {TopicPartition("orders", 7): (0, 2)})
    delete_topic(client, "orders")
    with pytest.raises(InvalidError, match="no partition orders-0"):
        read(client, {ORDERS[0]: (1, 2)}, patience_s=30)


def test_broker_restarts(tmp_path: Path) -> None:
    port = free_port()
    with Broker(tmp_path, port=port) as broker, Client(broker.bootstrap_servers) as client:
        client.create_topic("clicks", partitions=1)
        append(client, CLICKS, [b"a"])
        assert read(client, {CLICKS: (0, 1)}) == {CLICKS: [b"a"]}
        broker.stop()
        with pytest.raises(UnavailableError, match="cannot reach a broker"):
            read(client, {CLICKS: (0, 1)})
        threading.Timer(0.3, broker.start).start()
        assert read(client, {CLICKS: (0, 1)}, patience_s=30) == {CLICKS: [b"a"]}


def test_generator_that_is_not_exhausted(client: Client) -> None:
    for tp in ALL:
        append(client, tp, [b"a"])
    for batch in read_ranges(client, to_end(client)):
        assert client.offsets([batch.partition], LATEST) == {batch.partition: 1}  # the connection is free
        break
    assert client.offsets([CLICKS], LATEST) == {CLICKS: 1}
