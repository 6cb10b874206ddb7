"""The steps of a query over the rows of a batch give what Spark gives for the same rows."""

import datetime
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headwater.spark.lanes.steps.stage_plan import (
    LaneSession,
    SmallRows,
    StagePlan,
    numbered,
    placeholder,
    split,
    union_of,
)

SCHEMA = (
    "n int, text string, at timestamp, plain timestamp_ntz, day date, price decimal(20, 4), data binary, "
    "real double, tags array<string>, pair struct<a: int, b: array<struct<c: string>>>, counts map<string, int>, "
    "yes boolean"
)
UTC = datetime.UTC
AT = datetime.datetime(2026, 3, 29, 1, 30, 0, 123456)
ROWS: list[tuple[Any, ...]] = [
    (1, "tea", AT.replace(tzinfo=UTC), AT, AT.date(), Decimal("1.2345"), b"\0\xff", 0.5, ["a", None],
     (1, [("x",)]), {"k": 1, "l": None}, True),
    (2, "çay ☕", AT.replace(tzinfo=UTC, month=7), AT.replace(month=7), AT.date(), Decimal("-99.9"), b"",
     float("nan"), [], (None, None), {}, False),
    (3, None, None, None, None, None, None, None, None, None, None, None),
]  # fmt: skip


class Stages:
    """A session for small batches and one for large ones, in a time zone."""

    def __init__(self, spark: Any, zone: str) -> None:
        self.small, self.large = LaneSession(spark, small=True), LaneSession(spark, small=False)
        for each in (self.small, self.large):
            each.spark.conf.set("spark.sql.session.timeZone", zone)
            each.spark.conf.set("spark.sql.shuffle.partitions", "2")
        self.schema: StructType = StructType.fromDDL(SCHEMA)
        self.small.activate()

    def table(self, rows: list[tuple[Any, ...]] = ROWS) -> pa.Table:
        arrow = to_arrow_schema(self.schema, timezone="UTC")
        names = [field.name for field in arrow]
        pairs = [dict(zip(names, row, strict=True)) for row in rows]
        for row in pairs:
            if row["pair"] is not None:
                a, b = row["pair"]
                row["pair"] = {"a": a, "b": None if b is None else [{"c": c} for (c,) in b]}
        return pa.Table.from_pylist(pairs, arrow)

    def drawn(self, function: Callable[[Any], Any]) -> tuple[StagePlan, int]:
        rows, leaf = placeholder(self.small.spark, self.schema)
        return StagePlan(numbered(function(rows)), frozenset({leaf})), leaf

    def local(self, table: pa.Table) -> SmallRows:
        return SmallRows(table, self.schema.json(), self.small)

    def run(self, function: Callable[[Any], Any], table: pa.Table) -> pa.Table:
        plan, leaf = self.drawn(function)
        return plan.run(self.small, {leaf: self.local(table)})

    def run_large(self, function: Callable[[Any], Any], table: pa.Table) -> pa.Table:
        plan, leaf = self.drawn(function)
        frame = self.large.spark.createDataFrame(table, self.schema).repartition(2)
        return self.large.table(plan.frame(self.large, {leaf: frame._jdf.queryExecution().toRdd()}))

    def expected(self, function: Callable[[Any], Any], table: pa.Table) -> pa.Table:
        frame = function(self.large.spark.createDataFrame(table, self.schema))
        return numbered(frame).toArrow().cast(to_arrow_schema(numbered(frame).schema, timezone="UTC"))


@pytest.fixture(scope="module")
def stages(spark: Any) -> Iterator[Stages]:
    yield Stages(spark, "America/New_York")
    spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)


def in_order(table: pa.Table) -> list[str]:
    return sorted(repr(row) for row in table.to_pylist())


def mapped(rows: Any) -> Any:
    def shifted(frames: Any) -> Any:  # Inside of a function, so that workers need not import this module.
        for frame in frames:
            yield frame.assign(n=frame.n + 1)

    return rows.select("n", "at").mapInPandas(shifted, "n int, at timestamp")


def with_pandas_udf(rows: Any) -> Any:
    def pandas_length(text: pd.Series) -> pd.Series:
        return text.str.len()

    return rows.select("n", F.pandas_udf(pandas_length, "double")("text"))


def prices(rows: Any) -> Any:
    data = [("tea", 1.5), ("tea", 2.5), ("cocoa", 3.5)]
    return rows.sparkSession.createDataFrame(data, "text string, each double")


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "everything": lambda rows: rows,
    "nothing": lambda rows: rows.where("false"),
    "filter": lambda rows: rows.where("n > 1 or text = 'tea'"),
    "fields": lambda rows: rows.selectExpr("pair.a", "get(pair.b, 0).c", "get(tags, 0)", "counts['k']"),
    "times": lambda rows: rows.selectExpr(
        "hour(at)", "cast(at as string)", "date_trunc('day', at)", "cast(plain as timestamp)", "cast(at as date)"
    ),
    "made of others": lambda rows: rows.selectExpr(
        "struct(n, at, plain) as s", "map(coalesce(text, ''), at) as m", "array(price, null) as a", "null as n"
    ),
    "explode": lambda rows: rows.select("n", F.explode("tags")),
    "explode_outer of a map": lambda rows: rows.select("n", F.explode_outer("counts")),
    "names with dots": lambda rows: rows.select(F.col("n").alias("a.b"), F.col("text").alias("a.b"), "at"),
    "Python UDF": lambda rows: rows.select("n", F.udf(lambda text: text and text.upper(), "string")("text")),
    "UDF of times": lambda rows: rows.select("n", F.udf(lambda t: t, "timestamp")("at"), "plain"),
    "pandas UDF": with_pandas_udf,
    "mapInPandas": mapped,
    "union": lambda rows: rows.select("n", "text").unionAll(rows.selectExpr("-n", "text")),
    "inner join": lambda rows: rows.select("n", "text").join(prices(rows), "text"),
    "left join": lambda rows: rows.select("n", "text").join(prices(rows), "text", "left"),
    "semi join": lambda rows: rows.select("n", "text").join(prices(rows), "text", "semi"),
    "anti join": lambda rows: rows.select("n", "text").join(prices(rows), "text", "anti"),
    "right join": lambda rows: prices(rows).join(rows.select("n", "text"), "text", "right"),
    "join by a condition": lambda rows: rows.select("n").join(prices(rows), F.col("n") > F.col("each")),
    "join with an aggregate": lambda rows: rows.select("n", "text").join(
        prices(rows).groupBy("text").agg(F.sum("each").alias("sum")), "text"
    ),
    "join with a sorted table": lambda rows: rows.select("n", "text").join(
        prices(rows).hint("merge"), "text"
    ),
}  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_small_batch_gives_what_spark_gives(stages: Stages, program: str) -> None:
    table = stages.table()
    found, expected = stages.run(PROGRAMS[program], table), stages.expected(PROGRAMS[program], table)
    assert found.schema.remove_metadata() == expected.schema.remove_metadata()
    assert in_order(found) == in_order(expected)


