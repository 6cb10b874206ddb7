"""`compression.type` of a topic: batches are stored with this compression, whatever their producers used."""

from typing import Any

import pytest

from headwater.errors import InvalidError
from headwater.record import Record, TopicPartition
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.client.client import Client
from headwater.transmit.client.topics import alter_topic
from headwater.transmit.records.batch import decode_batch
from headwater.transmit.records.batch_header import walk

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # kafka-python's

TYPES = ["uncompressed", "gzip", "snappy", "lz4", "zstd"]
ORDERS = TopicPartition("orders", 0)
LARGE = b"a line that repeats itself, as lines do; " * 4000  # larger than a block of any codec


def numbered(count: int, size: int = 500) -> list[Record]:
    return [Record(key=b"%d" % n, value=b"x" * size, timestamp_ms=1000 + n, offset=n) for n in range(count)]


def compressions(broker: Broker) -> list[str]:
    with Client(broker.bootstrap_servers) as ours:
        data = ours.fetch(ORDERS, 0)
    return [header.compression.name.lower() for _, header in walk(data)]


@pytest.mark.parametrize("sent", ["none", "lz4"])
@pytest.mark.parametrize("wanted", TYPES)
def test_every_client_reads_recompressed_records(client: Any, broker: Broker, sent: str, wanted: str) -> None:
    with Client(broker.bootstrap_servers) as ours:
        ours.create_topic("orders", configs={"compression.type": wanted})
    records = [*numbered(20), Record(value=LARGE, headers=(("h", b"1"),), timestamp_ms=5, offset=20)]
    assert client.produce("orders", records, compression=sent, idempotent=True) == list(range(21))
    assert set(compressions(broker)) == {"none" if wanted == "uncompressed" else wanted}
    assert client.consume("orders", 0, 0, 21) == records


def test_a_changed_config_applies_at_once_and_only_to_new_batches(broker: Broker) -> None:
    import confluent_kafka

    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
    with Client(broker.bootstrap_servers) as ours:
        ours.create_topic("orders")
        for kind in ("producer", "zstd", "producer"):
            alter_topic(ours, "orders", {"compression.type": kind})
            producer.produce("orders", b"x" * 1000)
            assert producer.flush(20) == 0
    assert compressions(broker) == ["none", "zstd", "none"]


def test_recompressed_batches_keep_transaction_and_append_time_attributes(broker: Broker) -> None:
    import confluent_kafka

    configs = {"compression.type": "gzip", "message.timestamp.type": "LogAppendTime"}
    with Client(broker.bootstrap_servers) as ours:
        ours.create_topic("orders", configs=configs)
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "t"}
        )
        producer.init_transactions(20)
        producer.begin_transaction()
        producer.produce("orders", b"x" * 1000, timestamp=5)
        producer.commit_transaction(20)
        data = ours.fetch(ORDERS, 0)
        (at, header), (_, marker) = walk(data)
        assert header.is_transactional
        assert header.compression.name == "GZIP"
        assert marker.is_control
        assert marker.compression.name == "NONE"
        (record,) = decode_batch(data, at)
        assert (record.value, record.timestamp_ms > 5) == (b"x" * 1000, True)


def test_a_batch_that_is_too_large_when_recompressed_is_rejected(broker: Broker) -> None:
    import confluent_kafka

    configs = {"compression.type": "uncompressed", "max.message.bytes": "10000"}
    with Client(broker.bootstrap_servers) as ours:
        ours.create_topic("orders", configs=configs)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "compression.type": "zstd"}
    )
    errors: list[Any] = []
    producer.produce("orders", b"x" * 20_000, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(20) == 0
    assert [error.name() for error in errors] == ["MSG_SIZE_TOO_LARGE"]


def test_an_unknown_type_is_rejected_with_the_known_ones(broker: Broker) -> None:
    with Client(broker.bootstrap_servers) as ours:
        ours.create_topic("orders")
        with pytest.raises(InvalidError, match="expected one of uncompressed, zstd, lz4, snappy, gzip, producer"):
            alter_topic(ours, "orders", {"compression.type": "brotli"})


def test_a_codec_that_is_not_installed_is_rejected_with_a_hint(broker: Broker, monkeypatch: Any) -> None:
    monkeypatch.setattr("headwater.transmit.configs.is_available", lambda compression: False)
    with Client(broker.bootstrap_servers) as ours:
        ours.create_topic("orders")
        with pytest.raises(
            InvalidError, match="was built without lz4; install PyArrow from PyPI, or use another codec"
        ):
            alter_topic(ours, "orders", {"compression.type": "lz4"})
