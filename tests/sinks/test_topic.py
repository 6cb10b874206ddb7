"""The log as a sink, seen by another client that reads committed records only."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

import headwater as hw
from headwater.errors import ConflictError, InvalidError, RefusedError, UnavailableError
from headwater.json_values import json_part
from headwater.sink import Batch, Guarantee, Stream, Writer
from headwater.testing import Destination, SinkContract
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.client.client import Client
from headwater.transmit.client.topics import alter_topic, delete_topic, topic_settings
from torture.subjects import committed_records

SCHEMA = pa.schema({"k": pa.string(), "v": pa.int64()})
KEYED = Stream(query="shop.totals", schema=SCHEMA, key=("k",), changes=True)
PLAIN = Stream(query="shop.totals", schema=SCHEMA)


def batch_of(number: int, *rows: tuple[str, int], signs: list[int] | None = None, run: str = "r") -> Batch:
    table = pa.table({"k": [k for k, _ in rows], "v": [v for _, v in rows]}, schema=SCHEMA)
    return Batch(run=run, number=number, rows=table, signs=None if signs is None else pa.array(signs, pa.int8()))


def records(broker: Broker, topic: str = "totals", *, committed: bool = True) -> list[Any]:
    """Everything that a reader sees, partition by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "judge",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=20).topics[topic].partitions
        consumer.assign([TopicPartition(topic, n, 0) for n in partitions])
        found, ended = [], 0
        while ended < len(partitions):
            message = consumer.poll(20)
            assert message is not None
            if message.error():
                ended += 1
            else:
                found.append(message)
        return found
    finally:
        consumer.close()


def table(found: list[Any]) -> dict[str, int]:
    """What is left when each record replaces the one of its key."""
    rows: dict[str, int] = {}
    for record in found:
        key = json.loads(record.key())["k"]
        rows.pop(key, None)
        if record.value() is not None:
            row = json.loads(record.value())
            assert row["k"] == key
            rows[key] = row["v"]
    return rows


@pytest.fixture
def opened(broker: Broker) -> Iterator[Any]:
    writers: list[Writer] = []
    servers = broker.bootstrap_servers

    def open_(sink: hw.KafkaTopic | None = None, stream: Stream = KEYED) -> Writer:
        stream = replace(stream, servers=servers)
        writers.append((sink or hw.KafkaTopic("totals")).open(stream))
        return writers[-1]

    yield open_
    for writer in writers:
        writer.close()


def test_rows_with_a_key_are_upserts_and_tombstones(broker: Broker, opened: Any) -> None:
    writer = opened(hw.KafkaTopic("totals", partitions=3))
    assert writer.write(batch_of(0, ("a", 1), ("b", 2), ("a", 1), ("a", 3), signs=[1, 1, -1, 1]))
    assert writer.write(batch_of(1, ("b", 2), ("c", 4), signs=[-1, 1]))
    found = records(broker)
    assert table(found) == {"a": 3, "c": 4}
    assert [r.value() for r in found if json.loads(r.key()) == {"k": "b"}] == [b'{"k":"b","v":2}', None]


def test_a_new_topic_of_keys_is_compacted(broker: Broker, opened: Any) -> None:
    opened(hw.KafkaTopic("totals", configs={"segment.ms": "60000"}))
    opened(hw.KafkaTopic("rows"), PLAIN)
    with Client(broker.bootstrap_servers) as client:
        configs = {name: {s.name: s.value for s in topic_settings(client, name)} for name in ("totals", "rows")}
    assert configs["totals"]["cleanup.policy"] == "compact"
    assert configs["totals"]["segment.ms"] == "60000"
    assert configs["rows"]["cleanup.policy"] == "delete"


def test_keys_are_where_other_clients_look_for_them(broker: Broker, opened: Any) -> None:
    names = [f"key-{n}" for n in range(50)]
    opened(hw.KafkaTopic("totals", partitions=5)).write(batch_of(0, *((name, 1) for name in names)))
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "partitioner": "murmur2_random"})
    for name in names:
        producer.produce("totals", key=json.dumps({"k": name}, separators=(",", ":")), value=b'{"v":0}')
    assert producer.flush(20) == 0
    places: dict[bytes, set[int]] = {}
    for record in records(broker):
        places.setdefault(record.key(), set()).add(record.partition())
    assert len(places) == 50
    assert all(len(found) == 1 for found in places.values())


