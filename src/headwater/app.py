"""App: declares topics, views and sinks, and the functions that compute them.

`headwater run` or `app.run()` runs it, and `app.start()` runs it in the background.

app = hw.App("shop")
orders = app.topic("orders", schema="product string, amount double, at timestamp", event_time="at")

@app.view(orders, key=["product"])
def revenue(orders):
    return orders.groupBy("product").sum("amount")
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from headwater.errors import InvalidError
from headwater.sink import Sink

if TYPE_CHECKING:
    from headwater.assembly.running import RunningApp

ViewFunction = TypeVar("ViewFunction", bound=Callable[..., Any])

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
DEAD_LETTER_SUFFIX = ".deadletter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic that an app reads, and the schema of its records.

    Without a schema, rows have the columns of a record: `key`, `value`, `topic`, `partition`, `offset`,
    `timestamp`. Without `event_time`, the event time is the record's timestamp, in the column `timestamp`.
    """

    name: str
    schema: str | None = None
    event_time: str | None = None
    partitions: int = 1
    """Number of partitions, if the app creates the topic in its embedded log."""
    delay: str | None = None
    """Expected disorder of events: the watermark is the highest event time minus this."""
    idle: str | None = None
    """Time without records after which a partition no longer holds the watermark back; defaults to never."""
    watermark: Callable[[Any], Any] | None = field(default=None, repr=False)
    """Computes a partition's watermark from its `Observed` records, instead of `delay`."""

    @property
    def dead_letters(self) -> str:
        """Name of the topic that receives records that do not match the schema."""
        return self.name + DEAD_LETTER_SUFFIX


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A streaming computation over topics. With a `key`, a row replaces the previous row with the same key.

    The arguments of its function are its `inputs`; `topics` are those that it reads, also through other views.
    """

    name: str
    topics: tuple[Topic, ...]
    inputs: "tuple[Topic | View, ...]" = ()
    key: tuple[str, ...]
    function: Callable[..., Any] = field(repr=False)
    result: str | None = None
    """Name of its rows among those that the function returns; None if the function returns one DataFrame."""
    pipeline: str | None = None
    """Name of a pipeline of its own, apart from the other queries of the app."""
    kind: ClassVar[str] = "query"


@dataclass(frozen=True, slots=True, kw_only=True)
class View(Query):
    """A table that is kept up to date in the app's store, with one row per key."""

    indexes: tuple[tuple[str, ...], ...] = ()
    """Secondary indexes: columns by which rows can be filtered and sorted."""
    search: tuple[str, ...] = ()
    """Text columns that can be searched."""
    history: int | None = None
    """Number of changes to keep; defaults to 10,000."""
    kind: ClassVar[str] = "view"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkQuery(Query):
    """A computation whose results are written to a sink."""

    to: Sink
    kind: ClassVar[str] = "sink"


