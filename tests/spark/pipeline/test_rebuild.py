"""A changed definition with an old checkpoint: rebuild and swap, start over, or continue from now."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.clock import SystemClock
from headwater.errors import ConflictError
from headwater.spark.pipeline.new_checkpoint import restart_from_here, restart_from_start
from headwater.spark.pipeline.pipeline import Pipeline, PipelineSettings
from headwater.store.pipelines.facts import FactStore
from headwater.store.pipelines.generations import Generations
from headwater.store.views import ViewStore
from headwater.transmit.broker.embedded import Broker
from tests.spark.run_pipeline import run_to_end

SCHEMA = "product string, amount double, at timestamp"


def order(product: str, amount: float, second: int) -> bytes:
    at = f"2026-01-01T00:{second // 60:02d}:{second % 60:02d}Z"
    return json.dumps({"product": product, "amount": amount, "at": at}).encode()


ORDERS = [order("tea", 1.0, 0), order("tea", 2.0, 70), order("cocoa", 4.0, 5)]


class Shop:
    """An app with one view, which is defined again for each run."""

    def __init__(self, spark: Any, broker: Broker, folder: Path) -> None:
        self._spark, self._servers, self.folder = spark, broker.bootstrap_servers, folder
        self.store = ViewStore(folder / "views.db")
        self.facts = FactStore(folder / "facts.db")
        self.generations = Generations(self.store)

    def pipeline(
        self, function: Callable[[Any], Any], *, once: bool = True, apart: bool = False, **topic: Any
    ) -> Pipeline:
        app = hw.App("shop")
        orders = app.topic("orders", **{"schema": SCHEMA, "event_time": "at", **topic})
        pipeline = "apart" if apart else None
        app.view(orders, key=["product", "window"], name="revenue", pipeline=pipeline)(function)
        settings = PipelineSettings(bootstrap_servers=self._servers, data=self.folder, once=once)
        return Pipeline(app, self._spark, self.store, self.facts, settings, SystemClock())

    def run(self, function: Callable[[Any], Any], **topic: Any) -> dict[tuple[str, str], float]:
        pipeline = self.pipeline(function, **topic)
        run_to_end(pipeline)
        return self.revenue()

    def partitions(self, name: str) -> int:
        """Return the number of partitions of a checkpoint's state."""
        state = self.folder / "checkpoints" / name / "state" / "0"
        return sum(1 for path in state.iterdir() if path.name.isdigit())

    def revenue(self) -> dict[tuple[str, str], float]:
        rows = self.store.rows("revenue")
        return {(r["product"], r["window"]["start"][14:19]): r["revenue"] for r in rows}


@pytest.fixture
def shop(spark: Any, broker: Broker, produce: Any, tmp_path: Path) -> Shop:
    produce(broker.bootstrap_servers, "orders", ORDERS)
    return Shop(spark, broker, tmp_path)


def windows(size: str, **more: Any) -> Callable[[Any], Any]:
    settings = {"what": {"revenue": hw.sum("amount")}, "where": hw.Tumbling(size), "by": ["product"], **more}
    return lambda orders: orders.transform(hw.windowed(**settings))


BY_MINUTE = {("tea", "00:00"): 1.0, ("tea", "01:00"): 2.0, ("cocoa", "00:00"): 4.0}
BY_HOUR = {("tea", "00:00"): 3.0, ("cocoa", "00:00"): 4.0}


def test_a_changed_window_is_refused_until_the_view_is_rebuilt(shop: Shop, produce: Any, broker: Broker) -> None:
    assert shop.run(windows("1 minute")) == BY_MINUTE
    with pytest.raises(ConflictError, match=r"where: Tumbling\('1 minute'\) -> Tumbling\('1 hour'\)") as refused:
        shop.run(windows("1 hour"))
    assert "headwater rebuild revenue" in (refused.value.hint or "")
    assert shop.revenue() == BY_MINUTE

    shop.generations.request_rebuild("revenue")
    assert shop.run(windows("1 hour")) == BY_HOUR
    assert [path.name for path in (shop.folder / "checkpoints").glob("revenue*")] == ["revenue@1"]
    produce(broker.bootstrap_servers, "orders", [order("tea", 10.0, 0)])
    assert shop.run(windows("1 hour")) == BY_HOUR | {("tea", "00:00"): 13.0}


