"""Queues with confluent-kafka's share consumer: records are accepted, released or rejected one by one."""

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Producer, ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from headwater.record import Record, TopicPartition
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.client.client import Client
from headwater.transmit.records.batch import decode_batch
from headwater.transmit.records.batch_header import walk
from headwater.transmit.records.dead_letters import ShareOrigin, read_share_origin

# Sockets that kafka-python left open in earlier tests.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

PATIENCE_TURNS = 300
SCRIPT = """
import sys, time
from headwater.transmit.broker.embedded import Broker

with Broker(sys.argv[1]) as broker:
    print(broker.bootstrap_servers, flush=True)
    time.sleep(600)
"""


HOLDER = """
import sys, time
from confluent_kafka import ShareConsumer

consumer = ShareConsumer(
    {"bootstrap.servers": sys.argv[1], "group.id": "workers", "share.acknowledgement.mode": "explicit"}
)
consumer.subscribe(["jobs"])
held = 0
while held < int(sys.argv[2]):
    held += len(consumer.poll(0.2))
print("held", held, flush=True)
time.sleep(600)
"""


class Queue:
    """A topic `jobs` that share groups read."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self._admin = AdminClient({"bootstrap.servers": servers})
        self._open: list[ShareConsumer] = []

    def create(self, partitions: int = 1) -> None:
        self._admin.create_topics([NewTopic("jobs", partitions)])["jobs"].result(30)

    def configure(self, group: str, **configs: str) -> None:
        entries = [
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in configs.items()
        ]
        resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
        self._admin.incremental_alter_configs([resource])[resource].result(30)

    def send(self, count: int, first: int = 0, partitions: int = 1) -> None:
        producer = Producer({"bootstrap.servers": self.servers})
        for n in range(first, first + count):
            producer.produce("jobs", b"%d" % n, b"key", partition=n % partitions, headers={"n": b"%d" % n})
        assert producer.flush(30) == 0

    def consumer(self, group: str) -> ShareConsumer:
        consumer = ShareConsumer(
            {"bootstrap.servers": self.servers, "group.id": group, "share.acknowledgement.mode": "explicit"}
        )
        consumer.subscribe(["jobs"])
        self._open.append(consumer)
        return consumer

    def forget(self, consumer: ShareConsumer) -> None:
        """Remove a consumer that is already closed."""
        self._open.remove(consumer)

    def close(self) -> None:
        for consumer in self._open:
            consumer.close()

    def letters(self, topic: str) -> list[Record]:
        with Client(self.servers) as client:
            if topic not in client.topics():
                return []
            data = client.fetch(TopicPartition(topic, 0), 0)
        return [record for at, _ in walk(data) for record in decode_batch(data, at)]


@pytest.fixture
def queue(broker: Broker) -> Iterator[Queue]:
    queue = Queue(broker.bootstrap_servers)
    yield queue
    queue.close()


def consume_until(
    consumer: ShareConsumer, done: Callable[[], bool], answer: Callable[[Any], AcknowledgeType | None]
) -> None:
    """Poll and acknowledge each record until `done` holds; a record with the answer None stays locked."""
    for _ in range(PATIENCE_TURNS):
        for message in consumer.poll(0.2):
            assert message.error() is None
            kind = answer(message)
            if kind is not None:
                consumer.acknowledge(message, kind)
        results = consumer.commit_sync(30)
        assert [error for error in results.values() if error] == []
        if done():
            return
    raise AssertionError("the condition did not hold in time")


@pytest.mark.compat("queues: accept, each record once", client="confluent-kafka")
def test_every_record_is_accepted_once_by_one_of_two_consumers(queue: Queue) -> None:
    queue.create(partitions=2)
    queue.configure("workers", share_auto_offset_reset="earliest")
    queue.send(500, partitions=2)
    consumers = [queue.consumer("workers"), queue.consumer("workers")]
    seen: Counter[int] = Counter()
    takers: set[int] = set()

    def accept(n: int) -> Callable[[Any], AcknowledgeType]:
        def note(message: Any) -> AcknowledgeType:
            seen[int(message.value())] += 1
            takers.add(n)
            assert message.delivery_count() == 1
            return AcknowledgeType.ACCEPT

        return note

    sent = 500
    for turn in range(PATIENCE_TURNS):
        for n, consumer in enumerate(consumers):
            consume_until(consumer, lambda: True, accept(n))
        if len(seen) == sent and takers == {0, 1}:
            break
        if len(seen) == sent:
            queue.send(20, first=sent, partitions=2)
            sent += 20
        assert turn + 1 < PATIENCE_TURNS
    assert seen == dict.fromkeys(range(sent), 1)


def test_groups_are_independent_and_start_where_configured(queue: Queue) -> None:
    queue.create()
    queue.send(3)
    for group, reset in (("all", "earliest"), ("recent", "by_duration:PT1H"), ("new", "latest")):
        queue.configure(group, share_auto_offset_reset=reset)
    found: dict[str, list[int]] = {"all": [], "recent": [], "new": []}

    def accept(group: str) -> Callable[[Any], AcknowledgeType]:
        def note(message: Any) -> AcknowledgeType:
            found[group].append(int(message.value()))
            return AcknowledgeType.ACCEPT

        return note

    for group in ("all", "recent"):
        consume_until(queue.consumer(group), lambda group=group: len(found[group]) == 3, accept(group))
    late = queue.consumer("new")
    consume_until(late, lambda: "new" in shares_begun(queue), accept("new"))
    queue.send(2, first=3)
    consume_until(late, lambda: len(found["new"]) >= 2, accept("new"))
    assert found == {"all": [0, 1, 2], "recent": [0, 1, 2], "new": [3, 4]}


def shares_begun(queue: Queue) -> set[str]:
    """Return the groups that have started to read a partition."""
    from headwater.transmit.wire.json_messages import DescribeShareGroupOffsetsRequest

    shape = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup
    with Client(queue.servers) as client:
        request = DescribeShareGroupOffsetsRequest(groups=[shape(group_id="new", topics=None)])
        return {group.group_id for group in client.call(request).groups if group.topics}


@pytest.mark.compat("queues: release and reject, with a delivery count", client="confluent-kafka")
def test_a_released_record_is_redelivered_and_a_rejected_one_becomes_a_dead_letter(queue: Queue) -> None:
    queue.create()
    queue.configure(
        "workers", share_auto_offset_reset="earliest", errors_deadletterqueue_topic_name="jobs.dead",
        errors_deadletterqueue_copy_record_enable="true", share_delivery_count_limit="3",
    )  # fmt: skip
    queue.send(4)
    counts: dict[int, list[int]] = {n: [] for n in range(4)}
    answers = {0: AcknowledgeType.ACCEPT, 1: AcknowledgeType.REJECT, 2: AcknowledgeType.RELEASE}

    def answer(message: Any) -> AcknowledgeType:
        n = int(message.value())
        counts[n].append(message.delivery_count())
        again = n == 3 and len(counts[3]) == 1
        return AcknowledgeType.RELEASE if again else answers.get(n, AcknowledgeType.ACCEPT)

    consume_until(queue.consumer("workers"), lambda: len(queue.letters("jobs.dead")) == 2, answer)
    assert counts == {0: [1], 1: [1], 2: [1, 2, 3], 3: [1, 2]}
    rejected, worn_out = sorted(queue.letters("jobs.dead"), key=lambda record: record.value or b"")
    assert (rejected.key, rejected.value, rejected.headers[0]) == (b"key", b"1", ("n", b"1"))
    jobs = TopicPartition("jobs", 0)
    assert read_share_origin(rejected) == ShareOrigin(
        group="workers", partition=jobs, offset=1, delivery_count=1, message="Offset rejected by client."
    )
    assert read_share_origin(worn_out) == ShareOrigin(
        group="workers", partition=jobs, offset=2, delivery_count=3, message="Delivery count limit exceeded."
    )


@pytest.mark.compat("queues: locks that time out", client="confluent-kafka")
def test_records_of_a_silent_consumer_go_to_another(queue: Queue) -> None:
    queue.create()
    queue.configure("workers", share_auto_offset_reset="earliest", share_record_lock_duration_ms="1000")
    queue.send(5)
    held: list[int] = []
    consume_until(queue.consumer("workers"), lambda: len(held) == 5, lambda message: held.append(message.offset()))
    counts: dict[int, int] = {}

    def accept(message: Any) -> AcknowledgeType:
        counts[message.offset()] = message.delivery_count()
        return AcknowledgeType.ACCEPT

    consume_until(queue.consumer("workers"), lambda: len(counts) == 5, accept)
    assert counts == dict.fromkeys(range(5), 2)


def test_records_of_a_killed_consumer_go_to_another_at_once(broker: Broker, queue: Queue) -> None:
    """The locks last longer than the test waits: only the lost connection can have released them."""
    queue.create(partitions=4)
    queue.configure("workers", share_auto_offset_reset="earliest", share_record_lock_duration_ms="600000")
    queue.send(40, partitions=4)
    command = [sys.executable, "-W", "ignore", "-c", HOLDER, broker.bootstrap_servers, "40"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held 40\n"
        holder.send_signal(signal.SIGKILL)
    counts: dict[tuple[int, int], int] = {}

    def accept(message: Any) -> AcknowledgeType:
        counts[message.partition(), message.offset()] = message.delivery_count()
        return AcknowledgeType.ACCEPT

    consume_until(queue.consumer("workers"), lambda: len(counts) == 40, accept)
    assert set(counts.values()) == {2}


def test_records_of_a_closed_consumer_go_to_another_without_a_delivery_count(queue: Queue) -> None:
    queue.create()
    queue.configure("workers", share_auto_offset_reset="earliest", share_record_lock_duration_ms="600000")
    queue.send(5)
    first, held = queue.consumer("workers"), set[int]()
    consume_until(first, lambda: len(held) == 5, lambda message: held.add(message.offset()))
    first.close()
    counts: dict[int, int] = {}

    def accept(message: Any) -> AcknowledgeType:
        counts[message.offset()] = message.delivery_count()
        return AcknowledgeType.ACCEPT

    consume_until(queue.consumer("workers"), lambda: len(counts) == 5, accept)
    assert set(counts) == set(range(5))
    assert max(counts.values()) <= 2  # librdkafka sends RELEASE, which counts, for records its user has seen


@pytest.mark.compat("queues: read_committed", client="confluent-kafka")
@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_records_of_an_aborted_transaction_are_delivered_only_if_uncommitted_reads_are_configured(
    queue: Queue, level: str
) -> None:
    queue.create()
    queue.configure("workers", share_auto_offset_reset="earliest", share_isolation_level=level)
    producer = Producer({"bootstrap.servers": queue.servers, "transactional.id": "writer", "linger.ms": 0})
    producer.init_transactions(30)
    for value, end in ((b"0", "abort"), (b"1", "commit"), (b"2", "abort"), (b"3", "commit")):
        producer.begin_transaction()
        producer.produce("jobs", value)
        assert producer.flush(30) == 0
        (producer.commit_transaction if end == "commit" else producer.abort_transaction)(30)
    wanted = {"read_committed": {1, 3}, "read_uncommitted": {0, 1, 2, 3}}[level]
    found: set[int] = set()

    def accept(message: Any) -> AcknowledgeType:
        found.add(int(message.value()))
        return AcknowledgeType.ACCEPT

    consumer = queue.consumer("workers")
    consume_until(consumer, lambda: len(found) >= len(wanted), accept)
    assert found == wanted
    producer.begin_transaction()
    producer.produce("jobs", b"4")
    assert producer.flush(30) == 0
    producer.commit_transaction(30)
    consume_until(consumer, lambda: 4 in found, accept)
    assert found == {*wanted, 4}


def test_the_last_acknowledgements_count_when_a_consumer_closes(queue: Queue) -> None:
    """It leaves the group before it closes its session, which carries the acknowledgements."""
    queue.create()
    queue.configure("workers", share_auto_offset_reset="earliest")
    queue.send(6)
    first = queue.consumer("workers")
    taken: dict[int, Any] = {}
    for _ in range(PATIENCE_TURNS):
        taken |= {message.offset(): message for message in first.poll(0.2)}
        if taken:
            break
    done = sorted(taken)[: len(taken) - 1]
    for offset, message in taken.items():
        first.acknowledge(message, AcknowledgeType.ACCEPT if offset in done else AcknowledgeType.RELEASE)
    first.close()
    queue.forget(first)
    left: set[int] = set()

    def accept(message: Any) -> AcknowledgeType:
        left.add(message.offset())
        return AcknowledgeType.ACCEPT

    consume_until(queue.consumer("workers"), lambda: len(left) == 6 - len(done), accept)
    assert left == set(range(6)) - set(done)


def test_acknowledgements_survive_a_kill_of_the_broker(data: Path) -> None:
    def start() -> "tuple[subprocess.Popen[str], Queue]":
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", SCRIPT, str(data)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        return process, Queue(process.stdout.readline().strip())

    def kill(process: "subprocess.Popen[str]") -> None:
        process.send_signal(signal.SIGKILL)
        process.communicate()

    process, queue = start()
    accepted: set[int] = set()
    try:
        queue.create()
        queue.configure("workers", share_auto_offset_reset="earliest")
        queue.send(100)
        seen: set[int] = set()

        def some(message: Any) -> AcknowledgeType | None:
            seen.add(message.offset())
            if message.offset() % 3:
                return None
            accepted.add(message.offset())
            return AcknowledgeType.ACCEPT

        consume_until(queue.consumer("workers"), lambda: len(seen) == 100, some)
    finally:
        kill(process)
    process, again = start()
    try:
        left: Counter[int] = Counter()

        def accept(message: Any) -> AcknowledgeType:
            left[message.offset()] += 1
            return AcknowledgeType.ACCEPT

        consume_until(again.consumer("workers"), lambda: len(left) >= 100 - len(accepted), accept)
        assert set(left) == set(range(100)) - accepted
        again.close()
    finally:
        kill(process)
        queue.close()
