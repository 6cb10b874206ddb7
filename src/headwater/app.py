"""App: names topics and views, and wires functions to them. It runs nothing; `headwater run` does.

app = hw.App("shop")
orders = app.topic("orders", schema="product string, amount double, at timestamp", event_time="at")

@app.view(orders, key=["product"])
def revenue(orders):
    return orders.groupBy("product").sum("amount")
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from headwater.errors import InvalidError
from headwater.sink import Sink

ViewFunction = TypeVar("ViewFunction", bound=Callable[..., Any])

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
DEAD_LETTER_SUFFIX = ".deadletter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic to read, and how its records become rows.

    Without a schema the rows are the records: `key`, `value`, `topic`, `partition`, `offset`, `timestamp`.
    Without an event time column the event time is the record's own timestamp, in the column `timestamp`.
    """

    name: str
    schema: str | None = None
    event_time: str | None = None
    partitions: int = 1
    """Of a topic that the app creates in its embedded log."""
    delay: str | None = None
    """How far out of order events may be: the watermark stands this far behind the highest event time."""
    idle: str | None = None
    """After how long without records a partition no longer holds the watermark back; never unless told."""
    watermark: Callable[[Any], Any] | None = field(default=None, repr=False)
    """Instead of `delay`: of what came from a partition (`Observed`), the time up to which it is complete."""

    @property
    def dead_letters(self) -> str:
        """The topic to which records go that do not fit the schema."""
        return self.name + DEAD_LETTER_SUFFIX


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What `function` makes of topics, without end. With a `key`, a row replaces the one of the same key."""

    name: str
    topics: tuple[Topic, ...]
    key: tuple[str, ...]
    function: Callable[..., Any] = field(repr=False)
    kind: ClassVar[str] = "query"


@dataclass(frozen=True, slots=True, kw_only=True)
class View(Query):
    """A table that is kept up to date in the app's own store, one row for each key."""

    indexes: tuple[tuple[str, ...], ...] = ()
    """Columns by which rows are found and sorted, beside the key."""
    search: tuple[str, ...] = ()
    """Columns with text whose words can be searched."""
    history: int | None = None
    """How many changes are kept; 10 000 unless told."""
    kind: ClassVar[str] = "view"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkQuery(Query):
    """Results that go to a place outside."""

    to: Sink
    kind: ClassVar[str] = "sink"


class App:
    """A program over streams; `name` appears in the console and in file names.

    `store` is where its views are kept: a `postgresql://` address, or in the data directory unless told.
    """

    def __init__(self, name: str, *, store: str | None = None) -> None:
        _check_name("app", name)
        self.name = name
        self.store = store
        self._topics: dict[str, Topic] = {}
        self._queries: dict[str, Query] = {}

    @property
    def topics(self) -> tuple[Topic, ...]:
        return tuple(self._topics.values())

    @property
    def queries(self) -> tuple[Query, ...]:
        """The views and the sinks."""
        return tuple(self._queries.values())

    @property
    def views(self) -> tuple[View, ...]:
        return tuple(query for query in self.queries if isinstance(query, View))

    @property
    def sink_queries(self) -> tuple[SinkQuery, ...]:
        return tuple(query for query in self.queries if isinstance(query, SinkQuery))

    def view_named(self, name: str) -> View:
        """The view of that name; an InvalidError that names the others if there is none."""
        views = {view.name: view for view in self.views}
        if name not in views:
            raise InvalidError(f"app {self.name!r} has no view {name!r}; it has: {', '.join(views)}")
        return views[name]

    def topic(
        self,
        name: str,
        *,
        schema: str | None = None,
        event_time: str | None = None,
        partitions: int = 1,
        delay: str | None = None,
        idle: str | None = None,
        watermark: Callable[[Any], Any] | None = None,
    ) -> Topic:
        """Declare a topic; `schema` is Spark's (`"order_id string, amount double"`), values are JSON objects.

        Each partition's watermark stands `delay` (`"5 seconds"`) behind its highest event time, and the topic's is
        the least of them; a partition without records for `idle` is left out. Where a delay is not enough,
        `watermark` is a function of an `Observed` that gives a partition's watermark as a datetime.
        """
        if name in self._topics:
            raise InvalidError(f"app {self.name!r} declares topic {name!r} twice")
        if event_time is not None and schema is None:
            raise InvalidError(
                f"topic {name!r} names event time {event_time!r} but has no schema with that column"
            )
        if watermark is not None and (delay is not None or not callable(watermark)):
            given = (
                f"also has delay {delay!r}, which the function decides"
                if callable(watermark)
                else "is no function"
            )
            raise InvalidError(f"topic {name!r}: watermark={watermark!r} {given}; give a function, or a delay")
        topic = Topic(
            name=name,
            schema=schema,
            event_time=event_time,
            partitions=partitions,
            delay=delay,
            idle=idle,
            watermark=watermark,
        )
        self._topics[name] = topic
        return topic

    def view(
        self,
        *topics: Topic,
        key: str | Sequence[str],
        name: str | None = None,
        indexes: Sequence[str | Sequence[str]] = (),
        search: str | Sequence[str] = (),
        history: int | None = None,
    ) -> Callable[[ViewFunction], ViewFunction]:
        """Make a view of what the decorated function returns.

        The function is given a streaming DataFrame for each topic and returns one. Its rows are upserted by `key`.
        `indexes` name columns, or several each, by which rows are found and sorted without reading all; a field of
        a struct is `window.start`. `search` names columns with text whose words can be searched. `history` is how
        many changes are kept, for subscribers that come back and for rows as of an earlier position (10 000 unless
        told). These three can be changed at any start, without computing the view anew.
        """

        def declare(function: ViewFunction) -> ViewFunction:
            query = View(
                name=name or function.__name__,
                topics=topics,
                key=_names(key),
                function=function,
                indexes=tuple(_names(columns) for columns in indexes),
                search=_names(search),
                history=history,
            )
            self._add(query)
            if not query.key:
                raise InvalidError(f"view {query.name!r} has no key columns")
            return function

        return declare

    def sink(
        self, *topics: Topic, to: Sink, key: str | Sequence[str] = (), name: str | None = None
    ) -> Callable[[ViewFunction], ViewFunction]:
        """Send what the decorated function returns to a place outside the app.

        The function is given a streaming DataFrame for each topic and returns one. With a `key`, a row replaces
        the one of the same key there, and a row that is taken back is deleted; without, rows are appended.
        """

        def declare(function: ViewFunction) -> ViewFunction:
            self._add(
                SinkQuery(name=name or function.__name__, topics=topics, key=_names(key), function=function, to=to)
            )
            return function

        return declare

    def _add(self, query: Query) -> None:
        _check_name(query.kind, query.name)
        if not query.topics:
            raise InvalidError(
                f"{query.kind} {query.name!r} of app {self.name!r} reads no topic: @app.{query.kind}(orders, ...)"
            )
        if query.name in self._queries:
            raise InvalidError(
                f"app {self.name!r} declares {query.kind} {query.name!r}, and there is a "
                f"{self._queries[query.name].kind} of that name"
            )
        self._queries[query.name] = query


def _names(key: str | Sequence[str]) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)


def _check_name(kind: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidError(f"{kind} name {name!r} must be letters, digits and '_', and not start with a digit")
