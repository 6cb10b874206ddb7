"""Sink queries with a real log, Spark and sinks."""

import json
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.clock import SystemClock
from headwater.errors import HeadwaterError
from headwater.spark.pipeline.pipeline import Pipeline, PipelineSettings
from headwater.store.pipelines.facts import FactStore
from headwater.store.views import ViewStore
from headwater.transmit.broker.embedded import Broker

PATIENCE_S = 180.0


def shop(sink: Any) -> hw.App:
    app = hw.App("shop")
    orders = app.topic("orders", schema="product string, amount double, at timestamp", event_time="at")

    @app.sink(orders, to=sink, key=["product", "window"])
    def revenue(orders: Any) -> Any:
        when = hw.Repeatedly(hw.AfterCount(1))
        where = hw.Tumbling("1 minute")
        return orders.transform(
            hw.windowed(what={"n": hw.count()}, where=where, when=when, how=hw.RETRACTING, by=["product"])
        ).select("product", "window", "n", "_change")

    return app


def orders(products: list[str]) -> list[bytes]:
    return [json.dumps({"product": p, "amount": 1.0, "at": "2026-01-01T00:00:00Z"}).encode() for p in products]


def rows_of(sink: hw.Sqlite) -> dict[str, int]:
    with closing(sqlite3.connect(sink.path)) as db:
        return dict(db.execute(f"select product, n from {sink.table}"))


class Running:
    """A pipeline that runs in a thread."""

    def __init__(self, spark: Any, broker: Broker, sink: Any, folder: Path) -> None:
        folder.mkdir()
        settings = PipelineSettings(bootstrap_servers=broker.bootstrap_servers, data=folder)
        store, facts = ViewStore(folder / "views.db"), FactStore(folder / "facts.db")
        self._pipeline = Pipeline(shop(sink), spark, store, facts, settings, SystemClock())
        self._until = time.monotonic() + PATIENCE_S
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.error: HeadwaterError | None = None
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        self._ends.set()
        self._thread.join()
        self._pipeline.stop()

    def _run(self) -> None:
        try:
            self._pipeline.start()
            while not self._ends.is_set():
                self._pipeline.run(until=0)
                self._pipeline.check()
                time.sleep(0.1)
        except HeadwaterError as error:
            self.error = error


@contextmanager
def running(*pipelines: Running) -> Iterator[None]:
    try:
        yield
    finally:
        for pipeline in pipelines:
            pipeline.stop()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


@pytest.mark.filterwarnings("default")
def test_only_one_of_two_pipelines_with_the_same_name_writes(
    spark: Any, broker: Broker, produce: Any, tmp_path: Path
) -> None:
    sink = hw.Sqlite(tmp_path / "results.db", table="revenue")
    sent = Counter(["tea", "coffee", "tea"])
    produce(broker.bootstrap_servers, "orders", orders(list(sent.elements())))
    both = [Running(spark.newSession(), broker, sink, tmp_path / name) for name in ("one", "two")]

    def one_is_suspended() -> bool:
        # A pipeline finds out when it writes; one may have written all rows before the other opened the sink.
        produce(broker.bootstrap_servers, "orders", orders(["tea"]))
        sent["tea"] += 1
        return any(pipeline.error for pipeline in both)

    with running(*both):
        wait_until(one_is_suspended, "no query is suspended")
        (loser,) = [pipeline for pipeline in both if pipeline.error]
        assert "'shop.revenue' to table 'revenue'" in str(loser.error)
        assert "another pipeline of the same name has opened it since" in str(loser.error)
        produce(broker.bootstrap_servers, "orders", orders(["tea", "cocoa"]))
        sent += Counter(["tea", "cocoa"])
        wait_until(lambda: rows_of(sink) == sent, f"{sent} expected")
        assert [pipeline.alive for pipeline in both if pipeline is not loser] == [True]
