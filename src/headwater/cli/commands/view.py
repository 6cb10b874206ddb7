"""`headwater view`: what a view holds. Reads the store, so it works while the app runs and when it does not."""

import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.output import OutputFormat, OutputOption, print_json, print_table
from headwater.errors import InvalidError

if TYPE_CHECKING:
    from headwater.store.questions import Answer
    from headwater.store.reader import ViewReader
    from headwater.store.subscription import Event
    from headwater.store.views import ViewStore

app = typer.Typer(help="Read views.", no_args_is_help=True)

DataOption = Annotated[Path, typer.Option("--data", help="Directory of the app's data.", envvar="HEADWATER_DATA")]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        help="Address of the PostgreSQL that has the views, where --data does not say.",
        envvar="HEADWATER_STORE",
    ),
]
NameArgument = Annotated[str, typer.Argument(help="Name of the view.")]
WhereOption = Annotated[
    list[str] | None,
    typer.Option("--where", "-w", help="What must hold, as 'amount >= 10'; can be given several times."),
]
OrderOption = Annotated[
    str | None, typer.Option(help="Columns to sort by, as -revenue,product: greatest revenue first.")
]
LimitOption = Annotated[int, typer.Option(min=1, help="How many rows at the most.")]
AfterOption = Annotated[str | None, typer.Option(help="Cursor of the page before: show the rows behind it.")]
AsOfOption = Annotated[str | None, typer.Option(help="Position or token: the rows as they were then.")]
AtLeastOption = Annotated[
    str | None,
    typer.Option(help="Wait until the view has seen it: a position, a token, or TOPIC:PARTITION:OFFSET."),
]
TimeoutOption = Annotated[float, typer.Option(min=0, help="Seconds to wait at the most.")]
DATA = Path(".headwater")
TIMEOUT_S = 10.0


@app.command("list")
def list_views(
    data: DataOption = DATA, address: StoreOption = None, output: OutputOption = OutputFormat.TEXT
) -> None:
    """List the views, with their keys and how many rows they have.

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
    view: NameArgument,
    limit: LimitOption = 100,
    order_by: Annotated[str | None, typer.Option(help="Column to sort by, instead of the key.")] = None,
    descending: Annotated[bool, typer.Option("--descending", help="Greatest first.")] = False,
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
        print(f"({total - len(found)} more rows; --limit shows more)")


@app.command()
def get(
    view: NameArgument,
    key: Annotated[list[str], typer.Argument(help="Values of the key columns, or of the first of them.")],
    as_of: AsOfOption = None,
    at_least: AtLeastOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
    data: DataOption = DATA,
    address: StoreOption = None,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Show the rows with a key; exit code 1 if there are none.

    Example: headwater view get revenue tea

    Example: headwater view get revenue tea --at-least orders:0:17
    """
    with closing(open_store(data, address)) as store:
        shape = store.shape(view)
        if len(key) > len(shape.key):
            store.rows(view, key=key)  # It says so.
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
    view: NameArgument,
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
    """Show the rows for which conditions hold, now or as of an earlier position.

    Operators are = != < <= > >=, ^= for text that begins so, and in with a list; null is no value.

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
    view: NameArgument,
    words: Annotated[list[str], typer.Argument(help="What to look for, as in a search engine.")],
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
    """Show the rows with words in the columns that the view's `search` names, the best fitting first.

    All words must be there. '"two words"' in quotes of their own stand one behind the other, tea* is a beginning,
    tea OR coffee one of them. Behind -- also -word, which must not be there.

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
    view: NameArgument,
    token: Annotated[
        str | None, typer.Option("--from", help="Token of the last event you have: show only what came since.")
    ] = None,
    for_s: Annotated[
        float | None, typer.Option("--silent", min=0, help="End after so many seconds without anything new.")
    ] = None,
    data: DataOption = DATA,
    address: StoreOption = None,
) -> None:
    """Print the rows of a view, then every change as it happens, as a line of JSON each, until Ctrl-C.

    `reset` says that the rows follow, `row` is one of them, `ready` that these were all; then comes `change` after
    `change`. With the token of one of the last two it goes on from there.

    Example: headwater view subscribe revenue

    Example: headwater view subscribe revenue --from 5f3a09c2-42
    """
    from headwater.json_values import json_text

    with closing(open_store(data, address)) as store:
        for event in _reader(store, view).subscribe(token, silent_s=for_s):
            print(json_text(describe_event(event)), flush=True)


def describe_event(event: "Event") -> dict[str, Any]:
    """An event of a subscription, with the names of the HTTP API."""
    from headwater.serve.live.events import describe_change

    found: dict[str, Any] = {"event": str(event.kind)}
    if event.row is not None:
        found["row"] = event.row
    if event.change is not None:
        found["change"] = describe_change(event.change)
    return found if event.token is None else {**found, "token": event.token}


def open_store(data: Path, address: str | None = None, *, to_write: bool = False) -> "ViewStore":
    """The views of the app whose data is in a directory; an InvalidError if there are none yet."""
    from headwater.store.location import find_store
    from headwater.store.views import ViewStore

    place = find_store(data, address)
    if isinstance(place, Path) and not data.is_dir():
        raise InvalidError(
            f"cannot read views: there is no directory {str(data)!r}",
            hint="run the app first (`headwater run APP.py`), or name its directory with --data",
        )
    store = ViewStore(place, read_only=True)
    if not to_write:
        return store
    store.close()
    return ViewStore(place)


def _reader(store: "ViewStore", view: str) -> "ViewReader":
    from headwater.clock import SystemClock
    from headwater.store.reader import ViewReader

    store.shape(view)  # It says so if there is none.
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
        print(f"(more rows: --after {answer.next})")


def _print_rows(store: "ViewStore", view: str, found: Sequence[dict[str, Any]], output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json({"view": view, "rows": found})
        return
    names = [column.name for column in store.shape(view).columns]
    print_table(names, [[row[name] for name in names] for row in found])
