"""`headwater run`: run an app with its log, Spark, views and console."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.addresses import parse_address
from headwater.cli.options import AppOption
from headwater.errors import InvalidError

if TYPE_CHECKING:
    from headwater.app import App
    from headwater.assembly.run import RunningApp


def parse_conf(settings: list[str]) -> dict[str, str]:
    """Parse `KEY=VALUE` settings, as `spark-submit --conf` takes them."""
    for setting in settings:
        key, is_pair, _ = setting.partition("=")
        if not key or not is_pair:
            raise InvalidError(f"cannot read --conf {setting!r}: expected KEY=VALUE")
    return dict(setting.split("=", 1) for setting in settings)


def run(
    file: Annotated[Path, typer.Argument(help="Python file with an hw.App.", show_default=False)],
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

    Example: headwater run shop.py --bootstrap-servers kafka:9092 --master spark://spark:7077

    Example: headwater run shop.py --conf spark.sql.shuffle.partitions=8
    """
    from headwater.assembly.run import clean_shutdown, running_app
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
    app = load_app(file, name)
    with clean_shutdown(), running_app(app, settings, lambda text: print(text, flush=True)) as running:
        queries = ", ".join(query.name for query in app.queries)
        print(f"running {app.name}: {queries}" + ("" if once else "; press Ctrl-C to stop"), flush=True)
        running.spark.run()
        _print_summary(app, running)


def _print_summary(app: "App", running: "RunningApp") -> None:
    """Print the results of all queries, and the number and place of what is not in them."""
    for view in app.views:
        print(f"view {view.name}: {running.store.count(view.name)} rows")
    for sink in app.sink_queries:
        print(f"sink {sink.name}: {running.pipeline.rows_read()[sink.name]} records read")
    left_out = running.pipeline.left_out()
    for query in app.queries:
        name = query.name
        if count := left_out.get(name):
            letters = " and ".join(f"`headwater deadletter list {topic.dead_letters}`" for topic in query.topics)
            print(f"{name}: {_records(count)} left out because it fails on them; see {letters}")
        if count := running.store.late_count(name):
            print(f"{name}: {count} late row{'s' if count > 1 else ''}; see `headwater late rows {name}`")
    for letters, count in running.store.counters().items():
        print(f"{letters}: {_records(count)} not matching the schema; see `headwater deadletter list {letters}`")


def _records(count: int) -> str:
    return f"{count} record" if count == 1 else f"{count} records"
