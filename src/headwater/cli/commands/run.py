"""`headwater run`: run an app with its log, Spark, views and console."""

from pathlib import Path
from typing import Annotated

import typer

from headwater.assembly.settings import parse_address
from headwater.cli.options import AppOption
from headwater.errors import InvalidError


def parse_conf(settings: list[str]) -> dict[str, str]:
    """Parse `KEY=VALUE` settings, as `spark-submit --conf` takes them."""
    for setting in settings:
        key, is_pair, _ = setting.partition("=")
        if not key or not is_pair:
            raise InvalidError(f"cannot read --conf {setting!r}: expected KEY=VALUE")
    return dict(setting.split("=", 1) for setting in settings)


def run(
    source: Annotated[
        str,
        typer.Argument(
            help="Python file with an hw.App, or `package.module:app`.", metavar="FILE", show_default=False
        ),
    ],
    bootstrap_servers: Annotated[
        str | None,
        typer.Option("--bootstrap-servers", "-b", help="Kafka brokers to use instead of the embedded log."),
    ] = None,
    master: Annotated[str, typer.Option(help="Spark master.")] = "local[*]",
    once: Annotated[bool, typer.Option("--once", help="Process the records in the log, then exit.")] = False,
    data: Annotated[
        Path, typer.Option(help="Directory for log, views and checkpoints.", envvar="HEADWATER_DATA")
    ] = Path(".headwater"),
    listen: Annotated[str, typer.Option(help="Address of the embedded log.")] = "127.0.0.1:9092",
    http: Annotated[str, typer.Option(help="Address of the console and the HTTP API.")] = "127.0.0.1:8080",
    store: Annotated[
        str | None,
        typer.Option(
            help="Address of a PostgreSQL database for the views; defaults to the app's, or a file in --data.",
            envvar="HEADWATER_STORE",
        ),
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", help="A setting for Spark, KEY=VALUE; may be repeated."),
    ] = None,
    name: AppOption = None,
) -> None:
    """Run an app: embedded log, Spark, views and console, until Ctrl-C.

    Example: headwater run shop.py

    Example: headwater run shop.main:app

    Example: headwater run shop.py --bootstrap-servers kafka:9092 --master spark://spark:7077

    Example: headwater run shop.py --conf spark.sql.shuffle.partitions=8
    """
    from headwater.assembly.run import run_app
    from headwater.assembly.settings import RunSettings
    from headwater.cli.app_file import load_app

    settings = RunSettings(
        data=data,
        bootstrap_servers=bootstrap_servers,
        listen=parse_address(listen, "--listen"),
        http=None if once else parse_address(http, "--http"),
        master=master,
        once=once,
        store=store,
        conf=parse_conf(conf or []),
    )
    run_app(load_app(source, name), settings, lambda text: print(text, flush=True))
