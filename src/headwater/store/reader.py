"""Views: read an app's views from any Python program, on the same machine, or anywhere if they are in PostgreSQL.

    with hw.Views(".headwater") as views:
        views["revenue"].get("tea")

It reads the store directly, whether the app is running or not. Thread-safe.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headwater.clock import Clock, SystemClock
from headwater.errors import UnavailableError
from headwater.store import queries
from headwater.store.databases.engine import is_address
from headwater.store.location import find_store
from headwater.store.questions import (
    LIMIT,
    Answer,
    AtLeast,
    Condition,
    Question,
    at_least_of,
    condition_of,
    decode_cursor,
    order_of,
    parse_position,
)
from headwater.store.subscription import Event, next_events, resume_position
from headwater.store.tables import OFFSETS, progress_of
from headwater.store.views import ViewStore

POLL_S = 0.02
TIMEOUT_S = 10.0

Where = Sequence["str | Sequence[Any] | Condition"]
Fresh = str | int | Mapping[str, Mapping[int, int]]


class Views:
    """The views of an app: `place` is its data directory, or the `postgresql://` address of its store.

    `views["revenue"]` is the reader of one view. Close it, or use it in a `with` block.
    """

    def __init__(self, place: str | Path = ".headwater") -> None:
        found = str(place) if is_address(place) else find_store(Path(place))
        self._store = ViewStore(found, read_only=True)

    def __getitem__(self, name: str) -> "ViewReader":
        self._store.shape(name)  # Raises InvalidError if there is none.
        return ViewReader(self._store, name, SystemClock())

    def names(self) -> list[str]:
        """Return the names of the views."""
        return [shape.name for shape in self._store.views()]

    def close(self) -> None:
        """Close connections."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ViewReader:
    """Reads one view.

    Every read takes `at_least`, the state that the view must have reached: a number is a position, a text is a
    token from an answer or `TOPIC:PARTITION:OFFSET`, and `{"orders": {0: 17}}` names the last records by their
    offsets. If the view has not reached it after `timeout_s`, the read raises an UnavailableError with the view's
    state.
    """

    def __init__(self, store: ViewStore, name: str, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self.name = name

    def get(
        self,
        *key: Any,
        as_of: str | int | None = None,
        at_least: Fresh | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> dict[str, Any] | None:
        """Return the row of a key, given one value for each key column; None if there is none."""
        self.wait(at_least, timeout_s=timeout_s)
        if as_of is None:
            return self._store.get(self.name, key)
        where = [(name, "=", value) for name, value in zip(self._store.shape(self.name).key, key, strict=True)]
        found = self.rows(where=where, as_of=as_of, limit=1).rows
        return found[0] if found else None

    def rows(
        self,
        *,
        where: Where = (),
        order_by: str | Sequence[str] = (),
        limit: int = LIMIT,
        after: str | None = None,
        as_of: str | int | None = None,
        at_least: Fresh | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Answer:
        """Return the rows that match all conditions, sorted by the columns of `order_by`.

        A condition is text (`"amount >= 10"`) or a tuple (`("amount", ">=", 10)`), `order_by` is like `"-amount"`.

        `after` is the `next` of the previous answer and returns the page after it. `as_of`, a position or a token,
        returns the rows as of an earlier position.
        """
        self.wait(at_least, timeout_s=timeout_s)
        question = Question(
            where=tuple(condition_of(each) for each in where),
            order=order_of(order_by),
            limit=limit,
            after=None if after is None else decode_cursor(after),
            as_of=self._position(as_of),
        )
        return self._store.ask(self.name, question)

    def search(
        self,
        text: str,
        *,
        where: Where = (),
        order_by: str | Sequence[str] = (),
        limit: int = LIMIT,
        after: str | None = None,
        at_least: Fresh | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Answer:
        """Return rows with these words in the columns that the view's `search` names, by relevance.

        `green tea` matches both words in any order, `"green tea"` the exact phrase, `gree*` a prefix, `tea OR
        coffee` either word, and `-decaf` excludes a word.
        """
        self.wait(at_least, timeout_s=timeout_s)
        question = Question(
            where=tuple(condition_of(each) for each in where),
            search=text,
            order=order_of(order_by),
            limit=limit,
            after=None if after is None else decode_cursor(after),
        )
        return self._store.ask(self.name, question)

    def subscribe(self, token: str | None = None, *, silent_s: float | None = None) -> Iterator[Event]:
        """Yield the rows, then every change as it happens; with a token, only the changes after it.

        Ends after `silent_s` seconds without a change; defaults to never.
        """
        position = resume_position(self._store, token)
        since = self._clock.monotonic()
        while True:
            position, events = next_events(self._store, self.name, position)
            if events:
                yield from events
                since = self._clock.monotonic()
            elif silent_s is not None and self._clock.monotonic() - since >= silent_s:
                return
            else:
                time.sleep(POLL_S)

    def position(self) -> int:
        """Return the position of the view's last change."""
        return self._store.position(self.name)

    def wait(self, at_least: Fresh | None, *, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until the view has reached `at_least`; raises UnavailableError after `timeout_s`."""
        if at_least is None:
            return
        wanted = at_least_of(at_least, self._store.identity())
        deadline = self._clock.monotonic() + timeout_s
        while not queries.has_seen(self._store.reading(), self.name, wanted):
            if self._clock.monotonic() >= deadline:
                raise not_seen(self._store, self.name, wanted, timeout_s)
            time.sleep(POLL_S)

    def _position(self, given: str | int | None) -> int | None:
        return parse_position(given, self._store.identity()) if isinstance(given, str) else given


def not_seen(store: ViewStore, view: str, wanted: AtLeast, timeout_s: float) -> UnavailableError:
    """Return the error for a view that has not reached a state in time, with the state that it has reached."""
    db = store.reading()
    progress = progress_of(db, view)
    read = {} if progress is None else progress.note.get(OFFSETS, {})
    parts = [f"position {wanted.position}"] if wanted.position is not None else []
    parts += [f"{topic}:{partition}:{offset}" for topic, partition, offset in wanted.offsets]
    offsets = [
        f"{topic}:{n}:{int(end) - 1}" for topic, each in read.items() for n, end in each.items() if int(end)
    ]
    return UnavailableError(
        f"view {view!r} has not seen {', '.join(parts)} within {timeout_s:g} s: it is at position "
        f"{store.position(view)}, and the last records it has seen are {', '.join(offsets) or 'none'}",
        hint="check that the app is running (`headwater pipeline list`), or use a longer timeout",
    )
