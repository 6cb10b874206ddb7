"""Tables and joins on Spark: from topics to views, with restarts, rows out of order, and errors."""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater.errors import InvalidError
from headwater.store.views import ViewStore
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.client.client import Client
from tests.spark.run_pipeline import run_once


class Shop:
    """An app with one view over two topics; `run` processes the records that are in the log."""

    def __init__(self, spark: Any, broker: Broker, folder: Path, produce: Any) -> None:
        self._spark, self._broker, self._folder, self._produce = spark, broker, folder, produce
        self.app = hw.App("shop")
        self.store = ViewStore(folder / "views.db")

    def produce(self, topic: str, *values: Any) -> None:
        encoded = [None if value is None else json.dumps(value).encode() for value in values]
        self._produce(self._broker.bootstrap_servers, topic, encoded)

    def create(self, topic: str) -> None:
        with Client(self._broker.bootstrap_servers) as client:
            client.create_topic(topic)

    def run(self) -> list[dict[str, Any]]:
        run_once(self.app, self._spark, self._broker.bootstrap_servers, self._folder, self.store)
        (view,) = self.app.views
        return sorted(self.store.rows(view.name), key=str)


@pytest.fixture
def shop(spark: Any, broker: Broker, tmp_path: Path, produce: Any) -> Shop:
    return Shop(spark, broker, tmp_path, produce)


def rows_after(rows: Any) -> list[tuple[Any, ...]]:
    """Return the rows that remain after all changes."""
    kept = [name for name in rows.columns if name not in ("_change", "_watermark")]
    summed = rows.groupBy(*kept).agg(F.sum("_change").alias("_n")).where("_n != 0").collect()
    assert all(row["_n"] > 0 for row in summed)
    return sorted((tuple(row)[:-1] for row in summed for _ in range(row["_n"])), key=str)


def test_orders_with_their_customers_follow_both_topics(shop: Shop) -> None:
    customer = "struct<id: long, city: string>"
    customers = shop.app.topic(
        "customers", schema=f"op string, before {customer}, after {customer}, source struct<lsn: long>"
    )
    orders = shop.app.topic("orders", schema="order long, customer int, amount double")

    @shop.app.view(orders, customers, key="order")
    def placed(orders: Any, customers: Any) -> Any:
        known = hw.table(customers, key="id", position="source.lsn")
        return hw.join(orders.drop("timestamp"), known, on={"customer": "id"}, how="left")

    def change(op: str, lsn: int, before: Any, after: Any) -> dict[str, Any]:
        rows = [None if row is None else dict(zip(("id", "city"), row, strict=True)) for row in (before, after)]
        return {"op": op, "before": rows[0], "after": rows[1], "source": {"lsn": lsn}}

    shop.produce("orders", {"order": 1, "customer": 7, "amount": 1.5}, {"order": 2, "customer": 8, "amount": 2.5})
    shop.produce("customers", change("r", 1, None, (7, "Ulm")))
    ulm = {"order": 1, "customer": 7, "amount": 1.5, "id": 7, "city": "Ulm"}
    alone = {"order": 2, "customer": 8, "amount": 2.5, "id": None, "city": None}
    assert shop.run() == [ulm, alone]
    # The older change of 7 arrives last and has no effect; the change of a key is a deletion and a new row.
    shop.produce("customers", change("u", 5, (7, "Ulm"), (7, "Bonn")), change("c", 3, None, (9, "Kiel")))
    shop.produce("customers", change("u", 4, (7, "Ulm"), (7, "Rome")), change("u", 6, (9, "Kiel"), (8, "Kiel")))
    assert shop.run() == [{**ulm, "city": "Bonn"}, {**alone, "id": 8, "city": "Kiel"}]
    shop.produce("customers", change("d", 7, (7, None), None), change("d", 8, (99, None), None))
    shop.produce("customers", {"op": "d", "source": {"lsn": 9}})
    assert shop.run() == [{**ulm, "id": None, "city": None}, {**alone, "id": 8, "city": "Kiel"}]
    [lost] = shop.store.late_rows("placed")
    assert (lost.reason, lost.row) == ("no key", {"id": None, "city": None})


