"""KafkaTopic: a topic as a sink, exactly once through Kafka's transactions.

    hw.KafkaTopic("totals")                                  # in the app's own log
    hw.KafkaTopic("totals", servers="kafka:9092", partitions=8)

Each batch is one transaction: its records, and one record with the batch number in the topic `<query>.progress`.
Opening takes over the transactional id, which fences the earlier writer and commits or aborts its last
transaction; after that, the progress topic is correct. Readers see each batch once if they read committed records
only (`isolation.level=read_committed`, as Headwater's apps do).

| rows | key | value |
|---|---|---|
| with a key | `{"product":"tea"}` | the row, or null (a tombstone) if it was retracted |
| without | null | the row |
| changes without a key | null | `{"op":"c","before":null,"after":{...}}`, or `"d"` with `before` |
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.change import Op
from headwater.clock import SystemClock
from headwater.errors import ConflictError, InvalidError, RefusedError
from headwater.record import EARLIEST, LATEST, TopicPartition
from headwater.sink import Batch, Guarantee, Stream, Writer
from headwater.sinks.json_rows import json_objects
from headwater.sinks.net_changes import net_changes
from headwater.sinks.progress import SinkProgress, next_step
from headwater.transmit.client.client import Client
from headwater.transmit.client.topics import topic_settings
from headwater.transmit.client.transactions import TransactionalProducer
from headwater.transmit.records.batch import BATCH_BYTES, decode_batch
from headwater.transmit.records.batch_header import HEADER_BYTES, walk
from headwater.transmit.records.from_arrow import (
    EncodedRecords,
    Ints,
    encode_columns,
    encode_headers,
    partitions_by_key,
)

REFUSE, APPEND = "refuse", "append"
OP_HEADER = "op"
_PROGRESS_SUFFIX = ".progress"
_PROGRESS_CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 20),  # Kafka compacts closed segments only, and this is the smallest size it allows
    "min.cleanable.dirty.ratio": "0.1",
}
_COMPACTED = {"cleanup.policy": "compact"}
_MESSAGE_BYTES = "max.message.bytes"
_MESSAGE_BYTES_DEFAULT = 1_048_588
_SHOWN_BYTES = 100
_ROWS_PER_PARTITION = 10_000
"""A batch without keys goes to one partition for each 10,000 rows: every partition costs two more writes."""


@dataclass(frozen=True, slots=True)
class KafkaTopic:
    """A topic, by default in the app's own log. It is created if missing, and compacted if the rows have a key.

    `restart` is for a new run when the topic has the rows of an earlier run: "refuse" raises an error, "append"
    appends all rows again, which is right if readers use the last record of a key or recognise repetitions.
    """

    name: str
    servers: str | None = None
    partitions: int = 1
    configs: Mapping[str, str] = field(default_factory=dict)
    restart: str = REFUSE

    def __post_init__(self) -> None:
        if self.restart not in (REFUSE, APPEND):
            raise InvalidError(
                f"cannot use restart={self.restart!r} for topic {self.name!r}: expected 'refuse' or 'append'"
            )

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    def open(self, stream: Stream) -> Writer:
        """Create the topic if missing, fence earlier writers of the query, and end their open transactions."""
        servers = self.servers or stream.servers
        if not servers:
            raise InvalidError(f"cannot write to topic {self.name!r}: no servers; pass servers='host:port'")
        client = Client(servers, client_id=stream.query, read_committed=True)
        try:
            return _TopicWriter(self, stream, client)
        except BaseException:
            client.close()
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProgressRecord:
    """The record of the last batch in the progress topic."""

    progress: SinkProgress
    topic: str

    def encode(self) -> bytes:
        return json.dumps({"topic": self.topic, **asdict(self.progress)}).encode()

    @classmethod
    def decode(cls, data: bytes) -> "_ProgressRecord":
        fields = json.loads(data)
        progress = SinkProgress(run=fields["run"], number=fields["number"], past=tuple(fields["past"]))
        return cls(progress=progress, topic=fields["topic"])


class _TopicWriter:
    def __init__(self, sink: KafkaTopic, stream: Stream, client: Client) -> None:
        self._sink = sink
        self._stream = stream
        self._client = client
        self._clock = SystemClock()
        configs = {**(_COMPACTED if stream.key else {}), **sink.configs}
        self._partitions = _ensure_topic(client, sink.name, sink.partitions, configs)
        self._message_bytes = _message_bytes(client, sink.name)
        self._progress_at = TopicPartition(stream.query + _PROGRESS_SUFFIX, 0)
        _ensure_topic(client, self._progress_at.topic, 1, _PROGRESS_CONFIGS)
        self._producer = TransactionalProducer(client, stream.query)
        self._last = _read_progress(client, self._progress_at)

    def write(self, batch: Batch) -> bool:
        known = None if self._last is None else self._last.progress
        step = next_step(known, batch, self._stream, f"topic {self._sink.name!r}")
        if step is None:
            return False
        if step.replaces:
            self._check_new_run()
        record = _ProgressRecord(progress=step.progress, topic=self._sink.name)
        columns = (pa.array([text], pa.binary()) for text in (self._stream.query.encode(), record.encode()))
        bodies = self._bodies(batch)
        bodies[self._progress_at] = list(encode_columns(*columns))
        self._producer.commit(bodies, timestamp_ms=self._clock.now_ms())
        self._last = record
        return True

    def rehearse(self, batch: Batch) -> None:
        self._bodies(batch)  # A topic refuses a row only for its size, which is known after encoding.

    def close(self) -> None:
        self._client.close()

    def _check_new_run(self) -> None:
        """Raise ConflictError if a new run would repeat rows that readers have seen."""
        if self._sink.restart == APPEND or self._last is None or self._last.topic != self._sink.name:
            return
        everywhere = [TopicPartition(self._sink.name, n) for n in range(self._partitions)]
        if not any(self._client.offsets(everywhere, LATEST).values()):
            return  # The topic was deleted and created again.
        raise ConflictError(
            f"cannot write to topic {self._sink.name!r}: it has the rows of an earlier run of "
            f"{self._stream.query!r}, which a new run would append a second time",
            hint="name another topic; or delete this one (headwater topic delete); or, if readers can handle "
            f"repetitions, use KafkaTopic({self._sink.name!r}, restart='append')",
        )

    # -- records ----------------------------------------------------------------------------------------------

    def _bodies(self, batch: Batch) -> dict[TopicPartition, list[EncodedRecords]]:
        """Return the encoded records of a batch, by partition."""
        if self._stream.key:
            keys, values = _keyed(batch, self._stream.key)
            return self._encode(partitions_by_key(keys, self._partitions), keys, values, None)
        values = json_objects(batch.rows)
        if batch.signs is None:
            return self._encode(self._spread(batch), None, values, None)
        # Partitioned by the row, so that its retraction comes after its insert.
        partitions = partitions_by_key(values, self._partitions)
        values, headers = _enveloped(values, batch.signs)
        return self._encode(partitions, None, values, headers)

    def _spread(self, batch: Batch) -> Ints:
        count = batch.rows.num_rows
        wide = min(self._partitions, -(-count // _ROWS_PER_PARTITION))
        return cast(Ints, (np.arange(count) * wide // max(count, 1) + batch.number) % self._partitions)

    def _encode(
        self, partitions: Ints, keys: pa.Array | None, values: pa.Array, headers: pa.Array | None
    ) -> dict[TopicPartition, list[EncodedRecords]]:
        if self._partitions > 1:
            order = np.argsort(partitions, kind="stable")
            partitions = partitions[order]
            keys, values, headers = (
                None if c is None else c.take(pa.array(order)) for c in (keys, values, headers)
            )
        found: dict[TopicPartition, list[EncodedRecords]] = {}
        numbers, starts, counts = np.unique(partitions, return_index=True, return_counts=True)
        for number, start, count in zip(numbers, starts, counts, strict=True):
            part = [None if c is None else c.slice(start, count) for c in (keys, values, headers)]
            bodies = list(encode_columns(*part, size=min(BATCH_BYTES, self._message_bytes - HEADER_BYTES)))
            self._check_sizes(bodies, part[1] if keys is None else part[0])
            found[TopicPartition(self._sink.name, int(number))] = bodies
        return found

    def _check_sizes(self, bodies: list[EncodedRecords], names: pa.Array) -> None:
        """Raise RefusedError for a record that exceeds the batch size by itself; `names` identify records."""
        at = 0
        for body in bodies:
            size = HEADER_BYTES + len(body.records)
            if size > self._message_bytes:
                name = names[at].as_py()[:_SHOWN_BYTES].decode(errors="replace")
                raise RefusedError(
                    f"cannot append a row of {size} bytes to topic {self._sink.name!r}: its {_MESSAGE_BYTES} is "
                    f"{self._message_bytes}; row: {name}",
                    hint=f"raise the limit with `headwater topic alter {self._sink.name} {_MESSAGE_BYTES}=...`",
                )
            at += body.count


def _keyed(batch: Batch, key: tuple[str, ...]) -> tuple[pa.Array, pa.Array]:
    """Return the keys and values of the net changes; the value of a deleted key is null."""
    net = net_changes(batch, key)
    names = list(key)
    keys = pa.concat_arrays([json_objects(net.puts.select(names)), json_objects(net.deletes.select(names))])
    tombstones = pa.nulls(net.deletes.num_rows, pa.large_binary())
    return keys, pa.concat_arrays([json_objects(net.puts), tombstones])


def _enveloped(values: pa.Array, signs: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return each row in an envelope like Debezium's, and a header with the operation."""
    text = pa.large_binary()
    put = pc.greater(signs, 0)
    head = pc.if_else(put, _scalar(b'{"op":"c","before":null,"after":'), _scalar(b'{"op":"d","before":'))
    tail = pc.if_else(put, _scalar(b"}"), _scalar(b',"after":null}'))
    insert, delete = (encode_headers([(OP_HEADER, op.value.encode())]) for op in (Op.INSERT, Op.DELETE))
    headers = pc.if_else(put, _scalar(insert), _scalar(delete))
    return pc.binary_join_element_wise(head, values, tail, _scalar(b"")).cast(text), headers


