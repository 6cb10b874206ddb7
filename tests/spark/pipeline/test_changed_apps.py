"""An app that has run is changed and run again on its checkpoints; `test_changes.py` has every kind of change."""

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark import cloudpickle
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater.clock import SystemClock
from headwater.errors import HeadwaterError, InvalidError
from headwater.spark.definition.definition import FILE
from headwater.spark.pipeline.new_checkpoint import restart_from_start
from headwater.spark.pipeline.pipeline import Pipeline, PipelineSettings
from headwater.store.pipelines.facts import FactStore
from headwater.store.views import ViewStore
from headwater.transmit.broker.embedded import Broker
from tests.spark.pipeline import changed_programs
from tests.spark.pipeline.changed_programs import Spread
from tests.spark.run_pipeline import run_to_end

# Workers cannot import modules of the tests, so what is in them is pickled by value.
cloudpickle.register_pickle_by_value(changed_programs)

SCHEMA = "product string, amount double, at timestamp"
ONLY_NEW = "continues with a change that applies to new records only: "


def order(product: str, amount: float, second: int = 0) -> bytes:
    at = f"2026-01-01T00:00:{second:02d}Z"
    return json.dumps({"product": product, "amount": amount, "at": at, "note": "n"}).encode()


class Shop:
    """An app whose program is changed between runs."""

    def __init__(self, spark: Any, broker: Broker, folder: Path) -> None:
        self._spark, self.servers, self.folder = spark, broker.bootstrap_servers, folder
        self.store = ViewStore(folder / "views.db")
        self.facts = FactStore(folder / "facts.db")

    def run(self, app: hw.App) -> list[str]:
        """Run an app to the end of the log, and return what it says about changes."""
        settings = PipelineSettings(bootstrap_servers=self.servers, data=self.folder, once=True)
        pipeline = Pipeline(app, self._spark, self.store, self.facts, settings, SystemClock())
        run_to_end(pipeline)
        return pipeline.notes

    def rows(self, view: str, column: str) -> dict[str, Any]:
        return {row["product"]: row[column] for row in self.store.rows(view)}


@pytest.fixture
def shop(spark: Any, broker: Broker, tmp_path: Path) -> Shop:
    return Shop(spark, broker, tmp_path)


def program(version: int, *, with_counts: bool = True) -> hw.App:
    """Return the app; from version 2 on, it has the changes with which queries continue."""
    is_new = version > 1
    app = hw.App("shop")
    schema = "note string, " + SCHEMA if is_new else SCHEMA
    orders = app.topic("orders", schema=schema, event_time="at", delay="1 second" if is_new else None)

    @app.view(orders, key=["product", "window"])
    def per_minute(orders: Any) -> Any:
        grouped = orders.groupBy("product", F.window("at", "1 minute").alias("window"))
        return grouped.agg(F.sum("amount").alias("total"))

    @app.view(orders, key="product")
    def totals(orders: Any) -> Any:
        chosen = orders.where("amount > 3" if is_new else "amount > 0")
        return hw.aggregate(chosen, what={"total": hw.sum("amount")}, by="product")

    @app.view(orders, key="product")
    def latest(orders: Any) -> Any:
        if is_new:
            return orders.selectExpr("at", "amount * 3 as total", "product")
        return orders.selectExpr("product", "amount * 2 as total", "at")

    @app.view(orders, key=["product", "window"])
    def spreads(orders: Any) -> Any:
        what = {"spread": Spread(10 if is_new else 1)}
        return orders.transform(
            hw.windowed(what=what, where=hw.Tumbling("1 hour"), by=["product"], when=hw.EveryBatch())
        )

    @app.view(orders, key="product", indexes=["amount"] if is_new else [], history=5 if is_new else None)
    def best(orders: Any) -> Any:
        return hw.top(orders.select("product", "amount"), 1, order="amount desc", by="product")

    if with_counts:

        @app.view(orders, key="product")
        def counts(orders: Any) -> Any:
            return orders.groupBy("product").count()

    return app


def write_as_version_1(folder: Path) -> None:
    """Write the definitions of all queries as the first version of Headwater did."""
    for path in (folder / "checkpoints").glob(f"*/{FILE}"):
        definition = json.loads(path.read_text())
        for name in ("version", "kind", "steps", "aggregates", "destination"):
            del definition[name]
        if definition["native"]:
            definition["native"] = ["Aggregate [product], [product]", "time window 2550e983"]
        for topic in definition["topics"]:
            del topic["watermark"]
        path.write_text(json.dumps(definition))