def test_rows_without_a_key_are_appended(broker: Broker, opened: Any) -> None:
    writer = opened(hw.KafkaTopic("totals", partitions=2), PLAIN)
    for number in range(3):
        writer.write(batch_of(number, ("a", number), ("a", number)))
    found = records(broker)
    assert sorted(r.value() for r in found) == sorted([b'{"k":"a","v":%d}' % n for n in (0, 0, 1, 1, 2, 2)])
    assert {r.key() for r in found} == {None}
    assert {r.partition() for r in found} == {0, 1}


def test_changes_without_a_key_say_what_happened(broker: Broker, opened: Any) -> None:
    writer = opened(stream=replace(PLAIN, changes=True))
    writer.write(batch_of(0, ("a", 1), ("a", 1), ("a", 2), signs=[1, -1, 1]))
    row = {"k": "a", "v": 1}
    assert [(json.loads(r.value()), r.headers()) for r in records(broker)] == [
        ({"op": "c", "before": None, "after": row}, [("op", b"c")]),
        ({"op": "d", "before": row, "after": None}, [("op", b"d")]),
        ({"op": "c", "before": None, "after": {"k": "a", "v": 2}}, [("op", b"c")]),
    ]


def test_a_batch_that_is_there_is_not_written_again(broker: Broker, opened: Any) -> None:
    first = opened(stream=PLAIN)
    assert first.write(batch_of(4, ("a", 1)))
    assert not first.write(batch_of(4, ("a", 1)))
    second = opened(stream=PLAIN)
    assert not second.write(batch_of(4, ("a", 1)))
    assert not second.write(batch_of(3, ("b", 1)))
    assert second.write(batch_of(5, ("c", 1)))
    assert [json.loads(r.value())["k"] for r in records(broker)] == ["a", "c"]


def test_progress_is_found_behind_many_batches_that_were_given_up(broker: Broker, opened: Any) -> None:
    """Each opening ends what the one before had begun; the record that counts lies ever further back."""
    opened(stream=PLAIN).write(batch_of(7, ("a", 1)))
    for _ in range(30):
        begin_and_leave(opened(stream=PLAIN), batch_of(8, ("lost", 1)))
    writer = opened(stream=PLAIN)
    assert not writer.write(batch_of(7, ("a", 1)))
    assert [json.loads(r.value())["k"] for r in records(broker)] == ["a"]
    assert len(records(broker, committed=False)) == 31


def begin_and_leave(writer: Any, batch: Batch) -> None:
    """Write a batch, and die before its transaction is committed."""

    class Died(Exception):
        pass

    def die(*, commit: bool) -> None:
        assert commit
        raise Died

    writer._producer._end = die
    with pytest.raises(Died):
        writer.write(batch)
    writer.close()


def test_a_batch_interrupted_before_its_commit_is_seen_once(broker: Broker, opened: Any) -> None:
    begin_and_leave(opened(), batch_of(0, ("a", 1)))
    writer = opened()
    assert writer.write(batch_of(0, ("a", 1)))
    assert len(records(broker)) == 1


def test_a_batch_whose_commit_was_not_heard_of_is_seen_once(broker: Broker, opened: Any) -> None:
    writer = opened()
    end = writer._producer._end

    def lose_answer(*, commit: bool) -> None:
        end(commit=commit)
        raise UnavailableError("the connection broke")

    writer._producer._end = lose_answer
    with pytest.raises(UnavailableError):
        writer.write(batch_of(0, ("a", 1)))
    assert not opened().write(batch_of(0, ("a", 1)))
    assert len(records(broker)) == 1


def test_who_opens_fences_who_was_there(broker: Broker, opened: Any) -> None:
    zombie, living = opened(), opened()
    with pytest.raises(ConflictError, match="another writer of that name was opened since"):
        zombie.write(batch_of(0, ("zombie", 1)))
    assert living.write(batch_of(0, ("a", 1)))
    with pytest.raises(ConflictError):
        zombie.write(batch_of(1, ("zombie", 1)))
    assert table(records(broker)) == {"a": 1}


