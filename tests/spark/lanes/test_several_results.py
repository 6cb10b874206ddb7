"""A function returns several named DataFrames, each for a view or a sink."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import headwater as hw
from headwater.errors import InvalidError
from headwater.sinks.parquet import parquet_files
from headwater.store.views import ViewStore
from headwater.transmit.broker.embedded import Broker
from tests.spark.run_pipeline import run_once


def shop(folder: Path, **others: str) -> hw.App:
    app = hw.App("shop")
    orders = app.topic("orders", schema="product string, amount long")

    @app.view(orders, key="product", result="revenue")
    @app.view(orders, key="place", result="best", name="winner")
    @app.sink(orders, to=hw.Parquet(folder / "large"), result="large")
    def results(orders: Any) -> Any:
        revenue = hw.aggregate(orders, what={"revenue": hw.sum("amount")}, by="product")
        best = hw.top(revenue, 1, order="revenue desc", rank="place")
        return {"revenue": revenue, "best": best, "large": orders.where("amount > 2").select("product")}

    for name, result in others.items():
        app.view(orders, key="product", name=name, result=result or None)(results)
    return app


def test_each_result_goes_to_its_view_or_sink(spark: Any, broker: Broker, produce: Any, tmp_path: Path) -> None:
    store = ViewStore(tmp_path / "views.db")
    sales = [("tea", 3), ("coffee", 2), ("coffee", 2), ("cocoa", 1)]
    values = [json.dumps({"product": product, "amount": amount}).encode() for product, amount in sales]
    produce(broker.bootstrap_servers, "orders", values)
    app = shop(tmp_path)
    assert {query.name for query in app.queries} == {"revenue", "winner", "large"}

    @app.view(app.view_named("revenue"), key="revenue")
    def products(revenue: Any) -> Any:
        return hw.aggregate(revenue, what={"products": hw.count()}, by="revenue")

    run_once(app, spark, broker.bootstrap_servers, tmp_path, store)
    assert {row["product"]: row["revenue"] for row in store.rows("revenue")} == {"tea": 3, "coffee": 4, "cocoa": 1}
    assert [(row["product"], row["place"]) for row in store.rows("winner")] == [("coffee", 1)]
    assert {row["revenue"]: row["products"] for row in store.rows("products")} == {1: 1, 3: 1, 4: 1}
    files = parquet_files(tmp_path / "large")
    assert [row for file in files for row in pq.read_table(file).to_pylist()] == [{"product": "tea"}]
    store.close()


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("", "its function returns several results; name one of them: result=... ('revenue', 'best', 'large')"),
        ("small", "its function returns no result 'small'; it returns: 'revenue', 'best', 'large'"),
    ],
    ids=["not named", "unknown"],
)
def test_a_result_that_is_not_there_is_refused(
    spark: Any, broker: Broker, produce: Any, tmp_path: Path, result: str, message: str
) -> None:
    produce(broker.bootstrap_servers, "orders", [])
    store = ViewStore(tmp_path / "views.db")
    with pytest.raises(InvalidError) as refused:
        run_once(shop(tmp_path, other=result), spark, broker.bootstrap_servers, tmp_path, store)
    assert message in str(refused.value)
    store.close()


def test_a_function_with_one_result_has_no_names(spark: Any, broker: Broker, tmp_path: Path) -> None:
    app = hw.App("shop")
    app.view(app.topic("orders"), key="offset", name="plain", result="all")(lambda orders: orders)
    store = ViewStore(tmp_path / "views.db")
    with pytest.raises(InvalidError, match="must return a dict of DataFrames, because it has result='all'"):
        run_once(app, spark, broker.bootstrap_servers, tmp_path, store)
    store.close()


def test_a_function_of_several_views_is_no_input(tmp_path: Path) -> None:
    app = shop(tmp_path)
    function = app.view_named("revenue").function
    with pytest.raises(InvalidError, match="several views: winner, revenue; name one of them: "):
        app.view(function, key="product")
