"""The records of a batch, decoded once for all queries of a lane.

A small batch is read by the driver and decoded in one task. A large one is read and decoded by Spark's tasks, and
its rows are kept in Spark's cache until the batch is done. Both know the event times of each partition, and the
records that do not match the schema.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import TimestampNTZType

from headwater.app import Topic
from headwater.process.watermarks import EventTimes
from headwater.record import TopicPartition
from headwater.spark.lanes.steps.stage_plan import LaneSession, SmallRows, StagePlan, placeholder
from headwater.spark.lanes.topic_rows import TooLargeError
from headwater.spark.source.decoding import IS_BAD, RECORD_TIME, decoded_records, record_schema, row_schema
from headwater.spark.source.left_out import LeftOut, addressed_records
from headwater.spark.source.offsets import Range
from headwater.spark.source.source import READER_COLUMN
from headwater.spark.source.topic_reads import read_part
from headwater.transmit.client.client import Client
from headwater.transmit.client.ranges import read_ranges
from headwater.transmit.records.to_arrow import SCHEMA

_PARTITION, _OFFSET = "partition", "offset"
_KEY, _VALUE = "_bad_key", "_bad_value"
_PATIENCE_S = 60.0

LOCAL_BYTES_MAX = 64 << 20
"""Bytes of a topic's records that the driver reads itself."""


class TopicDecoder:
    """Decodes the records of a topic; the plan for small batches is made once."""

    def __init__(self, topic: Topic, small: LaneSession, large: LaneSession, servers: str) -> None:
        self.topic = topic
        self._small, self._large = small, large
        self._servers = servers
        self._records = record_schema()
        self._schema = row_schema(topic, self._records)
        self._time = self._schema.names.index(topic.event_time or RECORD_TIME)
        is_plain = isinstance(self._schema[self._time].dataType, TimestampNTZType)
        self._time_type = pl.Datetime("us", None if is_plain else "UTC")

    @cached_property
    def _plan(self) -> tuple[StagePlan, int]:
        records, leaf = placeholder(self._small.spark, self._records)
        decoded = decoded_records(records, self.topic, _PARTITION, _OFFSET)
        return StagePlan(decoded, frozenset({leaf})), leaf

    def small(self, client: Client, ranges: Sequence[Range]) -> "SmallTopicRows":
        """Read and decode the records of ranges in the driver; TooLargeError if they take too much memory."""
        wanted = {r.partition: (r.start, r.end) for r in ranges}
        size = 0
        batches: dict[TopicPartition, list[pa.RecordBatch]] = {}
        addressed: dict[tuple[int, int], str] = {}
        for found in read_ranges(client, wanted, patience_s=_PATIENCE_S):
            size += found.rows.nbytes
            if size > LOCAL_BYTES_MAX:
                raise TooLargeError
            batches.setdefault(found.partition, []).append(found.rows)
            for offset, reader in addressed_records(found.data).items():
                addressed[found.partition.partition, offset] = reader
        records = pa.Table.from_batches([batch for tp in sorted(batches) for batch in batches[tp]], SCHEMA)
        decoded = self._decoded(records)
        rows = decoded.filter(pc.invert(decoded.column(IS_BAD)))
        return SmallTopicRows(
            topic=self.topic,
            records=records.num_rows,
            unmatched=records.filter(decoded.column(IS_BAD)),
            rows=rows,
            event_times=self._event_times(rows),
            addressed=addressed,
            session=self._small,
            schema_json=self._schema.json(),
        )

    def large(self, ranges: Sequence[Range]) -> "LargeTopicRows":
        """Read and decode the records of ranges with Spark's tasks."""
        spark = self._large.spark
        records = read_part(spark, self.topic, self._servers, ranges, {"includeReader": "true"})
        marked = records.withColumns({_KEY: F.col("key"), _VALUE: F.col("value")})
        decoded = decoded_records(marked, self.topic, _PARTITION, _OFFSET, READER_COLUMN, _KEY, _VALUE)
        is_bad = F.col(IS_BAD)
        kept = decoded.withColumns({name: F.when(is_bad, F.col(name)) for name in (_KEY, _VALUE)})
        kept = kept.persist(StorageLevel.MEMORY_AND_DISK)
        time = F.when(~is_bad, F.col(f"_{self._time}"))
        found = (
            kept.groupBy(_PARTITION)
            .agg(
                F.max(time).alias("high"),
                F.min(time).alias("low"),
                F.count("*").alias("n"),
                F.count_if(is_bad).alias("bad"),
                F.count(READER_COLUMN).alias("addressed"),
            )
            .toArrow()
        )
        table = pl.from_arrow(found)
        assert isinstance(table, pl.DataFrame)
        known = table.filter(pl.col("high").is_not_null())
        micros = known.select(_PARTITION, pl.col("high", "low").to_physical())
        return LargeTopicRows(
            topic=self.topic,
            records=int(table.get_column("n").sum()),
            unmatched=self._unmatched(kept) if table.get_column("bad").sum() else SCHEMA.empty_table(),
            event_times={partition: (high, low) for partition, high, low in micros.iter_rows()},
            kept=kept,
            columns=len(self._schema.fields),
            has_addressed=bool(table.get_column("addressed").sum()),
        )

    def _decoded(self, records: pa.Table) -> pa.Table:
        if self.topic.schema is None:
            columns = [*records.columns, pa.repeat(False, records.num_rows), records[_PARTITION], records[_OFFSET]]
            names = [*(f"_{n}" for n in range(records.num_columns)), IS_BAD, _PARTITION, _OFFSET]
            return pa.Table.from_arrays(columns, names)
        plan, leaf = self._plan
        return plan.run(self._small, {leaf: SmallRows(records, self._records.json(), self._small)})

    def _event_times(self, rows: pa.Table) -> EventTimes:
        table = pl.from_arrow(rows.select([_PARTITION, f"_{self._time}"]))
        assert isinstance(table, pl.DataFrame)
        time = pl.col(f"_{self._time}").cast(self._time_type).to_physical()
        found = table.group_by(_PARTITION).agg(time.max().alias("high"), time.min().alias("low"))
        return {partition: (high, low) for partition, high, low in found.iter_rows() if high is not None}

    def _unmatched(self, kept: DataFrame) -> pa.Table:
        bad = kept.where(IS_BAD).select(
            F.col(_KEY).alias("key"),
            F.col(_VALUE).alias("value"),
            F.lit(self.topic.name).alias("topic"),
            _PARTITION,
            _OFFSET,
        )
        return bad.orderBy(_PARTITION, _OFFSET).toArrow()


