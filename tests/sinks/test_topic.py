"""The topic sink, read by another client that sees committed records only."""

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
from headwater.testing.sink_contract import Place, SinkContract
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
    """Return all records that a reader sees, partition by partition."""
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
    """Return the rows after each record has replaced the one of its key."""
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


def test_a_new_topic_with_keys_is_compacted(broker: Broker, opened: Any) -> None:
    opened(hw.KafkaTopic("totals", configs={"segment.ms": "60000"}))
    opened(hw.KafkaTopic("rows"), PLAIN)
    with Client(broker.bootstrap_servers) as client:
        configs = {name: {s.name: s.value for s in topic_settings(client, name)} for name in ("totals", "rows")}
    assert configs["totals"]["cleanup.policy"] == "compact"
    assert configs["totals"]["segment.ms"] == "60000"
    assert configs["rows"]["cleanup.policy"] == "delete"


def test_keys_are_partitioned_as_by_other_clients(broker: Broker, opened: Any) -> None:
    names = [f"key-{n}" for n in range(50)]
    opened(hw.KafkaTopic("totals", partitions=5)).write(batch_of(0, *((name, 1) for name in names)))
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "partitioner": "murmur2_random"})
    for name in names:
        producer.produce("totals", key=json.dumps({"k": name}, separators=(",", ":")), value=b'{"v":0}')
    assert producer.flush(20) == 0
    partitions: dict[bytes, set[int]] = {}
    for record in records(broker):
        partitions.setdefault(record.key(), set()).add(record.partition())
    assert len(partitions) == 50
    assert all(len(found) == 1 for found in partitions.values())


def test_rows_without_a_key_are_appended(broker: Broker, opened: Any) -> None:
    writer = opened(hw.KafkaTopic("totals", partitions=2), PLAIN)
    for number in range(3):
        writer.write(batch_of(number, ("a", number), ("a", number)))
    found = records(broker)
    assert sorted(r.value() for r in found) == sorted([b'{"k":"a","v":%d}' % n for n in (0, 0, 1, 1, 2, 2)])
    assert {r.key() for r in found} == {None}
    assert {r.partition() for r in found} == {0, 1}


def test_changes_without_a_key_have_an_envelope(broker: Broker, opened: Any) -> None:
    writer = opened(stream=replace(PLAIN, changes=True))
    writer.write(batch_of(0, ("a", 1), ("a", 1), ("a", 2), signs=[1, -1, 1]))
    row = {"k": "a", "v": 1}
    assert [(json.loads(r.value()), r.headers()) for r in records(broker)] == [
        ({"op": "c", "before": None, "after": row}, [("op", b"c")]),
        ({"op": "d", "before": row, "after": None}, [("op", b"d")]),
        ({"op": "c", "before": None, "after": {"k": "a", "v": 2}}, [("op", b"c")]),
    ]


def test_a_written_batch_is_not_written_again(broker: Broker, opened: Any) -> None:
    first = opened(stream=PLAIN)
    assert first.write(batch_of(4, ("a", 1)))
    assert not first.write(batch_of(4, ("a", 1)))
    second = opened(stream=PLAIN)
    assert not second.write(batch_of(4, ("a", 1)))
    assert not second.write(batch_of(3, ("b", 1)))
    assert second.write(batch_of(5, ("c", 1)))
    assert [json.loads(r.value())["k"] for r in records(broker)] == ["a", "c"]


def test_progress_is_found_before_many_aborted_batches(broker: Broker, opened: Any) -> None:
    """Each opening aborts the transaction before it, so the last committed record is further and further back."""
    opened(stream=PLAIN).write(batch_of(7, ("a", 1)))
    for _ in range(30):
        write_and_fail(opened(stream=PLAIN), batch_of(8, ("lost", 1)))
    writer = opened(stream=PLAIN)
    assert not writer.write(batch_of(7, ("a", 1)))
    assert [json.loads(r.value())["k"] for r in records(broker)] == ["a"]
    assert len(records(broker, committed=False)) == 31


