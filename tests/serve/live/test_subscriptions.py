"""Subscriptions over HTTP: rows, then changes, resumed from a token, for many subscribers."""

import http.client
import json
import threading
import time
from typing import Any

import pytest

from headwater.serve.live import subscriptions
from headwater.store.pipelines.generations import Generations
from headwater.store.shapes import Access

PATH = "/api/v1/views/revenue/subscribe"


class Subscriber:
    """Reads events from an open response: name, data, id."""

    def __init__(self, connection: http.client.HTTPConnection, path: str = PATH, **headers: str) -> None:
        self._connection = connection
        connection.request("GET", path, headers=headers)
        self._response = connection.getresponse()
        assert self._response.status == 200
        assert self.block() == {"retry": "1000"}

    def event(self) -> tuple[str, Any, str | None]:
        fields = self.block()
        return fields["event"], json.loads(fields["data"]), fields.get("id")

    def close(self) -> None:
        self._response.close()
        self._connection.close()

    def block(self) -> dict[str, str]:
        found: dict[str, str] = {}
        while line := self._response.readline().decode().rstrip("\n"):
            name, _, value = line.partition(": ")
            found[name] = value
        return found


@pytest.fixture
def subscribe(caller):
    opened = []

    def start(path: str = PATH, **headers: str) -> Subscriber:
        opened.append(Subscriber(caller.connect(), path, **headers))
        return opened[-1]

    yield start
    for subscriber in opened:
        subscriber.close()


def test_rows_then_changes_then_resume_from_a_token(shop, subscribe):
    shop.sell(("milk", 0, 1.0), ("tea", 0, 3.5))
    subscriber = subscribe()
    events = [subscriber.event() for _ in range(4)]
    assert [name for name, _, _ in events] == ["reset", "row", "row", "ready"]
    assert [data["product"] for name, data, _ in events if name == "row"] == ["milk", "tea"]
    shop.sell(("tea", 0, 7.0))
    name, change, token = subscriber.event()
    assert (name, change["op"], change["after"]["revenue"]) == ("change", "u", 7.0)
    shop.sell(("tea", 0, 8.0))
    assert subscribe(f"{PATH}?token={token}").event()[1]["after"]["revenue"] == 8.0
    assert subscribe(**{"Last-Event-ID": events[3][2]}).event()[1] == change


def test_change_has_the_row_before_and_after(shop, subscribe):
    shop.sell(("tea", 0, 3.5))
    subscriber = subscribe(f"{PATH}?token={shop.views.identity()}-1")
    shop.sell(("tea", 0, 7.0))
    window = {"start": "2026-11-15T12:00:00.000000Z", "end": "2026-11-15T12:01:00.000000Z"}
    change = {
        "op": "u",
        "key": ["tea", window],
        "before": {"product": "tea", "window": window, "revenue": 3.5},
        "after": {"product": "tea", "window": window, "revenue": 7.0},
        "position": 2,
    }
    assert subscriber.event() == ("change", change, f"{shop.views.identity()}-2")


def test_last_event_id_overrides_the_token(shop, subscribe):
    for revenue in (1.0, 2.0, 3.0):
        shop.sell(("tea", 0, revenue))
    identity = shop.views.identity()
    by_token = subscribe(f"{PATH}?token={identity}-1")
    assert [by_token.event()[1]["position"] for _ in range(2)] == [2, 3]
    # A browser that reconnects uses the address it was opened with, so its header must win.
    by_header = subscribe(f"{PATH}?token={identity}-1", **{"Last-Event-ID": f"{identity}-2"})
    assert by_header.event()[1]["position"] == 3


def test_token_from_the_future_is_reset(shop, subscribe):
    shop.sell(("tea", 0, 1.0))
    token = f"{shop.views.identity()}-9"  # of a store that was restored from an older copy
    subscriber = subscribe(f"{PATH}?token={token}")
    assert [subscriber.event()[0] for _ in range(3)] == ["reset", "row", "ready"]
    shop.sell(("tea", 0, 2.0))
    assert subscriber.event()[1]["position"] == 2