def test_a_new_run_is_refused_with_the_ways_out(broker: Broker, opened: Any) -> None:
    opened().write(batch_of(9, ("a", 1)))
    with pytest.raises(ConflictError, match="a log forgets nothing") as caught:
        opened().write(batch_of(0, ("a", 1), run="s"))
    assert "restart='append'" in (caught.value.hint or "")
    again = opened(hw.KafkaTopic("totals", restart="append"))
    assert again.write(batch_of(0, ("a", 1), run="s"))
    assert not again.write(batch_of(0, ("a", 1), run="s"))
    with pytest.raises(ConflictError, match="was replaced"):  # by a copy of the old checkpoint
        again.write(batch_of(10, ("a", 1)))
    assert len(records(broker)) == 2


def test_a_new_run_may_begin_in_another_topic_or_one_made_anew(broker: Broker, opened: Any) -> None:
    opened().write(batch_of(9, ("a", 1)))
    assert opened(hw.KafkaTopic("totals_2")).write(batch_of(0, ("a", 1), run="s"))
    with Client(broker.bootstrap_servers) as client:
        delete_topic(client, "totals_2")
    assert opened(hw.KafkaTopic("totals_2")).write(batch_of(0, ("a", 1), run="t"))
    assert table(records(broker, "totals_2")) == {"a": 1}


def test_a_run_that_continues_another_goes_on(broker: Broker, opened: Any) -> None:
    opened().write(batch_of(9, ("a", 1)))
    writer = opened(stream=replace(KEYED, continues="r"))
    assert writer.write(batch_of(0, ("b", 1), run="s"))
    assert not writer.write(batch_of(0, ("b", 1), run="s"))
    assert table(records(broker)) == {"a": 1, "b": 1}


def test_a_large_batch_is_one_transaction_over_all_partitions(broker: Broker, opened: Any) -> None:
    rows = pa.table({"k": [f"{n % 5000}" * 20 for n in range(60_000)], "v": range(60_000)}, schema=SCHEMA)
    writer = opened(hw.KafkaTopic("totals", partitions=4), PLAIN)
    assert writer.write(Batch(run="r", number=0, rows=rows))
    found = records(broker)
    assert sorted(json.loads(r.value())["v"] for r in found) == list(range(60_000))
    assert {r.partition() for r in found} == {0, 1, 2, 3}


@pytest.mark.parametrize("stream", [PLAIN, KEYED])
def test_a_row_too_large_is_refused_and_nothing_is_seen_of_its_batch(
    broker: Broker, opened: Any, stream: Stream
) -> None:
    writer = opened(stream=stream)
    large = batch_of(0, ("a", 1), ("x" * (2 << 20), 2))
    for try_ in (writer.write, writer.rehearse):
        with pytest.raises(
            RefusedError, match=r"a row of \d{7} bytes, its max\.message\.bytes is 1048588: ..k..\"x"
        ):
            try_(large)
    assert records(broker) == []
    assert opened(stream=stream).write(batch_of(0, ("a", 1)))


def test_batches_are_as_small_as_a_topic_wants_them(broker: Broker, opened: Any) -> None:
    writer = opened(hw.KafkaTopic("totals", configs={"max.message.bytes": "300"}), PLAIN)
    assert writer.write(batch_of(0, *((f"{n}", n) for n in range(100))))
    assert [json.loads(r.value())["v"] for r in records(broker)] == list(range(100))
    with pytest.raises(RefusedError, match="is 300"):
        writer.write(batch_of(1, ("x" * 300, 1)))


def test_a_topic_that_takes_less_than_it_did_refuses_until_it_is_opened_again(broker: Broker, opened: Any) -> None:
    writer = opened(stream=PLAIN)
    with Client(broker.bootstrap_servers) as client:
        alter_topic(client, "totals", {"max.message.bytes": "300"})
    rows = [(f"{n}", n) for n in range(100)]
    with pytest.raises(RefusedError, match="append to totals-0"):
        writer.write(batch_of(0, *rows))
    assert opened(stream=PLAIN).write(batch_of(0, *rows))
    assert len(records(broker)) == 100


