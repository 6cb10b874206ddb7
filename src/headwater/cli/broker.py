"""`headwater broker`: the log by itself, for any Kafka client."""

import asyncio
import logging
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from headwater.transmit.node import BrokerSettings

from headwater.cli.addresses import parse_address


def broker(
    listen: Annotated[
        str, typer.Option(help="Address to listen on; port 0 takes a free one.", show_default=True)
    ] = "127.0.0.1:9092",
    data: Annotated[Path, typer.Option(help="Directory of the log.")] = Path(".headwater/broker"),
    advertised_host: Annotated[
        str | None, typer.Option(help="Host that clients are told to connect to, if not the one of --listen.")
    ] = None,
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of a topic that is created unasked.")] = 1,
    auto_create_topics: Annotated[
        bool, typer.Option(help="Create a topic when a client first asks for it.")
    ] = True,
    durability: Annotated[
        str, typer.Option(help="When a record counts as safe: fsync, interval or never (as Kafka).")
    ] = "fsync",
) -> None:
    """Run the log, until Ctrl-C.

    Example: headwater broker --listen 127.0.0.1:9092 --data ./log
    """
    from headwater.errors import InvalidError
    from headwater.transmit.durability import Durability
    from headwater.transmit.node import BrokerSettings

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
        durability=promise,
    )
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    asyncio.run(_serve(settings))


async def _serve(settings: "BrokerSettings") -> None:
    from headwater.clock import SystemClock
    from headwater.transmit.server import serve

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    server = await serve(settings, SystemClock())
    for partition, dropped in server.recovered:
        print(f"recovered {partition}: cut off {dropped} bytes that were never acknowledged")
    endpoint = server.endpoint
    print(f"broker ready at {endpoint.host}:{endpoint.port}, data in {settings.data}", flush=True)
    await stop.wait()
    await server.close()