def test_a_compacted_topic_with_tombstones_is_a_table(spark: Any) -> None:
    records = [("ann", "Ulm", 0), ("bob", "Bonn", 1), ("bob", None, 3), ("ann", "Kiel", 2), ("cat", None, 4)]
    rows = spark.createDataFrame(records, "key string, value string, offset long")
    found = rows.transform(hw.table, key="key", position="offset", deleted="value is null")
    assert rows_after(found.drop("offset")) == [("ann", "Kiel")]
    assert rows_after(hw.table(found, key="key")) == [("ann", "Kiel", 2)]


def test_clicks_within_an_hour_of_their_search(shop: Shop) -> None:
    searches = shop.app.topic("searches", schema="user string, query string, at timestamp", event_time="at")
    clicks = shop.app.topic(
        "clicks",
        schema="user string, page string, clicked timestamp",
        event_time="clicked",
        watermark=lambda seen: seen.latest - timedelta(minutes=1),
    )

    @shop.app.view(searches, clicks, key=["user", "at", "page"])
    def found(searches: Any, clicks: Any) -> Any:
        return hw.join(searches, clicks, on="user", how="left", within="1 hour").drop("clicked")

    def at(minute: int) -> str:
        return f"2026-01-01T{minute // 60:02d}:{minute % 60:02d}:00Z"

    def pages() -> set[tuple[str, str | None]]:
        return {(row["query"], row["page"]) for row in shop.run()}

    def search(user: str, query: str, minute: int) -> None:
        shop.produce("searches", {"user": user, "query": query, "at": at(minute)})

    def click(user: str, page: str, minute: int) -> None:
        shop.produce("clicks", {"user": user, "page": page, "clicked": at(minute)})

    shop.create("clicks")
    search("ann", "tea", 0)
    search("bob", "mug", 1)
    search("cat", "pot", 300)
    # There are no clicks yet, so the watermark is unknown and no search is unmatched.
    assert pages() == set()
    click("ann", "/tea", 30)
    assert pages() == {("tea", "/tea")}
    # The searches are at five hours and the clicks complete up to 61 minutes: bob's search could still be matched,
    click("cat", "/pot", 62)
    assert pages() == {("tea", "/tea")}
    # and now it cannot.
    click("cat", "/pot", 63)
    assert pages() == {("tea", "/tea"), ("mug", None)}
    click("bob", "/mug", 60)
    click("cat", "/pot", 330)
    assert pages() == {("tea", "/tea"), ("mug", None), ("pot", "/pot")}
    [late] = shop.store.late_rows("found")
    assert (late.reason, late.row["right"]["page"]) == ("expired", "/mug")


def events(spark: Any, rows: list[Any], schema: str) -> Any:
    """Make rows whose column `at` or `since`, in seconds, is their event time."""
    frame = spark.createDataFrame(rows, schema)
    time = next(name for name in ("at", "since") if name in frame.columns)
    frame = frame.withColumn(time, F.timestamp_seconds(time))
    return frame.withMetadata(time, {"headwater.eventTime": True})


def test_a_stream_joins_a_table_as_of_event_time_and_as_of_now(spark: Any) -> None:
    placed = [("ann", 1, 5), ("ann", 2, 15), ("ann", 3, 30), ("bob", 4, 9)]
    orders = events(spark, placed, "user string, n int, at int")
    cities = [("ann", "Ulm", 0), ("ann", "Bonn", 10), ("ann", None, 20)]
    profiles = events(spark, cities, "user string, city string, since int")
    valid = hw.join(
        orders, profiles, on="user", how="left", as_of=hw.EVENT_TIME, lateness="1 hour", deleted="city is null"
    )
    assert rows_after(valid.select("n", "city", "_change")) == [(1, "Ulm"), (2, "Bonn"), (3, None), (4, None)]
    had_one = hw.join(orders, profiles, on="user", how="semi", as_of=hw.EVENT_TIME, deleted="city is null")
    assert rows_after(had_one.select("n", "_change")) == [(1,), (2,)]
    # The output still has an event time, and can be windowed.
    per_minute = hw.windowed(what={"n": hw.count("city")}, where=hw.Tumbling("1 minute"), when=hw.AfterWatermark())
    assert [row.n for row in valid.transform(per_minute).collect()] == [2]
    known = hw.table(profiles, key="user", position="since", deleted="city is null")
    current = hw.join(orders, known.drop("since"), on="user", how="anti", as_of=hw.PROCESSING_TIME)
    assert rows_after(current.select("n", "_change")) == [(1,), (2,), (3,), (4,)]


