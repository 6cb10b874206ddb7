"""`headwater pipeline`: the state of an app's queries, from the facts they record."""

from typing import Any

import typer

from headwater.cli.options import DATA, DataOption
from headwater.cli.output import OutputFormat, OutputOption, print_json, print_table

app = typer.Typer(help="Show the state of an app's pipelines.", no_args_is_help=True)


_DROPPED = {
    "lateRows": "late",
    "ignoredRows": "ignored",
    "leftOutRecords": "excluded",
    "deadLetters": "dead letters",
}


@app.callback()
def pipeline() -> None:
    """Show the state of an app's pipelines."""


@app.command("list")
def list_pipelines(data: DataOption = DATA, output: OutputOption = OutputFormat.TEXT) -> None:
    """List pipelines with their state, lag, estimated time to catch up, and what is not in their results.

    Example: headwater pipeline list
    """
    from headwater.clock import SystemClock
    from headwater.errors import InvalidError
    from headwater.serve.api.status import summarize_all
    from headwater.store.facts import FactStore

    path = data / "facts.db"
    if not path.exists():
        raise InvalidError(
            f"no pipeline has run in {str(data)!r}",
            hint="run the app first (`headwater run APP.py`), or pass its data directory with --data",
        )
    found = summarize_all(FactStore(path), SystemClock())
    if output is OutputFormat.JSON:
        print_json({"pipelines": [{name: p[name] for name in p if name != "history"} for p in found]})
        return
    columns = ["pipeline", "state", "batch", "rows/s", "behind", "caught up in", "not in the result", "error"]
    rows = [
        [
            *(p["name"], p["state"], p["batchId"], _rate(p), p["behindRecords"], _catch_up(p)),
            *(_dropped(p), _first_line(p["error"])),
        ]
        for p in found
    ]
    print_table(columns, rows)


def _rate(pipeline: dict[str, Any]) -> int | None:
    rate = pipeline["processedRowsPerSecond"]
    return None if rate is None else round(rate)


def _catch_up(pipeline: dict[str, Any]) -> str:
    seconds = pipeline["catchUpSeconds"]
    if seconds is None:
        return "falling behind" if pipeline["behindRecords"] else ""
    if seconds == 0:
        return "up to date"
    return f"about {seconds:,.0f} s" if seconds < 600 else f"about {seconds / 60:,.0f} min"


def _dropped(pipeline: dict[str, Any]) -> str:
    """Return what the pipeline has read that is not in its result."""
    return ", ".join(f"{pipeline[name]:,} {kind}" for name, kind in _DROPPED.items() if pipeline[name])


def _first_line(error: str | None) -> str:
    return (error or "").partition("\n")[0]
