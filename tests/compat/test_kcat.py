"""kcat as users call it: produce, consume, list metadata, look up offsets by time, read in a group."""

import json
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from headwater.transmit.broker.embedded import Broker
from headwater.transmit.client.client import Client

WAIT_S = 60

pytestmark = pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not on the PATH")

Kcat = Callable[..., str]


def compat(feature: str) -> pytest.MarkDecorator:
    return pytest.mark.compat(feature, client="kcat")


@pytest.fixture
def kcat(broker: Broker) -> Kcat:
    """Runs kcat against the broker, and returns its output."""

    def run(*arguments: str, text: str = "") -> str:
        command = ["kcat", "-b", broker.bootstrap_servers, *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=WAIT_S, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def consumed(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


@compat("records with key, headers, time and null values")
def test_records_are_read_as_they_were_sent(kcat: Kcat) -> None:
    kcat("-P", "-t", "orders", "-p", "0", "-K:", "-Z", "-H", "source=test", text="a:1\nb:\n")
    found = consumed(kcat("-C", "-t", "orders", "-o", "beginning", "-e", "-q", "-J"))
    assert [(m["key"], m["payload"], m["headers"]) for m in found] == [
        ("a", "1", ["source", "test"]),
        ("b", None, ["source", "test"]),
    ]


@compat("compression: gzip, snappy, lz4, zstd")
@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_records_are_read(kcat: Kcat, codec: str) -> None:
    lines = [f"{n} " + "x" * 200 for n in range(500)]
    kcat("-P", "-t", "orders", "-p", "0", "-z", codec, text="\n".join(lines))
    assert kcat("-C", "-t", "orders", "-o", "beginning", "-e", "-q").splitlines() == lines


@compat("acks 1 and all")
@pytest.mark.parametrize("acks", ["1", "all"])
def test_records_arrive_with_every_kind_of_acknowledgement(kcat: Kcat, acks: str) -> None:
    kcat("-P", "-t", "orders", "-p", "0", "-X", f"acks={acks}", text="one\ntwo\n")
    assert kcat("-C", "-t", "orders", "-o", "beginning", "-e", "-q").splitlines() == ["one", "two"]


@compat("idempotent producer")
def test_an_idempotent_producer_works(kcat: Kcat) -> None:
    kcat("-P", "-t", "orders", "-p", "0", "-X", "enable.idempotence=true", text="one\ntwo\n")
    assert kcat("-C", "-t", "orders", "-o", "beginning", "-e", "-q").splitlines() == ["one", "two"]


@compat("reading from any offset")
def test_reading_starts_at_any_offset(kcat: Kcat) -> None:
    kcat("-P", "-t", "orders", "-p", "0", text="0\n1\n2\n3\n")
    assert kcat("-C", "-t", "orders", "-o", "2", "-e", "-q").split() == ["2", "3"]
    assert kcat("-C", "-t", "orders", "-o", "-1", "-e", "-q").split() == ["3"]


@compat("offsets by time, exact to the record")
def test_an_offset_is_found_by_time(kcat: Kcat) -> None:
    kcat("-P", "-t", "orders", "-p", "0", text="first")
    (first,) = consumed(kcat("-C", "-t", "orders", "-o", "beginning", "-e", "-q", "-J"))
    kcat("-P", "-t", "orders", "-p", "0", text="second")
    second = consumed(kcat("-C", "-t", "orders", "-o", "1", "-e", "-q", "-J"))[0]["ts"]
    assert first["ts"] < second
    assert kcat("-Q", "-t", f"orders:0:{first['ts']}") == "orders [0] offset 0\n"
    assert kcat("-Q", "-t", f"orders:0:{first['ts'] + 1}") == "orders [0] offset 1\n"
    assert kcat("-C", "-t", "orders", "-o", f"s@{second}", "-e", "-q").split() == ["second"]


@compat("metadata of cluster and topics")
def test_metadata_lists_broker_topics_and_leaders(kcat: Kcat, broker: Broker) -> None:
    with Client(broker.bootstrap_servers) as client:
        client.create_topic("orders", partitions=2)
    found = json.loads(kcat("-L", "-J"))
    assert found["brokers"] == [{"id": 1, "name": broker.bootstrap_servers}]
    (topic,) = found["topics"]
    assert topic["topic"] == "orders"
    assert [(p["partition"], p["leader"]) for p in topic["partitions"]] == [(0, 1), (1, 1)]


@compat("classic groups: sharing, taking over, committing")
def test_a_group_continues_at_its_committed_offset(kcat: Kcat) -> None:
    kcat("-P", "-t", "orders", "-p", "0", text="0\n1\n2\n3\n")
    group = ("-G", "readers", "-X", "auto.offset.reset=earliest", "-q")
    assert kcat(*group, "-c", "2", "orders").split() == ["0", "1"]
    assert kcat(*group, "-c", "2", "orders").split() == ["2", "3"]


@compat("transactions: commit, abort, read_committed")
def test_a_transaction_is_committed(kcat: Kcat) -> None:
    kcat("-P", "-t", "orders", "-p", "0", "-X", "transactional.id=writer", text="one\ntwo\n")
    read = ("-C", "-t", "orders", "-o", "beginning", "-e", "-q", "-X", "isolation.level=read_committed")
    assert kcat(*read).split() == ["one", "two"]
