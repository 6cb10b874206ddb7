"""Every record is in a result, or is counted: as late, ignored, excluded or a dead letter."""

import json
from pathlib import Path
from typing import Any

import headwater as hw
from headwater.clock import SystemClock
from headwater.serve.api.status import summarize_all
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
