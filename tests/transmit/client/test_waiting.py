"""Waiting for records with the broker's long poll: wakes at once, ends at once, and is otherwise idle."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka.protocol.admin import DeleteRecordsRequest

from headwater.record import LATEST, Record, TopicPartition
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.client import waiting
from headwater.transmit.client.client import Client
from headwater.transmit.client.connection import ClientConnection
from headwater.transmit.client.interrupt import Interrupt, Interrupted
from headwater.transmit.client.topics import delete_topic
from headwater.transmit.client.waiting import RecordWaiter
from headwater.transmit.records.batch import encode_batch
from support.processes import free_port

ORDERS = [TopicPartition("orders", number) for number in range(4)]
CLICKS = [TopicPartition("clicks", number) for number in range(2)]
AT_THE_START = dict.fromkeys([*ORDERS, *CLICKS], 0)
LONG_S = 30.0
PROMPT_S = LONG_S / 3
"""A wait that ends within this time has not ended at its timeout, also on a busy machine."""

Wait = Callable[..., Future[tuple[bool, float]]]


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.bootstrap_servers) as client:
        client.create_topic("orders", partitions=len(ORDERS))
        client.create_topic("clicks", partitions=len(CLICKS))
        yield client


@pytest.fixture
def waiter(broker: Broker, client: Client) -> Iterator[RecordWaiter]:
    with RecordWaiter(broker.bootstrap_servers, read_committed=True) as waiter:
        yield waiter


@pytest.fixture
def wait() -> Iterator[Wait]:
    """Return a function that waits in another thread, for the result and the monotonic time of its return."""

    def run(waiter: RecordWaiter, *arguments: Any) -> tuple[bool, float]:
        return waiter.wait(*arguments), time.monotonic()

    with ThreadPoolExecutor(4) as pool:
        yield lambda *arguments: pool.submit(run, *arguments)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the requests that all clients send from now on."""
    sent: list[str] = []
    send = ClientConnection.send

    def count(connection: ClientConnection, request: Any) -> Any:
        sent.append(request.name)
        return send(connection, request)

    monkeypatch.setattr(ClientConnection, "send", count)
    return sent


def append(client: Client, partition: TopicPartition) -> int:
    return client.produce(partition, encode_batch([Record(value=b"v", timestamp_ms=1)]))


def waiting_partitions(broker: Broker) -> list[TopicPartition]:
    """Return the partitions for which a fetch waits at the broker."""
    topics = broker._server._node.topics  # type: ignore[union-attr]
    return [partition.name for partition in topics.partitions() if partition._readers]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.parametrize("partition", [ORDERS[0], ORDERS[3], CLICKS[1]], ids=str)
def test_wakes_when_any_partition_gets_a_record(
    client: Client, waiter: RecordWaiter, wait: Wait, broker: Broker, partition: TopicPartition
) -> None:
    woken = wait(waiter, AT_THE_START, LONG_S)
    until(lambda: len(waiting_partitions(broker)) == len(AT_THE_START))
    append(client, partition)
    acknowledged = time.monotonic()
    found, at = woken.result(LONG_S)
    assert found
    assert at - acknowledged < PROMPT_S


def test_records_that_are_there_are_found_at_once(client: Client, waiter: RecordWaiter) -> None:
    append(client, ORDERS[2])
    started = time.monotonic()
    assert waiter.wait(AT_THE_START, LONG_S)
    assert time.monotonic() < started + PROMPT_S
    assert not waiter.wait({**AT_THE_START, ORDERS[2]: 1}, 0.05)


def test_nothing_arrives(client: Client, waiter: RecordWaiter) -> None:
    started = time.monotonic()
    assert not waiter.wait(AT_THE_START, 0.2)
    assert 0.2 <= time.monotonic() - started < PROMPT_S
    assert not waiter.wait({}, 0.05)


def test_waits_with_the_same_positions_share_a_request(
    client: Client, waiter: RecordWaiter, requests: list[str], broker: Broker
) -> None:
    for _ in range(50):
        assert not waiter.wait(AT_THE_START, 0.002)
    assert requests.count("FetchRequest") == 1
    append(client, ORDERS[1])
    assert waiter.wait(AT_THE_START, LONG_S)
    assert requests.count("FetchRequest") == 1


