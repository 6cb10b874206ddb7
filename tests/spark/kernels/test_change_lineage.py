"""Retractions follow a DataFrame: steps that lose them are refused, steps that treat each row alone are not."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater.errors import InvalidError
from headwater.spark.kernels.change_lineage import Changes, changes_of
from headwater.spark.source.decoding import EVENT_TIME_KEY

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "k string, v int, at timestamp"
ROWS = [("tea", 1, START), ("tea", 2, START + timedelta(seconds=10)), ("mug", 3, START)]


def events(spark: Any) -> Any:
    return spark.createDataFrame(ROWS, SCHEMA).withMetadata("at", {EVENT_TIME_KEY: True})


def rows(spark: Any) -> Any:
    return spark.createDataFrame(ROWS, SCHEMA)


def changed(spark: Any) -> Any:
    """Return changes that may retract rows, without an event time."""
    return hw.top(rows(spark), 1, order="v desc", by="k")


def static(spark: Any) -> Any:
    return spark.createDataFrame([("tea", 5)], "k string, price int")


def in_sql(spark: Any, query: str) -> Any:
    changed(spark).createOrReplaceTempView("changed")
    return spark.sql(query)


LOSSES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "select": (
        lambda s: changed(s).select("k", "v"),
        r"the step 'Project \[k, v\]' drops '_change' of hw.top.* keep '_change' in that `select`",
    ),
    "drop, then other steps": (
        lambda s: changed(s).drop("_change").where("v > 1").withColumn("w", F.lit(1)),
        "drops '_change' of hw.top",
    ),
    "rename": (
        lambda s: changed(s).withColumnRenamed("_change", "c"),
        r"the step 'Project \[k, v, at, _change AS c\]'",
    ),
    "alias": (
        lambda s: changed(s).withColumn("sign", F.col("_change")).drop("_change"),
        "drops '_change' of hw.top",
    ),
    "other case": (lambda s: changed(s).select("k", "_CHANGE"), "drops '_change' of hw.top"),
    "group": (lambda s: changed(s).groupBy("k").count(), "as inserted ones: use hw.aggregate instead"),
    "group by change": (lambda s: changed(s).groupBy("k", "_change").count(), "use hw.aggregate"),
    "sql group": (lambda s: in_sql(s, "select k, max(v) m from changed group by k"), "use hw.aggregate"),
    "distinct": (lambda s: changed(s).distinct(), "use hw.deduplicate"),
    "duplicates": (lambda s: changed(s).dropDuplicates(["k"]), "use hw.deduplicate"),
    "duplicates below": (
        lambda s: changed(s).dropDuplicates(["k"]).withColumn("_change", F.col("_change")),
        "use hw.deduplicate",
    ),
    "sql union": (lambda s: in_sql(s, "select * from changed union select * from changed"), "use hw.deduplicate"),
    "limit": (lambda s: changed(s).orderBy("v").limit(1), "use hw.top instead of limit"),
    "sample": (lambda s: changed(s).sample(0.5, seed=1), "apply it before the operator"),
    "window": (
        lambda s: changed(s).withColumn("r", F.row_number().over(Window.partitionBy("k").orderBy("v"))),
        "use hw.top or hw.rolling",
    ),
    "except": (lambda s: changed(s).exceptAll(changed(s)), "how='anti'"),
    "intersect": (lambda s: changed(s).intersect(changed(s)), "how='semi'"),
    "function": (lambda s: changed(s).mapInPandas(lambda i: i, "k string"), "return '_change' from that function"),
    "arrow": (lambda s: changed(s).mapInArrow(lambda i: i, "k string"), "return '_change' from that function"),
    "groups": (
        lambda s: changed(s).groupBy("k").applyInPandas(lambda f: f, "k string"),
        "return '_change' from that function",
    ),
    "both sides": (lambda s: changed(s).alias("a").join(changed(s).alias("b"), "k"), "use hw.join"),
    "full": (lambda s: changed(s).join(static(s), "k", "full"), "use hw.join"),
    "outer": (lambda s: static(s).join(changed(s), "k", "left"), "use hw.join"),
    "semi": (lambda s: static(s).join(changed(s), "k", "left_semi"), "use hw.join"),
    "anti": (lambda s: static(s).join(changed(s), "k", "left_anti"), "use hw.join"),
    "subquery": (
        lambda s: in_sql(s, "select 1 one where exists (select * from changed)"),
        "how='semi'",
    ),
    "cte": (lambda s: in_sql(s, "with c as (select k from changed) select k from c"), "drops '_change' of"),
    "union by position": (
        lambda s: rows(s).withColumn("x", F.lit(1)).union(changed(s).select("k", "v", "at", "_change")),
        "use unionByName or hw.union",
    ),
    "source": (
        lambda s: s.createDataFrame([("a", 1)], "k string, _change int").select("k"),
        "drops '_change' of the column '_change'",
    ),
    "made": (
        lambda s: rows(s).withColumn("_change", F.when(F.col("v") > 1, -1).otherwise(1)).drop("_change"),
        "drops '_change'",
    ),
    "union": (lambda s: hw.union(hw.union(changed(s)), changed(s)).drop("_change"), "drops '_change' of hw.union"),
    "table": (lambda s: hw.table(rows(s), key="k").select("k"), "drops '_change' of hw.table"),
    "aggregate": (
        lambda s: hw.aggregate(rows(s), what={"n": hw.count()}, by="k").select("k"),
        "drops '_change' of hw.aggregate",
    ),
    "left join": (
        lambda s: hw.join(rows(s), static(s), on="k", how="left").select("k"),
        "drops '_change' of hw.join",
    ),
    "panes": (
        lambda s: events(s)
        .transform(hw.windowed(what={"n": hw.count()}, where=hw.Tumbling("1 minute"), how=hw.RETRACTING))
        .select("n"),
        "drops '_change' of hw.windowed",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LOSSES)
def test_a_step_that_loses_changes_is_refused(spark: Any, case: str) -> None:
    make, message = LOSSES[case]
    lost = make(spark)
    with pytest.raises(InvalidError, match=message):
        changes_of(lost)
    with pytest.raises(InvalidError, match=message):
        hw.aggregate(lost.withColumn("one", F.lit(1)), what={"n": hw.sum("one")})


KEPT: dict[str, tuple[Callable[[Any], Any], Changes | None]] = {
    "select": (lambda s: changed(s).select("k", "_change").where("k > ''"), Changes("top", True)),
    "columns": (lambda s: changed(s).withColumn("w", F.explode(F.array("v"))).drop("v"), Changes("top", True)),
    "order": (lambda s: changed(s).repartition(2).sort("k").hint("broadcast"), Changes("top", True)),
    "union": (lambda s: changed(s).unionByName(changed(s)), Changes("top", True)),
    "union with rows": (
        lambda s: changed(s).unionByName(rows(s), allowMissingColumns=True),
        Changes("top", True),
    ),
    "inner": (lambda s: changed(s).join(static(s), "k"), Changes("top", True)),
    "left": (lambda s: changed(s).join(static(s), "k", "left"), Changes("top", True)),
    "right": (lambda s: static(s).join(changed(s), "k", "right"), Changes("top", True)),
    "semi": (lambda s: changed(s).join(static(s), "k", "left_semi"), Changes("top", True)),
    "cte": (lambda s: in_sql(s, "with c as (select * from changed) select * from c"), Changes("top", True)),
    "aggregate of change": (lambda s: changed(s).groupBy("k").agg(F.sum("_change").alias("n")), None),
    "only inserted": (lambda s: changed(s).where("_change > 0").groupBy("k").count(), None),
    "computed": (lambda s: changed(s).select((F.col("v") * F.col("_change")).alias("delta")), None),
    "function": (
        lambda s: changed(s).mapInArrow(lambda i: i, "k string, v int, at timestamp, _change byte"),
        Changes(None, True),
    ),
    "panes that replace": (
        lambda s: events(s)
        .transform(hw.windowed(what={"n": hw.count()}, where=hw.Tumbling("1 minute"), how=hw.ACCUMULATING))
        .select("n"),
        None,
    ),
    "panes that add up": (
        lambda s: events(s).transform(
            hw.windowed(what={"n": hw.count()}, where=hw.Tumbling("1 minute"), how=hw.DISCARDING)
        ),
        Changes("windowed", False),
    ),
    "first of equal rows": (lambda s: hw.deduplicate(rows(s)).select("k"), None),
    "inner join of rows": (lambda s: hw.join(rows(s), static(s), on="k").select("v", "price"), None),
    "inner join within": (
        lambda s: hw.join(
            events(s), events(s).select("k", F.col("at").alias("b")), on="k", within="1 hour"
        ).select("v"),
        None,
    ),
    "union of rows": (lambda s: hw.union(rows(s), rows(s)).distinct(), Changes("union", False)),
    "union of both": (lambda s: hw.union(rows(s), changed(s)), Changes("union", True)),
    "inner join of changes": (lambda s: hw.join(changed(s), static(s), on="k"), Changes("join", True)),
    "no operator": (lambda s: rows(s).select("k").distinct(), None),
}  # fmt: skip


@pytest.mark.parametrize("case", KEPT)
def test_other_steps_are_allowed(spark: Any, case: str) -> None:
    make, expected = KEPT[case]
    found = changes_of(make(spark))
    assert found == expected


def test_the_lost_columns_are_named_at_once(spark: Any) -> None:
    panes = events(spark).transform(
        hw.windowed(what={"n": hw.count()}, where=hw.Tumbling("1 minute"), how=hw.RETRACTING, by=["k"])
    )
    with pytest.raises(
        InvalidError, match=r"drops '_change', '_watermark' of hw.windowed, and without them retracted rows would"
    ):
        hw.aggregate(panes.select("k", "n", "event_time"), what={"n": hw.count()})
    with pytest.raises(
        InvalidError, match=r"'Project \[.*\]' drops '_watermark' of hw.windowed.* rows would be late"
    ):
        hw.top(panes.drop("_watermark"), 1, order="n")
    both = hw.union(events(spark), events(spark))
    with pytest.raises(InvalidError, match=r"drops '_watermark', '_watermark_source' of hw\.union"):
        hw.top(both.select("k", "at"), 1, order="k")
    # Without an event time there is no watermark to lose, and the event time may have another name.
    hw.aggregate(panes.select("k", "n", "_change"), what={"m": hw.max("n")}, by="k")
    renamed = panes.withColumnRenamed("event_time", "ended")
    again = renamed.transform(hw.windowed(what={"s": hw.sum("n")}, where=hw.Tumbling("1 hour"), how=hw.RETRACTING))
    assert [row["s"] for row in again.collect()] == [3]


def test_a_null_change_inserts_and_another_type_is_refused(spark: Any) -> None:
    some = spark.createDataFrame([("a", None), ("a", 1), ("b", 1), ("b", -1)], "k string, _change int")
    keys = spark.createDataFrame([("a",), ("b",)], "k string")
    for rows in (some, hw.union(some), hw.join(some, keys, on="k")):
        found = hw.aggregate(rows, what={"n": hw.count()}, by="k").select("k", "n")
        assert [tuple(row) for row in found.collect()] == [("a", 2)]
    timed = some.select("k", "_change", F.timestamp_micros(F.lit(0)).alias("at"))
    panes = timed.withMetadata("at", {EVENT_TIME_KEY: True}).transform(
        hw.windowed(what={"n": hw.count()}, where=hw.Tumbling("1 minute"), by=["k"], how=hw.RETRACTING)
    )
    assert [(row["k"], row["n"]) for row in panes.collect()] == [("a", 2)]
    with pytest.raises(InvalidError, match="the column '_change' is string, expected an integer"):
        hw.deduplicate(some.withColumn("_change", F.lit("1")), key="k")