@dataclass(slots=True, kw_only=True)
class SmallTopicRows:
    """Rows that the driver has."""

    topic: Topic
    records: int
    unmatched: pa.Table
    rows: pa.Table
    event_times: EventTimes
    addressed: Mapping[tuple[int, int], str]
    session: LaneSession
    schema_json: str
    _leaves: dict[frozenset[tuple[int, int]], SmallRows] = field(default_factory=dict)

    def leaf(self, without: LeftOut) -> SmallRows:
        key = self.part(without)
        if key not in self._leaves:
            self._leaves[key] = SmallRows(self._without(key), self.schema_json, self.session)
        return self._leaves[key]

    def part(self, without: LeftOut) -> frozenset[tuple[int, int]]:
        others = {place for place, reader in self.addressed.items() if reader != without.reader}
        unwanted = without.offsets | others
        if unwanted:  # Most of them are not in this batch.
            unwanted &= set(zip(self.rows[_PARTITION].to_pylist(), self.rows[_OFFSET].to_pylist(), strict=True))
        return frozenset(unwanted)

    def close(self) -> None:
        self._leaves.clear()

    def _without(self, unwanted: Iterable[tuple[int, int]]) -> pa.Table:
        rows, unwanted = self.rows, set(unwanted)
        if unwanted:
            places = zip(rows[_PARTITION].to_pylist(), rows[_OFFSET].to_pylist(), strict=True)
            rows = rows.filter(pa.array([place not in unwanted for place in places], pa.bool_()))
        return rows.drop_columns([IS_BAD, _PARTITION, _OFFSET])


@dataclass(slots=True, kw_only=True)
class LargeTopicRows:
    """Rows in Spark's cache."""

    topic: Topic
    records: int
    unmatched: pa.Table
    event_times: EventTimes
    kept: DataFrame
    columns: int
    has_addressed: bool

    def part(self, without: LeftOut) -> tuple[frozenset[tuple[int, int]], str | None]:
        return without.offsets, without.reader if self.has_addressed else None

    def leaf(self, without: LeftOut) -> Any:
        rows = self.kept.where(~F.col(IS_BAD))
        rows = rows.where(F.col(READER_COLUMN).isNull() | (F.col(READER_COLUMN) == without.reader))
        by_partition: dict[int, list[int]] = {}
        for partition, offset in without.offsets:
            by_partition.setdefault(partition, []).append(offset)
        for partition, offsets in by_partition.items():
            rows = rows.where(~((F.col(_PARTITION) == partition) & F.col(_OFFSET).isin(offsets)))
        return rows.select(*(f"_{number}" for number in range(self.columns)))._jdf.queryExecution().toRdd()

    def close(self) -> None:
        self.kept.unpersist()