def write_and_fail(writer: Any, batch: Batch) -> None:
    """Write a batch, and fail before its transaction is committed."""

    class Failed(Exception):
        pass

    def fail(*, commit: bool) -> None:
        assert commit
        raise Failed

    writer._producer._end = fail
    with pytest.raises(Failed):
        writer.write(batch)
    writer.close()


def test_a_batch_interrupted_before_its_commit_is_seen_once(broker: Broker, opened: Any) -> None:
    write_and_fail(opened(), batch_of(0, ("a", 1)))
    writer = opened()
    assert writer.write(batch_of(0, ("a", 1)))
    assert len(records(broker)) == 1


def test_a_batch_with_a_lost_commit_response_is_seen_once(broker: Broker, opened: Any) -> None:
    writer = opened()
    end = writer._producer._end

    def lose_response(*, commit: bool) -> None:
        end(commit=commit)
        raise UnavailableError("the connection broke")

    writer._producer._end = lose_response
    with pytest.raises(UnavailableError):
        writer.write(batch_of(0, ("a", 1)))
    assert not opened().write(batch_of(0, ("a", 1)))
    assert len(records(broker)) == 1


def test_opening_fences_the_earlier_writer(broker: Broker, opened: Any) -> None:
    zombie, current = opened(), opened()
    with pytest.raises(ConflictError, match="a newer producer with the same id has fenced this one"):
        zombie.write(batch_of(0, ("zombie", 1)))
    assert current.write(batch_of(0, ("a", 1)))
    with pytest.raises(ConflictError):
        zombie.write(batch_of(1, ("zombie", 1)))
    assert table(records(broker)) == {"a": 1}


def test_a_new_run_is_refused_with_the_alternatives(broker: Broker, opened: Any) -> None:
    opened().write(batch_of(9, ("a", 1)))
    with pytest.raises(ConflictError, match="which a new run would append a second time") as caught:
        opened().write(batch_of(0, ("a", 1), run="s"))
    assert "restart='append'" in (caught.value.hint or "")
    again = opened(hw.KafkaTopic("totals", restart="append"))
    assert again.write(batch_of(0, ("a", 1), run="s"))
    assert not again.write(batch_of(0, ("a", 1), run="s"))
    with pytest.raises(ConflictError, match="was replaced"):  # by a copy of the old checkpoint
        again.write(batch_of(10, ("a", 1)))
    assert len(records(broker)) == 2


def test_a_new_run_may_start_in_another_or_a_recreated_topic(broker: Broker, opened: Any) -> None:
    opened().write(batch_of(9, ("a", 1)))
    assert opened(hw.KafkaTopic("totals_2")).write(batch_of(0, ("a", 1), run="s"))
    with Client(broker.bootstrap_servers) as client:
        delete_topic(client, "totals_2")
    assert opened(hw.KafkaTopic("totals_2")).write(batch_of(0, ("a", 1), run="t"))
    assert table(records(broker, "totals_2")) == {"a": 1}


def test_a_run_that_continues_another_appends(broker: Broker, opened: Any) -> None:
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
def test_a_row_that_is_too_large_is_refused_with_its_whole_batch(
    broker: Broker, opened: Any, stream: Stream
) -> None:
    writer = opened(stream=stream)
    large = batch_of(0, ("a", 1), ("x" * (2 << 20), 2))
    for try_ in (writer.write, writer.rehearse):
        with pytest.raises(
            RefusedError, match=r"a row of \d{7} bytes .*: its max\.message\.bytes is 1048588; row: ..k..\"x"
        ):
            try_(large)
    assert records(broker) == []
    assert opened(stream=stream).write(batch_of(0, ("a", 1)))


def test_record_batches_respect_the_limit_of_the_topic(broker: Broker, opened: Any) -> None:
    writer = opened(hw.KafkaTopic("totals", configs={"max.message.bytes": "300"}), PLAIN)
    assert writer.write(batch_of(0, *((f"{n}", n) for n in range(100))))
    assert [json.loads(r.value())["v"] for r in records(broker)] == list(range(100))
    with pytest.raises(RefusedError, match="is 300"):
        writer.write(batch_of(1, ("x" * 300, 1)))


