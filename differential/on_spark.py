"""Runs queries on Spark: in batch, and as the sinks of an app that reads its records in several batches."""

import json
import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from differential.dialects import SPARK
from differential.queries import Query
from differential.reference import finish, statement, tables
from differential.rows import ALONE, COLUMNS, END, OTHER, SPAN, Data, Row, spark_ddl
from headwater.change import CHANGE
from headwater.clock import SystemClock
from headwater.errors import HeadwaterError
from headwater.spark.kernels.frames import from_arrow
from headwater.spark.kernels.spool import Spool
from headwater.spark.lanes.steps.blueprint import Drawings, NotDrawableError
from headwater.spark.pipeline.pipeline import Pipeline, PipelineSettings
from headwater.spark.pipeline.plan import draw_query, plan_query
from headwater.spark.source import topic_reads
from headwater.spark.source.decoding import DELAY_KEY, EVENT_TIME_KEY
from headwater.store.pipelines.facts import FactStore
from headwater.store.views import ViewStore
from headwater.transmit.client.client import Client

RECORDS_PER_BATCH = 17
"""Records of a topic that a batch reads: a query has several batches, and the other input fits in one."""

CLOSING = "9999-12-31T12:00:00Z"
"""The event time of the last record of each topic: the watermark passes the end of every window."""

_NOWHERE = "127.0.0.1:1"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SIDE_SCHEMA = spark_ddl(OTHER)


@dataclass(frozen=True, slots=True)
class SparkInput:
    """The other input of queries on Spark."""

    rows: DataFrame
    data: Data

    def side_input(self) -> hw.SideInput:
        rows = [{**row, "ot": _time(row["ot"])} for row in self.data.other]
        return hw.SideInput(lambda: rows, schema=_SIDE_SCHEMA)


def apply(query: Query, rows: DataFrame, other: SparkInput) -> DataFrame:
    """Apply the operators of a query; return the columns of its result, with the change if there is one."""
    for operator in query.operators:
        rows = operator.on_spark(rows, other)
    return rows.select(*query.result, *([CHANGE] if CHANGE in rows.columns else []))


# -- in batch -------------------------------------------------------------------------------------------------


def result_in_batch(spark: SparkSession, query: Query) -> tuple[pl.DataFrame, dict[str, str]]:
    """Run a query over all changes at once; return its result and the types of its columns."""
    data = query.data
    rows = _timed(spark, data.frame(data.changes), "ts")
    other = _timed(spark, data.other_frame(data.other), "ot")
    found = apply(query, rows, SparkInput(other, data))
    return from_arrow(found.toArrow()), _types(found)


def expected_on_spark(spark: SparkSession, query: Query) -> tuple[list[tuple[Any, ...]], dict[str, str]]:
    """Compute the expected result with Spark SQL over the final rows; return it with the columns' types."""
    for name, table in tables(query).items():
        spark.createDataFrame(table).createOrReplaceTempView(name)
    found = spark.sql(statement(query, SPARK))
    rows = list(from_arrow(found.toArrow()).iter_rows())
    return finish(query, rows, SPARK), _types(found)


def _types(rows: DataFrame) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in rows.schema.fields}


def _timed(spark: SparkSession, frame: pl.DataFrame, time: str) -> DataFrame:
    rows = spark.createDataFrame(frame.to_arrow()).withColumn(time, F.timestamp_micros(time))
    return rows.withMetadata(time, {EVENT_TIME_KEY: True, DELAY_KEY: SPAN})


# -- as an app ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Collected:
    """A sink that keeps the rows of each batch in memory."""

    batches: dict[int, pl.DataFrame] = field(default_factory=dict)
    guarantee: Any = hw.sink.Guarantee.EXACTLY_ONCE

    def open(self, stream: Any) -> "Collected":
        return self

    def write(self, batch: Any) -> bool:
        frame = from_arrow(batch.rows)
        if batch.signs is not None:
            frame = frame.with_columns(pl.Series(CHANGE, batch.signs.to_pylist(), pl.Int8))
        is_new = batch.number not in self.batches
        self.batches[batch.number] = frame
        return is_new

    def close(self) -> None:
        pass

    @property
    def rows(self) -> pl.DataFrame:
        frames = [frame for _, frame in sorted(self.batches.items()) if frame.height]
        return pl.concat(frames) if frames else pl.DataFrame()


@dataclass(frozen=True, slots=True)
class Setting:
    """The circumstances of an app, on which its results must not depend."""

    time_zone: str = "UTC"
    shuffle_partitions: int = 2
    topic_partitions: int = 1
    restarts: bool = False

    @classmethod
    def random(cls, chance: random.Random) -> "Setting":
        return cls(
            time_zone=chance.choice(("UTC", "Europe/Berlin", "America/St_Johns", "Asia/Kolkata")),
            shuffle_partitions=chance.choice((1, 2, 3)),
            topic_partitions=chance.choice((1, 3)),
            restarts=chance.random() < 0.5,
        )