def test_wait_after_other_positions_were_read(client: Client, waiter: RecordWaiter, broker: Broker) -> None:
    """A request of an earlier call, for positions that have been read since, does not wake the next call."""
    assert not waiter.wait(AT_THE_START, 0.01)
    append(client, ORDERS[1])  # answers the request that is still there
    append(client, CLICKS[0])
    read = {**AT_THE_START, ORDERS[1]: 1, CLICKS[0]: 1}
    assert not waiter.wait(read, 0.1)
    assert not waiter.wait({ORDERS[0]: 0}, 0.02)  # other partitions, without an answer to the request before
    until(lambda: waiting_partitions(broker) == [ORDERS[0]])
    append(client, ORDERS[0])
    assert waiter.wait({ORDERS[0]: 0}, LONG_S)


def test_long_poll_is_repeated(
    client: Client, waiter: RecordWaiter, requests: list[str], monkeypatch: pytest.MonkeyPatch, wait: Wait
) -> None:
    monkeypatch.setattr(waiting, "_LONG_POLL_MS", 100)
    assert not waiter.wait(AT_THE_START, 0.55)
    assert 3 <= requests.count("FetchRequest") <= 6
    woken = wait(waiter, AT_THE_START, LONG_S)
    time.sleep(0.25)
    append(client, ORDERS[0])
    assert woken.result(LONG_S)[0]


# -- ending a wait --------------------------------------------------------------------------------------------


def test_interrupt_ends_the_wait(client: Client, waiter: RecordWaiter, wait: Wait, requests: list[str]) -> None:
    assert not waiter.wait(AT_THE_START, 0.01)
    for _ in range(3):
        woken = wait(waiter, AT_THE_START, LONG_S)
        time.sleep(0.05)
        interrupted = time.monotonic()
        waiter.interrupt()
        found, at = woken.result(LONG_S)
        assert not found
        assert at - interrupted < PROMPT_S
    assert requests.count("FetchRequest") == 1
    append(client, ORDERS[0])
    assert waiter.wait(AT_THE_START, LONG_S)


def test_interrupts_before_the_wait_end_only_the_next_one(client: Client, waiter: RecordWaiter) -> None:
    waiter.interrupt()
    waiter.interrupt()
    started = time.monotonic()
    assert not waiter.wait(AT_THE_START, LONG_S)
    assert time.monotonic() < started + PROMPT_S
    append(client, ORDERS[0])
    assert waiter.wait(AT_THE_START, LONG_S)


