"""Starting and stopping a broker, also where it cannot start."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import confluent_kafka
import pytest

from headwater.errors import ClosedError, ConflictError, CorruptError, InvalidError, UnavailableError
from headwater.record import Record, TopicPartition
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.broker.node import BrokerSettings
from headwater.transmit.client.client import LATEST, Client
from headwater.transmit.records.batch import encode_batch
from headwater.transmit.topics.group_commit import Durability

ORDERS = TopicPartition("orders", 0)


def test_a_broker_without_a_directory_leaves_nothing_behind() -> None:
    with Broker() as broker:
        data = broker._settings.data
        assert (data / "meta.db").exists()
    assert not data.exists()
    with pytest.raises(ClosedError):
        _ = broker.bootstrap_servers


def test_a_port_in_use_is_a_conflict_and_the_directory_is_free_again(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        with pytest.raises(ConflictError, match="the address is in use") as caught:
            Broker(tmp_path, port=other.getsockname()[1]).start()
        assert "--listen" in caught.value.hint
    with Broker(tmp_path):
        pass


def test_a_host_that_is_not_ours_is_invalid(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="cannot listen"):
        Broker(tmp_path, host="192.0.2.1").start()


def test_the_directory_of_a_running_broker_is_a_conflict_that_names_the_process(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        with pytest.raises(ConflictError, match=f"process {os.getpid()}") as caught:
            Broker(tmp_path).start()
        assert "--data" in caught.value.hint
        with Client(broker.bootstrap_servers) as client:
            assert client.topics() == {}


def test_a_directory_that_cannot_be_read_frees_the_port_and_the_directory(tmp_path: Path) -> None:
    (tmp_path / "meta.db").write_bytes(b"this is not a database at all" * 100)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(CorruptError, match=r"meta\.db"):
        Broker(tmp_path, port=port).start()
    (tmp_path / "meta.db").unlink()
    with Broker(tmp_path, port=port):
        pass


def test_what_a_stopped_broker_held_is_there_when_it_starts_again(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Client(broker.bootstrap_servers) as client:
        client.create_topic("orders")
        client.produce(ORDERS, encode_batch([Record(value=b"v")]))
    with Broker(tmp_path) as broker, Client(broker.bootstrap_servers) as client:
        assert client.offsets([ORDERS], LATEST) == {ORDERS: 1}
        assert broker.recovered == []


def test_what_was_cut_off_at_the_start_is_told(tmp_path: Path) -> None:
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
def test_a_topic_with_a_name_that_kafka_forbids_is_not_created(tmp_path: Path, name: str) -> None:
    with Broker(tmp_path) as broker, Client(broker.bootstrap_servers) as client:
        with pytest.raises(InvalidError):
            client.create_topic(name)
        assert client.topics() == {}


def test_damaged_records_on_disk_are_an_error_of_that_partition_only(tmp_path: Path) -> None:
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


def test_durability_may_be_text_and_is_checked(tmp_path: Path) -> None:
    assert BrokerSettings(data=tmp_path, durability="never").durability is Durability.NEVER  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="fsync, interval, never"):
        Broker(durability="perhaps")


def test_the_broker_starts_without_the_heavy_libraries() -> None:
    """They would cost more time and memory than the broker itself."""
    program = (
        "import sys, headwater.cli, headwater.transmit.broker.server, headwater.transmit.broker.metrics_page;"
        "print(sorted({'pyspark', 'pyarrow', 'pandas', 'numpy', 'starlette', 'uvicorn'} & set(sys.modules)))"
    )
    command = [sys.executable, "-W", "ignore", "-c", program]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


def test_durability_given_as_a_word_is_kept() -> None:
    """It once was compared by identity, and "fsync" as a word meant never."""
    with Broker(durability="fsync") as broker:
        with Client(broker.bootstrap_servers) as client:
            client.create_topic("orders", partitions=1)
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers, "acks": "all"})
        producer.produce("orders", b"x")
        assert producer.flush(20) == 0
        assert "\nheadwater_fsync_total 1\n" in broker.metrics()
