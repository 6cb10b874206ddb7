"""`hw.windowed` on Spark streaming, from the log to the view: panes, retractions, late rows, partitions."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

import headwater as hw
from headwater.clock import SystemClock
from headwater.errors import InvalidError
from headwater.spark.pipeline.pipeline import Pipeline, PipelineSettings
from headwater.spark.pipeline.reprocess import reprocess_late
from headwater.spark.source.decoding import EVENT_TIME_KEY
from headwater.store.pipelines.facts import FactKind, FactStore
from headwater.store.views import ViewStore
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.client.client import Client
from tests.spark.run_pipeline import run_once

SCHEMA = "product string, amount double, at timestamp"


def order(product: str, amount: float, second: int) -> bytes:
    at = f"2026-01-01T00:{second // 60:02d}:{second % 60:02d}Z"
    return json.dumps({"product": product, "amount": amount, "at": at}).encode()


class Shop:
    """An app with one view; `run` processes the records that are in the log."""

    def __init__(
        self, spark: Any, broker: Broker, folder: Path, transform: Callable[[Any], Any], **topic: Any
    ) -> None:
        self._spark, self._broker, self._folder = spark, broker, folder
        self._app = hw.App("shop")
        orders = self._app.topic("orders", schema=SCHEMA, event_time="at", **topic)
        self._app.view(orders, key=["product", "window"], name="revenue")(
            lambda orders: orders.transform(transform)
        )
        self.store = ViewStore(folder / "views.db")
        self.facts = FactStore(folder / "facts.db")

    def run(self) -> dict[tuple[str, str], float]:
        run_once(self._app, self._spark, self._broker.bootstrap_servers, self._folder, self.store)
        return self.revenue()

    def reprocess(self) -> int:
        return reprocess_late(
            self._app.view_named("revenue"), self._spark, self.store, self._broker.bootstrap_servers
        )

    def revenue(self) -> dict[tuple[str, str], float]:
        rows = self.store.rows("revenue")
        return {(r["product"], r["window"]["start"][14:19]): r["revenue"] for r in rows}


def test_sessions_retract_and_late_rows_go_to_the_ledger(
    spark: Any, broker: Broker, produce: Any, tmp_path: Path
) -> None:
    sessions = hw.windowed(
        what={"revenue": hw.sum("amount")},
        where=hw.Session("10 seconds"),
        when=hw.AfterWatermark(early=hw.AfterCount(1), late=hw.AfterCount(1)),
        how=hw.RETRACTING,
        by=["product"],
        lateness="30 seconds",
    )
    shop = Shop(spark, broker, tmp_path, sessions)
    produce(broker.bootstrap_servers, "orders", [order("tea", 1.0, 0), order("tea", 2.0, 15)])
    assert shop.run() == {("tea", "00:00"): 1.0, ("tea", "00:15"): 2.0}
    # The third order merges the two sessions: both are retracted, and one is inserted.
    produce(broker.bootstrap_servers, "orders", [order("tea", 4.0, 8)])
    assert shop.run() == {("tea", "00:00"): 7.0}
    produce(broker.bootstrap_servers, "orders", [order("cocoa", 1.0, 120)])
    shop.run()
    produce(broker.bootstrap_servers, "orders", [order("tea", 8.0, 3)])
    assert shop.run() == {("tea", "00:00"): 7.0, ("cocoa", "02:00"): 1.0}
    [late] = shop.store.late_rows("revenue")
    assert (late.key, late.row["amount"], late.reason) == ({"product": "tea"}, 8.0, "expired")
    facts = shop.facts.latest("revenue", kind=FactKind.OPERATORS)[-1].body["operators"]["windowed-0"]
    assert (facts["lateRows"], facts["rows"]) == (1, 1)
    assert facts["sources"]["0"]["watermark"] == facts["watermark"]
    row = shop.store.rows("revenue")[0]
    assert set(row) == {"product", "window", "revenue", "event_time", "timing", "pane", "nonspeculative_pane",
                        "is_final", "trigger"}  # fmt: skip
    assert (shop.reprocess(), shop.reprocess()) == (1, 0)
    assert shop.revenue() == {("tea", "00:00"): 15.0, ("cocoa", "02:00"): 1.0}
    assert shop.store.late_counts() == {"revenue": (1, 0)}


def test_a_lagging_partition_holds_the_watermark(spark: Any, broker: Broker, produce: Any, tmp_path: Path) -> None:
    with Client(broker.bootstrap_servers) as client:
        client.create_topic("orders", partitions=2)
    tumbling = hw.windowed(
        what={"revenue": hw.sum("amount")}, where=hw.Tumbling("1 minute"), by=["product"], when=hw.AfterWatermark()
    )
    shop = Shop(spark, broker, tmp_path, tumbling, delay="5 seconds")
    produce(broker.bootstrap_servers, "orders", [order("tea", 1.0, 10), order("tea", 2.0, 300)], partition=0)
    produce(broker.bootstrap_servers, "orders", [order("tea", 4.0, 20)], partition=1)
    assert shop.run() == {}
    # Only the second partition has new records; the watermark of the first is kept.
    produce(broker.bootstrap_servers, "orders", [order("tea", 8.0, 30), order("tea", 0.0, 66)], partition=1)
    assert shop.run() == {("tea", "00:00"): 13.0}


def test_a_users_function_estimates_the_watermark(
    spark: Any, broker: Broker, produce: Any, tmp_path: Path
) -> None:
    tumbling = hw.windowed(
        what={"revenue": hw.sum("amount")}, where=hw.Tumbling("1 minute"), by=["product"], when=hw.AfterWatermark()
    )
    # Event time is complete before the earliest event of the batch; later events may be out of order.
    shop = Shop(spark, broker, tmp_path, tumbling, watermark=lambda observed: observed.lowest)
    produce(broker.bootstrap_servers, "orders", [order("tea", 1.0, 50), order("tea", 2.0, 130)])
    assert shop.run() == {}
    produce(broker.bootstrap_servers, "orders", [order("tea", 4.0, 140), order("tea", 8.0, 70)])
    assert shop.run() == {("tea", "00:00"): 1.0}
    produce(broker.bootstrap_servers, "orders", [order("tea", 0.0, 125)])
    assert shop.run() == {("tea", "00:00"): 1.0, ("tea", "01:00"): 8.0}


def test_changes_are_windowed_again(spark: Any, broker: Broker, produce: Any, tmp_path: Path) -> None:
    minutes = hw.windowed(
        what={"amount": hw.sum("amount")},
        where=hw.Tumbling("10 seconds"),
        when=hw.AfterWatermark(early=hw.AfterCount(1)),
        how=hw.RETRACTING,
        by=["product"],
    )
    best = hw.windowed(
        what={"revenue": hw.max("amount")},
        where=hw.Tumbling("1 minute"),
        when=hw.Repeatedly(hw.AfterCount(1)),
        how=hw.RETRACTING,
        by=["product"],
    )
    shop = Shop(spark, broker, tmp_path, lambda orders: orders.transform(minutes).transform(best))
    produce(broker.bootstrap_servers, "orders", [order("tea", 1.0, 1), order("tea", 5.0, 11)])
    assert shop.run() == {("tea", "00:00"): 5.0}
    produce(broker.bootstrap_servers, "orders", [order("tea", -3.0, 12), order("tea", 1.5, 21)])
    assert shop.run() == {("tea", "00:00"): 2.0}  # The maximum of 1, 5 - 3 and 1.5: the 5 was retracted.


def test_a_batch_gives_the_result_of_the_complete_stream(spark: Any) -> None:
    rows = spark.createDataFrame(
        [("tea", 1.0, 0), ("tea", 2.0, 15), ("tea", 4.0, 8), ("cocoa", 1.0, 120)],
        "product string, amount double, s int",
    ).selectExpr("product", "amount", "timestamp_seconds(s) as at")
    result = rows.withMetadata("at", {EVENT_TIME_KEY: True}).transform(
        hw.windowed(what={"total": hw.sum("amount")}, where=hw.Session("10 seconds"), by=["product"])
    )
    found = sorted((r["product"], r["total"], r["timing"], r["_change"]) for r in result.collect())
    assert found == [("cocoa", 1.0, "on_time", 1), ("tea", 7.0, "on_time", 1)]


def test_the_global_window_has_the_same_rows_on_every_path(spark: Any) -> None:
    """Rows without event time are counted by Spark's own operator, by the kernel, and over changes."""
    rows = spark.createDataFrame(
        [("tea", 1, 5), ("tea", 2, None), ("cocoa", 4, None)], "product string, n int, s int"
    )
    rows = rows.selectExpr("product", "n", "timestamp_seconds(s) as at").withMetadata("at", {EVENT_TIME_KEY: True})
    changes = rows.selectExpr("*", "1 as _change").withMetadata("at", {EVENT_TIME_KEY: True})
    arguments: dict[str, Any] = {"what": {"sum": hw.sum("n")}, "where": hw.Global(), "by": ["product"]}
    native, kernel = hw.windowed(**arguments), hw.windowed(**arguments, when=hw.Default())
    for result in (rows.transform(native), rows.transform(kernel), changes.transform(native)):
        assert {(r["product"], r["sum"]) for r in result.collect()} == {("tea", 3), ("cocoa", 4)}