def test_interrupt_while_connecting_or_receiving(wait: Wait) -> None:
    """Neither a server without room for connections nor one that does not respond delays an interrupt."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as silent, contextlib.ExitStack() as stack:
        port = silent.getsockname()[1]
        waiter = stack.enter_context(RecordWaiter(f"127.0.0.1:{port}"))
        for _ in range(4):  # the first connections succeed, but nothing is received; further ones wait
            woken = wait(waiter, AT_THE_START, LONG_S)
            time.sleep(0.05)
            interrupted = time.monotonic()
            waiter.interrupt()
            found, at = woken.result(LONG_S)
            assert not found
            assert at - interrupted < PROMPT_S
            full = socket.socket()
            full.setblocking(False)
            full.connect_ex(("127.0.0.1", port))
            stack.callback(full.close)


def test_interrupt_while_sending() -> None:
    interrupt = Interrupt()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        transport = interrupt.connect(listener.getsockname()[:2], LONG_S)
        threading.Timer(0.05, interrupt.trigger).start()
        with pytest.raises(Interrupted):
            transport.sendall(bytes(64 << 20))
        interrupt.reset()
        transport.close()
    with pytest.raises(ConnectionRefusedError):
        interrupt.connect(("127.0.0.1", free_port()), LONG_S)
    interrupt.close()
    interrupt.trigger()


def test_broker_forgets_waits_of_closed_connections(client: Client, broker: Broker, wait: Wait) -> None:
    for _ in range(20):
        with RecordWaiter(broker.bootstrap_servers) as waiter:
            assert not waiter.wait(AT_THE_START, 0.01)
    until(lambda: not waiting_partitions(broker))
    until(lambda: broker._server._node.counters.connections == 1)  # type: ignore[union-attr]


# -- transactions, deleted records and topics -----------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["commit", "abort"])
def test_open_transaction_wakes_when_it_ends(
    client: Client, waiter: RecordWaiter, broker: Broker, wait: Wait, requests: list[str], outcome: str
) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "t"})
    producer.init_transactions()
    producer.begin_transaction()
    woken = wait(waiter, AT_THE_START, LONG_S)
    for _ in range(5):
        producer.produce("orders", b"v", partition=1)
        producer.flush()
        append(client, ORDERS[1])
        time.sleep(0.02)
    assert not woken.done()
    assert requests.count("FetchRequest") == 1
    with RecordWaiter(broker.bootstrap_servers) as uncommitted:
        assert uncommitted.wait(AT_THE_START, LONG_S)
    getattr(producer, f"{outcome}_transaction")()
    ended = time.monotonic()
    found, at = woken.result(LONG_S)
    assert found
    assert at - ended < PROMPT_S
    with Client(broker.bootstrap_servers, read_committed=True) as reader:
        read = {**AT_THE_START, **reader.offsets([ORDERS[1]], LATEST)}
    assert not waiter.wait(read, 0.1)


def test_position_before_the_open_transaction(client: Client, waiter: RecordWaiter, broker: Broker) -> None:
    append(client, ORDERS[1])
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "t"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("orders", b"v", partition=1)
    producer.flush()
    append(client, ORDERS[1])
    assert waiter.wait(AT_THE_START, LONG_S)
    assert not waiter.wait({**AT_THE_START, ORDERS[1]: 1}, 0.1)
    producer.abort_transaction()


def test_deleted_records_and_offsets_beyond_the_end(client: Client, waiter: RecordWaiter) -> None:
    for _ in range(3):
        append(client, ORDERS[0])
    shape = DeleteRecordsRequest.DeleteRecordsTopic
    partition = shape.DeleteRecordsPartition(partition_index=0, offset=3)
    client.call(DeleteRecordsRequest(topics=[shape(name="orders", partitions=[partition])], timeout_ms=1000))
    assert waiter.wait(AT_THE_START, LONG_S)  # offset 0 is deleted
    assert not waiter.wait({**AT_THE_START, ORDERS[0]: 3}, 0.05)
    assert waiter.wait({**AT_THE_START, ORDERS[0]: 4}, LONG_S)


def test_deleted_topic_and_missing_partition(
    client: Client, waiter: RecordWaiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_LONG_POLL_MS", 200)  # a fetch that waits does not notice the deletion
    assert not waiter.wait(AT_THE_START, 0.01)
    assert waiter.wait({**AT_THE_START, TopicPartition("clicks", 7): 0}, LONG_S)
    delete_topic(client, "clicks")
    assert waiter.wait({**AT_THE_START, ORDERS[0]: 0}, LONG_S)
    assert not waiter.wait(dict.fromkeys(ORDERS, 0), 0.05)


# -- brokers that are not available ---------------------------------------------------------------------------


def test_broker_restarts_during_the_wait(tmp_path: Path, wait: Wait) -> None:
    port = free_port()
    with Broker(tmp_path, port=port) as broker, Client(broker.bootstrap_servers) as client:
        client.create_topic("orders", partitions=len(ORDERS))
        waiter = RecordWaiter(broker.bootstrap_servers, read_committed=True)
        woken = wait(waiter, dict.fromkeys(ORDERS, 0), LONG_S)
        until(lambda: len(waiting_partitions(broker)) == len(ORDERS))
    time.sleep(0.5)
    assert not woken.done()
    with Broker(tmp_path, port=port) as broker, Client(broker.bootstrap_servers) as client, waiter:
        until(lambda: len(waiting_partitions(broker)) == len(ORDERS))
        append(client, ORDERS[2])
        acknowledged = time.monotonic()
        found, at = woken.result(LONG_S)
        assert found
        assert at - acknowledged < PROMPT_S


def test_unreachable_broker(requests: list[str]) -> None:
    with RecordWaiter(f"127.0.0.1:{free_port()}") as waiter:
        started, cpu = time.monotonic(), time.thread_time()
        assert not waiter.wait(AT_THE_START, 0.5)
        assert 0.5 <= time.monotonic() - started < PROMPT_S
        assert time.thread_time() - cpu < 0.1


class Cluster:
    """Two brokers that a waiter takes for the nodes of one cluster, with the leaders in `leaders`."""

    def __init__(self, *brokers: Broker) -> None:
        self.brokers = brokers
        self.leaders = {tp: tp.partition % len(brokers) for tp in AT_THE_START}

    def waiter(self) -> RecordWaiter:
        waiter = RecordWaiter(self.brokers[0].bootstrap_servers)
        client: Any = waiter._client
        client.leader, client.address = self.leaders.__getitem__, self.address
        return waiter

    def address(self, node: int) -> tuple[str, int]:
        host, port = self.brokers[node].bootstrap_servers.split(":")
        return host, int(port)

    def append(self, partition: TopicPartition) -> None:
        with Client(self.brokers[self.leaders[partition]].bootstrap_servers) as client:
            append(client, partition)

    def waiting(self) -> list[set[TopicPartition]]:
        return [set(waiting_partitions(broker)) for broker in self.brokers]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Broker() as first, Broker() as second:
        for broker in (first, second):
            with Client(broker.bootstrap_servers) as client:
                client.create_topic("orders", partitions=len(ORDERS))
                client.create_topic("clicks", partitions=len(CLICKS))
        yield Cluster(first, second)


EVEN = {ORDERS[0], ORDERS[2], CLICKS[0]}
ODD = {ORDERS[1], ORDERS[3], CLICKS[1]}


@pytest.mark.parametrize("partition", [ORDERS[2], CLICKS[1]], ids=["node 0", "node 1"])
def test_any_node_wakes(cluster: Cluster, wait: Wait, partition: TopicPartition, requests: list[str]) -> None:
    with cluster.waiter() as waiter:
        woken = wait(waiter, AT_THE_START, LONG_S)
        until(lambda: cluster.waiting() == [EVEN, ODD])
        assert requests.count("FetchRequest") == 2
        cluster.append(partition)
        acknowledged = time.monotonic()
        found, at = woken.result(LONG_S)
        assert found
        assert at - acknowledged < PROMPT_S
        # The other node still has the request of the first wait; only the one that answered gets another.
        assert not waiter.wait({**AT_THE_START, partition: 1}, 0.05)
        assert requests.count("FetchRequest") == 3


def test_leader_changes(cluster: Cluster, wait: Wait, monkeypatch: pytest.MonkeyPatch) -> None:
    with Client(cluster.brokers[0].bootstrap_servers) as client:
        delete_topic(client, "clicks")
    with cluster.waiter() as waiter:
        forgotten: list[str] = []

        def forget(topics: set[str]) -> None:
            forgotten.extend(topics)
            if len(forgotten) == 2:
                cluster.leaders.update(dict.fromkeys(CLICKS, 1))

        monkeypatch.setattr(waiter._client, "forget_leaders", forget)
        woken = wait(waiter, AT_THE_START, LONG_S)
        until(lambda: cluster.waiting() == [EVEN - set(CLICKS), ODD | set(CLICKS)])
        assert forgotten == ["clicks", "clicks"]
        cluster.append(CLICKS[0])
        assert woken.result(LONG_S)[0]


def test_one_node_fails(cluster: Cluster, wait: Wait) -> None:
    with cluster.waiter() as waiter:
        woken = wait(waiter, AT_THE_START, LONG_S)
        until(lambda: cluster.waiting() == [EVEN, ODD])
        address = cluster.address(1)
        cluster.address = lambda node: address if node else Cluster.address(cluster, 0)  # type: ignore[method-assign]
        waiter._client.address = cluster.address  # type: ignore[method-assign]
        cluster.brokers[1].stop()
        time.sleep(0.3)
        assert set(waiting_partitions(cluster.brokers[0])) == EVEN
        assert not woken.done()
        cluster.append(ORDERS[0])
        assert woken.result(LONG_S)[0]


def test_broker_that_does_not_wait(waiter: RecordWaiter, requests: list[str], broker: Broker) -> None:
    """Responses without records before the end of the long poll do not cause a flood of requests."""
    from headwater.transmit.broker.handlers import fetch

    original = fetch._wait_for_more

    async def return_at_once(node: Any, request: Any, found: Any) -> Any:
        return found

    fetch._wait_for_more = return_at_once
    try:
        assert not waiter.wait(AT_THE_START, 0.5)
    finally:
        fetch._wait_for_more = original
    assert requests.count("FetchRequest") <= 4
