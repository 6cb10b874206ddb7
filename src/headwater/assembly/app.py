"""An app and all its parts, joined: the log, the views, the console, Spark and the pipeline.

Used by `run` and `demo`. The console is up before Spark is, so there is something to look at meanwhile.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from headwater.app import App
from headwater.clock import Clock, SystemClock
from headwater.errors import ConflictError, InvalidError
from headwater.locks import FolderLock
from headwater.record import TopicPartition
from headwater.sink import Guarantee

if TYPE_CHECKING:
    from headwater.serve.live.group_lag import GroupLag
    from headwater.spark.pipeline.pipeline import Pipeline
    from headwater.store.facts import FactStore
    from headwater.store.views import ViewStore
    from headwater.transmit.broker.embedded import Broker

LOG_FOLDER = "broker"
DEATHS_MAX, DEATHS_WITHIN_S = 3, 600.0
"""How often Spark's Java may die, and within which time; what dies more often has a reason that stays."""
TOPIC_WAIT_S = 5.0
KEPT_FOR_EVER = {"retention.ms": "-1"}
"""Views can be rebuilt only from records that are still there; Kafka's default would delete them after a week."""

Say = Callable[[str], None]
Stop = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """How an app is run; `bootstrap_servers` None means the embedded log."""

    data: Path
    bootstrap_servers: str | None
    listen: tuple[str, int]
    http: tuple[str, int] | None
    master: str
    once: bool = False
    store: str | None = None
    """Address of the views, stronger than the app's own."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Settings for Spark."""


class SparkRun:
    """Spark, and the pipeline on it; where Spark's Java dies, both are made anew, and the rest stays as it is."""

    def __init__(self, make: "Callable[[ExitStack], Pipeline]", say: Say, clock: Clock) -> None:
        self._make = make
        self._say = say
        self._clock = clock
        self._deaths: list[float] = []
        self._stack = ExitStack()
        try:
            self.pipeline = make(self._stack)
        except BaseException:
            self._stack.close()
            raise

    def run(self, *, until: float | None = None) -> None:
        """Watch over the pipeline as it does itself, and over Spark's Java."""
        from headwater.spark.session.jvm import SparkDiedError

        while True:
            try:
                return self.pipeline.run(until=until)
            except SparkDiedError as error:
                self._revive(error)

    def close(self) -> None:
        self._stack.close()

    def _revive(self, error: Exception) -> None:
        now = self._clock.monotonic()
        self._deaths = [*(at for at in self._deaths if at > now - DEATHS_WITHIN_S), now]
        if len(self._deaths) > DEATHS_MAX:
            raise error
        self._say(f"{error}; starting it again ...")
        self._stack.close()
        self.pipeline = self._make(self._stack)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningApp:
    """What is running, for those who started it."""

    spark: SparkRun
    store: "ViewStore"
    bootstrap_servers: str
    console_url: str | None

    @property
    def pipeline(self) -> "Pipeline":
        """The pipeline as it is now."""
        return self.spark.pipeline


@contextmanager
def running(
    app: App, settings: RunSettings, say: Say, *, produce: Callable[[str], Stop] | None = None
) -> Iterator[RunningApp]:
    """Start everything in order, and stop it in the opposite order.

    `produce` is called with the log's address as soon as it is ready, and what it returns before the log ends.
    """
    from headwater.spark.pipeline.pipeline import Pipeline, PipelineSettings
    from headwater.spark.session.java import find_java
    from headwater.spark.session.session import spark_session
    from headwater.store.facts import FactStore

    clock = SystemClock()
    with ExitStack() as stack:
        lock = FolderLock(settings.data, "pipeline.lock", holder="pipeline")
        stack.callback(lock.release)
        broker = None if settings.bootstrap_servers else _start_broker(stack, settings, say)
        servers = broker.bootstrap_servers if broker else settings.bootstrap_servers or ""
        _ensure_topics(app, servers, embedded=settings.bootstrap_servers is None)
        store, facts = _open_store(stack, app, settings), FactStore(settings.data / "facts.db")
        url = _start_console(stack, app, (store, facts), servers, broker, settings, say)
        if produce is not None:
            stack.callback(produce(servers))
        java = find_java(os.environ)
        say(f"starting Spark at {settings.master} on Java {java.chosen.version} ({java.chosen.origin}) ...")
        log_file = settings.data / "logs" / "spark.log"
        places = PipelineSettings(bootstrap_servers=servers, data=settings.data.resolve(), once=settings.once)

        def start_pipeline(stack: ExitStack) -> Pipeline:
            name = f"headwater-{app.name}"
            session = spark_session(name, master=settings.master, log_file=log_file, java=java, conf=settings.conf)
            pipeline = Pipeline(app, stack.enter_context(session), store, facts, places, clock)
            say(f"Spark is ready; its log is {log_file}")
            stack.callback(pipeline.stop)
            pipeline.start()
            for query in app.sink_queries:
                promise = _promise(query.to.guarantee)
                say(f"sink {query.name} writes to {type(query.to).__name__}, {promise}")
            return pipeline

        spark = stack.enter_context(closing(SparkRun(start_pipeline, say, clock)))
        yield RunningApp(spark=spark, store=store, bootstrap_servers=servers, console_url=url)