def test_a_lowered_limit_refuses_batches_until_the_topic_is_opened_again(broker: Broker, opened: Any) -> None:
    writer = opened(stream=PLAIN)
    with Client(broker.bootstrap_servers) as client:
        alter_topic(client, "totals", {"max.message.bytes": "300"})
    rows = [(f"{n}", n) for n in range(100)]
    with pytest.raises(RefusedError, match="append to totals-0"):
        writer.write(batch_of(0, *rows))
    assert opened(stream=PLAIN).write(batch_of(0, *rows))
    assert len(records(broker)) == 100


def test_an_unreachable_log_is_unavailable(broker: Broker, opened: Any) -> None:
    writer = opened()
    broker.stop()
    with pytest.raises(UnavailableError, match="cannot reach a broker"):
        writer.write(batch_of(0, ("a", 1)))
    with pytest.raises(UnavailableError, match="cannot reach a broker"):
        opened()


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(InvalidError, match="'refuse' or 'append'"):
        hw.KafkaTopic("totals", restart="replace")
    with pytest.raises(InvalidError, match="no servers"):
        hw.KafkaTopic("totals").open(KEYED)


class TestContract(SinkContract):
    fresh_start = False
    typed = False  # JSON values carry their types
    takes_back_without_key = True
    key_types = tuple(SinkContract.types)

    def kept(self, value: Any, kind: pa.DataType) -> Any:
        return json_part(kind)(pa.scalar(value, kind).as_py())

    @pytest.fixture
    def new_place(self, broker: Broker) -> Callable[[], Place]:
        topics = (f"totals-{n}" for n in count())

        def make() -> Place:
            # Progress belongs to the query, so each topic gets queries of its own by a prefix.
            sink = hw.KafkaTopic(next(topics), servers=broker.bootstrap_servers, partitions=2)
            return Place(
                sink=_PrefixedTopic(sink),
                read=lambda stream: read_rows(broker, sink.name, stream),
                interruptions=lambda stream: interruptions(_PrefixedTopic(sink), stream),
            )

        return make


@dataclass(frozen=True)
class _PrefixedTopic:
    """A topic whose name is a prefix of its queries, so that no other topic has them."""

    sink: hw.KafkaTopic

    @property
    def guarantee(self) -> Guarantee:
        return self.sink.guarantee

    def open(self, stream: Stream) -> Writer:
        return self.sink.open(replace(stream, query=f"{self.sink.name}.{stream.query}"))


def interruptions(sink: _PrefixedTopic, stream: Stream) -> Iterator[Callable[[Batch], None]]:
    """Yield writes that fail before a request is sent, or before its response arrives, for each request."""
    ended = False
    for step in count(1):
        for before in (True, False):
            if ended:
                return

            def interrupt(batch: Batch, step: int = step, before: bool = before) -> None:
                nonlocal ended
                writer: Any = sink.open(stream)
                client, left = writer._client, step

                def cut(call: Any) -> Any:
                    def cut_call(*args: Any, **kwargs: Any) -> Any:
                        nonlocal left
                        left -= 1
                        if left == 0 and before:
                            raise UnavailableError("the connection broke")
                        response = call(*args, **kwargs)
                        if left == 0:
                            raise UnavailableError("the connection broke")
                        return response

                    return cut_call

                client.call, client.call_all = cut(client.call), cut(lambda *a, **k: all_of(client, *a, **k))
                try:
                    writer.write(batch)
                    ended = True
                finally:
                    writer.close()

            yield interrupt


def all_of(client: Client, *args: Any, **kwargs: Any) -> Any:
    """Return the responses to several requests after all have arrived."""
    responses = list(Client.call_all(client, *args, **kwargs))
    return (response for response in responses)


def read_rows(broker: Broker, topic: str, stream: Stream) -> list[dict[str, Any]]:
    """Return the rows that a reader computes from the records."""
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
