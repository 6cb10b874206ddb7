"""Steps that only choose, rename and nest columns give the same rows in Arrow as in Spark."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from headwater.spark.lanes.steps.column_selection import ColumnSelection
from headwater.spark.lanes.steps.stage_plan import LaneSession, numbered, placeholder

PAIR = StructType().add("a", IntegerType()).add("b", ArrayType(StringType()))
SCHEMA = (
    StructType()
    .add("n", LongType())
    .add("small", IntegerType())
    .add("text", StringType())
    .add("at", TimestampType())
    .add("plain", TimestampNTZType())
    .add("pair", PAIR)
)
AT = datetime(2026, 3, 29, 1, 30, 0, 123456)
ROWS = [
    {"n": 1_790_000_000_000_001, "small": 1, "text": "tea", "at": AT.replace(tzinfo=UTC), "plain": AT,
     "pair": {"a": 1, "b": ["x", None]}},
    {"n": -1, "small": -1, "text": "", "at": datetime(1, 1, 2, tzinfo=UTC), "plain": AT,
     "pair": {"a": None, "b": None}},
    dict.fromkeys(SCHEMA.names),
]  # fmt: skip

SELECTIONS: dict[str, Callable[[Any], Any]] = {
    "all": lambda rows: rows,
    "some, in another order": lambda rows: rows.select("text", "pair", "n"),
    "renamed": lambda rows: rows.select(F.col("n").alias("a.b"), F.col("text").alias("a.b")).drop("at"),
    "twice": lambda rows: rows.select("text", F.col("text").alias("again")),
    "marked": lambda rows: rows.withMetadata("at", {"headwater.event_time": True}),
    "micros": lambda rows: rows.select(F.unix_micros("at"), F.timestamp_micros("n")),
    "there and back": lambda rows: rows.select(F.timestamp_micros(F.unix_micros("at")).alias("at")),
    "nested": lambda rows: rows.select(F.struct("n", F.struct("pair", "at").alias("s"), F.timestamp_micros("n"))),
    "in steps": lambda rows: rows.withColumn("m", F.unix_micros("at")).select("m", "n").select("n", "m"),
}
OTHERS: dict[str, Callable[[Any], Any]] = {
    "filter": lambda rows: rows.where("n > 1"),
    "sum": lambda rows: rows.select(F.col("n") + 1),
    "literal": lambda rows: rows.select("n", F.lit(1)),
    "cast": lambda rows: rows.select(F.col("n").cast("string")),
    "cast to the same type of Arrow": lambda rows: rows.select(F.col("n").cast("timestamp")),
    "micros of an int": lambda rows: rows.select(F.timestamp_micros("small")),
    "millis": lambda rows: rows.select(F.timestamp_millis("n")),
    "field": lambda rows: rows.select("pair.a"),
    "union": lambda rows: rows.select("n").unionAll(rows.select("n")),
    "explode": lambda rows: rows.select("n", F.explode("pair.b")),
    "function": lambda rows: rows.select(F.udf(lambda n: n, "bigint")("n")),
}


@pytest.fixture(scope="module")
def small(spark: Any) -> Any:
    session = LaneSession(spark, small=True)
    session.spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    session.activate()
    yield session
    spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)


@pytest.mark.parametrize("name", SELECTIONS)
@pytest.mark.parametrize("chunks", [0, 1, 3])
def test_a_selection_gives_the_rows_and_types_of_spark(small: Any, name: str, chunks: int) -> None:
    rows, leaf = placeholder(small.spark, SCHEMA)
    found = ColumnSelection.of(SELECTIONS[name](rows), {leaf})
    assert found is not None
    assert found.leaf == leaf
    arrow = to_arrow_schema(SCHEMA, timezone="UTC")
    pieces = [pa.Table.from_pylist(ROWS, arrow)] * chunks
    table = pa.concat_tables(pieces) if pieces else arrow.empty_table()
    expected = numbered(SELECTIONS[name](small.spark.createDataFrame(table, SCHEMA)))
    table = found.run(table)
    assert table.schema.remove_metadata() == to_arrow_schema(expected.schema, timezone="UTC").remove_metadata()
    assert table.to_pylist() == expected.toArrow().cast(table.schema).to_pylist()


@pytest.mark.parametrize("name", OTHERS)
def test_spark_runs_all_other_steps(small: Any, name: str) -> None:
    rows, leaf = placeholder(small.spark, SCHEMA)
    assert ColumnSelection.of(OTHERS[name](rows), {leaf}) is None


def test_unused_columns_are_null_whatever_computes_them(small: Any) -> None:
    rows, leaf = placeholder(small.spark, SCHEMA)
    marked = rows.select("text", (F.unix_micros("at") - 1).alias("mark"), F.spark_partition_id().alias("source"))
    assert ColumnSelection.of(marked, {leaf}, ["mark"]) is None
    found = ColumnSelection.of(marked, {leaf}, ["mark", "source"])
    assert found is not None
    table = found.run(pa.Table.from_pylist(ROWS, to_arrow_schema(SCHEMA, timezone="UTC")))
    assert table.to_pydict() == {"_0": ["tea", "", None], "_1": [None] * 3, "_2": [None] * 3}


def test_rows_that_come_from_elsewhere_are_no_selection(small: Any) -> None:
    rows, leaf = placeholder(small.spark, SCHEMA)
    assert ColumnSelection.of(small.spark.range(3), {leaf}) is None
    assert ColumnSelection.of(rows.select("n"), set()) is None
