"""Subscriptions over HTTP: a view's rows, then its changes, as server-sent events, for very many at a time.

    event: reset     forget what you have; the rows follow
    event: row       a row
    event: ready     these were all; `id` is the token to come back with, which browsers do by themselves
    event: change    a change, as in `feeds`, with such an `id`

However many subscribe to a view, its new changes are read from the store and encoded once, by a `Feed` that keeps
the last ones; each subscriber takes from it at its own pace. Who is further behind than that reads the store by
itself, and so slows nobody. Everything here belongs to the server's event loop.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator

from anyio.to_thread import run_sync

from headwater.errors import HeadwaterError
from headwater.serve.live.events import KEEP_ALIVE, KEEP_ALIVE_S, RETRY, describe_change, encode_event
from headwater.store.subscription import Event, EventKind, SubscriberPosition, next_events, resume_position
from headwater.store.views import ViewStore

POLL_S = 0.05
"""How often a view is looked at while somebody subscribes to it; one look-up by key each time."""
KEPT = 2_000
"""Changes that a feed keeps for those who have not taken them yet."""


def encode(event: Event) -> bytes:
    """An event of a subscription as a server-sent event."""
    if event.change is not None:
        return encode_event(event.kind, _json(describe_change(event.change)), id=event.token)
    body = {"token": event.token} if event.kind is EventKind.READY else event.row or {}
    return encode_event(event.kind, _json(body), id=event.token)


class Feed:
    """The last changes of a view, encoded, for all who subscribe to it."""

    def __init__(self, store: ViewStore, view: str, position: int) -> None:
        self._store = store
        self._view = view
        self._start = position
        self._events: list[bytes] = []
        self._news = asyncio.Event()
        self.ended = False
        self.subscribers = 0

    @property
    def position(self) -> int:
        """How far it has read."""
        return self._start + len(self._events)

    def has(self, position: int) -> bool:
        """Whether a subscriber at a position gets from here all that comes next."""
        return not self.ended and position >= self._start

    def since(self, position: int) -> bytes:
        """All that is behind a position."""
        return b"".join(self._events[max(0, position - self._start) :])

    async def wait(self, seconds: float) -> None:
        """Wait until something comes, or the feed ends, or for so long."""
        news = self._news
        try:
            async with asyncio.timeout(seconds):
                await news.wait()
        except TimeoutError:
            pass

    async def run(self, closing: threading.Event) -> None:
        """Read what happens, until the server closes or the view is made anew."""
        try:
            while not closing.is_set():
                _, events = await run_sync(next_events, self._store, self._view, SubscriberPosition(self.position))
                if events and events[0].kind is not EventKind.CHANGE:
                    return
                if events:
                    self._add([encode(event) for event in events])
                else:
                    await asyncio.sleep(POLL_S)
        except HeadwaterError:
            return  # Each subscriber finds out by itself, and tells.
        finally:
            self.ended = True
            self._news.set()

    def _add(self, events: list[bytes]) -> None:
        self._events += events
        excess = max(0, len(self._events) - KEPT)
        del self._events[:excess]
        self._start += excess
        self._news.set()
        self._news = asyncio.Event()


class Hub:
    """The feeds of the views that somebody subscribes to."""

    def __init__(self, store: ViewStore, closing: threading.Event) -> None:
        self._store = store
        self._closing = closing
        self._feeds: dict[str, Feed] = {}
        self._tasks: dict[Feed, asyncio.Task[None]] = {}

    async def subscribe(self, view: str, token: str | None) -> AsyncIterator[bytes]:
        """Yield a subscription's events, without end; the token must be one."""
        yield RETRY
        standing = await run_sync(resume_position, self._store, token)
        feed: Feed | None = None
        try:
            while not self._closing.is_set():
                feed = await self._joined(view, feed)
                position = standing.position
                if position is None or standing.reading or not feed.has(position):
                    standing, events = await run_sync(next_events, self._store, view, standing)
                    if events:
                        yield b"".join(encode(event) for event in events)
                    elif feed.ended:
                        await asyncio.sleep(POLL_S)
                elif data := feed.since(position):
                    standing = SubscriberPosition(feed.position)
                    yield data
                else:
                    await feed.wait(KEEP_ALIVE_S)
                    if not feed.ended and not feed.since(position):
                        yield KEEP_ALIVE
        finally:
            if feed is not None:
                self._leave(feed)

    async def _joined(self, view: str, feed: Feed | None) -> Feed:
        """The view's feed, with the caller as a subscriber of it."""
        if feed is not None and not feed.ended:
            return feed
        if feed is not None:
            self._leave(feed)
        found = self._feeds.get(view)
        if found is None or found.ended:
            position = await run_sync(self._store.position, view)
            found = self._feeds.get(view)  # Another may have made it meanwhile.
            if found is None or found.ended:
                found = self._feeds[view] = Feed(self._store, view, position)
                self._tasks[found] = asyncio.create_task(found.run(self._closing))
        found.subscribers += 1
        return found

    def _leave(self, feed: Feed) -> None:
        feed.subscribers -= 1
        if feed.subscribers == 0:
            self._feeds = {view: other for view, other in self._feeds.items() if other is not feed}
            self._tasks.pop(feed).cancel()


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
