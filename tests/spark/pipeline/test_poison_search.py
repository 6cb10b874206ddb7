"""Single records are found; of a function that fails on every record, no record is excluded."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.clock import SystemClock
from headwater.errors import HeadwaterError, RefusedError
from headwater.record import Record, TopicPartition
from headwater.spark.pipeline.poison import post_letters
from headwater.spark.pipeline.poison_search import (
    FIRST_STREAK_MAX,
    PROBES,
    STREAK_MAX,
    EveryRecordFailsError,
    IsolationContext,
    Place,
    PoisonRow,
    PoisonSearch,
    nowhere,
    spread,
)
from headwater.spark.source.exclusions import Exclusions
from headwater.store.pipelines.facts import FactStore
from headwater.store.pipelines.generations import Generations
from headwater.store.views import ViewStore
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.client.client import Client
from headwater.transmit.records.batch import encode_batch
from tests.spark.run_pipeline import run_once

ORDERS, OTHERS, PRICES = (
    TopicPartition("orders", 0),
    TopicPartition("orders", 1),
    TopicPartition("prices", 0),
)


def strict(orders: Any) -> Any:
    """Fail on each record that is not a number."""
    return orders.selectExpr("cast(amount as double) as amount", "product")


def broken(orders: Any) -> Any:
    return orders.selectExpr("cast(raise_error('out of order') as double) as amount", "product")


def joined(orders: Any, prices: Any) -> Any:
    pairs = orders.selectExpr("product", "amount").join(prices.selectExpr("product", "amount as price"), "product")
    return pairs.selectExpr("product", "cast(amount as double) * cast(price as double) as amount")


def shop(function: Any, *topics: str) -> hw.App:
    app = hw.App("shop")
    declared = [app.topic(name, schema="product string, amount string") for name in topics or ("orders",)]
    app.view(*declared, key="product", name="amounts")(function)
    return app


def record(amount: str, product: str = "tea") -> bytes:
    return json.dumps({"product": product, "amount": amount}).encode()


class Search:
    """A failed batch of the view, and the search in it."""

    def __init__(self, spark: Any, servers: str, folder: Path) -> None:
        self._spark, self._servers, self._folder = spark, servers, folder
        self.take: Any = nowhere

    def append(self, partition: TopicPartition, *values: bytes) -> None:
        with Client(self._servers) as client:
            client.create_topic(partition.topic, partitions=2)
            for at, value in enumerate(values):
                client.produce(partition, encode_batch([Record(value=value, timestamp_ms=1000 + at)]))

    def exclude(self, function: Any, *places: tuple[TopicPartition, int]) -> None:
        with Client(self._servers) as client:
            rows = [PoisonRow(partition, offset, "no") for partition, offset in places]
            post_letters(client, shop(function).queries[0], rows, self.exclusions(), SystemClock())

    def exclusions(self, *topics: str) -> Exclusions:
        app = shop(strict, *topics)
        found = Exclusions(self._folder / "excluded.json", "shop.amounts", app.topics)
        with Client(self._servers) as client:
            found.catch_up(client)
        return found

    def run(self, function: Any, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[TopicPartition, int]]:
        """Search in the batch between these offsets, and return what is found."""
        checkpoint = self._folder / "checkpoint"
        for name, offsets in (("0", start), ("1", end)):
            file = checkpoint / "offsets" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("\n".join(["v1", "{}", *(json.dumps({t: at}) for t, at in offsets.items())]))
        (checkpoint / "commits").mkdir(exist_ok=True)
        (checkpoint / "commits" / "0").write_text("v1\n{}")
        context = IsolationContext(spark=self._spark, servers=self._servers, checkpoint=checkpoint, take=self.take)
        query = shop(function, *end).queries[0]
        rows = PoisonSearch(query, context, self.exclusions(*end), lambda records, found: None).run()
        return [(row.partition, row.offset) for row in rows]


@pytest.fixture
def search(spark: Any, broker: Broker, tmp_path: Path) -> Search:
    return Search(spark, broker.bootstrap_servers, tmp_path)


NONE = {"orders": {"0": 0, "1": 0}}


def test_the_records_of_a_batch_fail_all_or_singly(search: Search) -> None:
    # A record that does not match the schema does not reach the function, and proves nothing.
    search.append(ORDERS, record("x"), b"not json")
    search.append(OTHERS, record("y"), record("1"))
    assert search.run(strict, NONE, {"orders": {"0": 2, "1": 2}}) == [(ORDERS, 0), (OTHERS, 0)]
    with pytest.raises(EveryRecordFailsError, match="all 2 records of topic 'orders' in batch 1 fail") as stopped:
        search.run(strict, NONE, {"orders": {"0": 2, "1": 1}})
    assert "CAST_INVALID_INPUT" in str(stopped.value)
    assert "\n" not in str(stopped.value)


def test_a_single_record_is_found_unless_the_function_fails_on_earlier_ones(search: Search) -> None:
    search.append(ORDERS, record("1"), record("2"), record("x"))
    one = {"orders": {"0": 2, "1": 0}}, {"orders": {"0": 3, "1": 0}}
    assert search.run(strict, *one) == [(ORDERS, 2)]
    with pytest.raises(EveryRecordFailsError, match=r"out of order.*the 2 records of topic 'orders' before it"):
        search.run(broken, *one)


def test_a_streak_of_single_records_ends_the_query(search: Search) -> None:
    """Also after a restart: the records before are read from the log, and not remembered."""
    bad = [record("x") for _ in range(FIRST_STREAK_MAX)]
    search.append(ORDERS, bad[0])
    search.append(OTHERS, *bad[1:])
    search.exclude(strict, (ORDERS, 0))
    second = {"orders": {"0": 1, "1": 0}}, {"orders": {"0": 1, "1": 1}}
    assert search.run(strict, *second) == [(OTHERS, 0)]
    search.exclude(strict, (OTHERS, 0))
    third = {"orders": {"0": 1, "1": 1}}, {"orders": {"0": 1, "1": 2}}
    for _ in range(2):
        with pytest.raises(EveryRecordFailsError, match="3 records of topic 'orders' in a row failed"):
            search.run(strict, *third)


def test_the_streak_is_longer_after_a_success(search: Search) -> None:
    search.append(ORDERS, record("1"), *(record("x") for _ in range(STREAK_MAX)))
    search.exclude(strict, *((ORDERS, 1 + n) for n in range(STREAK_MAX - 2)))
    before = STREAK_MAX - 1
    assert search.run(strict, {"orders": {"0": before}}, {"orders": {"0": before + 1}}) == [(ORDERS, before)]
    search.exclude(strict, (ORDERS, before))
    with pytest.raises(EveryRecordFailsError, match=f"{STREAK_MAX} records of topic 'orders' in a row failed"):
        search.run(strict, {"orders": {"0": before + 1}}, {"orders": {"0": before + 2}})


def test_a_destination_that_refuses_every_row_ends_the_query(search: Search) -> None:
    """A row that it has already may be refused, so earlier records are no evidence."""
    search.append(ORDERS, record("1"), record("2"), record("3"))

    def refuse(rows: Any) -> None:
        if rows.count():
            raise RefusedError("the table takes nothing")

    search.take = refuse
    assert search.run(strict, {"orders": {"0": 2}}, {"orders": {"0": 3}}) == [(ORDERS, 2)]
    with pytest.raises(EveryRecordFailsError, match=r"the table takes nothing .all 2 records"):
        search.run(strict, {"orders": {"0": 1}}, {"orders": {"0": 3}})


def test_the_topics_of_a_join_are_judged_on_their_own(search: Search) -> None:
    search.append(ORDERS, record("1"), record("2"))
    search.append(PRICES, record("x"), record("5", "cocoa"), record("y", "cocoa"))
    # Every order fails, but only because of one price.
    both = {"orders": {"0": 0}, "prices": {"0": 0}}
    assert search.run(joined, both, {"orders": {"0": 2}, "prices": {"0": 2}}) == [(PRICES, 0)]


def test_probes_are_spread_over_the_batch() -> None:
    places = [Place(ORDERS, n) for n in range(1000)]
    probes = [place.offset for place in spread(places, PROBES)]
    assert (len(set(probes)), max(probes), min(probes)) == (PROBES, 999, 0)
    assert spread(places[:2], PROBES) == [places[1], places[0]]
    assert spread([], PROBES) == []


def test_a_run_stops_without_dead_letters_if_every_record_fails(
    spark: Any, broker: Broker, produce: Any, tmp_path: Path
) -> None:
    servers = broker.bootstrap_servers
    lines: list[str] = []
    produce(servers, "orders", [record("1"), record("2"), record("3")])
    store = ViewStore(tmp_path / "views.db")
    with pytest.raises(HeadwaterError, match=r"query 'amounts' failed: .*out of order.*all 3 records") as stopped:
        run_once(shop(broken), spark, servers, tmp_path, store, lines.append)
    assert "\n" not in str(stopped.value)
    assert "fix the function" in (stopped.value.hint or "")
    assert [line.partition(":")[0] for line in lines] == [
        "query amounts failed, next try in 1 s",
        "query amounts failed, next try in 2 s",
        "query amounts failed, next try in 4 s",
        "query amounts failed again",
        "query amounts is suspended, the others go on",
    ]
    with Client(servers) as client:
        assert "orders.deadletter" not in client.topics(["orders.deadletter"])
    fact = FactStore(tmp_path / "facts.db").latest("amounts")[-1].body
    assert fact["state"] == "suspended"
    assert "all 3 records" in fact["error"]
    # Corrected, it continues with the same records.
    run_once(shop(strict), spark, servers, tmp_path, store)
    assert [row["amount"] for row in store.rows("amounts")] == [3.0]


def test_a_rebuild_that_fails_on_every_record_fails_the_run_and_leaves_the_view(
    spark: Any, broker: Broker, produce: Any, tmp_path: Path
) -> None:
    servers, store = broker.bootstrap_servers, ViewStore(tmp_path / "views.db")
    produce(servers, "orders", [record("1"), record("2", "cocoa")])
    run_once(shop(strict), spark, servers, tmp_path, store)
    Generations(store).request_rebuild("amounts")
    reason = r"view 'amounts' was not rebuilt.*out of order.*all 2 records"
    with pytest.raises(HeadwaterError, match=reason) as stopped:
        run_once(shop(broken), spark, servers, tmp_path, store)
    assert stopped.value.hint == "fix the cause and run it again: headwater rebuild amounts"
    assert [row["amount"] for row in store.rows("amounts")] == [2.0, 1.0]


def test_a_destination_that_refuses_every_row_fails_the_run(
    spark: Any, broker: Broker, produce: Any, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(tmp_path / "results.db")) as db:
        db.execute("create table products (product text check (product = ''))")
    app = hw.App("shop")
    orders = app.topic("orders", schema="product string, amount string")
    to = hw.Sqlite(tmp_path / "results.db", table="products")
    app.sink(orders, to=to, name="products")(lambda orders: orders.select("product"))
    produce(broker.bootstrap_servers, "orders", [record(f"{n}", f"p{n}") for n in (1, 2, 3)])
    with pytest.raises(HeadwaterError, match=r"query 'products' failed: .*CHECK constraint failed") as failed:
        run_once(app, spark, broker.bootstrap_servers, tmp_path, ViewStore(tmp_path / "views.db"))
    assert "all 3 records of topic 'orders' in batch 0 fail" in str(failed.value)
    assert failed.value.exit_code == 1