class App:
    """A streaming program; `name` appears in the console and in file names.

    `store` is the address of the database for its views (`postgresql://...`); defaults to a file in the data
    directory.
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
        """Return the view with a name; raise an InvalidError that lists the views if there is none."""
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
        """Declare a topic whose values are JSON objects; `schema` is Spark's (`"order_id string, amount double"`).

        The watermark of a partition is its highest event time minus `delay` (`"5 seconds"`). The watermark of the
        topic is the lowest of its partitions; a partition without records for `idle` is left out. If a constant
        delay is not enough, pass `watermark`: a function from an `Observed` to the partition's watermark, a
        datetime.
        """
        if name in self._topics:
            raise InvalidError(f"app {self.name!r} declares topic {name!r} twice")
        if event_time is not None and schema is None:
            raise InvalidError(f"topic {name!r}: event_time={event_time!r} needs a schema with that column")
        if watermark is not None and (delay is not None or not callable(watermark)):
            problem = f"cannot be combined with delay={delay!r}" if callable(watermark) else "is not a function"
            raise InvalidError(
                f"topic {name!r}: watermark={watermark!r} {problem}; pass either a function or a delay"
            )
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
        *inputs: "Topic | View | Callable[..., Any]",
        key: str | Sequence[str],
        name: str | None = None,
        indexes: Sequence[str | Sequence[str]] = (),
        search: str | Sequence[str] = (),
        history: int | None = None,
        result: str | None = None,
        pipeline: str | None = None,
    ) -> Callable[[ViewFunction], ViewFunction]:
        """Declare a view with the rows that the decorated function returns.

        The function receives a streaming DataFrame for each input and returns one. Its rows are upserted by `key`.
        An input is a topic, or another view of the app, named by its function: then the DataFrame has the changes
        of that view (`_change`), which it gets in the same batch.

        `indexes` lists columns, or tuples of columns, by which rows can be filtered and sorted without reading all
        of them; `window.start` is a field of a struct. `search` lists text columns that can be searched. `history`
        is the number of changes to keep, for subscribers that reconnect and for reads as of an earlier position;
        it defaults to 10,000. These three can be changed at any start without rebuilding the view.

        A function may return several DataFrames, as a dict by name. Then each view or sink of it is declared with
        the name of its `result`, which is its own name by default:

            @app.view(orders, key="product", result="revenue")
            @app.sink(orders, to=hw.Parquet("large"), result="large")
            def shop(orders):
                return {"revenue": ..., "large": ...}

        The views and sinks of an app advance together, batch by batch. One with a `pipeline` of its own, such as
        `"slow"`, is a streaming query of Spark's apart from the others, which do not wait for it.
        """

        def declare(function: ViewFunction) -> ViewFunction:
            query = View(
                name=name or result or function.__name__,
                topics=_topics(found),
                inputs=found,
                key=_names(key),
                function=function,
                result=result,
                indexes=tuple(_names(columns) for columns in indexes),
                search=_names(search),
                history=history,
                pipeline=pipeline,
            )
            self._add(query)
            if not query.key:
                raise InvalidError(
                    f"view {query.name!r} has no key; pass key=[...], the columns that identify a row"
                )
            return function

        found = self._inputs("view", inputs)
        return declare

    def sink(
        self,
        *inputs: "Topic | View | Callable[..., Any]",
        to: Sink,
        key: str | Sequence[str] = (),
        name: str | None = None,
        result: str | None = None,
        pipeline: str | None = None,
    ) -> Callable[[ViewFunction], ViewFunction]:
        """Write the rows that the decorated function returns to a sink outside the app.

        The function receives a streaming DataFrame for each input, a topic or a view, and returns one. With a
        `key`, a row replaces the previous row with the same key, and a retracted row is deleted. Without a key,
        rows are appended. `result` and `pipeline` are as for a view.
        """

        def declare(function: ViewFunction) -> ViewFunction:
            self._add(
                SinkQuery(
                    name=name or result or function.__name__,
                    topics=_topics(found),
                    inputs=found,
                    key=_names(key),
                    function=function,
                    result=result,
                    to=to,
                    pipeline=pipeline,
                )
            )
            return function

        found = self._inputs("sink", inputs)
        return declare

    def run(  # noqa: PLR0913 - the options of `headwater run`
        self,
        *,
        data: str | Path = ".headwater",
        bootstrap_servers: str | None = None,
        master: str = "local[*]",
        listen: str = "127.0.0.1:9092",
        http: str | None = "127.0.0.1:8080",
        once: bool = False,
        store: str | None = None,
        conf: Mapping[str, str] | None = None,
        spark: Any = None,
    ) -> None:
        """Run the app until Ctrl-C, like `headwater run`, which has the same options and defaults.

        With `once`, process the records in the log and return; a query that fails raises a HeadwaterError then.
        `spark` is a SparkSession to run on; by default the app starts one of its own, and stops it.
        """
        settings = _assembly("settings").RunSettings.of(
            data=data,
            bootstrap_servers=bootstrap_servers,
            master=master,
            listen=listen,
            http=None if once else http,
            once=once,
            store=store,
            conf=conf or {},
            spark=spark,
        )
        with suppress(KeyboardInterrupt):
            _assembly("run").run_app(self, settings, _print)

    def start(
        self,
        *,
        data: str | Path | None = None,
        bootstrap_servers: str | None = None,
        master: str = "local[*]",
        listen: str = "127.0.0.1:0",
        http: str | None = None,
        store: str | None = None,
        conf: Mapping[str, str] | None = None,
        spark: Any = None,
    ) -> "RunningApp":
        """Start the app in the background of a program, a test or a notebook, and return it when it is running.

            with app.start() as running:
                producer = Producer({"bootstrap.servers": running.bootstrap_servers})
                ...
                running.wait_until_seen()
                running.view("revenue").rows()

        Without `data`, log and views are in a temporary directory, which is removed at the end. The embedded log
        listens at a free port, and there is a console if `http` names its address. `spark` is a SparkSession to
        run on; by default the app starts one of its own, and stops it.
        """
        settings = _assembly("settings").RunSettings.of(
            data=data,
            bootstrap_servers=bootstrap_servers,
            master=master,
            listen=listen,
            http=http,
            store=store,
            conf=conf or {},
            spark=spark,
        )
        running: RunningApp = _assembly("running").RunningApp(self, settings)
        return running

    def _inputs(self, kind: str, given: Sequence[Any]) -> "tuple[Topic | View, ...]":
        """Return the topics and views that are given; a view may be given by its function."""
        found: list[Topic | View] = []
        for one in given:
            views = [view for view in self.views if one is view or one is view.function]
            if isinstance(one, Topic):
                found.append(one)
            elif len(views) == 1:
                found.append(views[0])
            elif views:
                names = ", ".join(view.name for view in views)
                raise InvalidError(
                    f"a {kind} of app {self.name!r} reads a function of several views: {names}; "
                    f"name one of them: app.view_named({views[0].name!r})"
                )
            else:
                what = getattr(one, "__name__", repr(one))
                raise InvalidError(
                    f"a {kind} of app {self.name!r} cannot read {what!r}: it is neither a topic (app.topic) nor a "
                    f"view that the app has declared before (@app.view); its views are: "
                    f"{', '.join(view.name for view in self.views) or 'none'}"
                )
        return tuple(found)

    def _add(self, query: Query) -> None:
        _check_name(query.kind, query.name)
        if not query.topics:
            raise InvalidError(
                f"{query.kind} {query.name!r} of app {self.name!r} reads no topic; "
                f"pass one: @app.{query.kind}(orders, ...)"
            )
        if query.name in self._queries:
            raise InvalidError(
                f"app {self.name!r} declares {query.kind} {query.name!r}, but it already has a "
                f"{self._queries[query.name].kind} with that name"
            )
        self._queries[query.name] = query


def _assembly(module: str) -> Any:
    """Import a module that runs apps; a program that only declares an app does not need it."""
    return import_module(f"headwater.assembly.{module}")


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - what `headwater run` prints


def _topics(inputs: "Sequence[Topic | View]") -> tuple[Topic, ...]:
    """Return the topics that inputs are computed from, each once."""
    found = (each.topics if isinstance(each, View) else (each,) for each in inputs)
    return tuple({topic.name: topic for topics in found for topic in topics}.values())


def _names(key: str | Sequence[str]) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)


def _check_name(kind: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidError(f"{kind} name {name!r} must be letters, digits and '_', and not start with a digit")