def test_over_changes_the_default_mode_removes_empty_windows_and_splits_sessions(spark: Any) -> None:
    changes = spark.createDataFrame(
        [("tea", 0, 1), ("tea", 8, 1), ("tea", 16, 1), ("tea", 8, -1), ("cocoa", 3, 1), ("cocoa", 3, -1)],
        "product string, s int, _change int",
    ).selectExpr("product", "timestamp_seconds(s) as at", "_change")
    changes = changes.withMetadata("at", {EVENT_TIME_KEY: True})
    for where, expected in [
        (hw.Tumbling("1 minute"), [("tea", 0, 2)]),
        (hw.Session("10 seconds"), [("tea", 0, 1), ("tea", 16, 1)]),
        (hw.Sliding("10 seconds"), [("tea", -10, 1), ("tea", 6, 1)]),
    ]:
        result = changes.transform(hw.windowed(what={"n": hw.count()}, where=where, by=["product"]))
        found = [(r["product"], int(r["window"]["start"].timestamp()), r["n"]) for r in result.collect()]
        assert sorted(found) == expected
    with pytest.raises(InvalidError, match=r"with how=hw\.ACCUMULATING the panes of an hw\.Session"):
        changes.transform(
            hw.windowed(
                what={"n": hw.count()}, where=hw.Session("10 seconds"), how=hw.ACCUMULATING, by=["product"]
            )
        )