def test_an_app_continues_with_the_changes_that_its_state_permits(shop: Shop, produce: Any) -> None:
    produce(shop.servers, "orders", [order("tea", 0.5)])
    assert shop.run(program(1)) == []

    # Definitions of version 1 do not stop an app.
    write_as_version_1(shop.folder)
    produce(shop.servers, "orders", [order("tea", 0.5), order("cocoa", 4.0)])
    assert shop.run(program(1)) == []
    assert shop.rows("per_minute", "total") == {"tea": 1.0, "cocoa": 4.0}

    produce(shop.servers, "orders", [order("tea", 2.0, 10)])
    notes = shop.run(program(2, with_counts=False))
    views = ("per_minute", "totals", "latest", "spreads", "best")
    for view in views:
        assert f"view {view} {ONLY_NEW}topic orders has a new column 'note' (string)" in notes
        assert f"view {view} {ONLY_NEW}topic orders, delay: none -> 1 second" in notes
    assert [note.partition(ONLY_NEW)[2] for note in notes if "topic orders" not in note] == [
        "before operator aggregate: filter: (amount > CAST(0 AS DOUBLE)) -> (amount > CAST(3 AS DOUBLE))",
        "the function: total: (amount * CAST(2 AS DOUBLE)) -> (amount * CAST(3 AS DOUBLE))",
        "operator windowed, spread, the result of the aggregate: its code has changed",
    ]
    facts = [fact.body.get("note") for fact in shop.facts.latest("totals", limit=50)]
    assert any(note is not None and "filter: (amount > CAST(0" in note for note in facts)

    assert shop.rows("per_minute", "total") == {"tea": 3.0, "cocoa": 4.0}
    assert shop.rows("totals", "total") == {"tea": 1.0, "cocoa": 4.0}  # The new order is below the new limit.
    assert shop.rows("latest", "total") == {"tea": 6.0, "cocoa": 8.0}
    assert shop.rows("spreads", "spread") == {"tea": 15.0, "cocoa": 0.0}
    assert shop.rows("best", "amount") == {"tea": 2.0, "cocoa": 4.0}
    assert shop.rows("counts", "count") == {"tea": 2, "cocoa": 1}

    # A view that is put back has missed nothing, and the changes are reported once.
    notes = shop.run(program(2))
    assert {note.split()[1] for note in notes} == {"counts"}
    assert shop.rows("counts", "count") == {"tea": 3, "cocoa": 1}


def simple(*, view: str = "revenue", key: str = "product", other: str = "amount > 0") -> hw.App:
    app = hw.App("shop")
    orders = app.topic("orders", schema=SCHEMA, event_time="at")
    app.view(orders, key=key, name=view)(lambda o: o.groupBy("product").agg(F.sum("amount").alias("total")))
    app.view(orders, key="product", name="other")(lambda o: o.where(other))
    return app


def test_a_view_that_cannot_continue_keeps_no_other_from_it(shop: Shop, produce: Any) -> None:
    produce(shop.servers, "orders", [order("tea", 1.0)])
    shop.run(simple())
    produce(shop.servers, "orders", [order("tea", 3.0)])
    with pytest.raises(HeadwaterError, match=r"query 'revenue' failed: .*key: product -> total") as failed:
        shop.run(simple(key="total", other="amount > 1"))
    assert "headwater rebuild revenue" in str(failed.value.hint)
    assert shop.rows("other", "amount") == {"tea": 3.0}
    assert shop.rows("revenue", "total") == {"tea": 1.0}
    assert shop.run(simple(other="amount > 1")) == []
    assert shop.rows("revenue", "total") == {"tea": 4.0}


def test_a_refused_start_keeps_what_is_to_be_reported(shop: Shop, produce: Any) -> None:
    produce(shop.servers, "orders", [order("tea", 1.0)])
    shop.run(simple())
    saved = (shop.folder / "checkpoints" / "other" / FILE).read_text()
    wrong = simple(other="amount > 1")
    wrong.view(wrong.topics[0], key="product", name="wrong")(lambda o: o.select("prodcut"))
    with pytest.raises(InvalidError, match="prodcut"):
        shop.run(wrong)
    assert (shop.folder / "checkpoints" / "other" / FILE).read_text() == saved
    (note,) = shop.run(simple(other="amount > 1"))
    assert note.startswith(f"view other {ONLY_NEW}the function: filter: ")

    # A renamed view is a new one, and the old one stays as it is.
    produce(shop.servers, "orders", [order("tea", 5.0)])
    assert shop.run(simple(view="income", other="amount > 1")) == []
    assert shop.rows("income", "total") == {"tea": 6.0}
    assert shop.rows("revenue", "total") == {"tea": 1.0}


def test_a_query_continues_with_new_partitions_and_stops_at_deleted_records(shop: Shop, produce: Any) -> None:
    admin = AdminClient({"bootstrap.servers": shop.servers})
    produce(shop.servers, "orders", [order("tea", 1.0)], partition=0)
    shop.run(simple())
    # New partitions are read from their first record.
    admin.create_partitions([NewPartitions("orders", 3)])["orders"].result(30)
    produce(shop.servers, "orders", [order("tea", 2.0)], partition=2)
    assert shop.run(simple()) == []
    assert shop.rows("revenue", "total") == {"tea": 3.0}

    # Of the records at the offsets 1 and 2, which have not been read, the first is deleted.
    produce(shop.servers, "orders", [order("tea", 4.0), order("tea", 8.0)], partition=0)
    deleted = KafkaPartition("orders", 0, 2)
    admin.delete_records([deleted])[deleted].result(30)
    with pytest.raises(HeadwaterError, match="records were deleted before they were read: orders-0 from 1 to 2"):
        shop.run(simple())
    assert shop.rows("revenue", "total") == {"tea": 3.0}
    for query in ("revenue", "other", "orders.deadletter"):
        restart_from_start(shop.store, shop.folder / "checkpoints", query)
    shop.run(simple())
    assert shop.rows("revenue", "total") == {"tea": 10.0}