def test_a_stream_joins_itself_within_bounds(spark: Any) -> None:
    walked = [("ann", 1, 0), ("ann", 2, 8), ("ann", 3, 15), ("bob", 4, 1)]
    steps = events(spark, walked, "user string, n int, at int")
    then = steps.withColumnsRenamed({"n": "next", "at": "then"})
    pairs = hw.join(steps, then, on="user", how="full", within=("1 second", "10 seconds"))
    found = rows_after(pairs.select("n", "next", "_change"))
    assert found == [(1, 2), (2, 3), (3, None), (4, None), (None, 1), (None, 4)]


def test_groups_of_inserted_and_retracted_rows(spark: Any) -> None:
    sold = [
        ("ann", 5, 1, 1),
        ("ann", 9, 2, 1),
        ("ann", 7, 3, 1),
        ("bob", 4, 4, 1),
        ("ann", 9, 2, -1),
        ("bob", 4, 4, -1),
    ]
    sales = spark.createDataFrame(sold, "seller string, price long, at long, _change int")
    totals = hw.aggregate(sales, what={"n": hw.count(), "most": hw.max("price")}, by="seller")
    assert rows_after(totals) == [("ann", 2, 7)]
    assert rows_after(sales.transform(hw.top, 1, order="price desc", by="seller")) == [("ann", 7, 3)]
    assert rows_after(hw.rolling(sales, last=2, what={"mean": hw.mean("price")}, by="seller", order="at")) == [
        ("ann", 5, 1, 5.0),
        ("ann", 7, 3, 6.0),
    ]
    assert rows_after(hw.deduplicate(sales, key="seller", order="at", keep="last")) == [("ann", 7, 3)]
    first = sales.where("at < 3 and _change > 0")
    both = hw.union(first.drop("_change"), first).transform(hw.deduplicate)
    assert rows_after(both) == [("ann", 5, 1), ("ann", 9, 2)]
    best = hw.top(totals, 1, order="most desc", rank="place")
    assert rows_after(best) == [("ann", 2, 7, 1)]


