"""Subscriptions: the rows of a view as of a position, then every change after it, without a gap.

    reset     discard all rows; the current rows follow
    row       a row of the view; all rows are as of the same position
    ready     all rows were sent; changes follow
    change    one change, in the order of positions

`ready` and `change` carry a token, and a subscriber that reconnects with it continues after it. A subscriber that
reconnects too late, or after the view was rebuilt, is reset. The rows are read in pages as of the same position,
so nothing is buffered for a slow subscriber; one that is slower than the history starts again.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from headwater.change import Change
from headwater.errors import InvalidError
from headwater.store.queries import HistoryGoneError
from headwater.store.questions import Cursor, Question, decode_cursor, parse_position, token_of
from headwater.store.views import ViewStore

PAGE_ROWS = 1000
BLOCK_CHANGES = 500


class EventKind(StrEnum):
    """The kind of a subscription's event."""

    RESET = "reset"
    ROW = "row"
    READY = "ready"
    CHANGE = "change"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event for a subscriber; `token`, where there is one, continues after it."""

    kind: EventKind
    row: dict[str, Any] | None = None
    change: Change | None = None
    token: str | None = None


@dataclass(frozen=True, slots=True)
class SubscriberPosition:
    """The state of a subscriber: after a position, or still reading the rows as of it."""

    position: int | None = None
    reading: bool = False
    after: Cursor | None = None


def resume_position(store: ViewStore, token: str | None) -> SubscriberPosition:
    """Return where a subscriber with a token continues: at the start without one, or with one of another store."""
    if token is None:
        return SubscriberPosition()
    identity = store.identity()
    owner = token.rpartition("-")[0]
    if owner and owner != identity:
        parse_position(token, owner)  # Raises InvalidError if it is not a token at all.
        return SubscriberPosition()
    return SubscriberPosition(parse_position(token, identity))


def next_events(store: ViewStore, view: str, at: SubscriberPosition) -> tuple[SubscriberPosition, list[Event]]:
    """Return the next events for a subscriber, none if nothing has changed, and its state after them."""
    if at.position is None:
        return SubscriberPosition(store.position(view), reading=True), [Event(kind=EventKind.RESET)]
    if at.reading:
        return _next_rows(store, view, at)
    current = store.position(view)
    if current == at.position:
        return at, []
    changes = store.changes(view, after=at.position, limit=BLOCK_CHANGES) if current > at.position else []
    # Positions have no gaps: if the first change is not the next one, that one is no longer in the history.
    if not changes or changes[0].position != at.position + 1:
        return next_events(store, view, SubscriberPosition())
    identity = store.identity()
    events = [Event(kind=EventKind.CHANGE, change=c, token=token_of(identity, c.position)) for c in changes]
    return SubscriberPosition(changes[-1].position), events


def _next_rows(store: ViewStore, view: str, at: SubscriberPosition) -> tuple[SubscriberPosition, list[Event]]:
    try:
        answer = store.ask(view, Question(as_of=at.position, after=at.after, limit=PAGE_ROWS))
    except HistoryGoneError:
        return next_events(store, view, SubscriberPosition())
    except InvalidError:
        if view in {shape.name for shape in store.views()}:  # It was rebuilt with other columns.
            return next_events(store, view, SubscriberPosition())
        raise
    events = [Event(kind=EventKind.ROW, row=row) for row in answer.rows]
    if answer.next is not None:
        return SubscriberPosition(at.position, reading=True, after=decode_cursor(answer.next)), events
    return SubscriberPosition(at.position), [*events, Event(kind=EventKind.READY, token=answer.token)]
