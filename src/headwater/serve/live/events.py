"""Server-sent events: a view's changes and the app's status, for as long as somebody listens.

The format is https://html.spec.whatwg.org/multipage/server-sent-events.html. A follower of a view gets

    id: 42                 the position; a browser hands it back as Last-Event-ID when it reconnects
    event: change
    data: {"op": "u", "key": [...], "before": {...}, "after": {...}, "position": 42}

with no position left out, or `event: reset` with the current position: what lies between is no longer kept
(or the view was made anew), and the follower must read the rows again.

Every feed reads the store at its own pace, a bounded batch at a time, and waits for its listener before it
reads on. So a slow listener slows nobody; at worst it is reset. A feed ends when `closing` is set.
"""

import json
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import anyio
from anyio.to_thread import run_sync

from headwater.change import Change
from headwater.store.views import ViewStore

POLL_S = 0.2
STATUS_EVERY_S = 1.0
KEEP_ALIVE_S = 15.0  # proxies and browsers tend to give up on a connection after 30 to 60 silent seconds
BATCH_MAX = 500

RETRY = b"retry: 1000\n\n"  # browsers otherwise wait three seconds or more
KEEP_ALIVE = b": keep-alive\n\n"


@dataclass(frozen=True, slots=True)
class FeedStep:
    """What a follower is sent next, and the position it has then."""

    position: int
    events: bytes


def encode_event(event: str, data: str, *, id: int | str | None = None) -> bytes:
    r"""Write one event; data of several lines becomes several `data:` lines, which the receiver joins again.

    >>> encode_event("note", "two\nlines", id=7)
    b'id: 7\nevent: note\ndata: two\ndata: lines\n\n'
    """
    # The format ends a line at \r\n, \r and \n, and nowhere else; str.splitlines would split at more.
    lines = data.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    head = [] if id is None else [f"id: {id}"]
    return "\n".join([*head, f"event: {event}", *(f"data: {line}" for line in lines), "", ""]).encode()


def describe_change(change: Change) -> dict[str, Any]:
    """A change of a view, as JSON has it."""
    return {
        "op": change.op,
        "key": change.key,
        "before": change.before,
        "after": change.after,
        "position": change.position,
    }


def encode_change(change: Change) -> bytes:
    """Write a change of a view as an event."""
    return encode_event("change", _json(describe_change(change)), id=change.position)


def next_step(views: ViewStore, view: str, after: int) -> FeedStep:
    """Read what has happened behind a position: some changes, nothing, or a reset."""
    current = views.position(view)
    if current == after:
        return FeedStep(after, b"")
    changes = views.changes(view, after=after, limit=BATCH_MAX) if current > after else []
    # Positions have no gaps, so a first change that is not the next one means that the next one is gone.
    if not changes or changes[0].position != after + 1:
        return FeedStep(current, encode_event("reset", _json({"position": current}), id=current))
    return FeedStep(changes[-1].position, b"".join(encode_change(change) for change in changes))


async def follow_view(views: ViewStore, view: str, after: int, closing: threading.Event) -> AsyncIterator[bytes]:
    """Yield the view's changes behind a position, without end."""
    yield RETRY
    position = after
    silent_s = 0.0
    while not closing.is_set():
        step = await run_sync(next_step, views, view, position)
        position = step.position
        if step.events:
            silent_s = 0.0
            yield step.events
            continue
        await anyio.sleep(POLL_S)
        silent_s += POLL_S
        if silent_s >= KEEP_ALIVE_S:
            silent_s = 0.0
            yield KEEP_ALIVE


async def follow_status(
    read_status: Callable[[], dict[str, Any]], closing: threading.Event
) -> AsyncIterator[bytes]:
    """Yield the app's status once a second, without end."""
    yield RETRY
    while not closing.is_set():
        yield encode_event("status", _json(await run_sync(read_status)))
        await _sleep(STATUS_EVERY_S, closing)


async def _sleep(seconds: float, closing: threading.Event) -> None:
    """Sleep in short steps, so that a closing server does not wait for us."""
    deadline = anyio.current_time() + seconds
    while anyio.current_time() < deadline and not closing.is_set():
        await anyio.sleep(POLL_S)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
