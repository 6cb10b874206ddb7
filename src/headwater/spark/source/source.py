"""The log as a Spark data source, `format("headwater")`: streaming and batch reads, and writes.

It uses Kafka's protocol, so it reads Apache Kafka as well. Records go from the broker to Spark as Arrow batches.
Options and columns are those of Spark's Kafka source.
"""

import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from headwater.clock import SystemClock
from headwater.errors import InvalidError, UnavailableError
from headwater.record import EARLIEST, LATEST, TopicPartition
from headwater.spark.session.workers import freeze_imports
from headwater.spark.source.decoding import COLUMNS
from headwater.spark.source.left_out import leave_out, with_readers
from headwater.spark.source.offsets import (
    Bound,
    Offsets,
    OffsetsJson,
    Range,
    SourceOptions,
    from_json,
    limit_offsets,
    read_options,
    split,
    to_json,
    woken_at,
)
from headwater.spark.source.wake_ups import Alarm
from headwater.spark.source.writer import ArrowProducer, producer_options
from headwater.transmit.client.client import Client
from headwater.transmit.records.to_arrow import to_arrow

HEADERS_COLUMN = ", headers array<struct<key: string, value: binary>>"
READER_COLUMN = "_headwater_reader"

PATIENCE_S = 60.0
"""Seconds that a broker may be unavailable, during a restart for example, before the query fails."""

T = TypeVar("T")


