"""A row on which a function fails, or that a sink refuses, goes to the dead-letter topic; the query continues."""

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.app import Topic
from headwater.clock import SystemClock
from headwater.record import Record, TopicPartition
from headwater.spark.pipeline.pipeline import Pipeline
from headwater.spark.pipeline.poison import post_letters
from headwater.spark.pipeline.poison_search import PoisonRow, cut
from headwater.spark.source.exclusions import Exclusions
from headwater.spark.source.left_out import leave_out
from headwater.spark.source.offsets import Range
from headwater.store.pipelines.facts import FactStore
from headwater.store.views import ViewStore
from headwater.transmit.broker.embedded import Broker
from headwater.transmit.client.client import Client
from headwater.transmit.client.redrive import RedriveMarks, letters_of, redrive
from headwater.transmit.records.batch import encode_batch
from headwater.transmit.records.dead_letters import ONLY_HEADER
from headwater.transmit.records.to_arrow import to_arrow
from tests.spark.run_pipeline import run_once
from torture.subjects import committed_records

ORDERS = TopicPartition("orders", 0)
REASONS = {
    "shop.products": "CHECK constraint failed: short",
    "shop.names": "max.message.bytes is 100",
    "shop.errands": "the response is 422",
}
LONG = "much too long a name for it"


