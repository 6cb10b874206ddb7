"""The lifecycle of a log as clients see it: configs, deletion, retention, archive, compaction, corruption."""

import contextlib
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer
from confluent_kafka import TopicPartition as Partition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)

from headwater.clock import ManualClock
from headwater.errors import UnavailableError
from headwater.record import Record, TopicPartition
from headwater.transmit.records.batch import encode_batch

with warnings.catch_warnings():
    # kafka-python loads its messages with a function that is deprecated in Python 3.11 and 3.12.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.admin

    from headwater.record import LATEST
    from headwater.transmit.broker.embedded import Broker
    from headwater.transmit.client.client import Client

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # kafka-python's

PATIENCE_S = 30.0
NOW_MS = 1_800_000_000_000


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError(f"the condition did not hold within {PATIENCE_S:.0f} s")


class ManagedBroker:
    """A broker with a manual clock, an admin client, a producer and a reader."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.clock = ManualClock(start_ms=NOW_MS)
        self.start()

    def start(self) -> None:
        self.broker = Broker(
            self.data, clock=self.clock, log_retention_check_interval_ms=50, log_cleaner_backoff_ms=50
        ).start()
        self.servers = {"bootstrap.servers": self.broker.bootstrap_servers}
        self.admin = AdminClient(self.servers)

    def restart(self) -> None:
        self.broker.stop()
        self.start()

    def create(self, topic: str, **configs: str) -> None:
        named = {name.replace("_", "."): value for name, value in configs.items()}
        self.admin.create_topics([NewTopic(topic, 1, config=named)])[topic].result(PATIENCE_S)

    def alter(self, kind: str, name: str, setting: str, value: str | None, how: str = "SET") -> None:
        change = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType[how])
        resource = ConfigResource(kind, name, incremental_configs=[change])
        self.admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)

    def configs(self, kind: str, name: str) -> dict[str, ConfigEntry]:
        resource = ConfigResource(kind, name)
        return self.admin.describe_configs([resource])[resource].result(PATIENCE_S)

    def produce(self, topic: str, pairs: list[tuple[str | None, str | None]], **settings: Any) -> None:
        """Send one request per record, so that each is a batch."""
        problems: list[Any] = []
        producer = Producer({**self.servers, "linger.ms": 0, **settings})
        for key, value in pairs:
            producer.produce(
                topic, value, key, timestamp=self.clock.now_ms(),
                on_delivery=lambda error, _: problems.append(error) if error else None,
            )  # fmt: skip
            assert producer.flush(PATIENCE_S) == 0
        if problems:
            raise KafkaException(problems[0])

    def read(self, topic: str, offset: int = 0) -> list[tuple[int, bytes | None, bytes | None]]:
        end = self.offset(topic, OffsetSpec.latest())
        consumer = Consumer({**self.servers, "group.id": "unused", "enable.partition.eof": True})
        consumer.assign([Partition(topic, 0, offset)])
        found: list[tuple[int, bytes | None, bytes | None]] = []
        try:
            while end:
                message = consumer.poll(PATIENCE_S)
                assert message is not None
                if message.error():
                    if message.error().name() == "_PARTITION_EOF":
                        break
                    raise KafkaException(message.error())
                found.append((message.offset(), message.key(), message.value()))
        finally:
            consumer.close()
        return found

    def offset(self, topic: str, spec: OffsetSpec) -> int:
        partition = Partition(topic, 0)
        return int(self.admin.list_offsets({partition: spec})[partition].result(PATIENCE_S).offset)

    def files(self, topic: str) -> list[Path]:
        return sorted(self.data.glob(f"log/{topic}-0-*/*.log"))

    def size(self, topic: str) -> int:
        total = 0
        for path in self.files(topic):
            with contextlib.suppress(FileNotFoundError):  # the file may be deleted meanwhile
                total += path.stat().st_size
        return total


@pytest.fixture
def managed(tmp_path: Path) -> Any:
    made = ManagedBroker(tmp_path / "data")
    yield made
    made.broker.stop()


def code(error: pytest.ExceptionInfo[KafkaException]) -> str:
    return str(error.value.args[0].name())


# -- configs --------------------------------------------------------------------------------------------------


def test_every_config_is_described_with_its_source(managed: ManagedBroker) -> None:
    managed.create("orders", retention_ms="5000")
    found = managed.configs("topic", "orders")
    assert {"cleanup.policy", "segment.bytes", "min.insync.replicas", "headwater.durability"} <= found.keys()
    assert (found["retention.ms"].value, found["retention.ms"].source) == ("5000", 1)
    assert (found["segment.ms"].value, found["segment.ms"].source) == ("604800000", 5)
    assert managed.configs("broker", "1")["log.retention.ms"].value == "604800000"


@pytest.mark.parametrize(
    ("name", "value"),
    [("retention_ms", "soon"), ("no_such", "1"), ("cleanup_policy", "burn"), ("max_message_bytes", "-1")],
)
def test_the_error_names_an_invalid_config(managed: ManagedBroker, name: str, value: str) -> None:
    with pytest.raises(KafkaException, match=name.replace("_", ".")) as error:
        managed.create("orders", **{name: value})
    assert code(error) == "INVALID_CONFIG"


@pytest.mark.compat("configs: describe and change", client="confluent-kafka")
def test_changed_configs_apply_at_once_and_survive_a_restart(managed: ManagedBroker) -> None:
    managed.create("orders")
    managed.alter("topic", "orders", "max.message.bytes", "300")
    managed.alter("topic", "orders", "cleanup.policy", "compact", "APPEND")
    with pytest.raises(KafkaException) as error:
        managed.produce("orders", [("k", "x" * 400)])
    assert code(error) == "MSG_SIZE_TOO_LARGE"
    managed.restart()
    found = managed.configs("topic", "orders")
    assert (found["max.message.bytes"].value, found["cleanup.policy"].value) == ("300", "delete,compact")
    managed.alter("topic", "orders", "max.message.bytes", None, "DELETE")
    managed.produce("orders", [("k", "x" * 400)])
    with pytest.raises(KafkaException) as error:
        managed.alter("topic", "orders", "retention.ms", "soon")
    assert code(error) == "INVALID_CONFIG"


def test_a_broker_config_is_the_default_of_its_topics(managed: ManagedBroker) -> None:
    managed.create("orders")
    managed.alter("broker", "1", "log.retention.bytes", "12345")
    found = managed.configs("topic", "orders")["retention.bytes"]
    assert (found.value, found.source) == ("12345", 2)
    with pytest.raises(KafkaException):
        managed.alter("broker", "1", "log.dirs", "/elsewhere")


def test_a_group_has_configs(managed: ManagedBroker) -> None:
    assert managed.configs("group", "workers")["share.auto.offset.reset"].value == "latest"
    managed.alter("group", "workers", "share.auto.offset.reset", "earliest")
    managed.restart()
    found = managed.configs("group", "workers")["share.auto.offset.reset"]
    assert (found.value, found.source) == ("earliest", 8)


def test_durability_is_a_config_of_the_topic(managed: ManagedBroker) -> None:
    managed.create("quick", headwater_durability="never")
    managed.produce("quick", [("k", "v")], acks="all")
    assert managed.read("quick") == [(0, b"k", b"v")]
    managed.alter("topic", "quick", "headwater.durability", "fsync")
    managed.produce("quick", [("k", "w")], acks="all")
    assert managed.read("quick", 1) == [(1, b"k", b"w")]


@pytest.mark.compat("configs: describe and change", client="kafka-python")
def test_kafka_python_alters_and_describes_configs(managed: ManagedBroker) -> None:
    managed.create("orders")
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=managed.broker.bootstrap_servers)
    try:
        resource = kafka.admin.ConfigResource(
            kafka.admin.ConfigResourceType.TOPIC, "orders", {"retention.ms": "777"}
        )
        admin.alter_configs([resource])
    finally:
        admin.close()
    assert managed.configs("topic", "orders")["retention.ms"].value == "777"


def test_log_append_time_replaces_the_producers(managed: ManagedBroker) -> None:
    managed.create("orders", message_timestamp_type="LogAppendTime")
    producer = Producer(managed.servers)
    producer.produce("orders", b"v", timestamp=5, partition=0)
    assert producer.flush(PATIENCE_S) == 0
    partition = Partition("orders", 0)
    found = managed.admin.list_offsets({partition: OffsetSpec.for_timestamp(NOW_MS)})[partition].result(PATIENCE_S)
    assert (found.offset, found.timestamp) == (0, NOW_MS)
    assert managed.read("orders") == [(0, None, b"v")]


def test_a_compacted_topic_rejects_a_record_without_a_key(managed: ManagedBroker) -> None:
    managed.create("orders", cleanup_policy="compact")
    with pytest.raises(KafkaException) as error:
        managed.produce("orders", [(None, "v")])
    assert code(error) == "INVALID_RECORD"
    producer = Producer({**managed.servers, "linger.ms": 500})
    refused: dict[bytes, str] = {}
    for key, value in ((b"k", b"good"), (None, b"bad"), (b"k", b"good too"), (None, b"bad too")):
        producer.produce("orders", value, key, on_delivery=lambda e, m: refused.update({m.value(): e.name()}))
    assert producer.flush(PATIENCE_S) == 0
    in_company, bad = "_INVALID_DIFFERENT_RECORD", "INVALID_RECORD"
    assert refused == {b"good": in_company, b"bad": bad, b"good too": in_company, b"bad too": bad}


# -- retention and compaction ---------------------------------------------------------------------------------


@pytest.mark.compat("deleting records", client="confluent-kafka")
def test_records_are_deleted_before_an_offset(managed: ManagedBroker) -> None:
    managed.create("orders")
    managed.produce("orders", [("k", str(n)) for n in range(10)])
    partition = Partition("orders", 0, 4)
    assert managed.admin.delete_records([partition])[partition].result(PATIENCE_S).low_watermark == 4
    managed.restart()
    assert managed.offset("orders", OffsetSpec.earliest()) == 4
    assert [offset for offset, *_ in managed.read("orders", 4)] == list(range(4, 10))
    consumer = Consumer({**managed.servers, "group.id": "g", "auto.offset.reset": "error"})
    consumer.assign([Partition("orders", 0, 3)])
    message = until(lambda: consumer.poll(1))
    assert message.error().name() == "_AUTO_OFFSET_RESET"
    consumer.close()
    partition = Partition("orders", 0, 11)
    with pytest.raises(KafkaException) as error:
        managed.admin.delete_records([partition])[partition].result(PATIENCE_S)
    assert code(error) == "OFFSET_OUT_OF_RANGE"


def test_old_segments_are_deleted_by_time(managed: ManagedBroker) -> None:
    managed.create("orders", retention_ms="60000", segment_bytes="200")
    managed.produce("orders", [("k", str(n) * 50) for n in range(6)])
    managed.clock.advance(50)
    managed.produce("orders", [("k", "young")])
    managed.clock.advance(30)
    until(lambda: managed.offset("orders", OffsetSpec.earliest()) >= 5)
    assert managed.read("orders", 6) == [(6, b"k", b"young")]
    managed.clock.advance(60)
    until(lambda: managed.offset("orders", OffsetSpec.earliest()) == 7)
    managed.produce("orders", [("k", "next")])
    assert managed.read("orders", 7) == [(7, b"k", b"next")]


def test_old_segments_are_deleted_by_size(managed: ManagedBroker) -> None:
    managed.create("orders", retention_bytes="600", segment_bytes="200")
    managed.produce("orders", [("k", str(n) * 50) for n in range(20)])
    until(lambda: managed.size("orders") < 800)
    start = managed.offset("orders", OffsetSpec.earliest())
    assert [offset for offset, *_ in managed.read("orders", start)] == list(range(start, 20))


def test_a_segment_is_rolled_by_time(managed: ManagedBroker) -> None:
    managed.create("orders", segment_ms="60000")
    managed.produce("orders", [("k", "v")])
    until(lambda: managed.clock.advance(40) or len(managed.files("orders")) == 2)
    assert managed.read("orders") == [(0, b"k", b"v")]


def test_expired_segments_are_read_from_the_archive(managed: ManagedBroker, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    managed.create("orders", retention_ms="60000", segment_bytes="200", remote_archive_dir=str(archive))
    managed.produce("orders", [("k", str(n) * 50) for n in range(6)])
    written = managed.read("orders")
    managed.clock.advance(100)
    until(lambda: len(list(archive.glob("*/*.log"))) == 6)
    assert managed.read("orders") == written
    managed.restart()
    assert managed.offset("orders", OffsetSpec.earliest()) == 0
    assert managed.read("orders") == written
    managed.admin.delete_topics(["orders"])["orders"].result(PATIENCE_S)
    assert list(archive.glob("*/*.log")) == []


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_compacted_topic_has_the_same_latest_values(managed: ManagedBroker, compression: str) -> None:
    managed.create("users", cleanup_policy="compact", segment_bytes="500", min_cleanable_dirty_ratio="0.01")
    pairs = [(f"k{n % 7}", None if n % 10 == 9 else f"v{n}") for n in range(100)]
    managed.produce("users", pairs, **{"compression.type": compression})
    full = {(key or "").encode(): value and value.encode() for key, value in pairs}
    open_from = int(managed.files("users")[-1].stem)

    def is_compact() -> bool:
        return len([1 for offset, *_ in managed.read("users") if offset < open_from]) <= 14

    until(is_compact)
    found = managed.read("users")
    assert {key: value for _, key, value in found} == full
    assert [offset for offset, *_ in found] == sorted({offset for offset, *_ in found})
    assert [(key, value) for offset, key, value in found] == [
        ((pairs[offset][0] or "").encode(), pairs[offset][1] and (pairs[offset][1] or "").encode())
        for offset, *_ in found
    ]
    managed.restart()
    assert {key: value for _, key, value in managed.read("users")} == full


# -- corruption -----------------------------------------------------------------------------------------------


def test_a_corrupt_byte_is_an_error_and_all_other_records_are_served(
    managed: ManagedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    managed.create("orders", segment_bytes="300")
    managed.produce("orders", [("k", str(n) * 50) for n in range(10)])
    managed.broker.stop()
    path = managed.files("orders")[1]
    content = bytearray(path.read_bytes())
    content[80] ^= 1
    path.write_bytes(content)
    managed.start()
    first, last = int(path.stem), int(managed.files("orders")[2].stem)
    assert [offset for offset, *_ in managed.read("orders", last)] == list(range(last, 10))
    consumer = kafka.KafkaConsumer(bootstrap_servers=managed.broker.bootstrap_servers, enable_auto_commit=False)
    try:
        partition = kafka.TopicPartition("orders", 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        seen: list[int] = []

        def is_named() -> bool:
            seen.extend(record.offset for found in consumer.poll(100).values() for record in found)
            return f"{path.name} is damaged at byte 0" in caplog.text

        until(is_named)
        assert seen == list(range(first))
    finally:
        consumer.close()


def test_a_corrupt_open_segment_accepts_no_records_and_loses_none(
    managed: ManagedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    managed.create("orders")
    managed.produce("orders", [("k", str(n) * 50) for n in range(10)])
    managed.broker.stop()
    (path,) = managed.files("orders")
    path.with_suffix(".index").unlink()  # as after a kill of the broker
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 1
    path.write_bytes(damaged)
    managed.start()
    assert f"{path} is damaged at byte" in caplog.text
    partition = TopicPartition("orders", 0)
    with Client(managed.broker.bootstrap_servers) as client:
        with pytest.raises(UnavailableError, match=f"{path} is damaged at byte"):
            client.produce(partition, encode_batch([Record(value=b"v")]))
        end = client.offsets([partition], LATEST)[partition]
        assert 0 < end < 10
        with pytest.raises(UnavailableError, match="KAFKA_STORAGE_ERROR"):
            client.fetch(partition, end)
    managed.broker.stop()
    assert path.read_bytes() == damaged
    path.write_bytes(whole)
    managed.start()
    assert len(managed.read("orders")) == 10
    managed.produce("orders", [("k", "next")])
    assert managed.read("orders", 10) == [(10, b"k", b"next")]


# -- other admin requests -------------------------------------------------------------------------------------


@pytest.mark.compat("log directories and replicas", client="kafka-python")
def test_log_dirs_are_described(managed: ManagedBroker) -> None:
    managed.create("orders")
    managed.produce("orders", [("k", "v")])
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=managed.broker.bootstrap_servers)
    try:
        found = admin.describe_log_dirs()
    finally:
        admin.close()
    assert "orders" in str(found)


@pytest.mark.compat("log directories and replicas", client="confluent-kafka")
def test_leaders_are_already_elected(managed: ManagedBroker) -> None:
    from confluent_kafka import ElectionType

    managed.create("orders")
    partition = Partition("orders", 0)
    found = managed.admin.elect_leaders(ElectionType.PREFERRED, [partition]).result(PATIENCE_S)
    assert found[partition].code() == 84


def test_committed_offsets_are_deleted(managed: ManagedBroker) -> None:
    managed.create("orders")
    consumer = Consumer({**managed.servers, "group.id": "g"})
    consumer.commit(offsets=[Partition("orders", 0, 3)], asynchronous=False)
    consumer.close()
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=managed.broker.bootstrap_servers)
    try:
        admin.delete_group_offsets("g", [kafka.TopicPartition("orders", 0)])
    finally:
        admin.close()
    request = [ConsumerGroupTopicPartitions("g")]
    found = managed.admin.list_consumer_group_offsets(request)["g"].result(PATIENCE_S)
    assert found.topic_partitions == []


def test_there_are_no_acls(managed: ManagedBroker) -> None:
    binding = AclBinding(
        ResourceType.TOPIC, "orders", ResourcePatternType.LITERAL, "User:a", "*", AclOperation.READ,
        AclPermissionType.ALLOW,
    )  # fmt: skip
    with pytest.raises(KafkaException) as error:
        managed.admin.create_acls([binding])[binding].result(PATIENCE_S)
    assert code(error) == "SECURITY_DISABLED"
