"""Three real clients with one common interface, so that each test is written once for all of them."""

import asyncio
import gc
import logging
import threading
import time
import warnings
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.record import Record

with warnings.catch_warnings():
    # kafka-python loads its messages with a function that is deprecated in Python 3.11 and 3.12.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.admin

    from headwater.transmit.broker.embedded import Broker

# Its log records of lost connections would keep the sockets open until a later test fails because of them.
logging.getLogger("kafka").setLevel(logging.CRITICAL)

PATIENCE_S = 30.0
SESSION_MS, HEARTBEAT_MS = 6000, 300


def until(condition: Callable[[], Any]) -> Any:
    """Repeat the condition until it returns a true value, and return that value."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"the condition did not hold within {PATIENCE_S:.0f} s")


class Confluent:
    """confluent-kafka, which wraps librdkafka."""

    def __init__(self, servers: str) -> None:
        import confluent_kafka
        from confluent_kafka.admin import AdminClient

        self._kafka = confluent_kafka
        self._servers = {"bootstrap.servers": servers}
        self._admin = AdminClient(self._servers)

    def close(self) -> None:
        pass

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        from confluent_kafka.admin import NewTopic

        self._admin.create_topics([NewTopic(topic, partitions)])[topic].result(PATIENCE_S)

    def delete_topic(self, topic: str) -> None:
        self._admin.delete_topics([topic])[topic].result(PATIENCE_S)

    def create_partitions(self, topic: str, partitions: int) -> None:
        from confluent_kafka.admin import NewPartitions

        self._admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(PATIENCE_S)

    def topics(self) -> dict[str, int]:
        found = self._admin.list_topics(timeout=PATIENCE_S).topics
        return {name: len(topic.partitions) for name, topic in found.items()}

    def topic_configs(self, topic: str) -> dict[str, str]:
        from confluent_kafka.admin import ConfigResource

        resource = ConfigResource("topic", topic)
        found = self._admin.describe_configs([resource])[resource].result(PATIENCE_S)
        return {name: entry.value for name, entry in found.items()}

    def groups(self) -> set[str]:
        found = self._admin.list_consumer_groups().result(PATIENCE_S)
        assert found.errors == []
        return {group.group_id for group in found.valid}

    def group_members(self, group: str) -> tuple[str, int]:
        found = self._admin.describe_consumer_groups([group])[group].result(PATIENCE_S)
        return found.state.name.title(), len(found.members)

    def produce(
        self,
        topic: str,
        records: list[Record],
        partition: int = 0,
        compression: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int]:
        producer = self._kafka.Producer(
            {
                **self._servers, "compression.type": compression, "acks": acks, "enable.idempotence": idempotent,
                "topic.metadata.propagation.max.ms": 1000,
            }
        )  # fmt: skip
        offsets: list[int] = []
        errors: list[object] = []

        def delivered(error: object, message: Any) -> None:
            if error:
                errors.append(error)
            else:
                offsets.append(message.offset())

        for record in records:
            producer.produce(
                topic, record.value, record.key, partition, on_delivery=delivered,
                timestamp=record.timestamp_ms, headers=list(record.headers),
            )  # fmt: skip
        assert producer.flush(PATIENCE_S) == 0
        if errors:
            raise RuntimeError(errors[0])
        return offsets

    def _consumer(self, group: str, **settings: Any) -> Any:
        return self._kafka.Consumer(
            {
                **self._servers, "group.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest",
                "session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS, "fetch.wait.max.ms": 100,
                **settings,
            }
        )  # fmt: skip

    def consume(self, topic: str, partition: int, offset: int, count: int) -> list[Record]:
        consumer = self._consumer("unused")
        consumer.assign([self._kafka.TopicPartition(topic, partition, offset)])
        records: list[Record] = []

        def read() -> bool:
            for message in consumer.consume(1000, 0.1):
                if message.error():
                    raise RuntimeError(message.error())
                records.append(
                    Record(
                        key=message.key(), value=message.value(), headers=tuple(message.headers() or ()),
                        timestamp_ms=message.timestamp()[1], offset=message.offset(),
                    )
                )  # fmt: skip
            return len(records) >= count

        try:
            until(read)
        finally:
            consumer.close()
        return records

    def offset_of_time(self, topic: str, partition: int, timestamp_ms: int) -> int:
        consumer = self._consumer("unused")
        wanted = self._kafka.TopicPartition(topic, partition, timestamp_ms)
        try:
            (found,) = consumer.offsets_for_times([wanted], PATIENCE_S)
        finally:
            consumer.close()
        return found.offset

    def committed(self, group: str, topic: str, partition: int) -> int:
        consumer = self._consumer(group)
        try:
            (found,) = consumer.committed([self._kafka.TopicPartition(topic, partition)], PATIENCE_S)
        finally:
            consumer.close()
        return found.offset

    def member(self, topic: str, group: str, instance_id: str | None = None, **settings: Any) -> "ConfluentMember":
        static = {"group.instance.id": instance_id} if instance_id else {}
        consumer = self._consumer(group, **static, **settings)
        consumer.subscribe([topic])
        return ConfluentMember(consumer)


class ConfluentMember:
    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def poll(self) -> list[tuple[int, int]]:
        """Return the partition and offset of each record received."""
        found = self._consumer.consume(100, 0.1)
        for message in found:
            if message.error():
                raise RuntimeError(message.error())
        return [(message.partition(), message.offset()) for message in found]

    def assignment(self) -> set[int]:
        return {tp.partition for tp in self._consumer.assignment()}

    def commit(self) -> None:
        self._consumer.commit(asynchronous=False)

    def close(self) -> None:
        self._consumer.close()


class KafkaPython:
    """kafka-python."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._admin = kafka.KafkaAdminClient(bootstrap_servers=servers)

    def close(self) -> None:
        self._admin.close()

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        self._admin.create_topics([kafka.admin.NewTopic(topic, partitions, 1)])

    def delete_topic(self, topic: str) -> None:
        self._admin.delete_topics([topic])

    def create_partitions(self, topic: str, partitions: int) -> None:
        self._admin.create_partitions({topic: kafka.admin.NewPartitions(partitions)})

    def topics(self) -> dict[str, int]:
        return {topic["name"]: len(topic["partitions"]) for topic in self._admin.describe_topics()}

    def topic_configs(self, topic: str) -> dict[str, str]:
        resource = kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, topic)
        found = self._admin.describe_configs([resource], config_filter="all")
        ((_, by_name),) = ((kind, names) for kind, names in found.items() if names)
        return {name: entry["value"] for name, entry in by_name[topic].items()}

    def groups(self) -> set[str]:
        return {group["group_id"] for group in self._admin.list_groups()}

    def group_members(self, group: str) -> tuple[str, int]:
        found = self._admin.describe_groups([group])[group]
        return found["group_state"], len(found["members"])

    def produce(
        self,
        topic: str,
        records: list[Record],
        partition: int = 0,
        compression: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int]:
        producer = kafka.KafkaProducer(
            bootstrap_servers=self._servers, compression_type=None if compression == "none" else compression,
            acks=acks if acks == "all" else int(acks), enable_idempotence=idempotent, max_block_ms=3000,
        )  # fmt: skip
        try:
            sent = [
                producer.send(
                    topic, record.value, record.key, list(record.headers), partition, record.timestamp_ms
                )
                for record in records
            ]
            producer.flush(PATIENCE_S)
            return [future.get(PATIENCE_S).offset for future in sent]
        finally:
            producer.close()

    def _consumer(self, group: str | None, **settings: Any) -> Any:
        return kafka.KafkaConsumer(
            bootstrap_servers=self._servers, group_id=group, enable_auto_commit=False,
            auto_offset_reset="earliest", session_timeout_ms=SESSION_MS, heartbeat_interval_ms=HEARTBEAT_MS,
            fetch_max_wait_ms=100,
            # It may join before it knows the topic, and refreshes its metadata only at this age.
            metadata_max_age_ms=1000, **settings,
        )  # fmt: skip

    def consume(self, topic: str, partition: int, offset: int, count: int) -> list[Record]:
        tp = kafka.TopicPartition(topic, partition)
        consumer = self._consumer(None)
        consumer.assign([tp])
        consumer.seek(tp, offset)
        records: list[Record] = []

        def read() -> bool:
            for message in consumer.poll(timeout_ms=500).get(tp, []):
                records.append(
                    Record(
                        key=message.key, value=message.value, headers=tuple(message.headers),
                        timestamp_ms=message.timestamp, offset=message.offset,
                    )
                )  # fmt: skip
            return len(records) >= count

        try:
            until(read)
        finally:
            consumer.close()
        return records

    def offset_of_time(self, topic: str, partition: int, timestamp_ms: int) -> int:
        tp = kafka.TopicPartition(topic, partition)
        consumer = self._consumer(None)
        try:
            return consumer.offsets_for_times({tp: timestamp_ms})[tp].offset
        finally:
            consumer.close()

    def committed(self, group: str, topic: str, partition: int) -> int:
        consumer = self._consumer(group)
        try:
            return consumer.committed(kafka.TopicPartition(topic, partition))
        finally:
            consumer.close()

    def member(
        self, topic: str, group: str, instance_id: str | None = None, **settings: Any
    ) -> "KafkaPythonMember":
        static = {"group_instance_id": instance_id} if instance_id else {}
        consumer = self._consumer(group, **static, **settings)
        consumer.subscribe([topic])
        return KafkaPythonMember(consumer)


