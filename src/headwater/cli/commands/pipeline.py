"""`headwater pipeline`: what an app's queries are doing, from the facts they leave."""

from typing import Any

import typer

from headwater.cli.commands.view import DATA, DataOption
from headwater.cli.output import OutputFormat, OutputOption, print_json, print_table

app = typer.Typer(help="See what an app's pipelines are doing.", no_args_is_help=True)


@app.callback()
def pipeline() -> None:
    """See what an app's pipelines are doing."""


@app.command("list")
def list_pipelines(data: DataOption = DATA, output: OutputOption = OutputFormat.TEXT) -> None:
    """Say of each pipeline how it is, how far behind, and how long it will take to catch up.

    Example: headwater pipeline list
    """
    from headwater.clock import SystemClock
    from headwater.errors import InvalidError
    from headwater.serve.api.status import summarize_all
    from headwater.store.facts import FactStore

    path = data / "facts.db"
    if not path.exists():
        raise InvalidError(f"no pipeline has run in {str(data)!r}", hint="headwater run shop.py, or --data")
    found = summarize_all(FactStore(path), SystemClock())
    if output is OutputFormat.JSON:
        print_json({"pipelines": [{name: p[name] for name in p if name != "history"} for p in found]})
        return
    columns = ["pipeline", "state", "batch", "rows/s", "behind", "caught up in", "error"]
    rows = [
        [p["name"], p["state"], p["batchId"], _rate(p), p["behindRecords"], _told(p), _first_line(p["error"])]
        for p in found
    ]
    print_table(columns, rows)


def _rate(pipeline: dict[str, Any]) -> int | None:
    rate = pipeline["processedRowsPerSecond"]
    return None if rate is None else round(rate)


def _told(pipeline: dict[str, Any]) -> str:
    seconds = pipeline["catchUpSeconds"]
    if seconds is None:
        return "falls behind" if pipeline["behindRecords"] else ""
    if seconds == 0:
        return "up to date"
    return f"about {seconds:,.0f} s" if seconds < 600 else f"about {seconds / 60:,.0f} min"


def _first_line(error: str | None) -> str:
    return (error or "").partition("\n")[0]