def results_in_app(
    spark: SparkSession, queries: Sequence[Query], folder: Path, setting: Setting
) -> dict[str, pl.DataFrame]:
    """Run queries over the same data as one app, and return the changes of each, in order."""
    data = queries[0].data
    assert all(query.data == data for query in queries)
    app, sinks = _app(queries, data)
    with hw.Broker() as broker, _small_batches(), _conf(spark, setting):
        records = [_with_change(row, weight, data) for row, weight in data.changes]
        with _Topics(broker.bootstrap_servers, setting.topic_partitions) as topics:
            half = len(records) // 2 if setting.restarts else 0
            if half:
                topics.produce("rows", records[:half])
                topics.produce("other", data.other)
                topics.flush()
                _run_once(app, spark, broker.bootstrap_servers, folder)
            topics.produce("rows", records[half:])
            topics.produce("other", () if half else data.other)
            closing = [{"id": -1, "k": group, "v": None, "ts": CLOSING} for group in (END, ALONE)]
            topics.produce_everywhere("rows", [_with_change(row, 1, data) for row in closing])
            topics.produce_everywhere("other", [{"k": END, "w": 0, "oid": -1, "ot": CLOSING}])
        _run_once(app, spark, broker.bootstrap_servers, folder)
    return {name: sink.rows for name, sink in sinks.items()}


def plan_in_app(spark: SparkSession, query: Query, folder: Path) -> None:
    """Plan a query as an app does at its start; raises InvalidError if it is refused."""
    app, _ = _app([query], query.data)
    (sink,), spool = app.sink_queries, Spool(str(folder / "spool"))
    try:
        draw_query(sink, Drawings(spark), spool)
    except NotDrawableError:
        plan_query(
            sink,
            lambda topic, **options: topic_reads.read_stream(spark, topic, _NOWHERE, **options),
            spool,
            folder,
        )


def _app(queries: Sequence[Query], data: Data) -> tuple[hw.App, dict[str, Collected]]:
    app = hw.App("differential")
    schema = spark_ddl(COLUMNS) + (f", {CHANGE} tinyint" if data.has_retractions else "")
    delay = None if queries[0].late else f"{SPAN} microseconds"
    rows = app.topic("rows", schema=schema, event_time="ts", delay=delay)
    other = app.topic("other", schema=spark_ddl(OTHER), event_time="ot", delay=delay)
    sinks: dict[str, Collected] = {}
    for number, query in enumerate(queries):
        sink = sinks[query.name] = Collected()
        app.sink(rows, other, to=sink, name=f"query{number}", key=_key(query))(_function(query))
    return app, sinks


def _run_once(app: hw.App, spark: SparkSession, servers: str, folder: Path) -> None:
    settings = PipelineSettings(bootstrap_servers=servers, data=folder, once=True)
    store, facts = ViewStore(folder / "views.db"), FactStore(folder / "facts.db")
    pipeline = Pipeline(app, spark, store, facts, settings, SystemClock())
    try:
        pipeline.start()
        pipeline.run()
    finally:
        pipeline.stop()


@contextmanager
def _conf(spark: SparkSession, setting: Setting) -> Iterator[None]:
    names = {
        "spark.sql.session.timeZone": setting.time_zone,
        "spark.sql.shuffle.partitions": str(setting.shuffle_partitions),
    }
    before = {name: spark.conf.get(name) for name in names}
    for name, value in names.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, known in before.items():
            spark.conf.set(name, known or "")


def _key(query: Query) -> list[str]:
    """Rows of Spark's own windows replace each other; all others come with changes."""
    last = query.operators[-1]
    return ["k", "id"] if getattr(last, "is_native", False) else []


def _function(query: Query) -> Any:
    def function(rows: DataFrame, other: DataFrame) -> DataFrame:
        return apply(query, rows, SparkInput(other, query.data))

    return function


@contextmanager
def _small_batches() -> Iterator[None]:
    before = topic_reads.OFFSETS_PER_TRIGGER_MAX
    topic_reads.OFFSETS_PER_TRIGGER_MAX = RECORDS_PER_BATCH
    try:
        yield
    finally:
        topic_reads.OFFSETS_PER_TRIGGER_MAX = before


def _with_change(row: Row, weight: int, data: Data) -> Row:
    return {**row, CHANGE: weight} if data.has_retractions else row


class _Topics:
    """Produces rows as JSON to the topics of an app."""

    def __init__(self, servers: str, partitions: int) -> None:
        self._partitions = partitions
        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 5})
        with Client(servers) as client:
            for topic in ("rows", "other"):
                client.create_topic(topic, partitions=partitions)

    def produce(self, topic: str, rows: Sequence[Row]) -> None:
        for number, row in enumerate(rows):
            self._send(topic, row, number % self._partitions)

    def produce_everywhere(self, topic: str, rows: Sequence[Row]) -> None:
        """Produce rows to each partition."""
        for partition in range(self._partitions):
            for row in rows:
                self._send(topic, row, partition)

    def _send(self, topic: str, row: Row, partition: int) -> None:
        value = json.dumps({name: _json(name, value) for name, value in row.items()})
        self._producer.produce(topic, value=value, partition=partition)

    def __enter__(self) -> "_Topics":
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()

    def flush(self) -> None:
        """Wait until all rows are in the log."""
        if self._producer.flush(30):
            raise HeadwaterError("cannot produce the rows of a query")


def _json(name: str, value: Any) -> Any:
    if name in ("ts", "ot") and isinstance(value, int):
        return _time(value).isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return str(value) if isinstance(value, Decimal) else value


def _time(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)
