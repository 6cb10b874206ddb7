"""Writes Arrow rows to the log: the part of `df.write.format("headwater")` that runs in each task.

Columns are those of Spark's Kafka sink: `value`, and optionally `key`, `topic`, `partition` and `headers`. A
record with a key goes to the partition that every other Kafka client would choose (murmur2 of the key); records
without a key go to the partitions in turn, batch by batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
from kafka.partitioner.default import murmur2

from headwater.clock import SystemClock
from headwater.errors import InvalidError
from headwater.record import Record, TopicPartition
from headwater.spark.source.offsets import BOOTSTRAP
from headwater.transmit.client.client import Client
from headwater.transmit.records.batch import BATCH_BYTES

_COLUMNS = ("key", "value", "topic", "partition", "headers")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """The destination of a write."""

    bootstrap_servers: str
    topic: str | None


def producer_options(options: Mapping[str, str], columns: Sequence[str]) -> ProducerOptions:
    """Check the options and the columns of a write; raise InvalidError for a wrong one."""
    given = {name.lower(): value for name, value in options.items()}
    if BOOTSTRAP not in given:
        raise InvalidError(f"cannot write to the log: option {BOOTSTRAP!r} is missing")
    if "value" not in columns:
        raise InvalidError(f"cannot write to the log: there is no column 'value', found: {', '.join(columns)}")
    unknown = [name for name in columns if name not in _COLUMNS]
    if unknown:
        raise InvalidError(
            f"cannot write to the log: unknown column {', '.join(unknown)}; expected only {', '.join(_COLUMNS)}"
        )
    if "topic" not in given and "topic" not in columns:
        raise InvalidError("cannot write to the log: set the option 'topic' or add a column 'topic'")
    return ProducerOptions(bootstrap_servers=given[BOOTSTRAP], topic=given.get("topic"))


class ArrowProducer:
    """Sends Arrow batches; all records are acknowledged when the `with` block ends."""

    def __init__(self, options: ProducerOptions) -> None:
        self._options = options
        self._client = Client(options.bootstrap_servers)
        self._clock = SystemClock()
        self._partition_counts: dict[str, int] = {}
        self._waiting: dict[TopicPartition, list[Record]] = {}
        self._waiting_bytes: dict[TopicPartition, int] = {}
        self._turn = 0

    def send(self, batch: pa.RecordBatch) -> None:
        """Buffer rows; those of a partition are sent when there are enough of them."""
        now_ms = self._clock.now_ms()
        self._turn += 1
        for row in batch.to_pylist():
            partition = self._partition(row)
            record = Record(
                key=_bytes(row.get("key")),
                value=_bytes(row["value"]),
                headers=tuple((h["key"], h["value"]) for h in row.get("headers") or ()),
                timestamp_ms=now_ms,
            )
            self._waiting.setdefault(partition, []).append(record)
            size = self._waiting_bytes.get(partition, 0) + len(record.value or b"") + len(record.key or b"")
            self._waiting_bytes[partition] = size
            if size >= BATCH_BYTES:
                self._flush(partition)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            for partition in list(self._waiting):
                self._flush(partition)
        self._client.close()

    def _flush(self, partition: TopicPartition) -> None:
        records = self._waiting.pop(partition)
        self._waiting_bytes.pop(partition, None)
        self._client.append(partition, records)

    def _partition(self, row: Mapping[str, Any]) -> TopicPartition:
        topic = row.get("topic") or self._options.topic
        if not topic:
            raise InvalidError("cannot write a row to the log: its column 'topic' is null")
        count = self._partition_count(topic)
        chosen = row.get("partition")
        key = _bytes(row.get("key"))
        if chosen is not None:
            return TopicPartition(topic, int(chosen))
        if key is None:
            return TopicPartition(topic, self._turn % count)
        return TopicPartition(topic, (murmur2(key) & 0x7FFFFFFF) % count)

    def _partition_count(self, topic: str) -> int:
        if topic not in self._partition_counts:
            found = self._client.topics([topic])
            if topic not in found:
                self._client.create_topic(topic)
                found = self._client.topics([topic])
            self._partition_counts[topic] = len(found[topic].leaders)
        return self._partition_counts[topic]


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
