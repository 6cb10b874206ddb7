"""Tables and joins on Spark: from topics to views, over restarts, with what is out of order and what is wrong."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater.clock import SystemClock
from headwater.errors import InvalidError
from headwater.spark.pipeline import Pipeline, PipelineSettings
from headwater.store.facts import FactStore
from headwater.store.sqlite import ViewStore
from headwater.transmit.embedded import Broker


class Shop:
    """An app with one view over two topics, run over what is in the log each time it is asked to."""

    def __init__(self, spark: Any, broker: Broker, folder: Path, produce: Any) -> None:
        self._spark, self._broker, self._folder, self._produce = spark, broker, folder, produce
        self.app = hw.App("shop")
        self.store = ViewStore(folder / "views.db")
        self._facts = FactStore(folder / "facts.db")

    def say(self, topic: str, *values: Any) -> None:
        encoded = [None if value is None else json.dumps(value).encode() for value in values]
        self._produce(self._broker.bootstrap_servers, topic, encoded)

    def run(self) -> list[dict[str, Any]]:
        settings = PipelineSettings(bootstrap_servers=self._broker.bootstrap_servers, data=self._folder, once=True)
        pipeline = Pipeline(self.app, self._spark, self.store, self._facts, settings, SystemClock())
        try:
            pipeline.start()
            pipeline.run()
        finally:
            pipeline.stop()
        (view,) = self.app.views
        return sorted(self.store.rows(view.name), key=str)


@pytest.fixture
def shop(spark: Any, broker: Broker, tmp_path: Path, produce: Any) -> Shop:
    return Shop(spark, broker, tmp_path, produce)


def added_up(rows: Any) -> list[tuple[Any, ...]]:
    """What stands when all changes are taken in."""
    kept = [name for name in rows.columns if name not in ("_change", "_watermark")]
    summed = rows.groupBy(*kept).agg(F.sum("_change").alias("n")).where("n != 0").collect()
    assert all(row.n > 0 for row in summed)
    return sorted((tuple(row)[:-1] for row in summed for _ in range(row.n)), key=str)


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

    shop.say("orders", {"order": 1, "customer": 7, "amount": 1.5}, {"order": 2, "customer": 8, "amount": 2.5})
    shop.say("customers", change("r", 1, None, (7, "Ulm")))
    ulm = {"order": 1, "customer": 7, "amount": 1.5, "id": 7, "city": "Ulm"}
    alone = {"order": 2, "customer": 8, "amount": 2.5, "id": None, "city": None}
    assert shop.run() == [ulm, alone]
    # The older change of 7 comes last and does nothing; the change of a key is a deletion and a new row.
    shop.say("customers", change("u", 5, (7, "Ulm"), (7, "Bonn")), change("c", 3, None, (9, "Kiel")))
    shop.say("customers", change("u", 4, (7, "Ulm"), (7, "Rome")), change("u", 6, (9, "Kiel"), (8, "Kiel")))
    assert shop.run() == [{**ulm, "city": "Bonn"}, {**alone, "id": 8, "city": "Kiel"}]
    shop.say("customers", change("d", 7, (7, None), None), change("d", 8, (99, None), None))
    shop.say("customers", {"op": "d", "source": {"lsn": 9}})
    assert shop.run() == [{**ulm, "id": None, "city": None}, {**alone, "id": 8, "city": "Kiel"}]
    [lost] = shop.store.late_rows("placed")
    assert (lost.reason, lost.row) == ("no key", {"id": None, "city": None})


def test_a_compacted_topic_with_tombstones_is_a_table(spark: Any) -> None:
    records = [("ann", "Ulm", 0), ("bob", "Bonn", 1), ("bob", None, 3), ("ann", "Kiel", 2), ("cat", None, 4)]
    rows = spark.createDataFrame(records, "key string, value string, offset long")
    found = rows.transform(hw.table, key="key", position="offset", deleted="value is null")
    assert added_up(found.drop("offset")) == [("ann", "Kiel")]
    assert added_up(hw.table(found, key="key")) == [("ann", "Kiel", 2)]


def test_a_source_keeps_its_number_in_a_union(spark: Any) -> None:
    from headwater.spark.inputs import SOURCES_MAX, source_number

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
        (lambda df: hw.join(df, df, on="id", how="cross"), "`how` is one of inner"),
        (
            lambda df: hw.join(df, df.selectExpr("city as id"), on="id"),
            "'id' is Int64 on the left and 'id' is String",
        ),
    ],
)
def test_what_cannot_be_is_told(spark: Any, make: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        make(spark.createDataFrame([], "id long, city string"))