def _scalar(value: bytes) -> pa.Scalar:
    return pa.scalar(value, pa.large_binary())


# -- topics ---------------------------------------------------------------------------------------------------


def _ensure_topic(client: Client, name: str, partitions: int, configs: Mapping[str, str]) -> int:
    """Create a topic if it is missing; return its number of partitions."""
    if name not in client.topics([name]):
        client.create_topic(name, partitions=partitions, configs=configs)
    return len(client.topics([name])[name].leaders)


def _message_bytes(client: Client, topic: str) -> int:
    """Return the size limit of a record batch; Kafka's default if the client may not read the configuration."""
    try:
        settings = {setting.name: setting.value for setting in topic_settings(client, topic)}
    except InvalidError:
        settings = {}
    return int(settings.get(_MESSAGE_BYTES) or _MESSAGE_BYTES_DEFAULT)


def _read_progress(client: Client, at: TopicPartition) -> _ProgressRecord | None:
    """Return the last record of the progress topic, searching backwards from its end; None if there is none."""
    start, end = client.offsets([at], EARLIEST)[at], client.offsets([at], LATEST)[at]
    span = 16
    while True:
        offset = begin = max(start, end - span)
        last: bytes | None = None
        while offset < end:
            data, offset = client.read(at, offset)
            for start_byte, header in walk(data):
                if not header.is_control:
                    last = decode_batch(data, start_byte)[-1].value
        if last is not None:
            return _ProgressRecord.decode(last)
        if begin == start:
            return None
        span *= 16
