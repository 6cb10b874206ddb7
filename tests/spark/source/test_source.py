"""The log as a Spark data source, with a real broker and a real session."""

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from headwater.transmit.broker.embedded import Broker

pytestmark = pytest.mark.filterwarnings("default")


def options(broker: Broker, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": broker.bootstrap_servers, **more}


def numbers(n: int, start: int = 0) -> list[bytes]:
    return [str(i).encode() for i in range(start, start + n)]


def values_of(frame: Any) -> list[int]:
    return sorted(int(bytes(row.value)) for row in frame.select("value").collect())


def create(broker: Broker, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        future.result(10)


def run_once(spark: Any, broker: Broker, folder: Path, **more: str) -> list[tuple[int, list[int]]]:
    """Run a query once with its checkpoint in `folder`; return the values of each batch."""
    batches: list[tuple[int, list[int]]] = []
    stream = spark.readStream.format("headwater").options(**options(broker, **more)).load()
    query = (
        stream.writeStream.foreachBatch(lambda frame, batch: batches.append((batch, values_of(frame))))
        .option("checkpointLocation", str(folder))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return batches


def test_batch_read_has_kafkas_columns(spark: Any, broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "compression.type": "zstd"})
    producer.produce("t", key=b"k", value=b"v", timestamp=1_700_000_000_123, headers={"h": b"1"})
    producer.produce("t", value=None)
    producer.flush(10)
    frame = spark.read.format("headwater").options(**options(broker, subscribe="t", includeHeaders="true")).load()
    first, second = frame.orderBy("offset").collect()
    assert (bytes(first.key), bytes(first.value), first.topic, first.partition, first.offset) == (
        b"k",
        b"v",
        "t",
        0,
        0,
    )
    assert first.timestampType == 0
    assert frame.selectExpr("unix_millis(timestamp) as ms").first().ms == 1_700_000_000_123
    assert [(h.key, bytes(h.value)) for h in first.headers] == [("h", b"1")]
    assert (second.key, second.value, second.headers) == (None, None, [])


def test_batch_read_between_offsets_and_times(spark: Any, broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for i in range(100):
        producer.produce("t", value=str(i), timestamp=1_000_000 + i * 10)
    producer.flush(10)

    def read(**more: str) -> list[int]:
        return values_of(spark.read.format("headwater").options(**options(broker, subscribe="t", **more)).load())

    assert read(startingOffsets='{"t": {"0": 90}}', endingOffsets='{"t": {"0": 95}}') == [90, 91, 92, 93, 94]
    assert read(startingTimestamp="1000955") == [96, 97, 98, 99]
    assert read(startingTimestamp="9000000") == []
    assert read(endingTimestamp="1000020") == [0, 1]


def test_min_partitions_splits_a_topic(spark: Any, broker: Broker, produce: Any) -> None:
    produce(broker.bootstrap_servers, "t", numbers(1000))
    frame = spark.read.format("headwater").options(**options(broker, subscribe="t", minPartitions="4")).load()
    assert frame.rdd.getNumPartitions() == 4
    assert values_of(frame) == list(range(1000))


def test_stream_continues_where_it_stopped(spark: Any, broker: Broker, produce: Any, tmp_path: Path) -> None:
    produce(broker.bootstrap_servers, "t", numbers(10))
    first = run_once(spark, broker, tmp_path, subscribe="t", startingOffsets="earliest")
    produce(broker.bootstrap_servers, "t", numbers(5, start=10))
    second = run_once(spark, broker, tmp_path, subscribe="t", startingOffsets="earliest")
    assert [v for _, values in first for v in values] == list(range(10))
    assert [v for _, values in second for v in values] == list(range(10, 15))


def test_max_offsets_per_trigger_bounds_each_batch(
    spark: Any, broker: Broker, produce: Any, tmp_path: Path
) -> None:
    create(broker, "t", 2)
    produce(broker.bootstrap_servers, "t", numbers(60), partition=0)
    produce(broker.bootstrap_servers, "t", numbers(40, start=60), partition=1)
    batches = run_once(
        spark, broker, tmp_path, subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger="25"
    )
    assert all(len(values) <= 25 for _, values in batches)
    assert len(batches) >= 4
    assert sorted(v for _, values in batches for v in values) == list(range(100))


def test_new_partitions_and_topics_are_read_from_their_first_record(
    spark: Any, broker: Broker, produce: Any, tmp_path: Path
) -> None:
    create(broker, "t.1", 1)
    produce(broker.bootstrap_servers, "t.1", numbers(3))
    pattern = {"subscribePattern": r"t\..*", "startingOffsets": "earliest"}
    assert run_once(spark, broker, tmp_path, **pattern)[0][1] == [0, 1, 2]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for future in admin.create_partitions([NewPartitions("t.1", 2)]).values():
        future.result(10)
    produce(broker.bootstrap_servers, "t.1", numbers(3, start=3), partition=1)
    produce(broker.bootstrap_servers, "t.2", numbers(3, start=6))
    found = [v for _, values in run_once(spark, broker, tmp_path, **pattern) for v in values]
    assert sorted(found) == [3, 4, 5, 6, 7, 8]


def test_missing_topic_is_named_with_the_command_that_creates_it(spark: Any, broker: Broker) -> None:
    frame = spark.read.format("headwater").options(**options(broker, subscribe="nowhere")).load()
    with pytest.raises(Exception, match="headwater topic create nowhere"):
        frame.count()


def test_written_rows_are_in_the_partitions_that_kafka_chooses_for_their_keys(spark: Any, broker: Broker) -> None:
    create(broker, "out", 3)
    rows = spark.createDataFrame([(f"k{i}", f"v{i}") for i in range(50)], "key string, value string")
    rows.write.format("headwater").mode("append").options(**options(broker, topic="out")).save()
    # Java's default partitioner is murmur2, which librdkafka calls murmur2_random.
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "partitioner": "murmur2_random"})
    for i in range(50):
        producer.produce("out", key=f"k{i}", value=f"w{i}")
    producer.flush(10)
    found = spark.read.format("headwater").options(**options(broker, subscribe="out")).load().collect()
    assert len(found) == 100
    places: dict[bytes, set[int]] = {}
    for row in found:
        places.setdefault(bytes(row.key), set()).add(row.partition)
    assert all(len(partitions) == 1 for partitions in places.values())


def test_write_without_a_value_column_is_refused(spark: Any, broker: Broker) -> None:
    rows = spark.createDataFrame([("k",)], "key string")
    with pytest.raises(Exception, match="no column 'value'"):
        rows.write.format("headwater").mode("append").options(**options(broker, topic="out")).save()


def test_read_committed_skips_aborted_and_open_transactions(spark: Any, broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "writer"})
    producer.init_transactions(10)
    for value, commit in ((b"1", True), (b"2", False), (b"3", True)):
        producer.begin_transaction()
        producer.produce("t", value)
        producer.commit_transaction(10) if commit else (producer.flush(10), producer.abort_transaction(10))
    producer.begin_transaction()
    producer.produce("t", b"4")
    assert producer.flush(10) == 0

    def read(**more: str) -> list[int]:
        return values_of(spark.read.format("headwater").options(**options(broker, subscribe="t", **more)).load())

    assert read() == [1, 2, 3, 4]
    assert read(**{"kafka.isolation.level": "read_committed"}) == [1, 3]
    producer.commit_transaction(10)
    assert read(**{"kafka.isolation.level": "read_committed"}) == [1, 3, 4]
