"""A view or a sink reads another view of the app: its changes, in the same batch."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import headwater as hw
from headwater.errors import InvalidError
from headwater.sinks.parquet import parquet_files
from headwater.spark.source import topic_reads
from headwater.store.pipelines.generations import Generations
from headwater.store.views import ViewStore
from headwater.transmit.broker.embedded import Broker
from tests.spark.pipeline.test_pipeline import letters
from tests.spark.run_pipeline import run_once

SCHEMA = "customer string, amount long, at timestamp"


def order(n: int) -> bytes:
    at = f"2026-01-01T00:{n // 60:02d}:{n % 60:02d}Z"
    return json.dumps({"customer": f"c{n * n % 7}", "amount": n % 5, "at": at}).encode()


def shop(*, step: int = 10, folder: Path | None = None) -> hw.App:
    """Return an app with a chain of three views, and a view of a view that does not retract."""
    app = hw.App("shop")
    orders = app.topic("orders", schema=SCHEMA, event_time="at")
    names = app.topic("names", schema="customer string, name string")

    @app.view(orders, key="customer")
    def totals(orders: Any) -> Any:
        return hw.aggregate(orders, what={"sum": hw.sum("amount")}, by="customer")

    @app.view(totals, key="level")
    def levels(totals: Any) -> Any:
        by_level = totals.selectExpr("customer", f"sum div {step} as level", "_change")
        return hw.aggregate(by_level, what={"customers": hw.count()}, by="level")

    @app.view(levels, key="customers")
    def sizes(levels: Any) -> Any:
        return hw.aggregate(levels, what={"levels": hw.count()}, by="customers")

    @app.view(orders, key="customer")
    def latest(orders: Any) -> Any:
        return orders.select("customer", "amount")

    @app.view(latest, key="amount")
    def amounts(latest: Any) -> Any:
        return hw.aggregate(latest, what={"customers": hw.count()}, by="amount")

    @app.view(totals, names, key="customer")
    def named(totals: Any, names: Any) -> Any:
        return hw.join(totals, hw.table(names.select("customer", "name"), key="customer"), on="customer")

    if folder is not None:
        app.sink(levels, to=hw.Parquet(folder / "levels"), key="level", name="files")(
            lambda levels: levels.select("level", "customers", "_change")
        )
    return app


def expected(orders: int, step: int = 10) -> dict[str, Any]:
    rows = [json.loads(order(n)) for n in range(orders)]
    totals: Counter[str] = Counter()
    for row in rows:
        totals[row["customer"]] += row["amount"]
    levels = Counter(total // step for total in totals.values())
    latest = {row["customer"]: row["amount"] for row in rows}
    return {
        "totals": dict(totals),
        "levels": dict(levels),
        "sizes": dict(Counter(levels.values())),
        "amounts": dict(Counter(latest.values())),
        "named": {"c1": (totals["c1"], "Ann")},
    }


def found(store: ViewStore) -> dict[str, Any]:
    return {
        "totals": {r["customer"]: r["sum"] for r in store.rows("totals")},
        "levels": {r["level"]: r["customers"] for r in store.rows("levels")},
        "sizes": {r["customers"]: r["levels"] for r in store.rows("sizes")},
        "amounts": {r["amount"]: r["customers"] for r in store.rows("amounts")},
        "named": {r["customer"]: (r["sum"], r["name"]) for r in store.rows("named")},
    }


def test_chains_follow_the_views_below_over_batches_restarts_and_rebuilds(
    spark: Any, broker: Broker, produce: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_reads, "OFFSETS_PER_TRIGGER_MAX", 20)
    servers, store = broker.bootstrap_servers, ViewStore(tmp_path / "views.db")
    produce(servers, "names", [b'{"customer": "c1", "name": "Ann"}'])
    produce(servers, "orders", [*(order(n) for n in range(50)), b"broken"])
    run_once(shop(folder=tmp_path), spark, servers, tmp_path, store)
    assert found(store) == expected(50)

    produce(servers, "orders", [order(n) for n in range(50, 90)])
    run_once(shop(folder=tmp_path), spark, servers, tmp_path, store)
    assert found(store) == expected(90)
    assert len(letters(broker)) == 1  # once, although six views read the topic
    files = [pq.read_table(file) for file in parquet_files(tmp_path / "levels")]
    rows = [row for file in files for row in file.to_pylist()]
    assert {row["level"]: row["customers"] for row in rows} == expected(90)["levels"]

    # The lower one and the upper one are computed again, with another definition of `levels`.
    for view in ("totals", "levels", "sizes"):
        Generations(store).request_rebuild(view)
    changed = shop(step=5)
    run_once(changed, spark, servers, tmp_path, store)
    assert found(store) == expected(90, step=5)
    store.close()


def test_an_input_must_be_a_topic_or_a_view_that_was_declared_before() -> None:
    app = hw.App("shop")
    orders = app.topic("orders", schema=SCHEMA)

    @app.view(orders, key="customer")
    def totals(orders: Any) -> Any:
        return orders

    @app.sink(orders, to=hw.Parquet("somewhere"))
    def files(orders: Any) -> Any:
        return orders

    def later(rows: Any) -> Any:
        return rows

    for unknown in (later, files, "totals"):
        with pytest.raises(InvalidError, match=r"cannot read .* neither a topic .* its views are: totals"):
            app.view(unknown, key="customer", name="upper")  # type: ignore[arg-type]
    app.view(orders, key="customer", name="same")(totals)
    with pytest.raises(InvalidError, match="a function of several views: totals, same"):
        app.view(totals, key="customer", name="upper")
    app.view(app.view_named("same"), key="customer", name="upper")(later)
    assert app.view_named("upper").topics == (orders,)


def test_the_same_rows_are_late_in_a_view_and_in_a_sink(
    spark: Any, broker: Broker, produce: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_reads, "OFFSETS_PER_TRIGGER_MAX", 7)
    app = hw.App("shop")
    orders = app.topic("orders", schema=SCHEMA, event_time="at")

    def windows(rows: Any) -> Any:
        what, where = {"sum": hw.sum("amount")}, hw.Tumbling("10 seconds")
        return rows.transform(hw.windowed(what=what, where=where, by=["customer"], when=hw.AfterWatermark()))

    app.view(orders, key=["customer", "window"], name="view")(windows)
    app.view(orders, key=["customer", "window"], name="same")(windows)
    app.sink(orders, to=hw.Parquet(tmp_path / "files"), key=["customer", "window"], name="files")(windows)
    times = [n if n % 3 else max(0, n - 40) for n in range(100)]
    produce(broker.bootstrap_servers, "orders", [order(n) for n in times])
    store = ViewStore(tmp_path / "views.db")
    run_once(app, spark, broker.bootstrap_servers, tmp_path, store)
    late = [
        [(row.key, row.event_time, row.late_by) for row in store.late_rows(name)]
        for name in ("view", "same", "files")
    ]
    assert late[0] == late[1] == late[2]
    assert len(late[0]) > 10
    store.close()


def test_small_batches_after_a_large_one_have_all_their_rows(
    spark: Any, broker: Broker, produce: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_reads, "LOCAL_RECORDS_MAX", 30)
    monkeypatch.setattr(topic_reads, "OFFSETS_PER_TRIGGER_MAX", 40)
    servers, store = broker.bootstrap_servers, ViewStore(tmp_path / "views.db")
    produce(servers, "names", [b'{"customer": "c1", "name": "Ann"}'])
    produce(servers, "orders", [order(n) for n in range(65)])
    run_once(shop(), spark, servers, tmp_path, store)
    assert found(store) == expected(65)
    store.close()
