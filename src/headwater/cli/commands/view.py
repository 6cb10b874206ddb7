"""`headwater view`: read views. Works whether or not the app is running, since it reads the store directly."""

import sys
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.options import DATA, DataOption, LimitOption, StoreOption, ViewArgument
from headwater.cli.output import OutputFormat, OutputOption, print_json, print_table
from headwater.cli.view_store import open_store

if TYPE_CHECKING:
    from headwater.store.questions import Answer
    from headwater.store.reader import ViewReader
    from headwater.store.subscription import Event
    from headwater.store.views import ViewStore

app = typer.Typer(help="Read views.", no_args_is_help=True)

WhereOption = Annotated[
    list[str] | None,
    typer.Option("--where", "-w", help="Condition such as 'amount >= 10'; may be repeated."),
]
OrderOption = Annotated[
    str | None, typer.Option(help="Columns to sort by, such as -revenue,product; - sorts descending.")
]
AfterOption = Annotated[str | None, typer.Option(help="Cursor of the previous page: show the rows after it.")]
AsOfOption = Annotated[str | None, typer.Option(help="Position or token: show the rows as of then.")]
AtLeastOption = Annotated[
    str | None,
    typer.Option(help="Wait until the view includes this position, token, or record (TOPIC:PARTITION:OFFSET)."),
]
TimeoutOption = Annotated[float, typer.Option(min=0, help="Maximum seconds to wait.")]
TIMEOUT_S = 10.0


@app.command("list")
def list_views(
    data: DataOption = DATA, address: StoreOption = None, output: OutputOption = OutputFormat.TEXT
) -> None:
    """List the views with their keys and row counts.

    Example: headwater view list
    """
    with closing(open_store(data, address)) as store:
        views = [(shape.name, list(shape.key), store.count(shape.name)) for shape in store.views()]
    if output is OutputFormat.JSON:
        print_json({"views": [dict(zip(("name", "key", "rows"), view, strict=True)) for view in views]})
    else:
        print_table(["name", "key", "rows"], [[name, ", ".join(key), rows] for name, key, rows in views])


