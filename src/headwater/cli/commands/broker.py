"""`headwater broker`: run the log alone, for any Kafka client."""

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from headwater.transmit.broker.node import BrokerSettings

from headwater.assembly.settings import parse_address
from headwater.cli.log_format import set_up_logging
from headwater.errors import ConflictError


def broker(
    listen: Annotated[
        str, typer.Option(help="Address to listen on; port 0 chooses a free port.", show_default=True)
    ] = "127.0.0.1:9092",
    data: Annotated[Path, typer.Option(help="Directory of the log.")] = Path(".headwater/broker"),
    advertised_host: Annotated[
        str | None, typer.Option(help="Host that clients should connect to; defaults to the host of --listen.")
    ] = None,
    partitions: Annotated[
        int, typer.Option(min=1, help="Number of partitions of an automatically created topic.")
    ] = 1,
    auto_create_topics: Annotated[bool, typer.Option(help="Create a topic when a client first uses it.")] = True,
    accept_any_replication_factor: Annotated[
        bool,
        typer.Option(help="Accept any replication factor when a topic is created; there is always one replica."),
    ] = False,
    durability: Annotated[
        str,
        typer.Option(
            help="When to sync records to disk: fsync (before acknowledging), interval, or never (as Kafka)."
        ),
    ] = "fsync",
    metrics: Annotated[
        str | None,
        typer.Option(help="Address for Prometheus metrics, such as 127.0.0.1:9308; off by default."),
    ] = None,
    log_format: Annotated[
        str, typer.Option(help="Format of log messages on stderr: text, or json with one object per line.")
    ] = "text",
) -> None:
    """Run the log until Ctrl-C.

    Example: headwater broker --listen 127.0.0.1:9092 --data ./log
    """
    from headwater.errors import InvalidError
    from headwater.transmit.broker.node import BrokerSettings
    from headwater.transmit.topics.group_commit import Durability

    host, port = parse_address(listen, "--listen")
    try:
        promise = Durability(durability)
    except ValueError:
        raise InvalidError(f"cannot read --durability {durability!r}: expected {', '.join(Durability)}") from None
    settings = BrokerSettings(
        data=data,
        host=host,
        port=port,
        advertised_host=advertised_host,
        num_partitions=partitions,
        auto_create_topics_enable=auto_create_topics,
        accept_any_replication_factor=accept_any_replication_factor,
        durability=promise,
    )
    set_up_logging(log_format)
    asyncio.run(_serve(settings, parse_address(metrics, "--metrics") if metrics else None))


async def _serve(settings: "BrokerSettings", metrics: tuple[str, int] | None) -> None:
    from headwater.clock import SystemClock
    from headwater.transmit.broker.embedded import serve
    from headwater.transmit.broker.monitoring.metrics_page import serve_metrics

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    server = await serve(settings, SystemClock())
    for partition, dropped in server.recovered:
        print(f"recovered {partition}: removed {dropped} bytes at its end that were never acknowledged")
    endpoint = server.endpoint
    print(f"broker ready at {endpoint.host}:{endpoint.port}, data in {settings.data}", flush=True)
    page = None
    if metrics is not None:
        try:
            page = await serve_metrics(*metrics, server.metrics)
        except OSError as error:
            await server.close()
            raise ConflictError(
                f"cannot serve metrics at {metrics[0]}:{metrics[1]}: {error.strerror or error}",
                hint="choose another address with --metrics",
            ) from error
        host, port = page.sockets[0].getsockname()[:2]
        print(f"metrics at http://{host}:{port}/metrics", flush=True)
    await stop.wait()
    if page is not None:
        page.close()
    await server.close()
