"""`headwater demo`: run the example shop with generated orders."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.assembly.settings import parse_address

if TYPE_CHECKING:
    from headwater.assembly.run import AppParts
    from headwater.assembly.settings import Report
    from headwater.demo.traffic import Traffic

_LOOK_EVERY_S = 0.2
_DRAIN_S = 10.0


def demo(
    seconds: Annotated[
        float | None,
        typer.Option(
            min=1, help="Stop after this many seconds, but not before the first result, and print a summary."
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Directory for log and views; defaults to a temporary directory.")
    ] = None,
    listen: Annotated[str, typer.Option(help="Address of the log; port 0 chooses a free port.")] = "127.0.0.1:0",
    http: Annotated[
        str, typer.Option(help="Address of the console; port 0 chooses a free port.")
    ] = "127.0.0.1:8080",
) -> None:
    """Run a shop: orders flow from a Kafka client through Spark into a view and onto the console.

    Example: headwater demo --seconds 60
    """
    from headwater.assembly.run import clean_shutdown, running_app
    from headwater.assembly.settings import RunSettings
    from headwater.cli.app_file import load_app
    from headwater.clock import SystemClock
    from headwater.demo import traffic as demo_traffic

    began = time.monotonic()
    until = None if seconds is None else began + seconds

    def report(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)

    app = load_app(Path(demo_traffic.__file__).with_name("shop.py"))
    with ExitStack() as stack:
        folder = data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headwater-demo-")))
        settings = RunSettings(
            data=folder,
            bootstrap_servers=None,
            listen=parse_address(listen, "--listen"),
            http=_address_or_free_port(parse_address(http, "--http"), report),
            master="local[*]",
        )
        traffic: list[demo_traffic.Traffic] = []

        @contextmanager
        def open_shop(servers: str) -> Iterator[None]:
            traffic.append(demo_traffic.Traffic(servers, SystemClock()))
            traffic[0].start()
            report("the shop is open: orders arrive in topic `orders`")
            try:
                yield
            finally:
                traffic[0].stop()

        stack.enter_context(clean_shutdown())
        try:
            with running_app(app, settings, report, produce=open_shop) as running:
                _watch(running, report, until)
                traffic[0].stop()
                _drain(running, traffic[0])
                _print_summary(running, traffic[0], time.monotonic() - began)
        except KeyboardInterrupt:
            report("stopped")


def _address_or_free_port(address: tuple[str, int], report: "Report") -> tuple[str, int]:
    """Return the address, or a free port of its host if the port is in use: the demo should start anyway."""
    import socket

    try:
        socket.create_server(address).close()
    except OSError:
        report(f"{address[0]}:{address[1]} is in use, so the console uses a free port")
        return address[0], 0
    return address


def _watch(running: "AppParts", report: "Report", until: float | None) -> None:
    """Report the first result and the console's address, then run until the time is over."""
    while not running.store.count("revenue"):  # Even past `until`: a slow machine should show a result, too.
        running.spark.run(until=time.monotonic() + _LOOK_EVERY_S)
        running.pipeline.check()
    row = running.store.rows("revenue", limit=1)[0]
    report(f"first result: {row['product']}, {row['orders']} orders, {row['revenue']:.2f}")
    report(f"open {running.console_url}" + ("" if until else "; press Ctrl-C to stop the demo"))
    running.spark.run(until=until)


def _drain(running: "AppParts", traffic: "Traffic") -> None:
    """Wait until the last orders have reached the view, but no longer than _DRAIN_S."""
    until = time.monotonic() + _DRAIN_S
    while running.pipeline.rows_read()["revenue"] < traffic.sent and time.monotonic() < until:
        running.spark.run(until=time.monotonic() + _LOOK_EVERY_S)


def _print_summary(running: "AppParts", traffic: "Traffic", took_s: float) -> None:
    read = running.pipeline.rows_read()
    invalid = running.store.counters().get("orders.deadletter", 0)
    totals = running.store.rows("revenue", limit=10_000)
    print(f"\nin {took_s:.0f} s:")
    print(f"  {traffic.sent} orders produced by the shop's Kafka client")
    print(f"  {read.get('revenue', 0)} read by Spark into view `revenue`, which has {len(totals)} rows")
    print(f"  {invalid} did not match the schema and are in topic `orders.deadletter`, each with the reason")
    print(f"  total revenue: {sum(row['revenue'] for row in totals):,.2f}")