@app.command()
def rows(
    view: ViewArgument,
    limit: LimitOption = 100,
    order_by: Annotated[str | None, typer.Option(help="Column to sort by, instead of the key.")] = None,
    descending: Annotated[bool, typer.Option("--descending", help="Sort in descending order.")] = False,
    data: DataOption = DATA,
    address: StoreOption = None,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Show the rows of a view.

    Example: headwater view rows revenue --order-by revenue --descending --limit 10
    """
    with closing(open_store(data, address)) as store:
        found = store.rows(view, order_by=order_by, descending=descending, limit=limit)
        _print_rows(store, view, found, output)
        total = store.count(view)
    if output is OutputFormat.TEXT and total > len(found):
        print(f"({total - len(found)} more rows; use --limit to show more)")


@app.command()
def get(
    view: ViewArgument,
    key: Annotated[list[str], typer.Argument(help="Values of the key columns, or of the first few of them.")],
    as_of: AsOfOption = None,
    at_least: AtLeastOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
    data: DataOption = DATA,
    address: StoreOption = None,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Show the rows with a key; exit with 1 if there are none.

    Example: headwater view get revenue tea

    Example: headwater view get revenue tea --at-least orders:0:17
    """
    with closing(open_store(data, address)) as store:
        shape = store.shape(view)
        if len(key) > len(shape.key):
            store.rows(view, key=key)  # Raises an error that names the key columns.
        where = [(name, "=", value) for name, value in zip(shape.key, key, strict=False)]
        reader = _reader(store, view)
        found = reader.rows(where=where, as_of=as_of, at_least=at_least, timeout_s=timeout).rows
        if found:
            _print_rows(store, view, found, output)
            return
    if output is OutputFormat.JSON:
        print_json({"view": view, "rows": []})
    else:
        print(f"view {view} has no row with key {' '.join(key)}", file=sys.stderr)
    raise typer.Exit(1)


@app.command()
def query(
    view: ViewArgument,
    where: WhereOption = None,
    order_by: OrderOption = None,
    limit: LimitOption = 100,
    after: AfterOption = None,
    as_of: AsOfOption = None,
    at_least: AtLeastOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
    data: DataOption = DATA,
    address: StoreOption = None,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Show the rows that match conditions, now or as of an earlier position.

    Operators are =, !=, <, <=, >, >=, ^= (starts with) and in (followed by a list). null matches a missing value.

    Example: headwater view query revenue --where 'revenue >= 10' --where 'product ^= green' --order-by -revenue

    Example: headwater view query revenue --where 'window.start >= 2026-11-15T12:00:00Z' --as-of 1200
    """
    with closing(open_store(data, address)) as store:
        answer = _reader(store, view).rows(
            where=where or [],
            order_by=order_by or (),
            limit=limit,
            after=after,
            as_of=as_of,
            at_least=at_least,
            timeout_s=timeout,
        )
        _print_answer(store, view, answer, output)


@app.command()
def search(
    view: ViewArgument,
    words: Annotated[list[str], typer.Argument(help="Words to search for.")],
    where: WhereOption = None,
    order_by: OrderOption = None,
    limit: LimitOption = 100,
    after: AfterOption = None,
    at_least: AtLeastOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
    data: DataOption = DATA,
    address: StoreOption = None,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Search the columns named in the view's `search`, and show the best matches first.

    All words must match. Quote a phrase to match it exactly ('"two words"'), end a word with * to match a
    prefix, and write tea OR coffee to match either. After --, a word that starts with - must not occur.

    Example: headwater view search products green tea --limit 5

    Example: headwater view search products -- tea -decaf
    """
    with closing(open_store(data, address)) as store:
        answer = _reader(store, view).search(
            " ".join(words),
            where=where or [],
            order_by=order_by or (),
            limit=limit,
            after=after,
            at_least=at_least,
            timeout_s=timeout,
        )
        _print_answer(store, view, answer, output)


@app.command()
def subscribe(
    view: ViewArgument,
    token: Annotated[
        str | None, typer.Option("--from", help="Token of the last event received: continue after it.")
    ] = None,
    for_s: Annotated[
        float | None, typer.Option("--silent", min=0, help="Exit after this many seconds without an event.")
    ] = None,
    data: DataOption = DATA,
    address: StoreOption = None,
) -> None:
    """Print the rows of a view, then every change as it happens, as one JSON object per line, until Ctrl-C.

    The events are `reset` (the rows follow), `row`, `ready` (end of the rows) and `change`. To continue later,
    pass the token of a `ready` or `change` event.

    Example: headwater view subscribe revenue

    Example: headwater view subscribe revenue --from 5f3a09c2-42
    """
    from headwater.json_values import json_text

    with closing(open_store(data, address)) as store:
        for event in _reader(store, view).subscribe(token, silent_s=for_s):
            print(json_text(describe_event(event)), flush=True)


def describe_event(event: "Event") -> dict[str, Any]:
    """Return an event of a subscription as JSON, with the field names of the HTTP API."""
    from headwater.serve.live.events import describe_change

    found: dict[str, Any] = {"event": str(event.kind)}
    if event.row is not None:
        found["row"] = event.row
    if event.change is not None:
        found["change"] = describe_change(event.change)
    return found if event.token is None else {**found, "token": event.token}


def _reader(store: "ViewStore", view: str) -> "ViewReader":
    from headwater.clock import SystemClock
    from headwater.store.reader import ViewReader

    store.shape(view)  # Raises an error if the view does not exist.
    return ViewReader(store, view, SystemClock())


def _print_answer(store: "ViewStore", view: str, answer: "Answer", output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(
            {
                "view": view,
                "rows": answer.rows,
                "position": answer.position,
                "token": answer.token,
                "next": answer.next,
            }
        )
        return
    _print_rows(store, view, answer.rows, output)
    if answer.next is not None:
        print(f"(more rows: pass --after {answer.next})")


def _print_rows(store: "ViewStore", view: str, found: Sequence[dict[str, Any]], output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json({"view": view, "rows": found})
        return
    names = [column.name for column in store.shape(view).columns]
    print_table(names, [[row[name] for name in names] for row in found])