def test_a_log_that_is_away_is_waited_for(broker: Broker, opened: Any) -> None:
    writer = opened()
    broker.stop()
    with pytest.raises(UnavailableError, match="cannot reach a broker"):
        writer.write(batch_of(0, ("a", 1)))
    with pytest.raises(UnavailableError, match="cannot reach a broker"):
        opened()


def test_settings_that_make_no_sense_are_named() -> None:
    with pytest.raises(InvalidError, match="'refuse' or 'append'"):
        hw.KafkaTopic("totals", restart="replace")
    with pytest.raises(InvalidError, match="no servers"):
        hw.KafkaTopic("totals").open(KEYED)


class TestContract(SinkContract):
    fresh_start = False
    typed = False  # JSON carries its types itself
    takes_back_without_key = True
    key_types = tuple(SinkContract.types)

    def kept(self, value: Any, kind: pa.DataType) -> Any:
        return json_part(kind)(pa.scalar(value, kind).as_py())

    @pytest.fixture
    def new_destination(self, broker: Broker) -> Callable[[], Destination]:
        topics = (f"totals-{n}" for n in count())

        def make() -> Destination:
            # Progress is the query's, so each place is a log of its own to the suite: a prefix for its query.
            sink = hw.KafkaTopic(next(topics), servers=broker.bootstrap_servers, partitions=2)
            return Destination(
                sink=_Apart(sink),
                read=lambda stream: read_rows(broker, sink.name, stream),
                interruptions=lambda stream: interruptions(_Apart(sink), stream),
            )

        return make


@dataclass(frozen=True)
class _Apart:
    """A topic for queries that no other place has."""

    sink: hw.KafkaTopic

    @property
    def guarantee(self) -> Guarantee:
        return self.sink.guarantee

    def open(self, stream: Stream) -> Writer:
        return self.sink.open(replace(stream, query=f"{self.sink.name}.{stream.query}"))


def interruptions(sink: _Apart, stream: Stream) -> Iterator[Callable[[Batch], None]]:
    """Writes that end before a request is sent, or before its answer is heard: of the first one, the second ..."""
    ended = False
    for step in count(1):
        for heard in (True, False):
            if ended:
                return

            def interrupt(batch: Batch, step: int = step, heard: bool = heard) -> None:
                nonlocal ended
                writer: Any = sink.open(stream)
                client, left = writer._client, step

                def cut(ask: Any) -> Any:
                    def asked(*args: Any, **kwargs: Any) -> Any:
                        nonlocal left
                        left -= 1
                        if left == 0 and heard:
                            raise UnavailableError("the connection broke")
                        answer = ask(*args, **kwargs)
                        if left == 0:
                            raise UnavailableError("the connection broke")
                        return answer

                    return asked

                client.call, client.call_all = cut(client.call), cut(lambda *a, **k: all_of(client, *a, **k))
                try:
                    writer.write(batch)
                    ended = True
                finally:
                    writer.close()

            yield interrupt


def all_of(client: Client, *args: Any, **kwargs: Any) -> Any:
    """The answers to several requests, when all are there."""
    answers = list(Client.call_all(client, *args, **kwargs))
    return (answer for answer in answers)


def read_rows(broker: Broker, topic: str, stream: Stream) -> list[dict[str, Any]]:
    """What a reader makes of the records."""
    with Client(broker.bootstrap_servers) as client:
        if topic not in client.topics([topic]):
            return []
    found = committed_records(broker.bootstrap_servers, topic)
    if stream.key:
        return [json.loads(value) for value in dict(found).values() if value is not None]
    values = [json.loads(value or b"") for _, value in found]
    if not stream.changes:
        return values
    left = Counter(json.dumps(value["after"]) for value in values if value["op"] == "c")
    left.subtract(json.dumps(value["before"]) for value in values if value["op"] == "d")
    return [json.loads(row) for row in left.elements()]
