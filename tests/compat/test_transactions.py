"""Transactions with real clients: committed records are visible, aborted ones are not, zombies are fenced."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from aiokafka.errors import ProducerFenced
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

from headwater.clock import ManualClock
from headwater.record import EARLIEST, LATEST, TopicPartition
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.client.client import Client
from headwater.transmit.records.batch import decode_batch
from headwater.transmit.records.batch_header import walk

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # kafka-python's

WAIT_S = 30


class Writer(Protocol):
    """A transactional producer, with the same interface for every client."""

    def begin(self) -> None: ...

    def send(self, topic: str, value: bytes) -> None: ...

    def send_offset(self, topic: str, offset: int, group: str) -> None: ...

    def end(self, *, commit: bool) -> None: ...

    def close(self) -> None: ...


class Confluent:
    fenced: Any = KafkaException

    def __init__(self, servers: str, name: str, timeout_ms: int = 60_000) -> None:
        self._servers = servers
        self._producer = Producer(
            {"bootstrap.servers": servers, "transactional.id": name, "transaction.timeout.ms": timeout_ms}
        )
        self._producer.init_transactions(WAIT_S)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, value: bytes) -> None:
        self._producer.produce(topic, value)
        assert self._producer.flush(WAIT_S) == 0

    def send_offset(self, topic: str, offset: int, group: str) -> None:
        consumer = Consumer({"bootstrap.servers": self._servers, "group.id": group})
        self._producer.send_offsets_to_transaction(
            [ConfluentPartition(topic, 0, offset)], consumer.consumer_group_metadata(), WAIT_S
        )
        consumer.close()

    def end(self, *, commit: bool) -> None:
        (self._producer.commit_transaction if commit else self._producer.abort_transaction)(WAIT_S)

    def close(self) -> None:
        pass


class KafkaPython:
    fenced: Any = KafkaError

    def __init__(self, servers: str, name: str, timeout_ms: int = 60_000) -> None:
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=servers, transactional_id=name, transaction_timeout_ms=timeout_ms
        )
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, value: bytes) -> None:
        self._producer.send(topic, value).get(WAIT_S)

    def send_offset(self, topic: str, offset: int, group: str) -> None:
        offsets = {kafka.TopicPartition(topic, 0): OffsetAndMetadata(offset, "", -1)}
        self._producer.send_offsets_to_transaction(offsets, group)

    def end(self, *, commit: bool) -> None:
        (self._producer.commit_transaction if commit else self._producer.abort_transaction)()

    def close(self) -> None:
        self._producer.close(timeout=1)


class Aio:
    fenced: Any = ProducerFenced

    def __init__(self, servers: str, name: str, timeout_ms: int = 60_000) -> None:
        self._loop = asyncio.new_event_loop()

        async def start() -> AIOKafkaProducer:
            producer = AIOKafkaProducer(
                bootstrap_servers=servers, transactional_id=name, transaction_timeout_ms=timeout_ms
            )
            await producer.start()
            return producer

        self._producer = self._loop.run_until_complete(start())

    def _run(self, awaitable: Any) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(awaitable, WAIT_S))

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(self, topic: str, value: bytes) -> None:
        self._run(self._producer.send_and_wait(topic, value))

    def send_offset(self, topic: str, offset: int, group: str) -> None:
        self._run(self._producer.send_offsets_to_transaction({AioPartition(topic, 0): offset}, group))

    def end(self, *, commit: bool) -> None:
        self._run(self._producer.commit_transaction() if commit else self._producer.abort_transaction())

    def close(self) -> None:
        self._run(self._producer.stop())
        self._loop.close()


OpenWriter = Callable[..., Writer]


@pytest.fixture(params=[Confluent, KafkaPython, Aio], ids=["confluent-kafka", "kafka-python", "aiokafka"])
def open_writer(request: pytest.FixtureRequest) -> Iterator[OpenWriter]:
    opened: list[Writer] = []

    def open_(*arguments: Any) -> Writer:
        opened.append(request.param(*arguments))
        return opened[-1]

    open_.fenced = request.param.fenced  # type: ignore[attr-defined]
    yield open_
    for writer in opened:
        writer.close()


def read_confluent(servers: str, topic: str, isolation: str) -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "g", "isolation.level": isolation, "enable.partition.eof": True}
    )
    consumer.assign([ConfluentPartition(topic, 0, 0)])
    values = []
    while (message := consumer.poll(WAIT_S)) is not None and message.error() is None:
        values.append(message.value())
    consumer.close()
    assert message is not None, "the reader did not reach the end of the partition"
    return values


def read_kafka_python(servers: str, topic: str, isolation: str) -> list[bytes]:
    consumer = kafka.KafkaConsumer(bootstrap_servers=servers, isolation_level=isolation, enable_auto_commit=False)
    partition = kafka.TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    end = consumer.end_offsets([partition])[partition]
    values: list[bytes] = []
    while consumer.position(partition) < end:
        for records in consumer.poll(timeout_ms=1000).values():
            values += [record.value for record in records]
    consumer.close()
    return values


def read_aio(servers: str, topic: str, isolation: str) -> list[bytes]:
    async def read() -> list[bytes]:
        consumer = AIOKafkaConsumer(bootstrap_servers=servers, isolation_level=isolation)
        await consumer.start()
        partition = AioPartition(topic, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        end = (await consumer.end_offsets([partition]))[partition]
        values: list[bytes] = []
        while await consumer.position(partition) < end:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                values += [record.value for record in records]
        await consumer.stop()
        return values

    return asyncio.run(asyncio.wait_for(read(), WAIT_S))


def read_ours(servers: str, topic: str, isolation: str) -> list[bytes]:
    partition = TopicPartition(topic, 0)
    values: list[bytes] = []
    with Client(servers, read_committed=isolation == "read_committed") as client:
        at = client.offsets([partition], EARLIEST)[partition]
        end = client.offsets([partition], LATEST)[partition]
        while at < end:
            data, at = client.read(partition, at)
            values += [r.value or b"" for position, h in walk(data) if not h.is_control
                       for r in decode_batch(data, position)]  # fmt: skip
    return values


READERS = {
    "confluent": read_confluent, "kafka-python": read_kafka_python, "aiokafka": read_aio, "ours": read_ours
}  # fmt: skip


@pytest.mark.compat("transactions: commit, abort, read_committed")
@pytest.mark.parametrize("reader", READERS)
def test_readers_see_what_their_isolation_allows(broker: Broker, open_writer: OpenWriter, reader: str) -> None:
    read, servers = READERS[reader], broker.bootstrap_servers
    writer = open_writer(servers, "w")
    for number, commit in enumerate([True, False, True]):
        writer.begin()
        writer.send("a", b"%d" % number)
        writer.send("b", b"%d" % number)
        writer.end(commit=commit)
    writer.begin()
    writer.send("a", b"3")
    assert read(servers, "a", "read_committed") == [b"0", b"2"]
    assert read(servers, "b", "read_committed") == [b"0", b"2"]
    assert read(servers, "a", "read_uncommitted") == [b"0", b"1", b"2", b"3"]
    writer.end(commit=True)
    assert read(servers, "a", "read_committed") == [b"0", b"2", b"3"]


def committed_offset(servers: str, group: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group})
    (found,) = consumer.committed([ConfluentPartition(topic, 0)], WAIT_S)
    consumer.close()
    return int(found.offset)


@pytest.mark.compat("transactions: offsets inside")
def test_offsets_are_committed_with_the_transaction_or_not_at_all(broker: Broker, open_writer: OpenWriter) -> None:
    servers = broker.bootstrap_servers
    writer = open_writer(servers, "w")
    writer.begin()
    writer.send("in", b"x")
    writer.end(commit=True)
    for offset, commit, expected in ((1, True, 1), (2, False, 1), (3, True, 3)):
        writer.begin()
        writer.send("out", b"%d" % offset)
        writer.send_offset("in", offset, "copier")
        writer.end(commit=commit)
        assert committed_offset(servers, "copier", "in") == expected
    assert read_confluent(servers, "out", "read_committed") == [b"1", b"3"]


@pytest.mark.compat("transactions: zombies are fenced")
def test_a_zombie_is_fenced_and_its_transaction_is_aborted(broker: Broker, open_writer: OpenWriter) -> None:
    servers = broker.bootstrap_servers
    zombie = open_writer(servers, "w")
    zombie.begin()
    zombie.send("a", b"half")
    successor = open_writer(servers, "w")
    with pytest.raises(open_writer.fenced):  # type: ignore[attr-defined]
        zombie.end(commit=True)
    successor.begin()
    successor.send("a", b"whole")
    successor.end(commit=True)
    assert read_confluent(servers, "a", "read_committed") == [b"whole"]


@pytest.mark.compat("transactions: abandoned ones time out")
def test_an_abandoned_transaction_times_out(open_writer: OpenWriter) -> None:
    clock = ManualClock(start_ms=1_700_000_000_000)
    with Broker(clock=clock) as broker:
        servers = broker.bootstrap_servers
        writer = open_writer(servers, "w", 5_000)
        writer.begin()
        writer.send("a", b"late")
        clock.advance(5)
        with Client(servers, read_committed=True) as client:
            partition = TopicPartition("a", 0)
            while client.offsets([partition], LATEST)[partition] < 2:  # the record and its abort marker
                pass
        assert read_confluent(servers, "a", "read_committed") == []
        with pytest.raises(open_writer.fenced):  # type: ignore[attr-defined]
            writer.end(commit=True)


def test_a_timeout_above_the_limit_is_rejected(broker: Broker) -> None:
    with pytest.raises(KafkaException, match="timeout"):
        Confluent(broker.bootstrap_servers, "w", 15 * 60_000 + 1)


def test_a_copier_that_stops_midway_copies_every_record_once(broker: Broker) -> None:
    servers = broker.bootstrap_servers
    source = Producer({"bootstrap.servers": servers})
    for number in range(30):
        source.produce("in", b"%d" % number)
    assert source.flush(WAIT_S) == 0

    def copy(records: int, *, finish: bool) -> None:
        """Copy in transactions of five records; if `finish` is false, leave the last one open."""
        producer = Producer({"bootstrap.servers": servers, "transactional.id": "copier"})
        producer.init_transactions(WAIT_S)
        consumer = Consumer(
            {
                "bootstrap.servers": servers, "group.id": "copiers", "auto.offset.reset": "earliest",
                "enable.auto.commit": False, "isolation.level": "read_committed",
            }
        )  # fmt: skip
        consumer.subscribe(["in"])
        for copied in range(0, records, 5):
            producer.begin_transaction()
            for _ in range(5):
                message = consumer.poll(WAIT_S)
                assert message is not None
                assert message.error() is None
                producer.produce("out", message.value())
            position = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(position, consumer.consumer_group_metadata(), WAIT_S)
            assert producer.flush(WAIT_S) == 0
            if finish or copied + 5 < records:
                producer.commit_transaction(WAIT_S)
        consumer.close()

    copy(15, finish=False)
    copy(20, finish=True)  # ten records were committed, so twenty are left
    assert read_confluent(servers, "out", "read_committed") == [b"%d" % number for number in range(30)]
    assert len(read_confluent(servers, "out", "read_uncommitted")) == 35
    assert committed_offset(servers, "copiers", "in") == 30