def test_event_times_are_corrected_by_the_offset_of_device_clocks(spark: Any) -> None:
    # A's clock is an hour slow, and the fastest of its rows took two seconds; B's is right.
    rows = [
        ("A", "2026-01-01 11:00:00", "2026-01-01 11:00:10", "2026-01-01 12:00:15"),
        ("A", "2026-01-01 11:01:00", "2026-01-01 11:01:10", "2026-01-01 12:01:12"),
        ("B", "2026-01-01 12:00:00", "2026-01-01 12:00:00", "2026-01-01 12:00:00"),
    ]
    names = ["at", "sent", "received"]
    events = spark.createDataFrame(rows, ["device", *names])
    events = events.withColumns({name: events[name].cast("timestamp") for name in names})
    marked = events.withMetadata("at", {"headwater.eventTime": True})
    moved = marked.transform(hw.correct_clocks(device="device", sent="sent", received="received"))
    found = {(r.device, r["at"].strftime("%H:%M:%S"), r.clock_offset) for r in moved.collect()}
    hour = 3_600_000_000
    assert found == {
        ("A", "12:00:02", hour + 2_000_000),
        ("A", "12:01:02", hour + 2_000_000),
        ("B", "12:00:00", 0),
    }
    per_minute = hw.windowed(what={"n": hw.count()}, where=hw.Tumbling("1 minute"), lateness="1 minute")
    counts = {r.window.start.strftime("%H:%M"): r.n for r in moved.transform(per_minute).collect()}
    assert counts == {"12:00": 2, "12:01": 1}
    with pytest.raises(InvalidError, match="correct_clocks: there is no column 'sender'"):
        marked.transform(hw.correct_clocks(device="device", sent="sender", received="received"))


