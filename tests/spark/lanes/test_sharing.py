"""Queries with the same operator: it is computed once for those that have the same state, and only for those."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater.spark.kernels.spool import Spool
from headwater.spark.lanes import batch_run
from headwater.spark.lanes.steps.blueprint import Drawings
from headwater.spark.pipeline.plan import draw_query
from headwater.spark.source import topic_reads
from headwater.store.pipelines.controls import Action
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.records.dead_letters import ONLY_HEADER
from tests.spark.lanes.live_pipeline import LivePipeline, wait_until

Runs = Counter[tuple[int, int]]
"""Numbers of runs by an operator's placeholder and the processing time of the batch."""


@pytest.fixture
def live(spark: Any, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LivePipeline]:
    monkeypatch.setattr(topic_reads, "OFFSETS_PER_TRIGGER_MAX", 10)
    live = LivePipeline(spark, broker.bootstrap_servers, tmp_path)
    yield live
    live.store.close()


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Return how often each operator is run in each batch from now on."""
    found: Runs = Counter()
    original = batch_run.run_operator

    def run(operator: Any, *args: Any, **options: Any) -> Any:
        found[operator.leaf, options["clock"]] += 1
        return original(operator, *args, **options)

    monkeypatch.setattr(batch_run, "run_operator", run)
    return found


def shop() -> hw.App:
    app = hw.App("shop")
    orders = app.topic("orders", schema="product string, amount long")

    def sums(orders: Any) -> Any:
        return hw.aggregate(orders, what={"sum": hw.sum("amount")}, by="product")

    app.view(orders, key="product", name="totals")(sums)
    app.view(orders, key="product", name="again")(lambda orders: sums(orders).where("sum >= 0"))
    app.view(app.view_named("totals"), key="sum", name="products")(
        lambda totals: hw.aggregate(totals, what={"products": hw.count()}, by="sum")
    )
    return app


def values(first: int, number: int) -> list[bytes]:
    return [json.dumps({"product": f"p{n % 3}", "amount": n}).encode() for n in range(first, first + number)]


def is_right(live: LivePipeline, records: int, *views: str) -> bool:
    totals: Counter[str] = Counter()
    for n in range(records):
        totals[f"p{n % 3}"] += n
    expected = {"totals": totals, "again": totals, "products": Counter(totals.values())}
    columns = {"totals": ("product", "sum"), "again": ("product", "sum"), "products": ("sum", "products")}
    found = {
        view: {row[columns[view][0]]: row[columns[view][1]] for row in live.store.rows(view)} for view in views
    }
    return all(found[view] == expected[view] for view in views)


ALL = ("totals", "again", "products")


def test_the_same_operator_is_computed_once(live: LivePipeline, produce: Any, runs: Runs) -> None:
    with live.running(shop()):
        produce(live.servers, "orders", values(0, 5))
        wait_until(lambda: is_right(live, 5, *ALL))
        assert (
            len({leaf for leaf, _ in runs}) == 2
        )  # The one of all three views, and the second one of `products`.
        assert set(runs.values()) == {1}
    runs.clear()
    with live.running(shop()):  # Also after a restart.
        produce(live.servers, "orders", values(5, 5))
        wait_until(lambda: is_right(live, 10, *ALL))
        assert set(runs.values()) == {1}


def test_a_query_with_another_state_computes_its_own(live: LivePipeline, produce: Any, runs: Runs) -> None:
    produce(live.servers, "orders", values(0, 5))
    with live.running(shop()):
        wait_until(lambda: is_right(live, 5, *ALL))
        live.ask("again", Action.PAUSE)
        for first in range(5, 25, 5):
            produce(live.servers, "orders", values(first, 5))
            wait_until(lambda first=first: is_right(live, first + 5, "totals", "products"))  # type: ignore[misc]
        live.ask("again", Action.RESUME)  # It has got the same records in other batches.
        wait_until(lambda: is_right(live, 25, *ALL) and len(live.lanes()) == 1)
        runs.clear()
        produce(live.servers, "orders", values(25, 5))
        wait_until(lambda: is_right(live, 30, *ALL))
        assert set(runs.values()) == {1, 2}


def test_a_query_that_reads_other_records_computes_its_own(live: LivePipeline, produce: Any, runs: Runs) -> None:
    produce(live.servers, "orders", values(0, 5))
    producer = Producer({"bootstrap.servers": live.servers})
    producer.produce("orders", values(0, 6)[5], headers={ONLY_HEADER: "shop.again"})
    producer.flush()
    with live.running(shop()):
        wait_until(lambda: is_right(live, 5, "totals", "products") and is_right(live, 6, "again"))
        assert set(runs.values()) == {1, 2}


def test_a_query_that_becomes_the_same_keeps_its_state(live: LivePipeline, produce: Any) -> None:
    """A changed filter applies to new records only, so the states of two equal operators may differ."""

    def app(least: int) -> hw.App:
        app = hw.App("shop")
        orders = app.topic("orders", schema="product string, amount long")
        for name, amount in (("large", 10), ("other", least)):
            app.view(orders, key="product", name=name)(
                lambda orders, amount=amount: hw.aggregate(
                    orders.where(f"amount >= {amount}"), what={"sum": hw.sum("amount")}, by="product"
                )
            )
        return app

    def sums(view: str) -> int:
        return sum(row["sum"] for row in live.store.rows(view))

    produce(live.servers, "orders", values(5, 10))
    with live.running(app(0)):
        wait_until(lambda: sums("large") == sum(range(10, 15)) and sums("other") == sum(range(5, 15)))
    for first in (15, 20):
        produce(live.servers, "orders", values(first, 5))
        with live.running(app(10)):
            end = first + 5
            wait_until(lambda end=end: sums("other") == sum(range(5, end)))  # type: ignore[misc]
            wait_until(lambda end=end: sums("large") == sum(range(10, end)))  # type: ignore[misc]


def drawn(drawings: Drawings, folder: Path, function: Any) -> list[int]:
    app = hw.App("shop")
    app.view(app.topic("t", schema="k string, v long"), key="k", name="view")(function)
    blueprint = draw_query(app.views[0], drawings, Spool(str(folder / "spool"))).blueprint
    assert blueprint is not None
    return [operator.leaf for operator in blueprint.operators]


def test_operators_are_the_same_with_the_same_kernel_over_the_same_steps(spark: Any, tmp_path: Path) -> None:
    drawings = Drawings(spark)

    def summed(rows: Any, more: int = 1) -> Any:
        return hw.aggregate(rows.withColumn("v", F.col("v") + more), what={"s": hw.sum("v")}, by="k")

    def with_function(add: int) -> Any:
        plus = F.udf(lambda v: v + add, "long")
        return lambda rows: hw.aggregate(rows.select("k", plus("v").alias("v")), what={"s": hw.sum("v")}, by="k")

    first = drawn(drawings, tmp_path, summed)
    assert drawn(drawings, tmp_path, lambda rows: summed(rows).where("s > 1")) == first
    chain = drawn(drawings, tmp_path, lambda rows: hw.top(summed(rows), 1, order="s", by="k"))
    assert chain[0] == first[0]
    others = [
        drawn(drawings, tmp_path, lambda rows: summed(rows, 2)),
        drawn(drawings, tmp_path, lambda rows: summed(rows.where("v > 1"))),
        drawn(drawings, tmp_path, lambda rows: hw.aggregate(rows, what={"s": hw.sum("v")}, by="k")),
        drawn(drawings, tmp_path, lambda rows: hw.aggregate(rows, what={"s": hw.max("v")}, by="k")),
        drawn(drawings, tmp_path, lambda rows: hw.aggregate(rows, what={"t": hw.sum("v")}, by="k")),
        drawn(drawings, tmp_path, with_function(1)),
        drawn(drawings, tmp_path, with_function(2)),
    ]
    leaves = [leaf for each in (first, chain[1:], *others) for leaf in each]
    assert len(set(leaves)) == len(leaves) == 9