class KafkaPythonMember:
    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def poll(self) -> list[tuple[int, int]]:
        # If a poll ends during a rebalance, this client sends no heartbeat, so allow it more time.
        found = self._consumer.poll(timeout_ms=500)
        return [(message.partition, message.offset) for messages in found.values() for message in messages]

    def assignment(self) -> set[int]:
        return {tp.partition for tp in self._consumer.assignment()}

    def commit(self) -> None:
        self._consumer.commit()

    def close(self) -> None:
        self._consumer.close()


class Aiokafka:
    """aiokafka, on an event loop in its own thread."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE_S * 2)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _with_admin(self, use: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        from aiokafka.admin import AIOKafkaAdminClient

        async def work() -> Any:
            admin = AIOKafkaAdminClient(bootstrap_servers=self._servers)
            await admin.start()
            try:
                return await use(admin)
            finally:
                await admin.close()

        return self.run(work())

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        from aiokafka.admin import NewTopic

        response = self._with_admin(lambda admin: admin.create_topics([NewTopic(topic, partitions, 1)]))
        _raise_for([error[1] for error in response.topic_errors])

    def delete_topic(self, topic: str) -> None:
        response = self._with_admin(lambda admin: admin.delete_topics([topic]))
        _raise_for([code for _, code in response.topic_error_codes])

    def create_partitions(self, topic: str, partitions: int) -> None:
        from aiokafka.admin import NewPartitions

        response = self._with_admin(lambda admin: admin.create_partitions({topic: NewPartitions(partitions)}))
        _raise_for([error[1] for error in response.topic_errors])

    def topics(self) -> dict[str, int]:
        found = self._with_admin(lambda admin: admin.describe_topics())
        return {topic["topic"]: len(topic["partitions"]) for topic in found}

    def topic_configs(self, topic: str) -> dict[str, str]:
        from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        (response,) = self._with_admin(lambda admin: admin.describe_configs([resource]))
        ((code, _, _, _, entries),) = response.resources
        _raise_for([code])
        return {entry[0]: entry[1] for entry in entries}

    def groups(self) -> set[str]:
        return {group for group, _ in self._with_admin(lambda admin: admin.list_consumer_groups())}

    def group_members(self, group: str) -> tuple[str, int]:
        (response,) = self._with_admin(lambda admin: admin.describe_consumer_groups([group]))
        ((code, _, state, _, _, members, *_),) = response.groups
        _raise_for([code])
        return state, len(members)

    def produce(
        self,
        topic: str,
        records: list[Record],
        partition: int = 0,
        compression: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int]:
        from aiokafka import AIOKafkaProducer

        async def produce() -> list[int]:
            producer = AIOKafkaProducer(
                bootstrap_servers=self._servers, compression_type=None if compression == "none" else compression,
                acks=acks if acks == "all" else int(acks), enable_idempotence=idempotent,
                request_timeout_ms=3000,
            )  # fmt: skip
            await producer.start()
            try:
                sent = [
                    await producer.send(
                        topic, record.value, record.key, partition, record.timestamp_ms, list(record.headers)
                    )
                    for record in records
                ]
                await producer.flush()
                return [-1 if done is None else done.offset for done in [await future for future in sent]]
            finally:
                await producer.stop()

        return self.run(produce())

    def _consumer(self, group: str | None, **settings: Any) -> Any:
        from aiokafka import AIOKafkaConsumer

        return AIOKafkaConsumer(
            bootstrap_servers=self._servers, group_id=group, enable_auto_commit=False,
            auto_offset_reset="earliest", session_timeout_ms=SESSION_MS, heartbeat_interval_ms=HEARTBEAT_MS,
            fetch_max_wait_ms=100, **settings,
        )  # fmt: skip

    def _with_consumer(self, group: str | None, use: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        async def work() -> Any:
            consumer = self._consumer(group)
            await consumer.start()
            try:
                return await use(consumer)
            finally:
                await consumer.stop()

        return self.run(work())

    def consume(self, topic: str, partition: int, offset: int, count: int) -> list[Record]:
        from aiokafka import TopicPartition

        async def read(consumer: Any) -> list[Record]:
            tp = TopicPartition(topic, partition)
            consumer.assign([tp])
            consumer.seek(tp, offset)
            messages = [await asyncio.wait_for(consumer.getone(), PATIENCE_S) for _ in range(count)]
            return [
                Record(
                    key=m.key, value=m.value, headers=tuple(m.headers), timestamp_ms=m.timestamp, offset=m.offset
                )
                for m in messages
            ]

        return self._with_consumer(None, read)

    def offset_of_time(self, topic: str, partition: int, timestamp_ms: int) -> int:
        from aiokafka import TopicPartition

        tp = TopicPartition(topic, partition)

        async def look_up(consumer: Any) -> int:
            return (await consumer.offsets_for_times({tp: timestamp_ms}))[tp].offset

        return self._with_consumer(None, look_up)

    def committed(self, group: str, topic: str, partition: int) -> int:
        from aiokafka import TopicPartition

        return self._with_consumer(group, lambda consumer: consumer.committed(TopicPartition(topic, partition)))

    def member(self, topic: str, group: str, instance_id: str | None = None, **settings: Any) -> "AiokafkaMember":
        static = {"group_instance_id": instance_id} if instance_id else {}

        async def start() -> Any:
            consumer = self._consumer(group, **static, **settings)
            consumer.subscribe([topic])
            await consumer.start()
            return consumer

        return AiokafkaMember(self, self.run(start()))


class AiokafkaMember:
    def __init__(self, client: Aiokafka, consumer: Any) -> None:
        self._client = client
        self._consumer = consumer

    def poll(self) -> list[tuple[int, int]]:
        found = self._client.run(self._consumer.getmany(timeout_ms=100))
        return [(message.partition, message.offset) for messages in found.values() for message in messages]

    def assignment(self) -> set[int]:
        return {tp.partition for tp in self._consumer.assignment()}

    def commit(self) -> None:
        self._client.run(self._consumer.commit())

    def close(self) -> None:
        self._client.run(self._consumer.stop())


def _raise_for(codes: list[int]) -> None:
    from aiokafka.errors import for_code

    for code in codes:
        if code:
            raise for_code(code)(f"error {code}")


CLIENTS = {"confluent-kafka": Confluent, "kafka-python": KafkaPython, "aiokafka": Aiokafka}


@pytest.fixture(autouse=True)
def _collect_unclosed_sockets() -> Iterator[None]:
    """Collect a client's unclosed sockets here, where the warning is ignored, and not in a later test."""
    yield
    gc.collect()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def broker(data: Path) -> Iterator[Broker]:
    with Broker(data) as running:
        yield running


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, broker: Broker) -> Iterator[Any]:
    client = CLIENTS[request.param](broker.bootstrap_servers)
    yield client
    client.close()


@pytest.fixture
def clients() -> dict[str, Any]:
    """The client classes by name, for a test that starts its own broker."""
    return CLIENTS
