"""`headwater late`: list and reprocess rows that arrived after their window had closed."""

from pathlib import Path
from typing import Annotated

import typer

from headwater.cli.options import DATA, AppOption, DataOption, LimitOption, StoreOption, ViewArgument
from headwater.cli.output import OutputFormat, OutputOption, print_json, print_table
from headwater.cli.view_store import open_store

app = typer.Typer(help="List rows that arrived too late, and reprocess them.", no_args_is_help=True)


@app.command("list")
def list_late(
    data: DataOption = DATA, address: StoreOption = None, output: OutputOption = OutputFormat.TEXT
) -> None:
    """List the views with the number of their late rows.

    Example: headwater late list
    """
    store = open_store(data, address)
    counts = store.late_counts()
    names = sorted({shape.name for shape in store.views()} | set(counts))
    views = [(name, *counts.get(name, (0, 0))) for name in names]
    if output is OutputFormat.JSON:
        fields = ("view", "lateRows", "lateRowsWaiting")
        print_json({"views": [dict(zip(fields, view, strict=True)) for view in views]})
    else:
        print_table(["view", "late rows", "not reprocessed"], views)


@app.command()
def rows(
    view: ViewArgument,
    after: Annotated[int, typer.Option(min=0, help="Show rows with a greater number.")] = 0,
    limit: LimitOption = 100,
    data: DataOption = DATA,
    address: StoreOption = None,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Show the late rows of a view: how late each was, the window it missed, and that window's last pane.

    Example: headwater late rows revenue --limit 20
    """
    from headwater.serve.api.status import describe_late

    found = [describe_late(row) for row in open_store(data, address).late_rows(view, after=after, limit=limit)]
    if output is OutputFormat.JSON:
        print_json({"view": view, "rows": found})
        return
    columns = ["number", "key", "window", "eventTime", "lateByMs", "reason", "lastPane", "row"]
    print_table(columns, [[row[name] for name in columns] for row in found])


@app.command()
def reprocess(
    file: Annotated[Path, typer.Argument(help="Python file with the app.", show_default=False)],
    view: ViewArgument,
    bootstrap_servers: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-servers", "-b", help="Address of the log, if it is Kafka or the log of a running app."
        ),
    ] = None,
    master: Annotated[str, typer.Option(help="Spark master.")] = "local[*]",
    data: DataOption = DATA,
    address: StoreOption = None,
    name: AppOption = None,
) -> None:
    """Recompute the windows that have late rows, from all records in the log.

    Example: headwater late reprocess shop.py revenue

    Example: headwater late reprocess shop.py revenue --bootstrap-servers 127.0.0.1:9092
    """
    from headwater.assembly.log import log_address
    from headwater.cli.app_file import load_app
    from headwater.spark.pipeline.reprocess import reprocess_late
    from headwater.spark.session.session import spark_session
    from headwater.spark.source.exclusions import exclusions_of

    loaded = load_app(file, name)
    wanted = loaded.view_named(view)
    store = open_store(data, address, to_write=True)
    log_file = data / "logs" / "spark-late.log"
    with (
        log_address(data, bootstrap_servers) as servers,
        spark_session("late", master=master, log_file=log_file) as spark,
    ):
        count = reprocess_late(
            wanted,
            spark,
            store,
            servers,
            exclusions_of(data, loaded.name, wanted, servers),
        )
    print(f"view {view}: {count} late rows reprocessed")