@pytest.mark.parametrize("program", ["everything", "times", "Python UDF", "inner join"])
def test_a_large_batch_gives_what_spark_gives(stages: Stages, program: str) -> None:
    table = stages.table()
    found, expected = stages.run_large(PROGRAMS[program], table), stages.expected(PROGRAMS[program], table)
    assert found.schema.remove_metadata() == expected.schema.remove_metadata()
    assert in_order(found) == in_order(expected)


@pytest.mark.parametrize("program", ["everything", "explode", "Python UDF", "left join"])
def test_a_plan_runs_again_with_other_rows_and_with_none(stages: Stages, program: str) -> None:
    plan, leaf = stages.drawn(PROGRAMS[program])
    for some in (ROWS[:1], ROWS[1:], [], ROWS, []):
        table = stages.table(some)
        found = plan.run(stages.small, {leaf: stages.local(table)})
        assert in_order(found) == in_order(stages.expected(PROGRAMS[program], table))
    assert plan.run(stages.small, {leaf: None}).num_rows == 0


def test_all_rows_are_there_although_another_session_was_used_before(stages: Stages) -> None:
    """Spark's `createDataFrame` makes its session that of the thread; the other one has more tasks."""
    table = pa.concat_tables([stages.table([(n, *ROWS[0][1:])]) for n in range(10)])
    plan, leaf = stages.drawn(PROGRAMS["filter"])
    stages.large.spark.createDataFrame([(1,)], "n int").collect()
    stages.large.activate()
    assert plan.run(stages.small, {leaf: stages.local(table)}).num_rows == 10


def test_rows_keep_their_order(stages: Stages) -> None:
    table = pa.concat_tables([stages.table([(n, *ROWS[0][1:])]) for n in range(500)])
    assert stages.run(PROGRAMS["filter"], table).column("_0").to_pylist() == list(range(500))
    assert stages.run(PROGRAMS["Python UDF"], table).column("_0").to_pylist() == list(range(500))


UNIONS = [["everything", "explode", "nothing"], ["made of others", "Python UDF", "left join"]]


@pytest.mark.parametrize("programs", UNIONS)
def test_several_stages_in_one_job_give_what_each_gives_alone(stages: Stages, programs: list[str]) -> None:
    rows, leaf = placeholder(stages.small.spark, stages.schema)
    other, other_leaf = placeholder(stages.small.spark, stages.schema)
    inputs = [rows if number % 2 == 0 else other for number in range(len(programs))]
    parts = [numbered(PROGRAMS[name](given)) for name, given in zip(programs, inputs, strict=True)]
    plan = StagePlan(union_of(parts), frozenset({leaf, other_leaf}))
    for first, second in ((ROWS, ROWS[:2]), ([], ROWS), ([], [])):
        tables = stages.table(first), stages.table(second)
        found = plan.run(stages.small, {leaf: stages.local(tables[0]), other_leaf: stages.local(tables[1])})
        results = split(found, len(programs))
        for number, name in enumerate(programs):
            expected = stages.expected(PROGRAMS[name], tables[number % 2])
            assert in_order(results[number]) == in_order(expected)
            assert results[number].schema.types == expected.schema.types


def test_only_plans_without_python_joins_and_several_tasks_run_in_the_drivers_thread(stages: Stages) -> None:
    narrow = {name for name in PROGRAMS if stages.drawn(PROGRAMS[name])[0].is_narrow}
    assert narrow >= {"everything", "filter", "fields", "explode", "times", "names with dots"}
    assert not narrow & {name for name in PROGRAMS if "UDF" in name or "join" in name or name == "mapInPandas"}


def test_a_failing_function_raises_and_the_plan_stays_usable(stages: Stages) -> None:
    divided = stages.drawn(lambda rows: rows.selectExpr("assert_true(n < 3)", "n"))
    python = stages.drawn(lambda rows: rows.select(F.udf(lambda n: 1 // (3 - n), "int")("n")))
    for plan, leaf in (divided, python):
        with pytest.raises(Exception, match=r"assert_true|not true|ZeroDivisionError|USER_RAISED"):
            plan.run(stages.small, {leaf: stages.local(stages.table())})
        assert plan.run(stages.small, {leaf: stages.local(stages.table(ROWS[:2]))}).num_rows == 2
