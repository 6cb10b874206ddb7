"""An app's queries with a real log, store and Spark: exactly once, even without the checkpoint."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import headwater as hw
from headwater.clock import SystemClock
from headwater.errors import ConflictError, CorruptError, HeadwaterError, InvalidError, UnavailableError
from headwater.record import EARLIEST, LATEST, TopicPartition
from headwater.spark.pipeline.dead_letters import DeadLetterSink
from headwater.store.pipelines.facts import FactStore
from headwater.store.reader import ViewReader
from headwater.store.tables import ViewProgress
from headwater.store.views import ViewStore
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.client.client import Client
from headwater.transmit.records.batch import decode_batch
from headwater.transmit.records.batch_header import walk
from support.postgres import PostgresServer
from tests.spark.run_pipeline import run_once

SCHEMA = "product string, amount double, at timestamp"


def order(product: str, amount: float, second: int = 0) -> bytes:
    at = f"2026-01-01T00:{second // 60:02d}:{second % 60:02d}Z"
    return json.dumps({"product": product, "amount": amount, "at": at}).encode()


def shop(function: Callable[[Any], Any] | None = None, key: list[str] | None = None) -> hw.App:
    app = hw.App("shop")
    orders = app.topic("orders", schema=SCHEMA, event_time="at")

    def revenue(orders: Any) -> Any:
        return orders.transform(
            hw.windowed(what={"revenue": hw.sum("amount")}, where=hw.Tumbling("1 minute"), by=["product"])
        )

    app.view(orders, key=key or ["product", "window"], name="revenue")(function or revenue)
    return app


def run(app: hw.App, spark: Any, broker: Broker, folder: Path, address: str | None = None) -> ViewStore:
    store = ViewStore(address or folder / "views.db")
    run_once(app, spark, broker.bootstrap_servers, folder, store)
    return store


def revenue_of(store: ViewStore) -> dict[tuple[str, str], float]:
    return {(r["product"], r["window"]["start"][14:16]): r["revenue"] for r in store.rows("revenue")}


def letters(broker: Broker, topic: str = "orders.deadletter") -> list[dict[str, bytes | None]]:
    tp = TopicPartition(topic, 0)
    found = []
    with Client(broker.bootstrap_servers) as client:
        at, end = client.offsets([tp], EARLIEST)[tp], client.offsets([tp], LATEST)[tp]
        while at < end:
            data, at = client.read(tp, at)
            found += [r for place, _ in walk(data) for r in decode_batch(data, place)]
    return [{"value": r.value, **dict(r.headers)} for r in found]


def test_view_follows_the_log_over_restarts(spark: Any, broker: Broker, produce: Any, tmp_path: Path) -> None:
    produce(broker.bootstrap_servers, "orders", [order("tea", 1.5), order("tea", 2.5, 61), order("cocoa", 4.0)])
    assert revenue_of(run(shop(), spark, broker, tmp_path)) == {
        ("tea", "00"): 1.5, ("tea", "01"): 2.5, ("cocoa", "00"): 4.0,
    }  # fmt: skip
    produce(broker.bootstrap_servers, "orders", [order("tea", 10.0)])
    store = run(shop(), spark, broker, tmp_path)
    assert revenue_of(store)["tea", "00"] == 11.5
    last = store.changes("revenue", after=store.position("revenue") - 1)[0]
    assert (last.op, last.before and last.before["revenue"], last.after and last.after["revenue"]) == (
        "u",
        1.5,
        11.5,
    )


def test_lost_checkpoint_costs_time_but_no_data(spark: Any, broker: Broker, produce: Any, tmp_path: Path) -> None:
    produce(broker.bootstrap_servers, "orders", [order("tea", 1.0), order("tea", 2.0), b"broken"])
    run(shop(), spark, broker, tmp_path)
    (tmp_path / "checkpoints" / "revenue" / "metadata").unlink()
    # Spark would create a new one, and the store would take the next batch for the first of a new run.
    with pytest.raises(CorruptError, match="metadata' is missing"):
        run(shop(), spark, broker, tmp_path)
    shutil.rmtree(tmp_path / "checkpoints")
    produce(broker.bootstrap_servers, "orders", [order("tea", 4.0)])
    store = run(shop(), spark, broker, tmp_path)
    assert revenue_of(store) == {("tea", "00"): 7.0}
    assert len(letters(broker)) == 1
    assert store.counters() == {"orders.deadletter": 1}


def test_unmatched_records_go_to_the_dead_letter_topic_with_origin_and_reason(
    spark: Any, broker: Broker, produce: Any, tmp_path: Path
) -> None:
    large = [b"%d" % n + b"?" * 500_000 for n in range(3)]  # together more than one append may have
    produce(broker.bootstrap_servers, "orders", [order("tea", 1.0), b"not json", order("tea", 2.0), None, *large])
    store = run(shop(), spark, broker, tmp_path)
    assert revenue_of(store) == {("tea", "00"): 3.0}
    first, second, *rest = letters(broker)
    assert first["value"] == b"not json"
    assert (first["headwater.topic"], first["headwater.partition"], first["headwater.offset"]) == (
        b"orders",
        b"0",
        b"1",
    )
    assert b"not JSON" in (first["headwater.reason"] or b"")
    assert (second["value"], second["headwater.offset"]) == (None, b"3")
    assert [letter["value"] for letter in rest] == large
    assert store.counters() == {"orders.deadletter": 5}


def test_dead_letters_are_written_once_despite_a_crash_of_the_sink(
    spark: Any, broker: Broker, produce: Any, tmp_path: Path
) -> None:
    """The letters are in the log but the progress was not committed, as after a crash in between."""
    produce(broker.bootstrap_servers, "orders", [b"one", b"two"])
    app = shop()
    store = ViewStore(tmp_path / "views.db")
    sink = DeadLetterSink(store, app.topics[0], broker.bootstrap_servers, SystemClock())
    records = (
        spark.read.format("headwater")
        .options(**{"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "orders"})
        .load()
    )
    spark.sparkContext.setLocalProperty("sql.streaming.queryId", "run-1")
    try:
        store.commit_progress("orders.deadletter", ViewProgress(run="run-1", batch=6, note={"end": 0}))
        sink(records.where("offset < 1"), 7)
        store.commit_progress("orders.deadletter", ViewProgress(run="run-1", batch=6, note={"end": 0}))
        sink(records, 7)
        sink(records, 7)
    finally:
        spark.sparkContext.setLocalProperty("sql.streaming.queryId", None)
    assert [letter["value"] for letter in letters(broker)] == [b"one", b"two"]


def test_topic_without_schema_gives_records(spark: Any, broker: Broker, produce: Any, tmp_path: Path) -> None:
    produce(broker.bootstrap_servers, "raw", [b"a", b"b", b"a"])
    app = hw.App("raw")
    raw = app.topic("raw")

    @app.view(raw, key="text")
    def counts(raw: Any) -> Any:
        return raw.selectExpr("cast(value as string) as text").groupBy("text").count()

    store = run(app, spark, broker, tmp_path)
    assert store.rows("counts") == [{"text": "a", "count": 2}, {"text": "b", "count": 1}]


def broken_view(kind: str) -> hw.App:
    views: dict[str, Callable[[Any], Any]] = {
        "missing column": lambda orders: orders.select("product", "amont"),
        "missing column in windowed": lambda orders: orders.transform(
            hw.windowed(what={"x": hw.sum("amont")}, where=hw.Tumbling("1 minute"), by=["product"])
        ),
        "no event time": lambda orders: orders.select("product").transform(
            hw.windowed(what={"x": hw.count()}, where=hw.Tumbling("1 minute"))
        ),
        "groupBy with an operator": lambda orders: hw.top(
            orders.groupBy("product").count(), 1, order="count", by="product"
        ),
        "python error": lambda orders: orders.select(undefined),  # type: ignore[name-defined]  # noqa: F821
        "no frame": lambda orders: None,
    }
    return shop(views[kind], key=["product"])


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing column", "`amont`"),
        ("missing column in windowed", "'amont'"),
        ("no event time", "no event time among the columns product"),
        ("groupBy with an operator", r"an aggregate of its own \(groupBy, distinct\).*use hw.aggregate"),
        ("python error", r"NameError: name 'undefined' is not defined \(test_pipeline.py, line \d+\)"),
        ("no frame", "must return a streaming DataFrame"),
    ],
)
def test_a_mistake_in_a_view_is_reported_in_one_line(
    spark: Any, broker: Broker, produce: Any, tmp_path: Path, kind: str, message: str
) -> None:
    produce(broker.bootstrap_servers, "orders", [order("tea", 1.0)])
    with pytest.raises(InvalidError, match=message) as caught:
        run(broken_view(kind), spark, broker, tmp_path)
    assert "cannot build view 'revenue'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_key_that_is_not_a_column_is_named(spark: Any, broker: Broker, produce: Any, tmp_path: Path) -> None:
    produce(broker.bootstrap_servers, "orders", [order("tea", 1.0)])
    with pytest.raises(
        InvalidError, match="key column 'customer' is not in its result, which has: product, window"
    ):
        run(shop(key=["customer"]), spark, broker, tmp_path)


def test_changed_view_is_refused_before_anything_is_written(
    spark: Any, broker: Broker, produce: Any, tmp_path: Path
) -> None:
    produce(broker.bootstrap_servers, "orders", [order("tea", 1.0)])
    run(shop(), spark, broker, tmp_path)
    changed = shop(lambda orders: orders.groupBy("product").count(), key=["product"])
    with pytest.raises(ConflictError, match="cannot continue view 'revenue'"):
        run(changed, spark, broker, tmp_path)


def test_a_failing_function_is_reported_with_its_reason_if_no_row_is_the_cause(
    spark: Any, broker: Broker, produce: Any, tmp_path: Path
) -> None:
    def halves(frames):  # type: ignore[no-untyped-def]
        for frame in frames:
            if len(frame) > 1:
                raise RuntimeError(f"cannot halve {len(frame)} at a time")
            yield frame

    produce(broker.bootstrap_servers, "orders", [order("tea", 1.0), order("tea", 2.0)])
    schema = "product string, amount double"
    app = shop(lambda orders: orders.select("product", "amount").mapInPandas(halves, schema), key=["product"])
    with pytest.raises(HeadwaterError, match=r"RuntimeError: cannot halve 2 at a time.* none of them alone"):
        run(app, spark, broker, tmp_path)
    fact = FactStore(tmp_path / "facts.db").latest("revenue")[0]
    assert fact.body["state"] == "suspended"


def test_a_query_that_fails_sometimes_is_restarted_without_loss(
    spark: Any, broker: Broker, produce: Any, tmp_path: Path
) -> None:
    from pyspark.sql.functions import udf

    failures = tmp_path / "failures"

    @udf("double")
    def half(amount):  # type: ignore[no-untyped-def]
        failed = len(failures.read_text()) if failures.exists() else 0
        if failed < 2:
            failures.write_text("x" * (failed + 1))
            raise RuntimeError("this passes")
        return amount / 2

    produce(broker.bootstrap_servers, "orders", [order("tea", 1.0), order("coffee", 3.0)])
    app = shop(lambda orders: orders.select("product", half("amount").alias("half")), key=["product"])
    store = run(app, spark, broker, tmp_path)
    assert store.rows("revenue") == [{"product": "coffee", "half": 1.5}, {"product": "tea", "half": 0.5}]
    facts = [fact.body for fact in FactStore(tmp_path / "facts.db").latest("revenue", limit=100)]
    assert [fact["error"] for fact in facts if fact["state"] == "waiting"] == 2 * ["RuntimeError: this passes"]


def products() -> hw.App:
    app = hw.App("shop")
    orders = app.topic("orders", schema=SCHEMA, event_time="at")

    @app.view(orders, key="product", indexes=["amount"], search="product", history=50)
    def latest(orders: Any) -> Any:
        return orders.select("product", "amount")

    return app


def test_a_view_in_postgres_reports_which_records_it_includes(
    spark: Any, broker: Broker, produce: Any, tmp_path: Path, postgres: PostgresServer
) -> None:
    address = f"{postgres.dsn}?schema=s{uuid4().hex}"
    produce(
        broker.bootstrap_servers, "orders", [order("green tea", 1.5), order("cocoa", 4.0), order("cocoa", 5.0)]
    )
    store = run(products(), spark, broker, tmp_path, address)
    reader = ViewReader(store, "latest", SystemClock())
    row = reader.get("cocoa", at_least={"orders": {0: 2}}, timeout_s=0)
    assert row == {"product": "cocoa", "amount": 5.0}
    with pytest.raises(UnavailableError, match="the last records it has seen are orders:0:2"):
        reader.get("cocoa", at_least={"orders": {0: 3}}, timeout_s=0)
    assert [row["product"] for row in reader.search("tea").rows] == ["green tea"]
    store.close()

    # The checkpoint's batches are in PostgreSQL: a store that does not have them would have gaps.
    with pytest.raises(ConflictError, match=r"cannot continue view 'latest'.*is ahead of the store.*views\.db'"):
        run(products(), spark, broker, tmp_path)
    produce(broker.bootstrap_servers, "orders", [order("milk", 1.0)])
    store = run(products(), spark, broker, tmp_path, address)
    assert [row["product"] for row in store.rows("latest")] == ["cocoa", "green tea", "milk"]
    store.close()
