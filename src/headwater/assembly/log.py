"""The log of an app: the embedded broker, or the address of another one."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.app import App
from headwater.assembly.settings import Report, RunSettings
from headwater.errors import ConflictError, InvalidError

if TYPE_CHECKING:
    from headwater.transmit.broker.embedded import Broker

LOG_FOLDER = "broker"
TOPIC_WAIT_S = 5.0
UNLIMITED_RETENTION = {"retention.ms": "-1"}
"""Views can be rebuilt only from records that still exist; Kafka's default deletes them after a week."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """An open log; `broker` is the embedded broker, or None if the log is elsewhere."""

    bootstrap_servers: str
    broker: "Broker | None" = None


@contextmanager
def open_log(app: App, settings: RunSettings, report: Report) -> Iterator[Log]:
    """Start the embedded broker, unless the settings name another one, and make sure the app's topics exist."""
    if settings.bootstrap_servers is not None:
        check_topics(app, settings.bootstrap_servers)
        yield Log(bootstrap_servers=settings.bootstrap_servers)
        return
    from headwater.transmit.broker.embedded import Broker

    host, port = settings.listen
    with Broker(settings.data / LOG_FOLDER, host=host, port=port) as broker:
        for partition, dropped in broker.recovered:
            report(f"recovered {partition}: removed {dropped} bytes at its end that were never acknowledged")
        report(f"log ready at {broker.bootstrap_servers}, for any Kafka client; data in {settings.data}")
        create_topics(app, broker.bootstrap_servers)
        yield Log(bootstrap_servers=broker.bootstrap_servers, broker=broker)


@contextmanager
def log_address(data: Path, servers: str | None) -> Iterator[str]:
    """Yield the address of a log: the given one, or that of the embedded log, started for a stopped app."""
    from headwater.transmit.broker.embedded import Broker

    with ExitStack() as stack:
        if servers is None:
            try:
                servers = stack.enter_context(Broker(data / LOG_FOLDER)).bootstrap_servers
            except ConflictError as error:
                hint = "the app is running: pass the address of its log with --bootstrap-servers HOST:PORT"
                raise ConflictError(str(error), hint=hint) from error
        yield servers


def create_topics(app: App, servers: str) -> None:
    """Create the app's topics in its embedded log, with unlimited retention."""
    from headwater.transmit.client.client import Client

    with Client(servers) as client:
        for topic in app.topics:
            client.create_topic(topic.name, partitions=topic.partitions, configs=UNLIMITED_RETENTION)


def check_topics(app: App, servers: str) -> None:
    """Wait until a log elsewhere has the app's topics; its own settings decide whether it creates them."""
    from headwater.transmit.client.client import Client

    names = [topic.name for topic in app.topics]
    deadline = time.monotonic() + TOPIC_WAIT_S
    with Client(servers) as client:
        while missing := [n for n in names if n not in client.topics(names, auto_create=True)]:
            if time.monotonic() > deadline:
                raise InvalidError(
                    f"cannot run app {app.name!r}: topic {missing[0]!r} does not exist at {servers}, "
                    "and the broker does not create topics automatically",
                    hint=f"headwater topic create {missing[0]} --bootstrap-servers {servers}",
                )
            time.sleep(0.2)
