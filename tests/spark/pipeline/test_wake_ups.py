"""A query that uses the processing time runs a batch when one is due, and none while nothing is."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.clock import SystemClock
from headwater.spark.pipeline.pipeline import Pipeline, PipelineSettings
from headwater.spark.source.checkpoint import begun_batch, end_offsets, last_done
from headwater.store.pipelines.facts import FactKind, FactStore
from headwater.store.views import ViewStore
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.client.client import Client
from tests.spark.run_pipeline import run_once

SCHEMA = "product string, at timestamp"
QUIET_S = 4.0


def event(product: str, second: int) -> bytes:
    at = f"2026-01-01T00:{second // 60:02d}:{second % 60:02d}Z"
    return json.dumps({"product": product, "at": at}).encode()


def shop(pipeline: str | None = None) -> hw.App:
    app = hw.App("shop")
    orders = app.topic("orders", schema=SCHEMA, event_time="at")
    clicks = app.topic("clicks", schema=SCHEMA, event_time="at", idle="3 seconds")
    minute = {"what": {"n": hw.count()}, "where": hw.Tumbling("1 minute"), "by": ["product"]}

    @app.view(orders, key=["product", "window"], pipeline=pipeline)
    def early(orders: Any) -> Any:
        when = hw.Repeatedly(hw.AfterProcessingTime("2 seconds"))
        counted = orders.transform(hw.windowed(**minute, when=when, how=hw.ACCUMULATING))
        return counted.where("n < 100").union(counted.where("n >= 100"))

    @app.view(clicks, key=["product", "window"], pipeline=pipeline)
    def quiet(clicks: Any) -> Any:
        return clicks.transform(hw.windowed(**minute, when=hw.AfterWatermark(), how=hw.ACCUMULATING))

    return app


class Run:
    """A pipeline that runs until the test has seen enough."""

    def __init__(self, spark: Any, servers: str, folder: Path, pipeline: str | None = None) -> None:
        settings = PipelineSettings(bootstrap_servers=servers, data=folder)
        self.store = ViewStore(folder / "views.db")
        self.folder = folder
        self.facts = FactStore(folder / "facts.db")
        self.pipeline = Pipeline(shop(pipeline), spark, self.store, self.facts, settings, SystemClock())

    def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> float:
        """Run until a condition holds, and return how long that took."""
        began = time.monotonic()
        while not condition():
            assert time.monotonic() < began + seconds
            self.pipeline.run(until=time.monotonic() + 0.05)
        return time.monotonic() - began

    def quiet_batches(self) -> dict[str, int]:
        """Return how many batches run while no record arrives and nothing is due."""
        # A batch reports its facts before it is done.
        self.until(lambda: all(self.batches(view) == self.reported(view) for view in ("early", "quiet")))
        before = {view: self.batches(view) for view in ("early", "quiet")}
        self.pipeline.run(until=time.monotonic() + QUIET_S)
        return {view: self.batches(view) - before[view] for view in before}

    def operator(self, view: str) -> dict[str, Any]:
        """Return the last facts of a view's operator."""
        (fact,) = self.facts.latest(view, kind=FactKind.OPERATORS)
        found: dict[str, Any] = fact.body["operators"]["windowed-0"]
        return found

    def reported(self, view: str) -> int:
        """Return the number of the last batch that has reported facts."""
        (fact,) = self.facts.latest(view, kind=FactKind.OPERATORS)
        return int(fact.body["batchId"])

    def batches(self, view: str) -> int:
        return last_done(self.folder / "checkpoints" / view)


@pytest.mark.parametrize("pipeline", [None, "apart"])
def test_batches_run_when_due_and_not_otherwise(
    spark: Any, broker: Broker, produce: Any, tmp_path: Path, pipeline: str | None
) -> None:
    servers = broker.bootstrap_servers
    with Client(servers) as client:
        client.create_topic("orders", partitions=2)
        client.create_topic("clicks", partitions=2)
    first = Run(spark, servers, tmp_path, pipeline)
    try:
        first.pipeline.start()
        # The start runs one batch, since wake-ups may have passed while the app did not run.
        first.until(lambda: first.batches("early") == first.batches("quiet") == 0)
        assert first.quiet_batches() == {"early": 0, "quiet": 0}

        produce(servers, "orders", [event("tea", 1), event("tea", 2)], partition=0)
        produce(servers, "clicks", [event("tea", 10)], partition=1)
        first.until(lambda: first.batches("quiet") == 1)
        produce(servers, "clicks", [event("tea", 130)], partition=0)
        first.until(lambda: first.store.count("early") == 1)
        # Partition 1 becomes idle, so partition 0 alone determines the watermark.
        first.until(lambda: first.store.count("quiet") == 1)
        # Then partition 0 becomes idle, too, which is reported by one more batch.
        first.until(lambda: all(mark["is_idle"] for mark in first.operator("quiet")["sources"].values()))
        assert first.batches("early") == 2  # One for the records, one for the trigger.
        assert first.quiet_batches() == {"early": 0, "quiet": 0}
        fired = first.operator("early")
        assert (fired["firedPanes"], fired["wakeUpMs"]) == (1, None)
        sources = first.facts.latest("early")[0].body["sources"]
        assert [set(source["endOffset"]) for source in sources] == [{"orders"}]
    finally:
        first.pipeline.stop()

    checkpoint = tmp_path / "checkpoints" / "early"
    assert begun_batch(checkpoint) is None
    assert sum(end_offsets(checkpoint, first.batches("early")).values()) == 2
    before = first.batches("early")
    (checkpoint / "wake_ups.json").unlink(
        missing_ok=True
    )  # It is not needed: the first batch after a start writes it again.
    run_once(shop(pipeline), spark, servers, tmp_path, first.store)
    assert first.batches("early") == before + 1
    assert [row["n"] for row in first.store.rows("early")] == [2]


def test_a_watermark_of_sparks_own_keeps_its_batches_without_data(
    spark: Any, broker: Broker, tmp_path: Path
) -> None:
    """Batches without data are also needed by what Headwater does not know of."""
    app = hw.App("shop")
    orders = app.topic("orders", schema=SCHEMA, event_time="at")

    def early(orders: Any) -> Any:
        return orders.transform(
            hw.windowed(
                what={"n": hw.count()}, where=hw.Tumbling("1 minute"), when=hw.AfterProcessingTime("1 second")
            )
        )

    def own(orders: Any) -> Any:
        return early(orders).withWatermark("event_time", "1 second").dropDuplicatesWithinWatermark(["n"])

    app.view(orders, key="n", name="early", pipeline="apart")(early)
    app.view(orders, key="n", name="own")(own)
    with Client(broker.bootstrap_servers) as client:
        client.create_topic("orders", partitions=1)
    store = ViewStore(tmp_path / "views.db")
    settings = PipelineSettings(bootstrap_servers=broker.bootstrap_servers, data=tmp_path)
    pipeline = Pipeline(app, spark, store, FactStore(tmp_path / "facts.db"), settings, SystemClock())
    pipeline._launcher.load_exclusions()
    plans = {query.name: pipeline._launcher.plan(query) for query in app.queries}
    assert {name: plan.wakes_itself for name, plan in plans.items()} == {"early": True, "own": False}
