"""The HTTP API and the console of an app."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from headwater.app import App
from headwater.assembly.log import Log
from headwater.assembly.settings import Report, RunSettings
from headwater.assembly.store import Stores
from headwater.clock import SystemClock
from headwater.record import TopicPartition

if TYPE_CHECKING:
    from headwater.serve.live.group_lag import GroupLag
    from headwater.transmit.client.client import Client


@contextmanager
def open_console(
    app: App, log: Log, stores: Stores, settings: RunSettings, report: Report
) -> Iterator[str | None]:
    """Serve the API and the console, and yield their address; None if the settings ask for neither."""
    if settings.http is None:
        yield None
        return
    from headwater.console.pages import routes
    from headwater.serve.api.app import ApiContext, create_app
    from headwater.serve.api.status import read_pipelines
    from headwater.serve.live.group_lag import GroupLags
    from headwater.serve.live.rates import TopicRates
    from headwater.serve.metrics import metrics_route, pipeline_metrics, view_metrics
    from headwater.serve.server import HttpServer
    from headwater.transmit.client.client import Client

    servers = log.bootstrap_servers
    # Two clients, since topics and groups are read by two threads.
    with Client(servers) as topic_client, Client(servers) as group_client:
        context = ApiContext(
            app=app.name,
            views=stores.views,
            facts=stores.facts,
            topics=TopicRates(_offsets_reader(topic_client), SystemClock()),
            groups=GroupLags(_groups_reader(group_client)),
        )
        of_app = [view_metrics(stores.views), pipeline_metrics(partial(read_pipelines, context))]
        metrics = [*([log.broker.metrics] if log.broker else []), *of_app]
        http = create_app(context, extra_routes=[metrics_route(metrics), *routes()])
        with HttpServer(http, *settings.http) as server:
            report(f"console at {server.url}")
            yield server.url


def _offsets_reader(client: "Client") -> Callable[[], dict[TopicPartition, tuple[int, int]]]:
    from headwater.record import EARLIEST, LATEST

    def read() -> dict[TopicPartition, tuple[int, int]]:
        found = client.topics()
        partitions = [TopicPartition(name, n) for name, info in found.items() for n in info.leaders]
        start, end = client.offsets(partitions, EARLIEST), client.offsets(partitions, LATEST)
        return {tp: (start[tp], end[tp]) for tp in partitions}

    return read


def _groups_reader(client: "Client") -> "Callable[[], list[GroupLag]]":
    from headwater.serve.live.group_lag import GroupLag
    from headwater.transmit.client.groups import list_groups
    from headwater.transmit.client.lag import positions

    def read() -> list[GroupLag]:
        return [
            GroupLag(name=info.id, kind=info.kind, state=info.state, positions=positions(client, info))
            for info in list_groups(client)
        ]

    return read
