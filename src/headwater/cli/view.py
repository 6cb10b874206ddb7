"""`headwater view`: what a view holds. Reads the store, so it works while the app runs and when it does not."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.output import OutputFormat, OutputOption, print_json, print_table
from headwater.errors import InvalidError

if TYPE_CHECKING:
    from headwater.store.views import ViewStore

app = typer.Typer(help="Read views.", no_args_is_help=True)

DataOption = Annotated[Path, typer.Option("--data", help="Directory of the app's data.", envvar="HEADWATER_DATA")]
NameArgument = Annotated[str, typer.Argument(help="Name of the view.")]
DATA = Path(".headwater")


@app.command("list")
def list_views(data: DataOption = DATA, output: OutputOption = OutputFormat.TEXT) -> None:
    """List the views, with their keys and how many rows they have.

    Example: headwater view list
    """
    store = open_store(data)
    views = [(shape.name, list(shape.key), store.count(shape.name)) for shape in store.views()]
    if output is OutputFormat.JSON:
        print_json({"views": [dict(zip(("name", "key", "rows"), view, strict=True)) for view in views]})
    else:
        print_table(["name", "key", "rows"], [[name, ", ".join(key), rows] for name, key, rows in views])


@app.command()
def rows(
    view: NameArgument,
    limit: Annotated[int, typer.Option(min=1, help="How many rows at the most.")] = 100,
    order_by: Annotated[str | None, typer.Option(help="Column to sort by, instead of the key.")] = None,
    descending: Annotated[bool, typer.Option("--descending", help="Greatest first.")] = False,
    data: DataOption = DATA,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Show the rows of a view.

    Example: headwater view rows revenue --order-by revenue --descending --limit 10
    """
    store = open_store(data)
    found = store.rows(view, order_by=order_by, descending=descending, limit=limit)
    _print_rows(store, view, found, output)
    total = store.count(view)
    if output is OutputFormat.TEXT and total > len(found):
        print(f"({total - len(found)} more rows; --limit shows more)")


@app.command()
def get(
    view: NameArgument,
    key: Annotated[list[str], typer.Argument(help="Values of the key columns, or of the first of them.")],
    data: DataOption = DATA,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Show the rows with a key; exit code 1 if there are none.

    Example: headwater view get revenue tea
    """
    store = open_store(data)
    found = store.rows(view, key=key)
    if not found:
        if output is OutputFormat.JSON:
            print_json({"view": view, "rows": []})
        else:
            print(f"view {view} has no row with key {' '.join(key)}", file=sys.stderr)
        raise typer.Exit(1)
    _print_rows(store, view, found, output)


def open_store(data: Path) -> "ViewStore":
    """The views of the app whose data is in a directory, to be read."""
    from headwater.store.views import ViewStore

    if not data.is_dir():
        raise InvalidError(
            f"cannot read views: there is no directory {str(data)!r}",
            hint="run the app first (`headwater run APP.py`), or name its directory with --data",
        )
    return ViewStore(data / "views.db", read_only=True)


def _print_rows(store: "ViewStore", view: str, found: list[dict[str, Any]], output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json({"view": view, "rows": found})
        return
    names = [column.name for column in store.shape(view).columns]
    print_table(names, [[row[name] for name in names] for row in found])
