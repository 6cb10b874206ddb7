"""A small shop with a real server: stores in a temporary folder, a log whose offsets the test sets."""

import datetime as dt
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from headwater.clock import ManualClock
from headwater.record import TopicPartition
from headwater.serve.api.app import ApiContext, create_app
from headwater.serve.live.group_lag import GroupLag, GroupLags
from headwater.serve.live.rates import TopicRates
from headwater.serve.server import HttpServer
from headwater.store.pipelines.facts import FactStore
from headwater.store.shapes import ViewShape
from headwater.store.values.column_types import Column
from headwater.store.views import ViewStore

NOON = dt.datetime(2026, 11, 15, 12, 0, tzinfo=dt.UTC)
INSTANT = pa.timestamp("us", tz="UTC")
WINDOW = pa.struct([("start", INSTANT), ("end", INSTANT)])


class Shop:
    """An app with a view `revenue` by product and minute, a topic, and consumer groups."""

    def __init__(self, folder: Path) -> None:
        self.views = ViewStore(folder / "views.db")
        self.facts = FactStore(folder / "facts.db")
        self.clock = ManualClock(start_ms=1_000_000)
        self.offsets = {TopicPartition("orders", 0): (0, 10), TopicPartition("orders", 1): (5, 25)}
        self.topics = TopicRates(lambda: self.offsets, self.clock)
        self.views.declare(
            ViewShape(
                name="revenue",
                key=("product", "window"),
                columns=(
                    Column("product", "string"),
                    Column("window", "struct<start:timestamp,end:timestamp>"),
                    Column("revenue", "double"),
                ),
            )
        )
        self.batch = 0
        self.readers: list[GroupLag] = []
        self.groups = GroupLags(lambda: self.readers)

    @property
    def sources(self) -> ApiContext:
        return ApiContext(app="shop", views=self.views, facts=self.facts, topics=self.topics, groups=self.groups)

    def sell(self, *rows: tuple[str, int, float]) -> None:
        """Commit one batch of rows: product, minute after noon, revenue."""
        starts = [NOON + dt.timedelta(minutes=minute) for _, minute, _ in rows]
        windows = [{"start": start, "end": start + dt.timedelta(minutes=1)} for start in starts]
        table = pa.table(
            {
                "product": pa.array([product for product, _, _ in rows], pa.string()),
                "window": pa.array(windows, WINDOW),
                "revenue": pa.array([revenue for _, _, revenue in rows], pa.float64()),
            }
        )
        self.views.commit_rows("revenue", table, run="run-1", batch=self.batch)
        self.batch += 1


class Caller:
    """A client that calls the server over TCP."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str) -> tuple[int, Any]:
        """Return the status code and the JSON of a response."""
        connection = self.connect()
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def connect(self) -> http.client.HTTPConnection:
        address = urlsplit(self.url)
        assert address.hostname is not None
        return http.client.HTTPConnection(address.hostname, address.port, timeout=10)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.fixture
def caller(shop: Shop) -> Iterator[Caller]:
    with HttpServer(create_app(shop.sources), "127.0.0.1", 0) as server:
        yield Caller(server.url)
