"""Reports of operators in an app: only windows report panes, whatever columns the rows of others have."""

import json
from pathlib import Path
from typing import Any

import headwater as hw
from headwater.store.pipelines.facts import FactKind, FactStore
from headwater.store.views import ViewStore
from headwater.transmit.broker.embedded import Broker
from tests.spark.run_pipeline import run_once


def test_operators_over_panes_and_over_a_column_named_pane(
    spark: Any, broker: Broker, produce: Any, tmp_path: Path
) -> None:
    app = hw.App("shop")
    orders = app.topic("orders", schema="product string, pane int, at timestamp", event_time="at")
    windows = hw.windowed(what={"n": hw.count()}, where=hw.Tumbling("1 minute"), how=hw.RETRACTING, by=["product"])

    @app.view(orders, key=["window", "product"])
    def best(orders: Any) -> Any:
        return hw.top(orders.transform(windows), 1, order="n desc", by="window")

    @app.view(orders, key=["product"])
    def latest(orders: Any) -> Any:
        return hw.deduplicate(orders.transform(windows), key="product", keep="last")

    @app.view(orders, key=["product"])
    def panes(orders: Any) -> Any:
        return hw.deduplicate(orders, key="product")

    times = [("tea", 1), ("tea", 2), ("cocoa", 3), ("cocoa", 61), ("tea", 200)]
    values = [
        json.dumps({"product": p, "pane": 7, "at": f"2026-01-01T00:{s // 60:02}:{s % 60:02}Z"}) for p, s in times
    ]
    produce(broker.bootstrap_servers, "orders", [value.encode() for value in values])
    store = ViewStore(tmp_path / "views.db")
    run_once(app, spark, broker.bootstrap_servers, tmp_path, store)
    assert [(row["product"], row["n"]) for row in store.rows("best")] == [("tea", 2), ("cocoa", 1)]
    assert {row["product"]: row["n"] for row in store.rows("latest")} == {"tea": 2, "cocoa": 1}
    assert [row["pane"] for row in store.rows("panes")] == [7, 7]
    facts = FactStore(tmp_path / "facts.db")
    reported = {
        f"{view} {name}": len(body["panes"])
        for view in ("best", "latest", "panes")
        for fact in facts.latest(view, limit=100, kind=FactKind.OPERATORS)
        for name, body in fact.body.get("operators", {}).items()
    }
    assert reported == {
        "best windowed-0": 3, "best top-1": 0, "latest windowed-0": 3, "latest deduplicate-1": 0,
        "panes deduplicate-0": 0,
    }  # fmt: skip