def test_a_running_app_swaps_in_a_rebuilt_view(shop: Shop, produce: Any, broker: Broker) -> None:
    pipeline = shop.pipeline(windows("1 minute"), once=False)
    clock = SystemClock()
    try:
        pipeline.start()
        pipeline.run(until=clock.monotonic() + 5)
        requested = shop.generations.request_rebuild("revenue")
        deadline = clock.monotonic() + 120
        while shop.generations.current("revenue") != requested and clock.monotonic() < deadline:
            pipeline.run(until=clock.monotonic() + 1)
        assert shop.generations.current("revenue") == requested
        assert shop.revenue() == BY_MINUTE
        assert "revenue@1" not in shop.facts.queries()
        produce(broker.bootstrap_servers, "orders", [order("tea", 10.0, 0)])
        while shop.revenue()["tea", "00:00"] != 11.0 and clock.monotonic() < deadline:
            pipeline.run(until=clock.monotonic() + 1)
    finally:
        pipeline.stop()
    assert shop.revenue() == BY_MINUTE | {("tea", "00:00"): 11.0}


def test_a_view_with_a_kernel_restarts_from_now_or_from_the_start(
    shop: Shop, produce: Any, broker: Broker
) -> None:
    per_batch = {"when": hw.Repeatedly(hw.EveryBatch()), "how": hw.RETRACTING}
    assert shop.run(windows("1 minute", **per_batch)) == BY_MINUTE
    more = {"revenue": hw.sum("amount"), "orders": hw.count()}
    with pytest.raises(ConflictError, match=r"what: 'orders' is new \(count\(\)\)"):
        shop.run(windows("1 minute", **per_batch, what=more))
    with pytest.raises(ConflictError, match="how: retracting -> discarding"):
        shop.run(windows("1 minute", when=per_batch["when"], how=hw.DISCARDING))

    restart_from_here(shop.store, shop.folder / "checkpoints", "revenue")
    produce(broker.bootstrap_servers, "orders", [order("tea", 10.0, 130)])
    # The rows are kept, and the new state starts empty.
    assert shop.run(windows("1 hour", **per_batch)) == BY_MINUTE | {("tea", "00:00"): 10.0}

    restart_from_start(shop.store, shop.folder / "checkpoints", "revenue")
    assert shop.run(windows("1 hour", **per_batch, what=more)) == BY_HOUR | {("tea", "00:00"): 13.0}


def test_a_compatible_change_continues_from_the_checkpoint(shop: Shop, produce: Any, broker: Broker) -> None:
    assert shop.run(windows("1 minute", lateness="1 hour")) == {("tea", "00:00"): 1.0, ("cocoa", "00:00"): 4.0}
    wider = SCHEMA + ", note string"
    produce(broker.bootstrap_servers, "orders", [order("tea", 8.0, 3), order("tea", 0.0, 3000)])
    changed = shop.run(windows("1 minute", lateness="2 hours"), schema=wider, delay="1 second")
    assert changed == BY_MINUTE | {("tea", "00:00"): 9.0}
    notes = [fact.body.get("note", "") for fact in shop.facts.latest("revenue", limit=20)]
    assert any("lateness: 1 hour -> 2 hours" in note for note in notes)
    assert any("delay: none -> 1 second" in note for note in notes)


def test_a_rebuild_uses_a_new_number_of_spark_partitions(spark: Any, shop: Shop) -> None:
    panes = windows("1 minute", when=hw.EveryBatch())
    before = spark.conf.get("spark.sql.shuffle.partitions")
    assert shop.run(panes, apart=True) == BY_MINUTE
    assert spark.conf.get("spark.sql.streaming.noDataMicroBatches.enabled") == "true"
    more = int(before) + 1
    spark.conf.set("spark.sql.shuffle.partitions", str(more))
    try:
        assert shop.run(panes, apart=True) == BY_MINUTE
        assert shop.partitions("revenue") == int(before)  # that of the checkpoint
        shop.generations.request_rebuild("revenue")
        assert shop.run(panes, apart=True) == BY_MINUTE
        assert shop.partitions("revenue@1") == more
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)
