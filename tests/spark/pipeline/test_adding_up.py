"""Every record is in a result, or is counted: as late, ignored, excluded or a dead letter."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater.clock import SystemClock
from headwater.errors import InvalidError
from headwater.serve.api.status import summarize_all
from headwater.spark.operators.null_times import may_lack_time
from headwater.spark.source.decoding import EVENT_TIME_KEY
from headwater.store.pipelines.facts import FactStore
from headwater.store.views import ViewStore
from headwater.transmit.broker.embedded import Broker
from tests.spark.run_pipeline import run_once


def order(second: int, amount: str = "1") -> bytes:
    at = f"2026-01-01T{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}Z"
    return json.dumps({"product": "tea", "amount": amount, "at": at}).encode()


def price(version: int, product: str | None = "tea") -> bytes:
    return json.dumps({"product": product, "version": version}).encode()


def shop() -> hw.App:
    app = hw.App("shop")
    orders = app.topic("orders", schema="product string, amount string, at timestamp", event_time="at")
    prices = app.topic("prices", schema="product string, version int")

    @app.view(orders, key=["product", "window"])
    def sales(orders: Any) -> Any:
        numbers = orders.withColumn("amount", orders.amount.cast("double"))
        return numbers.transform(
            hw.windowed(
                what={"n": hw.count(), "total": hw.sum("amount")},
                where=hw.Tumbling("1 minute"),
                when=hw.AfterWatermark(early=hw.AfterCount(1)),
                how=hw.ACCUMULATING,
                by=["product"],
            )
        )

    @app.view(prices, key="product")
    def known(prices: Any) -> Any:
        return hw.table(prices, key="product", position="version")

    return app


def test_every_record_is_counted_once(spark: Any, broker: Broker, produce: Any, tmp_path: Path) -> None:
    servers, store = broker.bootstrap_servers, ViewStore(tmp_path / "views.db")
    first = [order(1), order(2), b"nonsense", order(7200)]
    produce(servers, "orders", first)
    produce(servers, "prices", [price(2)])
    run_once(shop(), spark, servers, tmp_path, store)
    second = [order(3), order(7201, "much"), order(7202), b"[]", order(4), order(7300)]
    produce(servers, "orders", second)
    produce(servers, "prices", [price(1), price(3), b"nonsense", price(1, None)])
    run_once(shop(), spark, servers, tmp_path, store)

    found = summarize_all(FactStore(tmp_path / "facts.db"), SystemClock())
    dropped = {
        pipeline["name"]: [pipeline[name] for name in ("lateRows", "ignoredRows", "leftOutRecords", "deadLetters")]
        for pipeline in found
    }
    assert dropped == {
        "sales": [2, 0, 1, 0],
        "known": [1, 1, 0, 0],
        "orders.deadletter": [0, 0, 0, 2],
        "prices.deadletter": [0, 0, 0, 1],
    }
    counted = sum(row["n"] for row in store.rows("sales"))
    assert counted + sum(dropped["sales"]) + sum(dropped["orders.deadletter"]) == len(first) + len(second)
    assert [row["version"] for row in store.rows("known")] == [3]


def test_rows_without_event_time_are_counted_by_plain_windows(
    spark: Any, broker: Broker, produce: Any, tmp_path: Path
) -> None:
    """Spark's own operator would leave them out. A kernel runs only where a time can be missing."""
    app = hw.App("shop")
    orders = app.topic("orders", schema="product string, at timestamp", event_time="at")
    returns = app.topic("returns", schema="product string, on string")
    plain = hw.windowed(what={"n": hw.count()}, where=hw.Tumbling("1 minute"), by=["product"])

    @app.view(orders, returns, key=["product", "window"])
    def both(orders: Any, returns: Any) -> Any:
        returned = returns.selectExpr("product", "try_cast(on as timestamp) as at")
        return orders.unionByName(returned).transform(plain)

    @app.view(orders, key=["product", "window"])
    def ordered(orders: Any) -> Any:
        return orders.unionByName(orders).transform(plain)

    servers, store = broker.bootstrap_servers, ViewStore(tmp_path / "views.db")
    produce(servers, "orders", [order(1), order(61)])
    days = ["2026-01-01 00:00:30", "yesterday", "2026-01-01 00:00:31", "unknown"]
    produce(servers, "returns", [json.dumps({"product": "tea", "on": day}).encode() for day in days])
    run_once(app, spark, servers, tmp_path, store)
    assert sorted(row["n"] for row in store.rows("both")) == [1, 3]
    assert sorted(row["n"] for row in store.rows("ordered")) == [2, 2]
    late = {one["name"]: one["lateRows"] for one in summarize_all(FactStore(tmp_path / "facts.db"), SystemClock())}
    assert (late["both"], late["ordered"]) == (2, 0)