def test_a_source_keeps_its_number_in_a_union(spark: Any) -> None:
    from headwater.spark.kernels.watermark_sources import SOURCES_MAX, source_number

    def input_of(number: int, partitions: int) -> Any:
        rows = spark.range(0, 8, numPartitions=partitions)
        return rows.select(source_number(number, one=False).alias("source"))

    both = input_of(0, 3).unionAll(input_of(1, 2)).distinct().collect()
    assert {row.source for row in both} == {0, 1, 2, SOURCES_MAX, SOURCES_MAX + 1}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda df: hw.table(df, key="name"), "no key column 'name'; the columns are id, city"),
        (lambda df: hw.join(df, df, on="id"), "both sides have a column city; rename it"),
        (
            lambda df: hw.rolling(df, last=3, what={"n": hw.count()}),
            "rows have no event time; name the columns",
        ),
        (
            lambda df: hw.rolling(df, last=3, what={"n": hw.count()}, order="id", lateness="1 hour"),
            "ordered by their event time first, not by 'id'",
        ),
        (
            lambda df: hw.table(df, key="id", lateness="1 hour"),
            "positions of deleted.* there is no `position`",
        ),
        (lambda df: hw.table(df, key="id", position="id", lateness="1 hour"), "`lateness` needs an event time"),
        (
            lambda df: hw.join(df, hw.SideInput("nowhere.csv", schema="id long"), on="id"),
            "nowhere.csv': the file does not exist",
        ),
        (lambda df: hw.deduplicate(df, keep="any"), "`keep` must be 'first' or 'last', not 'any'"),
        (lambda df: hw.union(df, df.drop("city")), "not all inputs have a column city"),
        (lambda df: hw.join(df, df, on="id", how="cross"), "how='cross' is unknown; use one of inner"),
        (lambda df: hw.join(df, df, on="id", within="1 hour"), "on the left side there is no event time"),
        (lambda df: hw.join(df, df, on="id", lateness="1 hour"), "`lateness` has no effect without"),
        (lambda df: hw.join(df, df, on="id", deleted="city is null"), "`deleted` is for"),
        (lambda df: hw.join(df, df, on="id", within="1 hour", as_of=hw.EVENT_TIME), "leave out one of them"),
        (
            lambda df: hw.join(df, df.selectExpr("city as id"), on="id"),
            "'id' is Int64 on the left and 'id' is String",
        ),
    ],
)
def test_a_wrong_argument_is_refused(spark: Any, make: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        make(spark.createDataFrame([], "id long, city string"))


def test_a_side_input_is_loaded_again_when_it_changes(shop: Shop, tmp_path: Path) -> None:
    places = tmp_path / "places.csv"
    places.write_text("code,place\nde,Ulm\nfr,Lyon\n")
    home = shop.app.topic("home", schema="id long, code string")
    abroad = shop.app.topic("abroad", schema="id long, code string")

    @shop.app.view(home, abroad, key="id")
    def placed(home: Any, abroad: Any) -> Any:
        rows = hw.union(home, abroad).drop("timestamp")
        return hw.join(rows, hw.SideInput(places, schema="code string, place string"), on="code", how="left")

    shop.produce("home", {"id": 1, "code": "de"}, {"id": 2, "code": "it"})
    shop.produce("abroad", {"id": 3, "code": "fr"})
    assert [row["place"] for row in shop.run()] == ["Ulm", None, "Lyon"]
    places.write_text("code,place\nde,Bonn\nit,Rome\n")
    assert [row["place"] for row in shop.run()] == ["Bonn", "Rome", None]


def test_a_union_waits_for_the_slower_of_its_topics(shop: Shop) -> None:
    schema = "user string, at timestamp"
    first, second = (shop.app.topic(name, schema=schema, event_time="at") for name in ("first", "second"))

    @shop.app.view(first, second, key=["window"])
    def hourly(first: Any, second: Any) -> Any:
        window = hw.windowed(what={"n": hw.count()}, where=hw.Tumbling("1 hour"), when=hw.AfterWatermark())
        return hw.union(first, second).transform(window)

    def say(topic: str, *hours: float) -> None:
        rows = [{"user": "ann", "at": f"2026-01-01T{int(h):02d}:{int(h % 1 * 60):02d}:00Z"} for h in hours]
        shop.produce(topic, *rows)

    shop.create("second")
    say("first", 0.5, 3.5, 9.5)
    assert shop.run() == []
    # Records of the second topic are hours older than those of the first, and not late.
    say("second", 0.6, 3.6)
    assert [row["n"] for row in shop.run()] == [2]
    say("second", 4.1)
    assert [row["n"] for row in shop.run()] == [2, 2]
    assert shop.store.late_rows("hourly") == []


def test_a_union_without_its_watermark_column_is_refused(spark: Any) -> None:
    rows = events(spark, [("ann", 1, 5)], "user string, n int, at int")
    lost = hw.union(rows, rows).select("user", "at", "_change")
    with pytest.raises(InvalidError, match=r"drops '_watermark', '_watermark_source' of hw\.union.* keep"):
        hw.deduplicate(lost, key="user")
    # Without a common event time column, the union has no event time.
    timeless = hw.union(rows, rows.withMetadata("at", {}))
    assert not any("headwater.eventTime" in field.metadata for field in timeless.schema.fields)


def test_a_rolling_window_and_a_table_with_a_lateness(spark: Any) -> None:
    walked = [("ann", 1, 0), ("ann", 2, 8), ("ann", 3, 15), ("bob", 4, 1)]
    steps = events(spark, walked, "user string, n int, at int")
    pairs = hw.rolling(steps, last=2, what={"sum": hw.sum("n")}, by="user", lateness="1 minute")
    assert rows_after(pairs.select("n", "sum", "_change")) == [(1, 1), (2, 3), (3, 5), (4, 4)]
    newest = hw.table(steps, key="user", position="at", deleted="n = 3", lateness="1 minute")
    assert rows_after(newest.select("user", "n", "_change")) == [("bob", 4)]
