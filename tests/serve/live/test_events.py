"""Server-sent events: their encoding, and the stream of the status over TCP."""

import http.client
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.serve.live.events import encode_event


def decode(block: bytes) -> tuple[dict[str, str], str]:
    """Decode one event as the standard requires: the fields, and the data lines joined by newlines."""
    assert block.endswith(b"\n\n")
    fields = [line.partition(": ") for line in block.decode()[:-2].split("\n")]
    data = "\n".join(value for name, _, value in fields if name == "data")
    return {name: value for name, _, value in fields if name != "data"}, data


@given(st.text(st.characters(exclude_characters="\r", codec="utf-8")))
def test_any_text_survives_encoding(text):
    assert decode(encode_event("note", text, id=3)) == ({"id": "3", "event": "note"}, text)


def test_carriage_returns_end_lines_too():
    assert encode_event("note", "a\rb\r\nc") == b"event: note\ndata: a\ndata: b\ndata: c\n\n"


class Follower:
    """Reads events from an open response."""

    def __init__(self, connection: http.client.HTTPConnection, path: str, **headers: str) -> None:
        self._connection = connection
        connection.request("GET", path, headers=headers)
        self._response = connection.getresponse()
        assert self._response.status == 200
        assert self._response.headers["content-type"].startswith("text/event-stream")
        assert self.block() == "retry: 1000"

    def block(self) -> str:
        lines = []
        while line := self._response.readline().decode().rstrip("\n"):
            lines.append(line)
        return "\n".join(lines)

    def event(self) -> tuple[str, Any]:
        fields, data = decode(self.block().encode() + b"\n\n")
        return fields["event"], json.loads(data)

    def close(self) -> None:
        self._response.close()
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


def test_status_is_sent_every_second(shop, follow):
    follower = follow("/api/v1/status/stream")
    kind, status = follower.event()
    assert (kind, status["app"], status["views"][0]["rows"]) == ("status", "shop", 0)
    shop.sell(("tea", 0, 1.0))
    assert follower.event()[1]["views"][0]["rows"] == 1
