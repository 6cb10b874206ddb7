"""Subscriptions over HTTP: rows, then changes, from a token, for many at once."""

import http.client
import json
import threading
import time
from typing import Any

import pytest

from headwater.serve.live import subscriptions
from headwater.store.generations import Generations
from headwater.store.shapes import Access

PATH = "/api/v1/views/revenue/subscribe"


class Subscriber:
    """Reads events from an open answer: name, data, id."""

    def __init__(self, connection: http.client.HTTPConnection, path: str = PATH, **headers: str) -> None:
        self._connection = connection
        connection.request("GET", path, headers=headers)
        self._answer = connection.getresponse()
        assert self._answer.status == 200
        assert self._block() == {"retry": "1000"}

    def event(self) -> tuple[str, Any, str | None]:
        fields = self._block()
        return fields["event"], json.loads(fields["data"]), fields.get("id")

    def close(self) -> None:
        self._answer.close()
        self._connection.close()

    def _block(self) -> dict[str, str]:
        found: dict[str, str] = {}
        while line := self._answer.readline().decode().rstrip("\n"):
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


def test_rows_then_changes_then_on_from_a_token(shop, subscribe):
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


def test_who_was_away_too_long_or_comes_from_elsewhere_is_reset(shop, subscribe):
    shop.views.declare(shop.views.shape("revenue"), Access(history=1))
    shop.sell(("tea", 0, 1.0))
    token = f"{shop.views.identity()}-1"
    for revenue in (2.0, 3.0):
        shop.sell(("tea", 0, revenue))
    assert subscribe(f"{PATH}?token={token}").event()[0] == "reset"
    assert subscribe(f"{PATH}?token=00000000-3").event()[0] == "reset"


def test_a_view_that_is_made_anew_resets_its_subscribers(shop, subscribe):
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


def test_many_get_every_change_in_order(shop, subscribe):
    subscribers = [subscribe() for _ in range(30)]
    for subscriber in subscribers:
        assert [subscriber.event()[0] for _ in range(2)] == ["reset", "ready"]
    for n in range(20):
        shop.sell(*((f"tea {n} {m}", 0, 1.0) for m in range(5)))
    for subscriber in subscribers:
        assert [subscriber.event()[1]["position"] for _ in range(100)] == list(range(1, 101))


def test_one_that_is_slower_than_the_feed_keeps_reads_the_store(shop, subscribe, monkeypatch):
    monkeypatch.setattr(subscriptions, "KEPT", 3)
    slow, quick = subscribe(), subscribe()
    for subscriber in (slow, quick):
        assert [subscriber.event()[0] for _ in range(2)] == ["reset", "ready"]
    for n in range(30):
        shop.sell((f"tea {n}", 0, 1.0))
        assert quick.event()[1]["position"] == n + 1
    assert [slow.event()[1]["position"] for _ in range(30)] == list(range(1, 31))


def test_the_store_is_read_once_for_all_and_not_at_all_for_nobody(shop, caller, monkeypatch):
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
    shop.sell(("tea", 0, 1.0))  # the server finds out with the next thing it sends
    time.sleep(6 * subscriptions.POLL_S)
    before = len(reads)
    time.sleep(4 * subscriptions.POLL_S)
    assert len(reads) == before
