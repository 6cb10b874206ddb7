"""Which queries run in a lane, which ones Spark has to run and why; the operators of a query in order."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater.spark.kernels.spool import Spool
from headwater.spark.lanes.steps.blueprint import Blueprint, Drawings, NotDrawableError
from headwater.spark.lanes.steps.stage_plan import LaneSession
from headwater.spark.pipeline.plan import draw_query

SCHEMA = "product string, amount double, parts array<string>, at timestamp, sent timestamp"
MINUTE = hw.Tumbling("1 minute")


@pytest.fixture(scope="module")
def session(spark: Any) -> LaneSession:
    return LaneSession(spark, small=True)


@pytest.fixture(autouse=True)
def active(spark: Any, session: LaneSession) -> Iterator[None]:
    yield
    session._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)


def draw(
    session: LaneSession, folder: Path, function: Callable[..., Any], topics: int = 1, key: str = "product"
) -> Blueprint:
    app = hw.App("shop")
    declared = [app.topic(f"t{n}", schema=SCHEMA, event_time="at") for n in range(topics)]
    app.view(*declared, key=key, name="view")(function)
    blueprint = draw_query(app.views[0], Drawings(session.spark), Spool(str(folder / "spool"))).blueprint
    assert blueprint is not None
    return blueprint


def windows(rows: Any, **more: Any) -> Any:
    return rows.transform(hw.windowed(what={"n": hw.count()}, where=MINUTE, by=["product"], **more))


def prices(rows: Any) -> Any:
    """Return a table that is no stream."""
    return rows.sparkSession.createDataFrame([("tea", 1.5)], "product string, price double")


def plus_one(frames: Any) -> Any:
    for frame in frames:
        yield frame.assign(amount=frame.amount + 1)


def twice(name: str) -> Any:
    return F.udf(lambda amount: 2 * amount, "double")(name)


def thrice(name: str) -> Any:
    def triple(amount: pd.Series) -> pd.Series:
        return 3 * amount

    return F.pandas_udf(triple, "double")(name)


DRAWABLE: dict[str, Callable[..., Any]] = {
    "as it is": lambda rows: rows,
    "filter and columns": lambda rows: rows.where("amount > 1").selectExpr("product", "amount * 2 as double"),
    "explode": lambda rows: rows.select("product", F.explode("parts").alias("part")),
    "lateral view": lambda rows: rows.select("product", F.posexplode_outer("parts")),
    "Python UDF": lambda rows: rows.select("product", twice("amount").alias("twice")),
    "pandas UDF": lambda rows: rows.select("product", thrice("amount").alias("thrice")),
    "mapInPandas": lambda rows: rows.select("product", "amount").mapInPandas(
        plus_one, "product string, amount double"
    ),
    "mapInArrow": lambda rows: rows.select("product").mapInArrow(lambda batches: batches, "product string"),
    "inner join": lambda rows: rows.join(prices(rows), "product"),
    "left join": lambda rows: rows.join(prices(rows), "product", "left"),
    "semi join": lambda rows: rows.join(prices(rows), "product", "semi"),
    "anti join": lambda rows: rows.join(prices(rows), "product", "anti"),
    "cross join": lambda rows: rows.crossJoin(prices(rows).select("price")),
    "right join with the stream on the right": lambda rows: prices(rows).join(rows, "product", "right"),
    "an aggregate of a static table": lambda rows: rows.join(
        prices(rows).groupBy("product").agg(F.max("price").alias("most")), "product"
    ),
    "a static subquery": lambda rows: rows.where(
        F.col("product").isin("tea") & (F.col("amount") > F.lit(prices(rows).agg(F.max("price")).collect()[0][0]))
    ),
    "union with itself": lambda rows: rows.select("product").unionAll(rows.select("product")),
    "hint": lambda rows: rows.join(F.broadcast(prices(rows)), "product"),
    "coalesced names": lambda rows: rows.toDF("product", "b", "c", "d", "e"),
    "windowed": windows,
    "rolling": lambda rows: hw.rolling(rows, last=3, what={"s": hw.sum("amount")}, by="product"),
    "aggregate": lambda rows: hw.aggregate(rows, what={"s": hw.sum("amount")}, by="product"),
    "correct_clocks alone": lambda rows: rows.transform(
        hw.correct_clocks(device="product", sent="sent", received="at")
    ),
}  # fmt: skip


@pytest.mark.parametrize("program", DRAWABLE)
def test_a_query_whose_steps_treat_each_row_by_itself_is_drawn(
    session: LaneSession, tmp_path: Path, program: str
) -> None:
    assert draw(session, tmp_path, DRAWABLE[program]).rows.isStreaming


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "groupBy": (lambda rows: rows.groupBy("product").count(), "it uses Spark's Aggregate"),
    "dropDuplicates": (lambda rows: rows.dropDuplicates(["product"]), "it uses Spark's Deduplicate"),
    "distinct": (lambda rows: rows.select("product").distinct(), "it uses Spark's Deduplicate"),
    "limit": (lambda rows: rows.limit(3), "it uses Spark's GlobalLimit"),
    "sort": (lambda rows: rows.orderBy("amount"), "it uses Spark's Sort"),
    "offset": (lambda rows: rows.offset(1), "it uses Spark's Offset"),
    "sample": (lambda rows: rows.sample(0.5), "it uses Spark's Sample"),
    "repartition": (lambda rows: rows.repartition(2), "it uses Spark's Repartition"),
    "intersect": (lambda rows: rows.intersect(rows), "it uses Spark's Intersect"),
    "withWatermark": (lambda rows: rows.withWatermark("at", "1 minute"), "it uses Spark's EventTimeWatermark"),
    "current_timestamp": (
        lambda rows: rows.withColumn("now", F.current_timestamp()),
        "it uses the current time of Spark's batches",
    ),
    "now in a filter": (lambda rows: rows.where("at < now()"), "it uses the current time of Spark's batches"),
    "current_date before an operator": (
        lambda rows: windows(rows.where(F.to_date("at") == F.current_date())),
        "it uses the current time of Spark's batches",
    ),
    "window function": (
        lambda rows: rows.withColumn("n", F.row_number().over(Window.partitionBy("product").orderBy("at"))),
        "it uses Spark's Window",
    ),
    "stream-stream join": (
        lambda rows: rows.select("product").join(rows.select("product", "amount"), "product"),
        "it joins streams with Spark's own join",
    ),
    "right join with a static table": (
        lambda rows: rows.join(prices(rows), "product", "right"),
        "it joins streams with Spark's own join",
    ),
    "full join with a static table": (
        lambda rows: rows.join(prices(rows), "product", "full"),
        "it joins streams with Spark's own join",
    ),
    "static left join": (
        lambda rows: prices(rows).join(rows, "product", "left"),
        "it joins streams with Spark's own join",
    ),
    "static semi join": (
        lambda rows: prices(rows).join(rows, "product", "semi"),
        "it joins streams with Spark's own join",
    ),
    "another stream": (
        lambda rows: rows.select("product").unionAll(
            rows.sparkSession.readStream.format("rate").load().selectExpr("cast(value as string) as product")
        ),
        "it uses Spark's StreamingRelationV2",
    ),
    "side input": (
        lambda rows: hw.join(
            rows, hw.SideInput(lambda: [{"product": "tea"}], schema="product string"), on="product"
        ),
        "it uses Spark's StreamingRelationV2",
    ),
    "windowed after correct_clocks": (
        lambda rows: windows(rows.transform(hw.correct_clocks(device="product", sent="sent", received="at"))),
        "as after hw.correct_clocks",
    ),
    "uuid": (lambda rows: rows.withColumn("id", F.expr("uuid()")), "random"),
    "rand": (lambda rows: rows.where(F.rand() < 0.5), "random"),
    "an interval": (lambda rows: rows.withColumn("i", F.make_interval()), "a type that Arrow does not have"),
}


@pytest.mark.parametrize("program", REFUSED)
def test_a_query_that_needs_spark_is_refused_with_the_reason(
    session: LaneSession, tmp_path: Path, program: str
) -> None:
    function, reason = REFUSED[program]
    with pytest.raises(NotDrawableError, match=reason):
        draw(session, tmp_path, function)


def test_a_topic_without_schema_and_a_union_of_two_topics_are_drawn(session: LaneSession, tmp_path: Path) -> None:
    blueprint = draw(session, tmp_path, lambda one, other: one.unionAll(other), topics=2)
    assert [topic.name for topic in blueprint.topics.values()] == ["t0", "t1"]
    app = hw.App("raw")
    raw = app.topic("raw")
    app.view(raw, key="offset", name="view")(lambda rows: rows)
    plan = draw_query(app.views[0], Drawings(session.spark), Spool(str(tmp_path / "spool")))
    assert plan.rows.columns[:6] == ["key", "value", "topic", "partition", "offset", "timestamp"]


def test_operators_have_the_level_after_those_that_they_need(session: LaneSession, tmp_path: Path) -> None:
    def chain(one: Any, other: Any) -> Any:
        counts = hw.aggregate(one, what={"n": hw.count()}, by="product")
        sums = hw.aggregate(other, what={"s": hw.sum("amount")}, by="product")
        return hw.top(hw.join(counts, sums, on="product"), 3, order="n desc", by="product")

    blueprint = draw(session, tmp_path, chain, topics=2)
    assert [(o.name, o.level) for o in blueprint.operators] == [
        ("aggregate-0", 0), ("aggregate-1", 0), ("join-2", 1), ("top-3", 2),
    ]  # fmt: skip
    assert blueprint.level == 3
    first, second, joined, ranked = blueprint.operators
    assert joined.leaves == {first.leaf, second.leaf}
    assert ranked.leaves == {joined.leaf}
    assert first.leaves | second.leaves == blueprint.topics.keys()
    assert draw(session, tmp_path, lambda rows: rows).level == 0


def held_by(blueprint: Blueprint, number: int) -> set[str]:
    names = {leaf: topic.name for leaf, topic in blueprint.topics.items()}
    names |= {operator.leaf: operator.name for operator in blueprint.operators}
    return {names[leaf] for leaf in blueprint.operators[number].held_by}


def test_the_table_of_an_as_of_join_does_not_hold_the_watermark_back(session: LaneSession, tmp_path: Path) -> None:
    for time, expected in ((hw.EVENT_TIME, {"t0"}), (hw.PROCESSING_TIME, {"t0"})):
        blueprint = draw(
            session,
            tmp_path,
            lambda one, other, time=time: hw.join(
                one, other.selectExpr("product", "amount as price", "at as since"), on="product", as_of=time
            ),
            topics=2,
        )
        assert held_by(blueprint, 0) <= expected
        assert blueprint.operators[0].leaves == blueprint.topics.keys()
    assert held_by(
        draw(
            session,
            tmp_path,
            lambda one, other: hw.join(
                one, other.selectExpr("product", "amount as price", "at as since"), on="product", within="1 hour"
            ),
            topics=2,
        ),
        0,
    ) == {"t0", "t1"}


def test_a_window_follows_its_topic_and_an_operator_follows_the_one_before(
    session: LaneSession, tmp_path: Path
) -> None:
    def twice_windowed(rows: Any) -> Any:
        first = windows(rows, when=hw.AfterWatermark())
        return hw.aggregate(first, what={"total": hw.sum("n")}, by="product")

    blueprint = draw(session, tmp_path, twice_windowed)
    assert held_by(blueprint, 0) == {"t0"}
    assert held_by(blueprint, 1) <= {"windowed-0"}

    def union_windowed(one: Any, other: Any) -> Any:
        return windows(hw.union(one, other))

    assert held_by(draw(session, tmp_path, union_windowed, topics=2), 0) == {"t0", "t1"}
