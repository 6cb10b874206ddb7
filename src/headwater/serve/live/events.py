"""Server-sent events: their encoding, and the stream of the app's status.

The format is https://html.spec.whatwg.org/multipage/server-sent-events.html. The changes of views are sent by
`subscriptions`. A stream ends when `closing` is set.
"""

import json
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
from anyio.to_thread import run_sync

from headwater.change import Change

STATUS_EVERY_S = 1.0
KEEP_ALIVE_S = 15.0  # proxies and browsers tend to close a connection after 30 to 60 s without data
_CLOSING_POLL_S = 0.2

RETRY = b"retry: 1000\n\n"  # browsers otherwise wait three seconds or more before they reconnect
KEEP_ALIVE = b": keep-alive\n\n"


def encode_event(event: str, data: str, *, id: int | str | None = None) -> bytes:
    r"""Encode one event; each line of the data becomes a `data:` line, and the receiver joins them again.

    >>> encode_event("note", "two\nlines", id=7)
    b'id: 7\nevent: note\ndata: two\ndata: lines\n\n'
    """
    # The format ends a line only at \r\n, \r and \n; str.splitlines splits at more characters.
    lines = data.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    head = [] if id is None else [f"id: {id}"]
    return "\n".join([*head, f"event: {event}", *(f"data: {line}" for line in lines), "", ""]).encode()


def encode_json(value: Any) -> str:
    """Encode the data of an event as compact JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def describe_change(change: Change) -> dict[str, Any]:
    """Return a change of a view as a JSON object."""
    return {
        "op": change.op,
        "key": change.key,
        "before": change.before,
        "after": change.after,
        "position": change.position,
    }


async def follow_status(
    read_status: Callable[[], dict[str, Any]], closing: threading.Event
) -> AsyncIterator[bytes]:
    """Yield the app's status once a second until the server closes."""
    yield RETRY
    while not closing.is_set():
        yield encode_event("status", encode_json(await run_sync(read_status)))
        await _sleep(STATUS_EVERY_S, closing)


async def _sleep(seconds: float, closing: threading.Event) -> None:
    """Sleep in short steps, so that a closing server does not have to wait."""
    deadline = anyio.current_time() + seconds
    while anyio.current_time() < deadline and not closing.is_set():
        await anyio.sleep(_CLOSING_POLL_S)