@contextmanager
def log_of(data: Path, servers: str | None) -> Iterator[str]:
    """The address of a log: the one given, or of the embedded one of an app that does not run."""
    from headwater.transmit.broker.embedded import Broker

    with ExitStack() as stack:
        if servers is None:
            try:
                servers = stack.enter_context(Broker(data / LOG_FOLDER)).bootstrap_servers
            except ConflictError as error:
                hint = "the app runs: say where its log listens, with --bootstrap-servers HOST:PORT"
                raise ConflictError(str(error), hint=hint) from error
        yield servers


@contextmanager
def stopping_politely() -> Iterator[None]:
    """Let a polite kill end us as Ctrl-C does, with everything stopped in order."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _promise(guarantee: Guarantee) -> str:
    if guarantee is Guarantee.AT_LEAST_ONCE:
        return f"{guarantee}: after a failure something may come again, with the same idempotency key"
    return str(guarantee)


def _open_store(stack: ExitStack, app: App, settings: RunSettings) -> "ViewStore":
    from headwater.store.location import FILE, check_address, record_address
    from headwater.store.views import ViewStore

    address = settings.store or app.store
    place = settings.data / FILE if address is None else check_address(address)
    store = stack.enter_context(closing(ViewStore(place)))
    store.claim(app.name)
    record_address(settings.data, address)
    return store


def _start_broker(stack: ExitStack, settings: RunSettings, say: Say) -> "Broker":
    from headwater.transmit.broker.embedded import Broker

    host, port = settings.listen
    broker = stack.enter_context(Broker(settings.data / LOG_FOLDER, host=host, port=port))
    for partition, dropped in broker.recovered:
        say(f"recovered {partition}: cut off {dropped} bytes that were never acknowledged")
    say(f"log ready at {broker.bootstrap_servers}, for any Kafka client; data in {settings.data}")
    return broker


def _ensure_topics(app: App, servers: str, *, embedded: bool) -> None:
    """Create the app's topics in its own log; elsewhere leave it to the broker's settings."""
    from headwater.transmit.client.client import Client

    with Client(servers) as client:
        if embedded:
            for topic in app.topics:
                client.create_topic(topic.name, partitions=topic.partitions, configs=KEPT_FOR_EVER)
            return
        names = [topic.name for topic in app.topics]
        deadline = time.monotonic() + TOPIC_WAIT_S
        while missing := [n for n in names if n not in client.topics(names, auto_create=True)]:
            if time.monotonic() > deadline:
                raise InvalidError(
                    f"cannot run app {app.name!r}: topic {missing[0]!r} does not exist at {servers}, "
                    "and the broker does not create topics by itself",
                    hint=f"headwater topic create {missing[0]} --bootstrap-servers {servers}",
                )
            time.sleep(0.2)


def _start_console(
    stack: ExitStack,
    app: App,
    stores: "tuple[ViewStore, FactStore]",
    servers: str,
    broker: "Broker | None",
    settings: RunSettings,
    say: Say,
) -> str | None:
    if settings.http is None:
        return None
    from headwater.console.pages import routes
    from headwater.serve.api.app import ApiContext, create_app
    from headwater.serve.live.group_lag import GroupLags
    from headwater.serve.live.rates import TopicRates
    from headwater.serve.metrics import metrics_route, view_metrics
    from headwater.serve.server import HttpServer

    rates = TopicRates(_offsets_reader(servers), SystemClock())
    store, facts = stores
    groups = GroupLags(_groups_reader(servers))
    sources = ApiContext(app=app.name, views=store, facts=facts, topics=rates, groups=groups)
    figures = [*([broker.metrics] if broker else []), view_metrics(store)]
    http = create_app(sources, extra_routes=[metrics_route(figures), *routes()])
    server = stack.enter_context(HttpServer(http, *settings.http))
    say(f"console at {server.url}")
    return server.url


def _offsets_reader(servers: str) -> Callable[[], dict[TopicPartition, tuple[int, int]]]:
    from headwater.transmit.client.client import EARLIEST, LATEST, Client

    client = Client(servers)

    def read() -> dict[TopicPartition, tuple[int, int]]:
        found = client.topics()
        partitions = [TopicPartition(name, n) for name, info in found.items() for n in info.leaders]
        start, end = client.offsets(partitions, EARLIEST), client.offsets(partitions, LATEST)
        return {tp: (start[tp], end[tp]) for tp in partitions}

    return read


def _groups_reader(servers: str) -> "Callable[[], list[GroupLag]]":
    from headwater.serve.live.group_lag import GroupLag
    from headwater.transmit.client import groups as group_client
    from headwater.transmit.client.client import Client
    from headwater.transmit.client.lag import positions

    client = Client(servers)

    def read() -> list[GroupLag]:
        return [
            GroupLag(name=info.id, kind=info.kind, state=info.state, positions=positions(client, info))
            for info in group_client.list_groups(client)
        ]

    return read
