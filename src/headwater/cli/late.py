"""`headwater late`: rows that came after their window had closed. None is lost, and here is each."""

from typing import Annotated

import typer

from headwater.cli.output import OutputFormat, OutputOption, print_json, print_table
from headwater.cli.view import DATA, DataOption, NameArgument, open_store

app = typer.Typer(help="Look at rows that came too late.", no_args_is_help=True)


@app.command("list")
def list_late(data: DataOption = DATA, output: OutputOption = OutputFormat.TEXT) -> None:
    """Say for each view how many rows came too late.

    Example: headwater late list
    """
    store = open_store(data)
    counts = store.late_counts()
    views = [(shape.name, *counts.get(shape.name, (0, 0))) for shape in store.views()]
    if output is OutputFormat.JSON:
        names = ("view", "lateRows", "lateRowsWaiting")
        print_json({"views": [dict(zip(names, view, strict=True)) for view in views]})
    else:
        print_table(["view", "late rows", "not reprocessed"], views)


@app.command()
def rows(
    view: NameArgument,
    after: Annotated[int, typer.Option(min=0, help="Show the rows behind this number.")] = 0,
    limit: Annotated[int, typer.Option(min=1, help="How many rows at the most.")] = 100,
    data: DataOption = DATA,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Show the late rows of a view: how late each was, which window it missed, which pane had been the last.

    Example: headwater late rows revenue --limit 20
    """
    from headwater.serve.status import describe_late

    found = [describe_late(row) for row in open_store(data).late_rows(view, after=after, limit=limit)]
    if output is OutputFormat.JSON:
        print_json({"view": view, "rows": found})
        return
    columns = ["number", "key", "window", "eventTime", "lateByMs", "reason", "lastPane", "row"]
    print_table(columns, [[row[name] for name in columns] for row in found])
