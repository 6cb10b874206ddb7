"""Start and stop of an embedded broker, and failures to start."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import confluent_kafka
import pytest

from headwater.errors import ClosedError, ConflictError, CorruptError, InvalidError, UnavailableError
from headwater.record import LATEST, Record, TopicPartition
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.broker.node import BrokerSettings
from headwater.transmit.client.client import Client
from headwater.transmit.records.batch import encode_batch
from headwater.transmit.topics.group_commit import Durability

ORDERS = TopicPartition("orders", 0)


def test_temporary_directory_is_deleted() -> None:
    with Broker() as broker:
        data = broker._settings.data
        assert (data / "meta.db").exists()
    assert not data.exists()
    with pytest.raises(ClosedError):
        _ = broker.bootstrap_servers


def test_port_in_use_is_conflict_and_directory_is_unlocked(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        with pytest.raises(ConflictError, match="the address is in use") as caught:
            Broker(tmp_path, port=other.getsockname()[1]).start()
        assert "--listen" in caught.value.hint
    with Broker(tmp_path):
        pass


def test_foreign_host_is_invalid(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="cannot listen"):
        Broker(tmp_path, host="192.0.2.1").start()


def test_directory_in_use_is_conflict_with_process_id(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        with pytest.raises(ConflictError, match=f"process {os.getpid()}") as caught:
            Broker(tmp_path).start()
        assert "--data" in caught.value.hint
        with Client(broker.bootstrap_servers) as client:
            assert client.topics() == {}


def test_corrupt_directory_releases_port_and_lock(tmp_path: Path) -> None:
    (tmp_path / "meta.db").write_bytes(b"this is not a database at all" * 100)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(CorruptError, match=r"meta\.db"):
        Broker(tmp_path, port=port).start()
    (tmp_path / "meta.db").unlink()
    with Broker(tmp_path, port=port):
        pass


def test_records_survive_restart(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Client(broker.bootstrap_servers) as client:
        client.create_topic("orders")
        client.produce(ORDERS, encode_batch([Record(value=b"v")]))
    with Broker(tmp_path) as broker, Client(broker.bootstrap_servers) as client:
        assert client.offsets([ORDERS], LATEST) == {ORDERS: 1}
        assert broker.recovered == []


def test_truncation_at_start_is_reported(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Client(broker.bootstrap_servers) as client:
        client.create_topic("orders")
        client.produce(ORDERS, encode_batch([Record(value=b"v")]))
    (segment,) = (tmp_path / "log").glob("orders-0-*/*.log")
    with segment.open("ab") as file:
        file.write(b"half a batch")
    with Broker(tmp_path) as broker, Client(broker.bootstrap_servers) as client:
        assert broker.recovered == [(ORDERS, 12)]
        assert client.offsets([ORDERS], LATEST) == {ORDERS: 1}
    with Broker(tmp_path) as broker:
        assert broker.recovered == []


@pytest.mark.parametrize("name", ["", "..", "a b", "ä", "x" * 250])
def test_create_topic_with_invalid_name(tmp_path: Path, name: str) -> None:
    with Broker(tmp_path) as broker, Client(broker.bootstrap_servers) as client:
        with pytest.raises(InvalidError):
            client.create_topic(name)
        assert client.topics() == {}


def test_corrupt_records_affect_only_their_partition(tmp_path: Path) -> None:
    with Broker(tmp_path, segment_bytes=1) as broker, Client(broker.bootstrap_servers) as client:
        client.create_topic("orders")
        client.create_topic("other")
        for _ in range(3):
            client.produce(ORDERS, encode_batch([Record(value=b"v")]))
        client.produce(TopicPartition("other", 0), encode_batch([Record(value=b"w")]))
    first = min((tmp_path / "log").glob("orders-0-*/*.log"))
    first.write_bytes(bytes(len(first.read_bytes())))
    with Broker(tmp_path, segment_bytes=1) as broker, Client(broker.bootstrap_servers) as client:
        with pytest.raises(UnavailableError, match="KAFKA_STORAGE_ERROR"):
            client.fetch(ORDERS, 0)
        assert client.fetch(ORDERS, 1)
        assert client.fetch(TopicPartition("other", 0), 0)


def test_durability_as_text(tmp_path: Path) -> None:
    assert BrokerSettings(data=tmp_path, durability="never").durability is Durability.NEVER  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="fsync, interval, never"):
        Broker(durability="perhaps")


def test_broker_does_not_import_heavy_libraries() -> None:
    """They would cost more time and memory than the broker itself."""
    program = (
        "import sys, headwater.cli, headwater.transmit.broker.embedded;"
        "import headwater.transmit.broker.monitoring.metrics_page;"
        "print(sorted({'pyspark', 'pyarrow', 'pandas', 'numpy', 'starlette', 'uvicorn'} & set(sys.modules)))"
    )
    command = [sys.executable, "-W", "ignore", "-c", program]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


def test_durability_as_text_syncs() -> None:
    """Regression: the value was compared by identity, so "fsync" as text meant never."""
    with Broker(durability="fsync") as broker:
        with Client(broker.bootstrap_servers) as client:
            client.create_topic("orders", partitions=1)
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers, "acks": "all"})
        producer.produce("orders", b"x")
        assert producer.flush(20) == 0
        assert "\nheadwater_fsync_total 1\n" in broker.metrics()
