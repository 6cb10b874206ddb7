"""Subscribing to a view: its rows as of a position, then every change behind it, without a gap.

    reset     forget what you have; rows follow
    row       a row of the view, as of one position for all
    ready     these were all, and from here on come changes
    change    one change, in the order of positions

`ready` and `change` carry a token. Who comes back with it goes on behind it; who comes back too late, or after the
view was made anew, is reset. The rows are read in pages, each as of the same position, so nothing is held for a
slow subscriber; one that is so slow that the history has gone past its position begins again.
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
CHANGES_AT_ONCE = 500


class EventKind(StrEnum):
    """What an event of a subscription says."""

    RESET = "reset"
    ROW = "row"
    READY = "ready"
    CHANGE = "change"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that a subscriber is told; `token` is where to go on from, where that is possible."""

    kind: EventKind
    row: dict[str, Any] | None = None
    change: Change | None = None
    token: str | None = None


@dataclass(frozen=True, slots=True)
class SubscriberPosition:
    """Where a subscriber is: behind a position, or still among the rows as of it."""

    position: int | None = None
    reading: bool = False
    after: Cursor | None = None


def standing_at(store: ViewStore, token: str | None) -> SubscriberPosition:
    """Where a subscriber goes on that has a token; without one, or with one of another store, from nothing."""
    if token is None:
        return SubscriberPosition()
    identity = store.identity()
    owner = token.rpartition("-")[0]
    if owner and owner != identity:
        parse_position(token, owner)  # It says so if that is no token at all.
        return SubscriberPosition()
    return SubscriberPosition(parse_position(token, identity))


def next_events(store: ViewStore, view: str, at: SubscriberPosition) -> tuple[SubscriberPosition, list[Event]]:
    """What a subscriber is told next, and where it stands then; nothing if nothing has happened."""
    if at.position is None:
        return SubscriberPosition(store.position(view), reading=True), [Event(kind=EventKind.RESET)]
    if at.reading:
        return _next_rows(store, view, at)
    current = store.position(view)
    if current == at.position:
        return at, []
    changes = store.changes(view, after=at.position, limit=CHANGES_AT_ONCE) if current > at.position else []
    # Positions have no gaps, so a first change that is not the next one means that the next one is gone.
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
        if view in {shape.name for shape in store.views()}:  # Its columns have changed under us: it was rebuilt.
            return next_events(store, view, SubscriberPosition())
        raise
    events = [Event(kind=EventKind.ROW, row=row) for row in answer.rows]
    if answer.next is not None:
        return SubscriberPosition(at.position, reading=True, after=decode_cursor(answer.next)), events
    return SubscriberPosition(at.position), [*events, Event(kind=EventKind.READY, token=answer.token)]