def test_where_an_event_time_may_be_missing(spark: Any) -> None:
    marked = spark.createDataFrame([("a", 1)], "k string, s int").selectExpr("k", "timestamp_seconds(s) as at")
    marked = marked.withMetadata("at", {EVENT_TIME_KEY: True})
    other = spark.createDataFrame([("a", 1)], "k string, n int")
    assert not may_lack_time(marked.where("at > '2026-01-01'").withColumnRenamed("at", "time"))
    assert not may_lack_time(marked.union(marked))
    assert may_lack_time(marked.unionByName(other.select("k"), allowMissingColumns=True))
    for how, expected in [("inner", False), ("left", False), ("right", True), ("full", True), ("semi", False)]:
        assert may_lack_time(marked.join(other, "k", how)) is expected
    assert may_lack_time(other.join(marked, "k", "left"))


@pytest.mark.parametrize("condition", ["at IS NOT NULL", "at > '2026-01-01'", "k = 'a' AND at IS NOT NULL"])
def test_a_filter_may_exclude_rows_without_an_event_time(spark: Any, condition: str) -> None:
    marked = spark.createDataFrame([("a", 1)], "k string, s int").selectExpr("k", "timestamp_seconds(s) as at")
    marked = marked.withMetadata("at", {EVENT_TIME_KEY: True})
    rows = marked.unionByName(marked.select("k"), allowMissingColumns=True)
    assert may_lack_time(rows.where("k IS NOT NULL"))
    assert not may_lack_time(rows.where(condition))
    assert not may_lack_time(rows.where(condition).selectExpr("k", "at").where("k > 'a'"))


def test_aggregates_of_sparks_are_refused_where_rows_may_have_no_event_time(
    spark: Any, broker: Broker, produce: Any, tmp_path: Path
) -> None:
    """Spark would leave these rows out, and would not count them."""

    def run(*, leave_out: bool, store: ViewStore) -> None:
        app = hw.App("shop")
        orders = app.topic("orders", schema="product string, n int, at timestamp", event_time="at")
        returns = app.topic("returns", schema="product string, n int, on string")
        what = {"sum of squares": F.sum(F.col("n") * F.col("n"))}

        @app.view(orders, returns, key="window")
        def squares(orders: Any, returns: Any) -> Any:
            returned = returns.selectExpr("product", "n", "try_cast(on as timestamp) as at")
            both = orders.unionByName(returned)
            known = both.where(F.col("at").isNotNull()) if leave_out else both
            return known.transform(hw.windowed(what=what, where=hw.Tumbling("1 minute")))

        run_once(app, spark, broker.bootstrap_servers, tmp_path, store)

    at = "2026-01-01T00:00:30Z"
    produce(broker.bootstrap_servers, "orders", [json.dumps({"product": "tea", "n": 3, "at": at}).encode()])
    returned = [{"product": "tea", "n": 2, "on": on} for on in ("2026-01-01 00:00:31", "yesterday")]
    produce(broker.bootstrap_servers, "returns", [json.dumps(row).encode() for row in returned])
    store = ViewStore(tmp_path / "views.db")
    with pytest.raises(
        InvalidError, match=r"is a Spark Column, and a union or an outer join .*F\.col\('at'\)\.isNot"
    ):
        run(leave_out=False, store=store)
    run(leave_out=True, store=store)
    assert [row["sum of squares"] for row in store.rows("squares")] == [13]