class HeadwaterSource(DataSource):
    """The log, for `spark.read`, `spark.readStream`, `df.write` and `df.writeStream`."""

    @classmethod
    def name(cls) -> str:
        return "headwater"

    def schema(self) -> str:
        options = {name.lower(): str(value).lower() for name, value in self.options.items()}
        headers = HEADERS_COLUMN if options.get("includeheaders") == "true" else ""
        reader = f", {READER_COLUMN} string" if options.get("includereader") == "true" else ""
        return COLUMNS + headers + reader

    def reader(self, schema: StructType) -> "LogReader":
        return LogReader(read_options(self.options, streaming=False))

    def streamReader(self, schema: StructType) -> "LogStreamReader":  # noqa: N802
        return LogStreamReader(read_options(self.options, streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> "LogWriter":
        return LogWriter(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "LogStreamWriter":  # noqa: N802
        return LogStreamWriter(self.options, schema)


@dataclass
class RangePartition(InputPartition):
    """A range of offsets for one task."""

    range: Range


class LogReader(DataSourceReader):
    """Reads the records between a starting and an ending bound."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with _client(options) as client:
            found = _partitions(client, options)
            start = _resolve(client, found, options.starting)
            end = _resolve(client, found, options.ending, otherwise=LATEST)
            start = {tp: min(offset, end[tp]) for tp, offset in start.items()}
        return [RangePartition(r) for r in split(start, end, options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Where there are no partitions, Spark reads one: None.
        return read_range(self._options, partition.range) if isinstance(partition, RangePartition) else iter(())


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads micro-batches. Runs in a process on the driver; only its options are sent to the tasks."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._client: Client | None = None
        self._stop_at: Offsets | None = None
        self._latest: Offsets | None = None
        self._alarm = None if options.wake_ups is None else Alarm(Path(options.wake_ups), SystemClock())

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_client": None, "_stop_at": None, "_latest": None, "_alarm": None}

    def initialOffset(self) -> OffsetsJson:  # noqa: N802
        return to_json(self._call(lambda c: _resolve(c, _partitions(c, self._options), self._options.starting)))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        rows = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._stop_at = self._find_latest()

    def latestOffset(self, start: OffsetsJson, limit: ReadLimit) -> OffsetsJson:  # noqa: N802
        known = from_json(start)
        self._latest = self._stop_at or self._find_latest()
        # A new partition is read from its first record.
        appeared = [tp for tp in self._latest if tp not in known]
        if appeared:
            known.update(self._call(lambda c: c.offsets(appeared, EARLIEST)))
        # A topic that was deleted and recreated ends before the offsets we have read; partitions() raises for it.
        latest = {tp: max(end, known[tp]) for tp, end in self._latest.items()}
        if isinstance(limit, ReadMaxRows):
            latest = limit_offsets(known, latest, limit.max_rows)
        woken = woken_at(start)
        if self._alarm is not None:
            woken = self._alarm.woken(woken, once=self._stop_at is not None)
        return to_json({**known, **latest}, woken)

    def reportLatestOffset(self) -> OffsetsJson | None:  # noqa: N802
        return None if self._latest is None else to_json(self._latest)

    def partitions(self, start: OffsetsJson, end: OffsetsJson) -> Sequence[InputPartition]:
        begin, until = from_json(start), from_json(end)
        changed = [tp for tp in until if until[tp] != begin.get(tp)]
        if not changed and woken_at(start) == woken_at(end):
            return []
        earliest = self._call(lambda c: c.offsets(changed, EARLIEST))
        begin = {tp: begin.get(tp, earliest[tp]) for tp in changed}
        lost = {tp: (begin[tp], earliest[tp]) for tp in changed if begin[tp] < earliest[tp]}
        if lost and self._options.fail_on_data_loss:
            raise InvalidError(
                "records were deleted before they were read: "
                + ", ".join(f"{tp} from {at} to {first}" for tp, (at, first) in lost.items())
                + "; set failOnDataLoss to false to continue without them"
            )
        begin = {tp: max(begin[tp], earliest[tp]) for tp in changed}
        if self._options.every_partition:
            # A task for each, in the same order each time, so that a task's number identifies its partition.
            return [RangePartition(Range(tp, begin.get(tp, until[tp]), until[tp])) for tp in sorted(until)]
        ranges = split(begin, {tp: until[tp] for tp in changed}, self._options.min_partitions)
        return [RangePartition(r) for r in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        freeze_imports()
        return read_range(self._options, partition.range)

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()

    def _find_latest(self) -> Offsets:
        return self._call(lambda c: c.offsets(_partitions(c, self._options), LATEST))

    def _call(self, request: Callable[[Client], T]) -> T:
        """Send a request to the broker, and retry while it is unavailable."""
        client = self._client = self._client or _client(self._options)
        return _retry(lambda: request(client))


class LogWriter(DataSourceArrowWriter):
    """Appends the rows of a batch query to the log."""

    def __init__(self, options: MutableMapping[str, str], schema: StructType) -> None:
        self._options = producer_options(options, schema.fieldNames())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with ArrowProducer(self._options) as producer:
            for batch in iterator:
                producer.send(batch)
        return WriterCommitMessage()


class LogStreamWriter(DataSourceStreamArrowWriter):
    """Appends the rows of each micro-batch: at least once, since a repeated batch is appended again."""

    def __init__(self, options: MutableMapping[str, str], schema: StructType) -> None:
        self._writer = LogWriter(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._writer.write(iterator)


# -- shared by both readers -----------------------------------------------------------------------------------


def _client(options: SourceOptions) -> Client:
    return Client(options.bootstrap_servers, read_committed=options.read_committed)


def _partitions(client: Client, options: SourceOptions) -> list[TopicPartition]:
    """Return the partitions to read; raise InvalidError if a named topic does not exist."""
    topics = client.topics(None if options.pattern is not None else options.named_topics)
    missing = [name for name in options.named_topics if name not in topics]
    if missing:
        raise InvalidError(
            f"cannot read topic {', '.join(map(repr, missing))}: it does not exist at "
            f"{options.bootstrap_servers}; create it: headwater topic create {missing[0]}"
        )
    if options.assigned:
        return list(options.assigned)
    return [
        TopicPartition(name, number)
        for name, info in topics.items()
        if options.wants(name)
        for number in info.leaders
    ]


def _resolve(
    client: Client, partitions: Sequence[TopicPartition], bound: Bound, *, otherwise: int = EARLIEST
) -> Offsets:
    """Resolve a bound to offsets; partitions that it does not name are at `otherwise`."""
    if bound.everywhere is not None:
        wanted = dict.fromkeys(partitions, bound.everywhere)
    else:
        each = dict(bound.each)
        unknown = [str(tp) for tp in each if tp not in partitions]
        if unknown:
            raise InvalidError(f"offsets are given for partitions that are not read: {', '.join(unknown)}")
        wanted = {tp: each.get(tp, otherwise) for tp in partitions}
    fixed = {} if bound.is_time else {tp: at for tp, at in wanted.items() if at >= 0}
    looked_up = client.offsets_at({tp: at for tp, at in wanted.items() if tp not in fixed})
    after_the_end = [tp for tp, at in looked_up.items() if at < 0]
    if after_the_end:
        looked_up.update(client.offsets(after_the_end, LATEST))
    return {**looked_up, **fixed}


def read_range(options: SourceOptions, wanted: Range) -> Iterator[pa.RecordBatch]:
    """Read the records of a range as Arrow batches."""
    at = wanted.start
    if at >= wanted.end:
        return
    with _client(options) as client:
        while at < wanted.end:
            data, at_next = _retry(lambda: client.read(wanted.partition, at))  # noqa: B023
            batch = to_arrow(data, wanted.partition, at, wanted.end, include_headers=options.include_headers)
            batch = leave_out(batch, data, wanted.partition, options.excluded, options.reader)
            if options.include_reader:
                batch = with_readers(batch, data, READER_COLUMN)
            if batch.num_rows:
                yield batch
            at = at_next


def _retry(call: Callable[[], T]) -> T:
    deadline = time.monotonic() + PATIENCE_S
    pause_s = 0.1
    while True:
        try:
            return call()
        except UnavailableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 2.0)
