"""Server-sent events: their bytes, and a view's changes followed over TCP."""

import http.client
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.serve.live import events as feeds
from headwater.serve.live.events import encode_event, next_step
from headwater.store.shapes import Access


def decode(block: bytes) -> tuple[dict[str, str], str]:
    """Read one event as the standard says: the fields, and the data lines joined by newlines."""
    assert block.endswith(b"\n\n")
    fields = [line.partition(": ") for line in block.decode()[:-2].split("\n")]
    data = "\n".join(value for name, _, value in fields if name == "data")
    return {name: value for name, _, value in fields if name != "data"}, data


@given(st.text(st.characters(exclude_characters="\r", codec="utf-8")))
def test_any_text_survives_the_format(text):
    assert decode(encode_event("note", text, id=3)) == ({"id": "3", "event": "note"}, text)


def test_carriage_returns_end_lines_too():
    assert encode_event("note", "a\rb\r\nc") == b"event: note\ndata: a\ndata: b\ndata: c\n\n"


class Follower:
    """Reads events from an open answer."""

    def __init__(self, connection: http.client.HTTPConnection, path: str, **headers: str) -> None:
        self._connection = connection
        connection.request("GET", path, headers=headers)
        self._answer = connection.getresponse()
        assert self._answer.status == 200
        assert self._answer.headers["content-type"].startswith("text/event-stream")
        assert self.block() == "retry: 1000"

    def block(self) -> str:
        lines = []
        while line := self._answer.readline().decode().rstrip("\n"):
            lines.append(line)
        return "\n".join(lines)

    def event(self) -> tuple[str, Any]:
        fields, data = decode(self.block().encode() + b"\n\n")
        return fields["event"], json.loads(data)

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


@pytest.fixture
def follow(caller):
    followers = []

    def start(path: str, **headers: str) -> Follower:
        followers.append(Follower(caller.connect(), path, **headers))
        return followers[-1]

    yield start
    for follower in followers:
        follower.close()


def test_changes_arrive_as_they_happen(shop, follow):
    shop.sell(("tea", 0, 3.5))
    follower = follow("/api/v1/views/revenue/changes")
    time.sleep(2 * feeds.POLL_S)  # it stands at position 1 now, however slow the machine is to start it
    shop.sell(("tea", 0, 7.0))
    window = {"start": "2026-11-15T12:00:00.000000Z", "end": "2026-11-15T12:01:00.000000Z"}
    assert follower.event() == (
        "change",
        {
            "op": "u",
            "key": ["tea", window],
            "before": {"product": "tea", "window": window, "revenue": 3.5},
            "after": {"product": "tea", "window": window, "revenue": 7.0},
            "position": 2,
        },
    )


def test_follower_resumes_where_it_was(shop, follow):
    for revenue in (1.0, 2.0, 3.0):
        shop.sell(("tea", 0, revenue))
    by_address = follow("/api/v1/views/revenue/changes?after=1")
    assert [by_address.event()[1]["position"] for _ in range(2)] == [2, 3]
    # A browser that reconnects still asks for the first address, so its header must win.
    by_header = follow("/api/v1/views/revenue/changes?after=1", **{"Last-Event-ID": "2"})
    assert by_header.event()[1]["position"] == 3


def test_follower_that_missed_too_much_is_reset(shop, follow):
    shop.views.declare(shop.views.shape("revenue"), Access(history=2))
    for revenue in (1.0, 2.0, 3.0, 4.0):
        shop.sell(("tea", 0, revenue))
    follower = follow("/api/v1/views/revenue/changes?after=1")
    assert follower.event() == ("reset", {"position": 4})
    shop.sell(("tea", 0, 5.0))
    assert follower.event()[1]["position"] == 5


def test_follower_from_the_future_is_reset(shop, follow):
    shop.sell(("tea", 0, 1.0))
    assert follow("/api/v1/views/revenue/changes?after=9").event() == ("reset", {"position": 1})


def test_oldest_kept_change_needs_no_reset(shop):
    shop.views.declare(shop.views.shape("revenue"), Access(history=2))
    for revenue in (1.0, 2.0, 3.0):
        shop.sell(("tea", 0, revenue))
    assert decode(next_step(shop.views, "revenue", 1).events.split(b"\n\n")[0] + b"\n\n")[0]["event"] == "change"
    assert decode(next_step(shop.views, "revenue", 0).events)[0]["event"] == "reset"


def test_a_step_is_bounded(shop):
    shop.sell(*((f"tea {n}", 0, 1.0) for n in range(feeds.BATCH_MAX + 1)))
    step = next_step(shop.views, "revenue", 0)
    assert step.position == feeds.BATCH_MAX
    assert next_step(shop.views, "revenue", step.position).position == feeds.BATCH_MAX + 1


def test_silence_is_kept_alive(follow, monkeypatch):
    monkeypatch.setattr(feeds, "KEEP_ALIVE_S", 2 * feeds.POLL_S)
    assert follow("/api/v1/views/revenue/changes").block() == ": keep-alive"


def test_status_comes_each_second(shop, follow):
    follower = follow("/api/v1/status/stream")
    kind, status = follower.event()
    assert (kind, status["app"], status["views"][0]["rows"]) == ("status", "shop", 0)
    shop.sell(("tea", 0, 1.0))
    assert follower.event()[1]["views"][0]["rows"] == 1
