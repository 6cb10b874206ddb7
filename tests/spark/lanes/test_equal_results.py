"""An app in lanes gives what it gives with a Spark query for each view, however records are cut into batches."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater.spark.lanes.batch_run import BatchRun
from headwater.spark.source import topic_reads
from headwater.store.views import ViewStore
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.client.client import Client
from tests.spark.pipeline.test_pipeline import letters
from tests.spark.run_pipeline import run_once

ORDERS = "id long, product string, customer string, amount long, at timestamp"
PRICES = "product string, price long, since timestamp"
PRODUCTS = ["tea", "cocoa", "milk"]


def time_of(second: int) -> str:
    return f"2026-01-01T{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}Z"


def order(n: int, second: int, choice: random.Random) -> bytes:
    body = {
        "id": n,
        "product": choice.choice(PRODUCTS),
        "customer": f"c{choice.randrange(5)}",
        "amount": choice.randrange(10),
        "at": time_of(second),
    }
    return json.dumps(body).encode()


def price(product: str, n: int, second: int) -> bytes:
    return json.dumps({"product": product, "price": n, "since": time_of(second)}).encode()


def windows(rows: Any, where: Any, by: str, **more: Any) -> Any:
    what = {"n": hw.count(), "sum": hw.sum("amount"), "most": hw.max("amount")}
    return rows.transform(hw.windowed(what=what, where=where, by=[by], **more))


Views = dict[str, tuple[str, list[str], Callable[..., Any]]]
"""The inputs, the key and the function of each view."""

VIEWS: Views = {
    "plain": ("orders", ["id"], lambda o: o.where("amount > 2").selectExpr("id", "upper(product) as p", "at")),
    "exploded": (
        "orders",
        ["id", "n"],
        lambda o: o.select("id", F.explode(F.sequence(F.lit(1), F.col("amount") % 3 + 1)).alias("n")),
    ),
    "tumbling": ("orders", ["product", "window"], lambda o: windows(o, hw.Tumbling("1 minute"), "product")),
    "panes": (
        "orders",
        ["product", "window"],
        lambda o: windows(
            o,
            hw.Hopping("2 minutes", "1 minute"),
            "product",
            when=hw.AfterWatermark(early=hw.Repeatedly(hw.EveryBatch())),
            how=hw.ACCUMULATING,
            lateness="1 minute",
        ).select("product", "window", "n", "sum", "most", "_change"),
    ),
    "sessions": (
        "orders",
        ["customer", "window"],
        lambda o: windows(o, hw.Session("20 seconds"), "customer", lateness="1 minute").select(
            "customer", "window", "n", "sum", "_change"
        ),
    ),
    "totals": (
        "orders",
        ["customer"],
        lambda o: hw.aggregate(o, what={"sum": hw.sum("amount"), "kinds": hw.distinct("product")}, by="customer"),
    ),
    "best": ("orders", ["id"], lambda o: hw.top(o, 2, order=["amount desc", "id"], by="product")),
    "newest": (
        "orders",
        ["customer"],
        lambda o: hw.deduplicate(o, key="customer", keep="last", order=["at", "id"]),
    ),
    "rolled": (
        "orders",
        ["id"],
        lambda o: hw.rolling(o, last=3, what={"sum3": hw.sum("amount")}, by="product", order=["at", "id"]),
    ),
    "priced": ("prices", ["product"], lambda p: hw.table(p, key="product", position="since")),
    "joined": (
        "orders prices",
        ["customer"],
        lambda o, p: hw.join(
            hw.deduplicate(o, key="customer", keep="last", order=["at", "id"]),
            hw.table(p, key="product", position="since"),
            on="product",
            how="left",
        ),
    ),
    "as_of": (
        "orders prices",
        ["id"],
        lambda o, p: hw.join(o, p, on="product", as_of=hw.EVENT_TIME, how="left", lateness="10 minutes"),
    ),
    "all_of_it": (
        "orders prices",
        ["product"],
        lambda o, p: hw.aggregate(
            hw.union(o.select("product", "amount"), p.selectExpr("product", "price as amount")),
            what={"sum": hw.sum("amount"), "n": hw.count()},
            by="product",
        ),
    ),
    "upper": (
        "totals",
        ["sum"],
        lambda totals: hw.aggregate(totals, what={"customers": hw.count()}, by="sum"),
    ),
    "upper_with_topic": (
        "newest prices",
        ["customer"],
        lambda newest, p: hw.join(
            newest.select("customer", "product", "amount", "_change"), hw.table(p, key="product"), on="product"
        ),
    ),
}  # fmt: skip

APART = ["panes", "newest", "upper_with_topic", "as_of"]
"""Some views that are compared with Spark queries: 15 of those take minutes."""


def shop(pipeline: str | None, views: Views = VIEWS) -> hw.App:
    app = hw.App("shop")
    inputs: dict[str, Any] = {
        "orders": app.topic("orders", schema=ORDERS, event_time="at", delay="30 seconds", partitions=2),
        "prices": app.topic("prices", schema=PRICES, event_time="since", delay="30 seconds"),
    }
    for name, (given, key, function) in views.items():
        app.view(*(inputs[each] for each in given.split()), key=key, name=name, pipeline=pipeline)(function)
        inputs[name] = app.view_named(name)
    return app


class Records:
    """The records of two phases: in the second, some are hours late, and some do not match the schema."""

    def __init__(self) -> None:
        choice = random.Random(11)
        self.phases: list[dict[tuple[str, int], list[bytes]]] = []
        for phase in range(2):
            start = 7200 + 600 * phase
            found: dict[tuple[str, int], list[bytes]] = {("prices", 0): [], ("orders", 0): [], ("orders", 1): []}
            for n in range(120):
                second = start + 4 * n - choice.randrange(25)
                found["orders", n % 2].append(order(1000 * phase + n, second, choice))
                if n % 10 == 0:
                    found["prices", 0].append(price(choice.choice(PRODUCTS), n, second))
            if phase:
                found["orders", 0][5:5] = [order(5000 + n, 60 * n, choice) for n in range(4)]
                found["orders", 1][7:7] = [b"broken", b"[]", json.dumps({"id": "x"}).encode()]
            self.phases.append(found)

    def send(self, produce: Any, servers: str, phase: int) -> None:
        for (topic, partition), values in self.phases[phase].items():
            produce(servers, topic, values, partition=partition)


class Shops:
    """Runs of the app over the same records, each with its own data."""

    def __init__(self, spark: Any, produce: Any, folder: Path) -> None:
        self._spark, self._produce, self._folder = spark, produce, folder
        self._records = Records()

    def results(
        self, name: str, pipeline: str | None = None, views: Views = VIEWS, *, restart: bool = True
    ) -> dict[str, Any]:
        """Run the app over the records of both phases, and return its views, late rows and dead letters."""
        folder = self._folder / name
        folder.mkdir()
        store = ViewStore(folder / "views.db")
        with Broker() as broker:
            with Client(broker.bootstrap_servers) as client:
                client.create_topic("orders", partitions=2)
            for phase in range(2):
                self._records.send(self._produce, broker.bootstrap_servers, phase)
                if restart or phase:
                    run_once(shop(pipeline, views), self._spark, broker.bootstrap_servers, folder, store)
            found = sorted(letter["headwater.offset"] or b"" for letter in letters(broker))
        results = {view: sorted(map(repr, store.rows(view, limit=10_000))) for view in views}
        late = {
            view: sorted(repr((r.key, r.event_time, r.reason)) for r in store.late_rows(view)) for view in views
        }
        store.close()
        return {"views": results, "late": late, "letters": found}


@pytest.fixture
def shops(spark: Any, produce: Any, tmp_path: Path) -> Shops:
    return Shops(spark, produce, tmp_path)


def check_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["letters"] == other["letters"]
    for name in one["views"]:
        assert one["views"][name] == other["views"][name], name
        assert one["late"][name] == other["late"][name], name


def test_lanes_give_what_queries_apart_give_in_small_and_in_large_batches(
    shops: Shops, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes = shops.results("lanes")
    assert all(lanes["views"].values())
    assert {name for name, rows in lanes["late"].items() if rows} == {"panes", "sessions", "as_of"}
    assert len(lanes["letters"]) == 3
    with monkeypatch.context() as patched:
        patched.setattr(topic_reads, "OFFSETS_PER_TRIGGER_MAX", 25)
        check_equal(lanes, shops.results("small"))
    with monkeypatch.context() as patched:
        patched.setattr(topic_reads, "LOCAL_RECORDS_MAX", 60)
        patched.setattr(topic_reads, "OFFSETS_PER_TRIGGER_MAX", 100)
        large: list[bool] = []
        original = BatchRun.__init__

        def count(*args: Any, is_large: bool, **others: Any) -> None:
            large.append(is_large)
            original(*args, is_large=is_large, **others)

        patched.setattr(BatchRun, "__init__", count)
        check_equal(lanes, shops.results("large"))
        assert large.count(True) >= 2
    some = {name: VIEWS[name] for name in APART}
    apart = shops.results("apart", "apart", some)
    check_equal(apart, lanes)