def test_rows_that_cannot_be_windowed_are_refused(spark: Any) -> None:
    rows = spark.createDataFrame([], "product string, window_start long")
    sessions = hw.windowed(what={"n": hw.count()}, where=hw.Session("1 minute"))
    with pytest.raises(InvalidError, match="rows have a column window_start; rename it"):
        rows.transform(sessions)
    with pytest.raises(InvalidError, match="no event time among the columns product"):
        rows.select("product").transform(sessions)


def test_partitions_added_during_a_run_are_read_and_hold_the_watermark(
    spark: Any, broker: Broker, produce: Any, tmp_path: Path
) -> None:
    servers = broker.bootstrap_servers
    with Client(servers) as client:
        client.create_topic("orders", partitions=1)
    app = hw.App("shop")
    orders = app.topic("orders", schema=SCHEMA, event_time="at")
    by_minute = hw.windowed(
        what={"revenue": hw.sum("amount")}, where=hw.Tumbling("1 minute"), by=["product"], when=hw.AfterWatermark()
    )
    app.view(orders, key=["product", "window"], name="revenue")(lambda orders: orders.transform(by_minute))
    store = ViewStore(tmp_path / "views.db")
    settings = PipelineSettings(bootstrap_servers=servers, data=tmp_path)
    clock = SystemClock()
    pipeline = Pipeline(app, spark, store, FactStore(tmp_path / "facts.db"), settings, clock)

    def revenue_after(records: int) -> list[float]:
        """Return the rows of the view when all these records have been read."""
        deadline = clock.monotonic() + 300
        while pipeline.rows_read()["revenue"] < records:
            assert clock.monotonic() < deadline, f"only {pipeline.rows_read()} records were read"
            pipeline.run(until=clock.monotonic() + 0.5)
        return [row["revenue"] for row in store.rows("revenue")]

    try:
        pipeline.start()
        produce(servers, "orders", [order("tea", 1.0, 0)], partition=0)
        assert revenue_after(1) == []
        admin = AdminClient({"bootstrap.servers": servers})
        for future in admin.create_partitions([NewPartitions("orders", 2)]).values():
            future.result(30)
        produce(servers, "orders", [order("tea", 2.0, 10), order("tea", 4.0, 20)], partition=1)
        assert revenue_after(3) == []
        produce(servers, "orders", [order("tea", 100.0, 300)], partition=0)
        # The new partition is still in the first minute, and holds the watermark back.
        assert revenue_after(4) == []
        produce(servers, "orders", [order("tea", 100.0, 300)], partition=1)
        assert revenue_after(5) == [7.0]
    finally:
        pipeline.stop()


def test_the_first_row_of_each_plain_window(spark: Any) -> None:
    """Spark copies the mark of the event time to the window that it makes of it; the window is no event time."""
    rows = spark.sql(
        "select * from values ('tea', 1.0, timestamp'2026-01-01 00:00:01'), ('cocoa', 2.0, timestamp'2026-01-01 "
        "00:00:02'), ('tea', 3.0, timestamp'2026-01-01 00:01:00') as rows(product, amount, at)"
    ).withMetadata("at", {"headwater.eventTime": True})
    where = hw.Tumbling("1 minute")
    totals = rows.transform(hw.windowed(what={"total": hw.sum("amount")}, where=where, by=["product"]))
    found = hw.top(totals, 1, order="total desc", by="window").select("product", "total").collect()
    assert sorted(map(tuple, found)) == [("cocoa", 2), ("tea", 3)]