@contextmanager
def receiver_of_short_names(taken: set[str]) -> Iterator[str]:
    """A server that stores the names that it receives, and refuses the long one."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            name = body["changes"][0]["after"]["product"]
            if name != LONG:
                taken.add(name)
            self.send_response(422 if name == LONG else 204)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def shop(folder: Path, hook: str = "http://127.0.0.1/") -> hw.App:
    """Create the table for `products`, with a constraint."""
    app = hw.App("shop")
    orders = app.topic("orders")

    def parsed(orders: Any) -> Any:
        return orders.selectExpr("split(cast(value as string), '=') as pair").selectExpr(
            "pair[0] as product", "pair[1] as amount"
        )

    @app.view(orders, key="product")
    def amounts(orders: Any) -> Any:
        return parsed(orders).selectExpr("product", "cast(amount as double) as amount")

    @app.view(orders, key="product")
    def counts(orders: Any) -> Any:
        return parsed(orders).groupBy("product").count()

    @app.sink(orders, to=hw.Sqlite(folder / "results.db", table="products"))
    def products(orders: Any) -> Any:
        return parsed(orders).select("product")

    @app.sink(orders, to=hw.KafkaTopic("names", configs={"max.message.bytes": "100"}))
    def names(orders: Any) -> Any:
        return parsed(orders).select("product")

    @app.sink(orders, to=hw.Webhook(hook, each="row"))
    def errands(orders: Any) -> Any:
        return parsed(orders).select("product")

    return app


def run(spark: Any, servers: str, folder: Path, hook: str) -> tuple[ViewStore, Pipeline]:
    store = ViewStore(folder / "views.db")
    return store, run_once(shop(folder, hook), spark, servers, folder, store)


@pytest.fixture
def received() -> set[str]:
    return set()


@pytest.fixture
def hook(received: set[str]) -> Iterator[str]:
    with receiver_of_short_names(received) as url:
        yield url


def test_a_poison_row_is_isolated_and_redriven_after_a_fix(
    spark: Any, broker: Broker, produce: Any, tmp_path: Path, hook: str, received: set[str]
) -> None:
    servers = broker.bootstrap_servers
    results = tmp_path / "results.db"
    with closing(sqlite3.connect(results)) as db:
        db.execute("create table products (product text constraint short check (length(product) < 5))")
    with Client(servers) as client:
        client.create_topic("orders", partitions=2)
    produce(servers, "orders", [b"good=1", b"fine=2", f"{LONG}=3".encode()], partition=0)
    produce(servers, "orders", [b"a=2", b"bad=much", b"b=3"], partition=1)
    store, pipeline = run(spark, servers, tmp_path, hook)
    assert {row["product"] for row in store.rows("amounts")} == {"a", "b", "good", "fine", LONG}
    assert {row["product"]: row["count"] for row in store.rows("counts")}["bad"] == 1
    assert pipeline.left_out() == {"amounts": 1, "counts": 0, "products": 1, "names": 1, "errands": 1}
    with closing(sqlite3.connect(results)) as db:
        names = [name for (name,) in db.execute("select product from products order by 1")]
    assert names == sorted(received) == ["a", "b", "bad", "fine", "good"]
    assert sorted(json.loads(value)["product"] for _, value in committed_records(servers, "names")) == names
    states = [fact.body["state"] for fact in FactStore(tmp_path / "facts.db").latest("amounts", limit=100)]
    assert "isolating" in states

    with Client(servers) as client:
        letters = {letter.query: letter for letter in letters_of(client, "orders.deadletter")}
        for query, reason in REASONS.items():
            refused = letters[query]
            assert (refused.origin, refused.origin_offset) == (ORDERS, 2)
            assert reason in refused.reason
        letter = letters["shop.amounts"]
        assert (letter.origin, letter.origin_offset) == (TopicPartition("orders", 1), 1)
        assert (letter.query, letter.record.value) == ("shop.amounts", b"bad=much")
        assert letter.reason.startswith("view 'amounts' failed on it: ")
        assert "CAST_INVALID_INPUT" in letter.reason
        list(redrive(client, [letter], RedriveMarks(client), SystemClock(), value=b"bad=7"))
    store, _ = run(spark, servers, tmp_path, hook)
    assert {row["product"]: row["amount"] for row in store.rows("amounts")}["bad"] == 7.0
    # The other view has read the original record, and skips the redriven one.
    assert {row["product"]: row["count"] for row in store.rows("counts")}["bad"] == 1


def test_a_letter_is_written_once_despite_a_crash_before_the_list_is_saved(broker: Broker, tmp_path: Path) -> None:
    topic = Topic(name="orders")
    (query,) = (view for view in shop(tmp_path).views if view.name == "amounts")
    with Client(broker.bootstrap_servers) as client:
        client.create_topic("orders", partitions=1)
        client.produce(ORDERS, encode_batch([Record(value=b"%d" % n, timestamp_ms=1) for n in range(3)]))
        first = Exclusions(tmp_path / "x.json", "shop.amounts", [topic])
        post_letters(client, query, [PoisonRow(ORDERS, 1, "no")], first, SystemClock())
        # A crash here: the letter is written, the list is not.
        second = Exclusions(tmp_path / "x.json", "shop.amounts", [topic])
        rows = [PoisonRow(ORDERS, 1, "no"), PoisonRow(ORDERS, 2, "no")]
        post_letters(client, query, rows, second, SystemClock())
        second.catch_up(client)
        assert [letter.origin_offset for letter in letters_of(client, "orders.deadletter")] == [1, 2]
        assert json.loads(second.options("orders")["excludedOffsets"]) == {"orders": {"0": [1, 2]}}
        again = Exclusions(tmp_path / "x.json", "shop.amounts", [topic])
        assert (len(again), (ORDERS, 2) in again) == (2, True)
        other = Exclusions(tmp_path / "y.json", "shop.counts", [topic])
        other.catch_up(client)
        assert other.options("orders") == {"readerName": "shop.counts"}


def test_excluded_records_and_those_for_other_readers_are_left_out() -> None:
    batches = b"".join(
        [
            encode_batch([Record(value=b"%d" % n, timestamp_ms=1) for n in range(3)]),
            encode_batch([Record(value=b"3", timestamp_ms=1, headers=((ONLY_HEADER, b"a.b"),))], base_offset=3),
        ]
    )
    rows = to_arrow(batches, ORDERS, 0, 9)

    def offsets(excluded: tuple[int, ...], reader: str | None) -> list[int]:
        left = leave_out(rows, batches, ORDERS, ((ORDERS, excluded),), reader)
        return left.column("offset").to_pylist()

    assert offsets((), None) == [0, 1, 2, 3]
    assert offsets((1,), "a.b") == [0, 2, 3]
    assert offsets((), "a.c") == [0, 1, 2]
    assert leave_out(rows, batches, TopicPartition("orders", 1), ((ORDERS, (1,)),), None).num_rows == 4


def test_parts_of_ranges_are_cut_across_partitions() -> None:
    other = TopicPartition("orders", 1)
    ranges = [Range(ORDERS, 10, 13), Range(other, 5, 5), Range(other, 7, 9)]
    assert cut(ranges, 0, 5) == [Range(ORDERS, 10, 13), Range(other, 7, 9)]
    assert cut(ranges, 2, 4) == [Range(ORDERS, 12, 13), Range(other, 7, 8)]
    assert cut(ranges, 4, 4) == []
