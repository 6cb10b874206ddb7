"""Dead letters are redriven exactly once, despite kills and concurrent redrives."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.clock import SystemClock
from headwater.record import Record, TopicPartition
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.client.client import Client
from headwater.transmit.client.reading import read_records
from headwater.transmit.client.redrive import (
    Outcome,
    RedriveMarks,
    dead_letter_topics,
    letter_at,
    letters_of,
    redrive,
)
from headwater.transmit.records.batch import encode_batch
from headwater.transmit.records.dead_letters import ONLY_HEADER, REDRIVEN_HEADER, dead_letter_headers

ORDERS = TopicPartition("orders", 0)
DEAD = TopicPartition("orders.deadletter", 0)


class Killed(Exception):
    """Stands for kill -9."""


class MortalClient(Client):
    """A client that is killed before or after one of its appends."""

    def __init__(self, servers: str, *, appends: int, after: bool) -> None:
        super().__init__(servers)
        self._left, self._after = appends, after

    def produce(self, partition: TopicPartition, batch: bytes) -> int:
        self._left -= 1
        if self._left < 0 and not self._after:
            raise Killed
        offset = super().produce(partition, batch)
        if self._left < 0:
            raise Killed
        return offset


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[str]:
    """Return the address of a broker with three orders, of which the second has a dead letter."""
    with Broker(tmp_path / "data") as broker:
        with Client(broker.bootstrap_servers) as client:
            client.create_topic("orders", partitions=1)
            client.create_topic(DEAD.topic, partitions=1)
            client.produce(ORDERS, encode_batch([_order(n) for n in range(3)]))
            headers = dead_letter_headers(ORDERS, 1, "the value is not JSON")
            letter = Record(key=b"1", value=b"order 1", headers=headers, timestamp_ms=5000)
            client.produce(DEAD, encode_batch([letter]))
        yield broker.bootstrap_servers


def _order(number: int) -> Record:
    key, value = b"%d" % number, b"order %d" % number
    return Record(key=key, value=value, headers=(("from", b"shop"),), timestamp_ms=1000 + number)


def _redrive(client: Client, **options: Any) -> Outcome:
    (outcome,) = redrive(client, [letter_at(client, DEAD, 0)], RedriveMarks(client), SystemClock(), **options)
    return outcome


def _redriven(servers: str) -> list[Record]:
    with Client(servers) as client:
        return list(read_records(client, ORDERS, 3))


def test_redriven_record_equals_original(servers: str) -> None:
    with Client(servers) as client:
        assert dead_letter_topics(client) == ["orders.deadletter"]
        outcome = _redrive(client)
    (record,) = _redriven(servers)
    assert (record.key, record.value, record.timestamp_ms, record.offset) == (b"1", b"order 1", 1001, 3)
    assert record.headers == (("from", b"shop"), (REDRIVEN_HEADER, b"orders.deadletter-0@0#1"))
    assert outcome.redrive is not None
    assert (outcome.redrive.offset, outcome.before) == (3, False)


def test_second_redrive_requires_again(servers: str) -> None:
    with Client(servers) as client:
        _redrive(client, value=b"corrected")
        second = _redrive(client)
        assert second.redrive is not None
        assert (second.before, second.redrive.offset) == (True, 3)
        assert [record.value for record in _redriven(servers)] == [b"corrected"]
        _redrive(client, again=True)
    assert [record.value for record in _redriven(servers)] == [b"corrected", b"order 1"]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("appends", range(3), ids=["begun", "the record", "done"])
def test_killed_redrive_is_completed_once(servers: str, appends: int, *, after: bool) -> None:
    with MortalClient(servers, appends=appends, after=after) as mortal, pytest.raises(Killed):
        _redrive(mortal)
    with Client(servers) as client:
        _redrive(client)
        assert _redrive(client).before
    assert [record.value for record in _redriven(servers)] == [b"order 1"]


def test_concurrent_redrives_append_one_record(servers: str) -> None:
    barrier = threading.Barrier(4)

    def work() -> None:
        with Client(servers) as client:
            barrier.wait()
            _redrive(client)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [record.value for record in _redriven(servers)] == [b"order 1"]


def test_letter_in_recreated_topic(servers: str) -> None:
    from headwater.transmit.client.topics import delete_topic

    with Client(servers) as client:
        _redrive(client)
        delete_topic(client, DEAD.topic)
        client.create_topic(DEAD.topic, partitions=1)
        headers = dead_letter_headers(ORDERS, 2, "revenue: division by zero", "revenue")
        client.produce(DEAD, encode_batch([Record(value=b"another", headers=headers, timestamp_ms=6000)]))
        (letter,) = letters_of(client, DEAD.topic)
        assert (letter.query, letter.origin_offset) == ("revenue", 2)
        assert not _redrive(client).before
    *_, record = _redriven(servers)
    # The letter is not about the record at the origin's offset, so it adds no headers; only one view reads it.
    assert (record.value, dict(record.headers).get("from"), dict(record.headers)[ONLY_HEADER]) == (
        b"another", None, b"revenue",
    )  # fmt: skip
