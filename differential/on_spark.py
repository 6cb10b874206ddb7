"""Runs queries on Spark: in batch, and as the sinks of an app that reads its records in several batches."""

import json
import math
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
from headwater.spark.pipeline import plan
from headwater.spark.pipeline.pipeline import Pipeline, PipelineSettings
from headwater.spark.source.decoding import DELAY_KEY, EVENT_TIME_KEY
from headwater.store.facts import FactStore
from headwater.store.views import ViewStore

RECORDS_PER_BATCH = 17
"""Records of a topic that a batch reads, so that a query has several batches; all of the other input fit in one."""

CLOSING = "9999-12-31T12:00:00Z"
"""The event time of the last record of each topic: the watermark passes the end of every window."""

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


def result_in_batch(spark: SparkSession, query: Query) -> pl.DataFrame:
    """Run a query over all changes at once."""
    data = query.data
    rows = _timed(spark, data.frame(data.changes), "ts")
    other = _timed(spark, data.other_frame(data.other), "ot")
    return from_arrow(apply(query, rows, SparkInput(other, data)).toArrow())


def expected_on_spark(spark: SparkSession, query: Query) -> tuple[list[tuple[Any, ...]], dict[str, str]]:
    """Compute the expected result with Spark SQL over the final rows; return it with the columns' types."""
    for name, table in tables(query).items():
        spark.createDataFrame(table).createOrReplaceTempView(name)
    found = spark.sql(statement(query, SPARK))
    rows = list(from_arrow(found.toArrow()).iter_rows())
    types = {field.name: field.dataType.simpleString() for field in found.schema.fields}
    return finish(query, rows, SPARK), types


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


def results_in_app(
    spark: SparkSession, queries: Sequence[Query], folder: Path, *, delay: str | None = "120 seconds"
) -> dict[str, pl.DataFrame]:
    """Run queries over the same data as one app, and return the changes of each, in order."""
    data = queries[0].data
    assert all(query.data == data for query in queries)
    app = hw.App("differential")
    schema = spark_ddl(COLUMNS) + (f", {CHANGE} tinyint" if data.has_retractions else "")
    rows = app.topic("rows", schema=schema, event_time="ts", delay=delay)
    other = app.topic("other", schema=spark_ddl(OTHER), event_time="ot", delay=delay)
    sinks: dict[str, Collected] = {}
    for number, query in enumerate(queries):
        sink = sinks[query.name] = Collected()
        function = _function(query)
        app.sink(rows, other, to=sink, name=f"query{number}", key=_key(query))(function)
    with hw.Broker() as broker, _small_batches():
        _produce(broker.bootstrap_servers, "rows", [_with_change(row, w, data) for row, w in data.changes])
        _produce(broker.bootstrap_servers, "other", data.other)
        closing = [{"id": -1, "k": group, "v": 1, "ts": CLOSING} for group in (END, ALONE)]
        _produce(broker.bootstrap_servers, "rows", [_with_change(row, 1, data) for row in closing])
        _produce(broker.bootstrap_servers, "other", [{"k": END, "w": 0, "oid": -1, "ot": CLOSING}])
        settings = PipelineSettings(bootstrap_servers=broker.bootstrap_servers, data=folder, once=True)
        store, facts = ViewStore(folder / "views.db"), FactStore(folder / "facts.db")
        pipeline = Pipeline(app, spark, store, facts, settings, SystemClock())
        try:
            pipeline.start()
            pipeline.run()
        finally:
            pipeline.stop()
    return {name: sink.rows for name, sink in sinks.items()}


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
    before = plan.OFFSETS_PER_TRIGGER_MAX
    plan.OFFSETS_PER_TRIGGER_MAX = RECORDS_PER_BATCH
    try:
        yield
    finally:
        plan.OFFSETS_PER_TRIGGER_MAX = before


def _with_change(row: Row, weight: int, data: Data) -> Row:
    return {**row, CHANGE: weight} if data.has_retractions else row


def _produce(servers: str, topic: str, rows: Sequence[Row]) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5})
    for row in rows:
        producer.produce(topic, value=json.dumps({name: _json(name, value) for name, value in row.items()}))
    if producer.flush(30):
        raise HeadwaterError(f"cannot produce to {topic!r}")


def _json(name: str, value: Any) -> Any:
    if name in ("ts", "ot") and isinstance(value, int):
        return _time(value).isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return str(value) if isinstance(value, Decimal) else value


def _time(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)
