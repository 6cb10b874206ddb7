"""`headwater demo`: the main job, with events to look at."""

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.addresses import parse_address

if TYPE_CHECKING:
    from headwater.assembly.app import RunningApp, Say, Stop
    from headwater.demo.traffic import Traffic

_LOOK_EVERY_S = 0.2
_DRAIN_S = 10.0


def demo(
    seconds: Annotated[
        float | None,
        typer.Option(min=1, help="End by itself after so long, but not before the first result, with a summary."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Keep log and views here; a temporary directory otherwise.")
    ] = None,
    listen: Annotated[str, typer.Option(help="Address of the log; port 0 takes a free one.")] = "127.0.0.1:0",
    http: Annotated[str, typer.Option(help="Address of the console; port 0 takes a free one.")] = "127.0.0.1:8080",
) -> None:
    """Show a shop's orders flow from a Kafka client through Spark into a view and onto a page.

    Example: headwater demo --seconds 60
    """
    from headwater.assembly.app import RunSettings, running, stopping_politely
    from headwater.cli.app_file import load_app
    from headwater.clock import SystemClock
    from headwater.demo import traffic as demo_traffic

    began = time.monotonic()
    until = None if seconds is None else began + seconds

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)

    app = load_app(Path(demo_traffic.__file__).with_name("shop.py"))
    with ExitStack() as stack:
        folder = data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headwater-demo-")))
        settings = RunSettings(
            data=folder,
            bootstrap_servers=None,
            listen=parse_address(listen, "--listen"),
            http=_free_or(parse_address(http, "--http"), say),
            master="local[*]",
        )
        traffic: list[demo_traffic.Traffic] = []

        def open_shop(servers: str) -> "Stop":
            traffic.append(demo_traffic.Traffic(servers, SystemClock()))
            traffic[0].start()
            say("the shop is open: orders arrive in topic `orders`")
            return traffic[0].stop

        stack.enter_context(stopping_politely())
        try:
            with running(app, settings, say, produce=open_shop) as it:
                _watch(it, say, until)
                traffic[0].stop()
                _drain(it, traffic[0])
                _summary(it, traffic[0], time.monotonic() - began)
        except KeyboardInterrupt:
            say("stopped")


def _free_or(address: tuple[str, int], say: "Say") -> tuple[str, int]:
    """The address, or a free port of that host if another program has it: a demo should not fail for that."""
    import socket

    try:
        socket.create_server(address).close()
    except OSError:
        say(f"{address[0]}:{address[1]} is in use, the console takes a free port")
        return address[0], 0
    return address


def _watch(it: "RunningApp", say: "Say", until: float | None) -> None:
    """Tell the first result, then a line now and then, until the time is over."""
    while not it.store.count("revenue"):  # A slow machine shows it later, rather than nothing.
        it.spark.run(until=time.monotonic() + _LOOK_EVERY_S)
    row = it.store.rows("revenue", limit=1)[0]
    say(f"first result: {row['product']}, {row['orders']} orders, {row['revenue']:.2f}")
    say(f"look at {it.console_url}" + ("" if until else "; Ctrl-C ends the demo"))
    it.spark.run(until=until)


def _drain(it: "RunningApp", traffic: "Traffic") -> None:
    """Let the last orders reach the view, within reason."""
    until = time.monotonic() + _DRAIN_S
    while it.pipeline.rows_read()["revenue"] < traffic.sent and time.monotonic() < until:
        it.spark.run(until=time.monotonic() + _LOOK_EVERY_S)


def _summary(it: "RunningApp", traffic: "Traffic", took_s: float) -> None:
    """What flowed, in a few lines."""
    read = it.pipeline.rows_read()
    misfits = it.store.counters().get("orders.deadletter", 0)
    totals = it.store.rows("revenue", limit=10_000)
    print(f"\nin {took_s:.0f} s:")
    print(f"  {traffic.sent} orders were produced by the shop's Kafka client")
    print(f"  {read.get('revenue', 0)} were read by Spark into view `revenue`, {len(totals)} rows")
    print(f"  {misfits} did not fit and are in topic `orders.deadletter`, each with the reason")
    print(f"  revenue in all: {sum(row['revenue'] for row in totals):,.2f}")