def test_oldest_kept_change_needs_no_reset(shop, subscribe):
    shop.views.declare(shop.views.shape("revenue"), Access(history=2))
    for revenue in (1.0, 2.0, 3.0):
        shop.sell(("tea", 0, revenue))
    identity = shop.views.identity()
    assert subscribe(f"{PATH}?token={identity}-1").event()[1]["position"] == 2
    assert subscribe(f"{PATH}?token={identity}-0").event()[0] == "reset"


def test_idle_stream_is_kept_alive(subscribe, monkeypatch):
    monkeypatch.setattr(subscriptions, "KEEP_ALIVE_S", 0.2)
    subscriber = subscribe()
    assert [subscriber.event()[0] for _ in range(2)] == ["reset", "ready"]
    assert subscriber.block() == {"": "keep-alive"}


def test_outdated_token_and_token_of_another_store_are_reset(shop, subscribe):
    shop.views.declare(shop.views.shape("revenue"), Access(history=1))
    shop.sell(("tea", 0, 1.0))
    token = f"{shop.views.identity()}-1"
    for revenue in (2.0, 3.0):
        shop.sell(("tea", 0, revenue))
    assert subscribe(f"{PATH}?token={token}").event()[0] == "reset"
    assert subscribe(f"{PATH}?token=00000000-3").event()[0] == "reset"


def test_rebuilt_view_resets_its_subscribers(shop, subscribe):
    shop.sell(("tea", 0, 1.0))
    subscriber = subscribe()
    assert [subscriber.event()[0] for _ in range(3)] == ["reset", "row", "ready"]
    shape = shop.views.shape("revenue")
    Generations(shop.views).restart("revenue")
    shop.views.declare(shape)
    assert [subscriber.event()[0] for _ in range(2)] == ["reset", "ready"]
    shop.batch = 0
    shop.sell(("milk", 0, 1.0))
    assert subscriber.event()[1]["after"]["product"] == "milk"


def test_many_subscribers_get_every_change_in_order(shop, subscribe):
    subscribers = [subscribe() for _ in range(30)]
    for subscriber in subscribers:
        assert [subscriber.event()[0] for _ in range(2)] == ["reset", "ready"]
    for n in range(20):
        shop.sell(*((f"tea {n} {m}", 0, 1.0) for m in range(5)))
    for subscriber in subscribers:
        assert [subscriber.event()[1]["position"] for _ in range(100)] == list(range(1, 101))


def test_slow_subscriber_reads_changes_that_the_feed_has_dropped_from_the_store(shop, subscribe, monkeypatch):
    monkeypatch.setattr(subscriptions, "KEPT", 3)
    slow, quick = subscribe(), subscribe()
    for subscriber in (slow, quick):
        assert [subscriber.event()[0] for _ in range(2)] == ["reset", "ready"]
    for n in range(30):
        shop.sell((f"tea {n}", 0, 1.0))
        assert quick.event()[1]["position"] == n + 1
    assert [slow.event()[1]["position"] for _ in range(30)] == list(range(1, 31))


def test_store_is_read_once_for_all_subscribers_and_not_without_subscribers(shop, caller, monkeypatch):
    reads: list[int] = []
    original = subscriptions.next_events

    def counted(store, view, standing):
        reads.append(threading.get_ident())
        return original(store, view, standing)

    monkeypatch.setattr(subscriptions, "next_events", counted)
    subscribers = [Subscriber(caller.connect()) for _ in range(10)]
    for subscriber in subscribers:
        assert [subscriber.event()[0] for _ in range(2)] == ["reset", "ready"]
    before = len(reads)
    time.sleep(10 * subscriptions.POLL_S)
    assert len(reads) - before <= 12
    for subscriber in subscribers:
        subscriber.close()
    shop.sell(("tea", 0, 1.0))  # the server notices a closed connection when it sends something
    time.sleep(6 * subscriptions.POLL_S)
    before = len(reads)
    time.sleep(4 * subscriptions.POLL_S)
    assert len(reads) == before
