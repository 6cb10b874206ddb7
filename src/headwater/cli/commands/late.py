"""`headwater late`: rows that came after their window had closed. None is lost, and here is each."""

from pathlib import Path
from typing import Annotated

import typer

from headwater.cli.commands.view import DATA, DataOption, NameArgument, StoreOption, open_store
from headwater.cli.output import OutputFormat, OutputOption, print_json, print_table

app = typer.Typer(help="Look at rows that came too late, and bring them in.", no_args_is_help=True)


@app.command("list")
def list_late(
    data: DataOption = DATA, address: StoreOption = None, output: OutputOption = OutputFormat.TEXT
) -> None:
    """Say for each view how many rows came too late.

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
    view: NameArgument,
    after: Annotated[int, typer.Option(min=0, help="Show the rows behind this number.")] = 0,
    limit: Annotated[int, typer.Option(min=1, help="How many rows at the most.")] = 100,
    data: DataOption = DATA,
    address: StoreOption = None,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Show the late rows of a view: how late each was, which window it missed, which pane had been the last.

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
    view: NameArgument,
    bootstrap_servers: Annotated[
        str | None,
        typer.Option("--bootstrap-servers", "-b", help="The log, if it is Kafka or that of an app that runs."),
    ] = None,
    master: Annotated[str, typer.Option(help="Spark master.")] = "local[*]",
    data: DataOption = DATA,
    address: StoreOption = None,
    name: Annotated[str | None, typer.Option("--app", help="Which app, where the file has several.")] = None,
) -> None:
    """Compute the windows again that rows came too late for, from all that is in the log.

    Example: headwater late reprocess shop.py revenue

    Example: headwater late reprocess shop.py revenue --bootstrap-servers 127.0.0.1:9092
    """
    from headwater.assembly.app import log_of
    from headwater.cli.app_file import load_app
    from headwater.spark.pipeline.reprocess import reprocess_late
    from headwater.spark.session.session import spark_session
    from headwater.spark.source.exclusions import exclusions_of

    loaded = load_app(file, name)
    wanted = loaded.view_named(view)
    store = open_store(data, address, to_write=True)
    log_file = data / "logs" / "spark-late.log"
    with (
        log_of(data, bootstrap_servers) as servers,
        spark_session("late", master=master, log_file=log_file) as spark,
    ):
        count = reprocess_late(
            wanted,
            spark,
            store,
            servers,
            exclusions_of(data, loaded.name, wanted, servers),
        )
    print(f"view {view}: {count} late rows are in now")
