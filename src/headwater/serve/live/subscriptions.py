"""Subscriptions over HTTP: a view's rows, then its changes, as server-sent events, for many subscribers.

    event: reset     discard all rows; the current rows follow
    event: row       a row
    event: ready     all rows have been sent; `id` is the token to resume with
    event: change    {"op": "u", "key": [...], "before": {...}, "after": {...}, "position": 42}; `id` is its token

A browser that reconnects sends the last `id` as Last-Event-ID, and the stream continues after it. If those changes
are no longer kept, or the view was rebuilt, the stream starts again with `reset`. No position is left out.

A `Feed` reads and encodes the new changes of a view once for all its subscribers and keeps the last ones; each
subscriber takes them at its own pace. A subscriber that needs older changes reads them from the store, so it does
not slow down the others. Everything here runs on the server's event loop.
"""

import asyncio
import threading
from collections.abc import AsyncIterator

from anyio.to_thread import run_sync

from headwater.errors import HeadwaterError
from headwater.serve.live.events import KEEP_ALIVE, KEEP_ALIVE_S, RETRY, describe_change, encode_event, encode_json
from headwater.store.subscription import Event, EventKind, SubscriberPosition, next_events, resume_position
from headwater.store.views import ViewStore

POLL_S = 0.05
"""Interval at which a view with subscribers is checked for changes; each check is one lookup by key."""
KEPT = 2_000
"""Number of changes that a feed keeps for subscribers that have not taken them yet."""


def encode(event: Event) -> bytes:
    """Encode an event of a subscription as a server-sent event."""
    if event.change is not None:
        return encode_event(event.kind, encode_json(describe_change(event.change)), id=event.token)
    body = {"token": event.token} if event.kind is EventKind.READY else event.row or {}
    return encode_event(event.kind, encode_json(body), id=event.token)


class Feed:
    """The last changes of a view, encoded, shared by all its subscribers."""

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
        """The position of the last change read."""
        return self._start + len(self._events)

    def has(self, position: int) -> bool:
        """Return True if this feed has, or will get, every change after a position.

        A position after that of the feed comes from a subscriber that has read the store more recently, or from a
        token of a store that was restored from an older copy; only the store can tell.
        """
        return not self.ended and self._start <= position <= self.position

    def since(self, position: int) -> bytes:
        """Return the changes after a position."""
        return b"".join(self._events[max(0, position - self._start) :])

    async def wait(self, seconds: float) -> None:
        """Wait until there are changes, the feed ends, or the time is over."""
        news = self._news
        try:
            async with asyncio.timeout(seconds):
                await news.wait()
        except TimeoutError:
            pass

    async def run(self, closing: threading.Event) -> None:
        """Read changes until the server closes or the view is rebuilt."""
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
            return  # Each subscriber reads the store itself then, and gets the same error.
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
    """The feeds of all views that have subscribers."""

    def __init__(self, store: ViewStore, closing: threading.Event) -> None:
        self._store = store
        self._closing = closing
        self._feeds: dict[str, Feed] = {}
        self._tasks: dict[Feed, asyncio.Task[None]] = {}

    async def subscribe(self, view: str, token: str | None) -> AsyncIterator[bytes]:
        """Yield the events of a subscription until the server closes; the token must be valid."""
        yield RETRY
        standing = await run_sync(resume_position, self._store, token)
        feed: Feed | None = None
        try:
            while not self._closing.is_set():
                feed = await self._join(view, feed)
                position = standing.position
                if position is None or standing.reading or not feed.has(position):
                    standing, events = await run_sync(next_events, self._store, view, standing)
                    if events:
                        yield b"".join(encode(event) for event in events)
                    else:
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

    async def _join(self, view: str, feed: Feed | None) -> Feed:
        """Return the view's feed, with the caller counted as one of its subscribers."""
        if feed is not None and not feed.ended:
            return feed
        if feed is not None:
            self._leave(feed)
        found = self._feeds.get(view)
        if found is None or found.ended:
            position = await run_sync(self._store.position, view)
            found = self._feeds.get(view)  # Another subscriber may have created it in the meantime.
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
